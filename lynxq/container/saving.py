"""`save` and `save_split`: whole containers, written at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import BinaryIO

from lynxq.arguments import shown
from lynxq.container.atomic import PathLike, write_all
from lynxq.container.entries import Entry, common_streams, entries_of, header_of, write_streams
from lynxq.container.remote import Place, Remote, replacing, resolve, same_place
from lynxq.container.source import LazyFile
from lynxq.encoded import Encoded
from lynxq.errors import MissingResidualError, SourceError, WriterError
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
        replace_files([(place, streams)], entries, metadata)
        return
    if not hasattr(place, "write"):
        raise SourceError(f"a container must be saved to a path, a URL or a binary file, got {shown(target)}")
    header = header_of(entries, metadata, streams)
    write_all(place, header.pack())
    write_streams(place, header, entries, streams)


def split_files(anchor: Target, residual: Target) -> list[tuple[Place, tuple[Stream, ...]]]:
    """The files of a split container and the streams of each."""
    places = resolve(anchor), resolve(residual)
    if same_place(*places):
        raise WriterError(f"anchor and residual must be two files, got {shown(anchor)} and {shown(residual)}")
    return [(places[0], ("anchor",)), (places[1], ("residual",))]


def replace_files(
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
    replace_files(split_files(anchor, residual), entries_of(tensors), metadata)
