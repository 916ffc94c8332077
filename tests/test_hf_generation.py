"""Models of transformers that generate from progressive caches."""

import threading

import pytest
import torch

import lynxq
from lynxq.integrations.hf import ProgressiveCache, to_cache
from tests.hf_models import ARGUMENT, MODELS, arrive, bits, check_prefix, llama, prefill, prompt, run, states


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.parametrize("tier", ["anchor", "full"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_computes_what_it_computes_from_a_dynamic_cache(model, tier, batch):
    _, tensors = prefill(model, prompt(300, batch))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, tier)
    plain = to_cache(tensors, tier=tier)
    for step in range(4):
        ids = prompt(1 if step else 7, batch, seed=step)
        assert bits(run(model, ids, cache)) == bits(run(model, ids, plain))
    assert {n: bits(t) for n, t in states(cache).items()} == {n: bits(t) for n, t in states(plain).items()}


def test_generate_goes_on_from_the_prefix(model):
    ids = prompt(300)
    _, tensors = prefill(model, ids[:, :-1])
    results = []
    for cache in (to_cache(tensors), ProgressiveCache(tensors), ProgressiveCache(tensors, capacity=0)):
        if isinstance(cache, ProgressiveCache):
            arrive(cache, tensors, "full")
        out = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0, **{ARGUMENT: cache})
        assert out.shape == (1, 320)
        assert cache.get_seq_length() == 319
        results.append(out)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_generate_with_beams_before_the_residual_is_there(model):
    ids = prompt(60)
    _, tensors = prefill(model, ids[:, :-1])
    arguments = {"max_new_tokens": 6, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    plain = to_cache(tensors, tier="anchor")
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    for one in (plain, cache):
        one.batch_repeat_interleave(3)
    wanted = model.generate(ids, **arguments, **{ARGUMENT: plain})
    assert torch.equal(model.generate(ids, **arguments, **{ARGUMENT: cache}), wanted)
    arrive(cache, tensors, "full")
    check_prefix(cache, tensors, lynxq.decode_full, rows=[0, 0, 0])


def test_rows_are_refined_where_they_went(model):
    _, tensors = prefill(model, prompt(40, batch=3))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    cache.reorder_cache(torch.tensor([2, 0, 1]))
    cache.batch_select_indices(torch.tensor([True, False, True]))
    cache.batch_repeat_interleave(2)
    check_prefix(cache, tensors, lynxq.decode_anchor, rows=[2, 2, 1, 1])
    arrive(cache, tensors, "full")
    check_prefix(cache, tensors, lynxq.decode_full, rows=[2, 2, 1, 1])


def test_assisted_generation_crops_as_it_does_a_dynamic_cache(model):
    ids = prompt(40)
    _, tensors = prefill(model, ids[:, :-1])
    arguments = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "prompt_lookup_num_tokens": 3}
    wanted = model.generate(ids, **arguments, **{ARGUMENT: to_cache(tensors)})
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    assert torch.equal(model.generate(ids, **arguments, **{ARGUMENT: cache}), wanted)


def test_drafting_then_verifying_leaves_the_cache_of_the_full_prefix(model):
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    draft = [prompt(1, seed=9)]
    for _ in range(6):
        draft.append(run(model, draft[-1], cache)[:, -1:].argmax(-1))
    drafted = torch.cat(draft, 1)
    arrive(cache, tensors, "full")
    cache.truncate(cache.prefix)
    logits = run(model, drafted, cache)
    plain = to_cache(tensors)
    assert bits(logits) == bits(run(model, drafted, plain))
    assert {n: bits(t) for n, t in states(cache).items()} == {n: bits(t) for n, t in states(plain).items()}


def test_generating_while_refining_is_sound():
    model = llama()
    ids = prompt(600)
    _, tensors = prefill(model, ids)
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    pages = [(n, t.pages(page, page + 1)) for n, t in tensors.items() for page in range(t.layout.pages)]
    writer = threading.Thread(target=lambda: [cache.write(*page) for _ in range(3) for page in pages])
    writer.start()
    token = prompt(1, seed=1)
    for _ in range(270):  # grows out of its capacity meanwhile
        token = run(model, token, cache)[:, -1:].argmax(-1)
    writer.join()
    assert cache.tier == "full"
    check_prefix(cache, tensors, lynxq.decode_full)
    cache.truncate(600)
    assert bits(run(model, ids[:, :5], cache)) == bits(run(model, ids[:, :5], to_cache(tensors)))
