"""The border to array libraries: numpy and torch arrays in and out, without copies.

A library is looked at only when it is already imported: an array of it cannot exist otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from lynxq import dtypes
from lynxq.arguments import shown
from lynxq.dtypes import DType, Raw
from lynxq.errors import DTypeError, ShapeError

Library = Literal["numpy", "torch"]

#: What callers pass and get: a numpy array or a torch tensor.
Array = Any


@dataclass(frozen=True)
class RawArray:
    """A caller's array as a raw numpy view of the same memory."""

    raw: Raw
    dtype: DType
    library: Library


def _torch() -> Any:
    return sys.modules.get("torch")


def _tensor_class() -> Any:
    """torch.Tensor, or None if torch is not imported, or not yet: another thread may be importing it."""
    return getattr(_torch(), "Tensor", None)


def library_of(array: object) -> Library:
    """Which library an array belongs to; raises `DTypeError` for anything that is not an array on the CPU."""
    torch, tensor = _torch(), _tensor_class()
    if tensor is not None and isinstance(array, tensor):
        if array.device.type != "cpu":
            raise DTypeError(f"no backend here handles tensors on device {str(array.device)!r}")
        if array.layout is not torch.strided:
            raise DTypeError(f"torch tensors must be dense, got layout {array.layout}")
        return "torch"
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError("masked arrays are not supported: fill the masked values first")
    if isinstance(array, np.ndarray):
        return "numpy"
    kind = type(array)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    raise DTypeError(f"expected a numpy array or a torch tensor, got {name}")


def import_library(name: object) -> Library:
    """Import a library of that name so that arrays of it can be made; raises `DTypeError` if that fails."""
    if name == "torch":
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise DTypeError(f"framework 'torch' cannot be imported: {error}") from None
        return "torch"
    if name != "numpy":
        raise DTypeError(f"framework must be 'numpy' or 'torch', got {name!r}")
    return "numpy"


def from_numpy(array: np.ndarray[Any, Any], library: Library) -> Array:
    """A numpy array as an array of a library; shares its memory, unless torch would make read-only memory writable."""
    if library != "torch":
        return array
    return _torch().from_numpy(array if array.flags.writeable else array.copy())


def as_raw(array: Array) -> RawArray:
    """View a caller's array of floats as a raw array.

    Raises
    ------
    DTypeError
        For another dtype than float32, float16 or bfloat16, foreign byte order, or anything that is not an
        array on the CPU. Nothing is ever converted silently.
    """
    library = library_of(array)
    if library == "numpy":
        if not array.dtype.isnative:
            raise DTypeError(f"array must have native byte order, got dtype {array.dtype.str!r}")
        dtype = _known(array.dtype)
        return RawArray(np.asarray(array).view(dtype.raw), dtype, library)
    torch = _torch()
    dtype = _known(array.dtype)
    try:
        tensor = array.detach().resolve_neg()  # a copy only where torch negates lazily
        raw = tensor.view(torch.uint16 if dtype.itemsize == 2 else torch_dtype(dtype)).numpy()
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:  # nested, fake, traced, …
        raise DTypeError(f"this torch tensor has no memory to look at: {shown(str(error))}") from None
    return RawArray(raw, dtype, library)


def _known(dtype: object) -> DType:
    try:
        return dtypes.named(dtype)
    except DTypeError:
        raise DTypeError(
            f"array must be float32, float16 or bfloat16, got {dtype}: convert it first, lynxq never does silently"
        ) from None


def torch_dtype(dtype: DType) -> Any:
    """The torch dtype of a `DType`."""
    return getattr(_torch(), dtype.name)


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype of a `DType`; bfloat16 is that of ml_dtypes."""
    if dtype is dtypes.BFLOAT16:
        import ml_dtypes  # here, so that importing lynxq imports numpy only

        return cast("np.dtype[Any]", np.dtype(ml_dtypes.bfloat16))
    return np.dtype(dtype.name)


def empty(shape: Sequence[int], dtype: DType, library: Library) -> Array:
    """A new array of a library, contiguous and uninitialised."""
    if library == "torch":
        return _torch().empty(tuple(shape), dtype=torch_dtype(dtype))
    return np.empty(shape, numpy_dtype(dtype))


def empty_bytes(size: int, library: Library) -> Array:
    """A new flat array of bytes."""
    if library == "torch":
        return _torch().empty(size, dtype=_torch().uint8)
    return np.empty(size, np.uint8)


def as_bytes(array: Array, what: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """View a caller's flat array of bytes as a numpy array.

    Raises
    ------
    DTypeError, ShapeError
        If it is not a flat, contiguous array of uint8.
    """
    library = library_of(array)
    data = array.detach().numpy() if library == "torch" else array
    if data.dtype != np.uint8:
        raise DTypeError(f"{what} must be an array of uint8, got {data.dtype}")
    if data.ndim != 1 or not data.flags.c_contiguous:
        raise ShapeError(f"{what} must be a flat contiguous array, got shape {data.shape}, strides {data.strides}")
    return cast("np.ndarray[Any, np.dtype[np.uint8]]", data)


def as_output(array: Array, shape: Sequence[int], library: Library, dtype: DType | None) -> RawArray:
    """Check a caller's `out` array and view it as a raw array.

    Raises
    ------
    DTypeError, ShapeError
        If it belongs to another library, has another shape or dtype, cannot be written, or overlaps itself.
    """
    if library_of(array) != library:
        raise DTypeError(f"out must be a {library} array like the encoded tensor, got {type(array).__name__}")
    if tuple(array.shape) != tuple(shape):
        raise ShapeError(f"out must have shape {tuple(shape)}, got {tuple(array.shape)}")
    claim_output(array, "out")
    result = as_raw(array)
    if dtype is not None and result.dtype is not dtype:
        raise DTypeError(f"out must have dtype {dtype.name}, got {result.dtype.name}")
    if not result.raw.flags.writeable:
        raise DTypeError("out must be writable, got a read-only array")
    if overlaps_itself(result.raw):
        raise ShapeError(f"out must not overlap itself, got shape {result.raw.shape}, strides {result.raw.strides}")
    return result


def claim_output(array: Array, what: str) -> None:
    """Refuse a torch tensor, on any device, that must not be written to past torch; tell autograd of all others."""
    tensor = _tensor_class()
    if tensor is None or not isinstance(array, tensor):
        return
    if array.is_neg():
        raise DTypeError(f"{what} must not be a tensor that torch negates lazily")
    if array.requires_grad:
        raise DTypeError(f"{what} must not require a gradient: writing to it would go past autograd")
    if not array.is_inference():  # so that autograd notices if the value was saved for backward
        _torch().autograd.graph.increment_version(array)


def overlaps_itself(raw: Any) -> bool:
    """Whether two elements may share memory; exact for all strides that come from slicing and transposing."""
    reach = raw.itemsize
    for step, length in sorted((abs(s), n) for s, n in zip(raw.strides, raw.shape, strict=True) if n > 1):
        if step < reach:
            return bool(raw.size > 0)
        reach += step * (length - 1)
    return False
