"""Runs a vLLM engine with a tiny model as a JSON file says; the tests of the connector start it in its own environment.

The connectors in here take the place of `LynxqConnector` to look at what it does, with code of their own.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import lynxq
from lynxq.integrations.vllm import LynxqConnector
from lynxq.integrations.vllm.plan import Load, Save


def _rows(connector: LynxqConnector, cache: torch.Tensor, blocks: tuple[int, ...]) -> list[tuple[int, int]]:
    """Kernel block and slot of every token of some blocks of the scheduler, one by one."""
    size, slots = connector.worker._geometry.block_size, cache.shape[2]
    places = [block * size + token for block in blocks for token in range(size)]
    return [divmod(place, slots) for place in places]


class RecordingConnector(LynxqConnector):
    """Keeps what every page held when it was saved, in a folder beside the store."""

    def wait_for_save(self) -> None:
        for save in self._get_connector_metadata().plan.saves:
            self._record(save)
        super().wait_for_save()

    def _record(self, save: Save) -> None:
        caches, geometry = self.worker._caches, self.worker._geometry
        page: dict[str, Any] = {"first_token": save.first_token}
        for layer in geometry.layers:
            cache = caches[layer]
            rows = torch.stack([cache[block, :, slot] for block, slot in _rows(self, cache, save.blocks)])
            page |= {f"{layer}.{part.name}": rows[..., part.start : part.stop].clone() for part in geometry.parts}
        folder = Path(self._kv_transfer_config.kv_connector_extra_config["store"] + ".recorded")
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        torch.save(page, folder / f"{number:04}.{geometry.blob(save.key, self.worker._shard)}.pt")


def _reconstructed(connector: LynxqConnector, load: Load) -> Iterator[tuple[torch.Tensor, int, int, torch.Tensor]]:
    """What `lynxq.load` makes of a page's file, token by token: cache, block, slot and values."""
    geometry = connector.worker._geometry
    store = Path(connector._kv_transfer_config.kv_connector_extra_config["store"])
    (path,) = store.rglob(f"{geometry.blob(load.key, connector.worker._shard)}.lynx")
    tensors = lynxq.load(path, tier=geometry.tier, framework="torch")
    for layer in geometry.layers:
        cache = connector.worker._caches[layer]
        whole = torch.cat([tensors[f"{layer}.{part.name}"] for part in geometry.parts], dim=-1)
        for number, (block, slot) in enumerate(_rows(connector, cache, load.blocks)):
            yield cache, block, slot, whole[load.skip * geometry.block_size + number]


class ReferenceConnector(LynxqConnector):
    """Fills the cache with what `lynxq.load` makes of the files."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for load in chain.from_iterable(self._get_connector_metadata().plan.loads):
            for cache, block, slot, values in _reconstructed(self, load):
                cache[block, :, slot] = values


class CheckingConnector(LynxqConnector):
    """Compares the cache with what `lynxq.load` makes of the files, after every load."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        for load in chain.from_iterable(self._get_connector_metadata().plan.loads):
            for cache, block, slot, values in _reconstructed(self, load):
                assert torch.equal(cache[block, :, slot], values)


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(order: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    messages = _Messages()
    logging.getLogger("lynxq").addHandler(messages)
    logging.getLogger("lynxq").setLevel(logging.INFO)
    connector = order.get("connector")
    if connector is not None:
        module = "lynxq.integrations.vllm" if connector["kv_connector"] == "LynxqConnector" else "vllm_engine"
        connector = KVTransferConfig(kv_connector_module_path=module, **connector)
    engine = LLM(kv_transfer_config=connector, **order["engine"])
    sampling = SamplingParams(temperature=0.0, max_tokens=order["tokens"], logprobs=1, ignore_eos=True)
    result: dict[str, Any] = {"batches": []}
    for batch in order["batches"]:
        outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in batch], sampling, use_tqdm=False)
        result["batches"].append(
            [
                {
                    "tokens": list(output.outputs[0].token_ids),
                    "logprobs": [next(iter(row.values())).logprob for row in output.outputs[0].logprobs or ()],
                    "cached": output.num_cached_tokens,
                    "finish": output.outputs[0].finish_reason,
                }
                for output in outputs
            ]
        )
    if has_kv_transfer_group():
        worker = get_kv_transfer_group().worker  # type: ignore[attr-defined]
        worker.close()
        result["counters"] = dict(worker.counters)
        result["layout"] = [[list(cache.shape), list(cache.stride())] for cache in worker._caches.values()]
    result["messages"] = messages.lines
    return result


if __name__ == "__main__":
    outcome = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(outcome))
