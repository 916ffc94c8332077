"""`Recorder`: what arrives becomes a container. A file is a recorded transmission."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from lynxq.container.atomic import PathLike, replacing, write_all
from lynxq.errors import IncompleteError
from lynxq.format.frames import KINDS, STREAMS
from lynxq.format.header import Header, frame_offset
from lynxq.layout import Stream
from lynxq.stream.events import AnchorPage, ResidualPage


class Recorder:
    """Writes pages to a container as they arrive. The file has the bytes that :func:`lynxq.save` gives.

    Parameters
    ----------
    path : path
        Replaced atomically by `close`; until then nothing is there.
    header : Header
        As :class:`RequestOpened` has it.

    Examples
    --------
    With the :class:`Client` of :mod:`lynxq.stream.tcp`::

        with ExitStack() as stack:
            transfer = await client.request("prompt", sink=lambda header: stack.enter_context(Recorder(path, header)))
            await transfer.done()
    """

    def __init__(self, path: PathLike, header: Header) -> None:
        self._header = header
        self._places = {stream: header.stream_offset(kind) for stream, kind in KINDS.items()}
        self._tensors = list(header.tensors.items())
        self._here: dict[tuple[Stream, int], set[int]] = {
            (stream, tensor): set() for stream in header.stream_names for tensor in range(len(self._tensors))
        }
        self._stack = ExitStack()
        self._file = self._stack.enter_context(replacing(path))
        write_all(self._file, header.pack())

    def _place(self, stream: Stream, tensor: int, page: int) -> int:
        """Where a frame begins in the file."""
        begin = self._places[stream]
        if begin is None:
            raise IncompleteError(f"{stream}s were not announced")
        name, layout = self._tensors[tensor]
        return begin + self._header.tensor_offsets[stream][name] + frame_offset(layout, stream, page)

    def add(self, page: AnchorPage | ResidualPage) -> None:
        """Write a page to its place."""
        stream = STREAMS[page.frame.kind]
        self._file.seek(self._place(stream, page.tensor, page.page))
        write_all(self._file, page.frame.pack())
        write_all(self._file, page.payload)
        self._here[stream, page.tensor].add(page.page)

    def _first_missing(self) -> tuple[Stream, int, int] | None:
        for (stream, tensor), here in self._here.items():
            pages = self._tensors[tensor][1].pages
            if len(here) < pages:
                return stream, tensor, next(page for page in range(pages) if page not in here)
        return None

    def close(self, *, partial: bool = False) -> None:
        """Publish the file.

        Parameters
        ----------
        partial : bool
            Whether residuals may be missing; the file then ends before the first one that is.

        Raises
        ------
        IncompleteError
            If pages are missing that must not be; nothing is published then.
        """
        first = self._first_missing()
        if first is not None:
            if first[0] == "anchor" or not partial:
                self.abort()
                raise IncompleteError(f"{first[0]} page {first[2]} of tensor {first[1]} is not here")
            self._file.truncate(self._place(*first))
        self._stack.close()

    def abort(self) -> None:
        """Drop everything; what was at the path is as it was."""
        self._stack.pop_all().__exit__(IncompleteError, IncompleteError("the recording was given up"), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()
