"""A picture of runs: who did what when (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lynxq import plots
from lynxq.container.atomic import PathLike
from lynxq.e2e import methods
from lynxq.e2e.records import Outcome, Span

#: Lanes of a run from top to bottom: who, what, and the name of the lane.
_LANES = (
    (("prefill", "encode"), "encode"),
    (("link", "anchor"), "link"),
    (("link", "residual"), "link"),
    (("decode", "fill anchor"), "decode pages"),
    (("decode", "fill residual"), "decode pages"),
    (("decode", "wait"), "model"),
    (("decode", "draft"), "model"),
    (("decode", "revise"), "model"),
    (("decode", "verify"), "model"),
    (("decode", "step"), "model"),
    (("decode", "lookup"), "model"),
)
_COLORS = {
    "encode": "#7f7f7f",
    "anchor": "#1f77b4",
    "residual": "#aec7e8",
    "fill anchor": "#1f77b4",
    "fill residual": "#aec7e8",
    "wait": "#eeeeee",
    "draft": "#ff7f0e",
    "revise": "#9467bd",
    "verify": "#d62728",
    "step": "#2ca02c",
    "lookup": "#17becf",
}
_NAMES = {"anchor": "first stream, or all", "fill anchor": None, "fill residual": None}


def draw(outcomes: Sequence[Outcome], path: PathLike, *, title: str = "") -> None:
    """Draw runs below each other on one axis of time, and save the picture.

    Parameters
    ----------
    outcomes : sequence of Outcome
    path : path
        Its ending says the format.
    title : str

    Raises
    ------
    MissingLibraryError, ParamsError, OSError
        As for :func:`lynxq.plots.save`.
    """
    plots.image_format(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    lanes = ("encode", "link", "decode pages", "model")
    figure = Figure(figsize=(11, 0.6 + 1.25 * len(outcomes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
    end = max((max([s.end for s in o.spans], default=0.0) for o in outcomes), default=1.0)
    for axis, outcome in zip(axes, outcomes, strict=True):
        for (actor, what), lane in _LANES:
            place = len(lanes) - lanes.index(lane) - 1
            found = [s for s in outcome.spans if (s.actor, s.what) == (actor, what)]
            bars = [(s.begin, max(s.end - s.begin, 0.001 * end)) for s in _joined(found, what)]
            axis.broken_barh(bars, (place - 0.4, 0.8), facecolors=_COLORS[what], edgecolor="white", linewidth=0.3)
        for at, text in ((outcome.first_drafted, "first token"), (outcome.first_final, "first final")):
            if at is not None and not (text == "first token" and at == outcome.first_final):
                axis.axvline(at, color="black", linewidth=0.8, linestyle=":" if text == "first token" else "-")
        axis.set_yticks(range(len(lanes)), reversed(lanes), fontsize=7)
        axis.set_ylim(-0.6, len(lanes) - 0.4)
        axis.set_title(_heading(outcome), fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlim(0, end * 1.01)
    axes[-1].set_xlabel("seconds since the request; dotted: first drafted token, solid: first final token")
    entries = [(w, _NAMES.get(w, w)) for w in _COLORS]
    figure.legend(
        handles=[Patch(color=_COLORS[what], label=name) for what, name in entries if name],
        loc="outside lower center", ncols=len(entries), fontsize=8, frameon=False,
    )  # fmt: skip
    if title:
        figure.suptitle(title, fontsize=10)
    plots.save(path, figure)


def _heading(outcome: Outcome) -> str:
    name = methods.of(outcome.job).title
    drafted = f", {outcome.accepted} of {outcome.drafted} drafted tokens kept" if outcome.drafted else ""
    drafted += f", {outcome.kept} of {outcome.proposed} looked up" if outcome.proposed else ""
    return f"{name}: {(outcome.anchor_bytes + outcome.residual_bytes) / 1e6:.1f} MB{drafted}"


def _joined(spans: Sequence[Span], what: str) -> list[Span]:
    """Spans in order; those of work on pages put together where nothing visible is between them."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda one: one.begin):
        if what.startswith(("fill", "encode")) and result and span.begin - result[-1].end < 0.002:
            result[-1] = Span(actor=span.actor, what=what, begin=result[-1].begin, end=max(span.end, result[-1].end))
        else:
            result.append(span)
    return result
