"""Where keys and values are in a memory object: views of it, and the layouts that they are coded with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lynxq.arrays import Array
from lynxq.errors import ShapeError
from lynxq.integrations.lmcache.options import MemoryLayout, Options
from lynxq.layout import Layout

#: Axes that an object may have, and the one that holds keys and values; None where one vector serves as both.
_AXES: dict[MemoryLayout, tuple[tuple[int, ...], int | None]] = {
    "KV_2LTD": ((4,), 0),
    "KV_2TD": ((3,), 0),
    "KV_T2D": ((3,), 1),
    "KV_MLA_FMT": ((3, 4), None),
    "KV_FUSED": ((3, 4), None),
}


@dataclass(frozen=True)
class Part:
    """One tensor of a memory object.

    Attributes
    ----------
    name : str
        Name in the blob, such as ``0.key``: the group's number, and what it is.
    group : int
    split : tuple of int
        Shape in which the group is looked at, so that `index` can select the tensor.
    index : tuple
        Selects the tensor.
    layout : Layout
        Of the tensor.
    """

    name: str
    group: int
    split: tuple[int, ...]
    index: tuple[Any, ...]
    layout: Layout

    def view(self, groups: Sequence[Array]) -> Array:
        """The tensor in the memory of its contiguous group."""
        return groups[self.group].reshape(self.split)[self.index]

    def tokens(self, start: int, stop: int) -> tuple[slice, ...]:
        """The index of a range of tokens of the tensor."""
        return (*(slice(None),) * self.layout.token_axis, slice(start, stop))


def parts_of(options: Options, shapes: Sequence[Sequence[int]], dtypes: Sequence[object]) -> tuple[Part, ...]:
    """The tensors of an object with groups of these shapes and dtypes.

    Raises
    ------
    ShapeError
        If a group does not have the axes of the configured layout.
    DTypeError
        If a group does not hold float32, float16 or bfloat16.
    """
    found: list[Part] = []
    for group, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        found += _group(options, group, tuple(shape), dtype, options.head_dim_of(group, len(shapes)))
    return tuple(found)


def _group(options: Options, group: int, shape: tuple[int, ...], dtype: object, head_dim: int | None) -> list[Part]:
    layout = options.layout
    counts, pair = _AXES[layout]
    if pair is not None:
        fits = len(shape) in counts and shape[pair] == 2
    else:
        fits = len(shape) in counts and (len(shape) == 3 or shape[0] == 1)
    if not fits:
        raise ShapeError(f"group {group} must have the axes of {layout}, got shape {shape}")
    split, token_axis, indices = shape, -2, _indices(pair)
    if layout == "KV_FUSED":
        if head_dim is None or shape[-1] % (2 * head_dim):
            raise ShapeError(f"2 * head_dim {head_dim} must divide the last axis of group {group}, got shape {shape}")
        split, token_axis = (*shape[:-1], shape[-1] // (2 * head_dim), 2 * head_dim), -3
        indices = {"key": (..., slice(None, head_dim)), "value": (..., slice(head_dim, None))}
    result = []
    for name, index in indices.items():
        params = options.values if name == "value" else options.keys
        axes = np.broadcast_to(np.int8(0), split)[index].shape  # has no memory
        coded = Layout.of(params, axes, dtype, token_axis=token_axis, head_dim=head_dim)
        result.append(Part(f"{group}.{name}", group, split, index, coded))
    return result


def _indices(pair: int | None) -> dict[str, tuple[Any, ...]]:
    if pair is None:
        return {"latent": (...,)}
    before = (slice(None),) * pair
    return {"key": (*before, 0), "value": (*before, 1)}
