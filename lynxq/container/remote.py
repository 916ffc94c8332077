"""Containers behind a URL: what fsspec reaches, read in ranges and written whole."""

from __future__ import annotations

import inspect
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO

from lynxq.arguments import shown
from lynxq.container import atomic
from lynxq.container.ranges import HeldSource, Range, merged
from lynxq.container.source import lock_of
from lynxq.container.store_errors import cause, os_error, os_errors
from lynxq.errors import MissingLibraryError, SourceError, TruncatedError, WriterError
from lynxq.format.frames import Buffer
from lynxq.libraries import need
from lynxq.urls import hidden, is_url, shown_url

#: Bytes that are read where a header is expected: enough for the names of about a hundred tensors.
HEAD = 1 << 14

#: Bytes of one request; what is larger becomes several requests at the same time.
PART = 1 << 23

#: How often a part is asked for whose answers are too short.
_ATTEMPTS = 4

#: Protocols whose files appear when they are committed, and those where a rename replaces a file as a whole.
_COMMITTED, _RENAMED = {"s3", "s3a"}, {"memory"}


@dataclass(frozen=True, repr=False)
class Remote:
    """A file of a file system of fsspec."""

    fs: Any
    path: str

    @property
    def url(self) -> str:
        """Its URL, with everything that may be secret in it."""
        return str(self.fs.unstrip_protocol(self.path))

    def __str__(self) -> str:
        return shown_url(self.url)

    def __repr__(self) -> str:
        return f"Remote({str(self)!r})"

    @property
    def protocols(self) -> set[str]:
        """The names of the file system in URLs."""
        names = self.fs.protocol
        return {names} if isinstance(names, str) else set(names)


def resolve(place: Any) -> Any:
    """A URL or a lazy file of fsspec as a `Remote`, or as a local path where it leads to one; all else unchanged.

    Raises
    ------
    MissingLibraryError
        If fsspec, or what it needs for that kind of URL, is not installed.
    SourceError
        If no file system is known for the URL, or the lazy file shall be decompressed or decoded as text.
    """
    if is_url(place):
        remote = of_url(place)
    elif hasattr(place, "fs") and hasattr(place, "path") and not hasattr(place, "read"):
        if isinstance(place, os.PathLike):  # universal_pathlib, for a local path
            return place
        if getattr(place, "compression", None) or "t" in getattr(place, "mode", "rb"):
            raise SourceError(f"a container is neither decompressed nor decoded as text, got {shown(place)}")
        remote = Remote(place.fs, place.path)
    else:
        return place
    return remote.path if "file" in remote.protocols else remote


def of_url(url: str, **options: Any) -> Remote:
    """What a URL leads to.

    Parameters
    ----------
    url : str
    options
        For its file system.

    Raises
    ------
    MissingLibraryError
        If fsspec, or what it needs for that kind of URL, is not installed.
    SourceError
        If no file system is known for the URL, or can be made of it.
    """
    url_to_fs = need("fsspec.core", "lynxq[remote]").url_to_fs
    try:
        remote = Remote(*url_to_fs(url, **options))
    except ImportError as error:
        raise MissingLibraryError(
            f"{shown(url)} needs a library that is not installed: {hidden(str(error), url)}"
        ) from None
    except ValueError as error:
        raise SourceError(f"{shown(url)} is no URL that fsspec knows: {hidden(str(error), url)}") from None
    except OSError as error:
        raise os_error(url, error) from cause(url, error)
    except Exception as error:  # noqa: BLE001 - chained, unless it tells a secret
        said = hidden(f"{type(error).__name__}: {error}", url)
        raise SourceError(f"{shown(url)} cannot be opened: {said}") from cause(url, error)
    if "::" in url and not _reads_another(remote.fs):
        # fsspec would leave out what follows, and a::b and a::c would be one file.
        raise SourceError(f"'::' joins file systems, and the first of {shown(url)} does not read from another one")
    return remote


def _reads_another(fs: Any) -> bool:
    """Whether a file system may be the first one of a chain: its class takes what fsspec passes to such."""
    bases: tuple[Any, ...] = type(fs).__mro__
    names = {name for base in bases for name in inspect.signature(base.__init__).parameters}
    return not names.isdisjoint({"fo", "target_protocol"})


# --- reading ---------------------------------------------------------------------------------------


