"""`Writer`: a container tensor by tensor, with none of them in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import BinaryIO, Self

from lynxq.arguments import shown
from lynxq.container.atomic import write_all
from lynxq.container.entries import Entry, Pages, common_streams, entry_of, header_of
from lynxq.container.remote import Place, Remote, resolve
from lynxq.container.saving import Target, replace_files, split_files
from lynxq.encoded import Encoded
from lynxq.errors import LimitError, WriterError
from lynxq.format.description import MAX_TENSORS
from lynxq.format.frames import KINDS
from lynxq.layout import Stream


class Writer:
    """Writes a container tensor by tensor, holding none of them in memory.

    The header comes first and names all tensors, and all anchors come before all residuals; so the streams are
    kept in temporary files until :meth:`close` puts them together: beside the target if that is local, in the
    system's folder for such files if not. Use it in a ``with`` statement: if that ends with an exception, the target
    is as it was.

    Parameters
    ----------
    path : path or URL
        Replaced atomically by `close`.
    metadata : mapping of str to str, optional
        As for :func:`save`.
    residual : path or URL, optional
        Where the residuals go for a split container, as with :func:`save_split`.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, lynxq
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "kv.lynx")
    ...     with lynxq.Writer(path, metadata={"model": "toy"}) as writer:
    ...         for layer in range(2):
    ...             keys = np.ones((300, 2, 64), np.float32)
    ...             writer.add(f"layer.{layer}.key", lynxq.encode(keys, token_axis=0))
    ...     sorted(lynxq.load(path))
    ['layer.0.key', 'layer.1.key']
    """

    def __init__(
        self, path: Target, *, metadata: Mapping[str, str] | None = None, residual: Target | None = None
    ) -> None:
        self._residual = residual
        self._path: Place = resolve(path) if residual is None else split_files(path, residual)[0][0]
        self._metadata = metadata or {}
        self._entries: dict[str, Entry] = {}
        header_of({}, self._metadata, ["anchor"])  # metadata that cannot be written is refused before any work
        self._lock = Lock()
        self._stack = ExitStack()
        self._spools = {stream: self._spool() for stream in KINDS}
        self._open = True

    def _spool(self) -> BinaryIO:
        folder = None if isinstance(self._path, Remote) else Path(self._path).parent
        return self._stack.enter_context(tempfile.TemporaryFile(dir=folder))

    def add(self, name: str, encoded: Encoded) -> None:
        """Add a tensor; names must differ, and all tensors or none must have a residual. Threads may share a writer."""
        entry = entry_of(name, encoded)
        checksums = entry.page_checksums()  # of the caller's memory: they cover the way through the temporary files
        header_of({name: entry}, {}, ["anchor"])  # a name that cannot be written is refused here
        with self._lock:
            self._check_open()
            if name in self._entries:
                raise WriterError(f"tensor names must differ, got {shown(name)} twice")
            if len(self._entries) == MAX_TENSORS:
                raise LimitError(f"tensors must be at most {MAX_TENSORS}, {shown(name)} is one more")
            common_streams({**dict(islice(self._entries.items(), 1)), name: entry})
            spooled: dict[Stream, Pages] = {}
            for stream, pages in entry.streams.items():
                file = self._spools[stream]
                base = file.seek(0, os.SEEK_END)
                write_all(file, pages(0, entry.layout.stream_size(stream)))
                spooled[stream] = _spooled(file, base)
            self._entries[name] = Entry(entry.layout, spooled, checksums)

    def close(self) -> None:
        """Put the container together and move it to its place."""
        with self._lock, self._stack:
            self._check_open()
            self._open = False
            streams = common_streams(self._entries)
            files = [(self._path, streams)] if self._residual is None else split_files(self._path, self._residual)
            replace_files(files, self._entries, self._metadata)

    def abort(self) -> None:
        """Drop everything; the target is as it was."""
        with self._lock:
            self._open = False
            self._stack.close()

    def _check_open(self) -> None:
        if not self._open:
            raise WriterError("the writer is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.close()


def _spooled(file: BinaryIO, base: int) -> Pages:
    def read(offset: int, size: int) -> bytes:
        file.seek(base + offset)
        return file.read(size)

    return read
