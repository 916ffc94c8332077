"""transformers' classes, or empty ones where it is missing: then our modules can be imported, but make no cache."""

from __future__ import annotations

from typing import Any

from lynxq.libraries import absent, need

__all__ = ["Cache", "DynamicCache", "DynamicLayer", "StaticLayer", "torch"]

_EXTRA = "lynxq[hf]"

try:
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
except ImportError as error:
    Cache = DynamicCache = DynamicLayer = StaticLayer = absent("transformers", _EXTRA, error)


def torch() -> Any:
    """The library torch; raises `MissingLibraryError` where it is not installed."""
    return need("torch", _EXTRA)
