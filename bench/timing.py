"""Operations timed in turn with a plain copy; bench/README.md says why this way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Operation = Callable[[], object]
Name = TypeVar("Name")

#: Rounds that are measured even if an operation is so slow that they take longer than its budget.
FEWEST_ROUNDS = 3


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _sample(copy: Operation, operation: Operation) -> tuple[float, float, float, float]:
    """Wall and processor time of a copy, and of an operation right after it."""
    copy()  # whatever ran before has emptied the caches: the copy that counts finds them as a copy leaves them
    start = _clocks()
    copy()
    middle = _clocks()
    operation()
    end = _clocks()
    return middle[0] - start[0], end[0] - middle[0], middle[1] - start[1], end[1] - middle[1]


def _summary(rows: list[tuple[float, float, float, float]]) -> dict[str, float]:
    copied, taken, copied_cpu, taken_cpu = zip(*rows, strict=True)
    quarters = statistics.quantiles(taken, n=4, method="inclusive")
    return {
        "seconds": quarters[1],
        "iqr": quarters[2] - quarters[0],
        "copy": statistics.median(copied),
        "processor": statistics.median(taken_cpu),
        "processor_copy": statistics.median(copied_cpu),
        "rounds": len(rows),
    }


def interleaved(
    operations: Mapping[Name, Operation], copy: Operation, rounds: int, budget: float = float("inf")
) -> dict[Name, dict[str, float]]:
    """Median times of operations and of the copies made just before each of them, in seconds.

    All operations take turns in every round, so that a machine that is slow for a while is so for all of them. One
    that has used up `budget` seconds drops out, after `FEWEST_ROUNDS` at the least.
    """
    samples: dict[Name, list[tuple[float, float, float, float]]] = {name: [] for name in operations}
    for operation in operations.values():  # warms the buffers
        operation()
    for done in range(rounds):
        for name, operation in operations.items():
            if done < FEWEST_ROUNDS or sum(sample[1] for sample in samples[name]) < budget:
                samples[name].append(_sample(copy, operation))
    return {name: _summary(rows) for name, rows in samples.items()}


def figures(found: Mapping[str, float], nbytes: int, threads: int) -> dict[str, Any]:
    """What a result says of one operation on an input of `nbytes`."""
    ratio = found["processor"] / found["processor_copy"]
    return {
        "gigabytes_per_second": round(nbytes / found["seconds"] / 1e9, 3),
        "ratio_to_copy": round(found["seconds"] / found["copy"], 2),
        # The clock is that of the calling thread: it knows nothing of what helpers do.
        "ratio_in_processor_time": round(ratio, 2) if threads == 1 else None,
        "milliseconds": round(found["seconds"] * 1e3, 3),
        "milliseconds_iqr": round(found["iqr"] * 1e3, 3),
        "copy_milliseconds": round(found["copy"] * 1e3, 3),
        "processor_milliseconds": round(found["processor"] * 1e3, 3) if threads == 1 else None,
        "copy_processor_milliseconds": round(found["processor_copy"] * 1e3, 3),
        "rounds": found["rounds"],
    }


def shown(row: Mapping[str, Any]) -> str:
    """Figures as text, for the eye."""
    processor = row["ratio_in_processor_time"] or "–"
    return (
        f"{row['ratio_to_copy']:7.2f} × copy  ({processor:>6} in processor time)  "
        f"{row['gigabytes_per_second']:6.2f} GB/s  {row['milliseconds']:8.2f} ± {row['milliseconds_iqr']:.2f} ms"
    )
