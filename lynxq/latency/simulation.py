"""`simulate`: batches of requests that share a link and an engine, event by event."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lynxq.arguments import choice, instance, integer, real
from lynxq.errors import DTypeError, ParamsError
from lynxq.latency.link import Interval, PriorityLink
from lynxq.latency.workload import Engine, Request
from lynxq.layout import Stream

Transfer = Literal["split", "monolithic"]
#: Times of a trace that can be summed up over requests.
Moment = Literal["anchor_ready", "residual_ready", "first_token", "first_final", "finished"]


@dataclass(frozen=True)
class Trace:
    """What happened to a request; times in seconds, from the same zero as its arrival.

    Attributes
    ----------
    arrival, anchor_ready, residual_ready : float
    first_token : float
        First drafted token, or first final one if none was drafted.
    first_final : float
        First token that is never taken back.
    finished : float
        When its target was reached.
    drafted, accepted : int
        Tokens.
    stalled : float
        Seconds between its last drafted token and its residual.
    """

    arrival: float
    anchor_ready: float
    residual_ready: float
    first_token: float
    first_final: float
    finished: float
    drafted: int
    accepted: int
    stalled: float


@dataclass(frozen=True)
class Simulation:
    """The result of :func:`simulate`.

    Attributes
    ----------
    traces : tuple of Trace
        In the order of the requests.
    link : tuple of Interval
        What the link did, in order of time, without idle times.
    steps : int
        Steps of the engine.
    busy : float
        Seconds that the engine was busy.
    """

    traces: tuple[Trace, ...]
    link: tuple[Interval, ...]
    steps: int
    busy: float

    @property
    def nbytes(self) -> float:
        """Bytes that the link carried."""
        return math.fsum(interval.nbytes for interval in self.link)

    @property
    def makespan(self) -> float:
        """When the last request was finished; 0 without requests."""
        return max((trace.finished for trace in self.traces), default=0.0)

    def latencies(self, moment: Moment) -> tuple[float, ...]:
        """Seconds from a request's arrival to a moment, for every request in order."""
        choice("moment", moment, Moment)
        return tuple(getattr(trace, moment) - trace.arrival for trace in self.traces)

    def quantile(self, moment: Moment, q: float = 0.5) -> float:
        """A quantile of `latencies`, linearly interpolated; raises `ParamsError` without requests."""
        if not self.traces:
            raise ParamsError("a quantile needs at least one request, got none")
        return float(np.quantile(self.latencies(moment), real("q", q, 0.0, 1.0)))


def simulate(
    requests: Iterable[Request],
    *,
    bits_per_second: float,
    engine: Engine,
    window: int = 64,
    transfer: Transfer = "split",
    seed: int = 0,
) -> Simulation:
    """Let requests share one link and one engine.

    On the link, no residual byte moves while an anchor byte of any request waits; transfers of one class share it
    equally. The engine works in steps, each for all requests that can take part (:class:`Engine`). A request drafts
    from its anchor until its residual is complete or its window is full, in which case it waits; then it is
    verified in the next step, and decodes from the full cache.

    Parameters
    ----------
    requests : iterable of Request
    bits_per_second : float
        Of the link.
    engine : Engine
    window : int
        Most tokens that a request drafts.
    transfer : {"split", "monolithic"}
        Monolithic: both streams are one transfer, and nothing is drafted.
    seed : int
        Of the draws that decide which tokens are accepted. They belong to a request and a position, so runs with
        the same seed and window compare the same luck.

    Returns
    -------
    Simulation
        The same for the same arguments, on every machine with IEEE arithmetic.

    Examples
    --------
    >>> from lynxq.latency import Engine, ModelShape, batch, simulate, stream_sizes
    >>> sizes = stream_sizes(ModelShape(layers=32, kv_heads=8, head_dim=128), 32_768)
    >>> requests = batch(8, sizes, acceptance=0.98, spread=1.0)
    >>> results = {
    ...     transfer: simulate(requests, bits_per_second=25e9, engine=Engine(0.04), transfer=transfer)
    ...     for transfer in ("split", "monolithic")
    ... }
    >>> results["split"].nbytes == results["monolithic"].nbytes == 8 * (sizes.anchor + sizes.residual)
    True
    >>> results["split"].quantile("first_token") < results["monolithic"].quantile("first_token")
    True
    """
    todo = tuple(requests)
    for request in todo:
        instance("a request", request, Request, DTypeError)
    instance("engine", engine, Engine, DTypeError)
    choice("transfer", transfer, Transfer)
    rate = real("bits_per_second", bits_per_second, 0.0, exclusive=True)
    limit = integer("window", window, 0, 1 << 20, ParamsError)
    draws = np.random.default_rng(integer("seed", seed, 0, 1 << 63, ParamsError)).random((len(todo), limit))
    return _Run(todo, PriorityLink(rate), engine, limit, transfer == "monolithic", draws).run()


