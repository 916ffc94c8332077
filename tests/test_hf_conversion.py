"""Caches of transformers from and to encoded tensors; what is coded is never coded twice."""

import pytest
import torch
import transformers

import lynxq
from lynxq.errors import DTypeError, ParamsError
from lynxq.integrations.hf import ProgressiveCache, from_cache, tensor_name, to_cache
from tests.hf_models import KINDS, LAYERS, arrive, bits, check_prefix, llama, prefill, prompt, run, states


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
