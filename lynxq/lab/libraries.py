"""Libraries of the extra ``lab``, imported when they are used, with an error that names what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lynxq.errors import MissingLibraryError


def torch() -> Any:
    """The module torch; raises `MissingLibraryError` where it is not installed."""
    return need("torch", "lab")


def transformers() -> Any:
    """The module transformers; raises `MissingLibraryError` where it is not installed."""
    return need("transformers", "lab")


def need(name: str, extra: str) -> Any:
    """Import a module; raises `MissingLibraryError`, which names the extra that brings it, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        missing = error.name or name
        raise MissingLibraryError(
            f"{missing.partition('.')[0]} is not installed: pip install 'lynxq[{extra}]'", name=missing
        ) from error
