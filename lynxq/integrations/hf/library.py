"""transformers' classes, or empty ones where it is missing: then our modules can be imported, but make no cache."""

from __future__ import annotations

from typing import Any

from lynxq.errors import MissingLibraryError

try:
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer
except ImportError as _error:
    _missing: ImportError | None = _error
    Cache = DynamicLayer = DynamicCache = StaticLayer = type("Missing", (), {})
else:
    _missing = None

__all__ = ["Cache", "DynamicCache", "DynamicLayer", "StaticLayer", "torch"]


def torch() -> Any:
    """The library torch, where transformers' caches are there too; raises `MissingLibraryError` otherwise."""
    if _missing is not None:
        raise MissingLibraryError(
            f"caches of transformers need torch and transformers 5: pip install 'lynxq[hf]' ({_missing})"
        ) from _missing
    import torch as library

    return library
