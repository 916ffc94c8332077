"""Figures of the ablation: error against bits with the bounds of theory, and error against α."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import rate_distortion
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results_tables import front, of_factor, point

OURS, THEIRS, IDEAS = "#c2410c", "#334155", "#0f766e"
_KINDS = {"key": "keys", "value": "values"}
_ERRORS = {"centred_vnmse": "centred vNMSE", "kl": "KL of the next token, nats"}
_BOUNDS = {"gaussian": "#64748b", "laplacian": "#94a3b8"}


def _bounds(axes: Axes, low: float, high: float) -> None:
    """What theory says for independent values of one distribution: the least error, and that of the best quantizer."""
    rates = np.linspace(low, high, 60)
    for name, color in _BOUNDS.items():
        curve = [rate_distortion.shannon(name, rate) for rate in rates]
        axes.plot(rates, curve, color=color, linewidth=1, linestyle="--", label=f"Shannon, {name}")
        bits = [b for b in range(2, 7) if low <= b <= high]
        values = [rate_distortion.lloyd_max(name, b).distortion for b in bits]
        axes.plot(bits, values, "D", color=color, markersize=4, markerfacecolor="none", label=f"Lloyd-Max, {name}")


def _panel(axes: Axes, rows: list[dict[str, Any]], error: str) -> None:
    groups = {
        "lynxq": (OURS, "o", [row for row in rows if "params" in row]),
        "baselines": (THEIRS, "s", [row for row in rows if "scheme" in row and row["scheme"][:10] != "two-scales"]),
        "two scales": (IDEAS, "^", [row for row in rows if row.get("scheme", "")[:10] == "two-scales"]),
    }
    for label, (color, marker, own) in groups.items():
        points = [found for found in map(point, own) if error in found]
        axes.plot(
            [p["bits"] for p in points], [p[error] for p in points], marker,
            color=color, markersize=4, alpha=0.55, linestyle="none", label=label,
        )  # fmt: skip
    best = front(groups["lynxq"][2], error)
    axes.step([row["bits"] for row in best], [row[error] for row in best], where="post", color=OURS, linewidth=1)
    axes.set_yscale("log")
    axes.set_xlim(3, 6.6)
    axes.grid(color="#e2e8f0", linewidth=0.6)
    axes.set_axisbelow(True)


def against_bits(result: Mapping[str, Any]) -> Figure:
    """All that was measured: a row of panels for a kind, a column for an error."""
    figure, panels = plt.subplots(2, 2, figsize=(12, 9), layout="constrained", sharex=True)
    for line, (kind, title) in zip(panels, _KINDS.items(), strict=True):
        rows = [row for row in result["rows"] if row["kind"] == kind]
        for axes, (error, label) in zip(line, _ERRORS.items(), strict=True):
            _panel(axes, rows, error)
            axes.set_title(title)
            axes.set_ylabel(label)
            if error == "centred_vnmse":
                _bounds(axes, 3, 6.6)
    for axes in panels[-1]:
        axes.set_xlabel("bits per element, everything stored")
    panels[0, 0].legend(fontsize=8)
    return figure


def against_alpha(result: Mapping[str, Any]) -> Figure:
    """The sweep of α, relative to the best."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 4), layout="constrained", sharey=True)
    names = {"centred_vnmse": "centred vNMSE, anchor", "full_centred_vnmse": "centred vNMSE, full", "kl": "KL, anchor"}
    for axes, (kind, title) in zip(panels, _KINDS.items(), strict=True):
        rows = sorted(((float(setting), row) for setting, row in of_factor(result, kind, "alpha")), key=lambda r: r[0])
        for (name, label), color in zip(names.items(), (OURS, IDEAS, THEIRS), strict=True):
            measured = [(alpha, row[name]) for alpha, row in rows if name in row]
            if not measured:
                continue
            values = np.array([value for _, value in measured])
            axes.plot(
                [alpha for alpha, _ in measured], values / values.min(), "o-", color=color, markersize=3, label=label
            )
        axes.set(xscale="symlog", yscale="log", title=title, xlabel="α")
        axes.set_xscale("symlog", linthresh=0.5)
        axes.grid(color="#e2e8f0", linewidth=0.6)
    panels[0].set_ylabel("error, times the least")
    panels[0].legend(fontsize=8)
    return figure


def save(result: Mapping[str, Any], folder: Path, name: str) -> None:
    """Draw all figures."""
    mpl.use("Agg")
    for what, draw in (("bits", against_bits), ("alpha", against_alpha)):
        figure = draw(result)
        path = folder / f"ablation-{what}-{name}.png"
        figure.savefig(path, dpi=110, metadata={"Software": None})
        plt.close(figure)
        print(path)
