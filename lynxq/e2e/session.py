"""`Session`: both processes, and runs between them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from types import TracebackType
from typing import Any, Self

from lynxq.arguments import integer, shown
from lynxq.e2e.child import Child
from lynxq.e2e.records import Job, Outcome, Span
from lynxq.errors import ParamsError, WorkerError
from lynxq.lab.positions import check_length

#: Told of progress: a message of one of the processes, with the name of the process as "actor".
Watcher = Callable[[dict[str, Any]], None]


class Session:
    """A prefill process and a decode process on this machine; use it with ``async with``.

    If one of them dies, the run that needed it ends with an outcome that says so, and :meth:`run` starts it again the
    next time. Nothing waits for ever: each run has a time limit, after which the process that it waits for is killed.
    Outside of ``async with`` there are no processes, and what needs one raises `WorkerError`.

    Parameters
    ----------
    model : str, optional
        As :func:`lynxq.lab.load` takes it; SmolLM2-135M-Instruct by default.
    watcher : callable, optional
        Called with each message of the processes.
    start_timeout : float
        Seconds until a process must have loaded its model.

    Examples
    --------
    >>> async def compare(text):
    ...     async with Session() as session:
    ...         await session.prefill(await session.tokens(text))
    ...         for method in ("int8", "lynx"):
    ...             outcome = await session.run(Job(method=method, prompt_tokens=1024, rate=5e6))
    ...             print(method, outcome.first_drafted, outcome.first_final, outcome.until(64))
    """

    def __init__(
        self, model: str | None = None, *, watcher: Watcher | None = None, start_timeout: float = 300.0
    ) -> None:
        self._model = model or ""
        self._watcher = watcher or (lambda _: None)
        self._timeout = start_timeout
        self._children: dict[str, Child] = {}
        self._open = False
        self._awaited = "decode"
        self._ids: list[int] = []
        self._positions: int | None = None
        self._prefilled = False
        self._runs = count(1)
        self._encoded: list[tuple[float, float]] = []
        self._begin = math.nan
        self._current = 0
        self._running = False
        self.prefill_seconds = math.nan

    async def __aenter__(self) -> Self:
        self._open = True
        try:
            _, decode = await asyncio.gather(self._child("prefill"), self._child("decode"))
            self._positions = await decode.call("positions")
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End both processes."""
        self._open = False
        await asyncio.gather(*(child.stop() for child in self._children.values()))
        self._children.clear()

    async def _child(self, name: str) -> Child:
        """A process that is alive."""
        if not self._open:
            raise WorkerError("a session has processes only within `async with`")
        child = self._children.get(name)
        if child is None or not child.alive:
            child = Child(name, f"lynxq.e2e.{name}", self._model, listener=lambda message: self._told(name, message))
            self._children[name] = child
            await child.start(self._timeout)
            self._prefilled = self._prefilled and name != "prefill"
        return child

    def _told(self, actor: str, message: dict[str, Any]) -> None:
        if message["kind"] == "encoded":
            self._encoded.append((message["begin"], message["end"]))
        elif message["kind"] == "begin" and message["run"] == self._current:
            self._begin = message["at"]
        self._watcher({**message, "actor": actor})

    # --- what can be done --------------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """Number of the process "prefill" or "decode"."""
        return self._started(name).pid

    def _started(self, name: str) -> Child:
        if name not in self._children:
            raise WorkerError(f"there is no process {shown(name)} in this session")
        return self._children[name]

    async def tokens(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = await (await self._child("decode")).call("tokens", text=text)
        return ids

    def check_length(self, prompt: int, new: int = 0) -> None:
        """Refuse, before any work, a prompt that has more tokens than the model has positions.

        Parameters
        ----------
        prompt : int
            Tokens of the prompt.
        new : int
            Tokens to generate.

        Raises
        ------
        ShapeError
            If the model has too few positions.
        """
        check_length(self._positions, prompt, new)

    async def costs(self, tokens: int) -> dict[str, float]:
        """Seconds of passes over a cache of so many tokens: ``step``, and ``token`` for each further token of one."""
        found: dict[str, float] = await (await self._child("decode")).call("costs", tokens=tokens)
        return found

    async def cache_bytes(self, tokens: int) -> int:
        """Bytes of a cache of so many tokens in BF16."""
        found: int = await (await self._child("decode")).call("cache_bytes", tokens=tokens)
        return found

    async def prefill(self, ids: Sequence[int]) -> float:
        """Compute the cache of a prompt; runs may use any beginning of it. Returns the seconds that it took.

        Raises
        ------
        ShapeError
            If it has more tokens than the model has positions.
        ParamsError
            If something in it is no token.
        """
        self.check_length(len(ids))
        self._ids = [integer("a token", token, 0, 1 << 31, ParamsError) for token in ids]
        self._prefilled = False  # should this fail, the process has the cache of another prompt
        answer = await (await self._child("prefill")).call("prefill", ids=self._ids[:-1])
        self._prefilled = True
        self.prefill_seconds = answer["seconds"]
        return self.prefill_seconds

    async def run(self, job: Job, *, timeout: float | None = None) -> Outcome:
        """Move the cache of the prompt's first tokens and generate.

        Parameters
        ----------
        job : Job
        timeout : float, optional
            Seconds after which the process that is waited for is killed; five minutes more than the job's own by
            default.

        Returns
        -------
        Outcome
            Also of runs that fail: its ``error`` says why.

        Raises
        ------
        WorkerError
            If the prefilled prompt is shorter, or a run of this session is going on.
        ShapeError
            If the model has too few positions for all tokens of the job.
        """
        if job.prompt_tokens > len(self._ids):
            raise WorkerError(f"the prefilled prompt has {len(self._ids)} tokens, {job.prompt_tokens} are wanted")
        self.check_length(job.prompt_tokens, job.new_tokens)
        if self._running:
            raise WorkerError("a run is going on: the runs of a session come one after another")
        self._running = True
        try:
            return await self._measured(job, timeout)
        finally:
            self._running = False

    async def _measured(self, job: Job, timeout: float | None) -> Outcome:
        number = self._current = next(self._runs)
        self._encoded, self._begin = [], math.nan
        limit = job.residual_timeout + 300 if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                outcome = await self._run(job, number)
        except WorkerError as error:
            outcome = Outcome(job=job, error=str(error))
        except TimeoutError:
            await self._children[self._awaited].kill()
            outcome = Outcome(job=job, error=f"the run had not ended after {limit:g} s")
        outcome.spans += [
            Span(actor="prefill", what="encode", begin=begin - self._begin, end=end - self._begin)
            for begin, end in self._encoded
            if not math.isnan(self._begin)
        ]
        return outcome

    async def _run(self, job: Job, number: int) -> Outcome:
        decode, sender = await self._child("decode"), await self._child("prefill")
        self._awaited = "prefill"
        if not self._prefilled:
            await self.prefill(self._ids)
        tokens = job.prompt_tokens - 1
        where = await sender.call("serve", run=number, tokens=tokens, job=asdict(job))
        self._awaited = "decode"
        try:
            answer = await decode.call(
                "run", run=number, host="127.0.0.1", port=where["port"], last=self._ids[tokens], job=asdict(job)
            )
        finally:
            sender.send("stop", run=number)
        return Outcome.from_dict(answer)

    def cancel(self) -> None:
        """End the run that is going on; its outcome has what there is."""
        child = self._children.get("decode")
        if child is not None:
            child.send("cancel", run=self._current)

    async def kill(self, name: str) -> None:
        """Kill the process "prefill" or "decode", as a test of faults."""
        await self._started(name).kill()
