"""A token bucket: sends as fast as a slower link would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from lynxq.arguments import real


class TokenBucket:
    """Limits a rate of bytes, such as to emulate a link. Several connections may share one.

    Bytes are counted after they were sent, so a sender decides at the last moment which ones to send. The average is
    exact over any time in which there is always something to send.

    Parameters
    ----------
    rate : float
        Bytes per second.
    burst : float, optional
        Bytes that may be sent at once after a pause; what the rate gives in 5 ms by default.
    clock : callable
        Seconds, as a monotonic clock gives them.

    Examples
    --------
    >>> now = 0.0
    >>> bucket = TokenBucket(1000.0, burst=100, clock=lambda: now)
    >>> bucket.spend(350)
    >>> bucket.delay()
    0.25
    >>> now = 0.25
    >>> bucket.delay()
    0.0
    """

    def __init__(self, rate: float, *, burst: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = real("rate", rate, 0.0, exclusive=True)
        self.burst = real("burst", self.rate * 0.005 if burst is None else burst, 0.0)
        self._clock = clock
        self._tokens = self.burst
        self._since = clock()
        self._turn = asyncio.Lock()

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + max(now - self._since, 0.0) * self.rate)
        self._since = now

    @property
    def portion(self) -> int:
        """Bytes to send at a time so that the rate is even: what it gives in 5 ms, at least 1 KiB."""
        return max(1024, int(self.rate * 0.005))

    def delay(self) -> float:
        """Seconds until something may be sent."""
        self._refill()
        return max(0.0, -self._tokens / self.rate)

    def spend(self, size: int) -> None:
        """Count bytes that were sent."""
        self._refill()
        self._tokens -= size

    async def wait(self) -> None:
        """Return when something may be sent; who waits longest comes first. A bucket belongs to one event loop."""
        async with self._turn:
            while (seconds := self.delay()) > 0:
                await asyncio.sleep(seconds)
