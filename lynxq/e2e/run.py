"""`Run`: one request for a cache, and the generation that goes on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from lynxq.e2e import methods
from lynxq.e2e.generation import Generation, Sampling, Trace
from lynxq.e2e.pace import Costs, Pace
from lynxq.e2e.records import Job, Outcome, Span
from lynxq.encoded import Encoded
from lynxq.errors import CacheNotReadyError, LynxqError, TransferError, WorkerError
from lynxq.integrations.hf import ProgressiveCache
from lynxq.lab import LanguageModel
from lynxq.stream.tcp import Ready, Transfer, connect

#: Seconds between two looks at what has arrived.
_NAP = 0.005
#: Seconds that a forward pass waits: who watches the link ends the wait.
_FOR_EVER = 1e6
#: Tells what happens: a kind, and what belongs to it.
Tell = Callable[..., None]


class _CancelledRun(Exception):  # noqa: N818 - not an error
    """The caller wants no more tokens."""


class Run:
    """Fetches a cache with a method and generates from it.

    Parameters
    ----------
    model : LanguageModel
    method : methods.Method
    job : Job
    last : int
        The prompt's last token.
    costs : Costs
        Of passes over a cache of that length.
    tell : callable
        Told of progress: "progress" with bytes and tokens.
    """

    def __init__(
        self, model: LanguageModel, method: methods.Method, job: Job, *, last: int, costs: Costs, tell: Tell
    ) -> None:
        self._model = model
        self._method = method
        self._job = job
        self._tell = tell
        self._cancelled = False
        shapes = shapes_for(model, job.prompt_tokens - 1)
        self._sent = method.sent(shapes)
        self._cache = ProgressiveCache(
            method.layouts(shapes), capacity=job.prompt_tokens + job.cap + job.new_tokens + 16, dtype=model.dtype,
            timeout=_FOR_EVER,
        )  # fmt: skip
        self._fill = method.fill(shapes)
        self.generation = Generation(
            model, self._cache, last, Sampling(job.temperature, job.seed), on_pass=self._passed
        )
        self._outcome = Outcome(job=job)
        self._pace = Pace(self._sent, costs, cap=job.cap, with_residual=method.drafts)
        self._transfer: Transfer | None = None
        self._begin = 0.0
        self._told = 0.0
        self._lost: LynxqError | None = None

    def cancel(self) -> None:
        """End soon; from any thread but the loop's own only through it."""
        self._cancelled = True
        if self._transfer is not None:
            self._transfer.cancel()
        self._cache.fail(_CancelledRun("the run was cancelled"))

    def encoded(self) -> dict[str, Encoded]:
        """The tensors that arrived, both streams."""
        assert self._transfer is not None  # noqa: S101 - a run that has an outcome without error
        return {name: self._transfer.encoded(name) for name in self._sent}

    async def go(self, host: str, port: int) -> Outcome:
        """Fetch and generate; never raises for what a link or a peer does, the outcome says it."""
        for layer in self._cache.layers:  # memory that is touched for the first time is slow, whatever the method
            for states in (layer.keys, layer.values):
                states.zero_()
        self._begin = time.monotonic()
        self._tell("begin", at=self._begin)
        async with connect(host, port, attempts=2) as client:
            generating = asyncio.create_task(asyncio.to_thread(self._generate))
            receiving = [asyncio.create_task(self._receive(client)), asyncio.create_task(self._watch())]
            try:
                await generating
            finally:
                for task in receiving:
                    task.cancel()
                await asyncio.gather(*receiving, return_exceptions=True)
                self._cache.fail(_CancelledRun("the run is over"))
                await asyncio.gather(generating, return_exceptions=True)
        self._report()
        return self._outcome

    # --- receiving: on the loop, decoding on threads -------------------------------------------------

    async def _receive(self, client: Any) -> None:
        try:
            self._transfer = transfer = await client.request(
                "cache", self._method.tier, on_anchor_ready=self._arrived, on_residual_ready=self._arrived
            )
            self._check(transfer)
            async for ready in transfer.ready():
                await asyncio.to_thread(self._put, transfer, ready)
        except LynxqError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - generation must not wait for what nobody puts into the cache
            self._lose(WorkerError(f"what arrived could not be used: {type(error).__name__}: {error}"))

    def _check(self, transfer: Transfer) -> None:
        if dict(transfer.layouts) != dict(self._sent):
            raise WorkerError("the prefill process sends other tensors than those that were asked for")

    async def _watch(self) -> None:
        """Give up when nothing has arrived for too long."""
        limit = self._job.residual_timeout
        while not self._pace.complete:
            await asyncio.sleep(min(0.1, limit / 4))
            if time.monotonic() - max(self._begin, self._pace.last_arrival) > limit:
                self._lose(TransferError(f"nothing has arrived for {limit:g} s"))
                return

    def _lose(self, error: LynxqError) -> None:
        """Nothing more will arrive."""
        self._lost = error
        if not self._cancelled:
            self._cache.fail(error)

    def _arrived(self, ready: Ready) -> None:
        """Count a page on the loop, as soon as it is here."""
        self._pace.arrived(ready, time.monotonic())
        if self._pace.anchors_complete and self._outcome.anchor_at is None:
            self._outcome.anchor_at = time.monotonic() - self._begin
            self._outcome.window = self._pace.window()
        if self._pace.complete:
            self._outcome.residual_at = time.monotonic() - self._begin
        self._progress()

    def _put(self, transfer: Transfer, ready: Ready) -> None:
        begin = time.monotonic()
        self._fill(self._cache, transfer, ready)
        self._span("decode", f"fill {ready.stream}", begin, time.monotonic())

    # --- generating: on a thread of its own ----------------------------------------------------------

    def _generate(self) -> None:
        try:
            self._generate_all()
        except _CancelledRun:
            self._outcome.cancelled = True
        except CacheNotReadyError as error:
            if isinstance(error.__cause__, _CancelledRun):
                self._outcome.cancelled = True
            else:
                self._outcome.error = str(error)

    def _generate_all(self) -> None:
        generation, job = self.generation, self._job
        if self._method.drafts:
            generation.draft(self._more)
            while self._revise(generation.trace):
                generation.revise(self._wanted)
                generation.draft(self._more)
        try:
            generation.verify()
            generation.step(job.new_tokens)
        except CacheNotReadyError as error:
            missing = self._cache.tier is None
            if missing or not job.allow_approximate or isinstance(error.__cause__, _CancelledRun):
                raise
            self._outcome.approximate = True
            generation.approximate()
            generation.step(job.new_tokens)
        del generation.trace.final[job.new_tokens :], generation.trace.final_at[job.new_tokens :]

    @property
    def _wanted(self) -> int:
        """Tokens to draft at most."""
        return min(self._job.cap, self._job.new_tokens)

    def _revise(self, trace: Trace) -> bool:
        """Wait until the draft should be read again, or its verification begin."""
        if len(trace.drafted) < self._wanted:
            return False
        while self._lost is None:
            if self._cancelled:
                raise _CancelledRun
            answer = self._pace.time_for_revision(len(trace.drafted))
            if answer is not None:
                return answer
            time.sleep(_NAP)
        return False

    def _more(self, drafted: int) -> bool:
        if self._cancelled:
            raise _CancelledRun
        if drafted >= self._wanted:
            return False
        return drafted == 0 or (self._lost is None and self._pace.time_for_one_more(drafted))

    def _passed(self, trace: Trace) -> None:
        """After each pass: learn how long it took, and whether to go on."""
        if self._cancelled:
            raise _CancelledRun
        last = trace.passes[-1]
        self._pace.took(last)
        self._progress(force=True)

    # --- telling -------------------------------------------------------------------------------------

    def _progress(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now - self._told > 0.05 or self._pace.complete:
            self._told = now
            trace = self.generation.trace
            self._tell(
                "progress",
                seconds=now - self._begin,
                anchor=[self._pace.anchor_bytes, self._pace.anchor_total],
                residual=[self._pace.residual_bytes, self._pace.residual_total],
                drafted=len(trace.drafted),
                final=len(trace.final),
                draft_text=self._text(trace.drafted),
                final_text=self._text(trace.final),
            )

    def _text(self, tokens: list[int]) -> str:
        return self._model.text(list(tokens)) if tokens and self._model.tokenizer is not None else ""

    def _span(self, actor: str, what: str, begin: float, end: float) -> None:
        self._outcome.spans.append(Span(actor=actor, what=what, begin=begin - self._begin, end=end - self._begin))

    def _report(self) -> None:
        outcome, trace = self._outcome, self.generation.trace
        outcome.anchor_bytes, outcome.residual_bytes = self._pace.anchor_bytes, self._pace.residual_bytes
        outcome.tokens, outcome.draft = list(trace.final), list(trace.drafted)
        outcome.drafted, outcome.accepted = len(trace.drafted), trace.accepted
        outcome.revisions = trace.revisions
        outcome.proposed, outcome.kept = trace.proposed, trace.kept
        outcome.passes = dict(Counter(one.phase for one in trace.passes))
        outcome.final_at = [at - self._begin for at in trace.final_at]
        outcome.first_final = outcome.final_at[0] if outcome.final_at else None
        drafts = [one.end for one in trace.passes if one.phase == "draft"]
        outcome.first_drafted = drafts[0] - self._begin if drafts else outcome.first_final
        for one in trace.passes:  # most of what a pass waits, it waits at its first layer
            if one.waited:
                self._span("decode", "wait", one.begin, one.begin + one.waited)
            self._span("decode", one.phase, one.begin + one.waited, one.end)
        verifications = [one.seconds for one in trace.passes if one.phase == "verify"]
        outcome.verify_seconds = verifications[0] if verifications else None
        if outcome.anchor_at is not None:
            self._span("link", "anchor", self._begin, self._begin + outcome.anchor_at)
            if outcome.residual_at is not None and self._pace.residual_total:
                self._span("link", "residual", self._begin + outcome.anchor_at, self._begin + outcome.residual_at)
        # A copy: a thread that still fills the cache may append while the list would be sorted.
        outcome.spans = sorted(outcome.spans, key=lambda span: span.begin)


def shapes_for(model: LanguageModel, tokens: int) -> dict[str, tuple[int, ...]]:
    """The keys and values of a model for one sequence: ``[1, heads, tokens, head dim]``."""
    config = model.module.config.get_text_config(decoder=True)
    heads = config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return {
        f"layer.{number}.{kind}": (1, heads, tokens, dim)
        for number in range(config.num_hidden_layers)
        for kind in ("key", "value")
    }
