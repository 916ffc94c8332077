"""Where integrations keep containers under names: a folder, or any store that fsspec knows.

Every blob is written whole or not at all, may be deleted at any time by anyone, and explains itself, so that several
processes and machines can share a store without talking to each other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from lynxq.arguments import shown
from lynxq.container.atomic import replacing, write_all
from lynxq.container.remote import Remote, RemoteSource, of_url
from lynxq.container.source import Readable
from lynxq.container.store_errors import os_errors
from lynxq.errors import ParamsError

#: Names that are safe as file names and as keys of object stores, whatever made them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}")


class BlobStore(ABC):
    """Containers under names. Threads and processes may share a store."""

    @abstractmethod
    def contains(self, name: str) -> bool:
        """Whether there is a blob of that name."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[Readable]:
        """A context manager with something that :func:`lynxq.open` takes; raises `FileNotFoundError`."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Keep a blob; one that is there is replaced, and a reader finds the old one or the whole new one."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a blob; it is no error if there is none."""


class FolderStore(BlobStore):
    """A folder of the file system, with a subfolder for each beginning of a name.

    A crash may leave temporary files, whose names begin with ``.lynxq-``.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def _path(self, name: str) -> Path:
        return self._folder / _place(name)

    def contains(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return self._path(name).is_file()

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        """The path of the blob: a reader maps it, and reads only what it needs."""
        path = self._path(name)
        if not path.is_file():
            raise FileNotFoundError(f"there is no blob {shown(name)}")
        yield path

    def write(self, name: str, data: bytes) -> None:
        """Write beside the target, sync, and rename."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            write_all(file, data)

    def delete(self, name: str) -> None:
        """Remove the file."""
        self._path(name).unlink(missing_ok=True)


class FsspecStore(BlobStore):
    """A store behind an fsspec URL, such as ``s3://bucket/folder`` or ``memory://folder``.

    A blob is put with one call. Object stores make that atomic; where a store does not, a reader may find a part of a
    blob, which the checksums of the container tell.
    """

    def __init__(self, url: str, **options: Any) -> None:
        remote = of_url(url, **options)
        self._system, self._root = remote.fs, remote.path.rstrip("/")

    def _blob(self, name: str) -> Remote:
        return Remote(self._system, f"{self._root}/{_place(name)}")

    def contains(self, name: str) -> bool:
        """Whether the store has the blob now; what the filesystem object remembers does not count."""
        blob = self._blob(name)
        with os_errors(blob.url):
            self._system.invalidate_cache(blob.path.rsplit("/", 1)[0])
            return bool(self._system.isfile(blob.path))

    @contextmanager
    def open(self, name: str) -> Iterator[Readable]:
        """What reads ranges of it."""
        source = RemoteSource(self._blob(name))
        try:
            yield source
        finally:
            source.close()

    def write(self, name: str, data: bytes) -> None:
        """Put the blob with one call."""
        blob = self._blob(name)
        with os_errors(blob.url):
            self._system.makedirs(blob.path.rsplit("/", 1)[0], exist_ok=True)
            self._system.pipe_file(blob.path, data)

    def delete(self, name: str) -> None:
        """Remove the blob."""
        blob = self._blob(name)
        with suppress(FileNotFoundError), os_errors(blob.url):
            self._system.rm_file(blob.path)


def open_store(location: object) -> BlobStore:
    """The store at a place.

    Parameters
    ----------
    location : str or path
        A folder, made when something is written, or an fsspec URL with ``://`` in it.

    Returns
    -------
    BlobStore

    Raises
    ------
    ParamsError
        If it is neither.
    MissingLibraryError
        If the URL needs fsspec, or a library of fsspec for that kind of URL, and it is not installed.
    SourceError
        If fsspec knows no file system for the URL, or cannot make it.

    Examples
    --------
    >>> import tempfile
    >>> from lynxq.integrations.stores import open_store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = open_store(folder)
    ...     store.write("greeting", b"hello")
    ...     store.contains("greeting"), store.contains("other")
    (True, False)
    """
    if isinstance(location, Path) or (isinstance(location, str) and location and "://" not in location):
        return FolderStore(location)
    if isinstance(location, str) and location:
        return FsspecStore(location)
    raise ParamsError(f"a store must be a folder or an fsspec URL, got {shown(location)}")


def _place(name: str) -> str:
    """Where a blob lies: folders with very many files are slow to list."""
    if not _NAME.fullmatch(name):
        raise ParamsError(f"a blob's name must be letters, digits, dots, dashes and '=', got {shown(name)}")
    return f"{name[:2]}/{name}.lynx"
