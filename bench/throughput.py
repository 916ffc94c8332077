"""Speed of our own operations against a plain copy: python bench/throughput.py [--quick].

Every measurement is taken in turn with `np.copyto` of the same array, in one process, with warm buffers and `out=`;
what is reported are medians, so that a machine that is slow for a while is so for both. A machine that others use too
stops long operations more often than short ones. So one thread is also measured in processor time, and the ratio of
these times is the one to compare; two threads need a machine that is idle otherwise (see `load_before`).
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


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def interleaved(operations: dict[str, Operation], copy: Operation, rounds: int) -> dict[str, dict[str, float]]:
    """Median times of operations and of the copies made just before each of them, in seconds."""
    times: dict[str, list[list[float]]] = {name: [] for name in operations}
    for _ in range(rounds + 1):
        for name, operation in operations.items():
            start = _clocks()
            copy()
            middle = _clocks()
            operation()
            end = _clocks()
            times[name].append([t1 - t0 for i in (0, 1) for t0, t1 in ((start[i], middle[i]), (middle[i], end[i]))])
    result = {}
    for name, rows in times.items():
        copied, taken, copied_cpu, taken_cpu = zip(*rows[1:], strict=True)  # the first round warms the buffers
        quarters = statistics.quantiles(taken, n=4)
        result[name] = {
            "seconds": quarters[1],
            "iqr": quarters[2] - quarters[0],
            "copy": statistics.median(copied),
            "processor": statistics.median(taken_cpu),
            "processor_copy": statistics.median(copied_cpu),
        }
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
                    "ratio_in_processor_time": (
                        round(found["processor"] / found["processor_copy"], 2) if threads == 1 else None
                    ),
                    "milliseconds": round(found["seconds"] * 1e3, 3),
                    "milliseconds_iqr": round(found["iqr"] * 1e3, 3),
                    "copy_milliseconds": round(found["copy"] * 1e3, 3),
                }
            )
    return rows


def show(row: dict[str, Any]) -> None:
    processor = row["ratio_in_processor_time"] or "–"
    print(
        f"{row['shape']:28} {row['preset']:6} {row['operation']:13} {row['threads']} thread(s) "
        f"{row['ratio_to_copy']:6.2f} × copy  ({processor:>5} in processor time)  "
        f"{row['gigabytes_per_second']:6.2f} GB/s  {row['milliseconds']:7.2f} ± {row['milliseconds_iqr']:.2f} ms"
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
