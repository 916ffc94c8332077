"""Passes of a model that wait, layer by layer, for what has not arrived."""

import threading

import pytest
import torch

from lynxq.errors import CacheNotReadyError, ParamsError, ShapeError
from lynxq.integrations.hf import ProgressiveCache, tensor_name, to_cache
from tests.hf_models import KINDS, LAYERS, arrive, bits, llama, prefill, prompt, run, states


def test_the_forward_pass_waits_layer_by_layer():
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors, timeout=30.0)
    seen, passed, result = [], threading.Event(), []
    original = cache.layers[0].update

    def update(*arguments, **keywords):
        answer = original(*arguments, **keywords)
        passed.set()
        return answer

    cache.layers[0].update = update
    thread = threading.Thread(target=lambda: result.append(run(model, prompt(1, seed=1), cache)))
    thread.start()
    for layer in range(LAYERS):
        assert not result
        for kind in KINDS:
            name = tensor_name(layer, kind)
            cache.write(name, tensors[name].anchor_only())
        if layer == 0:
            assert passed.wait(30)  # while the anchors of the other layers are missing
            seen = [cache.tier_of(index) for index in range(LAYERS)]
    thread.join(30)
    assert seen == ["anchor", None, None]
    assert bits(result[0]) == bits(run(model, prompt(1, seed=1), to_cache(tensors, tier="anchor")))


def test_without_a_timeout_a_missing_anchor_is_an_error():
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors)
    for name in list(tensors)[:-1]:
        cache.write(name, tensors[name].anchor_only())
    with pytest.raises(CacheNotReadyError, match="the anchor of layer 2 has not arrived within 0 s"):
        run(model, prompt(1), cache)
    cache.write(f"layer.{LAYERS - 1}.value", tensors[f"layer.{LAYERS - 1}.value"].pages(0, 1).anchor_only())
    with pytest.raises(CacheNotReadyError):
        run(model, prompt(1), cache)


def test_a_failed_transfer_ends_the_wait():
    model = llama()
    _, tensors = prefill(model, prompt(30))
    cache = ProgressiveCache(tensors, timeout=60.0)
    errors = []

    def decode():
        try:
            run(model, prompt(1), cache)
        except CacheNotReadyError as error:
            errors.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    cache.fail(ConnectionResetError("peer is gone"))
    thread.join(30)
    assert str(errors[0]) == "the anchor of layer 0 will not arrive: peer is gone"
    assert isinstance(errors[0].__cause__, ConnectionResetError)


def test_a_pass_that_requires_the_residual_waits_for_it_layer_by_layer():
    model = llama()
    _, tensors = prefill(model, prompt(300))
    cache = ProgressiveCache(tensors, timeout=30.0)
    arrive(cache, tensors, "anchor")
    cache.required = "full"
    result, passed = [], threading.Event()
    original = cache.layers[0].update
    cache.layers[0].update = lambda *arguments, **_: (original(*arguments), passed.set())[0]
    thread = threading.Thread(target=lambda: result.append(run(model, prompt(4, seed=1), cache)))
    thread.start()
    for index, (name, encoded) in enumerate(tensors.items()):
        assert not result
        cache.write(name, encoded)
        if index == 1:
            assert passed.wait(30)
    thread.join(30)
    assert bits(result[0]) == bits(run(model, prompt(4, seed=1), to_cache(tensors)))
    late = ProgressiveCache(tensors)
    late.required = "full"
    arrive(late, tensors, "anchor")
    with pytest.raises(CacheNotReadyError, match="the residual of layer 0 has not arrived"):
        run(model, prompt(1), late)
    with pytest.raises(ParamsError, match="required must be one of"):
        late.required = "best"


def test_states_from_elsewhere_fill_a_layer():
    model = llama()
    plain, tensors = prefill(model, prompt(300, batch=2))
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "anchor")
    cache.reorder_cache(torch.tensor([1, 0]))
    for name, tensor in states(plain).items():
        cache.fill(name, tensor)
    assert cache.tier == "full"
    for name, tensor in states(cache).items():
        assert bits(tensor) == bits(states(plain)[name].flip(0))
    with pytest.raises(ShapeError, match=r"'layer\.0\.key' must be of shape"):
        cache.fill("layer.0.key", torch.ones(2, 2, 299, 16))


def _narrower(cache):
    cache.truncate(0)


def _empty(cache):
    cache.reset()


def _content_with_anchors(cache):
    cache.required = "anchor"


@pytest.mark.parametrize("change", [_narrower, _empty, _content_with_anchors])
def test_a_pass_that_waits_for_what_is_not_needed_any_more_goes_on(change):
    _, tensors = prefill(llama(), prompt(30))
    cache = ProgressiveCache(tensors, timeout=600.0)
    if change is _content_with_anchors:
        cache.required = "full"
        arrive(cache, tensors, "anchor")
    looked, passed = threading.Event(), threading.Event()
    layer = cache.layers[0]
    wait = cache._gate._changed.wait_for

    def waits(*arguments):
        looked.set()
        return wait(*arguments)

    cache._gate._changed.wait_for = waits
    token = layer.keys[:, :, :1].clone()
    thread = threading.Thread(target=lambda: (layer.update(token, token), passed.set()), daemon=True)
    thread.start()
    assert looked.wait(30)
    change(cache)  # takes the gate's lock, so the thread is asleep by then
    assert passed.wait(30)


@pytest.mark.parametrize("timeout", [1e10, 1e300])
def test_a_pass_may_wait_for_longer_than_a_lock_can(timeout):
    _, tensors = prefill(llama(), prompt(30))
    cache = ProgressiveCache(tensors, timeout=timeout)
    cache.fail(ConnectionResetError("peer is gone"))
    token = cache.layers[0].keys[:, :, :1].clone()
    with pytest.raises(CacheNotReadyError, match="peer is gone"):
        cache.layers[0].update(token, token)
    later = ProgressiveCache(tensors, timeout=timeout)
    thread = threading.Timer(0.05, arrive, [later, tensors, "full"])
    thread.start()
    later.layers[0].update(token, token)
    thread.join()
    assert later.tier == "full"
