"""Fair shares of a link: start-time fair queueing, counted in bytes."""

from __future__ import annotations

from collections.abc import Iterable


class Shares:
    """Says whose turn it is. Who always has something to send gets the same number of bytes as the others, to within
    one record; who had nothing for a while has no claim to what it missed.

    Examples
    --------
    >>> shares = Shares()
    >>> shares.charge(1, 100)
    >>> shares.order([1, 2])
    [2, 1]
    """

    def __init__(self) -> None:
        self._clock = 0  # virtual: bytes that a request which was always busy has been given
        self._ends: dict[int, int] = {}
        self._busy: set[int] = set()

    def _start(self, request: int) -> int:
        end = self._ends.get(request, 0)
        return end if request in self._busy else max(end, self._clock)

    def order(self, requests: Iterable[int]) -> list[int]:
        """Requests that may have something to send, the one whose turn it is first."""
        return sorted(requests, key=self._start)

    def charge(self, request: int, size: int) -> None:
        """Count what a request was given."""
        start = self._start(request)
        self._clock = max(self._clock, start)
        self._ends[request] = start + size
        self._busy.add(request)

    def idle(self, request: int) -> None:
        """A request has nothing to send."""
        self._busy.discard(request)

    def forget(self, request: int) -> None:
        """A request has ended."""
        self._busy.discard(request)
        self._ends.pop(request, None)
