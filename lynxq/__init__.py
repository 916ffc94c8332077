"""lynxq: progressive compression of KV caches (anchor first, residual later).

The public surface is what this module names. The submodules that `_SUBMODULES` lists are public too, and imported when
first used; so is the function `calibrate`.
"""

import sys as _sys

if _sys.byteorder != "little":
    raise ImportError("lynxq needs a little-endian machine: streams are written as they lie in memory")

from lynxq.bounds import error_bound
from lynxq.codec import decode_anchor, decode_full, encode
from lynxq.container import (
    Expect,
    Reader,
    StoredTensor,
    Writer,
    append,
    describe,
    load,
    open,  # noqa: A004
    save,
    save_split,
)
from lynxq.encoded import Encoded
from lynxq.errors import LynxqError
from lynxq.layout import Layout
from lynxq.params import Params

__version__ = "0.1.0"

__all__ = [
    "Encoded",
    "Expect",
    "Layout",
    "LynxqError",
    "Params",
    "Reader",
    "StoredTensor",
    "Writer",
    "append",
    "decode_anchor",
    "decode_full",
    "describe",
    "encode",
    "error_bound",
    "load",
    "open",
    "save",
    "save_split",
]

_SUBMODULES = (
    "backends",
    "baselines",
    "calibration",
    "e2e",
    "errors",
    "evaluate",
    "integrations",
    "lab",
    "latency",
    "metrics",
    "naming",
    "paged",
    "plots",
    "speculative",
    "stream",
    "synthetic",
    "testing",
)


def __getattr__(name: str) -> object:
    """Import a public submodule when it is first used."""
    if name == "calibrate":
        from lynxq.calibration import calibrate

        return calibrate
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"lynxq.{name}")
    raise AttributeError(f"module 'lynxq' has no attribute {name!r}")
