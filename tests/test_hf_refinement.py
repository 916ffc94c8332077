"""Caches of transformers that are filled with anchors and refined in place."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

import lynxq
from lynxq.integrations.hf import ProgressiveCache
from tests.hf_models import LAYERS, MODELS, arrive, bits, check_prefix, llama, prefill, prompt, run, states


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_anchor_and_full_are_the_decodes_bit_for_bit(dtype, batch):
    model = llama(dtype)
    _, tensors = prefill(model, prompt(300, batch))
    cache = ProgressiveCache(tensors)
    assert (cache.tier, cache.prefix, cache.get_seq_length()) == (None, 300, 300)
    arrive(cache, tensors, "anchor")
    assert cache.tier == "anchor"
    check_prefix(cache, tensors, lynxq.decode_anchor)
    arrive(cache, tensors, "full")
    assert cache.tier == "full"
    check_prefix(cache, tensors, lynxq.decode_full)
    arrive(cache, tensors, "anchor")  # late: ignored
    check_prefix(cache, tensors, lynxq.decode_full)


def test_pages_arrive_in_any_order():
    model = llama()
    _, tensors = prefill(model, prompt(600))
    cache = ProgressiveCache(tensors)
    pages = [(name, page) for name in tensors for page in range(tensors[name].layout.pages)]
    assert len(pages) == 2 * LAYERS * 3
    generator = np.random.default_rng(5)
    for tier in ("anchor", "full"):
        for number, index in enumerate(generator.permutation(len(pages))):
            assert cache.tier != tier
            name, page = pages[index]
            part = tensors[name].pages(page, page + 1)
            cache.write(name, part.anchor_only() if tier == "anchor" else part)
            assert (cache.tier == tier) == (number == len(pages) - 1)
    check_prefix(cache, tensors, lynxq.decode_full)


def test_a_residual_may_come_with_the_first_anchor():
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    check_prefix(cache, tensors, lynxq.decode_full)


@pytest.mark.parametrize("target", [torch.bfloat16, "float16", torch.float32])
def test_the_cache_has_the_dtype_of_the_model(target):
    _, tensors = prefill(llama(), prompt(40))
    cache = ProgressiveCache(tensors, dtype=target)
    arrive(cache, tensors, "full")
    assert str(cache.layers[0].keys.dtype).endswith(str(target).removeprefix("torch."))
    check_prefix(cache, tensors, lynxq.decode_full)


def test_refinement_is_in_place_and_keeps_the_suffix(model):
    ids = prompt(300)
    _, tensors = prefill(model, ids)
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    run(model, prompt(5, seed=1), cache)
    before = {name: (tensor.data_ptr(), bits(tensor[:, :, 300:])) for name, tensor in states(cache).items()}
    assert all(tensor.shape[2] == 305 for tensor in states(cache).values())
    arrive(cache, tensors, "full")
    assert before == {name: (t.data_ptr(), bits(t[:, :, 300:])) for name, t in states(cache).items()}
    check_prefix(cache, tensors, lynxq.decode_full)


def test_memory_is_taken_once():
    _, tensors = prefill(llama(), prompt(1000))
    cache = ProgressiveCache(tensors, capacity=1100)
    decoded = sum(4 * t.layout.elements for t in tensors.values())
    assert cache.nbytes == decoded * 1100 // 1000
    storages = [buffer.storage.data_ptr() for layer in cache.layers for buffer in layer._buffers]
    pages = [(n, t.pages(page, page + 1)) for n, t in tensors.items() for page in range(t.layout.pages)]
    arrive(ProgressiveCache(tensors), tensors, "anchor")  # loads kernels
    arrive(ProgressiveCache(tensors), tensors, "full")
    for tier in ("anchor", "full"):
        tracemalloc.start()  # numpy and Python; torch is seen by the address of what it holds
        for name, page in pages:
            cache.write(name, page.anchor_only() if tier == "anchor" else page)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < decoded / 4
    assert storages == [buffer.storage.data_ptr() for layer in cache.layers for buffer in layer._buffers]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak as Linux counts it")
def test_the_peak_of_the_process_hardly_rises_when_a_cache_is_refined():
    code = """
import json, resource, torch, lynxq
from lynxq.integrations.hf import ProgressiveCache
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
small = lynxq.encode(torch.randn(1, 4, 512, 64), token_axis=2)
for one in (small.anchor_only(), small):  # compiles
    ProgressiveCache({"layer.0.key": small, "layer.0.value": small}).write("layer.0.key", one)
encoded = lynxq.encode(torch.randn(1, 4, 65536, 64), token_axis=2)
tensors = {"layer.0.key": encoded, "layer.0.value": encoded}
before = peak()
cache = ProgressiveCache(tensors, capacity=65536)
for name in tensors:
    cache.write(name, encoded.anchor_only())
anchor = peak()
for name in tensors:
    cache.write(name, encoded)
print(json.dumps([cache.nbytes, anchor - before, peak() - anchor]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    nbytes, filled, refined = json.loads(result.stdout)
    assert nbytes == 2 * 4 * 4 * 65536 * 64
    assert filled < 1.05 * nbytes
    assert refined < 0.05 * nbytes
