"""PTX operations as C++, one function for each family of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_SIGNED = {"s8": "int8_t", "s16": "int16_t", "s32": "int32_t", "s64": "int64_t"}
BITS = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
FLOATS = {"f32": "float", "f64": "double"}
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_ROUND = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_SHUFFLE = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
_ATOMIC = {"add": "Add", "min": "Min", "max": "Max", "exch": "Exch"}


class UnknownError(Exception):
    """PTX that the translator does not know."""


def width(kind: str) -> int:
    """Bits of a PTX type."""
    return int(re.sub(r"\D", "", kind))


def cpp(kind: str) -> str:
    """The C++ type of a PTX type."""
    if kind == "pred":
        return "bool"
    return FLOATS.get(kind) or _SIGNED.get(kind) or BITS[width(kind)]


def unsigned(kind: str) -> str:
    """The unsigned C++ type as wide as a PTX type, or `unsigned`, where C++ would compute with a wider one."""
    return BITS[max(width(kind), 32)]


@dataclass
class Operation:
    """One instruction: its name, the words after it, its type, and its operands."""

    text: str
    line: int
    words: list[str]
    operands: list[str]

    @property
    def name(self) -> str:
        return self.words[0]

    @property
    def kind(self) -> str:
        return self.words[-1]

    @property
    def modifiers(self) -> list[str]:
        return self.words[1:-1]

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    def unknown(self) -> UnknownError:
        return UnknownError(f"PTX operation {self.text}")


class Body(Protocol):
    """The kernel that an operation is part of: its operands as C++."""

    def raw(self, operand: str) -> str: ...

    def get(self, operand: str, kind: str) -> str: ...

    def put(self, target: str, kind: str, value: str) -> str: ...

    def address(self, operand: str, space: str) -> str: ...


# --- instructions --------------------------------------------------------------------------------------


def _move(body: Body, op: Operation) -> str:
    target, source = op.operands
    if target.startswith("<"):  # a register taken apart
        parts = target[1:-1].split(",")
        bits = width(op.kind) // len(parts)
        return " ".join(body.put(part, f"b{bits}", f"{body.raw(source)} >> {bits * k}") for k, part in enumerate(parts))
    if source.startswith("<"):  # and put together
        parts = source[1:-1].split(",")
        bits = width(op.kind) // len(parts)
        joined = " | ".join(f"(uint64_t)({BITS[bits]})({body.raw(p)}) << {bits * k}" for k, p in enumerate(parts))
        return body.put(target, op.kind, joined)
    return f"{body.raw(target)} = {body.raw(source)};"


def _space(op: Operation) -> str:
    spaces = ("global", "shared", "const", "local", "param")
    return next((word for word in op.modifiers if word in spaces), "generic")


def _vector(op: Operation, operand: str) -> list[str]:
    return operand[1:-1].split(",") if any(re.fullmatch(r"v[248]", word) for word in op.modifiers) else [operand]


def _load(body: Body, op: Operation) -> str:
    size, kind = width(op.kind) // 8, op.kind
    where = op.operands[1]
    if _space(op) == "param":
        name, _, offset = where.strip("[] ").partition("+")
        base = body.raw(name) if name.startswith("%") else f"(uint64_t)&{name}"
        address = f"({base} + (int64_t)({offset or 0}))"
    else:
        address = body.address(where, _space(op))
    parts = _vector(op, op.operands[0])
    reads = (body.put(part, kind, f"ptx::load<{cpp(kind)}>(A + {size * k})") for k, part in enumerate(parts))
    return f"{{ const uint64_t A = {address}; {' '.join(reads)} }}"


def _store(body: Body, op: Operation) -> str:
    address, size = body.address(op.operands[0], _space(op)), width(op.kind) // 8
    parts = _vector(op, op.operands[1])
    writes = (f"ptx::store<{cpp(op.kind)}>(A + {size * k}, {body.get(part, op.kind)});" for k, part in enumerate(parts))
    return f"{{ const uint64_t A = {address}; {' '.join(writes)} }}"


def _convert_address(body: Body, op: Operation) -> str:
    target, source = (body.raw(operand) for operand in op.operands)
    if "shared" in op.modifiers and "to" not in op.modifiers:
        return f"{target} = (uint64_t)SHARED + (uint32_t){source};"
    if "global" in op.modifiers or "local" in op.modifiers:
        return f"{target} = {source};"
    raise op.unknown()


def _atomic(body: Body, op: Operation) -> str:
    target, where, value = op.operands if op.name == "atom" else ("_", *op.operands)
    name = next((_ATOMIC[word] for word in op.modifiers if word in _ATOMIC), None)
    if name is None:
        raise op.unknown()
    pointer = f"({cpp(op.kind)}*){body.address(where, _space(op))}"
    return body.put(target, op.kind, f"atomic{name}({pointer}, {body.get(value, op.kind)})")


def _binary(symbol: str) -> Callable[[Body, Operation], str]:
    def handle(body: Body, op: Operation) -> str:
        left, right = (body.get(operand, op.kind) for operand in op.operands[1:])
        if op.is_float or op.kind == "pred" or symbol in "/%":
            return body.put(op.operands[0], op.kind, f"{left} {symbol} {right}")
        word = unsigned(op.kind)
        return body.put(op.operands[0], op.kind, f"({cpp(op.kind)})(({word}){left} {symbol} ({word}){right})")

    return handle


def _multiply(body: Body, op: Operation) -> str:
    if op.is_float:
        return _binary("*")(body, op)
    left, right = (body.get(operand, op.kind) for operand in op.operands[1:3])
    kind = op.kind
    if "lo" in op.modifiers:
        word = unsigned(kind)
        value = f"({cpp(kind)})(({word}){left} * ({word}){right})"
    elif "hi" in op.modifiers:
        value = f"ptx::mulhi<{cpp(kind)}>({left}, {right})"
    else:
        kind = f"{kind[0]}{2 * width(kind)}"
        value = f"({cpp(kind)}){left} * ({cpp(kind)}){right}"
    if op.name == "mad":
        value = f"({unsigned(kind)})({value}) + ({unsigned(kind)}){body.get(op.operands[3], kind)}"
    return body.put(op.operands[0], kind, value)


def _extreme(body: Body, op: Operation) -> str:
    left, right = (body.get(operand, "b32" if op.kind.endswith("x2") else op.kind) for operand in op.operands[1:])
    if op.kind in ("bf16x2", "f16x2"):
        return body.put(op.operands[0], "b32", f"ptx::halves({left}, {right}, ptx::{op.name}_{op.kind[:-2]})")
    if op.kind == "f32" and not op.modifiers:
        return body.put(op.operands[0], op.kind, f"shim_f{op.name}({left}, {right})")
    if op.is_float or op.modifiers:
        raise op.unknown()
    return body.put(op.operands[0], op.kind, f"std::{op.name}<{cpp(op.kind)}>({left}, {right})")


def _unary(body: Body, op: Operation) -> str:
    value = body.get(op.operands[1], op.kind)
    if op.name == "not":
        return body.put(op.operands[0], op.kind, f"!{value}" if op.kind == "pred" else f"~{value}")
    if op.name == "abs" and op.is_float:
        return body.put(op.operands[0], op.kind, f"std::fabs({value})")
    if op.name == "neg":
        return body.put(op.operands[0], op.kind, f"-{value}" if op.is_float else f"0 - ({unsigned(op.kind)}){value}")
    if op.name == "rcp" and "rn" in op.modifiers:
        return body.put(op.operands[0], op.kind, f"1.0f / {value}")
    raise op.unknown()


def _shift(body: Body, op: Operation) -> str:
    value, amount = body.get(op.operands[1], op.kind), body.get(op.operands[2], "u32")
    return body.put(op.operands[0], op.kind, f"ptx::{op.name}<{cpp(op.kind)}>({value}, {amount})")


def _bits(body: Body, op: Operation) -> str:
    if op.kind not in ("b32", "u32"):
        raise op.unknown()
    values = ", ".join(body.get(operand, "b32") for operand in op.operands[1:])
    return body.put(op.operands[0], "b32", f"ptx::{op.name}({values})")


def _permute(body: Body, op: Operation) -> str:
    if len(op.words) > 2:
        raise op.unknown()  # the modes other than picking bytes
    values = ", ".join(body.get(operand, "b32") for operand in op.operands[1:])
    return body.put(op.operands[0], "b32", f"ptx::prmt({values})")


def _select(body: Body, op: Operation) -> str:
    kind = f"b{width(op.kind)}"
    yes, no = (body.get(operand, kind) for operand in op.operands[1:3])
    return body.put(op.operands[0], kind, f"{body.raw(op.operands[3])} ? {yes} : {no}")


def _compare(body: Body, op: Operation) -> str:
    left, right = (body.get(operand, op.kind) for operand in op.operands[1:3])
    name, unordered = op.words[1], f"({left} != {left} || {right} != {right})"
    if op.is_float and name in ("num", "nan"):
        value = unordered if name == "nan" else f"!{unordered}"
    elif op.is_float and name not in _COMPARE:  # ltu and the like are true of NaN
        value = f"({left} {_COMPARE[name[:-1]]} {right} || {unordered})"
    elif op.is_float and name == "ne":
        value = f"({left} < {right} || {left} > {right})"
    else:
        value = f"({left} {_COMPARE[name]} {right})"
    for word, symbol in (("and", "&"), ("or", "|"), ("xor", "^")):
        if word in op.words[2:-1]:
            value = f"({value} {symbol} {body.get(op.operands[3], 'pred')})"
    targets = op.operands[0].split("|")
    other = f"{body.raw(targets[1])} = !q;" if len(targets) > 1 else ""
    return f"{{ const bool q = {value}; {body.raw(targets[0])} = q; {other} }}"


def _convert(body: Body, op: Operation) -> str:
    rounding, target, source = op.words[1:-2], op.words[-2], op.words[-1]
    if target in ("bf16x2", "f16x2"):
        name = "__float2bfloat16_rn" if target == "bf16x2" else "__float2half_rn"
        high, low = (f"{name}({body.get(operand, 'f32')}).x" for operand in op.operands[1:])
        return body.put(op.operands[0], "b32", f"(uint32_t){high} << 16 | (uint32_t){low}")
    value = body.get(op.operands[1], "b16" if source == "f16" else source)
    return body.put(
        op.operands[0], "b16" if target == "f16" else target, _converted(op, rounding, target, source, value)
    )


def _converted(op: Operation, rounding: list[str], target: str, source: str, value: str) -> str:
    integer = next((_ROUND[word] for word in rounding if word in _ROUND), None)
    if source == "f16" and target == "f32":
        return f"__half2float(__half{{{value}}})"
    if target == "f16" and source == "f32" and rounding == ["rn"]:
        return f"__float2half_rn({value}).x"
    if target in FLOATS and source in FLOATS and integer:
        return f"std::{integer}({value})"
    if target in FLOATS and source[0] in "us" and rounding == ["rn"]:
        return f"({cpp(target)}){value}"
    if source in FLOATS and target[0] in "us" and integer:
        return f"shim_cvt<{cpp(target)}>(std::{integer}({value}))"
    if target[0] in "us" and source[0] in "us" and not rounding:
        return f"({cpp(target)}){value}"
    raise op.unknown()


def _branch(_body: Body, op: Operation) -> str:
    return f"goto {op.operands[0].replace('$', '_')};"


def _return(_body: Body, _op: Operation) -> str:
    return "return;"


def _barrier(_body: Body, op: Operation) -> str:
    if op.words[1] != "sync" or op.operands != ["0"]:
        raise op.unknown()
    return f"shim::block_sync({op.line});"


def _shuffle(body: Body, op: Operation) -> str:
    targets = op.operands[0].split("|")
    kind = next((_SHUFFLE[word] for word in op.modifiers if word in _SHUFFLE), None)
    if kind is None or op.modifiers[0] != "sync":
        raise op.unknown()
    value, by, segment, mask = (body.get(operand, "b32") for operand in op.operands[1:])
    call = f"ptx::shfl({kind}, {value}, {by}, {segment}, {mask}, {op.line})"
    return body.put(targets[0], "b32", call)  # the predicate of the second target is not used by the kernels


HANDLERS: dict[str, Callable[[Body, Operation], str]] = {
    "mov": _move,
    "ld": _load,
    "st": _store,
    "cvta": _convert_address,
    "atom": _atomic,
    "red": _atomic,
    "add": _binary("+"),
    "sub": _binary("-"),
    "div": _binary("/"),
    "rem": _binary("%"),
    "and": _binary("&"),
    "or": _binary("|"),
    "xor": _binary("^"),
    "mul": _multiply,
    "mad": _multiply,
    "min": _extreme,
    "max": _extreme,
    "not": _unary,
    "abs": _unary,
    "neg": _unary,
    "rcp": _unary,
    "shl": _shift,
    "shr": _shift,
    "bfi": _bits,
    "bfe": _bits,
    "prmt": _permute,
    "selp": _select,
    "setp": _compare,
    "cvt": _convert,
    "bra": _branch,
    "ret": _return,
    "exit": _return,
    "bar": _barrier,
    "barrier": _barrier,
    "shfl": _shuffle,
}