@dataclass
class _State:
    """A request in the course of time; infinite is what has not happened."""

    request: Request
    anchor_ready: float = math.inf
    residual_ready: float = math.inf
    first_drafted: float = math.inf
    last_drafted: float = math.inf
    first_final: float = math.inf
    finished: float = math.inf
    full: bool = False
    drafted: int = 0
    accepted: int = 0
    final: int = 0

    def gain(self, tokens: int, now: float) -> None:
        """Count final tokens."""
        self.final += tokens
        self.first_final = min(self.first_final, now)
        if self.final >= self.request.target:
            self.finished = min(self.finished, now)

    def trace(self) -> Trace:
        return Trace(
            self.request.arrival,
            self.anchor_ready,
            self.residual_ready,
            min(self.first_drafted, self.first_final),
            self.first_final,
            self.finished,
            self.drafted,
            self.accepted,
            max(0.0, self.residual_ready - self.last_drafted) if self.drafted else 0.0,
        )


@dataclass
class _Run:
    requests: tuple[Request, ...]
    link: PriorityLink
    engine: Engine
    window: int
    monolithic: bool
    draws: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    states: list[_State] = field(default_factory=list)
    tokens: list[_State] = field(default_factory=list)
    verifying: list[int] = field(default_factory=list)
    step_end: float = math.inf
    steps: int = 0
    busy: float = 0.0

    def run(self) -> Simulation:
        self.states = [_State(request) for request in self.requests]
        arrivals = sorted(range(len(self.requests)), key=lambda number: (self.requests[number].arrival, number))
        arrived = 0
        while any(state.finished == math.inf for state in self.states):
            arrival = self.requests[arrivals[arrived]].arrival if arrived < len(arrivals) else math.inf
            now = min(arrival, self.link.completion(), self.step_end)
            for stream, number in self.link.advance(now):
                self._received(stream, number, now)
            while arrived < len(arrivals) and self.requests[arrivals[arrived]].arrival <= now:
                self._arrive(arrivals[arrived], now)
                arrived += 1
            if self.step_end <= now:
                self._finish_step(now)
            if self.step_end == math.inf:
                self._start_step(now)
        while self.link.completion() < math.inf:  # a target may be reached before every residual is there
            now = self.link.completion()
            for stream, number in self.link.advance(now):
                self._received(stream, number, now)
        traces = tuple(state.trace() for state in self.states)
        return Simulation(traces, tuple(self.link.intervals), self.steps, self.busy)

    def _arrive(self, number: int, now: float) -> None:
        request = self.requests[number]
        first = request.anchor_bytes + (request.residual_bytes if self.monolithic else 0)
        if first:
            self.link.add("anchor", number, first)
        if request.residual_bytes and not self.monolithic:
            self.link.add("residual", number, request.residual_bytes)
        if not first:
            self._received("anchor", number, now)

    def _received(self, stream: Stream, number: int, now: float) -> None:
        state = self.states[number]
        if stream == "anchor":
            state.anchor_ready = now
        if stream == "residual" or self.monolithic or not state.request.residual_bytes:
            state.residual_ready = now

    def _start_step(self, now: float) -> None:
        self.tokens, self.verifying = [], []
        for number, state in enumerate(self.states):
            if state.finished < math.inf or state.anchor_ready == math.inf:
                continue
            if not state.full and state.residual_ready < math.inf:
                if state.drafted:
                    self.verifying.append(number)
                    continue
                state.full = True
            if state.full or state.drafted < self.window:
                self.tokens.append(state)
        if self.tokens or self.verifying:
            seconds = self.engine.seconds(len(self.tokens), [self.states[number].drafted for number in self.verifying])
            self.step_end = now + seconds
            self.steps += 1
            self.busy += seconds

    def _finish_step(self, now: float) -> None:
        for state in self.tokens:
            if state.full:
                state.gain(1, now)
            else:
                state.drafted += 1
                state.first_drafted = min(state.first_drafted, now)
                state.last_drafted = now
        for number in self.verifying:
            state = self.states[number]
            rejected = self.draws[number, : state.drafted] >= state.request.acceptance
            state.accepted = int(rejected.argmax()) if rejected.any() else state.drafted
            state.full = True
            state.gain(state.accepted + 1, now)
        self.step_end = math.inf
