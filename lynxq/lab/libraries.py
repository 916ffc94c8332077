"""The libraries of the extra ``lab``, imported when they are used."""

from __future__ import annotations

from typing import Any

from lynxq.libraries import need

#: What to install for them.
EXTRA = "lynxq[lab]"


def torch() -> Any:
    """The module torch; raises `MissingLibraryError` where it is not installed."""
    return need("torch", EXTRA)


def transformers() -> Any:
    """The module transformers; raises `MissingLibraryError` where it is not installed."""
    return need("transformers", EXTRA)
