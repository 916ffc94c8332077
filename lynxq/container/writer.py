"""Writing containers: `save`, `save_split`, `append` and the streaming `Writer`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from io import RawIOBase
from itertools import islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import BinaryIO, Self, cast

from lynxq.arguments import shown
from lynxq.container.atomic import PathLike, extending, sync, write_all
from lynxq.container.entries import (
    Entry,
    Pages,
    common_streams,
    entries_of,
    entry_of,
    header_of,
    write_streams,
)
from lynxq.container.expect import Expect
from lynxq.container.reader import Reader
from lynxq.container.remote import Place, Remote, replacing, resolve, same_place
from lynxq.container.segments import Walk, check_continues, join, walk
from lynxq.container.source import LazyFile, MappedSource
from lynxq.encoded import Encoded
from lynxq.errors import (
    LimitError,
    MissingResidualError,
    ResidualMismatchError,
    SegmentError,
    SourceError,
    TruncatedError,
    WriterError,
)
from lynxq.format.description import MAX_TENSORS
from lynxq.format.frames import KINDS, STREAMS
from lynxq.format.header import PREAMBLE_SIZE, Header
from lynxq.layout import Stream

#: What a container is saved to.
Writable = PathLike | LazyFile | BinaryIO

#: A path, a URL, or a lazy file of fsspec.
Target = PathLike | LazyFile


def save(target: Writable, tensors: Mapping[str, Encoded], *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a container with one segment.

    The same tensors, in the same order, give the same bytes. Only valid tokens are kept.

    Parameters
    ----------
    target : path, URL or binary file object
        A path is replaced atomically: the file is either the old one or the whole new one. So is a URL, or what
        ``fsspec.open`` returns for one, of a store that can do that (extra ``remote``). A file object is written to
        at its position.
    tensors : mapping of str to Encoded
        All with a residual, or all without.
    metadata : mapping of str to str, optional
        What identifies the tensors, such as model and revision.

    Raises
    ------
    ContainerError
        If a name, the metadata or a count breaks a rule of the format.
    DTypeError, MissingResidualError
        If a value is not an `Encoded`, or only some have a residual.
    WriterError
        If it is not known of the store of a URL that it replaces files as a whole.
    OSError
        If the file cannot be written.
    """
    entries = entries_of(tensors)
    streams = common_streams(entries)
    place = resolve(target)
    if isinstance(place, str | os.PathLike | Remote):
        _replace([(place, streams)], entries, metadata)
        return
    if not hasattr(place, "write"):
        raise SourceError(f"a container must be saved to a path, a URL or a binary file, got {shown(target)}")
    header = header_of(entries, metadata, streams)
    write_all(place, header.pack())
    write_streams(place, header, entries, streams)


def _split(anchor: Target, residual: Target) -> list[tuple[Place, tuple[Stream, ...]]]:
    """The files of a split container and the streams of each."""
    places = resolve(anchor), resolve(residual)
    if same_place(*places):
        raise WriterError(f"anchor and residual must be two files, got {shown(anchor)} and {shown(residual)}")
    return [(places[0], ("anchor",)), (places[1], ("residual",))]


def _replace(
    files: Sequence[tuple[Place, tuple[Stream, ...]]],
    entries: Mapping[str, Entry],
    metadata: Mapping[str, str] | None,
) -> None:
    """Write a segment to new files that take the place of the old ones, the last one first."""
    for stream in (stream for _, streams in files for stream in streams):
        for name, entry in entries.items():
            if stream not in entry.streams:
                raise MissingResidualError(f"a split container needs residuals, {name!r} has none")
    with ExitStack() as stack:
        for path, streams in files:
            header = header_of(entries, metadata, streams)
            file = stack.enter_context(replacing(path))
            write_all(file, header.pack())
            write_streams(file, header, entries, streams)


