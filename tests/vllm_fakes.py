"""Configurations and requests with the attributes that the connector reads of vLLM's; the slow tests use vLLM's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from lynxq.integrations.vllm.geometry import Geometry


class FullAttentionSpec(SimpleNamespace):
    """As vLLM's for what the connector asks of it."""


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec(FullAttentionSpec):
    pass


def spec(kind: type[FullAttentionSpec] = FullAttentionSpec, **changes: Any) -> FullAttentionSpec:
    values = {
        "block_size": 16,
        "num_kv_heads": 2,
        "head_size": 24,
        "head_size_v": 16,
        "dtype": torch.bfloat16,
        "kv_quant_mode": 0,
        "num_head_slots": None,
        "state_content_bytes": None,
        "tokens_per_state": 1,
    }
    return kind(**{**values, **changes})


def config(
    options: dict[str, Any] | None = None, *, model: dict[str, Any] | None = None, **parallel: Any
) -> SimpleNamespace:
    sizes = dict.fromkeys(
        (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "decode_context_parallel_size",
            "prefill_context_parallel_size",
        ),
        1,
    )
    speculative = parallel.pop("speculative_config", None)
    settings = {"hidden_size": 128, **(model or {})}
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"store": "unused", **(options or {})}),
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        speculative_config=speculative,
        model_config=SimpleNamespace(
            model="toy",
            revision=None,
            dtype=torch.bfloat16,
            quantization=None,
            hf_config=SimpleNamespace(to_dict=lambda: dict(settings)),
        ),
    )


def cache_config(*specs: FullAttentionSpec, layers: int = 2) -> SimpleNamespace:
    groups = [
        SimpleNamespace(layer_names=[f"layers.{n}.attn" for n in range(layers)], kv_cache_spec=each)
        for each in specs or (spec(),)
    ]
    return SimpleNamespace(kv_cache_groups=groups)


def geometry(options: dict[str, Any] | None = None, *specs: FullAttentionSpec, **parallel: Any) -> Geometry:
    return Geometry.of(config({"page_tokens": 64, **(options or {})}, **parallel), cache_config(*specs))


def request(tokens: list[int], name: str = "r", *, generated: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=name,
        all_token_ids=[*tokens, *[9] * generated],
        num_prompt_tokens=len(tokens),
        num_tokens=len(tokens) + generated,
    )


def step(
    new: dict[str, tuple[list[int], int, int]] | None = None,
    cached: dict[str, tuple[list[int] | None, int, int]] | None = None,
    resumed: tuple[str, ...] = (),
) -> SimpleNamespace:
    """A SchedulerOutput: request -> (new blocks, tokens computed before, tokens scheduled)."""
    new, cached = new or {}, cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
            for name, (blocks, computed, _) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[None if blocks is None else (blocks,) for blocks, _, _ in cached.values()],
            num_computed_tokens=[computed for _, computed, _ in cached.values()],
        ),
        num_scheduled_tokens={name: count for name, (_, _, count) in {**new, **cached}.items()},
    )
