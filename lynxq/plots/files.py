"""Figures in files, and the libraries that pictures need."""

from __future__ import annotations

from io import BytesIO
from pathlib import PurePath
from typing import TYPE_CHECKING

from lynxq.arguments import shown
from lynxq.container.atomic import PathLike, replacing
from lynxq.errors import MissingLibraryError, ParamsError
from lynxq.libraries import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def image_format(path: PathLike) -> str:
    """Name of the format that a file's suffix asks for, such as "png".

    Parameters
    ----------
    path : path

    Raises
    ------
    MissingLibraryError
        If matplotlib or textalloc is not installed.
    ParamsError
        If matplotlib does not write such files.

    Examples
    --------
    >>> from lynxq import plots
    >>> plots.image_format("errors.PNG")
    'png'
    """
    require()
    from matplotlib.backend_bases import FigureCanvasBase

    suffix = PurePath(path).suffix.lower().removeprefix(".")
    known = FigureCanvasBase.get_supported_filetypes()
    if suffix not in known:
        raise ParamsError(f"a picture's name must end in one of {', '.join(sorted(known))}, got {shown(str(path))}")
    return suffix


def save(path: PathLike, figure: Figure) -> None:
    """Write a figure to a file whose suffix says the format; an old file is replaced when the new one is whole.

    Parameters
    ----------
    path : path
    figure : matplotlib.figure.Figure
        One figure gives one file in PNG and PDF: versions and dates are left out.

    Raises
    ------
    MissingLibraryError
        If matplotlib or textalloc is not installed, or a program that the format needs.
    ParamsError
        If matplotlib does not write such files.
    OSError
        If the file cannot be written.
    """
    kind = image_format(path)
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}}.get(kind)
    image = BytesIO()
    try:
        figure.savefig(image, format=kind, dpi=150, metadata=metadata)
    except RuntimeError as error:  # such as TeX for pgf
        raise MissingLibraryError(f"a picture in the format {kind!r} needs what is not there: {error}") from None
    with replacing(path) as file:
        file.write(image.getbuffer())


def require() -> None:
    """Raise `MissingLibraryError` unless all libraries that pictures need are there."""
    for library in ("matplotlib", "textalloc"):
        need(library, "lynxq[plot]")
