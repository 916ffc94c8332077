"""What the connector reads out of vLLM's configuration, what changes a key, and what is refused."""

from __future__ import annotations

import pytest
import torch

from lynxq.errors import DTypeError, MissingLibraryError, ParamsError, ShapeError, UnsupportedCacheError
from lynxq.integrations.page_keys import chain, root
from lynxq.integrations.vllm import LynxqConnector
from lynxq.integrations.vllm.geometry import Geometry
from lynxq.params import Params
from tests.vllm_fakes import MLAAttentionSpec, SlidingWindowSpec, cache_config, config, geometry, spec


def test_keys_and_values_are_parts_of_the_channels():
    found = geometry()
    assert [(part.name, part.start, part.stop) for part in found.parts] == [("key", 0, 24), ("value", 24, 40)]
    assert found.parts[0].params == Params.keys(page=64, range_size=64)
    assert found.parts[1].params == Params.values(page=64)
    assert (found.page_blocks, found.heads, found.channels, found.tier, found.dtype) == (4, 2, 40, "full", "bfloat16")
    assert found.shapes["layers.1.attn.value"] == (64, 2, 16)


def test_a_page_is_256_tokens_by_default_and_then_has_the_presets():
    found = Geometry.of(config(), cache_config())
    assert [part.params for part in found.parts] == [Params.keys(), Params.values()]


def test_a_latent_is_one_part():
    found = geometry({}, spec(MLAAttentionSpec, num_kv_heads=1, head_size=72, head_size_v=0))
    assert [(part.name, part.start, part.stop) for part in found.parts] == [("latent", 0, 72)]


@pytest.mark.parametrize("tokens", [8, 24, 40, 48, 136, 320, 1000])
def test_every_page_size_has_parameters(tokens):
    found = Geometry.of(config({"page_tokens": tokens}), cache_config(spec(block_size=8)))
    assert found.parts[0].params.page == tokens


CHANGES = {
    "model": lambda: (config(model={"rope_theta": 5.0}), cache_config()),
    "name": lambda: (config({"model": "other"}), cache_config()),
    "layers": lambda: (config(), cache_config(layers=3)),
    "heads": lambda: (config(), cache_config(spec(num_kv_heads=1))),
    "head size": lambda: (config(), cache_config(spec(head_size=16, head_size_v=24))),
    "dtype": lambda: (config(), cache_config(spec(dtype=torch.float16))),
    "page": lambda: (config({"page_tokens": 128}), cache_config()),
    "tier": lambda: (config({"tier": "anchor"}), cache_config()),
    "params": lambda: (config({"key_params": {"alpha": 1.0}}), cache_config()),
    "ranks": lambda: (config(tensor_parallel_size=2), cache_config()),
}


def test_everything_that_values_depend_on_is_part_of_the_key():
    roots = {name: Geometry.of(*make()).root for name, make in CHANGES.items()}
    roots["nothing"] = Geometry.of(config(), cache_config()).root
    assert len(set(roots.values())) == len(roots)


def test_what_values_do_not_depend_on_is_not_part_of_the_key():
    same = Geometry.of(config(), cache_config()).root
    assert Geometry.of(config({"store": "elsewhere"}), cache_config(spec(block_size=32))).root == same
    assert Geometry.of(config(model={"transformers_version": "5", "_name_or_path": "x"}), cache_config()).root == same


def test_keys_name_a_prefix():
    start = root("lynxq-vllm-1", {"model": "toy"})
    pages = [([1, 2], None), ([3, 4], None), ([5, 6], None)]
    first = chain(start, pages)
    assert len(set(first)) == 3
    assert chain(start, pages[:2]) == first[:2]
    for place in range(3):
        for other in (([9, 9], None), (pages[place][0], ("salt",))):
            changed = chain(start, [*pages[:place], other, *pages[place + 1 :]])
            assert changed[:place] == first[:place]
            assert not set(changed[place:]) & set(first)
    assert chain(root("lynxq-vllm-1", {"model": "other"}), pages)[0] != first[0]


def test_keys_do_not_change():
    """Whoever changes them loses every stored cache, and says so with a new scheme."""
    found = chain(root("lynxq-vllm-1", {"model": "toy"}), [([1, 2], None), ([3, 400000], ("lora", "a"))])[1]
    assert found == "008ceabb39c8a7aa9b18bf438ea38a4d7bad1277ca03f02d0bb942a33609775b"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: (config({"stroe": 1}), cache_config()), ParamsError, "got 'stroe'"),
        (lambda: (config({"tier": "both"}), cache_config()), ParamsError, "got 'both'"),
        (lambda: (config({"page_tokens": 100}), cache_config()), ShapeError, "block size 16, got 100"),
        (lambda: (config({"page_tokens": "64"}), cache_config()), ShapeError, "got '64'"),
        (lambda: (config({"model": ""}), cache_config()), ParamsError, "got ''"),
        (lambda: (config({"key_params": {"page": 8}}), cache_config()), ParamsError, "without 'page'"),
        (lambda: (config({"key_params": 5}), cache_config()), ParamsError, "got 5"),
        (lambda: (config({"value_params": {"alfa": 5}}), cache_config()), ParamsError, "got 'alfa'"),
        (lambda: (config(pipeline_parallel_size=2), cache_config()), UnsupportedCacheError, "pipeline"),
        (lambda: (config(decode_context_parallel_size=2), cache_config()), UnsupportedCacheError, "decode_context"),
        (lambda: (config(prefill_context_parallel_size=2), cache_config()), UnsupportedCacheError, "prefill_context"),
        (lambda: (config(speculative_config=object()), cache_config()), UnsupportedCacheError, "speculatively"),
        (lambda: (config(), cache_config(spec(), spec())), UnsupportedCacheError, "one group of layers, got 2"),
        (lambda: (config(), cache_config(spec(SlidingWindowSpec))), UnsupportedCacheError, "SlidingWindowSpec"),
        (lambda: (config(), cache_config(spec(num_head_slots=1))), UnsupportedCacheError, "packed"),
        (lambda: (config(), cache_config(spec(state_content_bytes=8))), UnsupportedCacheError, "packed"),
        (lambda: (config(), cache_config(spec(tokens_per_state=4))), UnsupportedCacheError, "packed"),
        (lambda: (config(), cache_config(spec(dtype=torch.uint8, kv_quant_mode=1))), DTypeError, "uint8"),
        (lambda: (config(), cache_config(spec(dtype=torch.float8_e4m3fn))), DTypeError, "float8_e4m3fn"),
        (lambda: (config(), cache_config(spec(kv_quant_mode=6))), DTypeError, "kv_cache_dtype"),
        (
            lambda: (config(), cache_config(spec(MLAAttentionSpec, cache_dtype_str="fp8_ds_mla"))),
            DTypeError,
            "for lynxq",
        ),
    ],
)
def test_what_cannot_be_handled_is_refused(make, error, words):
    with pytest.raises(error, match=words) as caught:
        Geometry.of(*make())
    assert str(caught.value).count(". ") == 0


def test_the_connector_says_that_it_needs_vllm():
    with pytest.raises(MissingLibraryError, match="pip install vllm"):
        LynxqConnector(config(), None, cache_config())
