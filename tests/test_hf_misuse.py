"""Caches, tensors and states that progressive caches of transformers refuse."""

import numpy as np
import pytest
import torch
import transformers

import lynxq
from lynxq.errors import DTypeError, MissingResidualError, ShapeError
from lynxq.integrations.hf import ProgressiveCache, from_cache, tensor_name, to_cache
from tests.hf_models import ARGUMENT, KINDS, VOCABULARY, arrive, check_prefix, llama, prefill, prompt, run, states


def test_layers_of_other_kinds_are_refused():
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=8, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    cache = transformers.DynamicCache(config=config)
    run(model, prompt(20), cache)
    with pytest.raises(DTypeError, match="layer 0 is a DynamicSlidingWindowLayer"):
        from_cache(cache)
    static = transformers.StaticCache(config=config, max_cache_len=32)
    run(model, prompt(20), static)
    with pytest.raises(DTypeError, match="layer 0 is a StaticSlidingWindowLayer"):
        from_cache(static)


def test_what_is_no_cache_or_an_empty_one_is_refused():
    with pytest.raises(DTypeError, match="got dict"):
        from_cache({})
    with pytest.raises(DTypeError, match="at least one layer"):
        from_cache(transformers.DynamicCache())
    with pytest.raises(ShapeError, match="it has 0"):
        from_cache(transformers.DynamicCache(config=llama().config))


def test_tensors_that_make_no_cache_are_refused():
    _, tensors = prefill(llama(), prompt(30))
    for make in (ProgressiveCache, to_cache):
        with pytest.raises(ShapeError, match="at least one layer"):
            make({})
        with pytest.raises(ShapeError, match=r"got 'layer\.00\.key'"):
            make({"layer.00.key": tensors["layer.0.key"]})
        with pytest.raises(ShapeError, match=r"needs 'layer\.1\.value'"):
            make({name: t for name, t in tensors.items() if name != "layer.1.value"})
        short = lynxq.encode(torch.ones(1, 2, 29, 16), token_axis=2)
        with pytest.raises(ShapeError, match="one batch size and length"):
            make({**tensors, "layer.1.value": short})
        flat = lynxq.encode(torch.ones(30, 2, 16), token_axis=0)
        with pytest.raises(ShapeError, match="token axis 2"):
            make({**tensors, "layer.1.value": flat})
        late = lynxq.encode(torch.ones(1, 2, 30, 16), token_axis=2, first_token=4)
        with pytest.raises(ShapeError, match="begins with token 4"):
            make({**tensors, "layer.0.key": late})
        padded = lynxq.encode(torch.ones(1, 2, 30, 16), token_axis=2, valid_tokens=29)
        with pytest.raises(ShapeError, match="it holds 29"):
            make({**tensors, "layer.0.key": padded})
        with pytest.raises(DTypeError, match="float32, float16 or bfloat16"):
            make(tensors, dtype=torch.float64)
    with pytest.raises(MissingResidualError):
        to_cache({name: t.anchor_only() for name, t in tensors.items()})
    with pytest.raises(ShapeError, match="tokens"):
        to_cache(tensors, tokens=31)


def test_pages_of_other_tensors_are_refused_and_change_nothing():
    _, tensors = prefill(llama(), prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    for pages in (
        lynxq.encode(torch.ones(1, 2, 300, 8), token_axis=2),
        lynxq.encode(torch.ones(2, 2, 300, 16), token_axis=2),
        lynxq.encode(torch.ones(1, 2, 20, 16), token_axis=2, first_token=290),
        lynxq.encode(torch.ones(2, 1, 300, 16), token_axis=2),
    ):
        with pytest.raises(ShapeError, match=r"pages of 'layer\.0\.key' must be"):
            cache.write("layer.0.key", pages)
    with pytest.raises(ShapeError, match="has 3 layers"):
        cache.write("layer.3.key", tensors["layer.0.key"])
    with pytest.raises(ShapeError, match="named"):
        cache.write("key", tensors["layer.0.key"])
    with pytest.raises(DTypeError, match="Encoded"):
        cache.write("layer.0.key", b"")
    check_prefix(cache, tensors, lynxq.decode_anchor)
    with pytest.raises(ShapeError, match="tokens must be an integer from 0 to 300"):
        cache.truncate(301)


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        ((2, 2, 40, 8), (slice(1), slice(None), slice(None), slice(None))),  # one row would go to both
        ((1, 2, 40, 8), (slice(None), slice(1), slice(None), slice(None))),  # one head would go to both
        ((1, 2, 40, 8), (slice(None), slice(None), slice(None), slice(1))),
        ((1, 2, 40, 8), (slice(None), [0, 1, 0], slice(None), slice(None))),
        ((1, 2, 40, 8), (slice(None), slice(None), 0, slice(None))),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_states_of_another_shape_are_refused_and_change_nothing(shape, change, which):
    tensors = {
        tensor_name(0, kind): lynxq.encode(torch.randn(shape, generator=torch.Generator().manual_seed(3)), token_axis=2)
        for kind in KINDS
    }
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    given = [torch.ones(shape)[:, :, :2], torch.ones(shape)[:, :, :2]]
    given[which] = given[which][change]
    with pytest.raises(ShapeError, match=KINDS[which]):
        cache.layers[0].update(*given)
    assert {tensor.shape[2] for tensor in states(cache).values()} == {40}
    check_prefix(cache, tensors, lynxq.decode_full)


def test_a_batch_that_the_cache_was_not_made_for_is_one_clear_error():
    model = llama()
    _, tensors = prefill(model, prompt(20))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    with pytest.raises(ShapeError, match="batch"):
        model.generate(prompt(21), **{ARGUMENT: cache}, max_new_tokens=2, num_beams=3, pad_token_id=0)


@pytest.mark.parametrize("tensors", [None, 5, [], {"layer.0.key": 5}, {"layer.0.key": None}])
@pytest.mark.parametrize("make", [to_cache, ProgressiveCache])
def test_what_are_no_tensors(make, tensors):
    with pytest.raises(DTypeError, match="must be"):
        make(tensors)


@pytest.mark.parametrize("given", [None, 5, np.ones((1, 2, 20, 16), np.float32)])
def test_what_cannot_be_filled_in(given):
    _, tensors = prefill(llama(), prompt(20))
    with pytest.raises(DTypeError, match="must be of type Tensor"):
        ProgressiveCache(tensors).fill("layer.0.key", given)


def test_filling_with_integers_is_refused_and_changes_nothing():
    cache, tensors = prefill(llama(), prompt(30))
    progressive = ProgressiveCache(tensors)
    with pytest.raises(DTypeError, match=r"layer\.0\.key.* floating-point .*int8"):
        progressive.fill("layer.0.key", cache.layers[0].keys.to(torch.int8))
    assert progressive.tier_of(0) is None
