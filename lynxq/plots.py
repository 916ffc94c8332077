"""Pictures of error against what it costs: the rows of :func:`lynxq.evaluate.evaluate` as a matplotlib figure.

Needs ``pip install 'lynxq[plot]'``. Nothing here touches pyplot or matplotlib's settings, so figures can be made in
any thread and without a display; colours are set one by one, so that a dark style of the caller does not change them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePath
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, get_args

from lynxq.arguments import choice, shown
from lynxq.errors import MissingLibraryError, ParamsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lynxq.container.atomic import PathLike
    from lynxq.evaluate import Row

__all__ = ["Mark", "draw", "error_against_bits", "image_format", "save"]

Tier = Literal["anchor", "full", "-"]
Error = Literal["vnmse", "centred_vnmse", "max_error"]

_ERRORS = {"vnmse": "vNMSE", "centred_vnmse": "centred vNMSE", "max_error": "largest error"}
_PANELS = {"key": "keys", "value": "values", "other": "other tensors"}

_INK, _PALE, _GRID = "#334155", "#64748b", "#e2e8f0"
_OURS = "#c2410c"
#: Marker, size, face, edge and legend of a tier: shapes differ, so that no colour is needed.
_STYLES: dict[Tier, tuple[str, float, str, str, str]] = {
    "anchor": ("^", 8.0, _OURS, "white", "lynxq, anchor alone"),
    "full": ("o", 7.5, _OURS, "white", "lynxq, anchor and residual"),
    "-": ("s", 5.0, "white", _INK, "other schemes"),
}
_FONT = 8.5
#: Marks closer than this many points share a label.
_SAME = 2.5
#: Letters in a line of a label; one that is wider than its panel would have no place.
_WIDEST = 48
#: Heights that lossless marks take in turn, to leave each other's labels room.
_STEPS = 3
#: More marks than this in a panel need the width of the page.
_CROWD = 18


@dataclass(frozen=True)
class Mark:
    """A point of a panel.

    Parameters
    ----------
    label : str
        What is written beside it. Marks at one place share a label.
    x : float
        What the error costs, such as bits per element; positive.
    error : float
        0 puts the mark into the strip of lossless ones, where height means nothing.
    tier : {"anchor", "full", "-"}
        Decides the marker; "-" is for whatever is not lynxq's.
    """

    label: str
    x: float
    error: float
    tier: Tier = "-"


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


def draw(panels: Mapping[str, Sequence[Mark]], *, xlabel: str, ylabel: str, title: str = "") -> Figure:
    """Draw marks on logarithmic axes, labelled so that labels keep clear of each other and of marks.

    Parameters
    ----------
    panels : mapping of str to sequence of Mark
        Titles and marks of the panels: side by side, or one below the other where marks crowd.
    xlabel, ylabel, title : str
        Plain text.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingLibraryError
        If matplotlib or textalloc is not installed.
    ParamsError
        If there is no mark.

    Examples
    --------
    >>> from lynxq import plots
    >>> marks = [plots.Mark("fast", 2.0, 1e-2), plots.Mark("exact", 9.0, 0.0), plots.Mark("ours", 5.0, 1e-4, "full")]
    >>> figure = plots.draw({"encode": marks}, xlabel="GB/s", ylabel="vNMSE")
    >>> len(figure.axes)
    1
    """
    _require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not any(panels.values()):
        raise ParamsError("a picture needs at least one row, got none")
    crowded = max(map(len, panels.values())) > _CROWD
    size = (11.0, 5.8 * len(panels)) if crowded else (6.5 * len(panels), 5.0)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # measures text, whatever shows the figure later
    every = figure.subplots(*((len(panels), 1) if crowded else (1, len(panels))), squeeze=False).flat
    costs = [mark.x for marks in panels.values() for mark in marks if mark.x > 0] or [1.0]
    limits = _with_air(min(costs), max(costs))
    placed = []
    for axes, (name, marks) in zip(every, panels.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=11, color=_INK, parse_math=False)
        axes.set_xlabel(xlabel, color=_INK, parse_math=False)
        axes.set(xscale="log", xlim=limits)
        placed.append((axes, _marks(axes, marks)))
    for axes in figure.axes if crowded else figure.axes[:1]:
        axes.set_ylabel(ylabel, color=_INK, parse_math=False)
    if title:
        title = fill(title, round(9 * size[0]))  # as many letters as an inch has room for
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK, parse_math=False)
    _legend(figure, {mark.tier for marks in panels.values() for mark in marks})
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed by what is where now
    for axes, heights in placed:
        _labels(axes, heights)
    return figure


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
    _require()
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
        If matplotlib or textalloc is not installed.
    ParamsError
        If matplotlib does not write such files.
    OSError
        If the file cannot be written.
    """
    from lynxq.container.atomic import replacing

    kind = image_format(path)
    metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}}.get(kind)
    image = BytesIO()
    figure.savefig(image, format=kind, dpi=150, metadata=metadata)
    with replacing(path) as file:
        file.write(image.getbuffer())


def _with_air(low: float, high: float) -> tuple[float, float]:
    """Limits of a logarithmic axis that leave labels room."""
    air = math.exp(0.1 * math.log(high / low) + 0.06)
    return low / air, high * air


