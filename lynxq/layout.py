"""Where every byte of both streams is: integer arithmetic only, no data.

A tensor is (outer…, tokens, inner…). The axes before the token axis are *outer*, those after it are
*channels*, the last of which is the head. A page is a run of tokens over all outer indices and channels. A
stream is its pages, one after the other; a page is its sections, each C-contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Literal, NamedTuple

from lynxq import dtypes
from lynxq.arguments import integer
from lynxq.errors import ShapeError
from lynxq.params import Params

Tier = Literal["anchor", "full"]
Stream = Literal["anchor", "residual"]

#: The streams that a decode to a tier reads, in the order in which it reads them.
TIER_STREAMS: Mapping[Tier, tuple[Stream, ...]] = MappingProxyType(
    {"anchor": ("anchor",), "full": ("anchor", "residual")}
)

#: Sections start at multiples of this, so that vector loads of a section are aligned.
SECTION_ALIGNMENT = 16
#: Pages start at multiples of this: a cache line, and what DMA engines like.
PAGE_ALIGNMENT = 64
#: Caps of the format: axes of a tensor, length of an axis or a first token, elements and pages of a tensor.
MAX_AXES = 16
MAX_LENGTH = 1 << 48
MAX_ELEMENTS = 1 << 56
MAX_PAGES = 1 << 32

METADATA_BYTES = {"u8": 1, "u16": 2, "f32": 4}

#: Widths of the bit planes that hold codes of so many bits; the widest holds the lowest bits.
PLANE_WIDTHS = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2)}


class Section(NamedTuple):
    """A part of a page: byte offset inside the page, array shape, bytes of an item."""

    name: str
    offset: int
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes of the section, without what aligns the next one."""
        return prod(self.shape) * self.itemsize


class Groups(NamedTuple):
    """Runs and chunks along an axis of (outer, tokens, channels): first element of a chunk, first chunk of a run."""

    axis: int
    length: int
    chunk_starts: tuple[int, ...]
    run_starts: tuple[int, ...]


