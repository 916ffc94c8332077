"""Arrays of floats of any library and dtype, read piece by piece in float64.

What :mod:`lynxq.metrics` and :mod:`lynxq.metrics.attention` stand on. The codec does not use it: it never converts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays
from lynxq.arrays import Array
from lynxq.errors import DTypeError, NonFiniteError, ShapeError

#: Elements that are in float64 at once.
PIECE = 1 << 18

Floats = NDArray[np.float64]


def ratio(part: float, whole: float) -> float:
    """Quotient of two sums that are not negative: 0/0 is 0, x/0 is infinity."""
    if whole == 0.0:
        return 0.0 if part == 0.0 else math.inf
    return part / whole


def floats(what: str, array: Array) -> Array:
    """The array, checked to hold floats, free of autograd and of ndarray subclasses."""
    if arrays.library_of(array) == "torch":
        floating, plain = array.dtype.is_floating_point, array.detach()
    else:
        # By name, because the dtypes of ml_dtypes do not count as numpy floats.
        floating, plain = array.dtype.name.startswith(("float", "bfloat")), np.asarray(array)
    if not floating:
        raise DTypeError(f"{what} must be an array of floats, got dtype {array.dtype}")
    return plain


def same_shape(what: str, array: Array, like: str, other: Array) -> tuple[int, ...]:
    """The shape of two arrays; raises `ShapeError` if there are two."""
    if tuple(array.shape) != tuple(other.shape):
        raise ShapeError(f"{what} must have the shape of {like}, {tuple(other.shape)}, got {tuple(array.shape)}")
    return tuple(other.shape)


def load(array: Array, index: tuple[Any, ...]) -> Floats:
    """A piece in float64; it may share the caller's memory."""
    if isinstance(array, np.ndarray):
        return np.asarray(array[index]).astype(np.float64, copy=False)
    piece: Floats = array[index].double().numpy()
    return piece


def cut(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Indices that cut an array into pieces of at most `limit` elements, in C order."""
    if 0 in shape:
        return
    if not shape:
        yield ()
        return
    rest = math.prod(shape[1:])
    step = max(limit // rest, 1)
    tails = [(slice(None),) * (len(shape) - 1)] if rest <= limit else list(cut(shape[1:], limit))
    for start in range(0, shape[0], step):
        for tail in tails:
            yield (slice(start, min(start + step, shape[0])), *tail)


def nonfinite(array: Array) -> tuple[int, tuple[int, ...]] | None:
    """How many values are not finite, and the index of the first one; None if all are."""
    count, first = 0, None
    for index in cut(tuple(array.shape), PIECE):
        bad = ~np.isfinite(load(array, index))
        if not bad.any():
            continue
        count += int(np.count_nonzero(bad))
        if first is None:
            offset = np.unravel_index(int(bad.argmax()), bad.shape)
            first = tuple((s.start or 0) + int(i) for s, i in zip(index, offset, strict=True))
    return None if first is None else (count, first)


def require_finite(array: Array) -> None:
    """Raise `NonFiniteError` if a value is NaN or infinite."""
    found = nonfinite(array)
    if found is not None:
        raise NonFiniteError(*found)