def _require() -> None:
    try:
        import matplotlib as mpl
        import textalloc
    except ImportError as error:
        raise MissingLibraryError(f"pictures need the library {error.name}: pip install 'lynxq[plot]'") from None
    del mpl, textalloc


def _marks(axes: Axes, marks: Sequence[Mark]) -> list[tuple[Mark, float]]:
    """Draw the marks, and tell at which heights; lossless ones are in a strip at the bottom."""
    from matplotlib.ticker import NullLocator

    drawn = [mark for mark in marks if mark.x > 0 and math.isfinite(mark.error)]
    lossy = [mark.error for mark in drawn if mark.error > 0]
    low, high = (min(lossy), max(lossy)) if lossy else (1.0, 1.0)
    lossless = sorted((mark for mark in drawn if mark.error == 0), key=lambda mark: mark.x)
    strip = low / 3
    heights = {id(mark): strip / 2.2 ** (1 + number % _STEPS) for number, mark in enumerate(lossless)}
    bottom = strip / 2.2 ** (1 + min(len(lossless), _STEPS)) if lossless else strip
    axes.set(yscale="log", ylim=(bottom, high * 3))
    _axes(axes)
    if high > 30 * low:
        axes.yaxis.set_minor_locator(NullLocator())
    if lossless:
        axes.axhline(strip, color=_PALE, linewidth=0.6, linestyle=(0, (4, 3)))
        axes.text(
            0.01, strip / 1.2, "lossless", transform=axes.get_yaxis_transform(), va="top", fontsize=7, color=_PALE
        )
        axes.set_yticks([tick for tick in axes.get_yticks() if strip < tick < high * 3])
    missing = [mark.label for mark in marks if mark not in drawn]
    if missing:
        note = f"not drawn, the error is infinite or nothing is stored: {', '.join(missing)}"
        axes.text(0.99, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=_PALE)
    placed = [(mark, heights.get(id(mark), mark.error)) for mark in drawn]
    for mark, height in placed:
        marker, points, face, edge, _ = _STYLES[mark.tier]
        axes.plot(
            mark.x, height, marker, ms=points, mfc=face, mec=edge, mew=1.0, zorder=2 if mark.tier == "-" else 3
        )  # fmt: skip
    return placed


def _axes(axes: Axes) -> None:
    """Plain numbers below, a light grid, and no frame above or on the right."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    left, right = axes.get_xlim()
    steps = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8) if right < 12 * left else (1, 2, 5)
    decades = range(math.floor(math.log10(left)), math.ceil(math.log10(right)))
    ticks = [step * 10.0**power for power in decades for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if left <= tick <= right]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_facecolor("white")
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=_PALE, labelcolor=_INK)
    for side, spine in axes.spines.items():
        spine.set(visible=side in {"left", "bottom"}, color=_PALE)


def _legend(figure: Figure, tiers: set[Tier]) -> None:
    from matplotlib.lines import Line2D

    styles = [_STYLES[tier] for tier in get_args(Tier) if tier in tiers]
    handles = [
        Line2D([], [], linestyle="", marker=marker, ms=size, mfc=face, mec=edge, label=label)
        for marker, size, face, edge, label in styles
    ]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=3, frameon=False, fontsize=_FONT, labelcolor=_INK
    )  # fmt: skip


def _labels(axes: Axes, placed: Sequence[tuple[Mark, float]]) -> None:
    """One label for all marks at a place; lynxq's first, so that they lie closest to their marks."""
    import textalloc

    if not placed:
        return
    groups = _at_one_place(placed, lambda x, y: tuple(axes.transData.transform((x, y)) * 72 / axes.figure.dpi))
    groups.sort(key=lambda group: group[0][0].tier == "-")
    ours = [group[0][0].tier != "-" for group in groups]
    allocate: Any = textalloc.allocate  # its annotations do not fit what it takes
    allocate(
        axes,
        [group[0][0].x for group in groups],
        [group[0][1] for group in groups],
        [fill(", ".join(dict.fromkeys(mark.label for mark, _ in group)), _WIDEST) for group in groups],
        x_scatter=[mark.x for mark, _ in placed],
        y_scatter=[height for _, height in placed],
        scatter_sizes=[(_STYLES[mark.tier][1] / 2 + 0.5) * axes.figure.dpi / 72 for mark, _ in placed],  # pixels
        textsize=_FONT,
        textcolor=[_OURS if emphasised else _INK for emphasised in ours],
        fontweight=["bold" if emphasised else "normal" for emphasised in ours],
        linecolor="#94a3b8",
        linewidth=0.6,
        margin=0.002,
        min_distance=0.008,
        max_distance=0.3,
        nbr_candidates=600,
        avoid_label_lines_overlap=True,
        parse_math=False,
    )


def _at_one_place(
    placed: Sequence[tuple[Mark, float]], points: Callable[[float, float], tuple[float, ...]]
) -> list[list[tuple[Mark, float]]]:
    """Marks of one tier that lie on each other, in points of the page."""
    groups: list[list[tuple[Mark, float]]] = []
    for mark, height in placed:
        for group in groups:
            first, at = group[0]
            if first.tier == mark.tier and math.dist(points(first.x, at), points(mark.x, height)) < _SAME:
                group.append((mark, height))
                break
        else:
            groups.append([(mark, height)])
    return groups
