"""Methods side by side on real tensors: what ``lynxq eval`` and ``lynxq demo`` print, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from lynxq import baselines, naming
from lynxq.arrays import Array
from lynxq.baselines import Scheme
from lynxq.codec import decode_anchor, decode_full, encode
from lynxq.errors import LynxqError, ParamsError
from lynxq.metrics import ErrorSums
from lynxq.naming import Kind
from lynxq.params import Params

#: Which decode a row is about; baselines have but one.
RowTier = Literal["anchor", "full", "-"]
RowKind = Literal["key", "value", "other"]

_TIERS: tuple[RowTier, ...] = ("anchor", "full", "-")
_KINDS: tuple[RowKind, ...] = ("key", "value", "other")


@dataclass(frozen=True)
class Method:
    """What codes keys and what codes values; tensors of neither kind are coded as keys.

    Parameters
    ----------
    name : str
        Short name, as the command line takes it.
    title : str
        Name for tables.
    keys, values : Params or Scheme
        Parameters of the codec, or a baseline.
    layers : mapping of (kind, layer) to Params or Scheme, optional
        What codes tensors of single layers, where that differs.

    Examples
    --------
    >>> from lynxq import Params
    >>> from lynxq.evaluate import Method
    >>> method = Method("fine keys", "split 5+3 for K", Params.keys(anchor_bits=5, residual_bits=3), Params.values())
    >>> method.coder("value").axis
    'channel'
    """

    name: str
    title: str
    keys: Params | Scheme
    values: Params | Scheme
    layers: Mapping[tuple[RowKind, int], Params | Scheme] = field(default_factory=dict, hash=False)

    @classmethod
    def of_scheme(cls, scheme: Scheme) -> Method:
        """The method of a baseline."""
        return cls(scheme.name, scheme.title, scheme.for_kind("key"), scheme.for_kind("value"))

    def coder(self, kind: Kind | None, layer: int | None = None) -> Params | Scheme:
        """What codes tensors of a kind, in a layer."""
        if layer is not None and (kind or "other", layer) in self.layers:
            return self.layers[kind or "other", layer]
        return self.values if kind == "value" else self.keys

    @property
    def available(self) -> bool:
        """Whether the libraries that the method needs are there."""
        coders = (self.keys, self.values, *self.layers.values())
        return all(coder.available for coder in coders if isinstance(coder, Scheme))


#: Every method by name, in the order of tables.
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("pair", "keys preset for K, values preset for V", Params.keys(), Params.values()),
            Method("pair-4+3", "presets with split 4+3", Params.keys(residual_bits=3), Params.values(residual_bits=3)),
            Method("keys", "keys preset for K and V", Params.keys(), Params.keys()),
            Method("paper", "paper preset for K and V", Params.paper(), Params.paper()),
            *(Method.of_scheme(scheme) for scheme in baselines.SCHEMES.values()),
        )
    }
)

#: What a table shows unless asked otherwise.
DEFAULT_METHODS = ("pair", "keys", "paper", "int8", "int4")


@dataclass(frozen=True)
class Row:
    """One line of the table: a method and tier on all tensors of a kind, pooled.

    Attributes
    ----------
    method : str
        Name of the method.
    tier : {"anchor", "full", "-"}
        "-" for baselines, which have no tiers.
    kind : {"key", "value", "other"}
    tensors : int
        Number of tensors.
    elements : int
        Number of values.
    nbytes : int
        Bytes that the decode needs: every part of what is stored.
    vnmse, centred_vnmse : float
        Squared error over squared norm, and over the variance around the channels' means; sums over all
        tensors of the kind.
    max_error : float
        Largest |x - x̂|.
    """

    method: str
    tier: RowTier
    kind: RowKind
    tensors: int
    elements: int
    nbytes: int
    vnmse: float
    centred_vnmse: float
    max_error: float

    @property
    def bits_per_element(self) -> float:
        """Bits per value, counting every stored byte; 0 if there are no values."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0


@dataclass
class _Pool:
    """What a row is made of, as it grows."""

    tensors: int = 0
    nbytes: int = 0
    errors: ErrorSums = field(default_factory=ErrorSums)

    def add(self, nbytes: int, errors: ErrorSums) -> None:
        self.tensors += 1
        self.nbytes += nbytes
        self.errors += errors


