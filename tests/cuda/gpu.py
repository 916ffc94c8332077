"""The CUDA backend on a real GPU, for numpy arrays: ``python -m tests.cuda.gpu [NAME...]`` checks cases there.

Arrays travel as the bytes they span, at an address with the same remainder by 16, so that strides and alignment on the
device are those of the test.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from lynxq.backends.base import Backend
from lynxq.backends.cuda.backend import CudaBackend
from lynxq.backends.cuda.driver import CupyDriver
from lynxq.devices import DeviceArray
from lynxq.dtypes import DType
from lynxq.layout import Layout
from tests.cuda import cases


class _Moved:
    """A numpy array's bytes on the device."""

    def __init__(self, cupy: Any, array: np.ndarray[Any, Any]) -> None:
        low, high = byte_bounds(array) if array.size else (0, 0)
        self.host = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low)) if array.size else None
        self.room = cupy.zeros(high - low + 16, np.uint8)
        self.start = low % 16
        if self.host is not None:
            self.room[self.start : self.start + self.host.size].set(self.host)
        address = self.room.data.ptr + self.start + (array.__array_interface__["data"][0] - low if array.size else 0)
        stream = cupy.cuda.get_current_stream().ptr
        self.array = DeviceArray(address, array.shape, array.strides, array.itemsize, 0, stream, self.room)

    def back(self) -> None:
        """Copy the bytes to where they came from; waits."""
        if self.host is not None:
            self.host[:] = self.room[self.start : self.start + self.host.size].get()


class GpuBackend(Backend):
    """`CudaBackend` between copies."""

    name = "cuda on numpy"

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._engine = CudaBackend(CupyDriver())

    def first_nonfinite(self, layout: Layout, x: Any, *, threads: int = 1) -> tuple[int, tuple[int, ...]] | None:
        return self._engine.first_nonfinite(layout, _Moved(self._cupy, x).array)

    def encode(self, layout: Layout, x: Any, anchor: Any, residual: Any, *, threads: int = 1) -> None:
        moved = [_Moved(self._cupy, part) for part in (x, anchor, residual)]
        self._engine.encode(layout, *(part.array for part in moved))
        for part in moved[1:]:
            part.back()

    def decode(self, layout: Layout, anchor: Any, residual: Any, out: Any, dtype: DType, *, threads: int = 1) -> None:
        high, target = _Moved(self._cupy, anchor), _Moved(self._cupy, out)
        low = None if residual is None else _Moved(self._cupy, residual)
        self._engine.decode(layout, high.array, low and low.array, target.array, dtype)
        target.back()


def main(names: list[str]) -> None:
    backend = GpuBackend()
    for name in names or cases.FEW:
        cases.check(backend, cases.CASES[name])
    print(f"{len(names or cases.FEW)} cases agree with the reference")


if __name__ == "__main__":
    main(sys.argv[1:])
