"""What the paged cache of a model is like, and how its pages are coded; what cannot be handled is refused here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from lynxq import dtypes
from lynxq.arguments import integer, shown
from lynxq.errors import DTypeError, ParamsError, ShapeError, UnsupportedCacheError
from lynxq.integrations import page_keys
from lynxq.layout import Tier
from lynxq.params import MAX_PAGE, Params

_SCHEME = "lynxq-vllm-1"
_OPTIONS = ("store", "tier", "page_tokens", "model", "key_params", "value_params")


@dataclass(frozen=True)
class Part:
    """A range of the channels of a layer's cache that is coded as one tensor: keys, values, or an MLA latent."""

    name: str
    start: int
    stop: int
    params: Params


@dataclass(frozen=True)
class Geometry:
    """The cache of one rank, and how it is coded.

    Attributes
    ----------
    layers : tuple of str
        Names of the layers, as the engine has them.
    heads : int
        KV heads of one rank; 1 for MLA.
    parts : tuple of Part
        What a layer's channels are.
    dtype : str
        Of the cache.
    block_size : int
        Tokens of a block of the scheduler.
    page_tokens : int
        Tokens that are stored and found together; a multiple of `block_size`.
    tier : {"full", "anchor"}
        What is stored and loaded.
    shards : int
        Ranks, each of which stores its own heads.
    root : bytes
        Where the chain of keys begins.
    """

    layers: tuple[str, ...]
    heads: int
    parts: tuple[Part, ...]
    dtype: str
    block_size: int
    page_tokens: int
    tier: Tier
    shards: int
    root: bytes

    @property
    def channels(self) -> int:
        """Channels of a layer's cache for one head and token."""
        return self.parts[-1].stop

    @property
    def page_blocks(self) -> int:
        """Blocks of the scheduler in a page."""
        return self.page_tokens // self.block_size

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Shapes of the tensors of a stored page."""
        return {
            f"{layer}.{part.name}": (self.page_tokens, self.heads, part.stop - part.start)
            for layer in self.layers
            for part in self.parts
        }

    @property
    def params(self) -> dict[str, Params]:
        """Parameters of the tensors of a stored page."""
        return {f"{layer}.{part.name}": part.params for layer in self.layers for part in self.parts}

    def blob(self, key: str, shard: int) -> str:
        """Name under which a rank's part of a page is stored."""
        return f"{key}-{shard}of{self.shards}"

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any) -> Geometry:
        """The geometry that an engine's configuration describes.

        Parameters
        ----------
        vllm_config : vllm.config.VllmConfig
            With the connector's options in ``kv_transfer_config.kv_connector_extra_config``.
        kv_cache_config : vllm.v1.kv_cache_interface.KVCacheConfig

        Raises
        ------
        ParamsError, ShapeError, DTypeError
            If an option is wrong.
        UnsupportedCacheError
            If the cache is of a kind that the connector does not handle.
        """
        options = _options(vllm_config)
        _check_parallel(vllm_config)
        group = _only_group(kv_cache_config)
        spec = group.kv_cache_spec
        dtype = _dtype(spec, str(vllm_config.cache_config.cache_dtype))
        page_tokens = _page_tokens(options.get("page_tokens", 256), spec.block_size)
        tier = options.get("tier", "full")
        if tier not in get_args(Tier):
            raise ParamsError(f"tier must be one of {get_args(Tier)}, got {shown(tier)}")
        parts = _parts(spec, options, page_tokens)
        shards = int(vllm_config.parallel_config.tensor_parallel_size)
        identity = {
            "model": _model(vllm_config.model_config, options.get("model")),
            "layers": list(group.layer_names),
            "heads": spec.num_kv_heads,
            "parts": [[part.name, part.start, part.stop, part.params.to_json()] for part in parts],
            "dtype": dtype,
            "page_tokens": page_tokens,
            "tier": tier,
            "shards": shards,
        }
        return cls(
            tuple(group.layer_names),
            spec.num_kv_heads,
            parts,
            dtype,
            spec.block_size,
            page_tokens,
            tier,
            shards,
            page_keys.root(_SCHEME, identity),
        )


