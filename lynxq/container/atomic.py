"""Changing files so that a failure or a crash leaves them as they were."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO

from lynxq.arguments import shown
from lynxq.errors import SourceError
from lynxq.format.frames import Buffer

#: A path, as the `os` functions take it.
PathLike = str | os.PathLike[str]


def write_all(file: BinaryIO | RawIOBase, data: Buffer) -> None:
    """Write every byte, also to an unbuffered file, which may take a part at a time."""
    view = memoryview(data)
    while view:
        written = file.write(view)
        if written is None and not isinstance(file, RawIOBase):
            written = len(view)  # wrappers that return nothing pass everything on
        if not written:
            raise SourceError(f"a file must take what is written to it, got {written!r} for {len(view)} bytes")
        view = view[written:]


def sync(file: BinaryIO | RawIOBase) -> None:
    """Return when all that was written is on disk."""
    file.flush()
    os.fsync(file.fileno())


def same_file(a: PathLike, b: PathLike) -> bool:
    """Whether two paths lead to one file, however they are spelled."""
    with suppress(OSError):
        return Path(a).samefile(b)
    return os.path.realpath(a) == os.path.realpath(b)


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place, whole and on disk, if nothing goes wrong.

    A symbolic link is followed: what it leads to is replaced. Folders, devices and pipes are refused.
    """
    target = Path(os.path.realpath(path))
    mode = 0o666
    if target.exists():
        if not target.is_file():
            raise SourceError(f"only a regular file can be replaced, got {shown(os.fspath(path))}")
        mode = target.stat().st_mode & 0o777
    temporary = target.with_name(f".lynxq-{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    except OSError as error:  # named after the file that was asked for
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        with open(temporary, "wb", opener=lambda *_: handle) as file:
            yield file
            sync(file)
        if target.exists():
            temporary.chmod(mode)  # the umask took rights away that the old file has
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
def extending(path: PathLike, end: int) -> Iterator[RawIOBase]:
    """A file, opened for writing at `end`; what follows is cut off, and the size restored, if something fails."""
    with Path(path).open("r+b", buffering=0) as file:  # unbuffered: a failed write must not come back on closing
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
            write_all(file, kept)
            sync(file)
            raise
