"""What all commands share: where they print, progress, and how options become values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from lynxq.errors import LynxqError

#: Results go to standard output, everything else to standard error. Names and messages are never markup.
out = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


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


def size(nbytes: float) -> str:
    """Bytes for people: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def new_file(path: Path, *, force: bool) -> Path:
    """A path to write to; raises `UsageError` if there is a file that is not to be replaced."""
    if path.exists() and not force:
        raise UsageError(f"{path} exists: pass --force to replace it")
    if not path.parent.is_dir():
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
    err.print(Text("lynxq: ", style="bold red") + message, soft_wrap=True)
