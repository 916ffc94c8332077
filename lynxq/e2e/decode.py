"""The decode process: receives a cache, and generates from it while it arrives."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from lynxq import lab
from lynxq.e2e import schemes
from lynxq.e2e.checks import Checks
from lynxq.e2e.records import Job
from lynxq.e2e.run import Run
from lynxq.e2e.worker import Worker, only_cpu, start


class Decode(Worker):
    """Commands: ``run``, ``cancel``, ``text``."""

    def __init__(self, source: str | None) -> None:
        super().__init__()
        self._source = source
        self._runs: dict[int, Run] = {}

    def prepare(self) -> None:
        """Load the model; from here on this process is a machine of one processor."""
        only_cpu(0)
        import torch

        torch.set_num_threads(1)
        self._model = lab.load(self._source)
        self._checks = Checks(self._model)

    async def on_tokens(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._model.tokens(text).tolist()
        return ids

    async def on_run(self, run: int, host: str, port: int, last: int, job: dict[str, Any]) -> dict[str, Any]:
        """Fetch a cache, generate, and compare the tokens with those of the full reconstruction."""
        wanted = Job(**job)
        method = schemes.get(wanted.method)
        running = Run(self._model, method, wanted, last, lambda kind, **what: self.tell(kind, run=run, **what))
        self._runs[run] = running
        try:
            outcome = await running.go(host, port)
        finally:
            del self._runs[run]
        self.tell("generated", run=run)
        if wanted.check and method.drafts and outcome.error is None and not outcome.approximate:
            await asyncio.to_thread(self._checks.compare, outcome, running.generation, running.encoded(), last)
        if self._model.tokenizer is not None:
            outcome.text = self._model.text(outcome.tokens)
        return outcome.to_dict()

    async def on_cancel(self, run: int) -> None:
        """End a run; what it has so far is its outcome."""
        if run in self._runs:
            self._runs[run].cancel()


if __name__ == "__main__":
    start(Decode(sys.argv[1] or None))
