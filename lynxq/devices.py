"""Arrays wherever they are: on the CPU as :mod:`lynxq.arrays` sees them, on a CUDA device by address.

cupy arrays and CUDA torch tensors are never copied; kernels get their address, strides, device and the caller's current
stream. A library is looked at only when it is already imported: an array of it cannot exist otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from lynxq import arrays, dtypes
from lynxq.arrays import Array, overlaps_itself
from lynxq.dtypes import DType
from lynxq.errors import DTypeError, ShapeError

#: Libraries of arrays.
Library = Literal["numpy", "torch", "cupy"]


@dataclass(frozen=True)
class DeviceArray:
    """An array on a CUDA device.

    Attributes
    ----------
    address : int
        Of the first element.
    shape, strides : tuple of int
        Strides in bytes.
    itemsize : int
    device : int
        Number of the device.
    stream : int
        Address of the stream that was the caller's current one.
    owner : object
        Keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    device: int
    stream: int
    owner: Any

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of the first byte and of the one after the last."""
        if not self.size:
            return self.address, self.address
        reach = [(length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(step, 0) for step in reach), sum(max(step, 0) for step in reach)
        return self.address + low, self.address + high + self.itemsize


@dataclass(frozen=True)
class RawArray:
    """A caller's array as raw memory: a numpy view, or a `DeviceArray`."""

    raw: Any
    dtype: DType
    library: Library


def _is_cuda_tensor(array: object) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # None while another thread imports torch
    return tensor is not None and isinstance(array, tensor) and array.device.type == "cuda"


def _is_cupy(array: object) -> bool:
    ndarray = getattr(sys.modules.get("cupy"), "ndarray", None)
    return ndarray is not None and isinstance(array, ndarray)


def on_device(array: object) -> bool:
    """Whether an array is a cupy array or a CUDA torch tensor."""
    return _is_cupy(array) or _is_cuda_tensor(array)


def library_of(array: object) -> Library:
    """Which library an array belongs to; raises `DTypeError` for anything that is not an array."""
    if _is_cupy(array):
        return "cupy"
    return "torch" if _is_cuda_tensor(array) else arrays.library_of(array)


def locate(array: Array) -> DeviceArray:
    """Where a device array is, and the caller's current stream of its device."""
    if _is_cupy(array):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(array.device.id):
            stream = cupy.cuda.get_current_stream().ptr
        return DeviceArray(
            array.data.ptr, array.shape, array.strides, array.dtype.itemsize, array.device.id, stream, array
        )
    torch = sys.modules["torch"]
    if array.layout is not torch.strided:
        raise DTypeError(f"torch tensors must be dense, got layout {array.layout}")
    tensor = array.detach().resolve_neg()  # a copy only where torch negates lazily
    size = tensor.element_size()
    strides = tuple(step * size for step in tensor.stride())
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return DeviceArray(tensor.data_ptr(), tuple(tensor.shape), strides, size, tensor.device.index or 0, stream, tensor)


def as_raw(array: Array) -> RawArray:
    """View a caller's array of floats, see :func:`lynxq.arrays.as_raw`."""
    if not on_device(array):
        host = arrays.as_raw(array)
        return RawArray(host.raw, host.dtype, host.library)
    try:
        dtype = dtypes.named(array.dtype)
    except DTypeError:
        raise DTypeError(f"array must be float32, float16 or bfloat16, got {array.dtype}: convert it first") from None
    return RawArray(locate(array), dtype, library_of(array))


def as_bytes(array: Array, what: str) -> Any:
    """View a caller's flat array of bytes, see :func:`lynxq.arrays.as_bytes`."""
    if not on_device(array):
        return arrays.as_bytes(array, what)
    data = locate(array)
    if data.itemsize != 1 or str(array.dtype).removeprefix("torch.") != "uint8":
        raise DTypeError(f"{what} must be an array of uint8, got {array.dtype}")
    if len(data.shape) != 1 or (data.strides != (1,) and data.size > 1):
        raise ShapeError(f"{what} must be a flat contiguous array, got shape {data.shape}, strides {data.strides}")
    return data


def as_output(array: Array, shape: Sequence[int], library: Library, dtype: DType | None = None) -> RawArray:
    """Check a caller's `out` array and view it, see :func:`lynxq.arrays.as_output`."""
    if not on_device(array):
        if library == "cupy":
            raise DTypeError(f"out must be a cupy array like the encoded tensor, got {type(array).__name__}")
        host = arrays.as_output(array, shape, library, dtype)
        return RawArray(host.raw, host.dtype, host.library)
    if library_of(array) != library:
        raise DTypeError(f"out must be a {library} array like the encoded tensor, got {type(array).__name__}")
    if tuple(array.shape) != tuple(shape):
        raise ShapeError(f"out must have shape {tuple(shape)}, got {tuple(array.shape)}")
    arrays.claim_output(array, "out")
    result = as_raw(array)
    if dtype is not None and result.dtype is not dtype:
        raise DTypeError(f"out must have dtype {dtype.name}, got {result.dtype.name}")
    if overlaps_itself(result.raw):
        raise ShapeError(f"out must not overlap itself, got shape {result.raw.shape}, strides {result.raw.strides}")
    return result


def empty(shape: Sequence[int], dtype: DType, like: Array) -> Array:
    """A new array of the library and on the device of another one, contiguous and uninitialised."""
    if _is_cupy(like):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            return cupy.empty(tuple(shape), arrays.numpy_dtype(dtype))
    if _is_cuda_tensor(like):
        return sys.modules["torch"].empty(tuple(shape), dtype=arrays.torch_dtype(dtype), device=like.device)
    return arrays.empty(shape, dtype, arrays.library_of(like))


def empty_bytes(size: int, like: Array) -> Array:
    """A new flat array of bytes of the library and on the device of another one."""
    if _is_cupy(like):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device.id):
            return cupy.empty(size, np.uint8)
    if _is_cuda_tensor(like):
        torch = sys.modules["torch"]
        return torch.empty(size, dtype=torch.uint8, device=like.device)
    return arrays.empty_bytes(size, arrays.library_of(like))


def to_host(array: Array) -> Array:
    """A copy of a device array in the memory of the CPU: cupy becomes numpy, torch stays torch; waits for it."""
    return array.get() if _is_cupy(array) else array.cpu()


def may_share_memory(first: Any, second: Any) -> bool:
    """Whether two raw arrays may have bytes in common."""
    if isinstance(first, DeviceArray) and isinstance(second, DeviceArray):
        (a, b), (c, d) = first.span, second.span
        return first.device == second.device and a < d and c < b
    if isinstance(first, DeviceArray) or isinstance(second, DeviceArray):
        return False
    return bool(np.may_share_memory(first, second))


def writable(raw: Any) -> bool:
    """Whether a raw array can be written; device arrays always can."""
    return isinstance(raw, DeviceArray) or bool(raw.flags.writeable)


def same_device(first: Any, second: Any) -> bool:
    """Whether two raw arrays are on one device, or both on the CPU."""
    return getattr(first, "device", None) == getattr(second, "device", None)
