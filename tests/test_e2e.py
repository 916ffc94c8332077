"""What the demonstration is made of: carriers, links, generation and pictures, in one process."""

import numpy as np
import pytest
import torch
import transformers

from lynxq import baselines, calibrate
from lynxq.e2e import Job, Outcome, Span, links, methods, timeline
from lynxq.e2e.carrier import Carrier
from lynxq.e2e.generation import Generation, Sampling
from lynxq.errors import CacheNotReadyError, ParamsError, ShapeError
from lynxq.integrations.hf import ProgressiveCache, from_cache
from lynxq.lab import LanguageModel
from tests import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder):
    return LanguageModel("tiny", transformers.AutoModelForCausalLM.from_pretrained(folder).eval())


def prefilled(model, tokens=300):
    ids = torch.randint(0, 128, (1, tokens + 1), generator=torch.Generator().manual_seed(3))
    cache = transformers.DynamicCache()
    model.forward(ids[:, :-1], cache)
    return from_cache(cache), int(ids[0, -1])


def anchored(tensors):
    cache = ProgressiveCache(tensors)
    for name, encoded in tensors.items():
        cache.write(name, encoded.anchor_only())
    return cache


def refine(cache, tensors):
    for name, encoded in tensors.items():
        cache.write(name, encoded)


