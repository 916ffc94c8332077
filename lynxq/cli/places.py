"""Where commands read containers: local files, which must be there, and URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lynxq.urls import is_url


def _place(text: str) -> str | Path:
    """A URL as it is, or the path of a file; raises `BadParameter` if there is no such file."""
    if is_url(text):
        return text
    path = Path(text)
    if path.is_dir():
        raise typer.BadParameter(f"File '{text}' is a directory.")
    if not path.exists():
        raise typer.BadParameter(f"File '{text}' does not exist.")
    return path


Container = Annotated[Path, typer.Argument(help="container (.lynx): a file or a URL", metavar="SOURCE", parser=_place)]
Residual = Annotated[
    Path | None,
    typer.Option(help="residual file of a split container: a file or a URL", metavar="SOURCE", parser=_place),
]
