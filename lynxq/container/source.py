"""Where container bytes come from: a mapped file, a buffer, a binary file object, or what fsspec reaches."""

from __future__ import annotations

import io
import mmap
import operator
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from weakref import WeakKeyDictionary

from lynxq.arguments import shown
from lynxq.errors import SourceError, TruncatedError
from lynxq.format.frames import Buffer


class LazyFile(Protocol):
    """A file of fsspec that is not open: what ``fsspec.open`` returns, or a path of universal_pathlib."""

    @property
    def fs(self) -> Any:
        """The file system."""

    @property
    def path(self) -> str:
        """The path in it."""


class Source(ABC):
    """Bytes that can be read at any offset, from several threads at once."""

    #: Bytes there are.
    size: int

    #: Whether every read takes long, so that what will be read should be fetched together.
    slow = False

    @abstractmethod
    def _read(self, offset: int, size: int) -> memoryview: ...

    _closed = False

    def read(self, offset: int, size: int, what: str) -> memoryview:
        """The `size` bytes at `offset`; raises `TruncatedError` if there are fewer."""
        if self._closed:
            raise SourceError(f"{what} cannot be read: the container is closed")
        if offset + size > self.size:
            raise TruncatedError(what, offset + size, self.size)
        return self._read(offset, size)

    def expect_header(self, offset: int) -> None:  # noqa: B027 - to be told needs no answer
        """Be told that a header is read next."""

    def fetched(self, ranges: Iterable[tuple[int, int]]) -> AbstractContextManager[None]:  # noqa: ARG002 - for subclasses
        """Be told which ranges are read while a block runs."""
        return nullcontext()

    def close(self) -> None:
        """Give back what was opened here; pages handed out before live on."""
        self._closed = True


#: What a container is opened from.
Readable = str | os.PathLike[str] | BinaryIO | Buffer | LazyFile | Source


class BufferSource(Source):
    """A bytes-like object. It must not change while it is read."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)

    def _read(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Let go of the buffer."""
        super().close()
        self._view = memoryview(b"")


class MappedSource(Source):
    """A file, mapped read-only: only the pages that are read are loaded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            file = Path(path).open("rb")  # noqa: SIM115 - closed below
        except ValueError as error:  # a NUL in the path
            raise SourceError(f"{shown(os.fspath(path))} is not a path: {error}") from None
        with file:
            self.size = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ) if self.size else None
        self._view = memoryview(self._map if self._map is not None else b"")

    def _read(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Close the mapping, unless a page of it is still in use; then it closes with the last such page."""
        super().close()
        self._view = memoryview(b"")
        if self._map is not None:
            try:
                self._map.close()
            except BufferError:  # a view is still held by the caller, and the mapping lives as long as it does
                self._map = None


_locks: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


def lock_of(file: Any) -> threading.Lock:
    """The lock of a file object, the same for all who read it: seeking and reading are two steps."""
    with _locks_lock:
        try:
            return _locks.setdefault(file, threading.Lock())
        except TypeError:  # it cannot be referred to weakly
            return threading.Lock()


class FileSource(Source):
    """A seekable binary file object, which stays the caller's: it is not closed here."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = lock_of(file)
        try:
            with self._lock:
                self.size = operator.index(file.seek(0, io.SEEK_END))
        except (AttributeError, OSError, TypeError, ValueError) as error:
            raise SourceError(f"a container must be read from a seekable file, got {file!r}: {error}") from None

    def _read(self, offset: int, size: int) -> memoryview:
        parts = bytearray()
        with self._lock:
            self._file.seek(offset)
            while len(parts) < size:
                part = self._file.read(size - len(parts))
                if not isinstance(part, bytes | bytearray | memoryview):
                    raise SourceError(f"a container must be read from a binary file, got {type(part).__name__}")
                if not part:
                    raise TruncatedError("a read of the file", offset + size, offset + len(parts))
                parts += part
        return memoryview(parts)
