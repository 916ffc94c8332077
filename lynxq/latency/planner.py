"""`plan`: which bit split and which window give the least latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lynxq.arguments import instance, integer, real, shown
from lynxq.errors import DTypeError, ParamsError
from lynxq.latency.equations import transfer_seconds
from lynxq.latency.shapes import ModelShape, StreamSizes, stream_sizes
from lynxq.latency.timeline import Timeline, VerificationCost
from lynxq.params import Params

#: Anchor bits and residual bits of a code.
Split = tuple[int, int]


@dataclass(frozen=True)
class Candidate:
    """One split and one window, and what they lead to.

    Attributes
    ----------
    split : (int, int)
        Anchor bits and residual bits of a code.
    window : int
        Tokens to draft; 0 is the monolithic transfer.
    sizes : StreamSizes
        Bytes of both streams.
    timeline : Timeline
        When what happens, in seconds.
    ttft : float
        Seconds to the first token: the first drafted one, or the first final one where nothing is drafted.
    time_to_target : float
        Mean seconds to so many final tokens as the plan's target says.
    """

    split: Split
    window: int
    sizes: StreamSizes
    timeline: Timeline
    ttft: float
    time_to_target: float

    @property
    def first_final(self) -> float:
        """Seconds to the first token that is never taken back."""
        return self.timeline.first_final


@dataclass(frozen=True)
class Plan:
    """All candidates, ordered by split and window, and the best ones; of equal ones the first.

    Attributes
    ----------
    candidates : tuple of Candidate
    target : int
        Final tokens that `time_to_target` counts.
    """

    candidates: tuple[Candidate, ...]
    target: int

    @property
    def least_ttft(self) -> Candidate:
        """Least time to the first token, drafted or final; of equal ones, the least time to the target."""
        return self._least(lambda c: (c.ttft, c.time_to_target))

    @property
    def least_first_final(self) -> Candidate:
        """Least time to the first final token; of equal ones, the least time to the target."""
        return self._least(lambda c: (c.first_final, c.time_to_target))

    @property
    def least_time_to_target(self) -> Candidate:
        """Least mean time to the target; of equal ones, the least time to the first token."""
        return self._least(lambda c: (c.time_to_target, c.ttft))

    def _least(self, key: Callable[[Candidate], tuple[float, float]]) -> Candidate:
        return min(self.candidates, key=key)


def plan(
    shape: ModelShape,
    tokens: int,
    acceptance: Mapping[Split, float],
    *,
    bits_per_second: float,
    tpot: float,
    verification: VerificationCost | None = None,
    compute: float = 0.0,
    target: int = 64,
    cap: int = 64,
    keys: Params | None = None,
    values: Params | None = None,
) -> Plan:
    """Compare splits and windows for one request on a link of its own.

    Parameters
    ----------
    shape : ModelShape
    tokens : int
        Context length.
    acceptance : mapping of (anchor bits, residual bits) to float
        The splits to compare, each with its measured chance that a drafted token is accepted
        (:func:`token_rate`). Without it, the fewest anchor bits would always win.
    bits_per_second : float
        Of the link.
    tpot : float
        Seconds for one token.
    verification : VerificationCost, optional
        One TPOT by default.
    compute : float
        Seconds of prefill.
    target : int
        Final tokens to count; 64 makes `time_to_target` the TT64T of the references.
    cap : int
        Largest window.
    keys, values : Params, optional
        All else but the split; the presets of these names by default.

    Returns
    -------
    Plan

    Raises
    ------
    ParamsError, DTypeError
        If an argument is out of range or of another type, or there is no split to compare.

    Examples
    --------
    >>> from lynxq.latency import ModelShape, plan
    >>> shape = ModelShape(layers=32, kv_heads=8, head_dim=128)
    >>> made = plan(shape, 65_536, {(4, 4): 0.98, (5, 3): 0.995}, bits_per_second=25e9, tpot=0.04)
    >>> made.least_ttft.split, made.least_time_to_target.split
    ((4, 4), (4, 4))
    >>> risky = plan(shape, 65_536, {(4, 4): 0.5, (5, 3): 0.995}, bits_per_second=25e9, tpot=0.04)
    >>> risky.least_time_to_target.split
    (5, 3)
    """
    instance("acceptance", acceptance, Mapping, DTypeError)
    if not acceptance:
        raise ParamsError("acceptance must name at least one split, got none")
    wanted, limit = integer("target", target, 1, 1 << 31, ParamsError), integer("cap", cap, 0, 1 << 20, ParamsError)
    cost = VerificationCost(real("tpot", tpot, 0.0, exclusive=True)) if verification is None else verification
    candidates: list[Candidate] = []
    for split in sorted(acceptance, key=repr):
        rate = real(f"acceptance of split {shown(split)}", acceptance[split], 0.0, 1.0)
        sizes = stream_sizes(
            shape, tokens, keys=_with(keys or Params.keys(), split), values=_with(values or Params.values(), split)
        )
        t_anc, t_res = (transfer_seconds(size, bits_per_second) for size in (sizes.anchor, sizes.residual))
        longest = Timeline(compute, t_anc, t_res, tpot, limit, cost)
        for window in range(longest.drafted + 1):
            timeline = replace(longest, window=window)
            ttft = timeline.first_final if timeline.first_drafted is None else timeline.first_drafted
            mean = timeline.expected_time_to(wanted, rate)
            candidates.append(Candidate(split, window, sizes, timeline, ttft, mean))
    return Plan(tuple(candidates), wanted)


def _with(params: Params, split: Split) -> Params:
    """The same parameters with another split."""
    try:
        anchor, residual = split
    except (TypeError, ValueError):
        raise ParamsError(f"a split must be a pair of anchor bits and residual bits, got {shown(split)}") from None
    if (anchor, residual) == (params.anchor_bits, params.residual_bits):
        return params
    return replace(params, anchor_bits=anchor, residual_bits=residual, anchor_points=None)
