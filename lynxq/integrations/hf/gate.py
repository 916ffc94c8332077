"""`Gate`: where a forward pass waits for what has not arrived, and is told that it never will."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from lynxq.errors import CacheNotReadyError


class Gate:
    """Shared by the layers of a cache.

    Parameters
    ----------
    timeout : float
        Seconds that a forward pass waits at most.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._changed = Condition()
        self._failure: BaseException | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Gate:
        twin = Gate(self._timeout)
        twin._failure = self._failure
        memo[id(self)] = twin
        return twin

    def open(self) -> None:
        """Something arrived: let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Nothing more will arrive."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Return once `ready` says so.

        Raises
        ------
        CacheNotReadyError
            If the time is up, or the transfer has failed; that failure is its cause.
        """
        if ready():
            return
        with self._changed:
            done = self._changed.wait_for(lambda: self._failure is not None or ready(), self._timeout)
            if ready():
                return
            if self._failure is not None:
                raise CacheNotReadyError(f"{what} will not arrive: {self._failure}") from self._failure
            if not done:
                raise CacheNotReadyError(f"{what} has not arrived within {self._timeout:g} s")
