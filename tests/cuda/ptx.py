"""Translate the PTX that NVRTC made into C++ that the host shim runs.

This closes the gap that running the source leaves: here the thing that runs is the output of NVIDIA's compiler, so a
contraction, a flush to zero, a reassociated sum or a wrong unrolling shows as different bits. What stays unproven
without a GPU is the assembler after it, and the hardware. An operation that is not known here raises: nothing is
skipped silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.cuda.policy import inexact
from tests.cuda.ptx_operations import BITS, FLOATS, HANDLERS, Operation, UnknownError, cpp, width

_SPECIAL = {
    f"%{ptx}.{axis}": f"{cpp}.{axis}"
    for ptx, cpp in (("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))
    for axis in "xyz"
}
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(([^)]*)\)([^{]*)\{")
_LIST = re.compile(r"\{\s*((?:[%\w.+-]+\s*,\s*)+[%\w.+-]+)\s*\}")
_STATEMENT = re.compile(r"(?:@(!?)%(\w+)\s+)?([\w.:]+)\s*(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?(\w+)(?:\[(\d+)\])?")


class InexactError(Exception):
    """PTX whose bits may differ from IEEE arithmetic."""


@dataclass
class _Kernel:
    """What a kernel declares."""

    name: str
    parameters: dict[str, str]
    registers: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    shared_bytes: int = 0


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
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|-?(?:0x)?[0-9a-fA-F]+U?", operand):
            return f"0x{match[1]}u" if match[1] else operand.rstrip("U") + ("ll" if operand.startswith("-") else "ull")
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
            return self.register(operand[1:], kind)
        if kind in FLOATS:
            return f"shim_bits<{cpp(kind)}>({BITS[width(kind)]}({self.raw(operand)}))"
        return f"({cpp(kind)})({self.raw(operand)})"

    def register(self, name: str, kind: str) -> str:
        """A register read as a type: its low bits. Casts where they do, for compilers are slow with templates."""
        if kind in FLOATS:
            return f"ptx::get<{cpp(kind)}>({name})"
        return name if cpp(kind) == BITS[self.kernel.registers[name]] else f"({cpp(kind)}){name}"

    def put(self, target: str, kind: str, value: str) -> str:
        """Write a value of a type to a register, extended as its sign wants."""
        target = target.strip()
        if target == "_":
            return f"(void)({value});"
        name = self.raw(target)
        bits = self.kernel.registers[name]
        if not bits:
            return f"{name} = {value};"
        if kind in FLOATS:
            return f"{name} = ptx::put<{BITS[bits]}>(({cpp(kind)})({value}));"
        return f"{name} = ({cpp(kind)})({value});"

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
        operation = Operation(opcode, self.line, opcode.split("."), _operands(rest))
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
    registers = [f"  {BITS[bits] if bits else 'bool'} {register};" for register, bits in kernel.registers.items()]
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
        result.append(f"alignas({alignment}) static {BITS[width(kind)]} {name}[{count or 1}] = {{{initial}}};")
    return result
