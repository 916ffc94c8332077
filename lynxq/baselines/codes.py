"""What several schemes share: packed codes, groups along an axis, and linear quantization."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq import dtypes
from lynxq.baselines.base import F32
from lynxq.dtypes import DType

Codes = NDArray[np.uint8]

_LARGEST = {np.float16: 65504.0, np.float32: float(np.finfo(np.float32).max)}


def pack(codes: NDArray[Any], bits: int) -> Codes:
    """Pack codes of 1 to 8 bits one behind the other, the first one in the lowest bits of the first byte.

    Examples
    --------
    >>> import numpy as np
    >>> [hex(byte) for byte in pack(np.array([1, 2, 15]), 4)]
    ['0x21', '0xf']
    """
    flat = np.ascontiguousarray(codes, dtype=np.uint8).reshape(-1)
    if bits == 8:
        return flat
    if 8 % bits:
        planes = np.unpackbits(flat.reshape(-1, 1), axis=1, count=bits, bitorder="little")
        return np.packbits(planes.reshape(-1), bitorder="little")
    per_byte = 8 // bits
    packed = np.zeros(-(-flat.size // per_byte), np.uint8)
    for slot in range(per_byte):
        part = flat[slot::per_byte]
        packed[: part.size] |= part << np.uint8(bits * slot)
    return packed


def unpack(packed: NDArray[Any], bits: int, size: int) -> Codes:
    """The inverse of `pack` for so many codes."""
    if bits == 8:
        return packed[:size]
    if 8 % bits:
        planes = np.unpackbits(packed, count=size * bits, bitorder="little").reshape(size, bits)
        return np.packbits(planes, axis=1, bitorder="little").reshape(-1)
    per_byte = 8 // bits
    codes = np.empty((packed.size, per_byte), np.uint8)
    for slot in range(per_byte):
        codes[:, slot] = (packed >> np.uint8(bits * slot)) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:size]


def split(x: NDArray[Any], axis: int, size: int) -> NDArray[Any]:
    """Cut an axis into (groups, size). A short last group is filled up with copies of its last value."""
    length = x.shape[axis]
    groups = -(-length // size)
    missing = groups * size - length
    if missing:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, missing)
        x = np.pad(x, widths, mode="edge")
    return x.reshape(*x.shape[:axis], groups, size, *x.shape[axis + 1 :])


def join(groups: NDArray[Any], axis: int, length: int) -> NDArray[Any]:
    """The inverse of `split`: what filled up the last group is dropped."""
    shape = groups.shape
    whole = groups.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
    return whole[(slice(None),) * axis + (slice(length),)]


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Metadata as they are stored: in float16, or in float32 if one of them is beyond float16's largest value."""
    kind = np.float16 if np.abs(values).max(initial=0) <= _LARGEST[np.float16] else np.float32
    stored: NDArray[Any] = np.clip(values, -_LARGEST[kind], _LARGEST[kind]).astype(kind)
    return stored


def to_float32(values: NDArray[Any]) -> F32:
    """Round to float32; what is beyond its largest value becomes that value."""
    largest = _LARGEST[np.float32]
    rounded: F32 = np.clip(values, -largest, largest).astype(np.float32)
    return rounded


class Linear(NamedTuple):
    """Groups coded linearly: code c stands for low + c · scale. Both are stored, and used as they are stored."""

    codes: Codes
    low: NDArray[Any]
    scale: NDArray[Any]


def quantize(groups: F32, axis: int, bits: int) -> Linear:
    """Quantize groups whose members lie along an axis, with low the smallest value and 2^bits - 1 steps above it.

    A group of equal values has scale 0 and codes 0. ``low`` and ``scale`` keep the axis, of length 1; see `narrow`
    for how they are stored.
    """
    steps = (1 << bits) - 1
    members = groups.astype(np.float64)
    smallest = members.min(axis, keepdims=True)
    low, scale = narrow(smallest), narrow((members.max(axis, keepdims=True) - smallest) / steps)
    members -= low
    codes = np.divide(members, scale, out=np.zeros_like(members), where=scale > 0)
    return Linear(np.rint(np.clip(codes, 0, steps)).astype(np.uint8), low, scale)


def dequantize(linear: Linear) -> F32:
    """The values that codes stand for."""
    return to_float32(linear.codes * linear.scale.astype(np.float64) + linear.low.astype(np.float64))


def by_peak(x: NDArray[np.float64], steps: int, dtype: DType) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Codes round(x · steps / peak), peak being the largest |x| along the last axis, and the peaks as stored.

    A peak is a value of the tensor, so that the tensor's dtype holds it exactly.
    """
    peak = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
    unit = np.divide(x, peak, out=np.zeros_like(x), where=peak > 0)
    return np.rint(unit * steps).astype(np.int32), dtypes.from_float32(peak[..., 0].astype(np.float32), dtype)


def from_peak(codes: NDArray[np.int32], steps: int, stored: NDArray[Any], dtype: DType) -> NDArray[np.float64]:
    """The values that codes stand for."""
    peak = dtypes.to_float32(stored, dtype).astype(np.float64)
    values: NDArray[np.float64] = codes * peak[..., None] / steps
    return values
