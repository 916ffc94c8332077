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
from lynxq.baselines.integer import GroupedInteger, PerTensorInteger
from lynxq.baselines.sinks import WithSinks
from lynxq.errors import ParamsError

__all__ = [
    "SCHEMES",
    "BFloat16",
    "CodedBaseline",
    "Context",
    "GroupedInteger",
    "Parts",
    "PerTensorInteger",
    "Scheme",
    "WithSinks",
    "get",
]

_SCHEMES: tuple[Scheme, ...] = (
    BFloat16(),
    PerTensorInteger(8),
    *(GroupedInteger(8, granularity) for granularity in ("token", "channel", 32, 64, 128)),
    PerTensorInteger(4),
    *(GroupedInteger(4, granularity) for granularity in ("token", "channel", 32, 64, 128)),
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
