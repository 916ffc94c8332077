"""Hypothesis strategies for tests of code that uses lynxq: parameters, and tensors chosen to hurt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.params import MAX_ALPHA, MIN_ALPHA, SPLITS, Params

Tensor = NDArray[Any]

_LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 33, 40, 65)
_WIDTHS = (0, 1, 2, 3, 4, 5, 8, 11)
_PAGES = (8, 16, 24, 32, 40, 256)
_ALPHAS = (0.0, MIN_ALPHA, 0.5, 1.0, 2.0, 100.0, 255.0, MAX_ALPHA)


class Sample(NamedTuple):
    """A tensor and its token axis, which may be negative."""

    x: Tensor
    token_axis: int


# --- parameters ------------------------------------------------------------------------------------


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def params(draw: st.DrawFn, /, **fixed: Any) -> Params:
    """Valid parameters of every kind, with small pages so that small tensors have several.

    Parameters
    ----------
    **fixed
        Fields of :class:`lynxq.Params` that are not to be drawn; the others are drawn to fit them as far as
        they can.

    Returns
    -------
    strategy of Params

    Raises
    ------
    ParamsError
        When an example is drawn, if the given fields are not valid together.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(params(axis="channel"), lambda p: p.metadata == "u16").axis
    'channel'
    """
    chosen: dict[str, Any] = dict(fixed)

    def pick(name: str, strategy: st.SearchStrategy[Any]) -> Any:
        if name not in chosen:
            chosen[name] = draw(strategy)
        return chosen[name]

    axis = pick("axis", st.sampled_from(("token", "channel")))
    page = pick("page", st.sampled_from(_PAGES))
    runs = _divisors(page) if axis == "token" else [1, 2, 3, 4, 6, 8, 64]
    pick("chunk", st.sampled_from(_divisors(pick("range_size", st.sampled_from(runs)))))
    anchor_bits, residual_bits = chosen.get("anchor_bits"), chosen.get("residual_bits")
    splits = [(a, r) for a, r in SPLITS if anchor_bits in (None, a) and residual_bits in (None, r)]
    if not splits:
        return Params(**chosen)  # which says what is wrong
    chosen["anchor_bits"], chosen["residual_bits"] = draw(st.sampled_from(splits))
    pick("alpha", st.sampled_from(_ALPHAS) | st.floats(0.01, 10.0))
    pick("center", st.sampled_from(("midrange", "mean")))
    pick("metadata", st.sampled_from(("u8", "u16", "f32")))
    pick("sink_tokens", st.integers(0, min(page, 9)))
    count = 1 << (chosen["anchor_bits"] - 1)
    points = st.lists(st.floats(0.0, 1.0, width=32), min_size=count, max_size=count)
    pick("anchor_points", st.none() | points.map(lambda values: tuple(sorted(values))))
    return Params(**chosen)


# --- contents --------------------------------------------------------------------------------------

_Random = np.random.Generator
_Shape = tuple[int, ...]


def _special_values(dtype: dtypes.DType) -> list[float]:
    tiny = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[dtype.name]
    normal = {"float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}[dtype.name]
    positive = [0.0, tiny, 3 * tiny, normal - tiny, normal, 0.1, 1.0, 200.0, 60000.0, dtype.largest / 2, dtype.largest]
    return positive + [-value for value in positive]


def _constant(rng: _Random, shape: _Shape, dtype: dtypes.DType) -> Tensor:
    return np.full(shape, rng.choice(_special_values(dtype)))


def _zeros(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    return rng.choice([0.0, -0.0], shape)


def _specials(rng: _Random, shape: _Shape, dtype: dtypes.DType) -> Tensor:
    return rng.choice(rng.choice(_special_values(dtype), 4), shape)


def _subnormals(rng: _Random, shape: _Shape, dtype: dtypes.DType) -> Tensor:
    reach = int(rng.choice([4, 20, 300]))
    return rng.integers(-reach, reach + 1, shape) * _special_values(dtype)[1]


def _extremes(rng: _Random, shape: _Shape, dtype: dtypes.DType) -> Tensor:
    return rng.choice([-1.0, -0.99, 0.0, 0.5, 1.0], shape) * dtype.largest


def _normal(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    return rng.standard_normal(shape)


def _integers(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    return rng.integers(-128, 129, shape) * 0.25


def _loud_token(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    values = rng.standard_normal(shape)
    for axis, length in enumerate(shape):  # one index of every axis, so also of the token axis
        if length > 1:
            values[(slice(None),) * axis + (int(rng.integers(length)),)] *= 1000.0
    return values


def _key_bias(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    values: Tensor = rng.standard_normal(shape) + rng.choice([-200.0, 0.0, 200.0], shape[-1:])
    return values


def _outliers(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.02, 500.0, 1.0)


def _wide_exponents(rng: _Random, shape: _Shape, _dtype: dtypes.DType) -> Tensor:
    values: Tensor = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-150.0, 128.0, shape)
    return values


def _neighbours(rng: _Random, shape: _Shape, dtype: dtypes.DType) -> Tensor:
    return rng.uniform(0.5, 100.0) * (1.0 + rng.integers(0, 3, shape) * 2.0 * dtype.unit_roundoff)


#: What a tensor can hold, by name: (random generator, shape, dtype) -> float64 values.
CONTENTS: dict[str, Callable[[_Random, _Shape, dtypes.DType], Tensor]] = {
    "normal": _normal,
    "constant": _constant,
    "zeros": _zeros,
    "specials": _specials,
    "subnormals": _subnormals,
    "extremes": _extremes,
    "integers": _integers,
    "loud token": _loud_token,
    "key bias": _key_bias,
    "outliers": _outliers,
    "wide exponents": _wide_exponents,
    "neighbours": _neighbours,
}


def contents(kind: str, shape: Sequence[int], dtype: str, seed: int = 0) -> Tensor:
    """A contiguous tensor with contents of a kind.

    Parameters
    ----------
    kind : str
        A name in `CONTENTS`.
    shape : sequence of int
    dtype : {"float32", "float16", "bfloat16"}
    seed : int
        Of the random generator.

    Returns
    -------
    ndarray
        Finite values only.

    Examples
    --------
    >>> contents("extremes", (2, 3), "float16").dtype
    dtype('float16')
    """
    element = dtypes.named(dtype)
    values = CONTENTS[kind](np.random.default_rng(seed), tuple(shape), element)
    clipped = np.clip(values, -element.largest, element.largest)
    return np.ascontiguousarray(clipped.astype(np.float32).astype(arrays.numpy_dtype(element)).reshape(tuple(shape)))


# --- memory layouts --------------------------------------------------------------------------------


def _fill(target: Tensor, x: Tensor) -> Tensor:
    target[...] = x
    return target


def _strided(x: Tensor) -> Tensor:
    room = np.full([2 * n + 1 for n in x.shape], np.nan, x.dtype)
    return _fill(room[tuple(slice(1, 2 * n + 1, 2) for n in x.shape)], x)


def _offset(x: Tensor) -> Tensor:
    room = np.full([n + 3 for n in x.shape], np.nan, x.dtype)
    return _fill(room[tuple(slice(1, n + 1) for n in x.shape)], x)


def _transposed(x: Tensor) -> Tensor:
    return _fill(np.empty(x.shape[::-1], x.dtype).T, x)


def _rotated(x: Tensor) -> Tensor:
    return _fill(np.moveaxis(np.empty((x.shape[-1], *x.shape[:-1]), x.dtype), 0, -1), x)


def _reversed(x: Tensor) -> Tensor:
    return _fill(np.empty(x.shape, x.dtype)[(slice(None, None, -1),) * x.ndim], x)


def _read_only(x: Tensor) -> Tensor:
    copy = x.copy()
    copy.setflags(write=False)
    return copy


def _unaligned(x: Tensor) -> Tensor:
    room = np.empty(x.nbytes + 1, np.uint8)[1:]
    return _fill(room.view(x.dtype).reshape(x.shape), x)


#: Ways to lay out the same values in memory, by name. What lies between the values is NaN.
MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": np.ascontiguousarray,
    "strided": _strided,
    "offset": _offset,
    "transposed": _transposed,
    "rotated": _rotated,
    "reversed": _reversed,
    "read-only": _read_only,
    "unaligned": _unaligned,
}


@st.composite
def tensors(
    draw: st.DrawFn,
    *,
    dtype: str | None = None,
    max_elements: int = 600,
    memory: bool = True,
    token_lengths: Sequence[int] = _LENGTHS,
) -> Sample:
    """Finite tensors with hostile contents, shapes and memory layouts.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16"}, optional
        Any of them by default.
    max_elements : int
        Upper limit of the number of values.
    memory : bool
        Whether the memory layout varies: strided, transposed, reversed, broadcast, read-only … Contiguous
        otherwise.
    token_lengths : sequence of int
        Lengths of the token axis to choose from.

    Returns
    -------
    strategy of Sample
        1 to 4 axes, any of them the token axis, axes of length 0 among them.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(tensors(dtype="float16"), lambda sample: sample.x.size > 10).x.dtype
    dtype('float16')
    """
    name = dtype or draw(st.sampled_from(sorted(dtypes.BY_NAME)))
    axes = draw(st.integers(1, 4))
    axis = draw(st.integers(0, axes - 1))
    room = max_elements
    shape = [0] * axes
    for position in (axis, *(p for p in range(axes) if p != axis)):
        lengths = token_lengths if position == axis else _WIDTHS
        # An empty axis is drawn on purpose, but not so often that most tensors are empty.
        usable = [n for n in lengths if n and n <= room] or [1]
        empty = 0 in lengths and draw(st.integers(0, 19)) == 19
        shape[position] = 0 if empty else draw(st.sampled_from(usable))
        room //= max(shape[position], 1)
    seed = draw(st.integers(0, 2**32 - 1))
    x = contents(draw(st.sampled_from(tuple(CONTENTS))), shape, name, seed)
    if memory:
        kind = draw(st.sampled_from((*MEMORY, "broadcast")))
        if kind == "broadcast":
            over = draw(st.integers(0, axes - 1))
            x = np.broadcast_to(x[(slice(None),) * over + (slice(0, 1),)], shape) if shape[over] else x
        else:
            x = MEMORY[kind](x)
    return Sample(x, axis - axes if draw(st.booleans()) else axis)
