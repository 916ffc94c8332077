"""Moves pages of SGLang's own host pools through a storage backend; the test starts it in its own environment.

Everything but the tensors is SGLang's: its factory makes the backend, and the functions of its cache controller that
carry pages between the host pool and the storage call it.
"""

from __future__ import annotations

import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def without_torchvision() -> None:
    """An empty torchvision, which SGLang imports for images: its wheels do not load beside torch for the CPU."""
    import transformers.utils

    assert not transformers.utils.is_torchvision_available()
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.io"):
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None)
        module.InterpolationMode = SimpleNamespace(BICUBIC=3, BILINEAR=2, NEAREST=0)  # type: ignore[attr-defined]
        sys.modules[name] = module


LAYERS, HEADS, DIM, PAGE = 3, 2, 24, 16


def host_pool(layout: str, dtype: str, tokens: int = 8 * PAGE) -> Any:
    """A host pool of SGLang, of a device pool whose memory is the CPU's."""
    from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    kind = getattr(torch, dtype)
    buffers = [tuple(torch.zeros(tokens, HEADS, DIM, dtype=kind) for _ in range(LAYERS)) for _ in "kv"]
    pointers = [torch.tensor([each.data_ptr() for each in side], dtype=torch.int64) for side in buffers]
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=buffers[0],
            v=buffers[1],
            k_data_ptrs=pointers[0],
            v_data_ptrs=pointers[1],
            layout=KVBufferLayout.NHD,
        ),
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=DIM,
        dtype=kind,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=tokens,
        start_layer=0,
        end_layer=LAYERS,
        host_token_capacity=tokens,
    )


def controller(pool: Any, options: dict[str, Any], *, rank: int = 0, model: str = "toy") -> Any:
    """What the page functions of the cache controller need of it, with a backend that SGLang's factory made."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    config = HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=2,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=False,
        is_page_first_layout=pool.layout == "page_first",
        model_name=model,
        extra_config={
            "backend_name": "lynxq",
            "module_path": "lynxq.integrations.sglang",
            "class_name": "LynxqHiCacheStorage",
            **options,
        },
    )
    backend = StorageBackendFactory.create_backend("dynamic", config, pool)
    backend.register_mem_pool_host(pool)
    return SimpleNamespace(storage_backend=backend, storage_host_pool=pool, page_size=PAGE)


def move(order: dict[str, Any]) -> dict[str, Any]:
    """Save some pages from one pool and load them into another, of another layout if so ordered."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    source, target = (host_pool(order[side], order["dtype"]) for side in ("from", "to"))
    generator = torch.Generator().manual_seed(0)
    for start in range(0, 8 * PAGE, PAGE):
        page = _canonical(source, start)
        page.copy_(torch.randn(page.shape, generator=generator))
    target.kv_buffer.fill_(777.0)
    before = source.kv_buffer.clone()
    writer = controller(source, order["options"])
    reader = controller(target, order["options"], **order.get("reader", {}))
    names = [f"{number:064x}" for number in range(1, 1 + len(order["pages"]))]
    indices = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in order["pages"]])
    into = torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in order["into"]])
    extra = HiCacheStorageExtraInfo(prefix_keys=order.get("prefix"))
    cls, zero_copy = HiCacheController, order["zero_copy"]
    put = cls._page_set_zero_copy if zero_copy else cls._generic_page_set
    take = cls._page_get_zero_copy if zero_copy else cls._generic_page_get
    found = {"hits before": writer.storage_backend.batch_exists(names)}
    found["saved"] = put(writer, names, indices, extra)
    for action in order.get("damage", []):
        path = next(Path(order["options"]["store"]).rglob(f"{names[action]}*.lynx"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    found["hits"] = reader.storage_backend.batch_exists(names)
    operation = SimpleNamespace(request_id="r", is_terminated=lambda: False)
    found["loaded"] = take(reader, operation, names, into, extra)
    found["hits after"] = reader.storage_backend.batch_exists(names)
    pools = {"source": source, "target": target}
    pages = {
        side: torch.stack([_canonical(pool, start) for start in range(0, 8 * PAGE, PAGE)])
        for side, pool in pools.items()
    }
    assert torch.equal(source.kv_buffer, before)
    torch.save(pages, order["result"])
    return found


def _canonical(pool: Any, start: int) -> torch.Tensor:
    """A view of a page as (keys and values, layers, tokens, heads, dimensions)."""
    page = pool.get_data_page(start, flat=False)
    if pool.layout in {"page_first_direct", "page_head"}:
        page = page[:, 0]
    if pool.layout == "page_first":
        page = page.transpose(1, 2)
    return page.transpose(1, 3) if pool.layout == "page_head" else page


def refused(order: dict[str, Any]) -> list[str]:
    """What each wrong configuration is told."""
    said = []
    for case in order["refused"]:
        try:
            controller(host_pool(case.get("layout", "layer_first"), case.get("dtype", "bfloat16")), case["options"])
        except Exception as error:  # noqa: BLE001
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append("accepted")
    return said


if __name__ == "__main__":
    without_torchvision()
    orders = json.loads(Path(sys.argv[1]).read_text())
    results = [refused(order) if "refused" in order else move(order) for order in orders]
    Path(sys.argv[2]).write_text(json.dumps(results))
