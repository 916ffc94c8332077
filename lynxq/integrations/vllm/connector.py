"""`LynxqConnector`: vLLM's connector interface, put in front of the planner and the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lynxq.integrations.stores import open_store
from lynxq.integrations.vllm.geometry import Geometry
from lynxq.integrations.vllm.plan import Plan
from lynxq.integrations.vllm.planner import Planner
from lynxq.integrations.vllm.worker import Worker
from lynxq.libraries import absent

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
        KVConnectorRole,
    )
except ImportError as error:
    KVConnectorBase_V1 = KVConnectorMetadata = absent("vllm", "vllm", error)


class StepMetadata(KVConnectorMetadata):
    """A plan in vLLM's envelope."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class LynxqConnector(KVConnectorBase_V1):
    """Keeps the KV cache of prompts in a folder or an object store, and finds it again by content.

    Made by vLLM, from its options::

        --kv-transfer-config '{"kv_connector": "LynxqConnector",
            "kv_connector_module_path": "lynxq.integrations.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"store": "/var/cache/lynxq"}}'

    Parameters
    ----------
    vllm_config : vllm.config.VllmConfig
        Its ``kv_connector_extra_config`` has `store`, a folder or an fsspec URL, and optionally `tier` ("full" or
        "anchor"), `page_tokens` (256), `model` (a name instead of the path), `key_params` and `value_params` (changes
        to the presets).
    role : vllm KVConnectorRole
    kv_cache_config : vllm.v1.kv_cache_interface.KVCacheConfig

    Raises
    ------
    MissingLibraryError
        If vLLM is not installed.
    ParamsError, ShapeError
        If an option is wrong.
    DTypeError, UnsupportedCacheError
        If the engine's cache is of a kind that lynxq does not store.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._cache_hit_source = CacheHitSource.DISK
        transfer = vllm_config.kv_transfer_config
        geometry = Geometry.of(vllm_config, kv_cache_config)
        store = open_store(transfer.kv_connector_extra_config.get("store"))
        self._planner: Planner | None = None
        self._worker: Worker | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._planner = Planner(
                geometry, store, further=_further, loads=transfer.is_kv_consumer, saves=transfer.is_kv_producer
            )
        else:
            from vllm.distributed import get_tensor_model_parallel_rank

            ranks = {} if geometry.shards == 1 else {"any_failed": _any_failed}
            self._worker = Worker(geometry, store, get_tensor_model_parallel_rank(), **ranks)

    @property
    def planner(self) -> Planner:
        """The scheduler's side."""
        assert self._planner is not None, "vLLM calls this in the scheduler only"  # noqa: S101
        return self._planner

    @property
    def worker(self) -> Worker:
        """The workers' side."""
        assert self._worker is not None, "vLLM calls this in workers only"  # noqa: S101
        return self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """False: what is not saved is only a later miss."""
        return False

    # --- in the scheduler ----------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens that are stored behind those that the engine has; they are loaded within a step."""
        return self.planner.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note which blocks are to be filled."""
        self.planner.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        """What the workers are to load and save in this step."""
        return StepMetadata(self.planner.step(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """Learn of loads that failed."""
        if connector_output.invalid_block_ids:
            self.planner.loads_failed()

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, Mapping[str, Any] | None]:
        """Forget the request; its blocks are free, because pages are coded before a step ends."""
        self.planner.finished(request.request_id)
        return False, None

    # --- in workers ----------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Take the caches of all layers."""
        self.worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load all layers, before the model runs."""
        self.worker.load(self._get_connector_metadata().plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: all layers are loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: pages are saved with all their layers, or not at all."""

    def wait_for_save(self) -> None:
        """Code the pages that the step has completed; they are written in the background."""
        self.worker.save(self._get_connector_metadata().plan)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that could not be loaded in this step."""
        return self.worker.take_failed()

    def shutdown(self) -> None:
        """Return when everything is written."""
        if self._worker is not None:
            self._worker.close()


def _further(request: Any, first: int, last: int) -> object:
    """What the values of some tokens depend on besides token ids: images, adapter, salt, embeddings."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

    return generate_block_hash_extra_keys(request, first, last, 0)[0]


def _any_failed(failed: bool) -> bool:
    """Whether a load failed on any rank of the tensor-parallel group."""
    import torch
    from vllm.distributed import get_tp_group

    flag = torch.tensor([int(failed)])
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=get_tp_group().cpu_group)
    return bool(flag.item())
