"""The window, the estimates that feed it, and the health monitor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lynxq.errors import LynxqError, ParamsError, ShapeError
from lynxq.speculative import AdaptiveWindow, HealthMonitor, LinkEstimate, Ratio, TokenEstimate, window

TIMES = st.floats(0, 1e6)
STEPS = st.floats(1e-9, 1e3)
COUNTS = st.integers(0, 1000)


@given(TIMES, STEPS, COUNTS, COUNTS)
def test_the_window_is_what_it_says(t_res, tpot, margin, cap):
    size = window(t_res, tpot, margin, cap)
    assert 0 <= size <= cap
    needed = t_res / tpot
    if size < cap:
        assert size - margin >= needed * (1 - 1e-8)
        assert size - margin <= needed + 1
    else:
        assert needed + 1 + margin >= cap * (1 - 1e-8)


@given(st.integers(0, 10_000), STEPS)
def test_whole_multiples_are_not_rounded_up(count, tpot):
    assert window(count * tpot, tpot, cap=1 << 20) == count


@given(TIMES, TIMES, STEPS)
def test_more_time_is_never_fewer_tokens(one, two, tpot):
    assert window(min(one, two), tpot) <= window(max(one, two), tpot)


def test_extremes_of_the_window():
    assert window(1e308, 5e-324) == 64
    assert window(0.0, 0.04) == 0
    assert window(0.0, 0.04, margin=3) == 3
    assert window(1.0, 0.04, cap=0) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        (-1, 1),
        (1, 0),
        (1, -1),
        (math.nan, 1),
        (math.inf, 1),
        ("1", 1),
        (1, None),
        (1, 1, -1),
        (1, 1, 0.5),
        (1, 1, 0, -1),
    ],
)
def test_windows_refuse_what_makes_no_sense(arguments):
    with pytest.raises(ParamsError):
        window(*arguments)


SAMPLES = st.lists(st.tuples(st.just(0.0) | st.floats(1e-6, 1e6), st.floats(1e-3, 100)), min_size=1, max_size=20)


@given(SAMPLES, st.floats(0.1, 100))
def test_estimates_lie_between_their_samples(samples, half_life):
    ratio = Ratio(half_life)
    assert ratio.value is None
    for above, below in samples:
        ratio.add(above, below)
    rates = [above / below for above, below in samples]
    assert min(rates) * (1 - 1e-9) <= ratio.value <= max(rates) * (1 + 1e-9)


@given(SAMPLES, st.integers(1, 5))
def test_cutting_a_sample_changes_nothing(samples, parts):
    whole, cut = Ratio(2.0), Ratio(2.0)
    for above, below in samples:
        whole.add(above, below)
        for _ in range(parts):
            cut.add(above / parts, below / parts)
    assert cut.value == pytest.approx(whole.value, rel=1e-9)


def test_a_long_half_life_loses_no_sample():
    ratio = Ratio(1e30)
    ratio.add(3.0, 1.0)
    ratio.add(5.0, 1.0)
    assert ratio.value == pytest.approx(4.0)


def test_estimates_follow_a_change():
    link = LinkEstimate(half_life=1.0)
    for _ in range(50):
        link.add(1000, 0.1)
    assert link.bits_per_second == pytest.approx(80_000)
    link.add(100, 1.0)  # a tenth… of the rate, for one half-life
    assert link.bits_per_second == pytest.approx((80_000 + 800) / 2, rel=0.05)
    token = TokenEstimate()
    assert token.seconds is None
    token.add(0.08, 2)
    assert token.seconds == pytest.approx(0.04)


def test_nothing_measured_and_nothing_moving():
    link = LinkEstimate()
    assert link.bits_per_second is None
    assert link.seconds(5) is None
    link.add(0, 0.0)
    assert link.bits_per_second is None
    link.add(0, 1.0)
    assert link.bits_per_second == 0
    assert link.seconds(5) is None
    adaptive = AdaptiveWindow(margin=2, cap=10)
    assert adaptive.size(1) == 10
    assert adaptive.size(0) == 2
    adaptive.token.add(0.04)
    adaptive.link.add(100, 1.0)
    assert adaptive.size(8) == 4
    with pytest.raises(ParamsError):
        adaptive.size(-1)


# --- health ----------------------------------------------------------------------------------------


def test_the_recommendation_has_hysteresis():
    monitor = HealthMonitor(low=0.5, high=0.6, half_life=8, minimum=8, probe_every=0)
    changes = []
    for step in range(400):
        full = step % 100 < 50  # long good and bad spells
        monitor.add([10], [10 if full else 4])
        if not changes or changes[-1][1] != monitor.recommendation:
            changes.append((step, monitor.recommendation, monitor.full_acceptance))
    assert [state for _, state, _ in changes] == ["split", "monolithic"] * 4
    for _, state, rate in changes[1:]:
        assert rate < 0.5 if state == "monolithic" else rate > 0.6


def test_rates_between_the_lines_change_nothing():
    for start in ("split", "monolithic"):
        monitor = HealthMonitor(low=0.4, high=0.7, half_life=64, minimum=1, probe_every=0)
        monitor.add([5] * 400, [5 if start == "split" else 0] * 400)
        assert monitor.recommendation == start
        pattern = [5, 0] * 500  # 50 %
        if start == "split":
            monitor.add([5] * 1000, pattern)
        else:
            monitor.add([5] * 1000, pattern[::-1])
        assert 0.4 < monitor.full_acceptance < 0.7
        assert monitor.recommendation == start


def test_no_judgement_before_the_minimum():
    monitor = HealthMonitor(minimum=5)
    monitor.add([8] * 4, [0] * 4)
    assert monitor.recommendation == "split"
    monitor.add([0, 0], [0, 0])  # nothing drafted: says nothing
    assert monitor.recommendation == "split"
    monitor.add([8], [0])
    assert monitor.recommendation == "monolithic"


def test_probes_let_it_recover():
    monitor = HealthMonitor(minimum=1, half_life=4, probe_every=10)
    monitor.add([8] * 10, [0] * 10)
    choices = []
    for _ in range(200):
        choices.append(monitor.choose())
        if choices[-1] == "split":
            monitor.add([8], [8])
    assert choices[:10] == ["monolithic"] * 9 + ["split"]
    assert monitor.recommendation == "split"
    assert choices[-1] == "split"
    never = HealthMonitor(minimum=1, probe_every=0)
    never.add([8] * 10, [0] * 10)
    assert {never.choose() for _ in range(100)} == {"monolithic"}


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=1, max_size=50))
def test_rates_of_the_monitor(pairs):
    drafted, accepted = [d for d, _ in pairs], [min(a, d) for d, a in pairs]
    monitor = HealthMonitor(half_life=1e9)
    assert monitor.acceptance_rate is None
    assert monitor.full_acceptance is None
    monitor.add(np.array(drafted), np.array(accepted))
    assert monitor.acceptance_rate == pytest.approx(sum(accepted) / sum(drafted), rel=1e-5)
    assert monitor.mean_accepted == pytest.approx(sum(accepted) / len(pairs), rel=1e-5)
    full = sum(a == d for d, a in zip(drafted, accepted, strict=True)) / len(pairs)
    assert monitor.full_acceptance == pytest.approx(full, rel=1e-5, abs=1e-9)


def test_refused_samples_are_not_counted():
    monitor = HealthMonitor()
    for drafted, accepted in (([1, 2], [1]), ([4, 4], [4, 5]), ([4], [-1]), ([0.5], [0])):
        with pytest.raises(ShapeError):
            monitor.add(drafted, accepted)
    assert monitor.full_acceptance is None
    for arguments in ({"low": 0.7}, {"high": 1.5}, {"half_life": 0}, {"minimum": 0}, {"probe_every": -1}):
        with pytest.raises(LynxqError):
            HealthMonitor(**arguments)
