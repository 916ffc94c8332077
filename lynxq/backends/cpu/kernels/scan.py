"""The search for non-finite values."""

from __future__ import annotations

from typing import Any

from lynxq.backends.cpu.kernels.jit import SOURCE, inner, kernel
from lynxq.backends.cpu.kernels.units import mixed_offset

#: Values of a unit of work.
BLOCK = 1 << 16


@inner
def _any_row(row, mask):
    largest = row.dtype.type(0)
    for i in range(row.size):
        bits = row.dtype.type(row[i] & mask)
        largest = max(largest, bits)
    return largest == mask


def _kernel(source: int) -> Any:
    @kernel
    def any_nonfinite(x, mask, shape, strides, length, step, first, last):
        """Whether units from `first` to before `last` have all bits of `mask` set in some value.

        Rows are `length` values, `step` apart, in units of `BLOCK`; `shape` and `strides` place their beginnings.
        """
        if not source:
            return True
        per_row = (length + BLOCK - 1) // BLOCK
        for unit in range(first, last):
            start = mixed_offset(unit // per_row, shape, strides)
            begin = unit % per_row * BLOCK
            end = min(begin + BLOCK, length)
            if step == 1:
                if _any_row(x[start + begin : start + end], mask):
                    return True
            elif _any_row(x[start + begin * step : start + (end - 1) * step + 1 : step], mask):
                return True
        return False

    return any_nonfinite


any_nonfinite = _kernel(SOURCE)
