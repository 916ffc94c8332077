"""The one interface of all baselines: a scheme stores parts, and what it stored is what is counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.arrays import Array, Library
from lynxq.dtypes import DType
from lynxq.errors import NonFiniteError, ShapeError
from lynxq.naming import Kind

#: What a scheme stores: named arrays. Nothing else may reach its decoder but shape, dtype and token axis.
Parts = Mapping[str, NDArray[Any]]


class Scheme(ABC):
    """A compression scheme to compare with; immutable, and with all its settings in the object.

    A new one implements :meth:`compress` and :meth:`restore` on float32 arrays; conversions, checks and the
    counting of bytes are done here. Scales, tables, outliers and masks are parts like the codes: they count.

    Attributes
    ----------
    name : str
        Short name, as the command line takes it.
    title : str
        Name for tables.
    """

    name: str
    title: str

    @abstractmethod
    def compress(self, values: NDArray[np.float32], token_axis: int) -> Parts:
        """Code a tensor.

        Parameters
        ----------
        values : ndarray of float32, shape (outer…, tokens, inner…)
            Finite; any axis may be empty. Not to be changed.
        token_axis : int
            Not negative.

        Returns
        -------
        mapping of str to ndarray
            What has to be stored, packed as it would be stored.
        """

    @abstractmethod
    def restore(self, parts: Parts, shape: tuple[int, ...], token_axis: int) -> NDArray[np.float32]:
        """Reconstruct a tensor from what :meth:`compress` returned, and from nothing else."""

    def for_kind(self, kind: Kind | None) -> Scheme:
        """The variant for keys or for values, in schemes that treat them differently; otherwise itself."""
        del kind
        return self

    def encode(self, x: Array, *, token_axis: int) -> CodedBaseline:
        """Code a tensor of keys or values.

        Parameters
        ----------
        x : numpy array or CPU torch tensor, shape (outer…, tokens, inner…)
            float32, float16 or bfloat16, with any strides. All values must be finite.
        token_axis : int
            The axis of tokens.

        Returns
        -------
        CodedBaseline

        Raises
        ------
        DTypeError, ShapeError
            If an argument does not fit.
        NonFiniteError
            If a value is NaN or infinite.

        Examples
        --------
        >>> import numpy as np
        >>> from lynxq import baselines
        >>> coded = baselines.get("int4").encode(np.linspace(0, 15, 16, dtype=np.float32), token_axis=0)
        >>> coded.nbytes, coded.decode().max()
        (16, np.float32(15.0))
        """
        source = arrays.as_raw(x)
        shape = source.raw.shape
        if not -len(shape) <= token_axis < len(shape):
            raise ShapeError(f"token_axis must be an axis of shape {shape}, got {token_axis}")
        bad = dtypes.nonfinite(source.raw, source.dtype)
        if bad.any():
            first = np.unravel_index(int(bad.argmax()), shape)
            raise NonFiniteError(int(np.count_nonzero(bad)), tuple(int(i) for i in first))
        axis = token_axis % len(shape)
        parts = self.compress(dtypes.to_float32(source.raw, source.dtype), axis)
        return CodedBaseline(self, shape, source.dtype, axis, source.library, dict(parts))


@dataclass(frozen=True, eq=False, repr=False)
class CodedBaseline:
    """A tensor as a scheme stores it.

    Made by :meth:`Scheme.encode`.

    Attributes
    ----------
    scheme : Scheme
    shape : tuple of int
    dtype : DType
    token_axis : int
        Not negative.
    library : {"numpy", "torch"}
        What :meth:`decode` returns.
    parts : mapping of str to ndarray
        Everything that is stored, but for shape, dtype and settings (which lynxq's figures leave out, too).
    """

    scheme: Scheme
    shape: tuple[int, ...]
    dtype: DType
    token_axis: int
    library: Library
    parts: Parts

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
        values = self.scheme.restore(self.parts, self.shape, self.token_axis)
        result = arrays.empty(self.shape, self.dtype, self.library)
        arrays.as_raw(result).raw[...] = dtypes.from_float32(values, self.dtype)
        return result

    def __repr__(self) -> str:
        return (
            f"CodedBaseline({self.scheme.name}, shape={self.shape}, dtype={self.dtype.name}, "
            f"{self.bits_per_element:.2f} bits per element)"
        )
