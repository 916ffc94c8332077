"""Figures of error against bits and against throughput, from the results of peers.py: python bench/plots.py."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from environment import RESULTS

from lynxq import plots
from lynxq.plots import Mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _rows(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Rows of a kind; the second choice of our presets would only crowd the picture."""
    return [row for row in result["rows"] if row["kind"] == kind and not row["peer"].startswith("keys-")]


def _mark(row: dict[str, Any], x: float, error: float) -> Mark:
    """Ours are named after their tier: "pair-anchor", "pair-full"."""
    return Mark(row["label"], x, error, row["peer"].rpartition("-")[2] if row["ours"] else "-")


def error_and_bits(result: dict[str, Any]) -> Figure:
    panels = {
        f"{kind}s": [_mark(row, row["bits_per_element"], row["vnmse"]) for row in _rows(result, kind)]
        for kind in ("key", "value")
    }
    return plots.draw(panels, xlabel="bits per element, everything stored", ylabel="vNMSE")


def error_and_throughput(result: dict[str, Any]) -> Figure:
    """Keys and values together: squared errors over squared norms, and bytes over seconds."""
    pairs = list(zip(_rows(result, "key"), _rows(result, "value"), strict=True))
    nbytes = sum(result["speed_on"][kind]["bytes"] for kind in ("key", "value"))
    panels: dict[str, list[Mark]] = {"encode": [], "decode": []}
    for operation, marks in panels.items():
        for pair in pairs:
            seconds = sum(row[operation]["milliseconds"] for row in pair) / 1e3
            error = sum(row["squared_error"] for row in pair) / sum(row["squared_norm"] for row in pair)
            marks.append(_mark(pair[0], nbytes / seconds / 1e9, error))
    return plots.draw(panels, xlabel="GB/s of bfloat16, one thread", ylabel="vNMSE, keys and values")


FIGURES = {"error-bits": error_and_bits, "error-throughput": error_and_throughput}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="smollm2", help="bench/results/peers-NAME.json is read")
    options = parser.parse_args()
    result = json.loads((RESULTS / f"peers-{options.name}.json").read_text(encoding="utf-8"))
    if any(row["vnmse"] is None for row in result["rows"]):
        raise SystemExit("errors were not measured: on synthetic values they mean nothing")
    for name, draw in FIGURES.items():
        target = RESULTS / f"{name}-{options.name}.png"
        plots.save(target, draw(result))
        print(target)


if __name__ == "__main__":
    main()
