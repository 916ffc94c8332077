"""Changing files so that a failure or a crash leaves them as they were."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

#: A path, as the `os` functions take it.
PathLike = str | os.PathLike[str]


def sync(file: BinaryIO) -> None:
    """Return when all that was written is on disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place, whole and on disk, if nothing goes wrong."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    file = temporary.open("xb")  # made like any file, with the rights that the umask leaves
    try:
        with file:
            yield file
            sync(file)
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _sync_directory(path: Path) -> None:
    """Make a rename durable, where directories can be opened for that."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def extending(path: PathLike, end: int) -> Iterator[BinaryIO]:
    """A file, opened for writing at `end`; what follows is cut off, and the size restored, if something fails."""
    with Path(path).open("r+b") as file:
        tail = file.seek(0, os.SEEK_END) - end
        file.seek(end)
        kept = file.read(tail)
        try:
            file.truncate(end)
            file.seek(end)
            yield file
        except BaseException:
            file.truncate(end)
            file.seek(end)
            file.write(kept)
            raise
