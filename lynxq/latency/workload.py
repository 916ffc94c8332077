"""What :func:`lynxq.latency.simulate` is given: requests, and an engine that decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lynxq.arguments import instance, integer, real
from lynxq.errors import DTypeError, ParamsError
from lynxq.latency.shapes import StreamSizes
from lynxq.latency.timeline import VerificationCost


@dataclass(frozen=True)
class Request:
    """One request whose prefill is done.

    Parameters
    ----------
    arrival : float
        Seconds; when both streams begin to wait for the link.
    anchor_bytes, residual_bytes : int
    acceptance : float
        Chance of a drafted token to be accepted, given all before it were.
    target : int
        Final tokens to generate.
    """

    arrival: float
    anchor_bytes: int
    residual_bytes: int
    acceptance: float = 1.0
    target: int = 64

    def __post_init__(self) -> None:
        real("arrival", self.arrival, 0.0)
        real("acceptance", self.acceptance, 0.0, 1.0)
        for name, low in (("anchor_bytes", 0), ("residual_bytes", 0), ("target", 1)):
            integer(name, getattr(self, name), low, 1 << 53, ParamsError)


@dataclass(frozen=True)
class Engine:
    """What a step of the decoding engine takes.

    A step gives a token to every request that drafts or decodes, and verifies the drafts that are due, in one
    forward pass: ``max(tpot + per_sequence * (decoding - 1), verification.fixed)``, each part only where there is
    such a request, and ``verification.per_token`` for every drafted token that is verified.

    Parameters
    ----------
    tpot : float
        Seconds of a step with one request.
    per_sequence : float
        Seconds more for every further one.
    verification : VerificationCost, optional
        One TPOT by default.

    Examples
    --------
    >>> from lynxq.latency import Engine, VerificationCost
    >>> engine = Engine(0.5, per_sequence=0.125, verification=VerificationCost(0.5, 0.0625))
    >>> engine.seconds(3, []), engine.seconds(0, [8]), engine.seconds(3, [8, 8])
    (0.75, 1.0, 1.75)
    """

    tpot: float
    per_sequence: float = 0.0
    verification: VerificationCost | None = None

    def __post_init__(self) -> None:
        real("tpot", self.tpot, 0.0, exclusive=True)
        real("per_sequence", self.per_sequence, 0.0)
        instance("verification", self.cost, VerificationCost, DTypeError)

    @property
    def cost(self) -> VerificationCost:
        """What verification takes."""
        return VerificationCost(self.tpot) if self.verification is None else self.verification

    def seconds(self, decoding: int, drafts: Sequence[int]) -> float:
        """Seconds of a step with so many requests that draft or decode, and drafts of these lengths to verify."""
        decode = self.tpot + self.per_sequence * (decoding - 1) if decoding else 0.0
        return max(decode, self.cost.fixed if drafts else 0.0) + self.cost.per_token * sum(drafts)


def batch(
    count: int,
    sizes: StreamSizes | Sequence[StreamSizes],
    *,
    acceptance: float = 1.0,
    target: int = 64,
    spread: float = 0.0,
    seed: int = 0,
) -> tuple[Request, ...]:
    """Requests for :func:`simulate`.

    Parameters
    ----------
    count : int
        Number of requests.
    sizes : StreamSizes or sequence of StreamSizes
        Streams of a request, or several to choose from at random.
    acceptance, target
        As :class:`Request` takes them.
    spread : float
        Arrivals are uniformly distributed over so many seconds; 0 lets all arrive at once.
    seed : int

    Returns
    -------
    tuple of Request
        Ordered by arrival.
    """
    rng = np.random.default_rng(integer("seed", seed, 0, 1 << 63, ParamsError))
    number = integer("count", count, 0, 1 << 24, ParamsError)
    options = [sizes] if isinstance(sizes, StreamSizes) else list(sizes)
    if not options:
        raise ParamsError("sizes must hold at least one, got none")
    arrivals = np.sort(rng.random(number)) * real("spread", spread, 0.0)
    chosen = rng.integers(len(options), size=number)
    return tuple(
        Request(arrival, options[index].anchor, options[index].residual, acceptance, target)
        for arrival, index in zip(arrivals.tolist(), chosen.tolist(), strict=True)
    )
