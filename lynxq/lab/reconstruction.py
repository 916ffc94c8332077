"""Reconstructions of a cache by any method: every baseline, every preset, any parameters of your own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lynxq import backends, codec, naming
from lynxq.arrays import Array
from lynxq.baselines import CodedBaseline, Scheme
from lynxq.encoded import Encoded
from lynxq.errors import LynxqError, ParamsError
from lynxq.evaluate import METHODS, Method, RowTier
from lynxq.metrics import ErrorSums
from lynxq.params import Params

_KINDS: tuple[naming.Kind, ...] = ("key", "value")


@dataclass(frozen=True)
class PerTensor:
    """A method with parameters, or a baseline, for each tensor of a cache.

    Parameters
    ----------
    name : str
        Short name.
    title : str
        Name for tables.
    coders : mapping of str to Params or Scheme
        By tensor name, as in ``layer.0.key``.
    """

    name: str
    title: str
    coders: Mapping[str, Params | Scheme]


#: What says how a cache is coded: the name of a method of :mod:`lynxq.evaluate`, a method, or one of your own.
Coding = str | Method | PerTensor


@dataclass(frozen=True, eq=False)
class Part:
    """All keys, or all values, of a reconstruction.

    Attributes
    ----------
    nbytes : int
        Bytes that the decode needs: every part of what is stored.
    errors : ErrorSums
        Pooled over tensors; without the centred norm.
    """

    nbytes: int
    errors: ErrorSums

    @property
    def bits_per_element(self) -> float:
        """Bits per value, counting every stored byte; 0 if there are no values."""
        return 8 * self.nbytes / self.errors.elements if self.errors.elements else 0.0


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A cache as a method and tier gives it back.

    Attributes
    ----------
    method, title : str
        Names of the method.
    tier : {"anchor", "full", "-"}
        "-" for methods without tiers.
    tensors : dict of str to torch tensor
        Of the names, shapes and dtypes of the exact ones.
    keys, values : Part
        What is stored of each, and how far it is off.
    encode_ms, decode_ms : float
        Milliseconds of coding all tensors, both tiers, and of decoding this tier, on one machine at one time.
    """

    method: str
    title: str
    tier: RowTier
    tensors: Mapping[str, Array]
    keys: Part
    values: Part
    encode_ms: float
    decode_ms: float

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def elements(self) -> int:
        """Number of values of all tensors."""
        return self.keys.errors.elements + self.values.errors.elements

    @property
    def bits_per_element(self) -> float:
        """Bits per value, counting every stored byte; 0 if there are no values."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0


def method(coding: Coding) -> Method | PerTensor:
    """The method of a name; methods are passed on.

    Raises
    ------
    ParamsError
        If there is none of that name, or it is something else.

    Examples
    --------
    >>> from lynxq.lab import reconstruction
    >>> reconstruction.method("pair").title
    'keys preset for K, values preset for V'
    """
    if isinstance(coding, str) and coding in METHODS:
        return METHODS[coding]
    if isinstance(coding, Method | PerTensor):
        return coding
    raise ParamsError(f"method must be one of {', '.join(METHODS)}, a Method or a PerTensor, got {coding!r}")


def tiers(coding: Coding) -> tuple[RowTier, ...]:
    """The decodes that a method has.

    Examples
    --------
    >>> from lynxq.lab import reconstruction
    >>> reconstruction.tiers("pair"), reconstruction.tiers("int8")
    (('anchor', 'full'), ('-',))
    """
    chosen = method(coding)
    coders = chosen.coders.values() if isinstance(chosen, PerTensor) else (chosen.keys, chosen.values)
    return ("anchor", "full") if any(isinstance(coder, Params) for coder in coders) else ("-",)


def reconstructions(
    tensors: Mapping[str, Array],
    coding: Coding,
    *,
    wanted: Iterable[Literal["anchor", "full", "-"]] | None = None,
    first_token: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Reconstruction]:
    """Code tensors once and decode every tier.

    Parameters
    ----------
    tensors : mapping of str to array, shape (tokens, heads, head dim)
        With names that tell kind and layer, such as ``layer.3.value``.
    coding : str, Method or PerTensor
        How.
    wanted : iterable of {"anchor", "full", "-"}, optional
        Tiers to decode; all that the method has by default.
    first_token : int
        Position of the first token in its sequence.
    progress : callable, optional
        Called with the number of tensors done since its last call.

    Yields
    ------
    Reconstruction
        One for each tier.

    Raises
    ------
    ParamsError
        If the method is not known, or has no parameters for a tensor, or a name does not tell keys from values.
    DTypeError, ShapeError, NonFiniteError, MissingLibraryError
        If a tensor cannot be coded; a note (``__notes__``) names it.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq import lab
    >>> rng = np.random.default_rng(0)
    >>> cache = {f"layer.0.{kind}": rng.standard_normal((512, 2, 64), np.float32) for kind in ("key", "value")}
    >>> for near in lab.reconstructions(cache, "pair"):
    ...     print(f"{near.tier:6} {near.bits_per_element:.2f} bits, vNMSE of keys {near.keys.errors.vnmse:.0e}")
    anchor 5.09 bits, vNMSE of keys 6e-03
    full   9.06 bits, vNMSE of keys 3e-05
    """
    chosen = method(coding)
    there = tiers(chosen)
    if any(isinstance(_coder(chosen, name), Params) for name in tensors):
        backends.warmup(*{str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    coded: dict[str, Encoded | CodedBaseline] = {}
    begin = time.perf_counter()
    for name, tensor in tensors.items():
        coder = _coder(chosen, name)
        try:
            coded[name] = _encode(tensor, coder, naming.layer_of(name), first_token)
        except LynxqError as error:
            error.add_note(f"tensor {name!r}, method {chosen.name!r}")
            raise
        if progress is not None:
            progress(1)
    encode_ms = 1e3 * (time.perf_counter() - begin)
    for tier in there if wanted is None else wanted:
        if tier not in there:
            raise ParamsError(f"method {chosen.name} has the tiers {', '.join(there)}, got {tier!r}")
        begin = time.perf_counter()
        near = {name: _decode(one, tier) for name, one in coded.items()}
        decode_ms = 1e3 * (time.perf_counter() - begin)
        keys, values = (_part(tensors, coded, near, kind, tier) for kind in _KINDS)
        yield Reconstruction(chosen.name, chosen.title, tier, near, keys, values, encode_ms, decode_ms)


def _coder(chosen: Method | PerTensor, name: str) -> Params | Scheme:
    kind = naming.kind_of(name)
    if kind is None:
        raise ParamsError(f"the name of a tensor of a cache must tell keys from values, got {name!r}")
    if isinstance(chosen, Method):
        return chosen.coder(kind, naming.layer_of(name))
    if name not in chosen.coders:
        raise ParamsError(f"method {chosen.name} has nothing to code tensor {name!r} with")
    return chosen.coders[name]


def _encode(x: Array, coder: Params | Scheme, layer: int | None, first_token: int) -> Encoded | CodedBaseline:
    if isinstance(coder, Scheme):
        return coder.encode(x, token_axis=0, layer=layer, first_token=first_token)
    return codec.encode(x, coder, token_axis=0, first_token=first_token)


def _decode(coded: Encoded | CodedBaseline, tier: RowTier) -> Array:
    if isinstance(coded, CodedBaseline):
        return coded.decode()
    return codec.decode_anchor(coded) if tier == "anchor" else codec.decode_full(coded)


def _part(
    tensors: Mapping[str, Array],
    coded: Mapping[str, Encoded | CodedBaseline],
    near: Mapping[str, Array],
    kind: naming.Kind,
    tier: RowTier,
) -> Part:
    nbytes, errors = 0, ErrorSums()
    for name in tensors:
        if naming.kind_of(name) == kind:
            one = coded[name]
            nbytes += one.anchor_only().nbytes if tier == "anchor" and isinstance(one, Encoded) else one.nbytes
            errors += ErrorSums.of(tensors[name], near[name])
    return Part(nbytes, errors)
