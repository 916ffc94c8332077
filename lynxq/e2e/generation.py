"""Generation from a cache that is still arriving: draft from the anchor, verify in one pass, go on.

No transport and no clock of its own: what there is to wait for is in the cache (`ProgressiveCache`), how long to
draft says a callback, and who wants to know when a token came is told by another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from lynxq.integrations.hf import ProgressiveCache
from lynxq.speculative import Distributions, Draft, Drafting, verify

Phase = Literal["draft", "verify", "step"]


class Model(Protocol):
    """What generation needs of a model; :class:`lynxq.lab.LanguageModel` has it."""

    def forward(self, ids: Any, cache: Any, *, keep: int = 0) -> Any:
        """Logits of the last `keep` positions (all for 0) of tokens that follow a cache, shape (1, keep, V)."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Parameters
    ----------
    temperature : float
        0 is greedy decoding.
    seed : int
        Of the uniform numbers. Each draft has its own, and each final token; what is drawn depends on nothing else.
    """

    temperature: float = 0.0
    seed: int = 0

    def uniforms(self, phase: Phase, place: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The numbers that a phase draws with at a place of the text."""
        key = [self.seed, ("draft", "verify", "step").index(phase), place]
        return np.random.default_rng(key).random(count)


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Attributes
    ----------
    phase : {"draft", "verify", "step"}
    begin, end : float
        Seconds of the monotonic clock.
    waited : float
        Seconds of these that it waited for the cache.
    tokens : int
        Those that it read.
    """

    phase: Phase
    begin: float
    end: float
    waited: float
    tokens: int

    @property
    def seconds(self) -> float:
        """What it took without the waiting."""
        return self.end - self.begin - self.waited


@dataclass
class Trace:
    """What was generated, and when.

    Attributes
    ----------
    drafted : list of int
        Tokens that were drafted from the anchor.
    accepted : int
        Of these, those that stay.
    final : list of int
        Verified tokens, and those after them.
    drafted_at, final_at : list of float
        When each of them was known, in seconds of the monotonic clock.
    passes : list of Pass
    """

    drafted: list[int] = field(default_factory=list)
    accepted: int = 0
    final: list[int] = field(default_factory=list)
    drafted_at: list[float] = field(default_factory=list)
    final_at: list[float] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)


class Generation:
    """Generates the continuation of a prompt whose last token the cache does not hold yet.

    Parameters
    ----------
    model : Model
    cache : ProgressiveCache
        Of one sequence.
    last : int
        The prompt's last token.
    sampling : Sampling
    on_pass : callable, optional
        Called with the trace after each pass.
    """

    def __init__(
        self,
        model: Model,
        cache: ProgressiveCache,
        last: int,
        sampling: Sampling,
        *,
        on_pass: Callable[[Trace], None] | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._last = last
        self._sampling = sampling
        self._on_pass = on_pass or (lambda _: None)
        self.trace = Trace()
        self.drafting: Draft | None = None  # tokens with what they were drawn from

    def draft(self, more: Callable[[int], bool]) -> None:
        """Draft tokens from what is there of the prefix, as long as `more` says so, which gets their number so far."""
        drafting, token = Drafting(1), self._last
        while more(len(self.trace.drafted)):
            logits = self._run("draft", [token], keep=1)
            row = Distributions.from_logits(logits, temperature=self._sampling.temperature)
            drawn = drafting.draw(row, self._sampling.uniforms("draft", len(self.trace.drafted), 1))
            token = int(drawn[0])
            self.trace.drafted.append(token)
            self.trace.drafted_at.append(time.monotonic())
            self._on_pass(self.trace)
        self.drafting = drafting.finish() if self.trace.drafted else None

    def adopt(self, other: Generation) -> None:
        """Take the draft of another generation, to verify it again."""
        self.drafting = other.drafting
        self.trace.drafted, self.trace.drafted_at = list(other.trace.drafted), list(other.trace.drafted_at)

    def verify(self) -> None:
        """Read the draft again, with the full prefix, in one pass; keep what the rule of speculation keeps.

        The pass waits, layer by layer, for what has not arrived of the residual.
        """
        self._cache.truncate(self._cache.prefix)
        self._cache.required = "full"
        if self.drafting is None:
            return
        tokens = [self._last, *self.trace.drafted]
        target = Distributions.from_logits(self._run("verify", tokens, keep=0), temperature=self._sampling.temperature)
        result = verify(self.drafting, target, self._sampling.uniforms("verify", 0, len(tokens)))
        self.trace.accepted = int(result.accepted[0])
        self._finish([int(token) for token in result.tokens])
        self._cache.truncate(self._cache.prefix + 1 + self.trace.accepted)

    def approximate(self) -> None:
        """Take drafted tokens as they are, and go on from what there is of the prefix; after a verification, too,
        that did not get its residual.
        """
        self._cache.required = "anchor"
        self._cache.truncate(self._cache.prefix)
        drafted = self.trace.drafted
        if drafted:
            self._run("draft", [self._last, *drafted[:-1]], keep=1)
            self.trace.accepted, self._last = len(drafted), drafted[-1]
            self.trace.final, self.trace.final_at = list(drafted), list(self.trace.drafted_at)
            self._on_pass(self.trace)

    def step(self, count: int) -> None:
        """Generate token by token until there are so many final ones."""
        while len(self.trace.final) < count:
            logits = self._run("step", [self._last], keep=1)
            row = Distributions.from_logits(logits, temperature=self._sampling.temperature)
            self._finish([int(row.draw(self._sampling.uniforms("step", len(self.trace.final), 1))[0])])

    def _finish(self, tokens: Sequence[int]) -> None:
        self.trace.final += tokens
        self.trace.final_at += [time.monotonic()] * len(tokens)
        self._last = tokens[-1]
        self._on_pass(self.trace)

    def _run(self, phase: Phase, tokens: Sequence[int], *, keep: int) -> Any:
        import torch

        begin, waited = time.monotonic(), self._cache.waited
        logits = self._model.forward(torch.tensor([list(tokens)]), self._cache, keep=keep)[0]
        self.trace.passes.append(Pass(phase, begin, time.monotonic(), self._cache.waited - waited, len(tokens)))
        return logits
