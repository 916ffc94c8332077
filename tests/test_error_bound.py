"""The guaranteed bound: from the metadata alone, for whatever the values were."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, target
from hypothesis import strategies as st

import lynxq
from lynxq import LynxqError, Params, companding, testing
from lynxq.errors import DTypeError
from tests.scalar_model import DTYPES, runs_of

TIERS = ("anchor", "full")
DECODES = {"anchor": lynxq.decode_anchor, "full": lynxq.decode_full}


def widen(x):
    return x.astype(np.float64)


@given(testing.tensors(), testing.params(), st.sampled_from([0, 0, 5]))
def test_no_error_exceeds_the_bound(sample, params, first_token):
    x, axis = sample
    encoded = lynxq.encode(x, params, token_axis=axis, first_token=first_token)
    bounds = {tier: lynxq.error_bound(encoded, tier) for tier in TIERS}
    for tier in TIERS:
        bound, error = bounds[tier], np.abs(widen(DECODES[tier](encoded)) - widen(x))
        assert bound.shape == x.shape
        assert bound.dtype == np.float64
        assert np.isfinite(bound).all()
        assert (error <= bound).all()
        if bound.any():
            target(float((error[bound > 0] / bound[bound > 0]).max()), label=f"{tier} error over its bound")
    assert (bounds["full"] <= bounds["anchor"]).all()
    assert np.array_equal(lynxq.error_bound(encoded), bounds["full"])
    assert np.array_equal(lynxq.error_bound(encoded.anchor_only(), "full"), bounds["full"])


@given(testing.tensors(), testing.params())
def test_the_bound_is_constant_in_a_chunk_and_zero_on_sinks(sample, params):
    encoded = lynxq.encode(sample.x, params, token_axis=sample.token_axis)
    layout = encoded.layout
    bound = lynxq.error_bound(encoded, "anchor").reshape(layout.outer, layout.tokens, layout.channels)
    assert not bound[:, : layout.sinks].any()
    for page in range(layout.pages):
        start, stop = layout.span(page)
        rows = bound[:, start + layout.page_sinks(page) : stop]
        if params.axis == "token":
            rows, head = rows.transpose(0, 2, 1), max(layout.coded(page), 1)
        else:
            head = layout.head_dim
        for run in runs_of(rows.shape[2], params, head):
            for chunk in run:
                part = rows[:, :, chunk.start : chunk.stop]
                assert (part == part[:, :, :1]).all()


@given(testing.tensors(), testing.params())
def test_decoded_values_stay_within_the_range_of_their_run(sample, params):
    encoded = lynxq.encode(sample.x, params, token_axis=sample.token_axis)
    layout = encoded.layout
    x = widen(sample.x).reshape(layout.outer, layout.tokens, layout.channels)
    for decode in DECODES.values():
        decoded = widen(decode(encoded)).reshape(x.shape)
        for page in range(layout.pages):
            start, stop = layout.span(page)
            rows = slice(start + layout.page_sinks(page), stop)
            given_rows, near = x[:, rows], decoded[:, rows]
            head = layout.head_dim
            if params.axis == "token":
                given_rows, near, head = (
                    given_rows.transpose(0, 2, 1),
                    near.transpose(0, 2, 1),
                    max(layout.coded(page), 1),
                )
            for run in runs_of(near.shape[2], params, head):
                part = slice(run[0].start, run[-1].stop)
                assert (near[:, :, part] >= given_rows[:, :, part].min(axis=2, keepdims=True)).all()
                assert (near[:, :, part] <= given_rows[:, :, part].max(axis=2, keepdims=True)).all()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("params", [Params(), Params.values(), Params.paper()], ids=["keys", "values", "paper"])
def test_the_bound_is_not_much_larger_than_the_errors(dtype, params):
    """A bound of the whole range would hold as well; this one is met within a small factor."""
    x = testing.contents("normal", (512, 2, 64), dtype, seed=1)
    encoded = lynxq.encode(x, params, token_axis=0)
    for tier in TIERS:
        error = np.abs(widen(DECODES[tier](encoded)) - widen(x))[4:]
        bound = lynxq.error_bound(encoded, tier)[4:]
        assert (error / bound).max() > 0.7
    assert bound.max() < 0.2 * lynxq.error_bound(encoded, "anchor").max()


@pytest.mark.parametrize("params", [Params(page=8, range_size=8, chunk=8, sink_tokens=0, alpha=a) for a in (0.0, 0.5)])
def test_values_at_the_worst_place_of_a_bin(params):
    """Next to the thresholds with the widest bins, where every rounding of encode and decode can go the wrong way."""
    sigma = np.random.default_rng(0).uniform(1, 2, 5000).astype(np.float32)
    for threshold in (*companding.thresholds(params.alpha, params.levels)[-9::4], np.float32(params.points[1])):
        rows = [sigma, -sigma, sigma * threshold]
        for _ in range(2):
            rows = [*rows[:2], np.nextafter(rows[2], np.float32(0)), *rows[2:], np.nextafter(rows[-1], np.float32(2))]
        x = np.stack(rows)
        encoded = lynxq.encode(x, params, token_axis=0)
        for tier in TIERS:
            error = np.abs(widen(DECODES[tier](encoded)) - widen(x))
            assert (error <= lynxq.error_bound(encoded, tier)).all()


@pytest.mark.parametrize("reach", [5, 9, 14, 30, 300])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_subnormal_values(dtype, reach):
    """Both the values and the reconstruction are counted in the same coarse units."""
    unit = float(ml_dtypes.finfo(DTYPES[dtype]).smallest_subnormal)
    x = (np.random.default_rng(reach).integers(-reach, reach + 1, (256, 20)) * unit).astype(DTYPES[dtype])
    encoded = lynxq.encode(x, token_axis=0)
    for tier in TIERS:
        error = np.abs(widen(DECODES[tier](encoded)) - widen(x))
        assert (error <= lynxq.error_bound(encoded, tier)).all()


def test_points_of_ones_own_may_be_bad_and_are_still_bounded():
    x = testing.contents("normal", (256, 4), "float32", seed=1)
    encoded = lynxq.encode(x, Params(anchor_points=(0.0,) * 8), token_axis=0)
    error = np.abs(lynxq.decode_anchor(encoded) - x)
    assert (error <= lynxq.error_bound(encoded, "anchor")).all()
    assert (lynxq.error_bound(encoded, "full") <= lynxq.error_bound(encoded, "anchor")).all()


def test_large_float32_values():
    x = np.array([[ml_dtypes.finfo(np.float32).max], [-1.0], [ml_dtypes.finfo(np.float32).min]], np.float32)
    encoded = lynxq.encode(np.repeat(x, 9, axis=0), Params(sink_tokens=0, chunk=8), token_axis=0)
    for tier in TIERS:
        error = np.abs(widen(DECODES[tier](encoded)) - widen(np.repeat(x, 9, axis=0)))
        assert (error <= lynxq.error_bound(encoded, tier)).all()


@pytest.mark.parametrize("tier", ["residual", "", None, 4, ["full"]], ids=str)
def test_unknown_tiers(tier):
    encoded = lynxq.encode(np.ones((3, 2), np.float32), token_axis=0)
    with pytest.raises(LynxqError, match="tier"):
        lynxq.error_bound(encoded, tier)


@pytest.mark.parametrize("subject", [None, np.ones(3, np.float32), "encoded"], ids=str)
def test_a_bound_of_something_else(subject):
    with pytest.raises(DTypeError):
        lynxq.error_bound(subject)
