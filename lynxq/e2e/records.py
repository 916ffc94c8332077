"""What is asked of a run, and what comes of it: plain records, JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: move the cache of a prompt with one method, and generate.

    Parameters
    ----------
    method : str
        One of those that ``lynxq e2e --methods`` takes.
    prompt_tokens : int
        Of the prefilled text; the last one of them is left to the decode side.
    new_tokens : int
        Final tokens to generate.
    rate : float or None
        Bytes per second of the link; None for no limit.
    temperature : float
        0 is greedy decoding.
    seed : int
        Of sampled decoding.
    cap : int
        Tokens to draft at most.
    allow_approximate : bool
        Whether to go on from the anchor if the residual never comes. The outcome then says that it is approximate.
    residual_timeout : float
        Seconds without a byte after which the rest counts as never coming.
    check : bool
        Whether to compare the tokens with those from the full reconstruction afterwards.
    calibration : str, optional
        JSON of a :class:`lynxq.calibration.Calibration`, for the method ``lynx-calibrated``.
    """

    method: str
    prompt_tokens: int
    new_tokens: int = 64
    rate: float | None = None
    temperature: float = 0.0
    seed: int = 0
    cap: int = 64
    allow_approximate: bool = False
    residual_timeout: float = 60.0
    check: bool = True
    calibration: str | None = None

    def __post_init__(self) -> None:
        integer("prompt_tokens", self.prompt_tokens, 2, 1 << 24, ParamsError)
        integer("new_tokens", self.new_tokens, 1, 1 << 20, ParamsError)
        integer("cap", self.cap, 0, 1 << 20, ParamsError)
        integer("seed", self.seed, 0, 1 << 62, ParamsError)
        real("temperature", self.temperature, 0.0)
        real("residual_timeout", self.residual_timeout, 0.0, exclusive=True)
        if self.rate is not None:
            real("rate", self.rate, 0.0, exclusive=True)

    def at(self, rate: float | None) -> Self:
        """The same over another link."""
        return replace(self, rate=rate)


@dataclass(kw_only=True)
class Span:
    """Who did what from when to when, in seconds since the request."""

    actor: str
    what: str
    begin: float
    end: float


@dataclass(kw_only=True)
class Outcome:
    """What came of a run. Times are seconds from the request for the cache; None for what did not happen.

    Attributes
    ----------
    job : Job
    anchor_bytes, residual_bytes : int
        Payload that arrived; a scheme without residual has its bytes in the first.
    first_drafted : float or None
        Until a token was there that may be taken back; with schemes that do not draft, the first token.
    first_final : float or None
        Until the first token that is never taken back.
    final_at : list of float
        Of every final token.
    drafted, accepted : int
        Tokens of the draft that was verified, and those that stayed.
    revisions : int
        How often the draft was read again before, with what had arrived of the residual.
    proposed, kept : int
        Tokens that were proposed from the rejected part of the draft after the verification, and those that stayed.
    passes : dict of str to int
        Forward passes of each phase: "draft", "revise", "verify", "lookup" (with proposed tokens), "step" (without).
    window : int or None
        Tokens that the adaptive window asked for when the anchor was there.
    tokens, draft : list of int
        Final tokens, and drafted ones.
    approximate : bool
        The residual never came, and the tokens are those of the anchor.
    cancelled : bool
    error : str or None
        Why there are not all tokens.
    same_as_full : bool or None
        Whether the tokens are those of step by step decoding from the full reconstruction (greedy), or of the same
        passes over an independent reconstruction (sampled).
    difference : dict or None
        Where they are not: the place, and the gap of the two largest logits there.
    rounding : float or None
        Largest difference of a logit between one pass over the tokens and a pass for each, greedy runs only.
    spans : list of Span
    """

    job: Job
    anchor_bytes: int = 0
    residual_bytes: int = 0
    anchor_at: float | None = None
    residual_at: float | None = None
    first_drafted: float | None = None
    first_final: float | None = None
    final_at: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    revisions: int = 0
    proposed: int = 0
    kept: int = 0
    passes: dict[str, int] = field(default_factory=dict)
    window: int | None = None
    verify_seconds: float | None = None
    tokens: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    text: str = ""
    approximate: bool = False
    cancelled: bool = False
    error: str | None = None
    same_as_full: bool | None = None
    difference: dict[str, float] | None = None
    rounding: float | None = None
    spans: list[Span] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all tokens are there, and none of them from the anchor."""
        return self.error is None and not self.approximate and not self.cancelled

    @property
    def tie(self) -> bool:
        """Whether the tokens differ where the two largest logits are as close as rounding is large."""
        return self.difference is not None and self.difference["gap"] <= 2 * (self.rounding or 0.0)

    def until(self, tokens: int) -> float | None:
        """Seconds until there were so many final tokens."""
        return self.final_at[tokens - 1] if len(self.final_at) >= tokens else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From what :meth:`to_dict` gave; what is not known is left out."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["job"] = Job(**data["job"])
        known["spans"] = [Span(**span) for span in data.get("spans", [])]
        return cls(**known)


def line(kind: str, **what: Any) -> bytes:
    """A message between processes."""
    return json.dumps({"kind": kind, **what}, separators=(",", ":")).encode() + b"\n"
