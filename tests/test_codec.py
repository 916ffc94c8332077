"""What the codec promises about values: codes, constants, sinks, saturation, corner cases."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Params, companding, packing, quantizer, testing
from lynxq.backends.sections import page_sections
from lynxq.params import SPLITS
from tests.scalar_model import DTYPES

NAMES = sorted(DTYPES)


def codes_of(encoded):
    """Q_anc and Q_res of page 0, signed, shape (outer, tokens, channels)."""
    params, coded = encoded.params, encoded.layout.coded(0)
    result = []
    for stream, bits in (("anchor", params.anchor_bits), ("residual", params.residual_bits)):
        sections = page_sections(encoded.layout, getattr(encoded, stream), stream, 0)
        planes = [view for name, view in sections.items() if name.startswith(stream)]
        codes = packing.unpack(planes, bits, coded).astype(int)
        result.append(np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes))
    return result


def widen(x):
    return x.astype(np.float64)


# --- every level is recovered ----------------------------------------------------------------------


@pytest.mark.parametrize(("a", "r"), SPLITS)
@pytest.mark.parametrize("negative", [False, True])
def test_split_and_tables_recover_every_level(a, r, negative):
    """The formulas of equations (13) to (16), for every (sign, I)."""
    params = Params(anchor_bits=a, residual_bits=r)
    level = np.arange(params.levels + 1, dtype=np.uint8)
    q_anc, q_res = quantizer.split(params, level, np.full(level.shape, negative))
    full, near = quantizer.full_table(params), quantizer.anchor_table(params)
    assert full.shape == (1 << (a + r),)
    assert near.shape == (1 << a,)
    sign = -1.0 if negative else 1.0
    for i in range(params.levels + 1):
        v_mag = (i + 2 ** (r - 1) - 1) >> r
        v_res = (v_mag << r) - i
        assert 0 <= v_mag < 2 ** (a - 1)
        assert -(2 ** (r - 1)) <= v_res < 2 ** (r - 1)
        assert int(q_anc[i]) == (-v_mag - 1 if negative else v_mag) % 2**a
        assert int(q_res[i]) == v_res % 2**r
        assert full[(int(q_anc[i]) << r) | int(q_res[i])] == sign * companding.levels(params.alpha, params.levels)[i]
        assert near[q_anc[i]] == sign * params.points[v_mag]


@pytest.mark.parametrize(("a", "r"), SPLITS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 255.0])
def test_every_level_through_the_streams(a, r, alpha):
    """One chunk with centre 0 and scale 1 that holds every level of both signs."""
    params = Params(anchor_bits=a, residual_bits=r, alpha=alpha, range_size=256, chunk=256, sink_tokens=0)
    levels = companding.levels(alpha, params.levels)
    almost = np.nextafter(companding.thresholds(alpha, params.levels)[0], np.float32(0))
    x = np.concatenate([levels, -levels[1:], [-almost]]).reshape(-1, 1)
    assert len(x) <= 256
    encoded = lynxq.encode(x, params, token_axis=0)
    i = np.array([*range(params.levels + 1), *range(1, params.levels + 1), 0])
    v_mag = (i + 2 ** (r - 1) - 1) >> r
    q_anc, v_res = (codes.ravel() for codes in codes_of(encoded))
    assert np.array_equal(q_anc, np.where(x.ravel() < 0, -v_mag - 1, v_mag))
    assert np.array_equal(v_res, (v_mag << r) - i)
    full = lynxq.decode_full(encoded)
    assert np.array_equal(full[:-1], x[:-1])
    assert full[-1] == 0
    assert np.array_equal(np.abs(lynxq.decode_anchor(encoded).ravel()), np.array(params.points, np.float32)[v_mag])


def threshold_cases(alpha, count):
    """Scales, and values at or next to a threshold for them, where a quotient and a product round differently."""
    rng = np.random.default_rng(0)
    table = companding.thresholds(alpha, count)
    for sigma in rng.uniform(1, 2, 40).astype(np.float32):
        near = (table * sigma).astype(np.float32)
        x = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(2))])
        product, quotient = x * (np.float32(1) / sigma), x / sigma
        rows = np.tile(table, 3)
        yield sigma, x[(product >= rows) != (quotient >= rows)], x[product == rows]


def test_a_value_is_multiplied_by_the_rounded_reciprocal():
    """t = |x - μ̂| · (1/σ̂), neither |x - μ̂| / σ̂ nor the product with an exact reciprocal; ties go up."""
    params = Params(alpha=0.5, range_size=256, chunk=256, sink_tokens=0)
    table = companding.thresholds(0.5, params.levels)
    different = ties = 0
    for sigma, disputed, tied in threshold_cases(0.5, params.levels):
        different, ties = different + len(disputed), ties + len(tied)
        x = np.concatenate([[sigma, -sigma], disputed, -disputed, tied[:60]]).astype(np.float32)[:256]
        q_anc, v_res = (codes.ravel() for codes in codes_of(lynxq.encode(x[:, None], params, token_axis=0)))
        level = (np.where(q_anc < 0, -q_anc - 1, q_anc) << params.residual_bits) - v_res
        t = np.abs(x) * (np.float32(1) / sigma)
        assert np.array_equal(level, [int((table <= value).sum()) for value in t])
    assert different > 50
    assert ties > 50


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.5, 255.0, 2000.0, 1e6])
@pytest.mark.parametrize(("a", "r"), SPLITS)
def test_a_code_is_the_number_of_thresholds_at_or_below(alpha, a, r):
    count = companding.level_count(a, r)
    table = companding.thresholds(alpha, count)
    t = np.concatenate([table, np.nextafter(table, np.float32(0)), np.nextafter(table, np.float32(1)), [0.0, 1.0]])
    t = np.concatenate([t, [np.nextafter(np.float32(1), np.float32(2)), np.inf], np.linspace(0, 1, 5000)])
    t = t.astype(np.float32)
    level = quantizer.magnitude_level(t, alpha, count)
    assert np.array_equal(level, (table <= t[:, None]).sum(axis=1))
    assert np.array_equal(level[:count], np.arange(1, count + 1))
    assert np.array_equal(level[count : 2 * count], np.arange(count))


# --- exact values ----------------------------------------------------------------------------------


@given(testing.params(), st.sampled_from(NAMES), st.data())
def test_constants_decode_exactly(params, dtype, data):
    largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    value = data.draw(
        st.sampled_from([0.0, -0.0, 1.0, -200.0, 0.1, 2.0**-24, -(2.0**-133), 2.0**-149, largest, -largest])
        | st.floats(-60000.0, 60000.0, width=16),
    )
    x = np.full(data.draw(st.sampled_from([(1,), (9, 2), (2, 33, 3)])), value, np.float32).astype(DTYPES[dtype])
    encoded = lynxq.encode(x, params, token_axis=x.ndim // 2)
    assert np.array_equal(lynxq.decode_full(encoded), x)
    assert np.array_equal(lynxq.decode_anchor(encoded), x)
    assert not lynxq.error_bound(encoded, "anchor").any()


@pytest.mark.parametrize("dtype", NAMES)
def test_extremes_of_a_range_decode_exactly(dtype):
    """The range is stored as it is, and the top level is exactly 1: the anchor alone gives both ends back."""
    x = testing.contents("normal", (256, 5), dtype, seed=1)
    decoded = lynxq.decode_anchor(lynxq.encode(x, Params(range_size=64, chunk=64, sink_tokens=0), token_axis=0))
    for start in range(0, 256, 64):
        rows, near = widen(x[start : start + 64]), widen(decoded[start : start + 64])
        slack = np.abs(rows).max(axis=0) * 2.0**-22
        assert (np.abs(near.max(axis=0) - rows.max(axis=0)) <= slack).all()
        assert (np.abs(near.min(axis=0) - rows.min(axis=0)) <= slack).all()


@given(testing.tensors(), testing.params(), st.sampled_from([0, 0, 1, 3, 8, 1000]))
def test_sinks_are_kept_bit_for_bit(sample, params, first_token):
    x, axis = sample
    encoded = lynxq.encode(x, params, token_axis=axis, first_token=first_token)
    sinks = min(max(params.sink_tokens - first_token, 0), x.shape[axis])
    assert encoded.layout.sinks == sinks
    kept = np.moveaxis(x, axis, 0)[:sinks]
    for decode in (lynxq.decode_anchor, lynxq.decode_full):
        assert np.moveaxis(decode(encoded), axis, 0)[:sinks].tobytes() == kept.tobytes()


def test_sinks_do_not_widen_ranges():
    x = testing.contents("normal", (64, 3), "float32", seed=2)
    loud = x.copy()
    loud[:4] = 1e30
    quiet, other = (lynxq.encode(values, token_axis=0) for values in (x, loud))
    assert lynxq.decode_full(quiet)[4:].tobytes() == lynxq.decode_full(other)[4:].tobytes()
    assert quiet.residual.tobytes() == other.residual.tobytes()


def test_a_tensor_of_sinks_only():
    x = testing.contents("wide exponents", (3, 4), "bfloat16", seed=2)
    encoded = lynxq.encode(x, token_axis=0)
    assert lynxq.decode_anchor(encoded).tobytes() == x.tobytes()
    assert encoded.residual.size == 0


# --- result dtypes ---------------------------------------------------------------------------------


@given(testing.tensors(), testing.params(), st.sampled_from(NAMES))
def test_results_are_finite_in_every_dtype(sample, params, dtype):
    """A value beyond the largest finite one becomes that one; all others are rounded to nearest even."""
    encoded = lynxq.encode(sample.x, params, token_axis=sample.token_axis)
    largest = np.float32(ml_dtypes.finfo(DTYPES[dtype]).max)
    for decode in (lynxq.decode_anchor, lynxq.decode_full):
        exact = decode(encoded, dtype="float32")
        result = decode(encoded, dtype=dtype)
        assert result.dtype == DTYPES[dtype]
        assert np.isfinite(result.astype(np.float32)).all()
        assert result.tobytes() == np.clip(exact, -largest, largest).astype(DTYPES[dtype]).tobytes()


def test_bfloat16_beyond_float16():
    x = np.full((20, 2), 1e5, np.float32).astype(ml_dtypes.bfloat16)
    x[::3] *= -1
    encoded = lynxq.encode(x, token_axis=0)
    assert np.array_equal(lynxq.decode_full(encoded), x)
    for decode in (lynxq.decode_anchor, lynxq.decode_full):
        assert np.array_equal(decode(encoded, dtype="float16"), np.where(x > 0, 65504.0, -65504.0))


@pytest.mark.parametrize("tier", ["anchor", "full"])
def test_float16_extremes(tier):
    x = np.array([[60000, -60000, 65504, -65504, 0, 1, 60000, 2]] * 40, np.float16)
    x[::2] *= -1
    x[5] = 3
    encoded = lynxq.encode(x, token_axis=0)
    decoded = getattr(lynxq, f"decode_{tier}")(encoded)
    assert np.isfinite(decoded).all()
    assert (np.abs(widen(decoded) - widen(x)) <= lynxq.error_bound(encoded, tier)).all()


@pytest.mark.parametrize(
    "wanted", ["float16", np.float16, np.dtype(np.float16), np.dtype("<f2")], ids=["name", "type", "dtype", "order"]
)
def test_ways_to_name_a_dtype(wanted):
    encoded = lynxq.encode(np.ones((5, 2), np.float32), token_axis=0)
    assert lynxq.decode_full(encoded, dtype=wanted).dtype == np.float16
    assert lynxq.decode_full(encoded, dtype=ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    assert lynxq.decode_full(encoded, dtype=None).dtype == np.float32


# --- metadata corner cases -------------------------------------------------------------------------


def full_error(x, params):
    decoded = lynxq.decode_full(lynxq.encode(x, params, token_axis=0))
    return np.abs(widen(decoded) - widen(x))


@pytest.mark.parametrize(("metadata", "limit"), [("u8", 0.06), ("u16", 0.016), ("f32", 0.016)])
def test_one_token_a_thousand_times_the_others(metadata, limit):
    """Other chunks keep the error of ordinary ones; only 8 bits, counting steps of the whole range, lose some."""
    x = testing.contents("normal", (256, 8), "float32", seed=3)
    x[200] *= 1000
    error = full_error(x, Params(metadata=metadata, sink_tokens=0))
    assert np.delete(error, range(192, 224), axis=0).max() < limit


def test_a_key_bias_costs_nothing_but_rounding():
    x = testing.contents("normal", (256, 8), "float32", seed=4)
    plain = full_error(x, Params())
    biased = full_error(x + np.float32(200), Params())
    assert biased.max() < plain.max() * 1.25 + 200 * 2.0**-21


def test_a_chunk_at_the_largest_float_is_coded_like_any_other():
    """μ̂ of a chunk at the end of such a range rounds to more than the largest float32."""
    largest = np.finfo(np.float32).max
    x = np.zeros((64, 2), np.float32)
    x[32:] = largest * np.linspace(0.9985, 1, 32, dtype=np.float32)[:, None]
    x[:, 1] *= -1
    error = full_error(x, Params(page=64, range_size=64, sink_tokens=0))
    assert error.max() < 2.0**-16 * largest


@pytest.mark.parametrize("center", ["midrange", "mean"])
def test_no_level_is_beyond_the_largest(center):
    """One value per chunk at either end of a range up to the largest float32: t must not overflow."""
    largest = np.finfo(np.float32).max
    x = np.array([[0.0, 0.0, 0.0], [largest, -largest, largest / 2]], np.float32)
    params = Params(page=8, range_size=8, chunk=1, sink_tokens=0, center=center)
    encoded = lynxq.encode(x, params, token_axis=0)
    q_anc, v_res = codes_of(encoded)
    level = (np.where(q_anc < 0, -q_anc - 1, q_anc) << params.residual_bits) - v_res
    assert level.min() >= 0
    assert level.max() <= params.levels
    assert np.abs(widen(lynxq.decode_full(encoded)) - widen(x)).max() <= 2.0**-7 * largest


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("params", [Params(), Params.values(), Params.paper()], ids=["keys", "values", "paper"])
def test_quality_on_ordinary_values(dtype, params):
    """vNMSE of Gaussian values: a wrong scale, a lost level or a truncation would multiply it."""
    x = testing.contents("normal", (512, 2, 64), dtype, seed=6)
    encoded = lynxq.encode(x, params, token_axis=0)
    limits = {"keys": (6.5e-3, 3.3e-5), "values": (8.1e-3, 3.6e-5), "paper": (4.6e-2, 1.8e-4)}
    name = "values" if params.axis == "channel" else "paper" if params.alpha == 255 else "keys"
    for tier, limit in zip(("anchor", "full"), limits[name], strict=True):
        error = widen(getattr(lynxq, f"decode_{tier}")(encoded)) - widen(x)
        vnmse = (error**2).sum() / (widen(x) ** 2).sum()
        assert vnmse < limit
