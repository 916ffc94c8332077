"""The simulation of batches: invariants of the link, the closed form for one request, and determinism."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lynxq.errors import DTypeError, ParamsError, ShapeError
from lynxq.latency import (
    Engine,
    ModelShape,
    Request,
    StreamSizes,
    Timeline,
    VerificationCost,
    batch,
    link,
    simulate,
    stream_sizes,
)

BITS = 8e6  # a million bytes a second
SIZES = stream_sizes(ModelShape(layers=32, kv_heads=8, head_dim=128), 16_384)

requests = st.lists(
    st.builds(
        Request,
        arrival=st.one_of(st.just(0.0), st.floats(0, 3)),
        anchor_bytes=st.one_of(st.integers(0, 2_000_000), st.just(500_000)),
        residual_bytes=st.one_of(st.integers(0, 2_000_000), st.just(500_000)),
        acceptance=st.floats(0, 1),
        target=st.integers(1, 80),
    ),
    max_size=7,
)
engines = st.builds(
    Engine,
    tpot=st.floats(0.005, 0.1),
    per_sequence=st.floats(0, 0.01),
    verification=st.one_of(st.none(), st.builds(VerificationCost, st.floats(0, 0.1), st.floats(0, 0.01))),
)
transfers = st.sampled_from(["split", "monolithic"])


def served(result):
    """Bytes by stream and request."""
    total = {}
    for interval in result.link:
        for number in interval.requests:
            key = interval.stream, number
            total.setdefault(key, []).append(interval.nbytes / len(interval.requests))
    return {key: math.fsum(parts) for key, parts in total.items()}


def check_link(given_requests, result, bits):
    """Every invariant of a work-conserving link with strict priority and fair shares."""
    traces = result.traces
    ends = {"anchor": [t.anchor_ready for t in traces], "residual": [t.residual_ready for t in traces]}
    sizes = {
        "anchor": [r.anchor_bytes for r in given_requests],
        "residual": [r.residual_bytes for r in given_requests],
    }
    clock = 0.0
    for interval in result.link:
        assert clock <= interval.start < interval.stop
        assert interval.nbytes == pytest.approx(bits / 8 * (interval.stop - interval.start), rel=1e-6, abs=1e-3)
        if interval.start > clock:  # idle: nothing waits
            assert all(
                t.arrival >= interval.start or t.residual_ready <= clock or not r.anchor_bytes + r.residual_bytes
                for r, t in zip(given_requests, traces, strict=True)
            )
        clock = interval.stop
        waiting = {
            stream: tuple(
                i
                for i, trace in enumerate(traces)
                if sizes[stream][i] and trace.arrival <= interval.start and interval.stop <= ends[stream][i]
            )
            for stream in ("anchor", "residual")
        }
        assert interval.requests == waiting[interval.stream]
        if interval.stream == "residual":
            assert not waiting["anchor"], "a residual byte moved while an anchor waited"
    done = served(result)
    for stream, wanted in sizes.items():
        for number, nbytes in enumerate(wanted):
            assert done.get((stream, number), 0.0) == pytest.approx(nbytes, rel=1e-9, abs=1e-3)
    assert result.nbytes == pytest.approx(sum(map(sum, sizes.values())), rel=1e-9, abs=1e-3)


@given(requests, engines, st.integers(0, 64))
def test_the_link_serves_anchors_first_and_all_alike(todo, engine, window):
    check_link(todo, simulate(todo, bits_per_second=BITS, engine=engine, window=window), BITS)


def test_a_link_without_priority_is_caught(monkeypatch):
    todo = batch(8, SIZES, spread=1.0)
    check_link(todo, simulate(todo, bits_per_second=25e9, engine=Engine(0.04)), 25e9)
    monkeypatch.setattr(link, "_CLASSES", ("residual", "anchor"))
    with pytest.raises(AssertionError):
        check_link(todo, simulate(todo, bits_per_second=25e9, engine=Engine(0.04)), 25e9)


@given(requests, engines, st.integers(0, 64), transfers)
def test_what_happens_to_a_request_is_in_order(todo, engine, window, transfer):
    result = simulate(todo, bits_per_second=BITS, engine=engine, window=window, transfer=transfer, seed=3)
    assert len(result.traces) == len(todo)
    for request, trace in zip(todo, result.traces, strict=True):
        assert trace.arrival == request.arrival <= trace.anchor_ready
        assert trace.anchor_ready <= trace.first_token <= trace.first_final <= trace.finished < math.inf
        assert trace.residual_ready <= trace.first_final
        assert 0 <= trace.accepted <= trace.drafted <= window
        if transfer == "monolithic":
            assert trace.drafted == 0
            assert trace.anchor_ready == trace.residual_ready
        if trace.drafted < window:
            assert trace.stalled <= engine.seconds(len(todo), [window] * len(todo))
        assert trace.finished - trace.first_final >= (request.target - trace.accepted - 1) * engine.tpot * (1 - 1e-9)
    assert result.makespan == max((t.finished for t in result.traces), default=0)
    assert 0 <= result.busy <= result.makespan * (1 + 1e-9)
    again = simulate(tuple(todo), bits_per_second=BITS, engine=engine, window=window, transfer=transfer, seed=3)
    assert again == result


@given(
    st.builds(
        Request,
        st.floats(0, 3),
        st.integers(1, 3_000_000),
        st.integers(0, 3_000_000),
        st.floats(0, 1),
        st.integers(1, 90),
    ),
    st.floats(0.005, 0.3),
    st.builds(VerificationCost, st.floats(0, 0.3), st.floats(0, 0.01)),
    st.integers(0, 80),
    st.integers(0, 99),
)
def test_one_request_alone_is_the_closed_form(request, tpot, cost, window, seed):
    t_anc, t_res = request.anchor_bytes * 8 / BITS, request.residual_bytes * 8 / BITS
    steps = t_res / tpot
    assume(abs(steps - round(steps)) > 1e-6 or t_res == 0)  # which event comes first is a matter of rounding
    line = Timeline(request.arrival, t_anc, t_res, tpot, window, cost)
    (trace,) = simulate(
        [request], bits_per_second=BITS, engine=Engine(tpot, verification=cost), window=window, seed=seed
    ).traces
    assert trace.anchor_ready == pytest.approx(line.anchor_ready)
    assert trace.residual_ready == pytest.approx(line.residual_ready)
    assert trace.drafted == line.drafted
    first = line.first_final if line.first_drafted is None else line.first_drafted
    assert trace.first_token == pytest.approx(first)
    assert trace.first_final == pytest.approx(line.first_final)
    assert trace.stalled == pytest.approx(line.stall if line.drafted else 0.0, abs=1e-9)
    assert trace.finished == pytest.approx(line.time_to(request.target, trace.accepted))


@given(st.integers(1, 40), st.integers(1, 10**6), st.integers(1, 10**6))
def test_equal_requests_at_once_share_equally(count, anchor, residual):
    todo = [Request(0.0, anchor, residual)] * count
    result = simulate(todo, bits_per_second=BITS, engine=Engine(0.01))
    for trace in result.traces:
        assert trace.anchor_ready == pytest.approx(count * anchor / 1e6)
        assert trace.residual_ready == pytest.approx(count * (anchor + residual) / 1e6)


def test_shares_by_hand():
    """Bytes a second: 10^6. Anchors of 1 and 3 s; a third comes when the first residual is half through."""
    todo = [
        Request(0.0, 1_000_000, 1_000_000),
        Request(0.0, 3_000_000, 2_000_000),
        Request(5.0, 500_000, 100_000),
    ]
    traces = simulate(todo, bits_per_second=BITS, engine=Engine(0.01)).traces
    assert [t.anchor_ready for t in traces] == pytest.approx([2.0, 4.0, 5.5])
    # from 4 to 5 half a second's bytes each; from 5.5 on 0.5, 1.5 and 0.1 million bytes in equal shares
    assert [t.residual_ready for t in traces] == pytest.approx([6.6, 7.6, 5.8])


def test_drafts_are_accepted_as_often_as_they_should():
    rate, window = 0.9, 8
    todo = [Request(0.0, 1, 10**6, rate, target=1)] * 4000
    result = simulate(todo, bits_per_second=8e9, engine=Engine(1e-3), window=window, seed=1)
    assert all(t.drafted == window for t in result.traces)
    full = sum(t.accepted == window for t in result.traces) / len(todo)
    assert abs(full - rate**window) < 5 * math.sqrt(rate**window / len(todo))
    mean = sum(t.accepted for t in result.traces) / len(todo)
    assert mean == pytest.approx(sum(rate**i for i in range(1, window + 1)), rel=0.05)


@pytest.mark.parametrize("count", [8, 32, 128])
def test_batches_of_the_issue(count):
    todo = batch(count, SIZES, acceptance=0.98, spread=2.0, seed=count)
    assert todo == batch(count, SIZES, acceptance=0.98, spread=2.0, seed=count)
    assert todo != batch(count, SIZES, acceptance=0.98, spread=2.0, seed=count + 1)
    engine = Engine(0.04, per_sequence=1e-4, verification=VerificationCost(0.04, 1e-4))
    split, whole = (
        simulate(todo, bits_per_second=25e9, engine=engine, transfer=transfer) for transfer in ("split", "monolithic")
    )
    check_link(todo, split, 25e9)
    assert split.nbytes == pytest.approx(whole.nbytes)
    assert split.quantile("first_token") < whole.quantile("first_token")
    assert split.quantile("anchor_ready", 1.0) < whole.quantile("anchor_ready", 1.0)
    # strict priority has its price: residuals of early requests wait for anchors of late ones
    assert min(split.latencies("residual_ready")) >= min(whole.latencies("residual_ready")) * (1 - 1e-9)


def test_sizes_are_drawn_from_what_is_given():
    options = [StreamSizes(1, 2, 3), StreamSizes(4, 5, 6)]
    drawn = {(r.anchor_bytes, r.residual_bytes) for r in batch(50, options)}
    assert drawn == {(1, 2), (4, 5)}
    assert batch(0, options) == ()
    empty = simulate([], bits_per_second=1.0, engine=Engine(1.0))
    assert (empty.traces, empty.link, empty.makespan, empty.nbytes) == ((), (), 0.0, 0.0)
    with pytest.raises(ParamsError):
        empty.quantile("finished")


def test_refusals():
    good = {"bits_per_second": 1.0, "engine": Engine(1.0)}
    for changes, error in (
        ({"bits_per_second": 0}, ParamsError),
        ({"engine": 1.0}, DTypeError),
        ({"window": -1}, ParamsError),
        ({"transfer": "both"}, ParamsError),
        ({"seed": -1}, ParamsError),
    ):
        with pytest.raises(error):
            simulate([Request(0.0, 1, 1)], **{**good, **changes})
    with pytest.raises(DTypeError):
        simulate([(0.0, 1, 1)], **good)
    for arguments in ((-1.0, 1, 1), (0.0, -1, 1), (0.0, 1, 0.5), (0.0, 1, 1, 1.5), (0.0, 1, 1, 1.0, 0)):
        with pytest.raises((ParamsError, ShapeError)):
            Request(*arguments)
    for engine in ((0.0,), (1.0, -1.0)):
        with pytest.raises(ParamsError):
            Engine(*engine)
    with pytest.raises(DTypeError):
        Engine(1.0, 0.0, 0.5)
    with pytest.raises(ParamsError):
        batch(3, [])
