"""lynxq.synthetic: every pathology is there when asked for, and only then."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from lynxq import synthetic
from lynxq.baselines import SCHEMES
from lynxq.errors import DTypeError, ParamsError, ShapeError
from lynxq.evaluate import METHODS, evaluate
from lynxq.synthetic import OUTLIER_EVERY, PATHOLOGIES, rope


def layer(*pathologies, tokens=1024, dtype="float32", **options):
    made = synthetic.cache(tokens, 2, 16, pathologies=pathologies, dtype=dtype, **options)
    return made["layer.0.key"].astype(np.float64), made["layer.0.value"].astype(np.float64)


def test_one_seed_is_one_cache():
    one, two, other = (synthetic.cache(64, seed=seed, layers=2) for seed in (3, 3, 4))
    assert list(one) == ["layer.0.key", "layer.0.value", "layer.1.key", "layer.1.value"]
    assert {name: x.tobytes() for name, x in one.items()} == {name: x.tobytes() for name, x in two.items()}
    assert not any(np.array_equal(one[name], other[name]) for name in one)
    assert not np.array_equal(one["layer.0.key"], one["layer.1.key"])
    first = synthetic.cache(64, seed=3)
    assert all(np.array_equal(first[name], one[name]) for name in first)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(2048, 2, 128), (0, 2, 8), (5, 0, 8), (7, 3, 1), (1, 1, 3), (300, 1, 80)])
def test_shapes_and_dtypes(shape, dtype):
    for x in synthetic.cache(*shape, dtype=dtype).values():
        assert x.shape == shape
        assert x.dtype == dtype
        assert np.isfinite(x.astype(np.float64)).all()


def test_plain_caches_are_tame():
    key, value = layer()
    for x in (key, value):
        assert x.std(axis=0).min() > 0.05
        assert np.abs(x).max() < 60
        assert np.abs(x.mean(axis=0)).max() < 3


def test_bias_shifts_channels_of_keys_only():
    plain, biased = layer(), layer("bias")
    np.testing.assert_array_equal(biased[1], plain[1])
    shift = (biased[0] - plain[0]).mean(axis=0)
    assert np.abs(biased[0] - plain[0] - shift).max() < 1e-3
    assert shift[0, -1] == pytest.approx(900, abs=1e-3)
    others = np.abs(np.delete(shift.ravel(), 15))
    assert 100 < others.max() <= 200
    assert np.median(others) == pytest.approx(0, abs=1e-6)


def test_rope_rotates_keys_only():
    plain, rotated = layer(), layer("rope")
    np.testing.assert_array_equal(rotated[1], plain[1])
    np.testing.assert_allclose(rotated[0], rope(plain[0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(rotated[0][0], plain[0][0])


def test_rope_is_the_rotation_of_its_paper():
    x = np.random.default_rng(0).standard_normal((50, 2, 8))
    rotated = rope(x, first_position=7)
    pairs, turned = (y[..., :4] + 1j * y[..., 4:] for y in (x, rotated))
    for token, i in itertools.product(range(50), range(4)):
        expected = pairs[token, :, i] * np.exp(1j * (7 + token) * 10000 ** (-2 * i / 8))
        np.testing.assert_allclose(turned[token, :, i], expected, rtol=1e-12)
    # Scores depend on distances only.
    query, key = rope(np.ones((9, 1, 8))), rope(np.arange(8.0).reshape(1, 1, 8).repeat(9, axis=0))
    scores = np.einsum("qhd,khd->qk", query, key)
    assert scores[5, 3] == pytest.approx(scores[8, 6], rel=1e-12)
    np.testing.assert_array_equal(rope(x[..., :5])[..., 4], x[..., 4])


def test_near_constant_channels():
    for plain, x in zip(layer(), layer("constant"), strict=True):
        spread = np.ptp(x, axis=0)
        assert (spread[:, 2] == 0).all()
        assert ((spread[:, :2] > 0) & (spread[:, :2] < 3e-3)).all()
        np.testing.assert_array_equal(x[..., 3:], plain[..., 3:])


def test_outlier_tokens():
    for plain, x in zip(layer(), layer("outliers"), strict=True):
        ratio = x / plain
        large = np.isclose(ratio, 1000, rtol=1e-5).all(axis=(1, 2))
        assert np.flatnonzero(large).size == 1024 // OUTLIER_EVERY
        assert set(np.diff(np.flatnonzero(large))) == {OUTLIER_EVERY}
        assert not large[0]
        np.testing.assert_array_equal(ratio[~large], 1.0)


def test_the_sink_is_extreme_in_keys_and_small_in_values():
    plain, (key, value) = layer(), layer("sink")
    np.testing.assert_array_equal(key[1:], plain[0][1:])
    np.testing.assert_array_equal(value[1:], plain[1][1:])
    np.testing.assert_allclose(value[0], plain[1][0] / 50, rtol=1e-6)
    chunk = key[:32]
    extreme = (chunk[0] == chunk.max(axis=0)) | (chunk[0] == chunk.min(axis=0))
    assert extreme.mean() > 0.95


@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_all_pathologies_together(name):
    for dtype in ("bfloat16", "float32"):
        made = synthetic.cache(600, 2, 20, dtype=dtype)
        for row in evaluate(made, [name], token_axis=0):
            assert np.isfinite([row.vnmse, row.centred_vnmse, row.max_error]).all()
            # One scale for a tensor whose zero is no level is worse than nothing there.
            assert row.vnmse < (20 if name in ("int4", "lynx-int8-anchor") else 1.01)


def test_a_key_bias_flatters_vnmse_and_breaks_scales_per_token():
    made = synthetic.cache(1024, 2, 64, pathologies=["bias"])
    rows = {name: evaluate(made, [name], token_axis=0)[0] for name in ("int4-token", "int4-channel", "kivi4")}
    assert rows["int4-token"].vnmse < 0.05
    assert rows["int4-token"].centred_vnmse > 50
    assert rows["int4-channel"].centred_vnmse < 0.05
    assert rows["kivi4"].centred_vnmse < 0.01


def test_an_outlier_token_breaks_one_scale_for_all():
    made = synthetic.cache(1024, 2, 64, pathologies=["outliers"])
    key = made["layer.0.key"].astype(np.float64)
    usual = np.abs(key).max(axis=(1, 2)) < 60
    for name, low, high in (("int4", 0.5, 2.0), ("int4-token", 1e-4, 0.03)):
        error = SCHEMES[name].encode(made["layer.0.key"], token_axis=0).decode().astype(np.float64) - key
        assert low < np.square(error[usual]).sum() / np.square(key[usual]).sum() < high * (100 if name == "int4" else 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pathologies": ["rope", "noise"]}, ParamsError),
        ({"seed": -1}, ParamsError),
        ({"tokens": -1}, ShapeError),
        ({"head_dim": 0}, ShapeError),
        ({"layers": 1.5}, ShapeError),
        ({"dtype": "int8"}, DTypeError),
    ],
)
def test_arguments_that_do_not_fit(options, error):
    with pytest.raises(error):
        synthetic.cache(**options)
    assert PATHOLOGIES == ("bias", "rope", "constant", "outliers", "sink")
