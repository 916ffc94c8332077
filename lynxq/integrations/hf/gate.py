"""`Gate`: where a forward pass waits for what has not arrived, and is told that it never will."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import TIMEOUT_MAX, Condition

from lynxq.errors import CacheNotReadyError
from lynxq.layout import Tier


class Gate:
    """Shared by the layers of a cache.

    Parameters
    ----------
    timeout : float
        Seconds that a forward pass waits at most at a layer.

    Attributes
    ----------
    waited : float
        Seconds that passes have waited so far.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = min(timeout, TIMEOUT_MAX)
        self._changed = Condition()
        self._failure: BaseException | None = None
        self._tier: Tier = "anchor"
        self.waited = 0.0

    def __deepcopy__(self, memo: dict[int, object]) -> Gate:
        twin = Gate(self._timeout)
        twin._failure, twin._tier = self._failure, self._tier
        memo[id(self)] = twin
        return twin

    @property
    def tier(self) -> Tier:
        """What is waited for: "anchor" or "full"."""
        return self._tier

    @tier.setter
    def tier(self, tier: Tier) -> None:
        self._tier = tier
        self.open()

    def open(self) -> None:
        """Something arrived, or is not needed any more: let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Nothing more will arrive."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def wait(self, layer: int, tier: Callable[[], Tier | None]) -> None:
        """Return once a layer has the tier that is required.

        Raises
        ------
        CacheNotReadyError
            If the time is up, or the transfer has failed; that failure is its cause.
        """

        def ready() -> bool:
            return tier() in (self.tier, "full")

        if ready():
            return
        begin = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or ready(), self._timeout)
            self.waited += time.monotonic() - begin
            if ready():
                return
            what = f"the {'anchor' if self.tier == 'anchor' else 'residual'} of layer {layer}"
            if self._failure is not None:
                raise CacheNotReadyError(f"{what} will not arrive: {self._failure}") from self._failure
            raise CacheNotReadyError(f"{what} has not arrived within {self._timeout:g} s")
