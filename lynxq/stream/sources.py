"""What is sent: sources of frames, from memory and from containers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import accumulate
from types import TracebackType
from typing import NamedTuple, Self

from lynxq.arguments import instance, integer
from lynxq.container.entries import Entry, common_streams, entries_of, header_of
from lynxq.container.reader import Reader
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ShapeError, SourceError, SourceFailedError
from lynxq.format.frames import Buffer, FrameHeader
from lynxq.format.header import Header
from lynxq.layout import Stream


class Frame(NamedTuple):
    """A frame that can be sent."""

    header: FrameHeader
    payload: Buffer


class Source(ABC):
    """The frames of one segment, in any order and any number of times, as far as they exist already.

    A source may serve several requests at once. All calls come from one thread.

    Attributes
    ----------
    header : Header
        Of the segment. It names the streams that there are.
    """

    header: Header

    @abstractmethod
    def frame(self, stream: Stream, tensor: int, page: int) -> Frame | None:
        """One frame, or None if it does not exist yet.

        Raises
        ------
        ContainerError
            If this page is damaged where it is kept; the other ones are sent.
        TransferError
            If the source cannot go on at all.
        """

    def place(self, position: int) -> tuple[int, int] | None:
        """Tensor and page of the frame that comes at a position of either stream, None if it is not known yet.

        Every page has one position, from 0 to before the number of pages of all tensors. By default the order is that
        of a container: tensor by tensor, page by page.
        """
        tensor = bisect_right(self._first_positions, position) - 1
        return tensor, position - self._first_positions[tensor]

    @cached_property
    def _first_positions(self) -> list[int]:
        """Position of the first page of each tensor."""
        return list(accumulate((layout.pages for layout in self.header.tensors.values()), initial=0))[:-1]

    @cached_property
    def pages(self) -> int:
        """Pages of all tensors."""
        return sum(layout.pages for layout in self.header.tensors.values())

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Ask for `wake` to be called, from any thread, when frames have come into being; returns what ends that."""
        del wake  # all frames exist from the beginning
        return lambda: None

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Let go of what the source holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class EncodedSource(Source):
    """Sends tensors that are in memory. Only valid tokens are sent, as in a container.

    Parameters
    ----------
    tensors : mapping of str to Encoded
        All with a residual, or all without; with streams in the memory of the CPU. They must not change while they
        are sent.
    metadata : mapping of str to str, optional
        As for :func:`lynxq.save`.

    Raises
    ------
    ContainerError, DTypeError, MissingResidualError
        As for :func:`lynxq.save`.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> from lynxq.stream import EncodedSource
    >>> encoded = lynxq.encode(np.ones((600, 2, 64), np.float32), token_axis=0)
    >>> source = EncodedSource({"layer.0.key": encoded}, metadata={"model": "toy"})
    >>> source.frame("anchor", 0, 2).header.page
    2
    """

    def __init__(self, tensors: Mapping[str, Encoded], *, metadata: Mapping[str, str] | None = None) -> None:
        entries = entries_of(tensors)
        self.header = header_of(entries, metadata, common_streams(entries))
        self._entries: list[Entry] = list(entries.values())
        self._anchors: dict[tuple[int, int], int] = {}

    def frame(self, stream: Stream, tensor: int, page: int) -> Frame:
        """One frame; all of them exist."""
        anchor = self._anchors.get((tensor, page))
        frame = Frame(*self._entries[tensor].frame(stream, tensor, page, self.header.identity, anchor))
        if stream == "anchor":
            self._anchors[tensor, page] = frame.header.payload
        return frame


class ContainerSource(Source):
    """Sends a segment of an open container: the frames as they are there, checked and not encoded again.

    Parameters
    ----------
    reader : Reader
        As :func:`lynxq.open` gives it; it must stay open, and stays the caller's to close. It is read where the
        sender runs: on a slow disk other connections of a server wait for it.
    segment : int, optional
        Segment number; it must be given if there are several.

    Examples
    --------
    >>> import io, numpy as np, lynxq
    >>> from lynxq.stream import ContainerSource
    >>> file = io.BytesIO()
    >>> lynxq.save(file, {"key": lynxq.encode(np.ones((600, 2, 64), np.float32), token_axis=0)})
    >>> with lynxq.open(file) as reader:
    ...     ContainerSource(reader).frame("residual", 0, 1).header.kind
    1
    """

    def __init__(self, reader: Reader, *, segment: int | None = None) -> None:
        instance("reader", reader, Reader, DTypeError)
        if segment is None and reader.segments > 1:
            raise ShapeError(f"the container has {reader.segments} segments: say which one")
        self._number = integer("segment", segment or 0, 0, reader.segments - 1)
        self._tensors = list(reader.values())
        layouts = {tensor.name: tensor.segment_layout(self._number) for tensor in self._tensors}
        full = all(tensor.has_residual for tensor in self._tensors)
        streams: tuple[Stream, ...] = ("anchor", "residual") if full else ("anchor",)
        self.header = Header.of(reader.metadata, layouts, streams)

    def frame(self, stream: Stream, tensor: int, page: int) -> Frame:
        """One frame, read and checked."""
        try:
            return Frame(*self._tensors[tensor].frame(stream, page, segment=self._number))
        except SourceError as error:  # no page of it can be read
            raise SourceFailedError(f"the container cannot be read: {error}") from error
