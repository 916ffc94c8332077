"""Paged caches: the bytes of the gathered tensor, and nothing written outside the sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Params, testing
from lynxq.errors import DTypeError, MissingResidualError, NonFiniteError, ShapeError
from lynxq.paged import decode_anchor_paged, decode_full_paged, encode_paged

BLOCKS, HEADS, DIM = 12, 3, 16


def _cache(order: str, slots: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """A (blocks, heads, slots, head_dim) view of memory in another order; "KV" is the half of K and V together."""
    if order == "NHD":
        return testing.contents("normal", (BLOCKS, slots, HEADS, DIM), dtype, seed).transpose(0, 2, 1, 3)
    if order == "head first":
        return testing.contents("normal", (HEADS, BLOCKS, slots, DIM), dtype, seed).transpose(1, 0, 2, 3)
    both = testing.contents("normal", (BLOCKS, HEADS, slots, 2 * DIM), dtype, seed)
    return both[..., DIM:] if order == "KV" else testing.contents("normal", (BLOCKS, HEADS, slots, DIM), dtype, seed)


ORDERS = ("HND", "NHD", "head first", "KV")


def _gathered(cache: np.ndarray, table: np.ndarray, tokens: int) -> np.ndarray:
    rows = [cache[table[t // cache.shape[2]], :, t % cache.shape[2]] for t in range(tokens)]
    return np.stack(rows) if rows else np.empty((0, cache.shape[1], cache.shape[3]), cache.dtype)


def _table(blocks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(BLOCKS)[:blocks].astype(np.int32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("slots", [16, 64, 256])
@pytest.mark.parametrize("preset", [Params.keys, Params.values])
def test_streams_are_those_of_the_gathered_tensor(order, slots, preset):
    tokens = min(5 * slots - 3, 600)
    table, cache = _table(-(-tokens // slots)), _cache(order, slots, "bfloat16")
    encoded = encode_paged(cache, table, preset(), tokens=tokens, first_token=2)
    expected = lynxq.encode(_gathered(cache, table, tokens), preset(), token_axis=0, first_token=2)
    assert encoded.layout == expected.layout
    assert np.array_equal(encoded.anchor, expected.anchor)
    assert np.array_equal(encoded.residual, expected.residual)


@given(
    tokens=st.integers(0, 90),
    slots=st.sampled_from((1, 3, 8, 16)),
    order=st.sampled_from(ORDERS),
    dtype=st.sampled_from(("float32", "float16", "bfloat16")),
    params=testing.params(page=16),
    seed=st.integers(0, 99),
)
def test_any_sequence_goes_round(tokens, slots, order, dtype, params, seed):
    tokens = min(tokens, BLOCKS * slots)
    table, cache = _table(-(-tokens // slots), seed), _cache(order, slots, dtype, seed)
    gathered = _gathered(cache, table, tokens)
    encoded = encode_paged(cache, table, params, tokens=tokens)
    expected = lynxq.encode(gathered, params, token_axis=0)
    assert np.array_equal(encoded.anchor, expected.anchor)
    assert np.array_equal(encoded.residual, expected.residual)
    elsewhere = _table(BLOCKS, seed + 1)
    for into, decode in ((decode_anchor_paged, lynxq.decode_anchor), (decode_full_paged, lynxq.decode_full)):
        target = _cache(order, slots, dtype, seed + 2)
        before = target.copy()
        into(encoded, target, elsewhere)
        assert np.array_equal(_gathered(target, elsewhere, tokens).view(np.uint8), decode(expected).view(np.uint8))
        written = np.zeros(target.shape, bool)
        for t in range(tokens):
            written[elsewhere[t // slots], :, t % slots] = True
        raw = f"u{target.itemsize}"
        assert np.array_equal(target.copy().view(raw)[~written], before.view(raw)[~written]), (
            "other slots are untouched"
        )


def test_the_full_decode_may_go_over_the_anchor_decode_and_into_another_dtype():
    cache, table = _cache("NHD", 16), _table(4)
    encoded = encode_paged(cache, table, tokens=60)
    target = np.zeros((BLOCKS, HEADS, 16, DIM), np.float16)
    decode_anchor_paged(encoded, target, table)
    decode_full_paged(encoded, target, table)
    expected = lynxq.decode_full(lynxq.encode(_gathered(cache, table, 60), token_axis=0), dtype="float16")
    assert np.array_equal(_gathered(target, table, 60), expected)


def test_torch_caches_stay_torch():
    cache = torch.randn(BLOCKS, 16, HEADS, DIM, dtype=torch.bfloat16).transpose(1, 2)
    table = torch.tensor([3, 1, 2], dtype=torch.int32)
    encoded = encode_paged(cache, table, tokens=40)
    assert encoded.framework == "torch"
    target = torch.zeros(BLOCKS, HEADS, 16, DIM, dtype=torch.bfloat16)
    decode_full_paged(encoded, target, table)
    gathered = torch.cat([cache[b].transpose(0, 1) for b in table])[:40]
    assert torch.equal(
        torch.cat([target[b].transpose(0, 1) for b in table])[:40],
        lynxq.decode_full(lynxq.encode(gathered, token_axis=0)),
    )


def test_non_finite_values_of_the_sequence_are_found_and_others_are_not_looked_at():
    cache, table = _cache("HND", 16), np.array([5, 7], np.int32)
    cache[0] = np.nan
    cache[7, :, 9:] = np.inf  # after the sequence's last token
    encode_paged(cache, table, Params.keys(page=8, range_size=8, chunk=8), tokens=25)
    cache[7, 1, 3, 4] = -np.inf
    cache[7, 2, 5] = np.nan
    out = encode_paged(_cache("HND", 16), table, Params.keys(page=8, range_size=8, chunk=8), tokens=25)
    before = out.anchor.copy()
    with pytest.raises(NonFiniteError) as caught:
        encode_paged(cache, table, Params.keys(page=8, range_size=8, chunk=8), tokens=25, out=out)
    assert (caught.value.count, caught.value.first_index) == (1 + DIM, (19, 1, 4))
    assert np.array_equal(out.anchor, before)
    with pytest.raises(NonFiniteError):  # on the CPU the check always runs
        encode_paged(cache, table, tokens=25, check=False)


def _errors():
    cache, table = _cache("HND", 16), np.array([5, 7, 2], np.int32)
    encoded = encode_paged(cache, table, tokens=40)
    frozen = cache.copy()
    frozen.setflags(write=False)
    other = lynxq.encode(np.zeros((4, 40), np.float32), token_axis=1)
    return {
        "encode: not four axes": (lambda: encode_paged(cache[0], table, tokens=40), ShapeError, "must have shape"),
        "encode: table too short": (lambda: encode_paged(cache, table, tokens=49), ShapeError, "need 4 blocks"),
        "encode: no such block": (
            lambda: encode_paged(cache, table + BLOCKS - 7, tokens=40),
            ShapeError,
            "blocks from 0",
        ),
        "encode: negative block": (lambda: encode_paged(cache, table - 3, tokens=40), ShapeError, "got -1"),
        "encode: int64": (lambda: encode_paged(cache, table.astype(np.int64), tokens=40), DTypeError, "int32"),
        "encode: two axes": (lambda: encode_paged(cache, table[None], tokens=40), ShapeError, "flat"),
        "encode: negative tokens": (lambda: encode_paged(cache, table, tokens=-1), ShapeError, "axis length"),
        "encode: no slots": (lambda: encode_paged(cache[:, :, :0], table, tokens=1), ShapeError, "blocks of 0"),
        "encode: params": (lambda: encode_paged(cache, table, {}, tokens=4), DTypeError, "params"),
        "decode: no Encoded": (lambda: decode_full_paged(cache, cache, table), DTypeError, "Encoded"),
        "decode: block twice": (lambda: decode_full_paged(encoded, cache, table * 0), ShapeError, "twice"),
        "decode: heads": (lambda: decode_full_paged(encoded, cache[:, :2], table), ShapeError, "heads and head_dim"),
        "decode: shape": (lambda: decode_full_paged(other, cache, table), ShapeError, "all valid"),
        "decode: residual": (
            lambda: decode_full_paged(encoded.anchor_only(), cache, table),
            MissingResidualError,
            "residual",
        ),
        "decode: read-only": (lambda: decode_full_paged(encoded, frozen, table), DTypeError, "writable"),
        "decode: library": (lambda: decode_full_paged(encoded, torch.from_numpy(cache), table), DTypeError, "numpy"),
        "decode: overlap": (
            lambda: decode_full_paged(encoded, np.broadcast_to(cache[:1], cache.shape), table),
            (ShapeError, DTypeError),
            "overlap|writable",
        ),
    }


@pytest.mark.parametrize("name", _errors())
def test_arguments_that_do_not_fit_are_refused(name):
    call, error, message = _errors()[name]
    with pytest.raises(error, match=message):
        call()
