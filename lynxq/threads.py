"""A small pool of threads for kernels that run without the global lock.

No task waits for another one, and the caller works too: any number of Python threads may use the pool at once, and
a pool that is busy, or gone after a fork, only means fewer helpers.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from lynxq.arguments import integer, shown
from lynxq.errors import ParamsError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Most threads of one call; memory bounds them too.
MAX_THREADS = 64
#: Shares of work per thread: small enough that a thread that is held up does not hold up the others.
_SHARES = 4
#: Units that a thread works on alone before an interrupt is noticed.
_ALONE = 64

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    """Forget the pool: in a forked child its threads do not exist, and its locks may be held for ever."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _usual_arithmetic() -> None:
    """Give a new thread the default floating-point environment: it has inherited that of whoever asked first."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV


def _get_pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # here: it is not light, and most imports never need it

    global _pool  # noqa: PLW0603
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="lynxq", initializer=_usual_arithmetic)
        return _pool


def _available() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count(threads: object) -> int:
    """Check a number of threads; None takes ``LYNXQ_THREADS``, or else one for each processor.

    Raises
    ------
    ParamsError
        If it is not an integer from 1.
    """
    if threads is not None:
        return min(integer("threads", threads, 1, 1 << 20, ParamsError), MAX_THREADS)
    text = os.environ.get("LYNXQ_THREADS", "").strip()
    if not text:
        return min(_available(), MAX_THREADS)
    if not (text.isascii() and text.isdecimal()):
        raise ParamsError(f"LYNXQ_THREADS must be an integer, got {shown(text)}")
    return min(integer("LYNXQ_THREADS", int(text[:20]), 1, 1 << 20, ParamsError), MAX_THREADS)


def run(work: Callable[[int, int], None], units: int, threads: int) -> None:
    """Call ``work(first, last)`` for ranges that cover all units, on up to `threads` threads.

    An exception in any of them, also an interrupt of the caller, is raised here: after all have ended, and without
    starting further ranges.
    """
    threads = max(min(threads, units), 1)
    shares = min(units, threads * _SHARES if threads > 1 else 1 + units // _ALONE)
    edges = [units * i // shares for i in range(shares + 1)] if shares else [0]
    ranges = deque(pairwise(edges))  # a pop is atomic

    def drain() -> None:
        while True:
            try:
                first, last = ranges.popleft()
            except IndexError:
                return
            work(first, last)

    helpers: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # no new threads: the interpreter is shutting down
            for _ in range(threads - 1):
                helpers.append(_get_pool().submit(drain))  # noqa: PERF401 - those before a failure count
        drain()
    finally:
        ranges.clear()
        _wait_for(helpers)
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def _wait_for(helpers: list[Future[None]]) -> None:
    """Wait until no helper writes to the caller's memory any more, however often the caller is interrupted."""
    interrupt: BaseException | None = None
    for helper in helpers:
        while not helper.cancel() and not helper.done():
            try:
                helper.exception()
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
    if interrupt is not None:
        raise interrupt
