"""Table look-up for rows of byte codes: 256 float32 values, one for every code.

Where the processor can permute bytes by a register of indices (AVX-512 VBMI), 64 codes are looked up at a time:
each of the four bytes of a float32 has its own table of 256 bytes, four registers wide, and the bytes found are
interleaved again. Elsewhere it is a plain loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from lynxq.backends.cpu.kernels.jit import inner

_BYTE, _WORD, _INT = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_V64 = ir.VectorType(_BYTE, 64)
_V16 = ir.VectorType(_WORD, 16)
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"

#: Codes that `lookup_blocks` handles at a time; it leaves the rest of a row.
BLOCK = 64


def has_byte_permute() -> bool:
    """Whether this processor permutes 64 bytes by a register of indices."""
    features = binding.get_host_cpu_features()
    return bool(features.get("avx512vbmi") and features.get("avx512bw"))


def _vector(kind: Any, values: list[int]) -> Any:
    return ir.Constant(ir.VectorType(kind, len(values)), values)


def _interleave(builder: Any, low: Any, high: Any, size: int) -> tuple[Any, Any]:
    """Interleave items of `size` bytes inside every 16 bytes of two registers: lower halves, upper halves."""
    halves = []
    for half in (0, 8):
        mask = [
            lane + half + item + byte + source
            for lane in range(0, 64, 16)
            for item in range(0, 8, size)
            for source in (0, 64)
            for byte in range(size)
        ]
        halves.append(builder.shuffle_vector(low, high, _vector(_WORD, mask)))
    return halves[0], halves[1]


@intrinsic
def lookup_blocks(_context: Any, _tables: Any, _codes: Any, _values: Any) -> Any:
    """Look up whole blocks of 64 codes: (4·256 table bytes, uint8 codes, float32 values)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tables, codes, values = (
            context.make_array(kind)(context, builder, arg) for kind, arg in zip(signature.args, args, strict=True)
        )
        permute = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_V64, [_V64, _V64, _V64]), _PERMUTE)

        def at(pointer: Any, offset: Any, kind: Any) -> Any:
            raw = builder.bitcast(pointer, _BYTE.as_pointer())
            return builder.bitcast(builder.gep(raw, [offset]), kind.as_pointer())

        table = [builder.load(at(tables.data, ir.Constant(_INT, 64 * part), _V64), align=1) for part in range(16)]
        # Four groups of 4 codes of every block change places, so that interleaving leaves values in order.
        transpose = _vector(_WORD, [4 * (i % 4) + i // 4 for i in range(16)])
        count = builder.udiv(codes.nitems, ir.Constant(_INT, BLOCK))
        with cgutils.for_range(builder, count) as loop:
            begin = builder.mul(loop.index, ir.Constant(_INT, BLOCK))
            index = builder.load(at(codes.data, begin, _V16), align=1)
            index = builder.bitcast(builder.shuffle_vector(index, index, transpose), _V64)
            upper = builder.icmp_signed("<", index, ir.Constant(_V64, [0] * 64))
            found = []
            for byte in range(4):
                a, b, c, d = table[4 * byte : 4 * byte + 4]
                below, above = builder.call(permute, [a, index, b]), builder.call(permute, [c, index, d])
                found.append(builder.select(upper, above, below))
            pairs = [_interleave(builder, found[i], found[i + 1], 1) for i in (0, 2)]
            parts = [_interleave(builder, pairs[0][half], pairs[1][half], 2) for half in (0, 1)]
            for i, part in enumerate([*parts[0], *parts[1]]):
                offset = builder.mul(builder.add(begin, ir.Constant(_INT, 16 * i)), ir.Constant(_INT, 4))
                builder.store(part, at(values.data, offset, _V64), align=1)
        return context.get_dummy_value()

    return types.void(_tables, _codes, _values), generate


@inner
def _lookup_plain(tables, codes, values):
    table = tables[:256]
    for i in range(values.size):
        values[i] = table[codes[i]]


@inner
def _lookup_permuted(tables, codes, values):
    lookup_blocks(tables[256:].view(np.uint8), codes, values)
    for i in range(values.size // BLOCK * BLOCK, values.size):
        values[i] = tables[codes[i]]


#: Look up a row: (tables, uint8 codes, float32 results).
lookup_row = _lookup_permuted if has_byte_permute() else _lookup_plain


def tables_of(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The tables that look-ups need: 256 values, and then their bytes, all first bytes before all second ones."""
    table = np.zeros(256, np.float32)
    table[: values.size] = values
    return np.concatenate(
        [table, np.ascontiguousarray(table.view(np.uint8).reshape(256, 4).T).ravel().view(np.float32)]
    )
