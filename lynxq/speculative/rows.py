"""Rows over a vocabulary: what the rule does with matrices, written once for numpy and for torch.

Torch tensors on the CPU are looked at as numpy arrays, so both libraries run the very same code there. Tensors on
another device stay on it. Wide rows are worked on in blocks, so that float64 copies stay small.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import shown
from lynxq.errors import DTypeError, ParamsError, ShapeError

#: A numpy array, or a torch tensor that is not on the CPU.
Matrix = Any
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Values of a matrix that are in float64 at a time.
BLOCK = 1 << 22
#: Sums of integer weights stay within so many bits.
WEIGHT_BITS = 62

_FLOATS = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Home:
    """Where a caller's arrays live, so that results can be put there: a library, and a device for torch."""

    library: str
    device: Any = None

    def put(self, array: NDArray[Any]) -> Any:
        """A host array as an array of the home."""
        if self.library == "numpy":
            return array
        return sys.modules["torch"].from_numpy(np.ascontiguousarray(array)).to(self.device)


def library(matrix: Matrix) -> Any:
    """The module whose functions work on a matrix."""
    return np if isinstance(matrix, np.ndarray) else sys.modules["torch"]


def view(array: object, what: str) -> tuple[Matrix, Home]:
    """Look at a caller's array without a copy (but bfloat16 tensors on the CPU); raises `DTypeError`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        home, tensor = Home("torch", array.device), array.detach()
        if tensor.device.type != "cpu":
            return tensor, home
        return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(), home
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise DTypeError(f"{what} must be a numpy array or a torch tensor, got {type(array).__name__}")
    return array, Home("numpy")


def floats(array: object, what: str) -> tuple[Matrix, Home]:
    """Look at a matrix of floats with at least one column; raises `DTypeError` or `ShapeError`."""
    matrix, home = view(array, what)
    if str(matrix.dtype).removeprefix("torch.") not in _FLOATS:
        raise DTypeError(f"{what} must be of a float type, got {matrix.dtype}")
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise ShapeError(f"{what} must have shape (rows, vocabulary), got {tuple(matrix.shape)}")
    return matrix, home


def token_ids(tokens: object, count: int | None, vocabulary: int, what: str = "tokens") -> tuple[Integers, Home]:
    """Copy a flat array of token numbers to the host, and check it."""
    array, home = view(tokens, what)
    ids = host(array)
    if ids.dtype.kind not in "iu":
        raise DTypeError(f"{what} must be integers, got {ids.dtype}")
    if ids.ndim != 1 or (count is not None and len(ids) != count):
        raise ShapeError(f"{what} must have shape ({'tokens' if count is None else count},), got {ids.shape}")
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
        raise ParamsError(
            f"{what} must be from 0 to below the vocabulary's {vocabulary}, got {ids.min()} to {ids.max()}"
        )
    return ids.astype(np.int64), home


def host(matrix: Matrix) -> NDArray[Any]:
    """A matrix as a numpy array."""
    return matrix if isinstance(matrix, np.ndarray) else matrix.cpu().numpy()


def like(array: NDArray[Any], matrix: Matrix) -> Matrix:
    """A host array where a matrix is."""
    return array if isinstance(matrix, np.ndarray) else library(matrix).from_numpy(array).to(matrix.device)


def double(matrix: Matrix) -> Matrix:
    """A matrix in float64."""
    return matrix.astype(np.float64) if isinstance(matrix, np.ndarray) else matrix.double()


def _long(matrix: Matrix) -> Matrix:
    return matrix.astype(np.int64) if isinstance(matrix, np.ndarray) else matrix.long()


def blocks(count: int, width: int) -> Iterator[slice]:
    """Slices that cover `count` rows, each of at most `BLOCK` values."""
    step = max(1, BLOCK // width)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def exponentials(block: Matrix, peak: Floats, temperature: Floats) -> Matrix:
    """exp((x - peak) / temperature) of every row, in float64; 0 where it underflows."""
    top, heat = like(peak[:, None], block), like(temperature[:, None], block)
    with np.errstate(over="ignore", under="ignore"):
        return library(block).exp((double(block) - top) / heat)


def first_largest(matrix: Matrix) -> Integers:
    """Column of every row's largest value, the first one where several are equal, on every device."""
    lib, columns = library(matrix), np.arange(matrix.shape[1])
    peak = lib.amax(matrix, -1)[:, None]
    return host(lib.amin(lib.where(matrix == peak, like(columns, matrix), matrix.shape[1]), -1)).astype(np.int64)


def draw(weights: Matrix, uniforms: Floats) -> Integers:
    """Draw a column of every row with a chance in proportion to its weight.

    The cumulated weights are integers, whose sums are exact in any order: the same weights and uniforms give the
    same columns in every library and on every device. A column of weight 0 is never drawn. The error of a chance
    is below 2^-51, most of it from the 53 bits of the uniforms.

    Parameters
    ----------
    weights : matrix of float64, shape (N, V)
        Not negative, finite, at least one of a row above 0.
    uniforms : ndarray of float64, shape (N,)
        In [0, 1).
    """
    width = weights.shape[1]
    ratios = weights / library(weights).amax(weights, -1)[:, None]
    coarse = WEIGHT_BITS - width.bit_length()
    bound = host(_long(ratios * 2.0**coarse).sum(-1)) + width  # above the row's sum, in units of 2^-coarse
    bits = coarse + WEIGHT_BITS - np.frexp(bound.astype(np.float64))[1]
    summed = _long(ratios * like(np.ldexp(1.0, bits)[:, None], ratios)).cumsum(-1)
    total = host(summed[:, -1])
    target = np.minimum((uniforms * total.astype(np.float64)).astype(np.int64), total - 1)
    return host((summed <= like(target[:, None], summed)).sum(-1)).astype(np.int64)


def random_numbers(random: object, count: int) -> Floats:
    """Uniform numbers of [0, 1): those given, or the next ones of a numpy or torch generator.

    Raises
    ------
    DTypeError, ShapeError, ParamsError
        If it is neither, not of float64, of another count, or out of range.
    """
    if isinstance(random, np.random.Generator):
        return random.random(count)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(random, torch.Generator):
        drawn = torch.rand(count, generator=random, dtype=torch.float64, device=random.device)
        return drawn.cpu().numpy()  # type: ignore[no-any-return]
    numbers = host(view(random, "random, unless it is a generator,")[0])
    if numbers.dtype != np.float64:
        raise DTypeError(f"random numbers must be float64, others are too coarse for rare tokens, got {numbers.dtype}")
    if numbers.shape != (count,):
        raise ShapeError(f"random numbers must have shape ({count},), got {numbers.shape}")
    if not ((numbers >= 0) & (numbers < 1)).all():
        raise ParamsError(f"random numbers must be within [0, 1), got {shown(numbers.min())} to {shown(numbers.max())}")
    return numbers
