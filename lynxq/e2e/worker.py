"""A process that takes commands and tells what happens: lines of JSON on its standard input and output.

It ends when its input does, so it never outlives the one who started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

from lynxq.e2e.records import line

#: Longest message in bytes: a prompt of many tokens.
MAX_LINE = 1 << 26


class Worker(ABC):
    """One of the two processes; commands are its methods named ``on_<kind>``, which run as tasks.

    A command may carry a ``call``, a number: its result, or its error, is told with it.
    """

    def __init__(self) -> None:
        # What libraries print must not be taken for a message.
        self._out: BinaryIO = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, kind: str, **what: Any) -> None:
        """Say what happened; from any thread."""
        self._out.write(line(kind, **what))

    @abstractmethod
    def prepare(self) -> None:
        """What takes long, before the first command."""

    async def run(self) -> None:
        """Take commands until there are no more."""
        self.prepare()
        self.tell("ready", pid=os.getpid())
        reader = asyncio.StreamReader(limit=MAX_LINE)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while data := await reader.readline():
            command = json.loads(data)
            task = asyncio.create_task(self._handle(command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, command: dict[str, Any]) -> None:
        call = command.pop("call", None)
        handler: Callable[..., Awaitable[Any]] = getattr(self, f"on_{command.pop('kind')}")
        try:
            result = await handler(**command)
        except Exception as error:  # noqa: BLE001 - the other side is told, whatever it is
            self.tell("failed", call=call, error=f"{type(error).__name__}: {error}")
        else:
            self.tell("result", call=call, result=result)


def start(worker: Worker) -> None:
    """Run a worker as this process, and leave without waiting for threads that compute."""
    asyncio.run(worker.run())
    sys.stderr.flush()
    os._exit(0)


def only_cpu(number: int | None) -> None:
    """Stay on one processor of those allowed, so that two processes are like two machines; None for all of them.

    Affinity is of a thread; those that are started later inherit it.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(_ALLOWED)
    os.sched_setaffinity(0, {allowed[number % len(allowed)]} if number is not None else _ALLOWED)


_ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
