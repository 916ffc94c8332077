"""Figures of results; need the extra ``plot``, and :func:`lynxq.plots.save` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lynxq import plots
from lynxq.lab.acceptance_rate import Acceptance
from lynxq.lab.output_quality import Quality
from lynxq.libraries import need


def quality_figure(results: Iterable[Quality]) -> Any:
    """Mean KL against bits per value, one panel for each text.

    Parameters
    ----------
    results : iterable of Quality

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingLibraryError
        If matplotlib or textalloc is not installed.
    ParamsError
        If there is no result.
    """
    panels: dict[str, list[plots.Mark]] = {}
    for line in results:
        mark = plots.Mark(line.method, line.bits_per_element, line.kl_mean, line.tier)
        panels.setdefault(line.text, []).append(mark)
    return plots.draw(
        panels, xlabel="stored bits per element, everything counted", ylabel="mean KL of the next token, nats"
    )


def layers_figure(results: Iterable[Quality]) -> Any:
    """Error of attention outputs in every layer, one panel for each text.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lines = [line for line in results if any(line.layer_attention_errors)]
    texts = list(dict.fromkeys(line.text for line in lines))
    figure, panels = _figure(len(texts))
    for panel, text in zip(panels, texts, strict=False):
        for line in lines:
            if line.text == text:
                panel.plot(line.layer_attention_errors, label=_label(line), marker=".", linewidth=1)
        panel.set(yscale="log", title=text, xlabel="layer")
        panel.grid(visible=True, which="major", alpha=0.3)
        panel.legend(fontsize=7)
    panels[0].set_ylabel("error of attention outputs, ‖o - ô‖² / ‖o‖²")
    return figure


def acceptance_figure(results: Iterable[Acceptance]) -> Any:
    """Share of drafts of which k tokens or more are accepted, over k, as Figure 10 of the paper; a panel for each text.

    Returns
    -------
    matplotlib.figure.Figure
    """
    lines = list(results)
    texts = list(dict.fromkeys(line.text for line in lines))
    figure, panels = _figure(len(texts))
    for panel, text in zip(panels, texts, strict=True):
        for line in lines:
            if line.text == text:
                label = f"{_label(line)}, {line.mean_accepted:.1f} of {line.draft}"
                panel.step(range(line.draft + 1), line.at_least, where="post", label=label)
        panel.set(ylim=(0, 1.02), title=text, xlabel="k")
        panel.grid(visible=True, alpha=0.3)
        panel.legend(fontsize=7)
    panels[0].set_ylabel("P(accepted ≥ k)")
    return figure


def _figure(panels: int) -> tuple[Any, Sequence[Any]]:
    """A figure that no window and no global state knows of."""
    figure = need("matplotlib.figure", "lynxq[plot]").Figure(figsize=(6.4 * max(panels, 1), 4.4), layout="constrained")
    return figure, figure.subplots(1, max(panels, 1), sharey=True, squeeze=False)[0]


def _label(line: Quality | Acceptance) -> str:
    return line.method if line.tier == "-" else f"{line.method}, {line.tier}"