def ceil_div(value: int, divisor: int) -> int:
    """Quotient rounded up."""
    return -(-value // divisor)


def align(value: int, alignment: int) -> int:
    """The smallest multiple of `alignment` that is not below `value`."""
    return ceil_div(value, alignment) * alignment


@dataclass(frozen=True)
class Layout:
    """The shape of a coded tensor and of its two streams; immutable.

    Build one with :meth:`of`, which checks its arguments and fills in the defaults.

    Attributes
    ----------
    params : Params
    shape : tuple of int
    dtype : DType
    token_axis : int
        Not negative.
    head_dim : int
        Channels of one head; runs along channels do not cross its multiples.
    first_token : int
        Position of the tensor's first token in the sequence.
    tokens : int
        Valid tokens; those after them are not coded and decode to zero.
    """

    params: Params
    shape: tuple[int, ...]
    dtype: dtypes.DType
    token_axis: int
    head_dim: int
    first_token: int
    tokens: int

    @classmethod
    def of(
        cls,
        params: Params,
        shape: Sequence[int],
        dtype: object,
        *,
        token_axis: int,
        head_dim: int | None = None,
        first_token: int = 0,
        valid_tokens: int | None = None,
    ) -> Layout:
        """Check the arguments of `encode` that describe a tensor and make its layout.

        Raises
        ------
        ShapeError
            If an axis, a length or a count is out of range.
        """
        dims = tuple(integer("an axis length", length, 0, MAX_LENGTH) for length in shape)
        if not 1 <= len(dims) <= MAX_AXES:
            raise ShapeError(f"a tensor must have 1 to {MAX_AXES} axes, got shape {dims}")
        if prod(length for length in dims if length) > MAX_ELEMENTS:
            raise ShapeError(f"a tensor must have at most 2**56 elements, got shape {dims}")
        axis = integer("token_axis", token_axis, -len(dims), len(dims) - 1) % len(dims)
        last = dims[-1] if axis < len(dims) - 1 else 1
        if head_dim is None:
            head = max(last, 1)
        else:
            head = integer("head_dim", head_dim, 1, MAX_LENGTH)
            if last % head:
                raise ShapeError(f"head_dim must divide the last axis, of length {last}, got {head}")
        first = integer("first_token", first_token, 0, MAX_LENGTH)
        length = dims[axis]
        tokens = length if valid_tokens is None else integer("valid_tokens", valid_tokens, 0, length)
        if tokens > MAX_PAGES * params.page:
            raise ShapeError(f"a tensor must have at most 2**32 pages of {params.page} tokens, got {tokens} tokens")
        return cls(params, dims, dtypes.named(dtype), axis, head, first, tokens)

    # --- extents -----------------------------------------------------------------------------------

    @cached_property
    def outer_shape(self) -> tuple[int, ...]:
        """Axes before the token axis."""
        return self.shape[: self.token_axis]

    @cached_property
    def inner_shape(self) -> tuple[int, ...]:
        """Axes after the token axis."""
        return self.shape[self.token_axis + 1 :]

    @cached_property
    def outer(self) -> int:
        """Product of the axes before the token axis."""
        return prod(self.outer_shape)

    @cached_property
    def channels(self) -> int:
        """Product of the axes after the token axis."""
        return prod(self.inner_shape)

    @property
    def elements(self) -> int:
        """Valid values of the tensor."""
        return self.outer * self.tokens * self.channels

    @cached_property
    def sinks(self) -> int:
        """Tokens at the tensor's beginning that are kept verbatim, all of them in page 0."""
        return min(max(self.params.sink_tokens - self.first_token, 0), self.tokens)

    @cached_property
    def pages(self) -> int:
        """Number of pages; a tensor without values has none."""
        return ceil_div(self.tokens, self.params.page) if self.outer * self.channels else 0

    def span(self, page: int) -> tuple[int, int]:
        """First token of a page and the one after its last, counted from the tensor's beginning."""
        start = page * self.params.page
        return start, min(start + self.params.page, self.tokens)

    def page_sinks(self, page: int) -> int:
        """Verbatim tokens at a page's beginning."""
        return self.sinks if page == 0 else 0

    def coded(self, page: int) -> int:
        """Tokens of a page that have codes: all but the verbatim ones."""
        start, stop = self.span(page)
        return stop - start - self.page_sinks(page)

    # --- grouping ----------------------------------------------------------------------------------

    def groups(self, coded: int) -> Groups:
        """Runs and chunks of a page with so many coded tokens, along the grouping axis.

        Along tokens the axis has `coded` elements; along channels it has all channels, and both runs and
        chunks begin anew with every head.
        """
        chunk, run = self.params.chunk, self.params.range_size
        if self.params.axis == "token":
            starts = tuple(range(0, coded, chunk))
            return Groups(1, coded, starts, tuple(range(0, len(starts), run // chunk)))
        per_head = ceil_div(self.head_dim, chunk)
        heads = self.channels // self.head_dim
        starts = tuple(h * self.head_dim + c * chunk for h in range(heads) for c in range(per_head))
        runs = tuple(h * per_head + c for h in range(heads) for c in range(0, per_head, run // chunk))
        return Groups(2, self.channels, starts, runs)

    def _metadata_shapes(self, coded: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of a page's ranges and of its centres, without building the groups."""
        chunk, run = self.params.chunk, self.params.range_size
        if self.params.axis == "token":
            return (
                (self.outer, ceil_div(coded, run), self.channels),
                (self.outer, ceil_div(coded, chunk), self.channels),
            )
        heads = self.channels // self.head_dim
        return (
            (self.outer, coded, heads * ceil_div(self.head_dim, run)),
            (self.outer, coded, heads * ceil_div(self.head_dim, chunk)),
        )

    # --- sections ----------------------------------------------------------------------------------

    def _planes(self, prefix: str, bits: int, coded: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
        for width in PLANE_WIDTHS[bits]:
            yield f"{prefix}{width}", (self.outer, ceil_div(coded * width, 8), self.channels), 1

    def sections(self, stream: Stream, page: int) -> tuple[Section, ...]:
        """The sections of a page, in order.

        Anchor: ``lo``, ``hi``, then ``mu`` and ``sigma`` where they are stored, ``sinks``, and the bit planes
        of the anchor codes. Residual: the bit planes of the residual codes.
        """
        return self._sections(stream, self.coded(page), self.page_sinks(page))

    def _sections(self, stream: Stream, coded: int, sinks: int) -> tuple[Section, ...]:
        parts: list[tuple[str, tuple[int, ...], int]] = []
        if stream == "anchor":
            ranges, centres = self._metadata_shapes(coded)
            parts += [("lo", ranges, self.dtype.itemsize), ("hi", ranges, self.dtype.itemsize)]
            if not self.params.range_implies_chunk:
                width = METADATA_BYTES[self.params.metadata]
                parts += [("mu", centres, width), ("sigma", centres, width)]
            parts.append(("sinks", (self.outer, sinks, self.channels), self.dtype.itemsize))
            parts += self._planes("anchor", self.params.anchor_bits, coded)
        else:
            parts += self._planes("residual", self.params.residual_bits, coded)
        sections, offset = [], 0
        for name, shape, itemsize in parts:
            sections.append(Section(name, offset, shape, itemsize))
            offset = align(offset + sections[-1].nbytes, SECTION_ALIGNMENT)
        return tuple(sections)

    def _size(self, stream: Stream, coded: int, sinks: int) -> int:
        last = self._sections(stream, coded, sinks)[-1]
        return align(last.offset + last.nbytes, PAGE_ALIGNMENT)

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, int, int]]:
        """Of either stream: bytes of page 0, of a full page, and of the last page."""
        last = max(self.pages - 1, 0)
        return {
            stream: (
                self._size(stream, self.coded(0), self.sinks),
                self._size(stream, self.params.page, 0),
                self._size(stream, self.coded(last), self.page_sinks(last)),
            )
            for stream in ("anchor", "residual")
        }

    def page_size(self, stream: Stream, page: int) -> int:
        """Bytes of a page, a multiple of 64. All pages but the first and the last have one size."""
        first, full, last = self._sizes[stream]
        if page == 0:
            return first
        return last if page == self.pages - 1 else full

    def page_offset(self, stream: Stream, page: int) -> int:
        """Byte offset of a page in its stream; `pages` gives the stream's size."""
        if page == 0:
            return 0
        before = self._sizes[stream][0] + (page - 1) * self._sizes[stream][1]
        if page < self.pages:
            return before
        return self.page_offset(stream, page - 1) + self.page_size(stream, page - 1)

    def stream_size(self, stream: Stream) -> int:
        """Bytes of a whole stream."""
        return self.page_offset(stream, self.pages)

    def narrowed(self, start: int, stop: int) -> Layout:
        """The layout of the pages from `start` to before `stop`: pages are independent of each other."""
        first, last = self.span(start)[0], min(stop * self.params.page, self.tokens)
        tokens = max(last - first, 0)
        shape = (*self.outer_shape, tokens, *self.inner_shape)
        return replace(self, shape=shape, first_token=self.first_token + first, tokens=tokens)
