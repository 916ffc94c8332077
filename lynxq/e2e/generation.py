"""Generation from a cache that is still arriving: draft from the anchor, verify in one pass, go on.

What the verification rejects is not lost: later passes propose from it what it has in common with the final text.

No transport and no clock of its own: what there is to wait for is in the cache (`ProgressiveCache`), how long to
draft says a callback, and who wants to know when a token came is told by another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from lynxq.errors import DistributionError
from lynxq.integrations.hf import ProgressiveCache
from lynxq.speculative import Distributions, Draft, Lookup, verify

Phase = Literal["draft", "revise", "verify", "step", "lookup"]
_PHASES: tuple[Phase, ...] = ("draft", "revise", "verify", "step", "lookup")


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
        Of the uniform numbers. Each drafted and each final token has its own; no number is used twice.
    """

    temperature: float = 0.0
    seed: int = 0

    def uniforms(self, phase: Phase, revision: int, place: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The numbers that a phase draws with at a place of the text, after so many revisions of the draft."""
        return np.random.default_rng([self.seed, _PHASES.index(phase), revision, place]).random(count)


@dataclass(frozen=True)
class Pass:
    """One forward pass.

    Attributes
    ----------
    phase : {"draft", "revise", "verify", "step", "lookup"}
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
        Tokens that were drafted, as the last revision left them.
    revisions : int
        How often the draft was read again before the verification.
    accepted : int
        Of these, those that stay.
    proposed, kept : int
        Tokens that were proposed from the rejected part of the draft, and those of them that stayed.
    final : list of int
        Verified tokens, and those after them.
    drafted_at, final_at : list of float
        When each of them was known, in seconds of the monotonic clock.
    passes : list of Pass
    """

    drafted: list[int] = field(default_factory=list)
    revisions: int = 0
    accepted: int = 0
    proposed: int = 0
    kept: int = 0
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
        self._rows: list[Distributions] = []  # what the drafted tokens were drawn from
        self._lookup = Lookup([])

    def draft(self, more: Callable[[int], bool]) -> None:
        """Draft tokens from what is there of the prefix, as long as `more` says so, which gets their number so far.

        It goes on where an earlier draft or a revision of it has ended.
        """
        while more(len(self.trace.drafted)):
            place = len(self.trace.drafted)
            row = self._distributions(self._run("draft", [self._following], keep=1))
            drawn = row.draw(self._sampling.uniforms("draft", self.trace.revisions, place, 1))
            self._rows.append(row)
            self.trace.drafted.append(int(drawn[0]))
            self.trace.drafted_at.append(time.monotonic())
            self._on_pass(self.trace)

    @property
    def _following(self) -> int:
        """The last token that there is, drafted or not."""
        return self.trace.drafted[-1] if self.trace.drafted else self._last

    def _judge(
        self, phase: Phase, tokens: Sequence[int], rows: Distributions | None = None
    ) -> tuple[Distributions, list[int], int]:
        """Read proposed tokens behind the final ones, in one pass; what they should have been drawn from, what comes of
        them, and how many stay. Of the rest, nothing stays in the cache.

        `rows` is what they were drawn from; None for tokens without randomness.
        """
        place = len(self.trace.final)
        target = self._distributions(self._run(phase, [self._last, *tokens], keep=0))
        proposed = target.home.put(np.array(tokens, np.int64))
        if rows is None:
            rows = Distributions.certain(proposed, target.vocabulary)
        uniforms = self._sampling.uniforms(phase, self.trace.revisions, place, len(tokens) + 1)
        result = verify(Draft(proposed, rows, [len(tokens)]), target, uniforms)
        kept = int(result.accepted[0])
        self._cache.truncate(self._cache.prefix + place + 1 + kept)
        return target, [int(token) for token in result.tokens], kept

    def _judge_draft(self, phase: Phase) -> tuple[Distributions, list[int], int]:
        self._cache.truncate(self._cache.prefix)
        rows = Distributions.concatenate(self._rows, np.arange(len(self.trace.drafted)))
        return self._judge(phase, self.trace.drafted, rows)

    def revise(self, limit: int) -> None:
        """Read the draft again with what has arrived since, and keep what the rule of speculation keeps.

        At most `limit` tokens: where all stay, the rule adds one.

        What comes out follows the distributions of the cache as it is now, and is a draft again, of these.
        """
        if not self.trace.drafted:
            return
        self.trace.revisions += 1
        target, tokens, kept = self._judge_draft("revise")
        tokens = tokens[:limit]
        self._rows = [Distributions.concatenate([target], np.arange(len(tokens)))]
        self._cache.truncate(self._cache.prefix + len(tokens))
        self.trace.drafted = tokens
        self.trace.drafted_at = [*self.trace.drafted_at[:kept], time.monotonic()][: len(tokens)]
        self._on_pass(self.trace)

    def adopt(self, other: Generation) -> None:
        """Take the draft of another generation, to verify it again."""
        self._rows = list(other._rows)
        self.trace.revisions = other.trace.revisions
        self.trace.drafted, self.trace.drafted_at = list(other.trace.drafted), list(other.trace.drafted_at)

    def verify(self) -> None:
        """Read the draft again, with the full prefix, in one pass; keep what the rule of speculation keeps.

        The pass waits, layer by layer, for what has not arrived of the residual.
        """
        self._cache.required = "full"
        if self.trace.drafted:
            _, tokens, kept = self._judge_draft("verify")
            self.trace.accepted = kept
            self._lookup = Lookup(self.trace.drafted[kept:])
            self._lookup.extend(tokens[kept:])
            self._finish(tokens)

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
        """Generate until there are so many final tokens.

        A pass reads the last token, and with it those that :class:`lynxq.speculative.Lookup` proposes from what was
        rejected of the draft: as many of them stay as the rule of speculation says, and one more. They are a function
        of the draft and the final tokens, so the same passes can be made again.
        """
        while len(self.trace.final) < count:
            place = len(self.trace.final)
            proposal = self._lookup.propose(count - place - 1)
            if proposal:
                _, tokens, kept = self._judge("lookup", proposal)
                self.trace.proposed += len(proposal)
                self.trace.kept += kept
            else:
                row = self._distributions(self._run("step", [self._last], keep=1))
                tokens = [int(row.draw(self._sampling.uniforms("step", 0, place, 1))[0])]
            self._lookup.extend(tokens)
            self._finish(tokens)

    def _distributions(self, logits: Any) -> Distributions:
        if self._sampling.temperature:
            return Distributions.from_logits(logits, temperature=self._sampling.temperature)
        best = logits.argmax(-1)  # the first one where several are equal; no row of the vocabulary is kept
        if not logits.gather(-1, best[:, None]).isfinite().all():
            raise DistributionError("logits must be finite, but the largest one of a row is not")
        return Distributions.certain(best, logits.shape[-1])

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