def evaluate(
    tensors: Mapping[str, Array] | Iterable[tuple[str, Array]],
    methods: Iterable[str | Method] = DEFAULT_METHODS,
    *,
    token_axis: int,
    head_dim: int | None = None,
    kind_of: Callable[[str], Kind | None] = naming.kind_of,
    layer_of: Callable[[str], int | None] = naming.layer_of,
    progress: Callable[[str, str], None] | None = None,
) -> list[Row]:
    """Code tensors by several methods, decode them, and measure the errors, pooled over the tensors of a kind.

    Parameters
    ----------
    tensors : mapping or iterable of (name, array)
        Tensors of float32, float16 or bfloat16, numpy or CPU torch. An iterable is read once, one tensor at a
        time, so that a file of any size can be evaluated.
    methods : iterable of str or Method
        Names in `METHODS`, or methods of your own.
    token_axis : int
        The axis of tokens, in all tensors.
    head_dim : int, optional
        Channels of one head, where the last axis holds several.
    kind_of : callable
        From a tensor's name to "key", "value" or None; :func:`lynxq.naming.kind_of` by default.
    layer_of : callable
        From a tensor's name to the number of its layer or None; :func:`lynxq.naming.layer_of` by default.
    progress : callable, optional
        Called with a tensor's and a method's name whenever the method is done with the tensor.

    Returns
    -------
    list of Row
        Ordered by method as given, then tier, then kind. Errors are those of decodes into a tensor's own dtype.

    Raises
    ------
    ParamsError
        If a method is not known or given twice.
    DTypeError, ShapeError, NonFiniteError
        If a tensor cannot be coded; a note (``__notes__``) names it.
    MissingLibraryError
        If a baseline needs a library that is not installed (`Method.available` tells).

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.evaluate import evaluate
    >>> rng = np.random.default_rng(0)
    >>> cache = {f"layer.0.{kind}": rng.standard_normal((512, 2, 64), np.float32) for kind in ("key", "value")}
    >>> for row in evaluate(cache, ["pair", "int4"], token_axis=0):
    ...     print(f"{row.method:5} {row.tier:7} {row.kind:6} {row.bits_per_element:5.2f} bits  {row.vnmse:.0e}")
    pair  anchor  key     4.97 bits  6e-03
    pair  anchor  value   5.21 bits  8e-03
    pair  full    key     8.94 bits  3e-05
    pair  full    value   9.18 bits  3e-05
    int4  -       key     4.00 bits  2e-02
    int4  -       value   4.00 bits  3e-02
    """
    chosen = _methods(methods)
    pools: dict[tuple[str, RowTier, RowKind], _Pool] = {}
    for name, array in tensors.items() if isinstance(tensors, Mapping) else tensors:
        kind, layer = kind_of(name), layer_of(name)
        for method in chosen:
            try:
                for tier, nbytes, errors in _measure(array, method.coder(kind, layer), token_axis, head_dim, layer):
                    pools.setdefault((method.name, tier, kind or "other"), _Pool()).add(nbytes, errors)
            except LynxqError as error:
                error.add_note(f"tensor {name!r}, method {method.name!r}")
                raise
            if progress is not None:
                progress(name, method.name)
    return [
        _row(method.name, tier, kind, pools[method.name, tier, kind])
        for method in chosen
        for tier in _TIERS
        for kind in _KINDS
        if (method.name, tier, kind) in pools
    ]


def _methods(methods: Iterable[str | Method]) -> list[Method]:
    chosen: dict[str, Method] = {}
    for item in (methods,) if isinstance(methods, str) else methods:
        if isinstance(item, str) and item not in METHODS:
            raise ParamsError(f"method must be one of {', '.join(METHODS)}, got {item!r}")
        method = METHODS[item] if isinstance(item, str) else item
        if method.name in chosen:
            raise ParamsError(f"every method must have a name of its own, got {method.name!r} twice")
        chosen[method.name] = method
    return list(chosen.values())


def _measure(
    x: Array, coder: Params | Scheme, token_axis: int, head_dim: int | None, layer: int | None
) -> Iterator[tuple[RowTier, int, ErrorSums]]:
    """Bytes and errors of every tier."""
    if isinstance(coder, Scheme):
        coded = coder.encode(x, token_axis=token_axis, head_dim=head_dim, layer=layer)
        yield "-", coded.nbytes, ErrorSums.of(x, coded.decode(), token_axis=token_axis)
        return
    encoded = encode(x, coder, token_axis=token_axis, head_dim=head_dim)
    near = decode_anchor(encoded)
    yield "anchor", encoded.anchor_only().nbytes, ErrorSums.of(x, near, token_axis=token_axis)
    near = decode_full(encoded, out=near)
    yield "full", encoded.nbytes, ErrorSums.of(x, near, token_axis=token_axis)


def _row(method: str, tier: RowTier, kind: RowKind, pool: _Pool) -> Row:
    errors = pool.errors
    return Row(
        method,
        tier,
        kind,
        pool.tensors,
        errors.elements,
        pool.nbytes,
        errors.vnmse,
        errors.centred_vnmse,
        errors.max_error,
    )
