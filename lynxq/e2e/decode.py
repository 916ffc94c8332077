"""The decode process: receives a cache, and generates from it while it arrives."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import asdict
from typing import Any

from lynxq import backends, lab
from lynxq.e2e import methods
from lynxq.e2e.checks import Checks
from lynxq.e2e.pace import Costs, measure
from lynxq.e2e.records import Job
from lynxq.e2e.run import Run, shapes_for
from lynxq.e2e.worker import Worker, only_cpu, start


class Decode(Worker):
    """Commands: ``run``, ``cancel``, and those that ask about the model and its tokens."""

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
        self._costs: dict[int, Costs] = {}
        backends.warmup("bfloat16", "float32")

    async def on_tokens(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._model.tokens(text).tolist()
        return ids

    async def on_positions(self) -> int | None:
        """Positions that the model has."""
        return self._model.positions

    async def on_costs(self, tokens: int) -> dict[str, float]:
        """What passes over a cache of so many tokens take."""
        return asdict(await asyncio.to_thread(self._measured, tokens))

    async def on_cache_bytes(self, tokens: int) -> int:
        """Bytes of a cache of so many tokens in BF16."""
        return sum(2 * math.prod(shape) for shape in shapes_for(self._model, tokens).values())

    async def on_run(self, run: int, host: str, port: int, last: int, job: dict[str, Any]) -> dict[str, Any]:
        """Fetch a cache, generate, and compare the tokens with those of the full reconstruction."""
        wanted = Job(**job)
        method = methods.of(wanted)
        costs = await asyncio.to_thread(self._measured, wanted.prompt_tokens - 1)
        running = Run(
            self._model,
            method,
            wanted,
            last=last,
            costs=costs,
            tell=lambda kind, **what: self.tell(kind, run=run, **what),
        )
        self._runs[run] = running
        try:
            outcome = await running.go(host, port)
        finally:
            del self._runs[run]
        self.tell("generated", run=run)
        if wanted.check and method.drafts and outcome.complete:
            await asyncio.to_thread(self._checks.compare, outcome, running.generation, running.encoded(), last)
        if self._model.tokenizer is not None:
            outcome.text = self._model.text(outcome.tokens)
        return outcome.to_dict()

    def _measured(self, tokens: int) -> Costs:
        if tokens not in self._costs:
            self._costs[tokens] = measure(self._model, shapes_for(self._model, tokens))
        return self._costs[tokens]

    async def on_cancel(self, run: int) -> None:
        """End a run; what it has so far is its outcome."""
        if run in self._runs:
            self._runs[run].cancel()


if __name__ == "__main__":
    start(Decode(sys.argv[1] or None))
