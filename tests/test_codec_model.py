"""lynxq against the scalar model: every byte of both streams, every bit of both decodes."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lynxq
from lynxq import Params, testing
from lynxq.params import SPLITS
from tests.scalar_model import DTYPES, Model


def model_of(x, params, token_axis, *, head_dim=None, first_token=0, valid_tokens=None):
    """The model of an encode call, and the valid part of its array as (outer, tokens, channels)."""
    axis = token_axis % x.ndim
    tokens = x.shape[axis] if valid_tokens is None else valid_tokens
    outer, channels = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    last = x.shape[-1] if axis < x.ndim - 1 else 1
    model = Model(params, outer, tokens, channels, head_dim or max(last, 1), x.dtype.name, first_token)
    return model, x.reshape(outer, x.shape[axis], channels)[:, :tokens]


def check(x, params, token_axis, out_dtype=None, **arguments):
    encoded = lynxq.encode(x, params, token_axis=token_axis, **arguments)
    model, values = model_of(x, params, token_axis, **arguments)
    anchor, residual = model.encode(values)
    assert encoded.anchor.tobytes() == anchor
    assert encoded.residual.tobytes() == residual
    out_dtype = out_dtype or x.dtype.name
    for tier, decode in (("anchor", lynxq.decode_anchor), ("full", lynxq.decode_full)):
        decoded = decode(encoded, dtype=out_dtype)
        assert decoded.shape == x.shape
        assert decoded.dtype == DTYPES[out_dtype]
        rows = decoded.reshape(model.outer, x.shape[token_axis], model.channels)
        assert rows[:, : model.tokens].tobytes() == model.decode(values, tier, out_dtype).tobytes()


@settings(max_examples=4 * settings.default.max_examples)
@given(testing.tensors(max_elements=300), testing.params(), st.sampled_from(sorted(DTYPES)), st.data())
def test_every_byte_and_every_decoded_bit(sample, params, out_dtype, data):
    x, axis = sample
    last = x.shape[-1] if axis % x.ndim < x.ndim - 1 else 1
    divisors = [n for n in range(1, last + 1) if last % n == 0] or [1]
    check(
        x,
        params,
        axis,
        out_dtype,
        head_dim=data.draw(st.none() | st.sampled_from(divisors), "head_dim"),
        first_token=data.draw(st.sampled_from([0, 0, 0, 1, 3, 1000]), "first_token"),
        valid_tokens=data.draw(st.none() | st.integers(0, x.shape[axis]), "valid_tokens"),
    )


@pytest.mark.parametrize("preset", [Params.keys, Params.values, Params.paper])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("kind", sorted(testing.CONTENTS))
def test_presets_on_every_kind_of_contents(preset, dtype, kind):
    check(testing.contents(kind, (69, 2, 3), dtype, seed=5), preset(page=32, range_size=32, chunk=16), 0)


@pytest.mark.parametrize("center", ["midrange", "mean"])
@pytest.mark.parametrize("metadata", ["u8", "u16", "f32"])
@pytest.mark.parametrize("axis", ["token", "channel"])
@pytest.mark.parametrize("split", SPLITS)
def test_every_combination_of_modes(center, metadata, axis, split):
    params = Params(
        axis=axis,
        page=16,
        range_size=8,
        chunk=4,
        center=center,
        metadata=metadata,
        anchor_bits=split[0],
        residual_bits=split[1],
    )
    for kind in ("normal", "loud token"):
        check(testing.contents(kind, (2, 21, 11), "bfloat16", seed=7), params, 1)


def test_full_size_pages():
    """The real page, chunk and head sizes once: 256 tokens a page, heads of 80."""
    x = testing.contents("key bias", (261, 80), "bfloat16", seed=3)
    check(x[:, :5], Params.keys(), 0)
    check(x[:9], Params.values(), 0)


@pytest.mark.parametrize("channels", [400, 700])
def test_large_tensors_are_coded_like_their_parts(channels):
    """A block of the reference holds 2^18 values: here two outer indices, and one left over, or one."""
    x = np.random.default_rng(0).standard_normal((5, 256, channels), dtype=np.float32)
    whole = lynxq.encode(x, token_axis=1)
    full, near = lynxq.decode_full(whole), lynxq.decode_anchor(whole)
    for index in range(5):
        part = lynxq.encode(x[index], token_axis=0)
        assert np.array_equal(lynxq.decode_full(part), full[index])
        assert np.array_equal(lynxq.decode_anchor(part), near[index])
