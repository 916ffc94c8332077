"""The element types that lynxq codes, and their exact conversions to and from float32.

Inside, float16 and bfloat16 travel as ``uint16`` bit patterns and float32 as itself ("raw" arrays), so that no
module but this one and :mod:`lynxq.arrays` knows of ``ml_dtypes`` or torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq.errors import DTypeError

Raw = NDArray[np.uint16] | NDArray[np.float32]


@dataclass(frozen=True)
class DType:
    """An element type: its name, its number in the format, and what bounds need to know."""

    name: str
    number: int
    raw: np.dtype[np.uint16] | np.dtype[np.float32]
    #: Bits of the exponent, all set in NaN and infinity.
    exponent_mask: int
    #: Largest finite value; a decode saturates there instead of overflowing.
    largest: float
    #: Half a unit in the last place, relative to the value, and absolute for subnormals.
    unit_roundoff: float
    subnormal_roundoff: float

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.raw.itemsize


_U16, _F32 = np.dtype(np.uint16), np.dtype(np.float32)
FLOAT32 = DType("float32", 0, _F32, 0x7F800000, float(np.finfo(np.float32).max), 2.0**-24, 2.0**-150)
FLOAT16 = DType("float16", 1, _U16, 0x7C00, 65504.0, 2.0**-11, 2.0**-25)
BFLOAT16 = DType("bfloat16", 2, _U16, 0x7F80, (2.0 - 2.0**-7) * 2.0**127, 2.0**-8, 2.0**-134)

BY_NAME = {dtype.name: dtype for dtype in (FLOAT32, FLOAT16, BFLOAT16)}
BY_NUMBER = {dtype.number: dtype for dtype in BY_NAME.values()}


def named(name: object) -> DType:
    """The `DType` of a name such as ``"bfloat16"``; raises `DTypeError` for any other."""
    if isinstance(name, DType):
        return name
    if isinstance(name, np.dtype) and not name.isnative:
        raise DTypeError(f"dtype must have native byte order, got {name!r}")
    text = str(getattr(name, "name", name)).removeprefix("torch.")
    if text not in BY_NAME:
        text = getattr(name, "__name__", text)  # scalar types, such as numpy.float16
    if text not in BY_NAME:
        raise DTypeError(f"dtype must be one of {', '.join(BY_NAME)}, got {name!r}")
    return BY_NAME[text]


def to_float32(raw: Raw, dtype: DType) -> NDArray[np.float32]:
    """Widen raw values; exact for every dtype."""
    if dtype is BFLOAT16:
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype is FLOAT16:
        return raw.view(np.float16).astype(np.float32)
    return raw.astype(np.float32)


def from_float32(values: NDArray[np.float32], dtype: DType) -> Raw:
    """Round float32 to nearest, ties to even; a finite value beyond the largest one becomes the largest one."""
    if dtype is FLOAT32:
        return values
    largest = np.float32(dtype.largest)
    saturated = np.clip(values, -largest, largest)
    if dtype is FLOAT16:
        return saturated.astype(np.float16).view(np.uint16)
    bits = saturated.view(np.uint32)
    carry = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + carry) >> np.uint32(16)).astype(np.uint16)


def nonfinite(raw: Raw, dtype: DType) -> NDArray[np.bool_]:
    """Where raw values are NaN or infinite."""
    if dtype is FLOAT32:
        return np.isinf(raw) | np.isnan(raw)
    exponent = raw.view(np.uint16) & np.uint16(dtype.exponent_mask)
    all_set: NDArray[np.bool_] = exponent == dtype.exponent_mask
    return all_set
