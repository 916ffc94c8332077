"""When which token is there: one request on a link of its own, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from lynxq.arguments import instance, integer, real
from lynxq.errors import DTypeError, ParamsError
from lynxq.latency.equations import expected_accepted, tokens_to_hide


@dataclass(frozen=True)
class VerificationCost:
    """Seconds of the forward pass that verifies a draft: ``fixed + per_token * drafted``.

    Parameters
    ----------
    fixed : float
        Seconds, whatever the length; about a TPOT, since the weights are read once.
    per_token : float
        Seconds for each drafted token.

    Examples
    --------
    >>> from lynxq.latency import VerificationCost
    >>> VerificationCost(0.25, 0.0625).seconds(4)
    0.5
    """

    fixed: float = 0.0
    per_token: float = 0.0

    def __post_init__(self) -> None:
        real("fixed", self.fixed, 0.0)
        real("per_token", self.per_token, 0.0)

    def seconds(self, drafted: int) -> float:
        """Seconds for one draft."""
        return self.fixed + self.per_token * drafted


@dataclass(frozen=True)
class Timeline:
    """A request alone on its link: anchor, drafting beside the residual, verification, ordinary decoding.

    Drafting ends with the step in which the residual becomes complete, or with the window. Times are in seconds
    from the beginning of prefill. "Final" tokens are verified, or decoded from the full cache.

    Parameters
    ----------
    compute : float
        Seconds of prefill.
    t_anc, t_res : float
        Seconds of transfer of the anchor, and of the residual after it.
    tpot : float
        Seconds for one token, drafted or not.
    window : int
        Most tokens to draft; 0 waits for the residual, which is the monolithic transfer.
    verification : VerificationCost

    Examples
    --------
    >>> from lynxq.latency import Timeline, VerificationCost
    >>> split = Timeline(0.0, t_anc=1.0, t_res=1.0, tpot=0.125, window=64, verification=VerificationCost(0.125))
    >>> split.drafted, split.first_drafted, split.first_final
    (8, 1.125, 2.125)
    >>> split.time_to(16, accepted=8)  # 8 + 1 at 2.125 s, 7 more at 0.125 s
    3.0
    >>> monolithic = Timeline(0.0, t_anc=1.0, t_res=1.0, tpot=0.125, window=0)
    >>> monolithic.first_final, monolithic.time_to(16)
    (2.125, 4.0)
    """

    compute: float
    t_anc: float
    t_res: float
    tpot: float
    window: int = 64
    verification: VerificationCost = VerificationCost()

    def __post_init__(self) -> None:
        for name in ("compute", "t_anc", "t_res"):
            real(name, getattr(self, name), 0.0)
        real("tpot", self.tpot, 0.0, exclusive=True)
        integer("window", self.window, 0, 1 << 31, ParamsError)
        instance("verification", self.verification, VerificationCost, DTypeError)

    @property
    def anchor_ready(self) -> float:
        """When the anchor is complete."""
        return self.compute + self.t_anc

    @property
    def residual_ready(self) -> float:
        """When the residual is complete."""
        return self.anchor_ready + self.t_res

    @property
    def drafted(self) -> int:
        """Tokens drafted: the window, or fewer if the residual is there before."""
        return min(self.window, tokens_to_hide(self.t_res, self.tpot))

    @property
    def first_drafted(self) -> float | None:
        """When the first drafted token is there, which is what the paper calls TTFT; None without drafting."""
        return self.anchor_ready + self.tpot if self.drafted else None

    @property
    def stall(self) -> float:
        """Seconds between the last drafted token and the residual."""
        return max(0.0, self.t_res - self.drafted * self.tpot)

    @property
    def full_ready(self) -> float:
        """When ordinary decoding can go on: after the residual, the running step and the verification."""
        if not self.drafted:
            return self.residual_ready
        drafting_ends = self.anchor_ready + self.drafted * self.tpot
        return max(drafting_ends, self.residual_ready) + self.verification.seconds(self.drafted)

    @property
    def first_final(self) -> float:
        """When the first final token is there: one that will never be taken back."""
        return self.full_ready if self.drafted else self.full_ready + self.tpot

    def time_to(self, tokens: int, accepted: int = 0) -> float:
        """When so many final tokens are there.

        Parameters
        ----------
        tokens : int
            At least 1.
        accepted : int
            Drafted tokens that were accepted, at most `drafted`.
        """
        wanted = integer("tokens", tokens, 1, 1 << 31, ParamsError)
        kept = integer("accepted", accepted, 0, self.drafted, ParamsError)
        verified = kept + 1 if self.drafted else 0
        return self.full_ready + max(0, wanted - verified) * self.tpot

    def expected_time_to(self, tokens: int, rate: float) -> float:
        """Mean of `time_to` if each token is accepted with one chance, given all before it were.

        Parameters
        ----------
        tokens : int
            At least 1.
        rate : float
            As :func:`expected_accepted` takes it.
        """
        wanted = integer("tokens", tokens, 1, 1 << 31, ParamsError)
        if not self.drafted:
            return self.time_to(wanted)
        saved = expected_accepted(min(self.drafted, wanted - 1), rate)
        return self.full_ready + (wanted - 1 - saved) * self.tpot
