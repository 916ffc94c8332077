"""The third level of SGLang's hierarchical cache (HiCache) in a folder or an object store.

SGLang loads :class:`LynxqHiCacheStorage` by its path, as a "dynamic" storage backend. Tested with the pools and the
page functions of SGLang 0.5.23; the page "SGLang" of the documentation tells how to use it and what it promises.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, get_args

import lynxq
from lynxq import dtypes
from lynxq.arguments import shown
from lynxq.codec import decode
from lynxq.container import Expect
from lynxq.encoded import Encoded
from lynxq.errors import (
    ContainerError,
    DTypeError,
    MissingResidualError,
    ParamsError,
    UnsupportedCacheError,
)
from lynxq.integrations import page_keys
from lynxq.integrations.stores import open_store
from lynxq.layout import Tier
from lynxq.libraries import absent
from lynxq.params import Params

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError as error:
    HiCacheStorage = absent("sglang", "sglang", error)

logger = logging.getLogger(__name__)

_SCHEME = "lynxq-sglang-1"
#: Axes of a page of the host pool in memory: k(eys and values), l(ayers), t(okens), h(eads), d(imensions).
_ORDERS = {"layer_first": "klthd", "page_first": "ktlhd", "page_first_direct": "klthd", "page_head": "khtld"}
_STORED = "klthd"


class LynxqHiCacheStorage(HiCacheStorage):
    """Stores pages of the host pool as lynxq containers, whatever the pool's layout.

    Parameters
    ----------
    storage_config : sglang HiCacheStorageConfig
        Its `extra_config` has `store`, a folder or an fsspec URL, and optionally `tier` ("full" or "anchor"),
        `key_params` and `value_params` (changes to the presets).
    kwargs : mapping, optional
        What SGLang's factory passes on; not used.

    Raises
    ------
    MissingLibraryError
        If SGLang is not installed.
    ParamsError
        If an option is wrong.
    UnsupportedCacheError
        If the cache is split in a way that is not handled.
    """

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        options = storage_config.extra_config or {}
        self._tier: Tier = options.get("tier", "full")
        if self._tier not in get_args(Tier):
            raise ParamsError(f"tier must be one of {get_args(Tier)}, got {shown(self._tier)}")
        if storage_config.should_split_heads or storage_config.dcp_size != 1:
            raise UnsupportedCacheError("lynxq stores pages of whole ranks: no tp_lcm_size, and dcp_size 1")
        self._params = {
            "key": _changed(Params.keys(), options, "key_params"),
            "value": _changed(Params.values(), options, "value_params"),
        }
        self._config = storage_config
        self._store = open_store(options.get("store"))
        self._identity = ""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the host pool whose pages are stored.

        Parameters
        ----------
        mem_pool_host : sglang HostKVCache

        Raises
        ------
        DTypeError
            If its pages are not float32, float16 or bfloat16.
        UnsupportedCacheError
            If its pages are of a form that is not handled.
        """
        super().register_mem_pool_host(mem_pool_host)
        pool, config = mem_pool_host, self._config
        name = str(pool.dtype).removeprefix("torch.")
        if name not in dtypes.BY_NAME:
            raise DTypeError(f"the host pool must be of {', '.join(dtypes.BY_NAME)} for lynxq, got {name}")
        if pool.layout not in _ORDERS or pool.storage_format_tag is not None or pool.stores_page_envelope:
            raise UnsupportedCacheError(f"lynxq does not store pages of the layout {shown(pool.layout)}")
        page = pool.get_data_page(0, flat=False)
        latent = config.is_mla_model
        heads, dim = (1, pool.kv_cache_dim) if latent else (pool.head_num, pool.head_dim)
        sizes = {"k": 1 if latent else 2, "l": pool.layer_num, "t": pool.page_size, "h": heads, "d": dim}
        self._memory = [sizes[axis] for axis in _ORDERS[pool.layout]]
        self._axes = [_ORDERS[pool.layout].index(axis) for axis in _STORED]
        if [size for size in page.shape if size > 1] != [size for size in self._memory if size > 1]:
            raise UnsupportedCacheError(
                f"pages of the layout {pool.layout!r} must be {self._memory}, got {list(page.shape)}"
            )
        self._names = ["latent"] if latent else ["key", "value"]
        self._expect: dict[str, Any] = {
            "names": self._names,
            "dtype": name,
            "shapes": dict.fromkeys(self._names, (pool.layer_num, pool.page_size, heads, dim)),
            "params": {each: self._params.get(each, self._params["key"]) for each in self._names},
        }
        self._identity = page_keys.root(_SCHEME, self._described(sizes, name)).hex()[:32]

    def _described(self, sizes: Mapping[str, int], dtype: str) -> dict[str, object]:
        """What pages depend on besides the tokens that SGLang's key is a hash of. A latent is the same on all ranks."""
        config = self._config
        ranks = [] if config.is_mla_model else [config.tp_rank, config.tp_size]
        return {
            "model": config.model_name,
            "ranks": [*ranks, config.pp_rank, config.pp_size, config.attn_cp_rank, config.attn_cp_size],
            "sizes": dict(sizes),
            "dtype": dtype,
            "tier": self._tier,
            "params": {name: self._expect["params"][name].to_json() for name in self._names},
        }

    # --- what SGLang calls ---------------------------------------------------------------------------------

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._store.contains(self._name(key))

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store a flat page; False if that failed."""
        return self._write(key, value, 0)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fill a flat page and return it; None if the page is not stored, or damaged."""
        return target_location if self._read(key, target_location) else None

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store flat pages; False if one failed."""
        return all(self.set(key, value) for key, value in zip(keys, values, strict=True))

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Fill flat pages; None for those that are not stored, or damaged."""
        return [self.get(key, target) for key, target in zip(keys, target_locations, strict=True)]

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of the host pool, without a flat copy."""
        before = getattr(extra_info, "prefix_keys", None)
        size = self.mem_pool_host.page_size
        first = [0 if before is None else (len(before) + number) * size for number in range(len(keys))]
        pages = self._pages(keys, host_indices)
        return [self._write(key, page, token) for key, page, token in zip(keys, pages, first, strict=True)]

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Fill pages of the host pool in place; a page that is not stored, or damaged, is not touched."""
        return [self._read(key, page) for key, page in zip(keys, self._pages(keys, host_indices), strict=True)]

    # --- pages ---------------------------------------------------------------------------------------------

    def _pages(self, keys: Sequence[str], host_indices: Any) -> list[Any]:
        """Views of pages of the host pool."""
        size = self.mem_pool_host.page_size
        starts = [int(host_indices[number * size]) for number in range(len(keys))]
        return [self.mem_pool_host.get_data_page(start, flat=False) for start in starts]

    def _name(self, key: str) -> str:
        return f"{key}-{self._identity}"

    def _parts(self, page: Any) -> dict[str, Any]:
        """Views of a page: keys and values, or the latent, of shape (layers, tokens, heads, dimensions)."""
        return dict(zip(self._names, page.view(self._memory).permute(self._axes), strict=True))

    def _write(self, key: str, page: Any, first_token: int) -> bool:
        """Sinks are tokens of the sequence's beginning; a page whose place is not known keeps its first ones too."""
        try:
            if self.exists(key):
                return True
            tensors: dict[str, Encoded] = {}
            for name, part in self._parts(page).items():
                encoded = lynxq.encode(part, self._expect["params"][name], token_axis=1, first_token=first_token)
                tensors[name] = encoded if self._tier == "full" else encoded.anchor_only()
            buffer = BytesIO()
            lynxq.save(buffer, tensors, metadata=self._metadata(key))
            self._store.write(self._name(key), buffer.getvalue())
        except Exception as error:  # noqa: BLE001 - stores have errors of their own, and none may stop the engine
            logger.warning("lynxq: page %s is not saved: %s", key, error)
            return False
        return True

    def _read(self, key: str, page: Any) -> bool:
        """Everything is read and checked before the page is touched."""
        try:
            with (
                self._store.open(self._name(key)) as source,
                lynxq.open(source, expect=Expect(metadata=self._metadata(key), **self._expect)) as reader,
            ):
                tensors = {name: reader[name].encoded(self._tier).to("torch") for name in self._names}
            for name, part in self._parts(page).items():
                decode(tensors[name], self._tier, out=part)
        except FileNotFoundError:
            return False
        except (ContainerError, MissingResidualError) as error:
            logger.warning("lynxq: page %s is damaged and is deleted: %s", key, error)
            self._delete(key)
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("lynxq: page %s cannot be loaded: %s", key, error)
        else:
            return True
        return False

    def _delete(self, key: str) -> None:
        """Remove a damaged page, so that it is stored again and not found damaged for ever."""
        try:
            self._store.delete(self._name(key))
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("lynxq: page %s cannot be deleted: %s", key, error)

    def _metadata(self, key: str) -> dict[str, str]:
        return {"key": key, "identity": self._identity}


def _changed(preset: Params, options: Mapping[str, Any], name: str) -> Params:
    """A preset with the changes that an option asks for."""
    changes = options.get(name, {})
    if not isinstance(changes, Mapping):
        raise ParamsError(f"{name} must be a mapping of parameters, got {shown(changes)}")
    return Params.from_dict({**preset.to_dict(), **changes})
