"""Which PTX operations give the same bits on every machine."""

from __future__ import annotations

import re
from collections import Counter

#: Correctly rounded only if they say so; without `.rn` an assembler may also contract them.
_ROUNDED = {"add", "sub", "mul", "div", "sqrt", "rcp"}
_NEVER = {"fma", "mad", "ex2", "lg2", "sin", "cos", "tanh", "rsqrt"}
_FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"}
_OPERATION = re.compile(r"^\s*(?:\{\s*)?(?:@!?%p\d+\s+)?([a-z]\w*(?:\.\w+)+)\s", re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(.*?(?=\.entry\s|\Z)", re.DOTALL)


def inexact(operation: str) -> bool:
    """Whether a PTX operation such as ``add.rn.f32`` may differ in bits from IEEE arithmetic.

    Examples
    --------
    >>> [inexact(op) for op in ("add.rn.f32", "add.f32", "fma.rn.f32", "add.rn.ftz.f32", "add.s32")]
    [False, True, True, True, False]
    """
    name, *words = operation.split(".")
    if not _FLOATS & set(words):
        return False
    if {"ftz", "approx", "full"} & set(words) or name in _NEVER:
        return True
    return name in _ROUNDED and "rn" not in words


def float_operations(ptx: str) -> dict[str, Counter[str]]:
    """Operations on floats of every kernel, moves left out."""
    result = {}
    for match in _ENTRY.finditer(ptx):
        found = (m[1] for m in _OPERATION.finditer(match[0]))
        floats = (op for op in found if _FLOATS & set(op.split(".")[1:]))
        result[match[1]] = Counter(op for op in floats if op.split(".")[0] not in ("ld", "st", "mov", "selp"))
    return result
