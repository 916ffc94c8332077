"""`HealthMonitor`: whether speculation still pays, from how much of it was accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError, ShapeError
from lynxq.speculative.window import Ratio

Transfer = Literal["split", "monolithic"]


class HealthMonitor:
    """Acceptance rates of recent requests, and the transfer that they recommend.

    The references name P(full acceptance) as the health metric, and 50 % as the line below which transfer should
    be monolithic. This recommends "monolithic" once the rate is below `low`, and "split" again once it is above
    `high`, so that it does not flip with every request. Without speculation nothing is measured; so while it
    recommends "monolithic", one request in `probe_every` should be split nevertheless: :meth:`choose` counts them.

    Parameters
    ----------
    low, high : float
        Rates, ``0 <= low <= high <= 1``.
    half_life : float
        Requests after which one counts half.
    minimum : int
        Requests before the first judgement.
    probe_every : int
        Every how many requests one is split although "monolithic" is recommended; 0 for never.

    Notes
    -----
    P(full acceptance) falls with the length of the draft even if every token fares alike: compare windows of one
    length, or look at `acceptance_rate`.

    Examples
    --------
    >>> from lynxq.speculative import HealthMonitor
    >>> monitor = HealthMonitor(minimum=4)
    >>> monitor.add(drafted=[20, 20, 20, 20], accepted=[20, 20, 20, 10])
    >>> monitor.recommendation, round(monitor.acceptance_rate, 3)
    ('split', 0.871)
    >>> monitor.add(drafted=[20] * 16, accepted=[3] * 16)
    >>> monitor.recommendation
    'monolithic'
    """

    def __init__(
        self,
        *,
        low: float = 0.5,
        high: float = 0.6,
        half_life: float = 32.0,
        minimum: int = 16,
        probe_every: int = 16,
    ) -> None:
        self._low, self._high = real("low", low, 0.0), real("high", high, 0.0)
        if not self._low <= self._high <= 1:
            raise ParamsError(f"low and high must be 0 <= low <= high <= 1, got {low} and {high}")
        self._full, self._accepted, self._drafted = Ratio(half_life), Ratio(half_life), Ratio(half_life)
        self._minimum = integer("minimum", minimum, 1, 1 << 31, ParamsError)
        self._probe_every = integer("probe_every", probe_every, 0, 1 << 31, ParamsError)
        self._seen = self._chosen = 0
        self._state: Transfer = "split"

    def add(self, drafted: Iterable[int], accepted: Iterable[int]) -> None:
        """Count verified requests, in order; those without drafted tokens say nothing.

        Parameters
        ----------
        drafted, accepted : iterable of int, of one length
            As :class:`Verified` has them.

        Raises
        ------
        ShapeError
            If the lengths differ, or more tokens are accepted than drafted. Nothing is counted then.
        """
        pairs = [
            (integer("drafted", made, 0, 1 << 31), integer("accepted", kept, 0, 1 << 31))
            for made, kept in _zipped(drafted, accepted)
        ]
        for made, kept in pairs:
            if kept > made:
                raise ShapeError(f"accepted must be at most drafted, got {kept} of {made}")
        for made, kept in pairs:
            if made:
                self._count(made, kept)

    def _count(self, made: int, kept: int) -> None:
        self._full.add(float(kept == made), 1)
        self._accepted.add(kept, 1)
        self._drafted.add(made, 1)
        self._seen += 1
        rate = self._full.value or 0.0
        if self._seen < self._minimum:
            return
        if self._state == "split" and rate < self._low:
            self._state, self._chosen = "monolithic", 0
        elif self._state == "monolithic" and rate > self._high:
            self._state = "split"

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens, recent requests counting more; None before the first one."""
        kept, made = self._accepted.value, self._drafted.value
        return None if kept is None or made is None else kept / made

    @property
    def mean_accepted(self) -> float | None:
        """Accepted tokens of a request, recent requests counting more; None before the first one."""
        return self._accepted.value

    @property
    def full_acceptance(self) -> float | None:
        """Share of requests whose whole draft was accepted; None before the first one."""
        return self._full.value

    @property
    def recommendation(self) -> Transfer:
        """What to do with the next request, but for probes."""
        return self._state

    def choose(self) -> Transfer:
        """What to do with the next request, probes included; call it once for each request."""
        if self._state == "split":
            return "split"
        self._chosen += 1
        return "split" if self._probe_every and self._chosen % self._probe_every == 0 else "monolithic"


def _zipped(drafted: Iterable[int], accepted: Iterable[int]) -> list[tuple[int, int]]:
    made, kept = list(drafted), list(accepted)
    if len(made) != len(kept):
        raise ShapeError(f"drafted and accepted must have one length, got {len(made)} and {len(kept)}")
    return list(zip(made, kept, strict=True))
