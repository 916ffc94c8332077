"""lynxq.naming on names that are really in use, and on names that only look like them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lynxq import Params
from lynxq.naming import kind_of, layer_of, preset_for

KEYS = [
    "key",
    "K",
    "keys",
    "layer.0.key",
    "layer.29.key",
    "k_cache",
    "key_cache",
    "keyCache",
    "KCache",
    "KeyCache0",
    "key0",
    "layers/3/k",
    "model.layers.7.self_attn.k_proj",
    "blk.4.attn_k",
    "past_key_values.3.key",
    "past_key_values.key_cache.3",
    "present.11.key",
    "kv_cache.0.k",
    "past_key_values.0.k",
    "deepseek_v2.layers.0.key",
    "llama_v3.layer_5.k",
    "keyValueCache.0.keys",
]
VALUES = [
    "value",
    "V",
    "values",
    "layer.0.value",
    "v_cache",
    "value_cache",
    "valueCache",
    "VCache",
    "value12",
    "layers/3/v",
    "model.layers.7.self_attn.v_proj",
    "blk.4.attn_v",
    "past_key_values.3.value",
    "present.11.value",
    "kv_cache.0.v",
    "llama_128k.layer.0.v",
    "deepseek_v2.layers.0.values",
    "key_values.0.values",
]
NEITHER = [
    "",
    "kv_cache.0",
    "KVCache",
    "past_key_values",
    "past_key_values.0",
    "query_key_value",
    "value.key",
    "keys.and.values",
    "monkey",
    "keyboard",
    "eigenvalues",
    "kcache",
    "deepseek_v2.latent",
    "llama_128k.kv",
    "k0",
    "v1.weights",
    "layer.0.query",
    "ключ",
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "key") for name in KEYS), *((name, "value") for name in VALUES), *((name, None) for name in NEITHER)],
)
def test_kind_of(name, kind):
    assert kind_of(name) == kind


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_name(name):
    assert kind_of(name) in ("key", "value", None)


@settings(deadline=None)
@given(st.integers(0, 200), st.sampled_from(["layer.{}.{}", "{1}_cache_{0}", "model/{0}/{1}", "{1}.{0}"]))
def test_numbers_around_the_word_do_not_matter(layer, pattern):
    for word, kind in (("key", "key"), ("k", "key"), ("value", "value"), ("v", "value"), ("query", None)):
        assert kind_of(pattern.format(layer, word)) == kind


def test_preset_for():
    assert preset_for("key") == Params.keys()
    assert preset_for("value") == Params.values()
    assert preset_for(None) == Params.keys()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layer.0.key", 0),
        ("model.layers.7.self_attn.k_proj", 7),
        ("deepseek_v2.layers.12.key", 12),
        ("llama_v3.layer_5.k", 5),
        ("Layer29/v", 29),
        ("transformer.h.3.attn", 3),
        ("blk.4.attn_k", 4),
        ("past_key_values.3.value", 3),
        ("present.11.key", 11),
        ("smollm2.5.key", 5),
        ("past_key_values.key_cache.3", 3),
        ("key", None),
        ("deepseek_v2.latent", None),
        ("0.1.key", None),
        ("layers.1.block.2.k", None),
        ("", None),
    ],
)
def test_layers(name, layer):
    assert layer_of(name) == layer
