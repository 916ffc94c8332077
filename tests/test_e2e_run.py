"""What a run does when something goes wrong in its own process."""

import asyncio

import pytest

from lynxq import lab
from lynxq.e2e import Job, methods
from lynxq.e2e.pace import Costs
from lynxq.e2e.run import Run, shapes_for
from lynxq.stream.tcp import serve
from tests import tiny_model

TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return lab.load(str(tiny_model.save(tmp_path_factory.mktemp("model"))))


@pytest.mark.parametrize("name", ["int8", "lynx"])
def test_whatever_filling_raises_ends_the_run(model, name, monkeypatch):
    """Not only errors of lynxq: generation must not wait for what nobody puts into the cache."""
    import torch

    job = Job(method=name, prompt_tokens=TOKENS + 1, new_tokens=4, cap=4)
    method = methods.of(job)

    def broken(self, shapes):
        def fill(cache, transfer, ready):
            raise RuntimeError("no memory")

        return fill

    monkeypatch.setattr(type(method), "fill", broken)
    tensors = {n: torch.zeros(shape, dtype=torch.bfloat16) for n, shape in shapes_for(model, TOKENS).items()}

    async def main():
        running = Run(model, method, job, last=1, costs=Costs(0.01, 0.001), tell=lambda *_, **__: None)
        source = method.source(tensors, lambda *_: None)
        async with asyncio.timeout(60), serve({"cache": source}) as server:
            return await running.go("127.0.0.1", server.port)

    outcome = asyncio.run(main())
    assert "RuntimeError: no memory" in outcome.error
    assert outcome.tokens == []
