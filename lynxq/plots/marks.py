"""Marks of a panel: what they are, how they look, and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tier = Literal["anchor", "full", "-"]

INK, PALE, GRID = "#334155", "#64748b", "#e2e8f0"
OURS = "#c2410c"
FONT = 8.5
#: Marks closer than this many points share a label.
_SAME = 2.5
#: Letters in a line of a label; one that is wider than its panel would have no place.
_WIDEST = 48
#: Heights that lossless marks take in turn, to leave each other's labels room.
_STEPS = 3


class Style(NamedTuple):
    """How marks of a tier look; shapes differ, so that no colour is needed."""

    marker: str
    size: float
    face: str
    edge: str
    legend: str


STYLES: dict[Tier, Style] = {
    "anchor": Style("^", 8.0, OURS, "white", "lynxq, anchor alone"),
    "full": Style("o", 7.5, OURS, "white", "lynxq, anchor and residual"),
    "-": Style("s", 5.0, "white", INK, "other schemes"),
}


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


def draw_marks(axes: Axes, marks: Sequence[Mark]) -> list[tuple[Mark, float]]:
    """Draw the marks, and tell at which heights; lossless ones are in a strip at the bottom."""
    from matplotlib.ticker import NullLocator

    drawn = [mark for mark in marks if mark.x > 0 and math.isfinite(mark.error)]
    lossy = [mark.error for mark in drawn if mark.error > 0]
    low, high = (min(lossy), max(lossy)) if lossy else (1.0, 1.0)
    lossless = sorted((mark for mark in drawn if mark.error == 0), key=lambda mark: mark.x)
    strip = low / 3
    heights = {id(mark): strip / 2.2 ** (1 + number % _STEPS) for number, mark in enumerate(lossless)}
    bottom = strip / 2.2 ** (1 + min(len(lossless), _STEPS)) if lossless else strip
    axes.set_ylim(bottom, high * 3)
    if high > 30 * low:
        axes.yaxis.set_minor_locator(NullLocator())
    if lossless:
        axes.axhline(strip, color=PALE, linewidth=0.6, linestyle=(0, (4, 3)))
        axes.text(0.01, strip / 1.2, "lossless", transform=axes.get_yaxis_transform(), va="top", fontsize=7, color=PALE)
        axes.set_yticks([tick for tick in axes.get_yticks() if strip < tick < high * 3])
    missing = [mark.label for mark in marks if mark not in drawn]
    if missing:
        note = f"not drawn, the error is infinite or nothing is stored: {', '.join(missing)}"
        axes.text(0.99, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=PALE)
    placed = [(mark, heights.get(id(mark), mark.error)) for mark in drawn]
    for mark, height in placed:
        marker, points, face, edge, _ = STYLES[mark.tier]
        axes.plot(
            mark.x, height, marker, ms=points, mfc=face, mec=edge, mew=1.0, zorder=2 if mark.tier == "-" else 3
        )  # fmt: skip
    return placed


def draw_labels(axes: Axes, placed: Sequence[tuple[Mark, float]]) -> None:
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
        scatter_sizes=[(STYLES[mark.tier].size / 2 + 0.5) * axes.figure.dpi / 72 for mark, _ in placed],  # pixels
        textsize=FONT,
        textcolor=[OURS if emphasised else INK for emphasised in ours],
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