def _options(vllm_config: Any) -> Mapping[str, Any]:
    options: Mapping[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
    for name in options:
        if name not in _OPTIONS:
            raise ParamsError(f"an option in kv_connector_extra_config must be one of {_OPTIONS}, got {shown(name)}")
    return options


def _check_parallel(vllm_config: Any) -> None:
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(vllm_config.parallel_config, name)
        if size != 1:
            raise UnsupportedCacheError(f"{name} must be 1 for lynxq, got {size}")
    if vllm_config.speculative_config is not None:
        # A draft model's cache lags behind the tokens, and drafted tokens may be taken back.
        raise UnsupportedCacheError("lynxq does not store caches of engines that decode speculatively")


def _only_group(kv_cache_config: Any) -> Any:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise UnsupportedCacheError(f"lynxq stores caches with one group of layers, got {len(groups)}: {kinds}")
    spec = groups[0].kv_cache_spec
    # Exact classes: what derives from them adds rules about which tokens are kept. Models that mix full and
    # sliding-window layers come as FullAttentionSpec, because vLLM then keeps all tokens of all layers.
    if type(spec).__name__ not in {"FullAttentionSpec", "MLAAttentionSpec"}:
        raise UnsupportedCacheError(f"lynxq stores caches of full attention and of MLA, got {type(spec).__name__}")
    if spec.num_head_slots is not None or spec.state_content_bytes is not None or spec.tokens_per_state != 1:
        raise UnsupportedCacheError(
            "lynxq stores a plain value for every head, channel and token, this cache is packed"
        )
    return groups[0]


def _dtype(spec: Any, cache_dtype: str) -> str:
    name = str(spec.dtype).removeprefix("torch.")
    if int(spec.kv_quant_mode) or name not in dtypes.BY_NAME or getattr(spec, "cache_dtype_str", None) not in _PLAIN:
        raise DTypeError(f"kv_cache_dtype must be {', '.join(dtypes.BY_NAME)} for lynxq, got {cache_dtype!r} ({name})")
    return name


_PLAIN = {None, "auto", *dtypes.BY_NAME}


def _page_tokens(value: object, block_size: int) -> int:
    tokens = integer("page_tokens", value, 8, MAX_PAGE)
    if tokens % block_size:
        raise ShapeError(f"page_tokens must be a multiple of the block size {block_size}, got {tokens}")
    return tokens


def _parts(spec: Any, options: Mapping[str, Any], page_tokens: int) -> tuple[Part, ...]:
    """Keys and values, or the latent of MLA, which has no values of its own."""
    run = _divisor(page_tokens, 256)
    along = {"page": page_tokens, "range_size": run, "chunk": _divisor(run, 32)}
    key = Params.from_dict({**Params.keys().to_dict(), **along, **_changes(options, "key_params")})
    if not spec.head_size_v:
        return (Part("latent", 0, spec.head_size, key),)
    value = Params.from_dict({**Params.values().to_dict(), "page": page_tokens, **_changes(options, "value_params")})
    return (
        Part("key", 0, spec.head_size, key),
        Part("value", spec.head_size, spec.head_size + spec.head_size_v, value),
    )


def _divisor(number: int, limit: int) -> int:
    """The largest divisor up to a limit: the preset's run and chunk where they fit, or the nearest that do."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def _changes(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    changes = options.get(name, {})
    if not isinstance(changes, Mapping) or "page" in changes:
        raise ParamsError(f"{name} must be a mapping of parameters without 'page', got {shown(changes)}")
    return {str(key): value for key, value in changes.items()}


def _model(config: Any, name: object) -> list[object]:
    """What tells models apart: a name, and the settings that change values under one name."""
    if name is not None and not (isinstance(name, str) and name):
        raise ParamsError(f"model must be a name, got {shown(name)}")
    settings = config.hf_config.to_dict()
    for volatile in ("transformers_version", "_name_or_path"):
        settings.pop(volatile, None)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    named = [name] if name is not None else [config.model, config.revision]
    return [*named, str(config.dtype), config.quantization, digest]
