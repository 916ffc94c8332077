"""What libraries of stores raise, as errors that say what is wrong and show no secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lynxq.errors import LynxqError
from lynxq.urls import hidden, shown_url


@contextmanager
def os_errors(url: str) -> Iterator[None]:
    """Whatever a library raises for a URL, as an `OSError` that says what is wrong: some say nothing but the path."""
    try:
        yield
    except LynxqError:
        raise
    except Exception as error:  # noqa: BLE001 - chained, unless it tells a secret
        raise os_error(url, error) from cause(url, error)


def os_error(url: str, error: Exception) -> OSError:
    """An error of a library as an `OSError` of the nearest kind."""
    causes = [error] if error.__cause__ is None else [error, error.__cause__]
    reasons = [hidden(f"{type(one).__name__}: {one}", url) for one in causes]
    built_in = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    kind = built_in if issubclass(built_in, OSError) else OSError
    said: OSError = kind(": ".join([shown_url(url), *reasons]))
    said.errno = getattr(error, "errno", None)
    return said


def cause(url: str, error: Exception) -> Exception | None:
    """The error itself, for tracebacks, unless it or what led to it would tell a secret there."""
    link: BaseException | None = error
    while link is not None:
        text = f"{link!s} {link!r} {vars(link)}"
        if hidden(text, url) != text:
            return None
        link = link.__cause__ or link.__context__
    return error
