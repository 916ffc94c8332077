"""Which `Source` reads what a caller passed."""

from __future__ import annotations

import os
from contextlib import suppress

from lynxq.arguments import shown
from lynxq.container.remote import Remote, RemoteSource, resolve
from lynxq.container.source import BufferSource, FileSource, MappedSource, Readable, Source
from lynxq.errors import SourceError


def open_source(source: Readable) -> Source:
    """The `Source` of a path, a URL, a buffer or a file object; raises `SourceError` for anything else."""
    if isinstance(source, Source):
        return source
    place = resolve(source)
    if isinstance(place, Remote):
        return RemoteSource(place)
    if isinstance(place, str | os.PathLike):
        return MappedSource(place)
    with suppress(TypeError, ValueError):  # buffers first, since a mapping is a file object as well
        return BufferSource(place)
    if hasattr(place, "read") and hasattr(place, "seek"):
        return FileSource(place)
    raise SourceError(f"a container must be a path, a URL, bytes or a binary file, got {shown(source)}")
