"""Published schemes to compare with, all behind one interface and with every stored byte counted.

To add one, write a module with a :class:`Scheme`, cite its paper there, and put an instance into `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lynxq.baselines.base import CodedBaseline, Parts, Scheme
from lynxq.baselines.bf16 import BFloat16
from lynxq.baselines.integer import PerTensorInteger
from lynxq.errors import ParamsError

__all__ = ["SCHEMES", "BFloat16", "CodedBaseline", "Parts", "PerTensorInteger", "Scheme", "get"]

#: Every scheme with its published settings, by name, in the order of tables.
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {scheme.name: scheme for scheme in (BFloat16(), PerTensorInteger(8), PerTensorInteger(4))}
)


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
