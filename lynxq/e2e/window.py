"""`Pace`: how much has arrived, how fast, and whether there is time to draft one more token."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

from lynxq.e2e.generation import Pass
from lynxq.layout import Layout
from lynxq.speculative import AdaptiveWindow
from lynxq.stream.tcp import Ready

#: What a verification of n tokens takes, in steps of one token, until one has been measured: a pass that reads all
#: weights, and a share of it for each further token.
_STEPS, _STEPS_PER_TOKEN = 1.0, 0.15


class Pace:
    """Feeds the adaptive window with what is measured; for two threads.

    Drafting ends early enough for the verification to begin before the residual is complete: its pass through the
    layers follows the residual, which arrives in the order of layers, and ends a layer after it.

    Parameters
    ----------
    cap : int
        Tokens to draft at most.
    """

    def __init__(self, *, cap: int) -> None:
        self._adaptive = AdaptiveWindow(cap=cap)
        self._lock = Lock()
        self._layouts: Mapping[str, Layout] = {}
        self._since: float | None = None
        self.anchor_bytes = self.residual_bytes = 0
        self.anchor_total = self.residual_total = 0

    def expect(self, layouts: Mapping[str, Layout], *, with_residual: bool) -> None:
        """What will arrive."""
        self._layouts = layouts
        self.anchor_total = sum(layout.stream_size("anchor") for layout in layouts.values())
        if with_residual:
            self.residual_total = sum(layout.stream_size("residual") for layout in layouts.values())

    def arrived(self, ready: Ready, now: float) -> None:
        """Pages are here."""
        layout = self._layouts[ready.name]
        size = sum(layout.page_size(ready.stream, page) for page in range(ready.start, ready.stop))
        with self._lock:
            if ready.stream == "anchor":
                self.anchor_bytes += size
            else:
                self.residual_bytes += size
            if self._since is not None:
                self._adaptive.link.add(size, now - self._since)
            self._since = now

    @property
    def anchors_complete(self) -> bool:
        """Whether all anchors are here."""
        return 0 < self.anchor_total <= self.anchor_bytes

    @property
    def complete(self) -> bool:
        """Whether all is here."""
        return self.anchors_complete and self.residual_bytes >= self.residual_total

    def took(self, one: Pass) -> None:
        """Learn from a pass of one token."""
        if one.tokens == 1:
            with self._lock:
                self._adaptive.token.add(one.end - one.begin)

    def window(self) -> int:
        """Tokens to draft from now on, by the references' equation."""
        with self._lock:
            return self._adaptive.size(self.residual_total - self.residual_bytes)

    def time_for_one_more(self, drafted: int) -> bool:
        """Whether the residual takes longer than another token and the verification of all of them."""
        with self._lock:
            left = self.residual_total - self.residual_bytes
            step, rate = self._adaptive.token.seconds, self._adaptive.link.bits_per_second
            if not left or not step or not rate:
                return bool(left)
            verification = step * (_STEPS + _STEPS_PER_TOKEN * (drafted + 1))
            return self._adaptive.size(max(0, left - int(verification * rate / 8))) >= 1
