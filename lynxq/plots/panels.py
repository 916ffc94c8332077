"""Panels of marks on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, get_args

from lynxq.errors import ParamsError
from lynxq.plots.files import require
from lynxq.plots.marks import FONT, GRID, INK, PALE, STYLES, Mark, Tier, draw_labels, draw_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: More marks than this in a panel need the width of the page.
_CROWD = 18


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
    require()
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
        axes.set_title(name, loc="left", fontsize=11, color=INK, parse_math=False)
        axes.set_xlabel(xlabel, color=INK, parse_math=False)
        axes.set(xscale="log", yscale="log", xlim=limits)
        _axes(axes)
        placed.append((axes, draw_marks(axes, marks)))
    for axes in figure.axes if crowded else figure.axes[:1]:
        axes.set_ylabel(ylabel, color=INK, parse_math=False)
    if title:
        title = fill(title, round(9 * size[0]))  # as many letters as an inch has room for
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK, parse_math=False)
    _legend(figure, {mark.tier for marks in panels.values() for mark in marks})
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed by what is where now
    for axes, heights in placed:
        draw_labels(axes, heights)
    return figure


def _with_air(low: float, high: float) -> tuple[float, float]:
    """Limits of a logarithmic axis that leave labels room."""
    air = math.exp(0.1 * math.log(high / low) + 0.06)
    return low / air, high * air


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
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=PALE, labelcolor=INK)
    for side, spine in axes.spines.items():
        spine.set(visible=side in {"left", "bottom"}, color=PALE)


def _legend(figure: Figure, tiers: set[Tier]) -> None:
    from matplotlib.lines import Line2D

    styles = [STYLES[tier] for tier in get_args(Tier) if tier in tiers]
    handles = [
        Line2D([], [], linestyle="", marker=marker, ms=size, mfc=face, mec=edge, label=label)
        for marker, size, face, edge, label in styles
    ]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=3, frameon=False, fontsize=FONT, labelcolor=INK
    )  # fmt: skip
