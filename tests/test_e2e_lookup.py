"""Generation that proposes from the rejected rest of its draft: the tokens are those of generation without it."""

from collections import Counter
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from lynxq.e2e import generation as generation_module
from lynxq.e2e import timeline
from lynxq.e2e.generation import Generation, Phase, Sampling
from lynxq.integrations.hf import ProgressiveCache, from_cache
from lynxq.lab import LanguageModel
from lynxq.speculative import Lookup
from tests import tiny_model


@pytest.fixture(scope="module", autouse=True)
def eager():
    """One token that agrees is enough, so that much is proposed, and much of it is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_module, "Lookup", partial(Lookup, least=1))
        yield


class Tokens:
    """A cache of tokens: what a model may know of the past, and which of two states it is in."""

    prefix, waited, required = 3, 0.0, "anchor"

    def __init__(self, full=False):
        self.full = full
        self.held = [-1] * self.prefix

    def truncate(self, tokens):
        assert tokens <= len(self.held)
        del self.held[tokens:]


class Bigrams:
    """Logits of a token depend on the one before it, and on the state of the cache."""

    def __init__(self, anchor, full):
        self.tables = {False: torch.tensor(anchor), True: torch.tensor(full)}

    def forward(self, ids, cache, *, keep=0):
        cache.held += ids[0].tolist()
        return self.tables[cache.full][torch.tensor(cache.held[-(keep or ids.shape[1]) :])][None]


class Scripted:
    """Says what it is told to."""

    def __init__(self, script, vocabulary):
        self.script, self.vocabulary = list(script), vocabulary

    def forward(self, ids, cache, *, keep=0):
        logits = torch.full((1, 1, self.vocabulary), -30.0)
        logits[0, 0, self.script.pop(0)] = 30.0
        return logits


class Recorded(Sampling):
    """Keeps what was asked of it."""

    def uniforms(self, phase, revision, place, count):
        self.__dict__.setdefault("asked", []).append((phase, revision, place))
        return super().uniforms(phase, revision, place, count)


def drafted(script, vocabulary, temperature=0.0):
    generation = Generation(Scripted(script, vocabulary), Tokens(), 0, Sampling(temperature))
    generation.draft(lambda done: done < len(script))
    assert generation.trace.drafted == list(script)
    return generation


def consistent(trace):
    """Whether the numbers of a trace fit each other."""
    read = Counter()
    for one in trace.passes:
        read[one.phase] += one.tokens
    passes = Counter(one.phase for one in trace.passes)
    assert read["step"] == passes["step"]
    assert read["lookup"] - passes["lookup"] == trace.proposed
    verified = trace.accepted + passes["verify"]
    assert verified + passes["step"] + passes["lookup"] + trace.kept == len(trace.final)
    return True


# --- greedy --------------------------------------------------------------------------------------------


@given(st.data())
def test_greedy_tokens_are_those_of_steps_whatever_was_drafted(data):
    vocabulary = 6
    follows = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=vocabulary, max_size=vocabulary))
    script = data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=16))
    count = data.draw(st.integers(1, 24))
    table = np.eye(vocabulary, dtype=np.float32)[follows]
    wanted = [2]
    for _ in range(max(count, len(script) + 1)):
        wanted.append(follows[wanted[-1]])
    cache = Tokens(full=True)
    generation = Generation(Bigrams(table, table), cache, 2, Sampling())
    generation.adopt(drafted(script, vocabulary))
    generation.verify()
    generation.step(count)
    final = generation.trace.final
    assert final == wanted[1 : len(final) + 1]
    assert len(final) == max(count, generation.trace.accepted + bool(script))
    assert cache.held == [-1, -1, -1, 2, *final[:-1]]
    assert consistent(generation.trace)


def test_a_draft_that_aligns_again_is_used():
    vocabulary = 32
    truth = [*range(3, 30), 2]
    follows = dict(zip([2, *truth], truth, strict=False))
    table = np.eye(vocabulary, dtype=np.float32)[[follows.get(token, 0) for token in range(vocabulary)]]
    for script in ([31, *truth[1:]], [31, 31, *truth], truth[4:], [*truth[:9], 31, *truth[10:]]):
        generation = Generation(Bigrams(table, table), Tokens(full=True), 2, Sampling())
        generation.adopt(drafted(script, vocabulary))
        generation.verify()
        generation.step(27)
        assert generation.trace.final == truth[:27]
        assert generation.trace.kept >= 11
        assert sum(one.phase in {"step", "lookup"} for one in generation.trace.passes) <= 9
        assert consistent(generation.trace)


def test_no_lookup_without_a_rejected_rest():
    table = np.eye(8, dtype=np.float32)[[1, 2, 3, 0, 0, 0, 0, 0]]
    for script in ([], [1], [1, 2, 3, 0, 1, 2, 3, 0]):
        generation = Generation(Bigrams(table, table), Tokens(full=True), 0, Sampling())
        generation.adopt(drafted(script, 8))
        generation.verify()
        generation.step(20)
        assert generation.trace.accepted == len(script)
        assert generation.trace.proposed == generation.trace.kept == 0
        assert {one.phase for one in generation.trace.passes} <= {"verify", "step"}
        assert consistent(generation.trace)


def test_the_anchors_tokens_are_not_looked_up():
    table = np.eye(8, dtype=np.float32)[[1, 2, 3, 0, 0, 0, 0, 0]]
    generation = Generation(Bigrams(table, table), Tokens(), 0, Sampling())
    generation.draft(lambda done: done < 6)
    generation.approximate()
    generation.step(20)
    assert generation.trace.final == [1, 2, 3, 0] * 5
    assert generation.trace.proposed == 0


# --- sampled -------------------------------------------------------------------------------------------

ANCHOR = np.log(np.array([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]], np.float32))
FULL = np.log(np.array([[0.2, 0.4, 0.4], [0.3, 0.2, 0.5], [0.5, 0.3, 0.2]], np.float32))


def sampled(seed, count, drafts=6, kind=Sampling):
    cache = Tokens()
    generation = Generation(Bigrams(ANCHOR, FULL), cache, 0, kind(1.0, seed))
    generation.draft(lambda done: done < drafts)
    cache.full = True
    generation.verify()
    generation.step(count)
    assert cache.held == [-1, -1, -1, 0, *generation.trace.final[:-1]]
    return generation


def test_sampled_tokens_are_distributed_as_the_full_cache_says():
    p, runs = np.exp(FULL.astype(np.float64)), 2000
    counts, kept, proposed = np.zeros((3, 3, 3)), 0, 0
    for seed in range(runs):
        generation = sampled(seed, 4)
        counts[tuple(generation.trace.final[1:4])] += 1
        kept, proposed = kept + generation.trace.kept, proposed + generation.trace.proposed
    assert 100 < kept < proposed - 100  # or the test would say nothing
    wanted = runs * (p[0] @ p)[:, None, None] * p[:, :, None] * p[None, :, :]
    assert ((counts - wanted) ** 2 / wanted).sum() < 54.1  # chi-square, 26 degrees of freedom, 1 in 1000


@pytest.mark.parametrize("seed", range(20))
def test_no_uniform_number_is_used_twice_and_a_replay_gives_the_same(seed):
    first = sampled(seed, 30, drafts=12, kind=Recorded)
    asked = first._sampling.asked
    assert len(set(asked)) == len(asked)
    cache = Tokens(full=True)
    again = Generation(Bigrams(ANCHOR, FULL), cache, 0, Sampling(1.0, seed))
    again.adopt(first)
    again.verify()
    again.step(30)
    assert again.trace.final == first.trace.final
    assert [(one.phase, one.tokens) for one in again.trace.passes] == [
        (one.phase, one.tokens) for one in first.trace.passes if one.phase != "draft"
    ]
    assert consistent(again.trace)


# --- a model and its cache -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_model.save(tmp_path_factory.mktemp("model"))
    return LanguageModel("tiny", transformers.AutoModelForCausalLM.from_pretrained(folder).eval())


@pytest.fixture(scope="module")
def prefilled(model):
    """The tensors of a prefix, the token behind it, and 40 greedy tokens of the full cache, none of them at a tie."""
    ids = torch.randint(0, 128, (1, 201), generator=torch.Generator().manual_seed(3))
    cache = transformers.DynamicCache()
    model.forward(ids[:, :-1], cache)
    tensors, last = from_cache(cache), int(ids[0, -1])
    steps, tokens = whole(tensors), [last]
    for _ in range(40):
        logits = model.forward(torch.tensor([tokens[-1:]]), steps, keep=1)[0, -1]
        best = torch.topk(logits, 2).values
        assert best[0] - best[1] > 1e-4  # otherwise either token would be right
        tokens.append(int(logits.argmax()))
    return tensors, last, tokens[1:], steps


def whole(tensors, **options):
    cache = ProgressiveCache(tensors, **options)
    for name, encoded in tensors.items():
        cache.write(name, encoded)
    return cache


EDITS = {
    "replaced": lambda t: [*t[:3], 127, *t[4:20], 126, *t[21:]],
    "inserted": lambda t: [*t[:3], 127, 126, *t[3:]],
    "missing": lambda t: [*t[:2], *t[5:]],
    "at once": lambda t: [127, *t[1:]],
    "other": lambda t: [127 - one for one in t],
}


@pytest.mark.parametrize("edit", EDITS)
def test_greedy_tokens_and_the_cache_are_those_of_steps(model, prefilled, edit):
    tensors, last, wanted, steps = prefilled
    room = 200 + 40 + 1  # what steps need and no token more; nothing has to grow
    cache = whole(tensors, capacity=max(room, 200 + len(EDITS[edit](wanted)) + 1))
    generation = Generation(model, cache, last, Sampling())
    generation.adopt(drafted(EDITS[edit](wanted), 128))
    generation.verify()
    generation.step(40)
    assert generation.trace.final == wanted
    assert consistent(generation.trace)
    assert generation.trace.kept or edit == "other"
    for ours, theirs in zip(cache.layers, steps.layers, strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert float((ours.keys - theirs.keys).abs().max()) < 1e-4
        assert float((ours.values - theirs.values).abs().max()) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("edit", EDITS)
def test_a_replay_gives_the_same_tokens_and_the_same_bits(model, prefilled, edit, temperature):
    tensors, last, wanted, _ = prefilled
    sampling = Sampling(temperature, seed=8)
    made = []
    for _ in range(2):
        cache = whole(tensors)
        generation = Generation(model, cache, last, sampling)
        generation.adopt(made[0] if made else drafted(EDITS[edit](wanted), 128, temperature))
        generation.verify()
        generation.step(40)
        made.append(generation)
    assert made[0].trace.final == made[1].trace.final
    for ours, theirs in zip(made[0]._cache.layers, made[1]._cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_each_phase_has_a_colour_in_the_picture():
    assert set(get_args(Phase)) <= {what for (actor, what), _ in timeline._LANES if actor == "decode"}
    assert {what for (_, what), _ in timeline._LANES} == timeline._COLORS.keys()
