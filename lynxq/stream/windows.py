"""Credit: how much of a stream a sender may send before what has arrived is taken."""

from __future__ import annotations

from lynxq.errors import ProtocolError


class Window:
    """The receiver's account of one stream. Counted are whole frames, from their first byte on.

    A sender may begin a frame only if its credit covers all of it, so every frame that has begun can end, however
    many have begun: credit in parts of frames could be used up by frames none of which is complete.

    Parameters
    ----------
    capacity : int
        Bytes of frames that may be here and not taken.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        #: Bytes of frames that have begun to arrive and were not yet taken.
        self.held = 0
        self._used = 0
        self._granted = 0

    def restart(self) -> int:
        """A new connection begins; returns its first credit."""
        self._used = 0
        self._granted = max(self.capacity - self.held, 0)
        return self._granted

    def begin(self, size: int) -> None:
        """A frame begins to arrive; raises `ProtocolError` if the credit does not cover it."""
        if self._used + size > self._granted:
            raise ProtocolError(f"a frame of {size} bytes is more than the credit, {self._granted - self._used} bytes")
        self._used += size
        self.held += size

    def free(self, size: int) -> None:
        """A frame was taken, or dropped."""
        self.held -= size

    def grant(self) -> int | None:
        """The new limit if it is worth telling: a quarter of the window, or all of it when nothing is here."""
        limit = self._used + self.capacity - self.held
        gain = limit - self._granted
        if gain <= 0 or (self.held and gain < self.capacity // 4):
            return None
        self._granted = limit
        return limit
