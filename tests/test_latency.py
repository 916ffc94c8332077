"""lynxq.latency: the references' worked numbers, what is right about them, the closed form and the planner."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import latency
from lynxq.errors import DTypeError, LynxqError, ParamsError
from lynxq.format.frames import HEADER_SIZE
from lynxq.latency import ModelShape, StreamSizes, Timeline, VerificationCost

QWEN = ModelShape(layers=94, kv_heads=4, head_dim=128)
CONTEXT = 131_072
SECONDS = st.floats(0, 100)
TPOT = st.floats(1e-3, 1)
TOKENS = st.integers(0, 200)
RATE = st.floats(0, 1)

# --- worked numbers --------------------------------------------------------------------------------


def test_equation_3():
    exact = 2 * 94 * 131_072 * (4 * 128) * 2
    assert latency.kv_bytes(CONTEXT, layers=94, kv_heads=4, head_dim=128) == exact == QWEN.kv_bytes(CONTEXT)
    assert exact == 23.5 * 2**30  # the "23.5 GB" are GiB
    assert round(exact / 1e9, 2) == 25.23


def test_transfer_of_the_example():
    # as printed: 23.5 decimal gigabytes
    assert round(latency.transfer_seconds(23.5e9, 100e9), 1) == 1.9
    assert round(latency.transfer_seconds(23.5e9, 25e9), 1) == 7.5
    # right for the cache of equation 3
    assert round(latency.transfer_seconds(QWEN.kv_bytes(CONTEXT), 100e9), 2) == 2.02
    assert round(latency.transfer_seconds(QWEN.kv_bytes(CONTEXT), 25e9), 2) == 8.07


def test_equation_19_as_printed_and_as_it_is():
    half, quarter = 23.5e9 / 2, 23.5e9 / 4
    assert half == 11.75e9
    printed = latency.transfer_seconds(half, 25e9)
    assert printed == pytest.approx(3.76)
    assert latency.tokens_to_hide(printed, 0.04) == 94
    # 4 + 4 bits of 16: half of the 16-bit size is both streams, which is what "INT8-equivalent split form" says
    assert QWEN.kv_bytes(CONTEXT, 8) == QWEN.kv_bytes(CONTEXT) / 2
    assert QWEN.kv_bytes(CONTEXT, 4) == QWEN.kv_bytes(CONTEXT) / 4
    right = latency.transfer_seconds(quarter, 25e9)
    assert right == pytest.approx(1.88)
    assert latency.tokens_to_hide(right, 0.04) == 47
    exact = latency.transfer_seconds(QWEN.kv_bytes(CONTEXT, 4), 25e9)
    assert latency.tokens_to_hide(exact, 0.04) == 51
    # so the conclusion about the cap of 64 is the opposite one
    assert not latency.hides_residual(printed, 64, 0.04)
    assert latency.hides_residual(exact, 64, 0.04)


def test_acceptance_of_the_example():
    assert round(19.38 / 21.43, 3) == 0.904
    rate = latency.token_rate(19.38, 0.648)
    assert rate == pytest.approx(0.982, abs=5e-4)
    assert round(64 * 0.904) == 58
    assert latency.expected_accepted(64, rate) < 40
    assert latency.expected_accepted(64, 0.904) < 10  # 90.4 % is not the chance of a single token


def test_savings_of_the_example_table():
    int8, int4, lynx = 2.3, 1.4, 1.6
    assert 1 - lynx / int8 == pytest.approx(0.305, abs=1.5e-3)
    assert int8 / lynx == pytest.approx(1.43, abs=1e-2)
    assert lynx - int4 == pytest.approx(0.2)


# --- equations -------------------------------------------------------------------------------------


@given(SECONDS, SECONDS, SECONDS, TOKENS, TPOT)
def test_equations_agree_with_each_other(compute, t_anc, t_res, k, tpot):
    mono, split = latency.ttft_monolithic(compute, t_anc, t_res), latency.ttft_split(compute, t_anc, t_res, k, tpot)
    assert mono - split == pytest.approx(latency.ttft_gain(t_res, k, tpot), abs=1e-9)
    assert latency.hides_residual(t_res, k, tpot) == (k * tpot >= t_res)
    if latency.hides_residual(t_res, k, tpot):
        assert split == compute + t_anc  # equation 18
    least = latency.tokens_to_hide(t_res, tpot)
    assert latency.residual_exposure(t_res, least, tpot) <= 1e-8 * t_res
    assert least == 0 or latency.residual_exposure(t_res, least - 1, tpot) > 0


@given(st.integers(0, 100), RATE)
def test_expected_accepted_is_the_sum(drafted, rate):
    expected = math.fsum(rate**i for i in range(1, drafted + 1))
    assert latency.expected_accepted(drafted, rate) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(st.integers(1, 100), st.floats(0.01, 1))
def test_token_rate_is_what_gave_the_measured_values(drafted, rate):
    mean, full = latency.expected_accepted(drafted, rate), rate**drafted
    assert latency.token_rate(mean, full) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: latency.kv_bytes(-1, layers=1, kv_heads=1, head_dim=1),
        lambda: latency.kv_bytes(1, layers=0, kv_heads=1, head_dim=1),
        lambda: latency.kv_bytes(1, layers=1, kv_heads=1, head_dim=1.5),
        lambda: latency.kv_bytes(1, layers=1, kv_heads=1, head_dim=1, bits_per_element=math.nan),
        lambda: latency.transfer_seconds(1, 0),
        lambda: latency.transfer_seconds("1", 1),
        lambda: latency.ttft_split(0, 0, -1, 0, 1),
        lambda: latency.tokens_to_hide(1, 0),
        lambda: latency.tokens_to_hide(1e308, 1e-308),
        lambda: latency.expected_accepted(3, 1.1),
        lambda: latency.token_rate(3, -0.1),
        lambda: ModelShape(0, 1, 1),
        lambda: VerificationCost(-1.0),
        lambda: Timeline(0, 0, 0, 0),
        lambda: Timeline(0, 0, 0, 1, window=-1),
        lambda: Timeline(0, 1, 1, 0.5).time_to(0),
        lambda: Timeline(0, 1, 1, 0.5).time_to(1, accepted=3),
        lambda: latency.plan(QWEN, 100, {}, bits_per_second=1, tpot=1),
        lambda: latency.plan(QWEN, 100, {(4, 4): 2}, bits_per_second=1, tpot=1),
        lambda: latency.plan(QWEN, 100, {(4, 5): 1}, bits_per_second=1, tpot=1),
        lambda: latency.plan(QWEN, 100, {4: 1}, bits_per_second=1, tpot=1),
    ],
)
def test_refusals(call):
    with pytest.raises(ParamsError) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_refused_types():
    with pytest.raises(DTypeError):
        latency.plan(QWEN, 100, [(4, 4)], bits_per_second=1, tpot=1)
    with pytest.raises(DTypeError):
        latency.stream_sizes("qwen", 100)
    with pytest.raises(LynxqError):
        latency.stream_sizes(QWEN, -1)
    with pytest.raises(DTypeError):
        latency.stream_sizes(QWEN, 1, keys="keys")


# --- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1, 255, 256, 700])
@pytest.mark.parametrize("latent", [False, True])
def test_sizes_are_those_of_what_is_coded(tokens, latent):
    shape = ModelShape(layers=3, kv_heads=2, head_dim=64, latent=latent)
    sizes = latency.stream_sizes(shape, tokens, dtype="float16")
    x = np.zeros((tokens, 2, 64), np.float16)
    anchor = residual = 0
    for params in [lynxq.Params.keys()] if latent else [lynxq.Params.keys(), lynxq.Params.values()]:
        encoded = lynxq.encode(x, params, token_axis=0, backend="reference")
        anchor += 3 * (len(encoded.anchor) + encoded.layout.pages * HEADER_SIZE)
        residual += 3 * (len(encoded.residual) + encoded.layout.pages * HEADER_SIZE)
    assert sizes == StreamSizes(anchor, residual, 3 * x.size * shape.k_factor)
    if tokens:
        assert sizes.anchor_bits > sizes.residual_bits > 4 * (1 - 4 / tokens)
    else:
        assert sizes.anchor_bits == sizes.residual_bits == 0


def test_measured_bits_are_not_4_and_4():
    sizes = latency.stream_sizes(QWEN, CONTEXT)
    assert sizes.anchor > QWEN.kv_bytes(CONTEXT, 4)
    assert sizes.anchor < QWEN.kv_bytes(CONTEXT, 5)
    assert sizes.residual == pytest.approx(QWEN.kv_bytes(CONTEXT, 4), rel=5e-3)


# --- closed form -----------------------------------------------------------------------------------


@given(
    st.builds(
        Timeline, SECONDS, SECONDS, SECONDS, TPOT, st.integers(0, 80), st.builds(VerificationCost, SECONDS, SECONDS)
    )
)
def test_timelines_are_in_order(line):
    assert line.anchor_ready <= line.residual_ready <= line.full_ready <= line.first_final
    assert line.drafted <= line.window
    assert (line.first_drafted is None) == (line.drafted == 0)
    if line.drafted:
        assert line.first_drafted <= line.first_final + 1e-9
        assert line.stall == pytest.approx(latency.residual_exposure(line.t_res, line.drafted, line.tpot))
    times = [line.time_to(n, accepted=line.drafted // 2) for n in range(1, 100)]
    assert times == sorted(times)
    assert times[0] >= line.first_final


@given(SECONDS, TPOT, st.integers(0, 70), RATE, st.integers(1, 90))
def test_the_expected_time_is_the_mean_over_what_may_be_accepted(t_res, tpot, window, rate, tokens):
    line = Timeline(0.0, 1.0, t_res, tpot, window, VerificationCost(0.1, 0.001))
    k = line.drafted
    chances = [rate**i * (1 - rate) for i in range(k)] + [rate**k]
    mean = math.fsum(chance * line.time_to(tokens, accepted) for accepted, chance in enumerate(chances))
    assert line.expected_time_to(tokens, rate) == pytest.approx(mean, rel=1e-6)


def test_where_the_split_loses():
    """A short context on a fast link: verification costs more than drafting saves."""
    cost = VerificationCost(0.04)
    split = Timeline(0.0, 0.001, 0.001, 0.04, 64, cost)
    monolithic = Timeline(0.0, 0.001, 0.001, 0.04, 0, cost)
    assert split.first_final > monolithic.first_final
    assert split.expected_time_to(64, 0.5) > monolithic.expected_time_to(64, 0.5)


# --- planner ---------------------------------------------------------------------------------------

RATES = {(3, 5): 0.9, (4, 4): 0.98, (5, 3): 0.995, (6, 2): 0.999}


def test_the_plan_is_the_best_of_everything():
    made = latency.plan(QWEN, 32_768, RATES, bits_per_second=10e9, tpot=0.03, compute=1.0, target=64)
    expected = []
    for split, rate in RATES.items():
        keys, values = (
            p(anchor_bits=split[0], residual_bits=split[1]) for p in (lynxq.Params.keys, lynxq.Params.values)
        )
        sizes = latency.stream_sizes(QWEN, 32_768, keys=keys, values=values)
        t_anc, t_res = sizes.anchor * 8 / 10e9, sizes.residual * 8 / 10e9
        for window in range(65):
            line = Timeline(1.0, t_anc, t_res, 0.03, window, VerificationCost(0.03))
            if line.drafted == window:
                expected.append((split, window, line.expected_time_to(64, rate), line.first_drafted, line.first_final))
    assert [(c.split, c.window) for c in made.candidates] == [e[:2] for e in expected]
    assert made.least_time_to_target.time_to_target == min(e[2] for e in expected)
    assert made.least_ttft.ttft == min(e[3] or e[4] for e in expected)
    assert made.least_ttft.split == (3, 5)  # the smallest anchor
    assert made.least_first_final.first_final == min(e[4] for e in expected)
    assert made.target == 64


def test_the_plan_knows_when_not_to_speculate():
    hopeless = latency.plan(QWEN, 1024, {(4, 4): 0.0}, bits_per_second=100e9, tpot=0.04)
    assert hopeless.least_time_to_target.window == 0
    certain = latency.plan(QWEN, CONTEXT, {(4, 4): 1.0}, bits_per_second=25e9, tpot=0.04)
    best = certain.least_time_to_target
    assert best.window == latency.tokens_to_hide(best.timeline.t_res, 0.04)  # the references' ceiling, at certainty
    slow = latency.plan(QWEN, CONTEXT, {(4, 4): 1.0}, bits_per_second=5e9, tpot=0.04, cap=200, target=300)
    assert slow.least_time_to_target.window > 64  # their cap leaves time unused


def test_points_of_the_callers_own_go_with_their_split():
    points = tuple(i / 7 for i in range(8))
    made = latency.plan(QWEN, 100, RATES, bits_per_second=1e9, tpot=0.04, keys=lynxq.Params.keys(anchor_points=points))
    assert {c.split for c in made.candidates} == set(RATES)