# --- what is sent ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "int8", "int8-token", "int4-g64", "kivi4"])
@pytest.mark.parametrize("tokens", [1, 127, 300])
@pytest.mark.parametrize("kind", ["key", "value"])
def test_a_baseline_is_carried_byte_by_byte(name, tokens, kind):
    x = torch.randn(1, 3, tokens, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    scheme = baselines.get(name).for_kind(kind)
    carrier = Carrier.of(scheme, torch.zeros_like(x), token_axis=2)
    coded = scheme.encode(x, token_axis=2)
    sent = carrier.pack(coded)
    assert coded.nbytes <= sent.nbytes < coded.nbytes + 64
    assert sent.layout == carrier.layout
    assert sent.layout.stream_size("residual") == 0
    assert torch.equal(carrier.unpack(sent), coded.decode())


def test_a_part_of_another_shape_is_refused():
    x = torch.ones(1, 2, 8, 64)
    scheme = baselines.get("int8")
    with pytest.raises(ShapeError, match="part 'codes' of int8"):
        Carrier.of(scheme, x, token_axis=2).pack(scheme.encode(x[:, :, :7], token_axis=2))


def test_links_are_the_papers_in_steps_of_decoding():
    for gbps in links.PAPER_LINKS:
        rate = links.rate(gbps, 47_000_000, 0.05)
        assert 47_000_000 / rate / 0.05 == pytest.approx(links.PAPER_BYTES * 8 / (gbps * 1e9) / links.PAPER_STEP)


# --- generation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("drafts", [0, 1, 7, 40])
def test_final_tokens_are_those_of_the_same_passes_over_the_full_cache(model, temperature, drafts):
    tensors, last = prefilled(model)
    sampling = Sampling(temperature, seed=5)
    cache = anchored(tensors)
    first = Generation(model, cache, last, sampling)
    first.draft(lambda done: done < drafts)
    assert len(first.trace.drafted) == drafts
    refine(cache, tensors)
    first.verify()
    first.step(50)
    assert first.trace.accepted <= drafts
    assert len(first.trace.final) == len(first.trace.final_at) == 50
    assert first.trace.final_at == sorted(first.trace.final_at)
    full = ProgressiveCache(tensors)
    refine(full, tensors)
    second = Generation(model, full, last, sampling)
    second.adopt(first)
    second.verify()
    second.step(50)
    assert second.trace.final == first.trace.final
    for ours, theirs in zip(cache.layers, full.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
    if not drafts:
        assert [one.phase for one in first.trace.passes] == ["step"] * 50


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_draft_that_was_revised_is_verified_as_any_other(model, temperature):
    tensors, last = prefilled(model)
    sampling = Sampling(temperature, seed=6)
    cache = anchored(tensors)
    first = Generation(model, cache, last, sampling)
    first.draft(lambda done: done < 20)
    original = list(first.trace.drafted)
    for name in list(tensors)[:4]:  # two layers of four
        cache.write(name, tensors[name])
    first.revise(20)
    first.draft(lambda done: done < 20)
    assert first.trace.revisions == 1
    assert len(first.trace.drafted) == 20
    assert cache.get_seq_length() == cache.prefix + 20
    assert len(first.trace.drafted_at) == len(first.trace.drafted)
    refine(cache, tensors)
    if not temperature:  # once all is there, a revised draft is what verification would leave
        first.revise(20)
    first.verify()
    first.step(40)
    assert temperature or first.trace.accepted == len(first.trace.drafted)
    full = ProgressiveCache(tensors)
    refine(full, tensors)
    second = Generation(model, full, last, sampling)
    second.adopt(first)
    second.verify()
    second.step(40)
    assert second.trace.final == first.trace.final
    assert first.trace.final[: first.trace.accepted] == first.trace.drafted[: first.trace.accepted]
    assert original


def test_sampled_tokens_follow_the_full_cache_whatever_was_drafted_and_revised():
    class Table:
        """A model of three tokens whose distribution depends on whether its cache is full, and on nothing else."""

        def forward(self, ids, cache, *, keep=0):
            row = {"anchor": [0.7, 0.2, 0.1], "half": [0.1, 0.6, 0.3], "full": [0.25, 0.25, 0.5]}[cache.state]
            count = keep or ids.shape[1]
            return torch.tensor(row).log().expand(1, count, 3)

    class Stage:
        prefix, waited, required, state = 0, 0.0, "anchor", "anchor"

        def truncate(self, tokens):
            pass

    counts = np.zeros((3, 3))
    for seed in range(3000):
        cache = Stage()
        generation = Generation(Table(), cache, 0, Sampling(1.0, seed))
        generation.draft(lambda done: done < 2)
        cache.state = "half"
        generation.revise(3)
        generation.draft(lambda done: done < 3)
        cache.state = "full"
        generation.verify()
        generation.step(2)
        counts[tuple(generation.trace.final[:2])] += 1
    p = np.array([0.25, 0.25, 0.5])
    wanted = 3000 * np.outer(p, p)
    assert ((counts - wanted) ** 2 / wanted).sum() < 26.1  # chi-square, 8 degrees of freedom, 1 in 1000


@pytest.mark.parametrize("drafts", [1, 5, 30])
def test_greedy_tokens_are_those_of_decoding_step_by_step(model, drafts):
    tensors, last = prefilled(model)
    cache = anchored(tensors)
    generation = Generation(model, cache, last, Sampling())
    generation.draft(lambda done: done < drafts)
    refine(cache, tensors)
    generation.verify()
    generation.step(40)
    full = ProgressiveCache(tensors)
    refine(full, tensors)
    token, wanted = last, []
    for _ in range(40):
        logits = model.forward(torch.tensor([[token]]), full, keep=1)[0, -1]
        best = torch.topk(logits, 2).values
        assert best[0] - best[1] > 1e-4  # otherwise either token would be right, and this test would say nothing
        token = int(logits.argmax())
        wanted.append(token)
    assert generation.trace.final == wanted


def test_one_pass_and_many_round_differently_by_very_little(model):
    tensors, last = prefilled(model)
    ids = [last, *np.random.default_rng(0).integers(0, 128, 30).tolist()]
    caches = [ProgressiveCache(tensors), ProgressiveCache(tensors)]
    for cache in caches:
        refine(cache, tensors)
    together = model.forward(torch.tensor([ids]), caches[0])[0]
    steps = torch.cat([model.forward(torch.tensor([[one]]), caches[1])[0] for one in ids])
    assert float((together - steps).abs().max()) < 1e-4


def test_going_on_without_the_residual(model):
    tensors, last = prefilled(model)
    cache = anchored(tensors)
    generation = Generation(model, cache, last, Sampling())
    generation.draft(lambda done: done < 5)
    with pytest.raises(CacheNotReadyError):
        generation.verify()
    assert generation.trace.final == []
    generation.approximate()
    generation.step(12)
    plain = anchored(tensors)
    other = Generation(model, plain, last, Sampling())
    other.step(12)
    assert generation.trace.final == other.trace.final


# --- jobs and pictures ----------------------------------------------------------------------------


def test_jobs_that_make_no_sense_are_refused():
    for wrong in ({"prompt_tokens": 1}, {"new_tokens": 0}, {"temperature": -1.0}, {"rate": 0.0}, {"cap": -1}):
        with pytest.raises(ParamsError):
            Job(**{"method": "lynx", "prompt_tokens": 10, **wrong})
    with pytest.raises(ParamsError, match="must be one of lynx"):
        methods.of(Job(method="zip", prompt_tokens=2))


def test_a_calibration_without_a_kind_is_refused_before_any_work():
    found = calibrate({"layer.0.value": np.ones((64, 1, 64), np.float32)}, token_axis=0)
    job = Job(method="lynx-calibrated", prompt_tokens=2, calibration=found.to_json())
    with pytest.raises(ParamsError, match="key"):
        methods.of(job)


def test_the_picture_is_drawn(tmp_path):
    spans = [
        Span(actor="link", what="anchor", begin=0.0, end=1.0),
        Span(actor="decode", what="draft", begin=1.0, end=1.2),
    ]
    outcomes = [
        Outcome(
            job=Job(method="lynx", prompt_tokens=10),
            spans=spans,
            first_drafted=1.2,
            first_final=2.0,
            drafted=1,
            proposed=4,
            kept=2,
        ),
        Outcome(job=Job(method="int8", prompt_tokens=10), error="nothing came"),
    ]
    timeline.draw(outcomes, tmp_path / "a.png", title="two runs")
    timeline.draw(outcomes, tmp_path / "b.png", title="two runs")
    data = (tmp_path / "a.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data == (tmp_path / "b.png").read_bytes()
