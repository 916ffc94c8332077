"""What kernels are told: the numbers that describe a tensor, its streams, and how the work is cut up."""

from __future__ import annotations

from typing import NamedTuple

#: Sections of a page in kernels' tables; both residual planes are in the other stream.
LO, HI, MU, SIGMA, ANCHOR_0, ANCHOR_1, RESIDUAL_0, RESIDUAL_1 = range(8)
SECTIONS = 8
#: Columns of the table of sections.
OFFSET, ROWS, LANES, ITEMSIZE = range(4)
#: Kinds of pages: the first, those between, and the last.
FIRST, MIDDLE, LAST = range(3)
#: Columns of the table of pages.
CODED, SINKS = range(2)
#: Grouping axes.
TOKEN, CHANNEL = 0, 1


class Spec(NamedTuple):
    """A tensor and how it is coded; plain integers.

    A *unit* of work is one page of `group` outer indices and of `tile` channels of each. Its *lanes*, all
    channels of all its outer indices, are what vector registers run along. `direct` units read and write the
    tensor where it is, which needs channels that are contiguous; others go through a staging buffer.
    """

    axis: int
    chunk: int
    run: int
    head: int
    channels: int
    outer: int
    page: int
    pages: int
    anchor_bits: int
    residual_bits: int
    stored: int
    mean: int
    kind: int
    form: int
    margin: int
    direct: int
    piece: int
    tile: int
    tiles: int
    block: int
    group: int
    groups: int
    base: int
    token_stride: int
    anchor_first: int
    anchor_page: int
    residual_first: int
    residual_page: int

    @property
    def units(self) -> int:
        """Number of units."""
        return self.pages * self.groups * self.tiles
