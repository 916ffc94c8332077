"""What several threads gain over one, and what they could gain on this machine; bench/README.md says why this way."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from timing import Operation

#: Calls in a row.
ROW = 16
#: Rows of one thread and of several, in turn.
ROUNDS = 7


@contextmanager
def placed() -> Iterator[bool]:
    """Keep this thread on one processor and those of lynxq on the others, where the system allows; says whether.

    Calls of a few milliseconds are over before a scheduler has moved a thread away from the processor of the one that
    woke it.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(processors) < 2:
        yield False
        return
    helpers = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("lynxq")]
    os.sched_setaffinity(threading.get_native_id(), processors[:1])
    try:
        for helper in helpers:
            os.sched_setaffinity(helper, processors[1:])
        yield True
    finally:
        for thread in (threading.get_native_id(), *helpers):
            os.sched_setaffinity(thread, processors)


def speedup(one: Operation, several: Operation, threads: int, rounds: int = ROUNDS) -> dict[str, float]:
    """How much faster `several` (of `threads`) is than `one`, in turn, each in long rows, as for the layers of a cache.

    After a call by one thread the other processors sleep, and their caches hold nothing of the data: the first calls of
    a row pay for that, which is what `interleaved` shows. Here the median of a row counts.

    The processor time of all threads says what of a gain that falls short is our own doing: with `work` times the work
    in all, no machine can be faster than `work_bound`. The rest is waiting, for memory or for a processor.
    """
    gains, works = [], []
    for _ in range(rounds):
        (seconds_one, work_one), (seconds_several, work_several) = _row(one), _row(several)
        gains.append(seconds_one / seconds_several)
        works.append(work_several / work_one)
    quarters = statistics.quantiles(gains, n=4, method="inclusive")
    work = statistics.median(works)
    return {
        "speedup": round(quarters[1], 2),
        "speedup_iqr": round(quarters[2] - quarters[0], 2),
        "work": round(work, 3),
        "work_bound": round(threads / work, 2),
        "rounds": rounds,
    }


def _row(operation: Operation) -> tuple[float, float]:
    """Median seconds of the calls of a row, and the processor time of the whole row, of all threads."""
    seconds = []
    begin = time.process_time()
    for _ in range(ROW):
        start = time.perf_counter()
        operation()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), time.process_time() - begin


def gains(one: Operation, several: Operation, threads: int) -> dict[str, Any]:
    """Gain where the scheduler places threads ("free"), and with each on a processor of its own ("placed")."""
    several()  # now there are threads to place
    free = speedup(one, several, threads)
    with placed() as done:
        return {"free": free, "placed": speedup(one, several, threads) if done else None}


@numba.njit(nogil=True)
def _arithmetic(steps: int) -> float:
    """Multiplications and additions in registers: no memory, and nothing that two threads share."""
    a, b, c, d = 0.1, 0.2, 0.3, 0.4
    for _ in range(steps):
        a, b, c, d = a * 0.999 + 0.1, b * 0.998 + 0.2, c * 0.997 + 0.3, d * 0.996 + 0.4
    return a + b + c + d


def yardsticks(x: np.ndarray[Any, Any], threads: int) -> dict[str, Any]:
    """What threads gain for arithmetic in registers and for a plain copy: their bounds on this machine.

    Two processors of a virtual machine may be one core, and share its units; copies share the memory.
    """
    target = np.empty_like(x)
    parts = list(zip(np.array_split(x, threads), np.array_split(target, threads), strict=True))
    steps = 2_000_000
    _arithmetic(1)
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="lynxq") as pool:

        def divided(work: Any, shares: list[Any]) -> None:
            others = [pool.submit(work, share) for share in shares[1:]]
            work(shares[0])
            for other in others:
                other.result()

        def copy(part: tuple[Any, Any]) -> None:
            np.copyto(part[1], part[0])

        return {
            "arithmetic": gains(
                lambda: _arithmetic(steps), lambda: divided(_arithmetic, [steps // threads] * threads), threads
            ),
            "copy": gains(lambda: np.copyto(target, x), lambda: divided(copy, parts), threads),
        }
