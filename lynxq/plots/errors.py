"""Rows of :func:`lynxq.evaluate.evaluate` as panels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from lynxq.arguments import choice
from lynxq.plots.marks import Mark
from lynxq.plots.panels import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lynxq.evaluate import Row

Error = Literal["vnmse", "centred_vnmse", "max_error"]

_ERRORS = {"vnmse": "vNMSE", "centred_vnmse": "centred vNMSE", "max_error": "largest error"}
_PANELS = {"key": "keys", "value": "values", "other": "other tensors"}


def error_against_bits(rows: Iterable[Row], *, error: Error = "vnmse", title: str = "") -> Figure:
    """Draw the error of methods against the bits that they store, keys and values in panels of their own.

    Parameters
    ----------
    rows : iterable of Row
        As :func:`lynxq.evaluate.evaluate` gives them.
    error : {"vnmse", "centred_vnmse", "max_error"}
        The attribute on the vertical axis, which is logarithmic. What is lossless lies in a strip below it; what
        cannot be drawn (an infinite error, tensors without values) is named in a note.
    title : str
        Plain text.

    Returns
    -------
    matplotlib.figure.Figure
        Made without pyplot: a notebook shows it as the last value of a cell after ``%matplotlib inline``,
        :func:`save` writes it.

    Raises
    ------
    MissingLibraryError
        If matplotlib or textalloc is not installed.
    ParamsError
        If there is no row, or `error` is not one of the choices.

    Examples
    --------
    >>> from lynxq import plots, synthetic
    >>> from lynxq.evaluate import evaluate
    >>> rows = evaluate(synthetic.cache(256, pathologies=["bias"]), ["pair", "int8", "int4"], token_axis=0)
    >>> figure = plots.error_against_bits(rows, title="a made-up cache")
    >>> [axes.get_title("left") for axes in figure.axes]
    ['keys, 1 tensor', 'values, 1 tensor']
    """
    choice("error", error, Error)
    panels: dict[str, list[Mark]] = {}
    found = list(rows)
    for kind, plural in _PANELS.items():
        of_kind = [row for row in found if row.kind == kind]
        if of_kind:
            count = max(row.tensors for row in of_kind)
            panels[f"{plural}, {count} tensor{'s' if count > 1 else ''}"] = [
                Mark(row.method, row.bits_per_element, getattr(row, error), row.tier) for row in of_kind
            ]
    return draw(panels, xlabel="stored bits per element, everything counted", ylabel=_ERRORS[error], title=title)
