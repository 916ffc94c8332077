"""Progressive caches of transformers that are truncated, copied, reset and pruned."""

import copy

import pytest
import torch
import transformers

import lynxq
from lynxq.errors import ShapeError
from lynxq.integrations.hf import ProgressiveCache, to_cache
from tests.hf_models import arrive, bits, check_prefix, llama, prefill, prompt, run, states


@pytest.mark.parametrize("way", ["truncate", "remove", "length"])
@pytest.mark.parametrize("keep", [300, 303, 306, 311])
def test_rollback_to_any_length(keep, way):
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    suffix = prompt(11, seed=1)
    run(model, suffix, cache)
    {"truncate": lambda: cache.truncate(keep), "remove": lambda: cache.crop(keep - 311),
     "length": lambda: cache.crop(keep)}[way]()  # fmt: skip
    assert cache.get_seq_length() == keep
    arrive(cache, tensors, "full")
    plain = to_cache(tensors, tier="anchor")
    if keep > 300:
        run(model, suffix, plain)
        plain.crop(keep - 311)
    for name, tensor in states(cache).items():
        assert bits(tensor[:, :, 300:]) == bits(states(plain)[name][:, :, 300:])
    check_prefix(cache, tensors, lynxq.decode_full)
    ids = prompt(4, seed=2)
    reference = to_cache(tensors)
    for layer, other in zip(reference.layers, cache.layers, strict=True):
        layer.keys, layer.values = other.keys.clone(), other.values.clone()
    assert bits(run(model, ids, cache)) == bits(run(model, ids, reference))


@pytest.mark.parametrize("keep", [0, 1, 255, 256, 299])
def test_rollback_into_the_prefix_ignores_what_was_cropped(keep):
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    cache.truncate(keep)
    run(model, prompt(9, seed=3), cache)
    after = {name: bits(tensor[:, :, keep:]) for name, tensor in states(cache).items()}
    arrive(cache, tensors, "full")
    assert cache.prefix == keep
    assert cache.tier == "full"
    assert after == {name: bits(tensor[:, :, keep:]) for name, tensor in states(cache).items()}
    for name, tensor in states(cache).items():
        assert bits(tensor[:, :, :keep]) == bits(lynxq.decode_full(tensors[name])[:, :, :keep])


def test_a_copy_is_independent():
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    twin = copy.deepcopy(cache)
    arrive(cache, tensors, "full")
    run(model, prompt(3), cache)
    assert (twin.tier, twin.get_seq_length(), cache.get_seq_length()) == ("anchor", 300, 303)
    check_prefix(twin, tensors, lynxq.decode_anchor)
    arrive(twin, tensors, "full")
    check_prefix(twin, tensors, lynxq.decode_full)


def test_reset_drops_everything():
    model = llama()
    _, tensors = prefill(model, prompt(30))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    cache.reset()
    assert cache.get_seq_length() == 0
    ids = prompt(12, seed=4)
    assert bits(run(model, ids, cache)) == bits(run(model, ids, transformers.DynamicCache()))


def test_a_cache_made_in_inference_mode_works_outside_of_it():
    model = llama()
    _, tensors = prefill(model, prompt(30))
    with torch.inference_mode():
        cache = ProgressiveCache(tensors, capacity=30)
        arrive(cache, tensors, "anchor")
        run(model, prompt(2), cache)
    run(model, prompt(80, seed=1), cache)
    arrive(cache, tensors, "full")
    check_prefix(cache, tensors, lynxq.decode_full)


def test_pruned_keys_and_values_are_taken():
    model = llama()
    _, tensors = prefill(model, prompt(30))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    with pytest.raises(ShapeError, match="before its residual is there"):
        cache.layers[0].keys = cache.layers[0].keys[:, :, ::2]
    arrive(cache, tensors, "full")
    kept = {}
    for index, layer in enumerate(cache.layers):
        layer.keys, layer.values = layer.keys[:, :, ::2].clone(), layer.values[:, :, ::2].clone()
        kept[index] = bits(layer.keys)
    arrive(cache, tensors, "full")
    assert cache.get_seq_length() == 15
    assert kept == {index: bits(layer.keys) for index, layer in enumerate(cache.layers)}
