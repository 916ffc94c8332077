"""`Pace`: how much has arrived, how fast, and whether there is time to draft one more token. And what passes take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from lynxq.e2e.generation import Pass
from lynxq.integrations.hf import ProgressiveCache
from lynxq.lab import LanguageModel
from lynxq.layout import Layout
from lynxq.params import Params
from lynxq.speculative import AdaptiveWindow
from lynxq.stream.tcp import Ready

#: How much more of the residual must be here for the draft to be read again, and how many verifications must fit into
#: what is left of the time: that pass, some tokens, and the verification itself.
_SHARE, _PASSES = 0.25, 2.5
#: A verification that begins too early waits a little in its layers; one that begins too late ends late.
_EARLY = 1.25
#: Tokens of the longer pass that is measured.
_LONG = 33


@dataclass(frozen=True)
class Costs:
    """What passes over a cache take, in seconds.

    Attributes
    ----------
    step : float
        A pass over one token.
    token : float
        Each further token of a pass.
    """

    step: float
    token: float

    def verification(self, drafted: int) -> float:
        """A pass over a draft and the token before it."""
        return self.step + self.token * drafted


def measure(model: LanguageModel, shapes: Mapping[str, tuple[int, ...]]) -> Costs:
    """Measure passes over a cache of such tensors; what is in it does not matter."""
    import torch

    layouts = {name: Layout.of(Params(), shape, "bfloat16", token_axis=2) for name, shape in shapes.items()}
    cache = ProgressiveCache(layouts, dtype=model.dtype)
    for name, shape in shapes.items():
        cache.fill(name, torch.zeros(shape, dtype=model.dtype))
    seconds = {}
    for count in (1, 1, 1, _LONG, _LONG):  # the first ones warm up
        begin = time.monotonic()
        # Positions do not matter either; behind a long prompt there may be no more of them.
        ids, positions = torch.zeros((1, count), dtype=torch.long), torch.arange(count)[None]
        model.forward(ids, cache, keep=0, positions=positions)
        seconds[count] = time.monotonic() - begin
        cache.truncate(cache.prefix)
    return Costs(seconds[1], max(0.0, seconds[_LONG] - seconds[1]) / (_LONG - 1))


class Pace:
    """Feeds the adaptive window with what is measured; for two threads.

    Drafting ends early enough for the verification to begin before the residual is complete: its pass through the
    layers follows the residual, which arrives in the order of layers, and ends a layer after it.

    Parameters
    ----------
    layouts : mapping of str to Layout
        What will arrive.
    costs : Costs
        Of passes, until there are measured ones.
    cap : int
        Tokens to draft at most.
    with_residual : bool
        Whether a residual will arrive.
    """

    def __init__(self, layouts: Mapping[str, Layout], costs: Costs, *, cap: int, with_residual: bool) -> None:
        self._adaptive = AdaptiveWindow(cap=cap)
        self._costs = costs
        self._adaptive.token.add(costs.step)
        self._lock = Lock()
        self._layouts = layouts
        self._since: float | None = None
        self._revised_at = 0  # bytes of the residual that the draft was read with
        self.anchor_bytes = self.residual_bytes = 0
        sizes = [(one.stream_size("anchor"), one.stream_size("residual")) for one in layouts.values()]
        self.anchor_total = sum(anchor for anchor, _ in sizes)
        self.residual_total = sum(residual for _, residual in sizes) if with_residual else 0

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
    def last_arrival(self) -> float:
        """When something arrived last, in seconds of the monotonic clock."""
        return self._since or 0.0

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
                self._adaptive.token.add(max(one.seconds, 1e-6))

    def window(self) -> int:
        """Tokens to draft from now on, by the references' equation."""
        with self._lock:
            return self._adaptive.size(self.residual_total - self.residual_bytes)

    def time_for_one_more(self, drafted: int) -> bool:
        """Whether the residual takes longer than another token and the verification of all of them."""
        with self._lock:
            left = self.residual_total - self.residual_bytes
            rate = self._adaptive.link.bits_per_second
            if not left or not rate:
                return bool(left)
            verification = _EARLY * self._costs.verification(drafted + 1)
            return self._adaptive.size(max(0, left - int(verification * rate / 8))) >= 1

    def time_for_revision(self, drafted: int) -> bool | None:
        """Whether to read the draft again, now that no more is to be drafted; None for later."""
        with self._lock:
            rate = self._adaptive.link.bits_per_second
            left = self.residual_total - self.residual_bytes
            if not left or not rate or 8 * left / rate < _PASSES * self._costs.verification(drafted):
                return False
            if self.residual_bytes - self._revised_at < _SHARE * self.residual_total:
                return None
            self._revised_at = self.residual_bytes
            return True
