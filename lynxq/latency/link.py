"""A shared link as a fluid: strict priority of anchors, fair shares inside a class."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from lynxq.layout import Stream

_CLASSES: tuple[Stream, ...] = ("anchor", "residual")


@dataclass(frozen=True)
class Interval:
    """A time in which the link served the same transfers at the same rates.

    Attributes
    ----------
    start, stop : float
        Seconds.
    stream : {"anchor", "residual"}
        The class that was served.
    requests : tuple of int
        Those that shared the link, in equal parts, ascending.
    nbytes : float
        Bytes of all of them together.
    """

    start: float
    stop: float
    stream: Stream
    requests: tuple[int, ...]
    nbytes: float


class PriorityLink:
    """Serves anchors before residuals, and all transfers of a class at the same rate.

    Parameters
    ----------
    bits_per_second : float
        Above 0.

    Notes
    -----
    A class keeps the bytes that each of its transfers was served since the class was last empty. A transfer ends
    when that reaches its mark, so no error adds up from one change of the shares to the next.
    """

    def __init__(self, bits_per_second: float) -> None:
        self._rate = bits_per_second / 8
        self._marks: dict[Stream, list[tuple[float, int]]] = {stream: [] for stream in _CLASSES}
        self._served: dict[Stream, float] = dict.fromkeys(_CLASSES, 0.0)
        self.now = 0.0
        self.intervals: list[Interval] = []

    def add(self, stream: Stream, request: int, nbytes: float) -> None:
        """Queue a transfer now."""
        heapq.heappush(self._marks[stream], (self._served[stream] + nbytes, request))

    def _active(self) -> Stream | None:
        return next((stream for stream in _CLASSES if self._marks[stream]), None)

    def completion(self) -> float:
        """When the next transfer ends if none is added before; infinite if there is none."""
        stream = self._active()
        if stream is None:
            return math.inf
        marks = self._marks[stream]
        return self.now + max(0.0, marks[0][0] - self._served[stream]) * len(marks) / self._rate

    def advance(self, now: float) -> list[tuple[Stream, int]]:
        """Serve until `now`, which is not after `completion()`; returns the transfers that end then."""
        stream = self._active()
        ended: list[tuple[Stream, int]] = []
        if stream is not None:
            marks, ends = self._marks[stream], now == self.completion()
            before, sharing = self._served[stream], len(marks)
            after = max(before, marks[0][0]) if ends else before + self._rate * (now - self.now) / sharing
            if now > self.now:
                requests = tuple(sorted(request for _, request in marks))
                self.intervals.append(Interval(self.now, now, stream, requests, (after - before) * sharing))
            self._served[stream] = after
            while ends and marks and marks[0][0] <= after:
                ended.append((stream, heapq.heappop(marks)[1]))
            if not marks:
                self._served[stream] = 0.0
        self.now = now
        return ended
