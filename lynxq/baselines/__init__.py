"""Published schemes to compare with, all behind one interface and with every stored byte counted.

To add one, write a module with a :class:`Scheme`, cite its paper there, and put an instance into `SCHEMES`.

SparQ (arXiv 2312.04985) and Scissorhands (arXiv 2305.17118) are not here. Which values SparQ reads, and which tokens
Scissorhands keeps, depends on queries or on attention weights, which are not part of a cache. SparQ stores the cache
in full, twice for keys. And a token that is dropped leaves the softmax, which no reconstructed tensor expresses: zeros
in its place would still draw attention. To report what they move and lose takes a model, not a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lynxq.baselines.base import CodedBaseline, Context, Parts, Scheme
from lynxq.baselines.bf16 import BFloat16
from lynxq.baselines.cachegen import CacheGen
from lynxq.baselines.cachegen_lmcache import CacheGenLMCache
from lynxq.baselines.floats import Float8, NormalFloat4
from lynxq.baselines.integer import GroupedInteger, PerTensorInteger
from lynxq.baselines.kivi import Kivi
from lynxq.baselines.kvquant import KVQuant
from lynxq.baselines.lynx import LynxInt4, LynxInt8
from lynxq.baselines.sinks import WithSinks
from lynxq.baselines.turboquant import TurboQuant
from lynxq.errors import ParamsError

__all__ = [
    "SCHEMES",
    "BFloat16",
    "CacheGen",
    "CacheGenLMCache",
    "CodedBaseline",
    "Context",
    "Float8",
    "GroupedInteger",
    "KVQuant",
    "Kivi",
    "LynxInt4",
    "LynxInt8",
    "NormalFloat4",
    "Parts",
    "PerTensorInteger",
    "Scheme",
    "TurboQuant",
    "WithSinks",
    "get",
]

_SCHEMES: tuple[Scheme, ...] = (
    BFloat16(),
    PerTensorInteger(8),
    *(GroupedInteger(8, granularity) for granularity in ("token", "channel", 32, 64, 128)),
    PerTensorInteger(4),
    *(GroupedInteger(4, granularity) for granularity in ("token", "channel", 32, 64, 128)),
    LynxInt8(),
    LynxInt8("anchor"),
    LynxInt4(),
    CacheGen(),
    CacheGenLMCache(),
    Kivi(4),
    Kivi(4, window=0),
    WithSinks(Kivi(4, window=0)),
    Kivi(2),
    KVQuant(),
    WithSinks(KVQuant(), 1),
    TurboQuant(4),
    TurboQuant(3),
    NormalFloat4(),
    Float8(),
    Float8(scaled=False),
)

#: Every scheme with its published settings, by name, in the order of tables.
SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in _SCHEMES})


def get(name: str) -> Scheme:
    """The scheme of a name.

    Raises
    ------
    ParamsError
        If there is none of that name.

    Examples
    --------
    >>> from lynxq import baselines
    >>> baselines.get("int8").title
    'INT8 per tensor'
    """
    if name not in SCHEMES:
        raise ParamsError(f"baseline must be one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]
