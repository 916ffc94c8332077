"""The prefill process: computes the cache of a prompt, and sends it or beginnings of it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from lynxq import backends, lab
from lynxq.arrays import Array
from lynxq.e2e import methods
from lynxq.e2e.records import Job
from lynxq.e2e.worker import Worker, only_cpu, start
from lynxq.stream import EncodedSource, Source
from lynxq.stream.tcp import Server, TokenBucket, serve

#: Tokens that the model reads at a time; the memory of attention grows with them.
_CHUNK = 1024


class Prefill(Worker):
    """Commands: ``prefill``, ``serve``, ``stop``."""

    def __init__(self, source: str | None) -> None:
        super().__init__()
        self._source = source
        self._tensors: dict[str, Array] = {}
        self._servers: dict[int, tuple[Server, Source]] = {}
        self._ready_made: dict[tuple[str, int], Source] = {}

    def prepare(self) -> None:
        """Load the model."""
        self._model = lab.load(self._source)
        backends.warmup("bfloat16")

    async def on_prefill(self, ids: list[int]) -> dict[str, Any]:
        """Compute keys and values of all tokens, rounded to bfloat16, with all processors."""
        self._ready_made.clear()
        only_cpu(None)
        begin = time.monotonic()
        self._tensors = await asyncio.to_thread(self._compute, ids)
        only_cpu(1)
        return {"seconds": time.monotonic() - begin, "tokens": len(ids)}

    def _compute(self, ids: list[int]) -> dict[str, Array]:
        import torch

        only_cpu(None)
        cache = lab.empty_cache()
        for begin in range(0, len(ids), _CHUNK):
            self._model.forward(torch.tensor([ids[begin : begin + _CHUNK]]), cache, keep=1)
        return {
            f"layer.{number}.{kind}": getattr(layer, f"{kind}s").to(torch.bfloat16)
            for number, layer in enumerate(cache.layers)
            for kind in ("key", "value")
        }

    async def on_serve(self, run: int, tokens: int, job: dict[str, Any]) -> dict[str, Any]:
        """Listen, and send the cache of the first tokens to whoever asks for ``cache``."""
        if not self._tensors:
            raise RuntimeError("there is no cache to send yet")
        wanted = Job(**job)
        source = self._of(wanted, tokens)
        bucket = None if wanted.rate is None else TokenBucket(wanted.rate)
        server = serve({"cache": source}, bucket=bucket)
        await server.__aenter__()
        self._servers[run] = server, source
        return {"port": server.port}

    def _of(self, job: Job, tokens: int) -> Source:
        """What is sent; what is encoded before is kept, a source that encodes while it sends is made anew."""
        key = job.method, tokens
        if key in self._ready_made:
            return self._ready_made[key]
        parts = {name: tensor[:, :, :tokens] for name, tensor in self._tensors.items()}
        source = methods.of(job).source(parts, self._encoded)
        if isinstance(source, EncodedSource):
            self._ready_made[key] = source
        return source

    def _encoded(self, name: str, begin: float, end: float) -> None:
        self.tell("encoded", name=name, begin=begin, end=end)

    async def on_stop(self, run: int) -> None:
        """Listen no more for a run."""
        found = self._servers.pop(run, None)
        if found is not None:
            server, source = found
            await server.close()
            if source not in self._ready_made.values():
                await asyncio.to_thread(source.close)


if __name__ == "__main__":
    start(Prefill(sys.argv[1] or None))
