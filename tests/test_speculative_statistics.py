"""The output of `verify` is distributed as p: chi-square tests, and wrong rules that they must catch.

Seeds are fixed, so a run never depends on luck. The threshold is the quantile that a right rule exceeds once in
about three million cases; every wrong rule here is far beyond it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lynxq.speculative import Distributions, Draft, verify
from lynxq.speculative import verification as module

DRAWS = 60_000
#: Standard deviations of the normal distribution: one-sided, 3e-7.
DEVIATIONS = 5.0

#: Adversarial pairs (p, q) over five tokens.
PAIRS = {
    "disjoint": ([0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.2, 0.3, 0.5]),
    "zeros in p": ([0.0, 0.6, 0.0, 0.4, 0.0], [0.2, 0.2, 0.2, 0.2, 0.2]),
    "zeros in q": ([0.2, 0.2, 0.2, 0.2, 0.2], [0.0, 0.9, 0.0, 0.1, 0.0]),
    "ties": ([0.25, 0.25, 0.25, 0.25, 0.0], [0.25, 0.25, 0.0, 0.25, 0.25]),
    "reversed": ([0.05, 0.1, 0.15, 0.3, 0.4], [0.4, 0.3, 0.15, 0.1, 0.05]),
    "one token": ([0.0, 0.0, 1.0, 0.0, 0.0], [0.7, 0.1, 0.1, 0.1, 0.0]),
    "certain drafter": ([0.3, 0.3, 0.2, 0.1, 0.1], [0.0, 0.0, 0.0, 1.0, 0.0]),
    "near": ([0.2, 0.2, 0.2, 0.2, 0.2], [0.2 + 1e-9, 0.2 - 1e-9, 0.2, 0.2 - 1e-12, 0.2 + 1e-12]),
    "equal": ([0.1, 0.2, 0.3, 0.25, 0.15], [0.1, 0.2, 0.3, 0.25, 0.15]),
    "rare": ([0.001, 0.004, 0.495, 0.25, 0.25], [0.4, 0.4, 0.1, 0.05, 0.05]),
}


def excess(counts, chances):
    """Chi-square of counts against chances, over its threshold (Wilson and Hilferty's cube); infinite where p = 0."""
    counts, chances = np.asarray(counts, np.float64).ravel(), np.asarray(chances, np.float64).ravel()
    if counts[chances == 0].any():
        return math.inf
    counts, expected = counts[chances > 0], chances[chances > 0] * counts.sum()
    freedom = len(expected) - 1
    if not freedom:
        return 0.0
    cube = 2 / (9 * freedom)
    threshold = freedom * (1 - cube + DEVIATIONS * math.sqrt(cube)) ** 3
    return float(((counts - expected) ** 2 / expected).sum()) / threshold


def first_tokens(p, q, seed, put=np.asarray):
    """Counts of the first final token, of many requests with one drafted token each."""
    rng = np.random.default_rng(seed)
    made = Distributions.from_probabilities(put(np.tile(q, (DRAWS, 1))))
    draft = Draft(made.draw(rng), made, np.ones(DRAWS, int))
    target = Distributions.from_probabilities(put(np.tile(p, (2 * DRAWS, 1))))
    verified = verify(draft, target, rng)
    first = np.asarray(verified.tokens)[np.cumsum(verified.lengths) - verified.lengths]
    return np.bincount(first, minlength=len(p))


def conditional(rng, width, zeros):
    weights = rng.random((width, width)) * (rng.random((width, width)) > zeros)
    weights[np.arange(width), rng.integers(width, size=width)] += 0.5
    return weights / weights.sum(-1, keepdims=True)


def pairs_of_tokens(seed, width=4):
    """Counts of the first two final tokens, and their chances, where what follows depends on what came before."""
    rng = np.random.default_rng(seed)
    p, q = conditional(rng, width, 0.15), conditional(rng, width, 0.15)  # row 0 is also that of the first token
    lengths = rng.integers(0, 4, DRAWS)
    owner = np.repeat(np.arange(DRAWS), lengths)
    step = np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
    tokens = np.zeros(len(owner), np.int64)
    context = np.zeros(len(owner), np.int64)
    for number in range(3):
        now = np.flatnonzero(step == number)
        if number:
            context[now] = tokens[now - 1]
        tokens[now] = Distributions.from_probabilities(q[context[now]]).draw(rng)
    draft = Draft(tokens, Distributions.from_probabilities(q[context]), lengths)
    starts = np.cumsum(lengths) - lengths + np.arange(DRAWS)
    contexts = np.zeros(len(owner) + DRAWS, np.int64)
    contexts[np.arange(len(owner)) + owner + 1] = tokens
    contexts[starts] = 0
    verified = verify(draft, Distributions.from_probabilities(p[contexts]), rng)
    first_place = np.cumsum(verified.lengths) - verified.lengths
    first = verified.tokens[first_place]
    alone = verified.lengths == 1
    second = verified.tokens[np.minimum(first_place + 1, len(verified.tokens) - 1)]
    second[alone] = Distributions.from_probabilities(p[first[alone]]).draw(rng)  # decoding goes on by itself
    counts = np.bincount(first * width + second, minlength=width * width)
    return counts, p[0][:, None] * p


@pytest.mark.parametrize("put", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_output_is_distributed_as_the_target(name, put):
    p, q = PAIRS[name]
    assert excess(first_tokens(p, q, seed=17, put=put), p) < 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sequences_are_distributed_as_the_target(seed):
    assert excess(*pairs_of_tokens(seed)) < 1


def test_bonus_tokens_are_distributed_as_the_last_row():
    rng = np.random.default_rng(4)
    q, last = [0.5, 0.5, 0.0], [0.2, 0.0, 0.8]
    made = Distributions.from_probabilities(np.tile(q, (DRAWS, 1)))
    target = Distributions.from_probabilities(np.tile([q, last], (DRAWS, 1)))
    verified = verify(Draft(made.draw(rng), made, np.ones(DRAWS, int)), target, rng)
    assert (verified.accepted == 1).all()
    assert excess(np.bincount(verified.tokens[1::2], minlength=3), last) < 1


# --- rules that are wrong ---------------------------------------------------------------------------


def no_correction(p, q):
    return p


def reversed_correction(p, q):
    return np.where((q > p).any(-1, keepdims=True), np.maximum(q - p, 0), p)


def absolute_correction(p, q):
    return np.where((q != p).any(-1, keepdims=True), np.abs(p - q), p)


def draft_again(p, q):
    return q


WRONG_CORRECTIONS = [no_correction, reversed_correction, absolute_correction, draft_again]
WRONG_ACCEPTANCES = {
    "always": lambda p, q, u: (p >= 0) & (q > 0) & (u < 1),
    "never": lambda p, q, u: (p < 0) | (q < 0) | (u < 0),
    "p instead of q": lambda p, q, u: (u * p < p) | (q < 0),
    "p alone": lambda p, q, u: (u < p) | (q < 0),
    "q over p": lambda p, q, u: u * p < q,
    "where p exceeds q": lambda p, q, u: (p >= q) & (u < 1),
}


@pytest.mark.parametrize("wrong", WRONG_CORRECTIONS)
def test_wrong_corrections_are_caught(monkeypatch, wrong):
    monkeypatch.setattr(module, "leftover", wrong)
    assert excess(first_tokens(*PAIRS["reversed"], seed=17), PAIRS["reversed"][0]) > 10
    assert excess(*pairs_of_tokens(1)) > 10


@pytest.mark.parametrize("wrong", WRONG_ACCEPTANCES)
def test_wrong_acceptances_are_caught(monkeypatch, wrong):
    monkeypatch.setattr(module, "accepts", WRONG_ACCEPTANCES[wrong])
    assert excess(first_tokens(*PAIRS["reversed"], seed=17), PAIRS["reversed"][0]) > 10
    assert excess(*pairs_of_tokens(1)) > 10


def test_a_uniform_number_used_twice_is_caught(monkeypatch):
    """The number that rejected a token must not choose its replacement."""
    right = module.rows.random_numbers

    def twice(random, count):
        uniforms = right(random, count)
        if count == 2 * DRAWS:
            uniforms[1::2] = uniforms[::2]
        return uniforms

    monkeypatch.setattr(module.rows, "random_numbers", twice)
    assert excess(first_tokens(*PAIRS["zeros in q"], seed=17), PAIRS["zeros in q"][0]) > 10


def test_a_wrong_draft_distribution_is_caught():
    """Tokens that were drawn from q, with another distribution passed for it: what the interface warns about."""
    rng = np.random.default_rng(5)
    p, q = PAIRS["reversed"]
    tokens = Distributions.from_probabilities(np.tile(q, (DRAWS, 1))).draw(rng)
    claimed = Distributions.from_probabilities(np.full((DRAWS, 5), 0.2))
    target = Distributions.from_probabilities(np.tile(p, (2 * DRAWS, 1)))
    verified = verify(Draft(tokens, claimed, np.ones(DRAWS, int)), target, rng)
    first = verified.tokens[np.cumsum(verified.lengths) - verified.lengths]
    assert excess(np.bincount(first, minlength=5), p) > 10


def test_acceptance_happens_as_often_as_the_overlap_says():
    for p, q in PAIRS.values():
        rng = np.random.default_rng(9)
        made = Distributions.from_probabilities(np.tile(q, (DRAWS, 1)))
        target = Distributions.from_probabilities(np.tile(p, (2 * DRAWS, 1)))
        verified = verify(Draft(made.draw(rng), made, np.ones(DRAWS, int)), target, rng)
        overlap = float(np.minimum(p, q).sum())
        slack = DEVIATIONS * math.sqrt(max(overlap * (1 - overlap), 1e-7) / DRAWS)
        assert abs(verified.accepted.mean() - overlap) <= slack
