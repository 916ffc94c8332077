"""The one interface of all baselines: a scheme stores parts, and what it stored is what is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.arguments import integer
from lynxq.arrays import Array, Library
from lynxq.dtypes import DType
from lynxq.errors import NonFiniteError, ShapeError
from lynxq.libraries import missing
from lynxq.naming import Kind

#: What a scheme stores: named arrays. Nothing else may reach its decoder but the `Context`.
Parts = Mapping[str, NDArray[Any]]
F32 = NDArray[np.float32]

_MAX_LENGTH = 1 << 48


@dataclass(frozen=True)
class Context:
    """What both sides know of a tensor without its being stored, as lynxq's own figures leave it out, too.

    Attributes
    ----------
    shape : tuple of int
    dtype : DType
        Values kept verbatim are kept in it.
    token_axis : int
        Not negative.
    head_dim : int
        Channels of one head.
    layer : int or None
        Number of the layer, for schemes that treat layers differently.
    first_token : int
        Position of the tensor's first token in its sequence.
    """

    shape: tuple[int, ...]
    dtype: DType
    token_axis: int
    head_dim: int
    layer: int | None = None
    first_token: int = 0

    @property
    def block(self) -> tuple[int, int, int, int]:
        """The shape that schemes see: (outer, tokens, heads, head dim)."""
        inner = prod(self.shape[self.token_axis + 1 :])
        outer = prod(self.shape[: self.token_axis])
        return outer, self.shape[self.token_axis], inner // self.head_dim, self.head_dim


class Scheme(ABC):
    """A compression scheme to compare with; immutable, and with all its settings in the object.

    A new one implements :meth:`compress` and :meth:`restore` on float32 arrays of four axes; conversions, checks,
    layouts and the counting of bytes are done here. Scales, tables, outliers and masks are parts like the codes:
    they count.

    Attributes
    ----------
    name : str
        Short name, as the command line takes it.
    title : str
        Name for tables.
    paper : str
        Where the scheme is from.
    requires : str or None
        A library that is not a dependency of lynxq itself.
    """

    name: str
    title: str
    paper: str = ""
    requires: str | None = None

    @abstractmethod
    def compress(self, values: F32, context: Context) -> Parts:
        """Code a tensor.

        Parameters
        ----------
        values : ndarray of float32, shape (outer, tokens, heads, head dim)
            Finite and C-contiguous; any axis may be empty. Not to be changed.
        context : Context
            ``context.block`` is the shape of `values`.

        Returns
        -------
        mapping of str to ndarray
            What has to be stored, packed as it would be stored.
        """

    @abstractmethod
    def restore(self, parts: Parts, context: Context) -> F32:
        """Reconstruct the values from what :meth:`compress` returned, and from nothing else.

        Returns
        -------
        ndarray of float32, shape ``context.block``
        """

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values, in schemes that treat them differently; otherwise itself."""
        del kind
        return self

    @property
    def available(self) -> bool:
        """Whether the library that the scheme needs is there."""
        return self.requires is None or find_spec(self.requires) is not None

    def encode(
        self, x: Array, *, token_axis: int, head_dim: int | None = None, layer: int | None = None, first_token: int = 0
    ) -> CodedBaseline:
        """Code a tensor of keys or values.

        Parameters
        ----------
        x : numpy array or CPU torch tensor, shape (outer…, tokens, inner…)
            float32, float16 or bfloat16, with any strides. All values must be finite.
        token_axis : int
            The axis of tokens.
        head_dim : int, optional
            Channels of one head, a divisor of the last axis, which is the head by default.
        layer : int, optional
            Number of the layer.
        first_token : int
            Position of the tensor's first token in its sequence.

        Returns
        -------
        CodedBaseline

        Raises
        ------
        DTypeError, ShapeError
            If an argument does not fit.
        NonFiniteError
            If a value is NaN or infinite.
        MissingLibraryError
            If the scheme needs a library that is not installed.

        Examples
        --------
        >>> import numpy as np
        >>> from lynxq import baselines
        >>> coded = baselines.get("int4").encode(np.linspace(0, 15, 16, dtype=np.float32), token_axis=0)
        >>> coded.nbytes, coded.decode().max()
        (16, np.float32(15.0))
        """
        if self.requires is not None and not self.available:
            raise missing(self.requires, "lynxq[baselines]")
        source = arrays.as_raw(x)
        context = _context(source, token_axis, head_dim, layer, first_token)
        bad = dtypes.nonfinite(source.raw, source.dtype)
        if bad.any():
            first = np.unravel_index(int(bad.argmax()), context.shape)
            raise NonFiniteError(int(np.count_nonzero(bad)), tuple(int(i) for i in first))
        values = dtypes.to_float32(source.raw, source.dtype).reshape(context.block)
        parts = self.compress(np.ascontiguousarray(values), context)
        return CodedBaseline(self, context, source.library, dict(parts))


def _context(
    source: arrays.RawArray, token_axis: int, head_dim: int | None, layer: int | None, first_token: int
) -> Context:
    shape = source.raw.shape
    if not -len(shape) <= token_axis < len(shape):
        raise ShapeError(f"token_axis must be an axis of shape {shape}, got {token_axis}")
    axis = token_axis % len(shape)
    last = shape[-1] if axis < len(shape) - 1 else 1
    head = max(last, 1) if head_dim is None else integer("head_dim", head_dim, 1, _MAX_LENGTH)
    if last % head:
        raise ShapeError(f"head_dim must divide the last axis, of length {last}, got {head}")
    first = integer("first_token", first_token, 0, _MAX_LENGTH)
    number = None if layer is None else integer("layer", layer, 0, _MAX_LENGTH)
    return Context(shape, source.dtype, axis, head, number, first)


@dataclass(frozen=True, eq=False, repr=False)
class CodedBaseline:
    """A tensor as a scheme stores it.

    Made by :meth:`Scheme.encode`.

    Attributes
    ----------
    scheme : Scheme
    context : Context
        What the decoder knows besides.
    library : {"numpy", "torch"}
        What :meth:`decode` returns.
    parts : mapping of str to ndarray
        Everything that is stored.
    """

    scheme: Scheme
    context: Context
    library: Library
    parts: Parts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.context.shape

    @property
    def dtype(self) -> DType:
        """Element type of the tensor."""
        return self.context.dtype

    @property
    def token_axis(self) -> int:
        """The axis of tokens, not negative."""
        return self.context.token_axis

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def elements(self) -> int:
        """Values of the tensor."""
        return prod(self.shape)

    @property
    def bits_per_element(self) -> float:
        """Bits per value, counting every byte of every part; 0 for an empty tensor."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0

    def decode(self) -> Array:
        """Reconstruct the tensor in its own dtype and library.

        Returns
        -------
        array, shape ``self.shape``
            Rounded to nearest even; values beyond the dtype's largest one become that one.
        """
        values = self.scheme.restore(self.parts, self.context).reshape(self.shape)
        result = arrays.empty(self.shape, self.dtype, self.library)
        arrays.as_raw(result).raw[...] = dtypes.from_float32(values, self.dtype)
        return result

    def __repr__(self) -> str:
        return (
            f"CodedBaseline({self.scheme.name}, shape={self.shape}, dtype={self.dtype.name}, "
            f"{self.bits_per_element:.2f} bits per element)"
        )