class RemoteSource(HeldSource):
    """A remote file, of which only ranges are read. It must not be replaced while it is open."""

    slow = True

    def __init__(self, remote: Remote) -> None:
        from concurrent.futures import ThreadPoolExecutor  # here: it is not light, and most imports never need it

        self._remote = remote
        fs, path = remote.fs, remote.path
        # Files of some file systems, such as those in memory, share one position.
        self._turn: AbstractContextManager[Any] = nullcontext() if fs.async_impl else lock_of(fs)
        with os_errors(remote.url):
            fs.invalidate_cache(fs._parent(path))  # a listing may be old
        with ThreadPoolExecutor(1) as pool:  # the size and the header in the time of one request
            asked = pool.submit(self._ask, [(0, HEAD)]) if fs.async_impl else None
            with os_errors(remote.url):
                found = fs.info(path)
        if found["type"] == "directory":
            raise IsADirectoryError(f"{remote} is a folder")
        size = found["size"]
        if size is None:
            raise SourceError(f"{remote} has no known size, so that it cannot be read in ranges")
        super().__init__(size)
        self._head: int | None = None
        if asked is None:
            self.expect_header(0)
        elif size:  # some stores answer a range of an empty file with an error
            self._keep_head(0, self._checked((0, min(HEAD, size)), asked.result()[0]))

    def expect_header(self, offset: int) -> None:
        """Have what lies where a header begins, before its fields are read one by one."""
        if self._head != offset and offset < self.size:
            (data,) = self._fetch([(offset, min(offset + HEAD, self.size))])
            self._keep_head(offset, data)

    def _keep_head(self, offset: int, data: Buffer) -> None:
        if self._head is not None:
            self.release(self._head)
        self.hold(offset, data)
        self._head = offset

    @contextmanager
    def fetched(self, ranges: Iterable[Range]) -> Iterator[None]:
        """Hold ranges while the block runs, fetched with as few requests as possible, at the same time."""
        wanted = [(begin, min(end, self.size)) for begin, end in merged(ranges)]
        for (begin, _), data in zip(wanted, self._fetch(wanted), strict=True):
            self.hold(begin, data)
        try:
            yield
        finally:
            for begin, _ in wanted:
                self.release(begin)

    def _missing(self, offset: int, size: int) -> memoryview:
        (data,) = self._fetch([(offset, offset + size)])
        return memoryview(data)

    def _fetch(self, ranges: Sequence[Range]) -> list[bytes | bytearray]:
        """The bytes of some ranges within the file, large ones in parts."""
        parts = [(at, min(at + PART, end)) for begin, end in ranges for at in range(begin, end, PART)]
        answers = iter([self._checked(*each) for each in zip(parts, self._ask(parts), strict=True)])
        found: list[bytes | bytearray] = []
        for begin, end in ranges:
            pieces = [next(answers) for _ in range(begin, end, PART)]
            found.append(pieces[0] if len(pieces) == 1 else bytearray().join(pieces))
        return found

    def _checked(self, part: Range, answer: Any) -> bytes:
        """The bytes of a part; what an answer lacks is asked for again, a few times."""
        begin, end = part
        for attempt in range(_ATTEMPTS):
            if isinstance(answer, BaseException):
                with os_errors(self._remote.url):
                    raise answer
            if len(answer) > end - begin:
                raise SourceError(f"{self._remote} must be served in ranges, got {len(answer)} for {end - begin} bytes")
            if len(answer) == end - begin:
                return bytes(answer)
            if attempt < _ATTEMPTS - 1:
                (more,) = self._ask([(begin + len(answer), end)])
                answer = more if isinstance(more, BaseException) else answer + more
        raise TruncatedError(f"a read of {self._remote}", end, begin + len(answer))

    def _ask(self, ranges: Sequence[Range]) -> list[Any]:
        """What the file system gives for some ranges: bytes, or an exception."""
        if not ranges:
            return []
        begins, ends = zip(*ranges, strict=True)
        with self._turn, os_errors(self._remote.url):
            answers: list[Any] = self._remote.fs.cat_ranges(
                [self._remote.path] * len(ranges), list(begins), list(ends), on_error="return"
            )
        return answers


# --- writing ---------------------------------------------------------------------------------------

#: Where a file is written: what `resolve` makes of a path, a URL or a lazy file.
Place = atomic.PathLike | Remote


def same_place(a: Place, b: Place) -> bool:
    """Whether two places are one file, however they are spelled."""
    if isinstance(a, Remote) or isinstance(b, Remote):
        return a == b
    return atomic.same_file(a, b)


def replacing(place: Place) -> AbstractContextManager[BinaryIO]:
    """A file that takes the place of another one, as a whole, if nothing goes wrong."""
    return _replacing_remote(place) if isinstance(place, Remote) else atomic.replacing(place)


@contextmanager
def _replacing_remote(remote: Remote) -> Iterator[BinaryIO]:
    """A file that takes the place of a remote one.

    Raises
    ------
    WriterError
        If it is not known of that kind of file system that a file can be replaced as a whole.
    """
    fs, path = remote.fs, remote.path
    if remote.protocols & _COMMITTED:
        with os_errors(remote.url):
            file = fs.open(path, "wb", autocommit=False)
        try:
            yield file
            with os_errors(remote.url):
                file.close()
                file.commit()
        except BaseException:
            file.closed = True  # otherwise the end of the object's life would upload what it holds
            file.discard()
            raise
    elif remote.protocols & _RENAMED:
        if fs.isdir(path):
            raise IsADirectoryError(f"{remote} is a folder")
        temporary = f"{path}.lynxq-{secrets.token_hex(8)}"
        spool = io.BytesIO()
        yield spool
        with os_errors(remote.url):
            fs.pipe_file(temporary, spool.getvalue())
            try:
                fs.cp_file(temporary, path)
            finally:
                fs.rm_file(temporary)
    else:
        raise WriterError(
            f"{remote} may be seen half written by others: save to a local file and copy it there, "
            f"or save to a file object that you opened"
        )
