"""Where an array that a CUDA kernel reads or writes is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Where an array is: address of its first element, and its lengths and strides in bytes.

    Attributes
    ----------
    outer, inner : tuple of (length, stride)
        Axes before and after the token axis.
    token_stride : int
        Of a token, or of a token inside its block.
    slots, block_stride : int
        Of a paged cache: tokens of a block, 0 if it is not paged, and bytes from block to block.
    block_table : int
        Address of the 32-bit block numbers of a paged cache.
    """

    address: int
    outer: tuple[tuple[int, int], ...]
    inner: tuple[tuple[int, int], ...]
    token_stride: int
    slots: int = 0
    block_stride: int = 0
    block_table: int = 0

    @classmethod
    def of(cls, address: int, shape: Sequence[int], strides: Sequence[int], token_axis: int) -> Memory:
        """Of an array of the tensor's own shape; strides are in bytes."""
        axes = tuple(zip(shape, strides, strict=True))
        return cls(address, _merged(axes[:token_axis]), _merged(axes[token_axis + 1 :]), strides[token_axis])


def _merged(axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Neighbouring axes that are one axis in memory as one; axes of length 1 are gone."""
    result: list[tuple[int, int]] = []
    for length, stride in axes:
        if length == 1:
            continue
        if result and result[-1][1] == length * stride:
            result[-1] = result[-1][0] * length, stride
        else:
            result.append((length, stride))
    return tuple(result)
