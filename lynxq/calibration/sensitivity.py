"""What an error in each key and value costs in attention outputs, to first order.

With weights a = softmax(q·k/√D) and output o = Σ a_j v_j, errors δv and δk change the output by

    Σ_j a_j δv_j    and    Σ_j a_j (v_j - o) (q·δk_j)/√D.

If errors of different values have mean 0 and are independent, the expected squared change is the sum over j of
a_j² |δv_j|² and of a_j² |v_j - o|² Σ_c q_c² δk_jc² / D: a cost for the square of every single error, so that a search
needs no attention. What it leaves out are correlations, second order, and that an error common to all keys cancels;
the chosen parameters are measured with :func:`lynxq.metrics.attention_output_error` in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from lynxq.arrays import Array
from lynxq.calibration.data import F32, Tensor
from lynxq.errors import LynxqError, ParamsError, ShapeError
from lynxq.metrics import pieces
from lynxq.metrics.pieces import Floats

#: Queries that are taken of a layer: so many blocks, spread evenly, of so many in a row.
BLOCKS, ROWS = 4, 16


class Costs(NamedTuple):
    """Cost of a squared error of every key and every value, shape (outer, tokens, channels), relative to ‖o‖²."""

    keys: F32
    values: F32


class Queries(NamedTuple):
    """Queries that follow each other, shape (queries, heads, head dim), and the position of the first one."""

    rows: Floats
    first: int


@dataclass(frozen=True, eq=False)
class Layer:
    """Keys and values of a layer, and some of its queries."""

    keys: Tensor
    values: Tensor
    queries: Sequence[Queries]


def heads(tensor: Tensor) -> F32:
    """A tensor as (tokens, heads, head dim); outer axes become heads."""
    outer, tokens, channels = tensor.values.shape
    dim = tensor.layout.head_dim
    return tensor.values.reshape(outer, tokens, channels // dim, dim).transpose(1, 0, 2, 3).reshape(tokens, -1, dim)


def load_queries(name: str, x: Array, keys: Tensor) -> list[Queries]:
    """Blocks of the queries of a layer; these are of the last positions, as many as there are.

    Raises
    ------
    ShapeError
        If they do not fit the keys.
    """
    layout = keys.layout
    array = pieces.floats(name, x)
    shape, axis, dim = tuple(array.shape), layout.token_axis, layout.head_dim
    if len(shape) != len(layout.shape):
        raise ShapeError(f"{name} must have as many axes as the keys, {len(layout.shape)}, got shape {shape}")
    tokens, outer, inner = shape[axis], prod(shape[:axis]), prod(shape[axis + 1 :])
    count = heads(keys).shape[1]
    if not 1 <= tokens <= layout.tokens or inner % dim or not outer * inner or (outer * inner // dim) % count:
        raise ShapeError(f"{name} of shape {shape} must fit keys of shape {layout.shape}")
    found = []
    for end in sorted({round((i + 1) * tokens / BLOCKS) for i in range(BLOCKS)} - {0}):
        rows = pieces.load(array, (slice(None),) * axis + (slice(max(end - ROWS, 0), end),))
        pieces.require_finite(rows)
        length = rows.shape[axis]
        blocks = rows.reshape(outer, length, inner // dim, dim).transpose(1, 0, 2, 3).reshape(length, -1, dim)
        found.append(Queries(blocks, layout.tokens - tokens + end - length))
    return found


def load_layers(
    data: Sequence[Tensor],
    queries: Mapping[str, Array] | Iterable[tuple[str, Array]],
    layer_of: Callable[[str], int | None],
) -> list[Layer]:
    """The layers that have queries.

    Raises
    ------
    ParamsError
        If there are no queries, or their layer has not just one tensor of keys and one of values.
    DTypeError, ShapeError, NonFiniteError
        If queries do not fit the keys, or the keys the values; a note names them.
    """
    layers = []
    for name, array in queries.items() if isinstance(queries, Mapping) else queries:
        try:
            pair = [[t for t in data if (t.kind, t.layer) == (kind, layer_of(name))] for kind in ("key", "value")]
            if any(len(tensors) != 1 for tensors in pair):
                raise ParamsError(f"queries must be of a layer with one tensor of keys and one of values, got {name!r}")
            (keys,), (values,) = pair
            if heads(keys).shape[:2] != heads(values).shape[:2]:
                raise ShapeError(
                    f"keys and values must have the same tokens and heads, "
                    f"got shapes {keys.layout.shape} and {values.layout.shape}"
                )
            layers.append(Layer(keys, values, load_queries(name, array, keys)))
        except LynxqError as error:
            error.add_note(f"queries {name!r}")
            raise
    if not layers:
        raise ParamsError("queries must hold a tensor, got none")
    return layers


def costs(layer: Layer) -> Costs:
    """Cost of errors in keys and values of a layer, from some of its queries."""
    keys, values, queries = layer.keys, layer.values, layer.queries
    k, v = heads(keys), heads(values)
    tokens, count, dim = k.shape
    rows = np.concatenate([block.rows for block in queries])
    positions = np.concatenate([np.arange(len(block.rows)) + block.first for block in queries])
    group = rows.shape[1] // count
    future = np.arange(tokens) > np.repeat(positions, group)[:, None]
    for_keys, for_values = np.empty(k.shape), np.empty((tokens, count))
    norm = 0.0
    for head in range(count):
        q = rows[:, head * group : (head + 1) * group].reshape(-1, dim)
        scores = q @ k[:, head].T.astype(np.float64) / np.sqrt(dim)
        scores[future] = -np.inf
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        value = v[:, head].astype(np.float64)
        output = share @ value
        norm += float(np.square(output).sum())
        # |v_j - o|², without an array of all differences
        apart = np.square(value).sum(1) - 2 * output @ value.T + np.square(output).sum(1)[:, None]
        square = np.square(share)
        for_values[:, head] = square.sum(axis=0)
        for_keys[:, head] = (square * np.maximum(apart, 0.0)).T @ np.square(q) / dim
    scale = 1.0 / norm if norm > 0.0 else 0.0
    wide = np.repeat(for_values[:, :, None], v.shape[2], axis=2)
    return Costs(_as_tensor(for_keys * scale, keys), _as_tensor(wide * scale, values))


def _as_tensor(cost: Floats, tensor: Tensor) -> F32:
    """From (tokens, heads, head dim) back to (outer, tokens, channels)."""
    outer, tokens, channels = tensor.values.shape
    dim = tensor.layout.head_dim
    blocks = cost.reshape(tokens, outer, channels // dim, dim).transpose(1, 0, 2, 3)
    return np.ascontiguousarray(blocks, dtype=np.float32).reshape(outer, tokens, channels)
