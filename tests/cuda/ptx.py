"""Translate the PTX that NVRTC made into C++ that the host shim runs.

This closes the gap that running the source leaves: here the thing that runs is the output of NVIDIA's compiler, so a
contraction, a flush to zero, a reassociated sum or a wrong unrolling shows as different bits. What stays unproven
without a GPU is the assembler after it, and the hardware. An operation that is not known here raises: nothing is
skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.cuda.policy import inexact

_SIGNED = {"s8": "int8_t", "s16": "int16_t", "s32": "int32_t", "s64": "int64_t"}
_BITS = {8: "uint8_t", 16: "uint16_t", 32: "uint32_t", 64: "uint64_t"}
_FLOATS = {"f32": "float", "f64": "double"}
_SPECIAL = {
    f"%{ptx}.{axis}": f"{cpp}.{axis}"
    for ptx, cpp in (("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))
    for axis in "xyz"
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_ROUND = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_SHUFFLE = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
_ATOMIC = {"add": "Add", "min": "Min", "max": "Max", "exch": "Exch"}

_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(([^)]*)\)([^{]*)\{")
_LIST = re.compile(r"\{\s*((?:[%\w.+-]+\s*,\s*)+[%\w.+-]+)\s*\}")
_STATEMENT = re.compile(r"(?:@(!?)%(\w+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?(\w+)(?:\[(\d+)\])?")


class UnknownError(Exception):
    """PTX that the translator does not know."""


class InexactError(Exception):
    """PTX whose bits may differ from IEEE arithmetic."""


def width(kind: str) -> int:
    """Bits of a PTX type."""
    return int(re.sub(r"\D", "", kind))


def cpp(kind: str) -> str:
    """The C++ type of a PTX type."""
    if kind == "pred":
        return "bool"
    return _FLOATS.get(kind) or _SIGNED.get(kind) or _BITS[width(kind)]


def unsigned(kind: str) -> str:
    """The unsigned C++ type as wide as a PTX type, or `unsigned`, where C++ would compute with a wider one."""
    return _BITS[max(width(kind), 32)]


@dataclass
class _Kernel:
    """What a kernel declares."""

    name: str
    parameters: dict[str, str]
    registers: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    shared_bytes: int = 0


@dataclass
class _Operation:
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
        return self.kind in _FLOATS

    def unknown(self) -> UnknownError:
        return UnknownError(f"PTX operation {self.text}")


class _Body:
    """The statements of one kernel as C++."""

    def __init__(self, kernel: _Kernel, constants: set[str], strict: bool) -> None:
        self.kernel, self.constants, self.strict = kernel, constants, strict
        self.line = 0

    # --- operands ----------------------------------------------------------------------------------

    def raw(self, operand: str) -> str:
        """The C++ expression of an operand, without a type."""
        operand = operand.strip()
        if operand in _SPECIAL:
            return _SPECIAL[operand]
        if operand.startswith("%"):
            return operand[1:]
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
            return f"0x{match[1]}u"
        if re.fullmatch(r"-?(0x)?[0-9a-fA-F]+U?", operand):
            return operand.rstrip("U") + ("ll" if operand.startswith("-") else "ull")
        if operand in self.kernel.shared:
            return f"{self.kernel.shared[operand]}u"
        if operand in self.kernel.parameters:
            return f"(uint64_t)&{operand}"
        if operand in self.kernel.local or operand in self.constants:
            return f"(uint64_t){operand}"
        raise UnknownError(f"PTX operand {operand}")

    def get(self, operand: str, kind: str) -> str:
        """An operand read as a type."""
        operand = operand.strip()
        if kind == "pred":
            return "!" + self.raw(operand[1:]) if operand[0] == "!" else self.raw(operand)
        if operand.startswith("%") and operand not in _SPECIAL:
            return f"ptx::get<{cpp(kind)}>({self.raw(operand)})"
        if kind in _FLOATS:
            return f"shim_bits<{cpp(kind)}>({_BITS[width(kind)]}({self.raw(operand)}))"
        return f"({cpp(kind)})({self.raw(operand)})"

    def put(self, target: str, kind: str, value: str) -> str:
        """Write a value of a type to a register."""
        target = target.strip()
        if target == "_":
            return f"(void)({value});"
        name = self.raw(target)
        bits = self.kernel.registers[name]
        if not bits:
            return f"{name} = {value};"
        return f"{name} = ptx::put<{_BITS[bits]}>(({cpp(kind)})({value}));"

    def address(self, operand: str, space: str) -> str:
        match = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand.strip())
        if match is None:
            raise UnknownError(f"PTX address {operand}")
        base, offset = self.raw(match[1]), match[2] or "0"
        if space == "shared":
            return f"(uint64_t)(SHARED + (uint32_t)({base} + ({offset})))"
        return f"({base} + (int64_t)({offset}))"

    # --- statements --------------------------------------------------------------------------------

    def statement(self, text: str) -> str:
        """One statement of the kernel."""
        if match := re.fullmatch(r"(\$?\w+):", text):
            return match[1].replace("$", "_") + ":;"
        if text.startswith("."):
            return self.declaration(text)
        match = _STATEMENT.match(text)
        if match is None:
            raise UnknownError(f"PTX statement {text}")
        negated, guard, opcode, rest = match.groups()
        self.line += 1
        operation = _Operation(opcode, self.line, opcode.split("."), _operands(rest))
        if self.strict and inexact(opcode):
            raise InexactError(f"not bit-exact: {opcode}")
        handler = HANDLERS.get(operation.name)
        if handler is None:
            raise operation.unknown()
        code = handler(self, operation)
        return f"if ({negated or ''}{guard}) {{ {code} }}" if guard else code

    def declaration(self, text: str) -> str:
        if match := re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL):
            bits = 0 if match[1] == "pred" else width(match[1])
            for item in match[2].split(","):
                if many := re.fullmatch(r"%(\w+)<(\d+)>", item.strip()):
                    self.kernel.registers |= {f"{many[1]}{k}": bits for k in range(int(many[2]))}
                else:
                    self.kernel.registers[item.strip().lstrip("%")] = bits
            return ""
        if match := re.match(r"\.(shared|local)\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[(\d+)\]", text):
            space, alignment, name, size = match[1], int(match[2]), match[3], int(match[4])
            if space == "local":
                self.kernel.local.add(name)
                return f"alignas({alignment}) char {name}[{size}];"
            start = -(-self.kernel.shared_bytes // alignment) * alignment
            self.kernel.shared[name], self.kernel.shared_bytes = start, start + size
            return ""
        if text.startswith((".pragma", ".loc")):
            return ""
        raise UnknownError(f"PTX declaration {text}")


def _operands(text: str) -> list[str]:
    """Operands of an instruction: commas inside brackets do not part them."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"<": 1, "[": 1, ">": -1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts


# --- instructions --------------------------------------------------------------------------------------


def _move(body: _Body, op: _Operation) -> str:
    target, source = op.operands
    if target.startswith("<"):  # a register taken apart
        parts = target[1:-1].split(",")
        bits = width(op.kind) // len(parts)
        return " ".join(body.put(part, f"b{bits}", f"{body.raw(source)} >> {bits * k}") for k, part in enumerate(parts))
    if source.startswith("<"):  # and put together
        parts = source[1:-1].split(",")
        bits = width(op.kind) // len(parts)
        joined = " | ".join(f"(uint64_t)({_BITS[bits]})({body.raw(p)}) << {bits * k}" for k, p in enumerate(parts))
        return body.put(target, op.kind, joined)
    return f"{body.raw(target)} = {body.raw(source)};"


def _space(op: _Operation) -> str:
    spaces = ("global", "shared", "const", "local", "param")
    return next((word for word in op.modifiers if word in spaces), "generic")


def _vector(op: _Operation, operand: str) -> list[str]:
    return operand[1:-1].split(",") if any(re.fullmatch(r"v[248]", word) for word in op.modifiers) else [operand]


def _load(body: _Body, op: _Operation) -> str:
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


def _store(body: _Body, op: _Operation) -> str:
    address, size = body.address(op.operands[0], _space(op)), width(op.kind) // 8
    parts = _vector(op, op.operands[1])
    writes = (f"ptx::store<{cpp(op.kind)}>(A + {size * k}, {body.get(part, op.kind)});" for k, part in enumerate(parts))
    return f"{{ const uint64_t A = {address}; {' '.join(writes)} }}"


def _convert_address(body: _Body, op: _Operation) -> str:
    target, source = (body.raw(operand) for operand in op.operands)
    if "shared" in op.modifiers and "to" not in op.modifiers:
        return f"{target} = (uint64_t)SHARED + (uint32_t){source};"
    if "global" in op.modifiers or "local" in op.modifiers:
        return f"{target} = {source};"
    raise op.unknown()


def _atomic(body: _Body, op: _Operation) -> str:
    target, where, value = op.operands if op.name == "atom" else ("_", *op.operands)
    name = next((_ATOMIC[word] for word in op.modifiers if word in _ATOMIC), None)
    if name is None:
        raise op.unknown()
    pointer = f"({cpp(op.kind)}*){body.address(where, _space(op))}"
    return body.put(target, op.kind, f"atomic{name}({pointer}, {body.get(value, op.kind)})")


def _binary(symbol: str) -> Callable[[_Body, _Operation], str]:
    def handle(body: _Body, op: _Operation) -> str:
        left, right = (body.get(operand, op.kind) for operand in op.operands[1:])
        if op.is_float or op.kind == "pred" or symbol in "/%":
            return body.put(op.operands[0], op.kind, f"{left} {symbol} {right}")
        word = unsigned(op.kind)
        return body.put(op.operands[0], op.kind, f"({cpp(op.kind)})(({word}){left} {symbol} ({word}){right})")

    return handle


def _multiply(body: _Body, op: _Operation) -> str:
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


def _extreme(body: _Body, op: _Operation) -> str:
    left, right = (body.get(operand, "b32" if op.kind.endswith("x2") else op.kind) for operand in op.operands[1:])
    if op.kind in ("bf16x2", "f16x2"):
        return body.put(op.operands[0], "b32", f"ptx::halves({left}, {right}, ptx::{op.name}_{op.kind[:-2]})")
    if op.kind == "f32" and not op.modifiers:
        return body.put(op.operands[0], op.kind, f"shim_f{op.name}({left}, {right})")
    if op.is_float or op.modifiers:
        raise op.unknown()
    return body.put(op.operands[0], op.kind, f"std::{op.name}<{cpp(op.kind)}>({left}, {right})")


def _unary(body: _Body, op: _Operation) -> str:
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


def _shift(body: _Body, op: _Operation) -> str:
    value, amount = body.get(op.operands[1], op.kind), body.get(op.operands[2], "u32")
    return body.put(op.operands[0], op.kind, f"ptx::{op.name}<{cpp(op.kind)}>({value}, {amount})")


def _bits(body: _Body, op: _Operation) -> str:
    if op.kind not in ("b32", "u32"):
        raise op.unknown()
    values = ", ".join(body.get(operand, "b32") for operand in op.operands[1:])
    return body.put(op.operands[0], "b32", f"ptx::{op.name}({values})")


def _permute(body: _Body, op: _Operation) -> str:
    if len(op.words) > 2:
        raise op.unknown()  # the modes other than picking bytes
    values = ", ".join(body.get(operand, "b32") for operand in op.operands[1:])
    return body.put(op.operands[0], "b32", f"ptx::prmt({values})")


def _select(body: _Body, op: _Operation) -> str:
    kind = f"b{width(op.kind)}"
    yes, no = (body.get(operand, kind) for operand in op.operands[1:3])
    return body.put(op.operands[0], kind, f"{body.raw(op.operands[3])} ? {yes} : {no}")


def _compare(body: _Body, op: _Operation) -> str:
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


def _convert(body: _Body, op: _Operation) -> str:
    rounding, target, source = op.words[1:-2], op.words[-2], op.words[-1]
    if target in ("bf16x2", "f16x2"):
        name = "__float2bfloat16_rn" if target == "bf16x2" else "__float2half_rn"
        high, low = (f"{name}({body.get(operand, 'f32')}).x" for operand in op.operands[1:])
        return body.put(op.operands[0], "b32", f"(uint32_t){high} << 16 | (uint32_t){low}")
    value = body.get(op.operands[1], "b16" if source == "f16" else source)
    return body.put(op.operands[0], "b16" if target == "f16" else target, _converted(op, rounding, target, source, value))


def _converted(op: _Operation, rounding: list[str], target: str, source: str, value: str) -> str:
    integer = next((_ROUND[word] for word in rounding if word in _ROUND), None)
    if source == "f16" and target == "f32":
        return f"__half2float(__half{{{value}}})"
    if target == "f16" and source == "f32" and rounding == ["rn"]:
        return f"__float2half_rn({value}).x"
    if target in _FLOATS and source in _FLOATS and integer:
        return f"std::{integer}({value})"
    if target in _FLOATS and source[0] in "us" and rounding == ["rn"]:
        return f"({cpp(target)}){value}"
    if source in _FLOATS and target[0] in "us" and integer:
        return f"shim_cvt<{cpp(target)}>(std::{integer}({value}))"
    if target[0] in "us" and source[0] in "us" and not rounding:
        return f"({cpp(target)}){value}"
    raise op.unknown()


def _branch(_body: _Body, op: _Operation) -> str:
    return f"goto {op.operands[0].replace('$', '_')};"


def _return(_body: _Body, _op: _Operation) -> str:
    return "return;"


def _barrier(_body: _Body, op: _Operation) -> str:
    if op.words[1] != "sync" or op.operands != ["0"]:
        raise op.unknown()
    return f"shim::block_sync({op.line});"


def _shuffle(body: _Body, op: _Operation) -> str:
    targets = op.operands[0].split("|")
    kind = next((_SHUFFLE[word] for word in op.modifiers if word in _SHUFFLE), None)
    if kind is None or op.modifiers[0] != "sync":
        raise op.unknown()
    value, by, segment, mask = (body.get(operand, "b32") for operand in op.operands[1:])
    call = f"ptx::shfl({kind}, {value}, {by}, {segment}, {mask}, {op.line})"
    return body.put(targets[0], "b32", call)  # the predicate of the second target is not used by the kernels


HANDLERS: dict[str, Callable[[_Body, _Operation], str]] = {
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


# --- kernels -------------------------------------------------------------------------------------------


def _split_statements(body: str) -> list[str]:
    braces = _LIST.sub(lambda match: f"<{match[1]}>", body)
    pieces = re.split(r"(;|\{(?=\s)|\}|(?<=:)\s)", braces)
    return [piece.strip() for piece in pieces if piece.strip() not in ("", ";")]


def _kernel(name: str, parameters: str, text: str, constants: set[str], strict: bool) -> str:
    declared = _PARAMETER.findall(parameters)
    kernel = _Kernel(name, {parameter: kind for kind, parameter, _ in declared})
    body = _Body(kernel, constants, strict)
    code = [piece if piece in "{}" else body.statement(piece) for piece in _split_statements(text)]
    registers = [f"  {_BITS[bits] if bits else 'bool'} {register};" for register, bits in kernel.registers.items()]
    structs = [f"struct S_{parameter} {{ alignas(8) char bytes[{size}]; }};" for _, parameter, size in declared if size]
    types = [f"S_{parameter}" if size else cpp(kind) for kind, parameter, size in declared]
    signature = ", ".join(f"{kind} {parameter}" for kind, (_, parameter, _) in zip(types, declared, strict=True))
    size = -(-kernel.shared_bytes // 16) * 16
    return "\n".join(
        [
            *structs,
            f"static void {name}({signature}) {{",
            "  char* const SHARED = shim::B.dyn; (void)SHARED;",
            *registers,
            *(f"  {line}" for line in code if line),
            "  ;",
            "}",
            f'extern "C" const char* shim_launch_{name}(const unsigned* d, size_t, void** p) {{',
            f"  return shim::launch(&{name}, d, {size}, p);",
            "}",
        ]
    )


def translate(text: str, *, strict: bool = True) -> str:
    """C++ of a PTX module.

    Parameters
    ----------
    text : str
        PTX.
    strict : bool
        Whether to refuse operations that are not bit-exact, see `policy.inexact`.

    Raises
    ------
    UnknownError
        For anything that is not known here.
    InexactError
    """
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)
    if re.search(r"\.func\b", text):
        raise UnknownError("PTX .func: the kernel calls a function that was not inlined")
    parts = ['#include "ptx_machine.h"']  # the shim itself comes before it, precompiled
    constants: set[str] = set()
    position = 0
    while match := _ENTRY.search(text, position):
        parts += _constants(text[position : match.start()], constants)
        end, depth = match.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        parts.append(_kernel(match[1], match[2], text[match.end() : end - 1], constants, strict))
        position = end
    return "\n".join(parts)


def _constants(text: str, known: set[str]) -> list[str]:
    """Variables of the module."""
    result = []
    pattern = re.compile(r"\.(?:const|global)\s+\.align\s+(\d+)\s+\.(\w+)\s+(\w+)(?:\[(\d+)\])?\s*(?:=\s*([^;]*))?;")
    for alignment, kind, name, count, values in pattern.findall(text):
        known.add(name)
        initial = values.strip().strip("{}") or "0"
        result.append(f"alignas({alignment}) static {_BITS[width(kind)]} {name}[{count or 1}] = {{{initial}}};")
    return result
