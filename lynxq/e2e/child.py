"""`Child`: a worker process, seen from the one who starts it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from lynxq.e2e.records import line
from lynxq.e2e.worker import MAX_LINE
from lynxq.errors import WorkerError

#: Told of everything that a worker says on its own.
Listener = Callable[[dict[str, Any]], None]

_KEPT = 4000


class Child:
    """Starts a worker process, sends it commands, and passes on what it tells.

    Parameters
    ----------
    name : str
        For messages.
    module : str
        What Python runs.
    *arguments : str
    listener : callable
        Called with each message that is not the answer to a command.
    """

    def __init__(self, name: str, module: str, *arguments: str, listener: Listener) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module, *arguments]
        self._listener = listener
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._ready: asyncio.Future[None]
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._errors = ""  # the end of what it wrote to standard error

    async def start(self, timeout: float) -> None:
        """Start the process, and return when it takes commands.

        Raises
        ------
        WorkerError
            If it ends, or is not ready in time.
        """
        self._ready = asyncio.get_running_loop().create_future()
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, "LYNXQ_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE, env=environment
        )
        self._tasks = [asyncio.create_task(self._listen(process)), asyncio.create_task(self._keep_errors(process))]
        try:
            async with asyncio.timeout(timeout):
                await self._ready
        except TimeoutError:
            await self.kill()
            raise WorkerError(f"the {self.name} process was not ready within {timeout:g} s") from None

    @property
    def pid(self) -> int:
        """Number of the process; raises `WorkerError` if it was not started."""
        if self._process is None:
            raise self._gone()
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.returncode is None

    async def call(self, kind: str, **what: Any) -> Any:
        """Send a command, and return its result.

        Raises
        ------
        WorkerError
            If it fails, or the process ends before.
        """
        if not self.alive:
            raise self._gone()
        number = next(self._numbers)
        self._calls[number] = future = asyncio.get_running_loop().create_future()
        try:
            self._send(kind, call=number, **what)
            return await future
        finally:
            del self._calls[number]

    def send(self, kind: str, **what: Any) -> None:
        """Send a command whose result does not matter."""
        if self.alive:
            self._send(kind, **what)

    def _send(self, kind: str, **what: Any) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line(kind, **what))

    async def kill(self) -> None:
        """End the process at once, if it was started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        for task in self._tasks:
            with suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(task, 5)

    async def stop(self) -> None:
        """Let the process end, which it does when its input does; kill it if it does not."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 5)
        await self.kill()

    # --- what it tells -----------------------------------------------------------------------------

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        failure: Exception | None = None
        try:
            await self._take(process.stdout)
        except Exception as error:  # noqa: BLE001 - nobody listens any more: who waits for an answer is told, whatever it is
            failure = error
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        await asyncio.sleep(0)
        for future in [self._ready, *self._calls.values()]:
            if not future.done():
                future.set_exception(self._gone(failure))

    async def _take(self, out: asyncio.StreamReader | None) -> None:
        while out is not None and (data := await out.readline()):
            message = json.loads(data)
            kind = message["kind"]
            future = self._calls.get(message.get("call", 0))
            if kind == "ready":
                if not self._ready.done():  # cancelled: nobody waits any more
                    self._ready.set_result(None)
            elif kind == "result" and future is not None and not future.done():
                future.set_result(message["result"])
            elif kind == "failed" and future is not None and not future.done():
                future.set_exception(WorkerError(f"the {self.name} process: {message['error']}"))
            elif kind != "result":
                self._listener(message)

    async def _keep_errors(self, process: asyncio.subprocess.Process) -> None:
        source = process.stderr
        while source is not None and (data := await source.read(4096)):
            self._errors = (self._errors + data.decode("utf-8", "replace"))[-_KEPT:]

    def _gone(self, failure: Exception | None = None) -> WorkerError:
        if self._process is None:
            return WorkerError(f"the {self.name} process was not started")
        if failure is not None:
            return WorkerError(f"the {self.name} process was ended: {type(failure).__name__}: {failure}")
        said = self._errors.strip().splitlines()
        last = f": {said[-1]}" if said else ""
        return WorkerError(f"the {self.name} process ended with code {self._process.returncode}{last}")
