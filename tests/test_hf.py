"""Caches of transformers: refined in place, rolled back, converted, never coded twice. Models are tiny and random."""

import copy
import inspect
import json
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import torch
import transformers

import lynxq
from lynxq.errors import CacheNotReadyError, DTypeError, MissingResidualError, ParamsError, ShapeError
from lynxq.integrations.hf import ProgressiveCache, from_cache, tensor_name, to_cache

VOCABULARY, LAYERS = 97, 3
KINDS = ("key", "value")


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def qwen(dtype=torch.float32):
    torch.manual_seed(1)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=6,
        num_key_value_heads=3, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config).to(dtype).eval()


MODELS = {"llama": llama, "qwen2": qwen}
ARGUMENT = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else (
    "past_key_values"
)  # fmt: skip


def run(model, ids, cache):
    """Logits of all positions."""
    with torch.no_grad():
        return model(ids, **{ARGUMENT: cache}).logits


def prompt(tokens, batch=1, seed=0):
    return torch.randint(0, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def prefill(model, ids):
    """A cache after the prompt, and its tensors, encoded."""
    cache = transformers.DynamicCache()
    run(model, ids, cache)
    return cache, from_cache(cache)


def arrive(cache, tensors, tier):
    for name, encoded in tensors.items():
        cache.write(name, encoded.anchor_only() if tier == "anchor" else encoded)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def states(cache):
    return {
        tensor_name(index, kind): getattr(layer, f"{kind}s")
        for index, layer in enumerate(cache.layers)
        for kind in KINDS
    }


def check_prefix(cache, tensors, decode, rows=None):
    for name, tensor in states(cache).items():
        wanted = decode(tensors[name], dtype=tensor.dtype)
        wanted = wanted if rows is None else wanted[rows]
        assert bits(tensor[:, :, : wanted.shape[2]]) == bits(wanted), name


# --- filling and refining ----------------------------------------------------------------------------


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


# --- generating --------------------------------------------------------------------------------------


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


# --- waiting -----------------------------------------------------------------------------------------


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


# --- conversion --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_from_cache_and_to_cache_are_encode_and_decode(dtype, tmp_path):
    model = llama(dtype)
    cache, tensors = prefill(model, prompt(300, batch=2))
    assert list(tensors) == [tensor_name(i, kind) for i in range(LAYERS) for kind in KINDS]
    for name, tensor in states(cache).items():
        params = lynxq.Params.values() if name.endswith("value") else lynxq.Params.keys()
        wanted = lynxq.encode(tensor, params, token_axis=2)
        assert wanted.layout == tensors[name].layout
        assert bits(wanted.anchor) == bits(tensors[name].anchor)
        assert bits(wanted.residual) == bits(tensors[name].residual)
    path = tmp_path / "cache.lynx"
    lynxq.save(path, tensors)
    with lynxq.open(path) as reader:
        for source in (tensors, reader):
            for tier, decode in (("anchor", lynxq.decode_anchor), ("full", lynxq.decode_full)):
                made = to_cache(source, tier=tier)
                assert type(made) is transformers.DynamicCache
                assert made.get_seq_length() == 300
                check_prefix(made, tensors, decode)
            for tokens in (0, 1, 256, 299):
                made = to_cache(source, tokens=tokens, dtype="float32")
                for name, tensor in states(made).items():
                    assert bits(tensor) == bits(lynxq.decode_full(tensors[name], dtype="float32")[:, :, :tokens])
        with_reader = ProgressiveCache(reader)
        for name in reader:
            with_reader.write(name, reader[name].encoded("anchor"))
        check_prefix(with_reader, tensors, lynxq.decode_anchor)


def test_static_caches_are_read_up_to_their_length():
    model = llama()
    ids = prompt(40)
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    run(model, ids, cache)
    tensors = from_cache(cache)
    assert tensors["layer.0.key"].shape == (1, 2, 40, 16)
    plain, _ = prefill(model, ids)
    for name, tensor in states(plain).items():
        assert bits(lynxq.decode_full(tensors[name])) == bits(lynxq.decode_full(from_cache(plain)[name]))
        assert tensor.shape[2] == 40


def test_only_new_tokens_are_coded_and_appended(tmp_path):
    model = llama()
    _, tensors = prefill(model, prompt(300))
    path = tmp_path / "cache.lynx"
    lynxq.save(path, tensors)
    cache = ProgressiveCache(tensors)
    arrive(cache, tensors, "full")
    run(model, prompt(20, seed=1), cache)
    with pytest.raises(DTypeError, match="would lose twice"):
        from_cache(cache)
    lynxq.append(path, from_cache(cache, first_token=300))
    with lynxq.open(path) as reader:
        assert reader["layer.1.value"].shape[2] == 320
        again = to_cache(reader)
    check_prefix(again, tensors, lynxq.decode_full)
    assert again.get_seq_length() == 320


def test_parameters_are_for_all_tensors_or_for_each():
    cache, tensors = prefill(llama(), prompt(30))
    params = lynxq.Params(alpha=1.0)
    assert {t.params for t in from_cache(cache, params).values()} == {params}
    each = {name: lynxq.Params(chunk=16) if "key" in name else params for name in tensors}
    assert {name: t.params for name, t in from_cache(cache, each).items()} == each
    with pytest.raises(ParamsError, match=r"'layer\.2\.value' is not in both"):
        from_cache(cache, dict.fromkeys(list(tensors)[:-1], params))
    with pytest.raises(ParamsError, match="'other' is not in both"):
        from_cache(cache, {**each, "other": params})


# --- what is refused ---------------------------------------------------------------------------------


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


# --- misuse ------------------------------------------------------------------------------------------


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