def save_split(
    anchor: Target,
    residual: Target,
    tensors: Mapping[str, Encoded],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a container as two files: the anchors for hot storage, the residuals for cold storage.

    Each file has the header, so that it explains itself; each residual frame names the anchor page that it
    refines, so that files of different caches cannot be mixed up.

    Parameters
    ----------
    anchor, residual : path or URL
        Both are replaced atomically, the residual file first: who finds the anchors finds the residuals. They may
        be in different stores.
    tensors : mapping of str to Encoded
        All with a residual.
    metadata : mapping of str to str, optional
        As for :func:`save`.
    """
    _replace(_split(anchor, residual), entries_of(tensors), metadata)


def append(
    path: PathLike,
    tensors: Mapping[str, Encoded],
    *,
    residual: PathLike | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> None:
    """Add the next token range of a container's tensors as a further segment.

    Nothing that is there is moved or rewritten. The segment's first 64 bytes are written last: until then, and
    after a crash, a reader sees trailing bytes behind the sound segments, never half a segment. If the call
    fails, the file is as it was.

    Parameters
    ----------
    path : path
        A container, or the anchor file of a split one. A URL must lead to a local file.
    tensors : mapping of str to Encoded
        The same names in the same order, with the same parameters, each beginning at the token after the last
        one stored (``encode(..., first_token=...)``).
    residual : path, optional
        The residual file of a split container.
    expect : Expect, optional
        What the container must be before anything is added, such as of which model.
    allow_trailing : bool
        Overwrite what follows the last segment, such as what an append left that was cut off by a crash.

    Raises
    ------
    SegmentError
        If the tensors do not continue those of the container.
    ContainerError
        For everything that can be wrong with the container.
    """
    entries = entries_of(tensors)
    paths = [_extensible(each) for each in ([path] if residual is None else [path, residual])]
    if residual is not None:
        _split(*paths)
    if expect is not None:
        Reader(path, residual=residual, expect=expect, allow_trailing=allow_trailing).close()
    walks = [_whole(each, allow_trailing=allow_trailing) for each in paths]
    last = join(walks[0], walks[1] if residual is not None else None)[-1]
    streams, given = tuple(last.places), common_streams(entries)
    if streams != given:
        raise SegmentError(f"a segment must have the streams {streams}, got {given}")
    ahead = len(walks[-1].segments) - len(walks[0].segments)
    if ahead > 1:
        raise ResidualMismatchError(
            f"the residual file is {ahead} segments ahead of the anchor file: one is from elsewhere"
        )
    # A crash may have left the residual file one segment ahead, which is then cut off.
    ends = [each.ends[len(walks[0].segments) - 1] for each in walks]
    headers = [header_of(entries, last.header.metadata, tuple(each.segments[-1].places)) for each in walks]
    check_continues(last.header, headers[0])
    with ExitStack() as stack:
        files = [stack.enter_context(extending(path, end)) for path, end in zip(paths, ends, strict=True)]
        begins = [_write_tail(file, header, entries) for file, header in zip(files, headers, strict=True)]
        # The residual file first: until the anchor file has the segment too, a reader ignores it there.
        for file, header, begin in reversed(list(zip(files, headers, begins, strict=True))):
            file.seek(begin)
            write_all(file, header.pack()[:PREAMBLE_SIZE])
            sync(file)


def _extensible(path: PathLike) -> PathLike:
    """A path whose file can be extended where it is; raises `WriterError` for what is behind a URL."""
    place = resolve(path)
    if isinstance(place, Remote):
        raise WriterError(
            f"append extends a file where it is, which the store of {place} cannot: append to a local copy, "
            f"or save the later tokens as a container of their own"
        )
    return cast("PathLike", place)


def _whole(path: PathLike, *, allow_trailing: bool) -> Walk:
    """The segments of a file, all of them complete."""
    source = MappedSource(path)
    try:
        result = walk(source, allow_trailing=allow_trailing)
        if not result.complete:
            raise TruncatedError("the last segment", result.consumed, source.size)
    finally:
        source.close()
    return result


def _write_tail(file: RawIOBase, header: Header, entries: Mapping[str, Entry]) -> int:
    """Write all of a segment but its preamble, zeros in its place; returns where the segment begins."""
    begin = file.tell()
    write_all(file, bytes(PREAMBLE_SIZE) + header.pack()[PREAMBLE_SIZE:])
    write_streams(file, header, entries, [STREAMS[kind] for kind, _ in header.streams])
    sync(file)
    return begin


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
        self._path: Place = resolve(path) if residual is None else _split(path, residual)[0][0]
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
            files = [(self._path, streams)] if self._residual is None else _split(self._path, self._residual)
            _replace(files, self._entries, self._metadata)

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
