"""Smallest and largest key along a short row, in vector registers.

The compiler's own version of this loop uses narrow vectors: it does not know that rows are long enough for wide ones.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Bytes of the vectors; processors with shorter ones use several.
VECTOR_BYTES = 64


def _reduce(builder: Any, name: str, vector: Any) -> Any:
    kind = vector.type
    function = ir.FunctionType(kind.element, [kind])
    full_name = f"llvm.vector.reduce.{name}.v{kind.count}i{kind.element.width}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, full_name), [vector])


@intrinsic
def vector_extremes(_context: Any, values: Any) -> Any:
    """Smallest and largest sortable key of the whole vectors at a row's beginning; nonsense if there is none."""
    width = values.dtype.bitwidth
    result = types.Integer.from_bitwidth(width, signed=True)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        element, count = ir.IntType(width), VECTOR_BYTES * 8 // width
        vector, index = ir.VectorType(element, count), ir.IntType(64)
        largest = (1 << (width - 1)) - 1
        below, mask = ir.Constant(vector, [width - 1] * count), ir.Constant(vector, [largest] * count)
        lo = cgutils.alloca_once_value(builder, mask)
        hi = cgutils.alloca_once_value(builder, ir.Constant(vector, [-largest - 1] * count))
        blocks = builder.udiv(array.nitems, ir.Constant(index, count))
        with cgutils.for_range(builder, blocks) as loop:
            at = builder.gep(array.data, [builder.mul(loop.index, ir.Constant(index, count))])
            raw = builder.load(builder.bitcast(at, vector.as_pointer()), align=width // 8)
            key = builder.xor(raw, builder.and_(builder.ashr(raw, below), mask))
            for store, comparison in ((lo, "<"), (hi, ">")):
                best = builder.load(store)
                builder.store(builder.select(builder.icmp_signed(comparison, key, best), key, best), store)
        ends = [_reduce(builder, "smin", builder.load(lo)), _reduce(builder, "smax", builder.load(hi))]
        return context.make_tuple(builder, signature.return_type, ends)

    return types.UniTuple(result, 2)(values), generate
