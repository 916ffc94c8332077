"""How many tokens that were drafted from an approximate cache a better cache keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lynxq.arguments import integer, real
from lynxq.arrays import Array
from lynxq.errors import ParamsError, ShapeError
from lynxq.evaluate import Method, RowTier
from lynxq.lab import libraries, reconstruction
from lynxq.lab.decoding import draft as drafted
from lynxq.lab.decoding import logits_of
from lynxq.lab.passages import Passage
from lynxq.lab.reconstruction import Coding, PerTensor, Reconstruction
from lynxq.lab.results import Record
from lynxq.speculative import Distributions, Draft, acceptance_probability, verify


@dataclass(frozen=True)
class Acceptance(Record):
    """One line of a table: drafts from one cache, verified with another.

    Attributes
    ----------
    model, text, method, title : str
    tier : {"anchor", "full", "-"}
        What drafts: a tier of the method.
    target : {"full", "exact"}
        What verifies: the full reconstruction, or the exact cache.
    draft : int
        Tokens that were drafted each time.
    temperature : float
        0 for greedy decoding.
    seed : int
        Of the random numbers.
    bits_per_element : float
        Of what the drafts came from, counting every stored byte, over all prefixes.
    starts : tuple of int
        Length of the prefix of each draft.
    accepted : tuple of int
        Drafted tokens that stay, of each draft.
    token_rate : float
        Mean over all drafted tokens of the probability that one is accepted, given those before it: Σ min(p, q).
    encode_ms, draft_ms, verify_ms : float
        Milliseconds of coding, of drafting and of verifying, for all drafts together.
    """

    model: str
    text: str
    method: str
    title: str
    tier: RowTier
    target: str
    draft: int
    temperature: float
    seed: int
    bits_per_element: float
    starts: tuple[int, ...]
    accepted: tuple[int, ...]
    token_rate: float
    encode_ms: float
    draft_ms: float
    verify_ms: float

    derived: ClassVar[tuple[str, ...]] = ("mean_accepted",)

    @property
    def mean_accepted(self) -> float:
        """Mean number of drafted tokens that stay."""
        return sum(self.accepted) / len(self.accepted)

    @property
    def at_least(self) -> tuple[float, ...]:
        """P(accepted >= k) for k = 0 to `draft`: the share of drafts of which k tokens or more stay."""
        counts = np.array(self.accepted)
        return tuple(float((counts >= k).mean()) for k in range(self.draft + 1))


def default_starts(passage: Passage, count: int = 8) -> tuple[int, ...]:
    """Prefixes to draft behind: `count` lengths from over a half of the passage's prefix to all of it.

    Raises
    ------
    ShapeError
        If the prefix is too short for so many.
    """
    half = passage.prefix // 2
    if not 1 <= count <= passage.prefix - half:
        raise ShapeError(f"starts must be from 1 to {passage.prefix - half} for this prefix, got {count}")
    return tuple(half + (passage.prefix - half) * (index + 1) // count for index in range(count))


def acceptance(
    passage: Passage,
    methods: Iterable[Coding],
    *,
    starts: Sequence[int] | int = 8,
    draft: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
    exact: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Acceptance]:
    """Draft tokens from the anchors of several methods and verify them with the full reconstruction.

    For every start, the prefix of that length is coded on its own, as a sender would. The token of the text that
    follows it is the first input. The drafter then decodes from its cache, token by token, and one pass with the better
    cache verifies (:func:`lynxq.speculative.verify`). All starts are one batch.

    Parameters
    ----------
    passage : Passage
    methods : iterable of str, Method or PerTensor
        As :func:`lynxq.lab.reconstructions` takes them. Methods without tiers draft, and the exact cache verifies.
    starts : sequence of int, or int
        Lengths of prefixes, each at most the passage's; or how many of :func:`default_starts`. A length that is named
        twice gives two drafts.
    draft : int
        Tokens to draft.
    temperature : float
        0 for greedy decoding, by which drafts differ only in their starts.
    seed : int
        Of the random numbers, the same ones for every method.
    exact : bool
        Whether the exact cache verifies also where there is a full reconstruction.
    progress : callable, optional
        Called with the name of a method when it is done.

    Yields
    ------
    Acceptance

    Raises
    ------
    ParamsError, ShapeError
        If a method is not known, a start is out of range, or the model has too few positions for a draft; before
        anything is run.

    Examples
    --------
    >>> from lynxq import lab
    >>> passage = lab.prepare(lab.load(), open("book.txt").read(), continuation=0)  # doctest: +SKIP
    >>> for line in lab.acceptance(passage, ["pair"], starts=[512, 1024]):  # doctest: +SKIP
    ...     print(line.accepted, line.token_rate)
    """
    chosen = [reconstruction.method(one) for one in methods]
    lengths = default_starts(passage, starts) if isinstance(starts, int) else tuple(starts)
    if not lengths:
        raise ShapeError("acceptance needs at least one start, got none")
    for length in lengths:
        integer("a start", length, 1, passage.prefix)
    integer("draft", draft, 1, 1 << 16)
    passage.model.check_length(max(lengths), draft + 1)  # the token between them is of the text
    real("temperature", temperature, 0.0)
    integer("seed", seed, 0, 1 << 63, ParamsError)
    runner = _Runner(passage, lengths, draft, float(temperature), seed)
    return _lines(runner, chosen, exact, progress)


def _lines(
    runner: _Runner,
    methods: list[Method | PerTensor],
    exact: bool,
    progress: Callable[[str], None] | None,
) -> Iterator[Acceptance]:
    for one in methods:
        yield runner.line(one, exact=exact or reconstruction.tiers(one) == ("-",))
        if progress is not None:
            progress(one.name)


@dataclass(frozen=True, eq=False)
class _Runner:
    """What is the same for every method."""

    passage: Passage
    starts: tuple[int, ...]
    draft: int
    temperature: float
    seed: int

    def line(self, method: Method | PerTensor, *, exact: bool) -> Acceptance:
        near, better = self._reconstruct(method, exact)
        random = np.random.default_rng(self.seed)
        begin = time.perf_counter()
        caches = [one.tensors for one in near]
        made = drafted(self.passage.model, caches, self._first, self.draft, temperature=self.temperature, random=random)
        middle = time.perf_counter()
        target = self._target(made, better)
        accepted = verify(made, target, random).accepted
        end = time.perf_counter()
        return Acceptance(
            model=self.passage.model.name,
            text=self.passage.name,
            method=method.name,
            title=method.title,
            tier=near[0].tier,
            target="exact" if exact else "full",
            draft=self.draft,
            temperature=self.temperature,
            seed=self.seed,
            bits_per_element=8 * sum(one.nbytes for one in near) / sum(one.elements for one in near),
            starts=self.starts,
            accepted=tuple(accepted.tolist()),
            token_rate=self._rate(made, target),
            encode_ms=sum(one.encode_ms for one in near),
            draft_ms=1e3 * (middle - begin),
            verify_ms=1e3 * (end - middle),
        )

    def _reconstruct(
        self, method: Method | PerTensor, exact: bool
    ) -> tuple[list[Reconstruction], list[Mapping[str, Array]]]:
        """What drafts and what verifies, of every start; a prefix that is named twice is coded once."""
        near: dict[int, Reconstruction] = {}
        better: dict[int, Mapping[str, Array]] = {}
        for length in dict.fromkeys(self.starts):
            tensors = self.passage.shortened(length)
            made = list(reconstruction.reconstructions(tensors, method))
            near[length], better[length] = made[0], tensors if exact else made[-1].tensors
        return [near[length] for length in self.starts], [better[length] for length in self.starts]

    @property
    def _first(self) -> Array:
        """The token of the text that follows each prefix."""
        return self.passage.tokens[list(self.starts)]

    def _target(self, made: Draft, caches: list[Mapping[str, Array]]) -> Distributions:
        torch = libraries.torch()
        tokens = torch.cat([self._first[:, None], made.tokens.reshape(len(self.starts), self.draft)], 1)
        logits = logits_of(self.passage.model, caches, tokens).cpu()
        return Distributions.from_logits(logits.flatten(0, 1), temperature=self.temperature)

    def _rate(self, made: Draft, target: Distributions) -> float:
        total = 0.0
        for request in range(len(self.starts)):
            rows = np.arange(self.draft) + request * self.draft
            p, q = target.matrix(rows + request), made.distributions.matrix(rows)
            total += float(acceptance_probability(p, q).sum())
        return total / (self.draft * len(self.starts))
