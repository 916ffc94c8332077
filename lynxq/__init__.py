"""lynxq: progressive compression of KV caches (anchor first, residual later).

The public surface is what this module names; :mod:`lynxq.metrics`, :mod:`lynxq.baselines`,
:mod:`lynxq.backends` and :mod:`lynxq.errors` are imported on demand.
"""

import sys

if sys.byteorder != "little":
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
from lynxq.params import Params

__version__ = "0.1.0"

__all__ = [
    "Encoded",
    "Expect",
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
