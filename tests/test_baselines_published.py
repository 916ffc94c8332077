"""Schemes of lynxq.baselines against the formulas and figures of their papers, written out once more here."""

import math

import constriction
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynxq import baselines
from lynxq.baselines import (
    CacheGen,
    CacheGenLMCache,
    Float8,
    Kivi,
    KVQuant,
    LynxInt4,
    LynxInt8,
    NormalFloat4,
    PerTensorInteger,
    TurboQuant,
    WithSinks,
    codes,
)
from lynxq.baselines.kvquant import fit_codebook
from lynxq.baselines.turboquant import codebook, rotate
from lynxq.errors import DTypeError, ParamsError, ShapeError
from lynxq.metrics import vnmse


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def sizes(coded):
    return {name: part.nbytes for name, part in coded.parts.items()}


# --- what schemes share ----------------------------------------------------------------------------


@given(st.integers(1, 8), st.lists(st.integers(0, 255), max_size=40))
def test_codes_are_really_packed(bits, values):
    values = [value % (1 << bits) for value in values]
    packed = codes.pack(np.array(values, np.uint8), bits)
    number = sum(value << (bits * i) for i, value in enumerate(values))
    assert packed.tobytes() == number.to_bytes(-(-len(values) * bits // 8), "little")
    assert codes.unpack(packed, bits, len(values)).tolist() == values


@given(st.integers(0, 9), st.integers(1, 12), st.integers(0, 2))
def test_split_and_join(length, size, axis):
    shape = [2, 3, 4]
    shape[axis] = length
    x = normal(*shape)
    groups = codes.split(x, axis, size)
    assert groups.shape[axis : axis + 2] == (-(-length // size), size)
    np.testing.assert_array_equal(codes.join(groups, axis, length), x)


# --- KIVI ------------------------------------------------------------------------------------------


def kivi_by_the_book(x, bits, axis, group=32):
    """The authors' ``quant_and_pack_kcache`` and its inverse in plain numpy, scales and minima in float16."""
    moved = np.moveaxis(x.astype(np.float64), axis, -1)
    groups = moved.reshape(*moved.shape[:-1], -1, group)
    low = groups.min(-1, keepdims=True).astype(np.float16).astype(np.float64)
    scale = (groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)) / (2**bits - 1)
    scale = scale.astype(np.float16).astype(np.float64)
    data = np.clip((groups - low) / scale, 0, 2**bits - 1).round()
    return np.moveaxis((data * scale + low).reshape(moved.shape), -1, axis)


@pytest.mark.parametrize("bits", [2, 4])
def test_kivi_is_the_authors_formula(bits):
    x = normal(256, 2, 64)
    key = Kivi(bits).encode(x, token_axis=0)
    np.testing.assert_allclose(key.decode(), kivi_by_the_book(x, bits, 0), rtol=1e-6)
    assert sizes(key) == {"low": 8 * 128 * 2, "scale": 8 * 128 * 2, "codes": 256 * 128 * bits // 8, "recent": 0}
    value = Kivi(bits, kind="value").encode(x, token_axis=0)
    decoded = value.decode()
    np.testing.assert_allclose(decoded[:128], kivi_by_the_book(x[:128], bits, 2), rtol=1e-6)
    np.testing.assert_array_equal(decoded[128:], x[128:])
    assert sizes(value) == {
        "low": 128 * 4 * 2,
        "scale": 128 * 4 * 2,
        "codes": 128 * 128 * bits // 8,
        "recent": 128 * 128 * 4,
    }


@pytest.mark.parametrize(
    ("tokens", "keys", "values"), [(0, 0, 0), (127, 0, 0), (128, 128, 0), (129, 128, 1), (300, 256, 172)]
)
def test_kivi_keeps_what_the_authors_keep_after_a_prefill(tokens, keys, values):
    x = normal(tokens, 1, 32, dtype=np.float16)
    for kind, coded in (("key", keys), ("value", values)):
        stored = Kivi(2, kind=kind).encode(x, token_axis=0)
        assert stored.parts["recent"].shape[1] == tokens - coded
        np.testing.assert_array_equal(stored.decode()[coded:], x[coded:])
        assert stored.parts["codes"].size == coded * 32 * 2 // 8


def test_kivi_at_its_published_size():
    x = normal(2048, 8, 128, dtype=ml_dtypes.bfloat16)
    for bits in (2, 4):
        assert Kivi(bits).encode(x, token_axis=0).bits_per_element == bits + 1
        value = Kivi(bits).for_kind("value").encode(x, token_axis=0)
        assert value.bits_per_element == ((2048 - 128) * (bits + 1) + 128 * 16) / 2048


def test_kivi_survives_what_gives_the_authors_code_nan():
    x = np.full((128, 1, 32), 3.0, np.float32)
    np.testing.assert_array_equal(Kivi(2).encode(x, token_axis=0).decode(), x)
    large = np.linspace(-1e30, 1e30, 128, dtype=np.float32).reshape(128, 1, 1)
    coded = Kivi(4).encode(large, token_axis=0)
    assert coded.parts["low"].dtype == np.float32
    assert vnmse(large, coded.decode()) < 1e-3


@pytest.mark.parametrize("options", [{"bits": 3}, {"bits": 2, "group": 0}, {"bits": 2, "window": 100}])
def test_kivi_parameters(options):
    with pytest.raises(ParamsError):
        Kivi(**options)
    with pytest.raises(ParamsError):
        Kivi(2, kind="query")


# --- sinks -----------------------------------------------------------------------------------------


def test_sinks_are_exact_at_the_beginning_of_a_sequence_only():
    x = normal(40, 2, 32, dtype=np.float16)
    scheme = WithSinks(PerTensorInteger(4), 4)
    for first, exact in ((0, 4), (3, 1), (4, 0), (99, 0)):
        coded = scheme.encode(x, token_axis=0, first_token=first)
        assert coded.parts["sinks"].nbytes == exact * 64 * 2
        np.testing.assert_array_equal(coded.decode()[:exact], x[:exact])
        rest = PerTensorInteger(4).encode(x[exact:], token_axis=0)
        np.testing.assert_array_equal(coded.decode()[exact:], rest.decode())
        assert coded.nbytes == rest.nbytes + exact * 64 * 2
    assert np.array_equal(scheme.encode(x[:3], token_axis=0).decode(), x[:3])
    with pytest.raises(ParamsError):
        WithSinks("int4")
    with pytest.raises(ParamsError):
        WithSinks(PerTensorInteger(4), -1)


def test_sinks_follow_the_kind():
    scheme = baselines.get("kivi4-w0-sinks").for_kind("value")
    assert (scheme.scheme.kind, scheme.tokens, scheme.name) == ("value", 4, "kivi4-w0-sinks")
    assert scheme.for_kind("value") is scheme


# --- floats ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.floats(-500, 500, width=32), min_size=1, max_size=50))
def test_unscaled_fp8_is_what_torch_casts_to(values):
    x = np.array(values, np.float32)
    decoded = Float8(scaled=False).encode(x, token_axis=0).decode()
    expected = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decoded, expected)


def test_scaled_fp8_puts_the_largest_value_at_448():
    x = normal(100, 4) * 1e-6
    coded = Float8().encode(x, token_axis=0)
    assert coded.nbytes == 4 + x.size
    assert np.abs(coded.parts["values"].view(ml_dtypes.float8_e4m3fn).astype(np.float32)).max() == 448
    assert vnmse(x, coded.decode()) == pytest.approx(7e-4, rel=0.3)


def test_nf4_levels_come_from_quantiles():
    """QLoRA, appendix E and bitsandbytes' ``create_normal_map``: offset 0.9677083, 8 quantiles above 0 and 7 below."""
    quantile = torch.distributions.Normal(0.0, 1.0).icdf
    above = quantile(torch.linspace(0.9677083, 0.5, 9, dtype=torch.float64)[:-1])
    below = -quantile(torch.linspace(0.9677083, 0.5, 8, dtype=torch.float64)[:-1])
    levels = torch.cat([below, torch.zeros(1), above]).sort().values
    np.testing.assert_allclose(baselines.floats.NF4_LEVELS, (levels / levels.max()).numpy(), atol=2e-6)


def test_nf4_takes_the_nearest_level_of_its_block():
    x = normal(30, 2, 80)
    coded = NormalFloat4().encode(x, token_axis=0)
    assert sizes(coded) == {"scale": 30 * 2 * 2 * 4, "codes": 30 * 160 // 2}
    levels = np.array(baselines.floats.NF4_LEVELS)
    for start, stop in ((0, 64), (64, 80)):
        block = x[..., start:stop].astype(np.float64)
        peak = np.abs(block).max(-1, keepdims=True)
        nearest = levels[np.abs((block / peak)[..., None] - levels).argmin(-1)] * peak
        np.testing.assert_allclose(coded.decode()[..., start:stop], nearest, rtol=1e-6)
    assert NormalFloat4().encode(normal(2048, 2, 64), token_axis=0).bits_per_element == 4.5
    with pytest.raises(ParamsError):
        NormalFloat4(0)


# --- Lynx ------------------------------------------------------------------------------------------


def test_lynx_int4_is_algorithm_1_with_7_levels():
    x = normal(300, 1, 5, seed=3).astype(np.float64).astype(np.float32)
    coded = LynxInt4().encode(x, token_axis=0)
    decoded = coded.decode().astype(np.float64)
    for start in range(0, 300, 256):
        page = x[start : start + 256].astype(np.float64)
        low, scale = page.min(0), page.max(0) - page.min(0)
        for first in range(0, len(page), 32):
            chunk = (page[first : first + 32] - low) / scale
            mu = chunk.mean(0)
            sigma = np.abs(chunk - mu).max(0)
            final = (chunk - mu) / sigma
            level = np.round(np.log(1 + 255 * np.abs(final)) / np.log(256) * 7)
            back = np.sign(final) * (256 ** (level / 7) - 1) / 255
            expected = low + scale * (mu + sigma * back)
            got = decoded[start + first : start + first + 32]
            assert np.abs(got - expected).max() < 1e-5
    assert sizes(coded) == {
        "page_min": 2 * 5 * 4,
        "page_scale": 2 * 5 * 4,
        "mean": 10 * 5 * 4,
        "deviation": 10 * 5 * 4,
        "codes": 300 * 5 // 2,
    }


def test_lynx_int4_codes_keep_the_sign_of_small_values():
    """Equation 9: a negative value of magnitude 0 is -1, not 0."""
    x = np.array([-1.0, 1.0, -1e-6, 1e-6], np.float32)
    coded = LynxInt4().encode(x, token_axis=0)
    low, high = codes.unpack(coded.parts["codes"], 4, 4)[2:]
    assert (low, high) == (15, 0)
    with pytest.raises(ParamsError):
        LynxInt4(alpha=0)


def test_lynx_int8_is_int8_in_two_streams():
    x = normal(64, 2, 33)
    whole, split, anchor = (
        scheme.encode(x, token_axis=0) for scheme in (PerTensorInteger(8), LynxInt8(), LynxInt8("anchor"))
    )
    np.testing.assert_array_equal(split.decode(), whole.decode())
    assert split.nbytes == whole.nbytes
    assert anchor.nbytes == 8 + x.size // 2
    assert set(split.parts) == {*anchor.parts, "residual"}
    step = (x.max() - x.min()) / 255
    assert np.abs(anchor.decode() - split.decode()).max() <= 7.51 * step
    with pytest.raises(ParamsError):
        LynxInt8("residual")


# --- TurboQuant ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "published"), [(1, 0.36), (2, 0.117), (3, 0.03), (4, 0.009)])
def test_turboquant_has_the_published_distortion(bits, published):
    x = normal(1024, 1, 128)
    uneven = np.exp(2 * normal(128, seed=9))
    for y, least in ((x, 0.9), (x * uneven + uneven, 0.7)):
        coded = TurboQuant(bits).encode(y, token_axis=0)
        # The paper rounds down: 0.0345 and 0.0095 are the distortions of a normal variable.
        assert published * least < vnmse(y, coded.decode()) < published * 1.17
        assert sizes(coded) == {"norm": 2 * 1024, "codes": 1024 * 128 * bits // 8}


@pytest.mark.parametrize(
    ("bits", "levels"),
    [
        (1, [0.7979]),
        (2, [0.4528, 1.510]),
        (3, [0.2451, 0.7560, 1.344, 2.152]),
        (4, [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]),
    ],
)
def test_codebooks_tend_to_those_of_max_for_the_normal_distribution(bits, levels):
    """J. Max, Quantizing for minimum distortion (1960), table 1."""
    found = codebook(1 << 14, bits) * 128
    np.testing.assert_allclose(found, [*(-x for x in reversed(levels)), *levels], rtol=2e-3)


@pytest.mark.parametrize("dim", [1, 2, 3, 64, 80, 576])
def test_codebooks_are_fixed_points_for_directions(dim):
    rng = np.random.default_rng(0)
    points = rng.standard_normal((400000 // dim + 4000, dim))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).ravel()
    levels = codebook(dim, 3)
    assert (np.diff(levels) >= 0).all()
    np.testing.assert_array_equal(levels, -levels[::-1])
    cells = np.searchsorted((levels[:-1] + levels[1:]) / 2, points)
    for cell in range(8):
        inside = points[cells == cell]
        if inside.size > 100:
            assert inside.mean() == pytest.approx(levels[cell], abs=0.02 / math.sqrt(dim))


@pytest.mark.parametrize("dim", [1, 2, 3, 64, 80, 96, 576])
def test_rotations_are_orthogonal_and_mix(dim):
    matrix = rotate(np.eye(dim), 7)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-12)
    np.testing.assert_allclose(rotate(matrix, 7, inverse=True), np.eye(dim), atol=1e-12)
    if dim > 3:
        assert np.abs(matrix).max() < 0.75
        assert not np.array_equal(matrix, rotate(np.eye(dim), 8))


def test_turboquant_parameters():
    for options in ({"bits": 0}, {"bits": 9}, {"bits": 4, "seed": -1}):
        with pytest.raises(ParamsError):
            TurboQuant(**options)


# --- KVQuant ---------------------------------------------------------------------------------------


def test_kvquant_keeps_outliers_and_scales_channels_by_the_rest():
    x = normal(1000, 2, 8)
    coded = KVQuant().encode(x, token_axis=0)
    low, high = np.percentile(x.astype(np.float64), [0.5, 99.5], axis=0)
    outlier = (x < low) | (x > high)
    assert 0.009 < outlier.mean() < 0.011
    np.testing.assert_allclose(coded.parts["middle"][0, 0], ((low + high) / 2).ravel(), atol=1e-3)
    np.testing.assert_array_equal(coded.parts["counts"][0], outlier.sum(axis=(1, 2)))
    np.testing.assert_array_equal(coded.parts["channels"], np.nonzero(outlier.reshape(1000, 16))[1])
    decoded = coded.decode()
    np.testing.assert_array_equal(decoded[outlier], x[outlier].astype(np.float16).astype(np.float32))
    # Everything else is the nearest level of the one codebook.
    levels = coded.parts["codebook"].astype(np.float64)
    half, middle = (coded.parts[name][0].astype(np.float64).reshape(1, 2, 8) for name in ("half_range", "middle"))
    nearest = levels[np.abs(((x - middle) / half)[..., None] - levels).argmin(-1)] * half + middle
    np.testing.assert_allclose(decoded[~outlier], nearest[~outlier], atol=1e-6)
    assert coded.nbytes == 32 + 2 * 16 * 2 + 8000 + outlier.sum() * 4 + 1000 * 2


def test_kvquant_values_lose_an_extreme_at_either_end_of_each_token():
    x = normal(64, 2, 64)
    coded = KVQuant(kind="value").encode(x, token_axis=0)
    flat = x.reshape(64, 128)
    assert (coded.parts["counts"] == 2).all()
    expected = np.sort(np.stack([flat.argmin(1), flat.argmax(1)], 1), axis=1)
    np.testing.assert_array_equal(coded.parts["channels"].reshape(64, 2), expected)
    rest = np.sort(flat, axis=1)[:, 1:-1].astype(np.float64)
    np.testing.assert_allclose(coded.parts["middle"][0, :, 0], (rest[:, 0] + rest[:, -1]) / 2, atol=2e-3)


def test_kvquant_at_its_published_size():
    """The paper counts 4.32 to 4.35 bits for nuq4-1%."""
    x = normal(64, 32, 128, dtype=np.float16)
    assert 4.32 < KVQuant(kind="value").encode(x, token_axis=0).bits_per_element < 4.37


def test_codebooks_are_those_of_a_slow_weighted_k_means():
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal(500), rng.random(500)
    levels = fit_codebook(x, 2, weights)
    cells = np.abs(x[:, None] - levels).argmin(1)
    for cell in range(4):
        inside = cells == cell
        assert levels[cell] == pytest.approx((x * weights)[inside].sum() / weights[inside].sum(), rel=1e-3)
    assert fit_codebook(np.zeros(0), 1).tolist() == [-1.0, 1.0]
    np.testing.assert_array_equal(fit_codebook(x, 3, np.zeros(500)), fit_codebook(x, 3))


def test_kvquant_calibration_follows_the_fisher_information():
    x = normal(2000, 1, 8)
    fisher = np.where(x > 0, 1.0, 1e-4).astype(np.float32)
    plain, weighted = (KVQuant().calibrated(x, f, token_axis=0) for f in (None, fisher))
    assert sum(level > 0 for level in plain.codebook) == pytest.approx(8, abs=1)
    assert sum(level > 0 for level in weighted.codebook) > 10
    errors = [np.square(s.encode(x, token_axis=0).decode() - x)[x > 0].mean() for s in (plain, weighted)]
    assert errors[1] < errors[0]
    fitted, fixed = KVQuant().encode(x, token_axis=0), plain.encode(x, token_axis=0)
    np.testing.assert_array_equal(fitted.decode(), fixed.decode())
    assert fitted.nbytes == fixed.nbytes
    with pytest.raises(ShapeError, match="fisher must have the shape"):
        KVQuant().calibrated(x, fisher[1:], token_axis=0)
    with pytest.raises(DTypeError):
        KVQuant().calibrated(x, fisher.astype(np.float64), token_axis=0)


@pytest.mark.parametrize(
    "options",
    [{"bits": 1}, {"outliers": 1.0}, {"kind": "k"}, {"codebook": (0.0, 1.0)}, {"codebook": tuple(range(15, -1, -1))}],
)
def test_kvquant_parameters(options):
    with pytest.raises(ParamsError):
        KVQuant(**options)


# --- CacheGen --------------------------------------------------------------------------------------


def lmcache_quantize(x, bins):
    """``torch_quant_vectorized`` and ``do_dequantize`` of LMCache in torch."""
    most = bins // 2 - 1
    x = torch.from_numpy(x)
    peak = x.abs().amax(-1, keepdim=True)
    quantized = torch.round(x * (most / peak) + most).to(torch.int8)
    return quantized.numpy(), ((quantized.float() - most) / most * peak).numpy()


@pytest.mark.parametrize(
    ("kind", "layer", "bins"),
    [
        ("key", 0, 32),
        ("key", 9, 32),
        ("key", 10, 16),
        ("key", None, 16),
        ("value", 1, 32),
        ("value", 2, 16),
        ("value", 31, 16),
    ],
)
def test_cachegen_quantizes_as_lmcache_does(kind, layer, bins):
    x = normal(600, 2, 16)
    scheme = CacheGenLMCache(kind=kind)
    assert scheme.bins(layer) == bins
    coded = scheme.encode(x, token_axis=0, layer=layer)
    quantized, expected = lmcache_quantize(x.reshape(600, 32), bins)
    np.testing.assert_allclose(coded.decode().reshape(600, 32), expected, rtol=1e-5, atol=1e-6)
    assert coded.parts["peak"].nbytes == 600 * 4
    assert coded.parts["cumulative"].nbytes == 3 * 32 * 33 * 2
    # The stream is as long as the entropies of the channels of the chunks say, but for some words.
    entropy = 0.0
    for start in range(0, 600, 256):
        for channel in range(32):
            counts = np.bincount(quantized[start : start + 256, channel])
            share = counts[counts > 0] / counts.sum()
            entropy -= counts.sum() * (share * np.log2(share)).sum()
    assert entropy / 8 <= coded.parts["stream"].nbytes <= entropy / 8 * 1.01 + 16


def test_small_models_have_32_bins_everywhere_in_lmcache():
    assert CacheGenLMCache(layers=9).bins(8) == CacheGenLMCache("value", layers=9).bins(8) == 32


def test_cumulative_frequencies_are_those_of_lmcache():
    """``_convert_to_int_and_normalize``: shares times 2^16 - 32, rounded, plus 0 to 32, in 16 bits."""
    x = np.array([[15.0, 1.0], [15.0, -15.0], [-15.0, 15.0]], np.float32)
    cumulative = CacheGenLMCache().encode(x, token_axis=0, layer=0).parts["cumulative"]
    for channel, symbols in enumerate(([30, 30, 0], [16, 0, 30])):
        shares = np.cumsum(np.bincount(symbols, minlength=32)) / 3
        expected = np.round(np.append(0, shares) * (65536 - 32)) + np.arange(33)
        assert expected[-1] == 65536
        np.testing.assert_array_equal(cumulative[0, 0, channel], expected.astype(np.int64) % 65536)


def test_the_stream_is_that_of_constriction():
    x = np.array([[15.0], [-15.0], [15.0]], np.float32)
    coded = CacheGenLMCache().encode(x, token_axis=0, layer=0)
    ends = coded.parts["cumulative"][0, 0, 0].astype(np.int64)
    ends[-1] = 65536
    model = constriction.stream.model.Categorical(np.diff(ends).astype(np.float32), perfect=False)
    decoder = constriction.stream.queue.RangeDecoder(coded.parts["stream"])
    assert decoder.decode(model, 3).tolist() == [30, 0, 30]


@pytest.mark.parametrize(
    ("layer", "size"), [(0, 0.5), (10, 0.5), (11, 1.0), (21, 1.0), (22, 1.5), (31, 1.5), (None, 1)]
)
def test_cachegen_codes_differences_from_anchor_tokens(layer, size):
    x = (normal(95, 2, 8) * 0.1 + normal(1, 2, 8, seed=1)).astype(np.float32)
    coded = CacheGen().encode(x, token_axis=0, layer=layer)
    decoded = coded.decode().astype(np.float64).reshape(95, 16)
    flat = x.reshape(95, 16).astype(np.float64)
    peak = np.abs(flat[::10]).max(1, keepdims=True)
    anchors = np.round(flat[::10] / peak * 127) / 127 * peak
    np.testing.assert_allclose(decoded[::10], anchors, rtol=1e-6, atol=1e-6)
    follows = np.arange(95) % 10 > 0
    spread = anchors.repeat(10, axis=0)[:95]
    difference = (flat - spread)[follows]
    step = size * np.sqrt((difference**2).mean(0))
    np.testing.assert_allclose(decoded[follows], spread[follows] + np.round(difference / step) * step, atol=1e-5)
    symbols = np.round(difference / step).astype(int)
    width = np.ptp(symbols, axis=0) + 1
    assert coded.parts["frequencies"].nbytes == 2 * width.sum()
    assert coded.parts["frequencies"].sum() == symbols.size
    assert coded.parts["lowest"].ravel().tolist() == symbols.min(0).tolist()


def test_neighbours_alike_make_cachegen_small():
    """The paper's insight: differences from a near token take fewer bits than the tokens."""
    walk = np.cumsum(normal(2000, 1, 16), axis=0)
    near, shuffled = (CacheGen().encode(x, token_axis=0) for x in (walk, np.random.default_rng(0).permutation(walk)))
    assert vnmse(walk, near.decode()) < 0.1 * vnmse(walk, shuffled.decode()) * 1.5
    assert near.bits_per_element < 8


@pytest.mark.parametrize("tokens", [0, 1, 9, 10, 11, 20, 257])
def test_cachegen_of_any_number_of_tokens(tokens):
    x = normal(tokens, 2, 3)
    for scheme in (CacheGen(), CacheGenLMCache()):
        coded = scheme.encode(x, token_axis=0)
        assert coded.decode().shape == x.shape
        assert tokens == 0 or vnmse(x, coded.decode()) < 0.2


def test_tokens_of_zeros_are_no_nan_in_cachegen():
    x = normal(30, 1, 4)
    x[[0, 7, 20]] = 0
    for scheme in (CacheGen(), CacheGenLMCache()):
        decoded = scheme.encode(x, token_axis=0).decode()
        assert np.isfinite(decoded).all()
        assert (decoded[[0, 20]] == 0).all()


@pytest.mark.parametrize("options", [{"layers": 0}, {"group": 0}, {"bins": (1.0, 1.0)}, {"bins": (1.0, 0.0, 1.0)}])
def test_cachegen_parameters(options):
    with pytest.raises(ParamsError):
        CacheGen(**options)
    with pytest.raises(ParamsError):
        CacheGenLMCache(kind="x")
