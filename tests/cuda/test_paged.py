"""Kernels that follow a block table, against the gathered tensor."""

from __future__ import annotations

import numpy as np
import pytest

from lynxq import Params, arrays, dtypes
from lynxq.backends.base import PagedMemory
from lynxq.backends.reference import ReferenceBackend
from lynxq.layout import Layout
from tests.cuda import cases, host
from tests.cuda.tools import needs_compiler, needs_nvrtc
from tests.test_paged import BLOCKS, DIM, HEADS, ORDERS, _cache, _gathered, _table

pytestmark = needs_compiler
PRESETS = {
    "keys": Params.keys(),
    "values": Params.values(),
    "plain": Params(page=24, range_size=12, chunk=3, center="mean"),
    "plain channels": Params(axis="channel", page=24, range_size=6, chunk=3),
}


def _check(backend, params, order, slots, dtype, out_dtype):
    tokens = min(slots * 4 + slots // 2 + 1, BLOCKS * slots)
    cache, table = _cache(order, slots, dtype), _table(-(-tokens // slots))
    x = arrays.as_raw(_gathered(cache, table, tokens)).raw
    layout = Layout.of(params, x.shape, dtype, token_axis=0)
    target = dtypes.named(out_dtype)
    expected, got = (
        [np.full(layout.stream_size(s), cases.POISON, np.uint8) for s in ("anchor", "residual")] for _ in "ab"
    )
    ReferenceBackend().encode(layout, x, *expected)
    memory = PagedMemory(arrays.as_raw(cache).raw, table)
    assert backend.first_nonfinite_paged(layout, memory) is None
    backend.encode_paged(layout, memory, *got)
    assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))
    elsewhere = _table(BLOCKS, 5)
    for residual in (None, got[1]):
        wanted = np.empty(x.shape, target.raw)
        ReferenceBackend().decode(layout, got[0], residual, wanted, target)
        room = arrays.as_raw(_cache(order, slots, out_dtype, 9)).raw
        before = room.copy()
        backend.decode_paged(layout, got[0], residual, PagedMemory(room, elsewhere), target)
        bits = f"u{wanted.itemsize}"
        assert np.array_equal(_gathered(room, elsewhere, tokens).view(bits), wanted.view(bits))
        for t in range(tokens):
            before[elsewhere[t // slots], :, t % slots] = room[elsewhere[t // slots], :, t % slots]
        assert np.array_equal(room.copy().view(bits), before.view(bits)), "other slots are untouched"


@pytest.mark.parametrize(
    ("name", "order"),
    [*(("keys", order) for order in ORDERS), ("values", "NHD"), ("plain", "KV"), ("plain channels", "head first")],
)
def test_source(name, order):
    _check(host.backend("source", 3), PRESETS[name], order, 16, "bfloat16", "bfloat16")


def test_a_cache_of_another_dtype():
    _check(host.backend(), PRESETS["values"], "NHD", 16, "float32", "float16")


@pytest.mark.parametrize("slots", [1, 3, 256])
def test_block_sizes(slots):
    _check(host.backend(), Params.keys(page=32, range_size=32), "NHD", slots, "bfloat16", "bfloat16")


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "order"), [("keys", "NHD"), ("values", "KV"), ("plain", "NHD"), ("plain channels", "KV")]
)
def test_compiler_output(name, order):
    _check(host.backend("sm_90"), PRESETS[name], order, 16, "bfloat16", "bfloat16")


def test_a_non_finite_value_is_found_through_the_table():
    cache, table = _cache("NHD", 16), np.array([5, 7], np.int32)
    cache[0] = np.nan
    cache[7, 1, 3, 4] = np.inf
    layout = Layout.of(Params.keys(), (30, HEADS, DIM), "float32", token_axis=0)
    assert host.backend().first_nonfinite_paged(layout, PagedMemory(cache, table)) == (1, (19, 1, 4))


def test_a_vector_of_sixteen_bytes_is_read_where_the_strides_allow_it():
    for order, wide in (("NHD", 8), ("KV", 8)):
        backend = host.backend()
        _check(backend, Params.keys(), order, 16, "bfloat16", "bfloat16")
        assert {dict(launch.defines)["VEC"] for launch in backend._driver.launches} == {wide}
