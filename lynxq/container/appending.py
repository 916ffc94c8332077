"""`append`: a further segment behind those of a container, which are left as they are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from io import RawIOBase
from typing import cast

from lynxq.container.atomic import PathLike, extending, sync, write_all
from lynxq.container.entries import Entry, common_streams, entries_of, header_of, write_streams
from lynxq.container.expect import Expect
from lynxq.container.reader import Reader
from lynxq.container.remote import Remote, resolve
from lynxq.container.saving import split_files
from lynxq.container.segments import Walk, check_continues, join, walk
from lynxq.container.source import MappedSource
from lynxq.encoded import Encoded
from lynxq.errors import ResidualMismatchError, SegmentError, TruncatedError, WriterError
from lynxq.format.frames import STREAMS
from lynxq.format.header import PREAMBLE_SIZE, Header


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
        split_files(*paths)
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
