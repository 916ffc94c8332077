"""Speed of our own operations against a plain copy: python bench/throughput.py [--quick].

Every measurement is taken in turn with `np.copyto` of the same array, in one process, with warm buffers and `out=`;
what is reported is the median of the ratios' parts, so that a machine that is slow for a while is so for both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from environment import RESULTS, environment

import lynxq
from lynxq import Params, backends


class Shape(NamedTuple):
    """Keys or values of one layer: a model, its heads and head dimension, and the order of axes."""

    model: str
    heads: int
    head_dim: int
    order: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.heads}×{self.head_dim}, {self.order}"

    def dims(self, tokens: int) -> tuple[tuple[int, ...], int]:
        """Shape of a tensor and its token axis."""
        if self.order == "HND":
            return (self.heads, tokens, self.head_dim), 1
        return (tokens, self.heads, self.head_dim), 0


_MODELS = (
    ("Llama-3-8B", 8, 128),
    ("Qwen3-32B", 8, 128),
    ("Qwen3-235B", 4, 128),
    ("SmolLM2-135M", 3, 64),
)
SHAPES = (
    *(Shape(*model, order) for model in _MODELS for order in ("NHD", "HND")),
    Shape("DeepSeek MLA", 1, 576, "NHD"),
)
PRESETS = {"keys": Params.keys(), "values": Params.values()}
Operation = Callable[[], object]


def interleaved(operations: dict[str, Operation], copy: Operation, rounds: int) -> dict[str, dict[str, float]]:
    """Median times of operations and of the copies made just before each of them, in seconds."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in operations}
    for _ in range(rounds + 1):
        for name, operation in operations.items():
            start = time.perf_counter()
            copy()
            middle = time.perf_counter()
            operation()
            end = time.perf_counter()
            times[name][0].append(middle - start)
            times[name][1].append(end - middle)
    result = {}
    for name, (copies, own) in times.items():
        base, taken = statistics.median(copies[1:]), sorted(own[1:])  # the first round warms the buffers
        spread = taken[3 * len(taken) // 4] - taken[len(taken) // 4]
        result[name] = {"seconds": statistics.median(taken), "iqr": spread, "copy": base}
    return result


def measure(shape: Shape, tokens: int, threads: int, rounds: int, backend: str) -> list[dict[str, Any]]:
    """All operations on a tensor of a shape, for both presets."""
    dims, axis = shape.dims(tokens)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(dims, dtype=np.float32).astype(ml_dtypes.bfloat16)
    out, copied = np.empty_like(x), np.empty_like(x)
    rows = []
    for preset, params in PRESETS.items():
        options: dict[str, Any] = {"backend": backend, "threads": threads}
        encoded = lynxq.encode(x, params, token_axis=axis, **options)
        operations: dict[str, Operation] = {
            "encode": lambda: lynxq.encode(x, params, token_axis=axis, out=encoded, **options),  # noqa: B023
            "decode_full": lambda: lynxq.decode_full(encoded, out=out, **options),  # noqa: B023
            "decode_anchor": lambda: lynxq.decode_anchor(encoded, out=out, **options),  # noqa: B023
        }
        for name, found in interleaved(operations, lambda: np.copyto(copied, x), rounds).items():
            rows.append(
                {
                    "shape": shape.name,
                    "tokens": tokens,
                    "preset": preset,
                    "operation": name,
                    "threads": threads,
                    "gigabytes_per_second": round(x.nbytes / found["seconds"] / 1e9, 3),
                    "ratio_to_copy": round(found["seconds"] / found["copy"], 2),
                    "milliseconds": round(found["seconds"] * 1e3, 3),
                    "milliseconds_iqr": round(found["iqr"] * 1e3, 3),
                    "copy_milliseconds": round(found["copy"] * 1e3, 3),
                }
            )
    return rows


def show(row: dict[str, Any]) -> None:
    print(
        f"{row['shape']:34} {row['preset']:6} {row['operation']:13} {row['threads']} thread(s) "
        f"{row['ratio_to_copy']:6.2f} × copy  {row['gigabytes_per_second']:6.2f} GB/s  "
        f"{row['milliseconds']:7.2f} ± {row['milliseconds_iqr']:.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one shape, few rounds, nothing written")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--backend", default=backends.get().name)
    parser.add_argument("--output", type=Path, default=RESULTS / "throughput-cpu.json")
    options = parser.parse_args()
    shapes, rounds = (SHAPES[:1], 5) if options.quick else (SHAPES, options.rounds)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    rows = []
    for shape in shapes:
        for threads in options.threads:
            for row in measure(shape, options.tokens, threads, rounds, options.backend):
                show(row)
                rows.append(row)
    if not options.quick:
        result = {
            "what": "bfloat16 tensors of one layer; medians of rounds interleaved with np.copyto of the same array",
            "backend": options.backend,
            "rounds": rounds,
            "environment": environment("numba", "llvmlite", "ml_dtypes"),
            "processors": os.cpu_count(),
            "load_before": load,
            "rows": rows,
        }
        options.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
