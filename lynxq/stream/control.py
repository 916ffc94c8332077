"""Records without data that wait to be sent: both sides have them, on each of their connections."""

from __future__ import annotations

from collections import deque

from lynxq.stream.records import Record


class ControlQueue:
    """Packed records for one or two connections, in order.

    Attributes
    ----------
    size : int
        Bytes that wait, of all connections.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, deque[bytes]] = {0: deque(), 1: deque()}
        self._closed = False
        self.size = 0

    def add(self, record: Record, lane: int = 0) -> None:
        """Add a record; nothing is added to a closed queue."""
        if not self._closed:
            self._put(record, lane)

    def _put(self, record: Record, lane: int) -> None:
        data = record.pack()
        self._lanes[lane].append(data)
        self.size += len(data)

    def close(self) -> None:
        """Take no more records."""
        self._closed = True

    def reopen(self) -> None:
        """Take records again."""
        self._closed = False

    def clear(self) -> None:
        """Drop everything."""
        for waiting in self._lanes.values():
            waiting.clear()
        self.size = 0

    def replace(self, record: Record) -> None:
        """Drop everything, and leave a last word on the first connection."""
        self.clear()
        self._put(record, 0)

    def waits(self, lane: int) -> bool:
        """Whether there is a record for a connection."""
        return bool(self._lanes[lane])

    def take(self, lane: int) -> bytes | None:
        """The next record for a connection."""
        if not self._lanes[lane]:
            return None
        data = self._lanes[lane].popleft()
        self.size -= len(data)
        return data

    def take_all(self, lane: int) -> bytes:
        """All records for a connection."""
        data = b"".join(self._lanes[lane])
        self._lanes[lane].clear()
        self.size -= len(data)
        return data
