"""How many tokens to draft: the adaptive window, and running estimates of what it depends on."""

from __future__ import annotations

import math

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError

#: Relative slack before a quotient is rounded up, so that 0.12 s / 0.04 s is 3 tokens.
_SLACK = 1e-9


def window(t_res: float, tpot: float, margin: int = 0, cap: int = 64) -> int:
    """min(cap, ⌈t_res / TPOT⌉ + margin): tokens to draft while the residual is on its way.

    The references ask for this in place of a fixed cap of 64, which stays the default cap.

    Parameters
    ----------
    t_res : float
        Seconds until the residual will be complete.
    tpot : float
        Seconds for one output token.
    margin : int
        Tokens more, against an underestimated `t_res`.
    cap : int
        Never more tokens than these.

    Raises
    ------
    ParamsError
        If a value is not a number or out of range.

    Examples
    --------
    >>> from lynxq.speculative import window
    >>> window(0.12, 0.04), window(0.13, 0.04, margin=2), window(60.0, 0.04)
    (3, 6, 64)
    """
    time = real("t_res", t_res, 0.0)
    step = real("tpot", tpot, 0.0, exclusive=True)
    extra = integer("margin", margin, 0, 1 << 31, ParamsError)
    limit = integer("cap", cap, 0, 1 << 31, ParamsError)
    if time / (1 + _SLACK) >= step * limit:
        return limit
    return min(limit, math.ceil(time / step * (1 - _SLACK)) + extra)


class Ratio:
    """A running ratio of measured amounts, in which older samples count less.

    It is the ratio of weighted sums, not a mean of ratios: a sample's weight is its denominator, and halves with
    each `half_life` of denominator that is measured after it. Cutting a sample in two changes nothing.

    Parameters
    ----------
    half_life : float
        In the unit of the denominator.

    Examples
    --------
    >>> from lynxq.speculative import Ratio
    >>> ratio = Ratio(half_life=1.0)
    >>> ratio.add(10.0, 1.0)
    >>> ratio.value
    10.0
    >>> ratio.add(40.0, 1.0)
    >>> ratio.value  # (10 / 2 + 40) / (1 / 2 + 1)
    30.0
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = real("half_life", half_life, 0.0, exclusive=True)
        self._sum = self._weight = 0.0

    def add(self, numerator: float, denominator: float) -> None:
        """Count a sample; one with denominator 0 says nothing and is left out."""
        above, below = real("numerator", numerator, 0.0), real("denominator", denominator, 0.0)
        if below == 0:
            return
        halvings = below / self._half_life
        kept, gained = 0.5**halvings, -math.expm1(-math.log(2) * halvings)  # each exact where it is tiny
        self._sum = self._sum * kept + above / below * gained
        self._weight = self._weight * kept + gained

    @property
    def value(self) -> float | None:
        """The ratio, or None before the first sample."""
        return self._sum / self._weight if self._weight else None


class LinkEstimate:
    """Bandwidth of a link from measured transfers.

    Parameters
    ----------
    half_life : float
        Seconds of transfer after which a sample counts half.

    Examples
    --------
    >>> from lynxq.speculative import LinkEstimate
    >>> link = LinkEstimate()
    >>> link.add(nbytes=1_250_000_000, seconds=1.0)
    >>> link.bits_per_second
    10000000000.0
    >>> link.seconds(2_500_000_000)
    2.0
    """

    def __init__(self, half_life: float = 1.0) -> None:
        self._ratio = Ratio(half_life)

    def add(self, nbytes: int, seconds: float) -> None:
        """Count bytes that arrived within some seconds of an uninterrupted transfer."""
        self._ratio.add(nbytes, seconds)

    @property
    def bits_per_second(self) -> float | None:
        """The estimate, or None before the first sample."""
        rate = self._ratio.value
        return None if rate is None else 8 * rate

    def seconds(self, nbytes: int) -> float | None:
        """How long so many bytes will take; None if nothing is known, or the link stands still."""
        rate = self._ratio.value
        return nbytes / rate if rate else None


class TokenEstimate:
    """Time per output token from measured steps.

    Parameters
    ----------
    half_life : float
        Tokens after which a sample counts half.

    Examples
    --------
    >>> from lynxq.speculative import TokenEstimate
    >>> tpot = TokenEstimate()
    >>> tpot.add(seconds=0.32, tokens=8)
    >>> tpot.seconds
    0.04
    """

    def __init__(self, half_life: float = 32.0) -> None:
        self._ratio = Ratio(half_life)

    def add(self, seconds: float, tokens: int = 1) -> None:
        """Count tokens that one request generated within some seconds."""
        self._ratio.add(seconds, tokens)

    @property
    def seconds(self) -> float | None:
        """The estimate, or None before the first sample."""
        return self._ratio.value


class AdaptiveWindow:
    """The window, fed by what is measured.

    Parameters
    ----------
    margin, cap : int
        As :func:`window` takes them.

    Attributes
    ----------
    link : LinkEstimate
    token : TokenEstimate

    Examples
    --------
    >>> from lynxq.speculative import AdaptiveWindow
    >>> adaptive = AdaptiveWindow(margin=1)
    >>> adaptive.size(1_000_000_000)  # nothing measured yet: the cap
    64
    >>> adaptive.link.add(nbytes=312_500_000, seconds=0.1)
    >>> adaptive.token.add(seconds=0.04)
    >>> adaptive.size(1_000_000_000)
    9
    """

    def __init__(self, *, margin: int = 0, cap: int = 64) -> None:
        self._margin = integer("margin", margin, 0, 1 << 31, ParamsError)
        self._cap = integer("cap", cap, 0, 1 << 31, ParamsError)
        self.link, self.token = LinkEstimate(), TokenEstimate()

    def size(self, residual_bytes: int) -> int:
        """Tokens to draft while so many bytes of the residual are yet to come; the cap if nothing is known."""
        left = integer("residual_bytes", residual_bytes, 0, 1 << 62, ParamsError)
        time, step = self.link.seconds(left), self.token.seconds
        if left == 0:
            return min(self._margin, self._cap)
        return self._cap if time is None or not step else window(time, step, self._margin, self._cap)
