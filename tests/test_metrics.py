"""lynxq.metrics against direct formulas, torch's attention and examples worked out by hand."""

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lynxq
from lynxq.errors import DTypeError, MissingResidualError, NonFiniteError, ParamsError, ShapeError
from lynxq.metrics import (
    AttentionError,
    ErrorSums,
    attention,
    attention_output_error,
    bits_per_element,
    centred_vnmse,
    max_error,
    pieces,
    vnmse,
)

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


@st.composite
def tensors(draw, min_length=1):
    """A tensor, a reconstruction of it, and a token axis."""
    shape = draw(st.lists(st.integers(min_length, 7), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal(shape) * 10.0 ** draw(st.integers(-3, 3)) + draw(st.sampled_from([0.0, 200.0]))
    x = x.astype(draw(st.sampled_from(DTYPES)))
    x_hat = (x.astype(np.float64) + rng.standard_normal(shape) * 0.1).astype(draw(st.sampled_from(DTYPES)))
    return x, x_hat, draw(st.integers(-len(shape), len(shape) - 1))


# --- errors of tensors -----------------------------------------------------------------------------


def test_by_hand():
    x, x_hat = np.array([[1.0, 10.0], [3.0, 14.0]]), np.array([[1.0, 11.0], [3.5, 12.0]])
    assert vnmse(x, x_hat) == (1 + 0.25 + 4) / (1 + 100 + 9 + 196)
    assert centred_vnmse(x, x_hat, token_axis=0) == (1 + 0.25 + 4) / (1 + 1 + 4 + 4)
    assert centred_vnmse(x, x_hat, token_axis=-1) == (1 + 0.25 + 4) / (2 * 4.5**2 + 2 * 5.5**2)
    assert max_error(x, x_hat) == 2.0


@settings(deadline=None)
@given(tensors(), st.sampled_from([1, 2, 3, 8, 50, 1 << 18]))
def test_sums_equal_the_direct_formulas_whatever_the_pieces(case, piece):
    x, x_hat, axis = case
    true, near = x.astype(np.float64), x_hat.astype(np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", piece)
        sums = ErrorSums.of(x, x_hat, token_axis=axis)
    error = ((true - near) ** 2).sum()
    centred = ((true - true.mean(axis, keepdims=True)) ** 2).sum()
    assert sums.squared_error == pytest.approx(error, rel=1e-12)
    assert sums.squared_norm == pytest.approx((true**2).sum(), rel=1e-12)
    assert sums.centred_norm == pytest.approx(centred, rel=1e-9, abs=1e-18)
    assert sums.max_error == np.abs(true - near).max()
    assert sums.elements == x.size
    assert vnmse(x, x_hat) == pytest.approx(error / (true**2).sum(), rel=1e-12)
    assert max_error(x, x_hat) == sums.max_error


@settings(deadline=None)
@given(tensors(), st.data())
def test_pooling_parts_gives_the_whole(case, data):
    x, x_hat, token_axis = case
    axis = data.draw(st.integers(0, x.ndim - 1))
    at = data.draw(st.integers(0, x.shape[axis]))
    parts = list(zip(np.split(x, [at], axis), np.split(x_hat, [at], axis), strict=True))
    whole = ErrorSums.of(x, x_hat)
    pooled = sum((ErrorSums.of(*part) for part in parts), ErrorSums())
    assert pooled.vnmse == pytest.approx(whole.vnmse, rel=1e-12)
    assert (pooled.max_error, pooled.elements) == (whole.max_error, whole.elements)
    if axis != token_axis % x.ndim:  # channels and outer indices have means of their own
        whole = ErrorSums.of(x, x_hat, token_axis=token_axis)
        pooled = sum((ErrorSums.of(*part, token_axis=token_axis) for part in parts), ErrorSums())
        assert pooled.centred_norm == pytest.approx(whole.centred_norm, rel=1e-9, abs=1e-18)


@settings(deadline=None)
@given(tensors(), st.integers(-300, 300))
def test_centred_vnmse_ignores_a_constant(case, shift):
    x, x_hat, axis = (*(np.round(part.astype(np.float64) * 64) / 64 for part in case[:2]), case[2])
    before, after = (centred_vnmse(x + s, x_hat + s, token_axis=axis) for s in (0, shift))
    assert after == pytest.approx(before, rel=1e-9)


def test_reconstruction_by_the_means_has_centred_vnmse_one():
    x = np.random.default_rng(0).standard_normal((3, 50, 2, 5)) + 7
    means = np.broadcast_to(x.mean(1, keepdims=True), x.shape)
    assert centred_vnmse(x, means, token_axis=1) == pytest.approx(1.0, rel=1e-12)
    assert vnmse(x, np.zeros_like(x)) == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_torch_and_numpy_agree_in_every_dtype_and_layout(dtype):
    x = torch.randn(40, 3, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    x_hat = (x.float() * 1.05).to(dtype).requires_grad_(dtype.itemsize > 1)
    expected = ErrorSums.of(x.double().numpy(), x_hat.detach().double().numpy(), token_axis=0)
    assert ErrorSums.of(x, x_hat, token_axis=0) == expected
    turned = ErrorSums.of(x.permute(2, 0, 1), x_hat.permute(2, 0, 1), token_axis=1)
    assert turned.vnmse == pytest.approx(expected.vnmse, rel=1e-12)
    assert turned.centred_vnmse == pytest.approx(expected.centred_vnmse, rel=1e-12)
    assert ErrorSums.of(x, x_hat.detach().float().numpy(), token_axis=0) == expected


def test_strided_reversed_and_broadcast_arrays():
    x = np.random.default_rng(2).standard_normal((30, 8, 6)).astype(np.float32)
    view, view_hat = x[::-2, 1::3], (x * 1.01)[::-2, 1::3]
    assert vnmse(view, view_hat) == vnmse(view.copy(), view_hat.copy())
    assert vnmse(x, np.broadcast_to(x[:1], x.shape)) == vnmse(x, np.tile(x[:1], (30, 1, 1)))


def test_the_inputs_are_left_alone():
    x, x_hat = np.arange(6.0), np.arange(6.0) + 1
    x.flags.writeable = x_hat.flags.writeable = False
    assert vnmse(x, x_hat) == 6 / 55


def test_zero_denominators():
    zero, one = np.zeros((4, 2), np.float32), np.ones((4, 2), np.float32)
    assert vnmse(zero, zero) == 0.0
    assert vnmse(zero, one) == math.inf
    tenth = np.full((7, 2), 0.1)  # its sum is rounded, and yet there must be no variance
    assert centred_vnmse(tenth, tenth, token_axis=0) == 0.0
    assert centred_vnmse(tenth, tenth + 1, token_axis=0) == math.inf
    assert centred_vnmse(np.array([[3.0, 4.0]]), np.array([[3.0, 5.0]]), token_axis=0) == math.inf


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_empty_tensors_have_no_error(shape):
    x = np.zeros(shape, np.float32)
    for axis in range(len(shape)):
        sums = ErrorSums.of(x, x, token_axis=axis)
        assert (sums.vnmse, sums.centred_vnmse, sums.max_error, sums.elements) == (0.0, 0.0, 0.0, 0)


def test_a_scalar_is_a_tensor_without_tokens():
    assert vnmse(np.array(2.0), np.array(3.0)) == 0.25
    assert vnmse(torch.tensor(2.0), torch.tensor(3.0)) == 0.25
    with pytest.raises(ShapeError, match=r"axis of shape \(\)"):
        centred_vnmse(np.array(2.0), np.array(3.0), token_axis=0)


def test_what_is_not_measured_is_nan_and_stays_nan():
    x = np.ones((4, 2))
    assert math.isnan(ErrorSums.of(x, x).centred_vnmse)
    assert math.isnan((ErrorSums.of(x, x) + ErrorSums.of(x, x, token_axis=0)).centred_vnmse)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("piece", [2, 1 << 18])
def test_non_finite_values(monkeypatch, bad, piece):
    monkeypatch.setattr(pieces, "PIECE", piece)
    x = np.ones((5, 3), np.float32)
    broken = x.copy()
    broken[2, 1] = broken[3, 0] = bad
    with pytest.raises(NonFiniteError) as caught:
        vnmse(broken, x)
    assert (caught.value.count, caught.value.first_index) == (2, (2, 1))
    with pytest.raises(NonFiniteError):
        centred_vnmse(broken, broken, token_axis=0)
    assert vnmse(x, broken) == math.inf
    assert max_error(x, broken) == math.inf
    assert centred_vnmse(x, broken, token_axis=0) == math.inf
    assert (ErrorSums.of(x, broken) + ErrorSums.of(x, x)).vnmse == math.inf


def test_arguments_that_do_not_fit():
    x = np.ones((5, 3))
    with pytest.raises(ShapeError, match=r"x_hat must have the shape of x, \(5, 3\), got \(3, 5\)"):
        vnmse(x, x.T)
    with pytest.raises(ShapeError, match=r"token_axis must be an axis of shape \(5, 3\), got 2"):
        centred_vnmse(x, x, token_axis=2)
    with pytest.raises(DTypeError, match="x must be an array of floats, got dtype int64"):
        vnmse(x.astype(np.int64), x)
    with pytest.raises(DTypeError, match=r"x_hat must be an array of floats, got dtype torch\.complex64"):
        vnmse(x, torch.ones(5, 3, dtype=torch.complex64))
    with pytest.raises(DTypeError, match="got list"):
        vnmse([1.0], [1.0])
    with pytest.raises(TypeError):
        ErrorSums() + 1


def test_memory_is_bounded_by_the_piece(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 1 << 12)
    x = np.random.default_rng(3).standard_normal((64, 64, 64)).astype(np.float32)
    x_hat = x + np.float32(0.5)
    ErrorSums.of(x, x_hat, token_axis=1)
    tracemalloc.start()
    ErrorSums.of(x, x_hat, token_axis=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.size * 8 / 4  # 10 pieces of 32 KiB fit; float64 copies of the tensors would be 2 MiB each


# --- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [lynxq.Params.keys(), lynxq.Params.values(), lynxq.Params.paper(anchor_bits=5, residual_bits=3)]
)
def test_bits_count_every_byte_of_both_streams(params):
    encoded = lynxq.encode(
        np.random.default_rng(4).standard_normal((301, 2, 40)).astype(np.float32), params, token_axis=0
    )
    assert bits_per_element(encoded, "anchor") == len(encoded.anchor.tobytes()) * 8 / (301 * 80)
    both = len(encoded.anchor.tobytes()) + len(encoded.residual.tobytes())
    assert bits_per_element(encoded) == bits_per_element(encoded, "full") == both * 8 / (301 * 80)
    assert bits_per_element(encoded.anchor_only(), "anchor") == bits_per_element(encoded, "anchor")
    with pytest.raises(MissingResidualError):
        bits_per_element(encoded.anchor_only())
    with pytest.raises(ValueError, match="tier must be"):
        bits_per_element(encoded, "half")


def test_bits_of_an_empty_tensor():
    assert bits_per_element(lynxq.encode(np.zeros((0, 4), np.float32), token_axis=0)) == 0.0


# --- attention -------------------------------------------------------------------------------------


def caches(seed, *sizes):
    """Queries, keys, values and both reconstructions, of Tq, Tk, Hq, Hkv, D and Dv."""
    tq, tk, hq, hkv, d, dv = sizes
    rng = np.random.default_rng(seed)
    queries = rng.standard_normal((tq, hq, d))
    keys, values = rng.standard_normal((tk, hkv, d)), rng.standard_normal((tk, hkv, dv))
    return queries, keys, values, *(x + 0.1 * rng.standard_normal(x.shape) for x in (keys, values))


def torch_output(q, k, v, mask, scale):
    """Outputs (Tq, Hq, Dv) of torch's own attention in float64."""
    q, k, v = (torch.as_tensor(x).double().transpose(0, 1)[None] for x in (q, k, v))
    with torch.no_grad():
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
    return output[0].transpose(0, 1).numpy()


@settings(deadline=None)
@given(st.data())
def test_attention_error_equals_torch_whatever_the_blocks(data):
    def integer(low, high):
        return data.draw(st.integers(low, high))

    tk, hkv, group, d, dv = integer(1, 12), integer(1, 3), integer(1, 4), integer(1, 6), integer(1, 6)
    tq, first = integer(1, tk), data.draw(st.none() | st.integers(0, 14))
    causal, scale = data.draw(st.booleans()), data.draw(st.none() | st.floats(-3, 3))
    arrays = caches(integer(0, 2**32), tq, tk, hkv * group, hkv, d, dv)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BLOCK", data.draw(st.sampled_from([1, 2, 3, 5, 512])))
        result = attention_output_error(*arrays, causal=causal, scale=scale, first_query=first)
    q, k, v, k_hat, v_hat = arrays
    positions = (tk - tq if first is None else first) + torch.arange(tq)
    mask = torch.arange(tk) <= positions[:, None] if causal else None
    o, o_hat = torch_output(q, k, v, mask, scale), torch_output(q, k_hat, v_hat, mask, scale)
    error, norm = ((o - o_hat) ** 2).sum((0, 2)), (o**2).sum((0, 2))
    assert result.squared_error == pytest.approx(error.tolist(), rel=1e-9, abs=1e-24)
    assert result.squared_norm == pytest.approx(norm.tolist(), rel=1e-9)
    assert result.per_head == pytest.approx((error / norm).tolist(), rel=1e-9, abs=1e-20)
    assert result.pooled == pytest.approx(error.sum() / norm.sum(), rel=1e-9, abs=1e-20)


def test_attention_by_hand():
    # One query of zeros attends evenly: the output is the mean of the values, 2 against 3.
    zeros, values = np.zeros((1, 1, 4)), np.array([1.0, 3.0]).reshape(2, 1, 1)
    result = attention_output_error(zeros, np.ones((2, 1, 4)), values, np.ones((2, 1, 4)), values + 1)
    assert (result.per_head, result.pooled) == ((0.25,), 0.25)
    # At position 0 the first value alone is seen: 1 against 2.
    first = attention_output_error(zeros, np.ones((2, 1, 4)), values, np.ones((2, 1, 4)), values + 1, first_query=0)
    assert first.pooled == 1.0


def test_blocks_of_a_longer_cache_change_nothing(monkeypatch):
    arrays = caches(5, 70, 300, 6, 2, 16, 24)
    whole = attention_output_error(*arrays)
    monkeypatch.setattr(attention, "BLOCK", 32)
    assert attention_output_error(*arrays).squared_error == pytest.approx(whole.squared_error, rel=1e-12)


def test_large_logits_do_not_overflow():
    q, k, v, k_hat, v_hat = caches(6, 4, 20, 2, 1, 8, 8)
    result = attention_output_error(q * 1e4, k, v, k, v_hat)
    assert 0 < result.pooled < 1
    assert math.isfinite(attention_output_error(q * 1e4, k, v, k_hat, v_hat).pooled)


def test_a_kv_head_moves_its_own_query_heads_only():
    q, k, v, k_hat, v_hat = caches(7, 5, 9, 6, 3, 4, 4)
    k_hat[:, [0, 2]], v_hat[:, [0, 2]] = k[:, [0, 2]], v[:, [0, 2]]
    per_head = attention_output_error(q, k, v, k_hat, v_hat).per_head
    assert [error > 0 for error in per_head] == [False, False, True, True, False, False]


def test_the_future_does_not_matter():
    q, k, v, _, _ = caches(8, 3, 9, 2, 1, 4, 4)
    k_hat, v_hat = k.copy(), v.copy()
    k_hat[5:], v_hat[5:] = 9.0, -9.0
    assert attention_output_error(q, k, v, k_hat, v_hat, first_query=2).pooled == 0.0  # positions 2, 3, 4
    assert attention_output_error(q, k, v, k_hat, v_hat, first_query=3).pooled > 0.0
    assert attention_output_error(q, k, v, k_hat, v_hat, causal=False).pooled > 0.0


def test_attention_of_torch_bfloat16_equals_that_of_its_values():
    arrays = [torch.as_tensor(x).bfloat16() for x in caches(9, 6, 20, 4, 2, 8, 8)]
    expected = attention_output_error(*(x.double().numpy() for x in arrays))
    assert attention_output_error(*arrays) == expected
    assert attention_output_error(*(x.float().numpy().astype(ml_dtypes.bfloat16) for x in arrays)) == expected


def test_attention_corner_cases():
    q, k, v, k_hat, v_hat = caches(10, 3, 5, 4, 2, 4, 4)
    assert attention_output_error(q, k, v, k, v).pooled == 0.0
    assert attention_output_error(q[:0], k, v, k_hat, v_hat).per_head == (0.0,) * 4
    assert attention_output_error(q, k, v[..., :0], k_hat, v_hat[..., :0]).pooled == 0.0
    assert attention_output_error(q, k, v * 0, k, v_hat).pooled == math.inf
    v_hat[1, 1, 2] = math.nan
    per_head = attention_output_error(q, k, v, k_hat, v_hat).per_head
    assert [math.isinf(error) for error in per_head] == [False, False, True, True]
    k_hat[4, 0, 0] = math.inf
    assert attention_output_error(q, k, v, k_hat, v).per_head[:2] == (math.inf, math.inf)
    k[3, 1, 2] = math.nan
    with pytest.raises(NonFiniteError) as caught:
        attention_output_error(q, k, v, k_hat, v_hat)
    assert caught.value.first_index == (3, 1, 2)


def test_attention_arguments_that_do_not_fit():
    q, k, v, k_hat, v_hat = caches(11, 3, 5, 4, 2, 6, 7)
    cases = [
        ((q[0], k, v, k_hat, v_hat), {}, r"queries must have three axes .* got shape \(4, 6\)"),
        ((q, k, v, k_hat[:4], v_hat), {}, r"keys_hat must have the shape of keys, \(5, 2, 6\), got \(4, 2, 6\)"),
        ((q, k, v, k_hat, v_hat[:, :1]), {}, r"values_hat must have the shape of values, \(5, 2, 7\)"),
        ((q, k, v[:4], k_hat, v_hat[:4]), {}, r"same tokens and heads, got shapes \(5, 2, 6\) and \(4, 2, 7\)"),
        ((q[..., :5], k, v, k_hat, v_hat), {}, r"one head dim, got shapes \(3, 4, 5\) and \(5, 2, 6\)"),
        ((q[:, :3], k, v, k_hat, v_hat), {}, r"multiple of the 2 KV heads, got shape \(3, 3, 6\)"),
        ((q[:, :0], k, v, k_hat, v_hat), {}, r"multiple of the 2 KV heads, got shape \(3, 0, 6\)"),
        ((q, k[:0], v[:0], k_hat[:0], v_hat[:0]), {}, r"at least, got shape \(0, 2, 6\)"),
        ((q, k[:2], v[:2], k_hat[:2], v_hat[:2]), {}, "3 queries cannot be the last of 2 positions"),
        ((q, k, v, k_hat, v_hat), {"first_query": -1}, "must not be negative, got -1"),
    ]
    for args, options, message in cases:
        with pytest.raises(ShapeError, match=message):
            attention_output_error(*args, **options)
    with pytest.raises(ParamsError, match="scale must be finite, got nan"):
        attention_output_error(q, k, v, k_hat, v_hat, scale=math.nan)
    # Without causality there are no positions, so that more queries than keys are fine.
    assert attention_output_error(q, k[:2], v[:2], k_hat[:2], v_hat[:2], causal=False).pooled > 0


def test_attention_errors_pool_over_layers():
    layers = [caches(seed, 3, 5, 4, 2, 6, 7) for seed in (12, 13)]
    first, second = (attention_output_error(*layer) for layer in layers)
    both = first + second
    assert both.per_head[3] == (first.squared_error[3] + second.squared_error[3]) / (
        first.squared_norm[3] + second.squared_norm[3]
    )
    with pytest.raises(ShapeError, match="got 4 and 1"):
        first + AttentionError((1.0,), (1.0,))
    with pytest.raises(ShapeError, match="got 1 and 2"):
        AttentionError((1.0,), (1.0, 2.0))
    with pytest.raises(TypeError):
        first + 1
