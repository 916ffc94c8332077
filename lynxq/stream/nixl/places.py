"""Where each frame lies in the region of its stream, and the slices in which a region is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lynxq.format.frames import HEADER_SIZE
from lynxq.format.header import Header
from lynxq.layout import Stream


class Place(NamedTuple):
    """A frame in a region: where it begins, where the next one begins, and which page it holds."""

    begin: int
    end: int
    tensor: int
    page: int


def places(header: Header, stream: Stream) -> list[Place]:
    """The frames of a stream in the order of a container: tensor by tensor, page by page, without gaps."""
    result: list[Place] = []
    begin = 0
    for tensor, layout in enumerate(header.tensors.values()):
        for page in range(layout.pages):
            end = begin + HEADER_SIZE + layout.page_size(stream, page)
            result.append(Place(begin, end, tensor, page))
            begin = end
    return result


def slices(frames: Sequence[Place], size: int) -> Iterator[tuple[int, int]]:
    """Runs of whole frames as (begin, end), of up to `size` bytes, or of one frame if that is larger."""
    begin = end = 0
    for place in frames:
        if begin < end and place.end - begin > size:
            yield begin, end
            begin = end
        end = place.end
    if begin < end:
        yield begin, end
