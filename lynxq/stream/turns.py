"""`Turns`: which requests a sender has been asked for, and which wait until it serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Turns:
    """The requests of one connection in the order of their numbers, no more of them with the sender than it serves.

    How many it serves is in its greeting.
    """

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._asked: set[int] = set()
        #: Highest number that the sender has been asked for.
        self.last = 0

    def restart(self, numbers: Iterable[int] = ()) -> None:
        """A new connection, on which all of these are to be asked for; or none."""
        self._waiting, self._asked, self.last = deque(numbers), set(), 0

    def add(self, number: int) -> None:
        """A further request."""
        self._waiting.append(number)

    def end(self, number: int) -> bool:
        """A request has ended; returns whether the sender was asked for it and not told yet."""
        if number not in self._asked:
            return False
        self._asked.remove(number)
        return True

    def next(self, most: int) -> int | None:
        """The request to ask for now, if there is one, where at most so many may be with the sender."""
        if not self._waiting or len(self._asked) >= max(most, 1):  # one that serves none may say so itself
            return None
        self.last = self._waiting.popleft()
        self._asked.add(self.last)
        return self.last
