"""What all commands share: where they print, progress, and how options become values."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from lynxq import backends
from lynxq.container.atomic import same_file
from lynxq.errors import LynxqError
from lynxq.urls import hidden, is_url, shown_url

#: Results go to standard output, everything else to standard error. Names and messages are never markup.
out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)

_LINE = 400
_WIDTH = 160
#: Seconds of preparation that are worth a word.
_LONG = 3.0


def set_up() -> None:
    """Make both streams fit for any text, and lines long where no terminal limits them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, who does not want to see anything
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the run
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if not sys.stdout.isatty():
        out.width = _WIDTH


def plain(text: object) -> str:
    """Text from a file or a name, on one line, cut, with nothing that a terminal would obey and no secrets of URLs."""
    safe = shown_url(text) if is_url(text) else hidden(str(text))
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in safe)
    return shown if len(shown) <= _LINE else f"{shown[:_LINE]}…"


class UsageError(LynxqError):
    """An option that does not fit, found after the options were read."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress in bytes: a bar on a terminal, a plain line when done elsewhere.

    Yields
    ------
    callable
        Takes the number of bytes done since its last call.
    """
    title = plain(title)
    if not err.is_terminal:
        yield lambda _: None
        err.print(f"{title}: {size(total)}", soft_wrap=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def prepare(*dtypes: str) -> None:
    """Compile kernels before they are needed, and say so if it takes a while."""
    begin = time.perf_counter()
    with err.status("compiling kernels for this machine, once") if err.is_terminal else nullcontext():
        backends.warmup(*dtypes)
    seconds = time.perf_counter() - begin
    if seconds > _LONG:
        err.print(f"compiled kernels in {seconds:.0f} s; they are kept for the next time", soft_wrap=True)


def size(nbytes: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def new_file(path: Path, *, force: bool, source: Path | None) -> Path:
    """A path to write to; raises `UsageError` if something is there that is not to be replaced, or it is the source."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file: only files can be replaced")
    if path.exists() and not force:
        raise UsageError(f"{path} exists: pass --force to replace it")
    if source is not None and same_file(path, source):
        raise UsageError(f"{path} is the file that is read: write to another one")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder")
    return path


def pairs(items: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` options as a dict."""
    result = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"metadata must be KEY=VALUE, got {item!r}")
        result[key] = value
    return result


def fail(message: str) -> None:
    """Print one line of error."""
    err.print(Text("lynxq: ", style="bold red") + plain(message), soft_wrap=True)
