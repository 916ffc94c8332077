"""Where container bytes come from: a mapped file, a buffer, or a binary file object."""

from __future__ import annotations

import io
import mmap
import os
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from lynxq.arguments import shown
from lynxq.errors import ContainerError, TruncatedError
from lynxq.frames import Buffer

#: What a container is opened from.
Readable = str | os.PathLike[str] | BinaryIO | Buffer


class Source(ABC):
    """Bytes that can be read at any offset, from several threads at once."""

    #: Bytes there are.
    size: int

    @abstractmethod
    def _read(self, offset: int, size: int) -> memoryview: ...

    def read(self, offset: int, size: int, what: str) -> memoryview:
        """The `size` bytes at `offset`; raises `TruncatedError` if there are fewer."""
        if offset + size > self.size:
            raise TruncatedError(what, offset + size, self.size)
        return self._read(offset, size)

    def close(self) -> None:  # noqa: B027 - most sources own nothing
        """Give back what was opened here; views handed out before may become invalid."""


class BufferSource(Source):
    """A bytes-like object. It must not change while it is read."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def _read(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]


class MappedSource(Source):
    """A file, mapped read-only: only the pages that are read are loaded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with Path(path).open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ) if self.size else None
        self._view = memoryview(self._map if self._map is not None else b"")

    def _read(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Close the mapping, unless a page of it is still in use; then it closes with the last such page."""
        self._view = memoryview(b"")
        self.size = 0
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # a view is still held by the caller, and the mapping lives as long as it does
                self._map = None


class FileSource(Source):
    """A seekable binary file object, which stays the caller's: it is not closed here."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        try:
            self.size = file.seek(0, io.SEEK_END)
        except (AttributeError, OSError, ValueError) as error:
            raise ContainerError(f"a container must be read from a seekable file, got {file!r}: {error}") from None

    def _read(self, offset: int, size: int) -> memoryview:
        parts = bytearray()
        with self._lock:
            self._file.seek(offset)
            while len(parts) < size:
                part = self._file.read(size - len(parts))
                if not isinstance(part, bytes | bytearray | memoryview):
                    raise ContainerError(f"a container must be read from a binary file, got {type(part).__name__}")
                if not part:
                    raise TruncatedError("a read of the file", offset + size, offset + len(parts))
                parts += part
        return memoryview(parts)


def open_source(source: Readable) -> Source:
    """The `Source` of a path, a buffer or a file object; raises `ContainerError` for anything else."""
    if isinstance(source, str | os.PathLike):
        return MappedSource(source)
    with suppress(TypeError, ValueError):  # buffers first, since a mapping is a file object as well
        return BufferSource(source)  # type: ignore[arg-type]
    if hasattr(source, "read") and hasattr(source, "seek"):
        return FileSource(source)  # type: ignore[arg-type]
    raise ContainerError(f"a container must be a path, bytes or a binary file, got {shown(source)}")
