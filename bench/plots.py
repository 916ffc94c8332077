"""Figures of error against bits and against throughput, from the results of peers.py: python bench/plots.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import matplotlib as mpl
from environment import RESULTS
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

OURS, THEIRS = "#c2410c", "#334155"


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


#: Where a label may be, in points from its mark, best first, and how it is aligned there.
_PLACES = [
    (x * far, y * far, ("center", "left", "right")[_sign(x)], ("center", "bottom", "top")[_sign(y)])
    for far in (1.0, 2.0, 3.2)
    for x, y in ((6, 0), (-6, 0), (4, 4), (4, -4), (-4, 4), (-4, -4), (0, 6), (0, -6))
]
_BITS = (4, 5, 6, 8, 10, 12, 16)
_SPEEDS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)


class Mark(NamedTuple):
    """A scheme in a panel; without error, it is lossless."""

    label: str
    x: float
    error: float
    ours: bool


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Area that two boxes (left, bottom, right, top) share."""
    return max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)


def _place_labels(axes: Axes, marks: list[tuple[Mark, float]]) -> None:
    """Each label where it covers least of what is there already."""
    renderer = axes.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    points = [axes.transData.transform((mark.x, y)) for mark, y in marks]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    frame = axes.get_window_extent(renderer).extents

    def candidates(mark: Mark, y: float) -> Iterator[tuple[float, tuple[float, ...], Annotation]]:
        for dx, dy, ha, va in _PLACES:
            text = axes.annotate(
                mark.label,
                (mark.x, y),
                (dx, dy),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=8,
                color=OURS if mark.ours else THEIRS,
                fontweight="bold" if mark.ours else "normal",
            )
            box = tuple(text.get_window_extent(renderer).padded(1.5).extents)
            outside = (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, frame)
            yield sum(_overlap(box, other) for other in taken) + outside, box, text
            text.remove()

    for mark, y in sorted(marks, key=lambda item: not item[0].ours):
        _, box, text = min(candidates(mark, y), key=lambda choice: choice[0])
        axes.add_artist(text)
        taken.append(box)


def _panel(axes: Axes, title: str, marks: list[Mark], ticks: tuple[float, ...]) -> None:
    """Marks on logarithmic axes; those without error in a strip at the bottom, where height means nothing."""
    lossy = [mark.error for mark in marks if mark.error]
    lossless = [mark for mark in marks if not mark.error]
    strip = min(lossy) / 3 if lossless else 0.0
    heights = {
        mark: strip / (2, 5, 12)[number % 3] for number, mark in enumerate(sorted(lossless, key=attrgetter("x")))
    }
    placed = [(mark, mark.error or heights[mark]) for mark in marks]
    axes.set(xscale="log", yscale="log", title=title, ylim=(strip / 24 or min(lossy) / 3, max(lossy) * 3))
    low, high = min(mark.x for mark in marks), max(mark.x for mark in marks)
    axes.set_xlim(low / 1.2, high * 1.15) if ticks is _BITS else axes.set_xlim(low / 1.6, high * 2)
    axes.xaxis.set_major_locator(
        FixedLocator([tick for tick in ticks if axes.get_xlim()[0] < tick < axes.get_xlim()[1]])
    )
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(
        [10.0**power for power in range(-12, 3) if max(strip, axes.get_ylim()[0]) < 10.0**power < max(lossy) * 3]
    )
    axes.grid(color="#e2e8f0", linewidth=0.6)
    axes.set_axisbelow(True)
    if lossless:
        axes.axhline(strip, color="#94a3b8", linewidth=0.6, linestyle=(0, (4, 3)))
        axes.annotate(
            "lossless", (0, strip), (4, -3), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="top", fontsize=7, color="#64748b",
        )  # fmt: skip
    for mark, y in placed:
        axes.plot(
            mark.x, y, "o" if mark.ours else "s", color=OURS if mark.ours else THEIRS, ms=5.5, zorder=2 + mark.ours
        )
    _place_labels(axes, placed)


def _rows(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Rows of a kind; the second choice of our presets would only crowd the picture."""
    return [row for row in result["rows"] if row["kind"] == kind and not row["peer"].startswith("keys-")]


def error_and_bits(result: dict[str, Any]) -> plt.Figure:
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    figure.canvas.draw()
    for axes, kind in zip(panels, ("key", "value"), strict=True):
        marks = [Mark(row["label"], row["bits_per_element"], row["vnmse"], row["ours"]) for row in _rows(result, kind)]
        axes.set_xlabel("bits per element, everything stored")
        _panel(axes, f"{kind}s", marks, _BITS)
    panels[0].set_ylabel("vNMSE")
    return figure


def error_and_throughput(result: dict[str, Any]) -> plt.Figure:
    """Keys and values together: squared errors over squared norms, and bytes over seconds."""
    pairs = list(zip(_rows(result, "key"), _rows(result, "value"), strict=True))
    sizes = [result["speed_on"][kind]["bytes"] for kind in ("key", "value")]
    figure, panels = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    figure.canvas.draw()
    for axes, operation in zip(panels, ("encode", "decode"), strict=True):
        marks = []
        for pair in pairs:
            seconds = sum(row[operation]["milliseconds"] for row in pair) / 1e3
            error = sum(row["squared_error"] for row in pair) / sum(row["squared_norm"] for row in pair)
            marks.append(Mark(pair[0]["label"], sum(sizes) / seconds / 1e9, error, pair[0]["ours"]))
        axes.set_xlabel("GB/s of bfloat16, one thread")
        _panel(axes, operation, marks, _SPEEDS)
    panels[0].set_ylabel("vNMSE, keys and values")
    return figure


FIGURES = {"error-bits": error_and_bits, "error-throughput": error_and_throughput}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="smollm2", help="bench/results/peers-NAME.json is read")
    options = parser.parse_args()
    result = json.loads((RESULTS / f"peers-{options.name}.json").read_text(encoding="utf-8"))
    if any(row["vnmse"] is None for row in result["rows"]):
        raise SystemExit("errors were not measured: on synthetic values they mean nothing")
    mpl.use("agg")
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    for name, draw in FIGURES.items():
        target = RESULTS / f"{name}-{options.name}.png"
        # Without the version that matplotlib writes there, equal results give equal files.
        draw(result).savefig(target, dpi=150, metadata={"Software": None})
        print(target)


if __name__ == "__main__":
    main()
