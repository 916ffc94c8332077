"""Links that are to a small model what the paper's links are to its own: the same transfer time in steps of decoding.

The references move 23.5 GB in BF16 over 10, 25 or 50 Gbit/s, and take 40 ms for an output token. What decides who wins
is how many tokens could be generated while the cache is on its way: 470, 188 or 94. A link is slowed down until this
number is the same here.
"""

from __future__ import annotations

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError

#: The references' cache in bytes, and their time per output token in seconds.
PAPER_BYTES, PAPER_STEP = 23.5e9, 0.040
#: Their links, in Gbit/s.
PAPER_LINKS = (10.0, 25.0, 50.0)


def steps(gbps: float) -> float:
    """Steps of decoding in the time in which the references' BF16 cache goes over such a link.

    Examples
    --------
    >>> from lynxq.e2e.links import steps
    >>> [round(steps(gbps)) for gbps in (10, 25, 50)]
    [470, 188, 94]
    """
    return PAPER_BYTES * 8 / (real("gbps", gbps, 0.0, exclusive=True) * 1e9) / PAPER_STEP


def rate(gbps: float, bf16_bytes: int, step: float) -> float:
    """Bytes per second at which a cache takes as many steps of decoding as the references' over a link.

    Parameters
    ----------
    gbps : float
        The references' link.
    bf16_bytes : int
        Of the cache, in BF16.
    step : float
        Seconds for an output token.

    Examples
    --------
    >>> from lynxq.e2e.links import rate
    >>> round(rate(25.0, 47_000_000, 0.050))
    5000000
    """
    size = integer("bf16_bytes", bf16_bytes, 1, 1 << 62, ParamsError)
    return size / (steps(gbps) * real("step", step, 0.0, exclusive=True))
