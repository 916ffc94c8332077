"""Shapes and memory: any strides, any axis, any page on its own, and tails that are not there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Encoded, Params, testing
from lynxq.errors import ShapeError
from tests.scalar_model import DTYPES

NAMES = sorted(DTYPES)
DECODES = (lynxq.decode_anchor, lynxq.decode_full)


def streams(encoded):
    return encoded.anchor.tobytes(), encoded.residual.tobytes()


def bits(array):
    return array.shape, array.dtype.name, array.tobytes()


def seeded(shape, dtype="bfloat16", kind="normal", seed=0):
    return testing.contents(kind, shape, dtype, seed)


def test_the_memory_layouts_are_what_they_are_called():
    x = seeded((6, 4, 2), "float32")
    views = {name: make(x) for name, make in testing.MEMORY.items()}
    assert all(
        np.array_equal(view, x) and not np.shares_memory(view, x)
        for name, view in views.items()
        if name != "contiguous"
    )
    flags = {name: (view.flags.c_contiguous, view.flags.aligned, view.flags.writeable) for name, view in views.items()}
    plain = ("contiguous", "read-only", "unaligned")
    assert {name for name, (contiguous, _, _) in flags.items() if contiguous} == set(plain)
    assert {name for name, (_, aligned, _) in flags.items() if not aligned} == {"unaligned"}
    assert {name for name, (_, _, writeable) in flags.items() if not writeable} == {"read-only"}
    assert all(step < 0 for step in views["reversed"].strides)


@given(testing.tensors(memory=False), testing.params(), st.sampled_from(sorted(testing.MEMORY)))
def test_memory_layout_does_not_show(sample, params, memory):
    x, axis = sample
    other = testing.MEMORY[memory](x)
    before = other.tobytes()
    plain = lynxq.encode(x, params, token_axis=axis)
    encoded = lynxq.encode(other, params, token_axis=axis)
    assert streams(encoded) == streams(plain)
    assert other.tobytes() == before
    assert other.flags.writeable == (memory != "read-only")


@given(testing.tensors(memory=False), testing.params(), st.data())
def test_broadcast_input(sample, params, data):
    x, axis = sample
    over = data.draw(st.integers(0, x.ndim - 1))
    x = x[(slice(None),) * over + (slice(0, 1),)]
    wide = np.broadcast_to(x, (*x.shape[:over], 3 if x.size else x.shape[over], *x.shape[over + 1 :]))
    encoded = lynxq.encode(wide, params, token_axis=axis)
    assert streams(encoded) == streams(lynxq.encode(wide.copy(), params, token_axis=axis))


@given(testing.tensors(), testing.params())
def test_encoding_is_deterministic(sample, params):
    first, second = (lynxq.encode(sample.x, params, token_axis=sample.token_axis) for _ in range(2))
    assert streams(first) == streams(second)
    for decode in DECODES:
        assert bits(decode(first)) == bits(decode(first)) == bits(decode(second))


@given(testing.tensors(), testing.params())
def test_what_an_encoded_says(sample, params):
    x, axis = sample
    encoded = lynxq.encode(x, params, token_axis=axis)
    assert (encoded.shape, encoded.dtype, encoded.params) == (x.shape, x.dtype.name, params)
    assert encoded.token_axis == axis % x.ndim
    assert encoded.framework == "numpy"
    assert encoded.anchor.dtype == encoded.residual.dtype == np.uint8
    assert encoded.nbytes == encoded.anchor.size + encoded.residual.size
    assert encoded.bits_per_element == (8 * encoded.nbytes / x.size if x.size else 0.0)
    alone = encoded.anchor_only()
    assert alone.residual is None
    assert alone.anchor is encoded.anchor
    assert alone.nbytes == encoded.anchor.size
    assert bits(lynxq.decode_anchor(alone)) == bits(lynxq.decode_anchor(encoded))
    again = Encoded(encoded.layout, encoded.anchor.copy(), encoded.residual.copy())
    assert bits(lynxq.decode_full(again)) == bits(lynxq.decode_full(encoded))
    assert str(x.shape) in repr(encoded)


@pytest.mark.parametrize("params", [Params(), Params.values(), Params.values(chunk=16, center="mean")])
def test_nhd_and_hnd_have_the_same_codes(params):
    nhd = seeded((300, 3, 40), kind="outliers")
    one = lynxq.encode(nhd, params, token_axis=0)
    other = lynxq.encode(nhd.transpose(1, 0, 2), params, token_axis=1)
    assert one.nbytes == other.nbytes
    for decode in DECODES:
        assert bits(decode(one)) == bits(decode(other).transpose(1, 0, 2))


@pytest.mark.parametrize("params", [Params(), Params.values()])
def test_outer_indices_are_independent(params):
    x = seeded((2, 3, 70, 5), "float16")
    whole = lynxq.encode(x, params, token_axis=2)
    for index in np.ndindex(2, 3):
        part = lynxq.encode(x[index], params, token_axis=0)
        for decode in DECODES:
            assert bits(decode(part)) == bits(decode(whole)[index])


@pytest.mark.parametrize("params", [Params(), Params.values(), Params.values(chunk=16)])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_flattened_heads(params, head_dim):
    x = seeded((65, 3, head_dim))
    flat = lynxq.encode(x.reshape(65, -1), params, token_axis=0, head_dim=head_dim)
    assert streams(flat) == streams(lynxq.encode(x, params, token_axis=0))
    assert bits(lynxq.decode_full(flat).reshape(x.shape)) == bits(
        lynxq.decode_full(lynxq.encode(x, params, token_axis=0))
    )


def test_head_dim_matters_along_channels():
    x = seeded((20, 160))
    one, other = (lynxq.encode(x, Params.values(), token_axis=0, head_dim=head) for head in (80, 160))
    assert one.nbytes > other.nbytes


@pytest.mark.parametrize("head_dim", [1, 3, 80, 96, 576])
@pytest.mark.parametrize("params", [Params(), Params.values(), Params.paper()])
def test_head_dims_of_real_models(head_dim, params):
    x = seeded((37, 2, head_dim), kind="key bias", seed=head_dim)
    encoded = lynxq.encode(x, params, token_axis=0)
    bound = lynxq.error_bound(encoded)
    assert (np.abs(lynxq.decode_full(encoded).astype(float) - x.astype(float)) <= bound).all()
    for head in range(2):
        alone = lynxq.encode(x[:, head], params, token_axis=0)
        assert bits(lynxq.decode_full(encoded)[:, head]) == bits(lynxq.decode_full(alone))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 5, 3), (2, 5, 0)])
@pytest.mark.parametrize("dtype", NAMES)
def test_empty_tensors_round_trip(shape, dtype):
    for axis in range(len(shape)):
        encoded = lynxq.encode(np.zeros(shape, DTYPES[dtype]), token_axis=axis)
        assert encoded.nbytes == 0
        for decode in DECODES:
            assert bits(decode(encoded)) == (shape, dtype, b"")
        assert lynxq.error_bound(encoded).shape == shape


# --- pages -----------------------------------------------------------------------------------------


@given(testing.tensors(token_lengths=range(1, 80)), testing.params(), st.sampled_from([0, 0, 2, 9]))
def test_pages_are_independent(sample, params, first_token):
    """Each page encoded alone, at its place in the sequence, gives the bytes it has in the whole."""
    x, axis = sample
    whole = lynxq.encode(x, params, token_axis=axis, first_token=first_token)
    layout = whole.layout
    decoded = [decode(whole) for decode in DECODES]
    for page in range(layout.pages):
        start, stop = layout.span(page)
        index = (slice(None),) * layout.token_axis + (slice(start, stop),)
        alone = lynxq.encode(x[index], params, token_axis=axis, first_token=first_token + start)
        part = whole.pages(page, page + 1)
        assert streams(alone) == streams(part)
        assert part.layout == alone.layout
        for decode, full in zip(DECODES, decoded, strict=True):
            assert bits(decode(part)) == bits(full[index])


@given(testing.tensors(token_lengths=range(1, 80)), testing.params(), st.data())
def test_page_ranges_decode_like_the_slice(sample, params, data):
    encoded = lynxq.encode(sample.x, params, token_axis=sample.token_axis)
    pages, axis = encoded.layout.pages, encoded.token_axis
    start = data.draw(st.integers(0, pages))
    stop = data.draw(st.integers(start, pages))
    part = encoded.pages(start, stop)
    assert np.shares_memory(part.anchor, encoded.anchor) or not part.anchor.size
    rows = slice(start * params.page, stop * params.page) if stop > start else slice(0, 0)
    index = (slice(None),) * axis + (rows,)
    for decode in DECODES:
        assert bits(decode(part)) == bits(decode(encoded)[index])
        assert bits(lynxq.decode_anchor(part.anchor_only())) == bits(lynxq.decode_anchor(encoded)[index])
    assert np.array_equal(lynxq.error_bound(part), lynxq.error_bound(encoded)[index])


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 4), (2, 1), (3, 4), (4, 4)])
def test_pages_that_are_not_there(start, stop):
    encoded = lynxq.encode(seeded((20, 2)), Params(page=8, range_size=8, chunk=8), token_axis=0)
    assert encoded.layout.pages == 3
    with pytest.raises(ShapeError, match="pages"):
        encoded.pages(start, stop)


def test_first_token_moves_the_sinks():
    x = seeded((40, 3), "float32")
    sizes = {first: lynxq.encode(x, token_axis=0, first_token=first).layout.sinks for first in (0, 1, 3, 4, 5, 10**9)}
    assert sizes == {0: 4, 1: 3, 3: 1, 4: 0, 5: 0, 10**9: 0}
    late = lynxq.encode(x, token_axis=0, first_token=4)
    assert streams(late) == streams(lynxq.encode(x, Params(sink_tokens=0), token_axis=0))
    assert late.layout.first_token == 4


# --- tokens that are not valid ---------------------------------------------------------------------


@given(testing.tensors(memory=False), testing.params(), st.data())
def test_an_invalid_tail_influences_nothing(sample, params, data):
    x, axis = sample
    axis %= x.ndim
    valid = data.draw(st.integers(0, x.shape[axis]))
    head, tail = ((slice(None),) * axis + (rows,) for rows in (slice(0, valid), slice(valid, None)))
    garbage = x.copy()
    garbage[tail] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 3.0]))
    encoded = lynxq.encode(garbage, params, token_axis=axis, valid_tokens=valid)
    alone = lynxq.encode(x[head], params, token_axis=axis)
    assert streams(encoded) == streams(alone)
    assert encoded.shape == x.shape
    assert encoded.layout.elements == x[head].size
    for decode in DECODES:
        decoded = decode(encoded)
        assert decoded.shape == x.shape
        assert decoded[head].tobytes() == decode(alone).tobytes()
        assert decoded[tail].tobytes() == bytes(decoded[tail].nbytes)
    assert not lynxq.error_bound(encoded)[tail].any()
    assert np.array_equal(lynxq.error_bound(encoded)[head], lynxq.error_bound(alone))


def test_all_tokens_valid_is_the_default():
    x = seeded((40, 3))
    one, other = lynxq.encode(x, token_axis=0), lynxq.encode(x, token_axis=0, valid_tokens=40)
    assert streams(one) == streams(other)
    assert one.layout == other.layout
