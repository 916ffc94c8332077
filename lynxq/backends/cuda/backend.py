"""CUDA: the three operations as one kernel launch each, on the caller's stream and device.

This module plans and launches; it has no arithmetic of its own. What compiles, loads and runs kernels is a
:class:`Driver`: CuPy in :mod:`lynxq.backends.cuda.driver`, and in the tests a CPU that executes the same source,
or the code that NVIDIA's compiler made of it, bit for bit.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Protocol

import numpy as np

from lynxq.backends.base import PagedBackend, PagedMemory
from lynxq.backends.cuda import selftest as cuda_selftest
from lynxq.backends.cuda import tables as cuda_tables
from lynxq.backends.cuda.memory import Memory
from lynxq.backends.cuda.plan import Launch, Operation, plan
from lynxq.dtypes import DType
from lynxq.layout import Layout


class Place(NamedTuple):
    """Where an array is and where work on it is to run: byte strides, device number, address of the stream."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: int
    stream: int


class Driver(Protocol):
    """What runs kernels."""

    def place(self, array: Any) -> Place:
        """Locate an array; raises `BackendError` for one that kernels cannot reach."""

    def upload(self, data: bytes, where: Place) -> int:
        """Address of a copy of `data` in device memory that lives as long as the driver."""

    def launch(self, launch: Launch, where: Place) -> None:
        """Put a launch on the stream; does not wait for it."""

    def count(self, launch: Launch, where: Place) -> tuple[int, int]:
        """Launch with ``report`` set to two counters that are 0 and 2^64 - 1; wait for both and return them."""

    def to_device(self, array: np.ndarray[Any, Any], where: Place) -> Any:
        """A copy of a numpy array, as an array that `place` knows."""

    def to_host(self, array: Any, where: Place) -> np.ndarray[Any, Any]:
        """The values of what `to_device` made."""


#: The anchor stream, and the residual stream where there is one.
Streams = tuple[Any, Any | None]


def _decode(residual: Any | None) -> Operation:
    return "decode_anchor" if residual is None else "decode_full"


class CudaBackend(PagedBackend):
    """The codec on an NVIDIA GPU.

    The first use of a device runs a self-test against the reference there, which raises `BackendError` if a byte
    differs. `threads` is accepted and ignored: a GPU has its own.

    Parameters
    ----------
    driver : Driver
    self_test : bool
        Whether to run the self-test.
    """

    name = "cuda"

    def __init__(self, driver: Driver, *, self_test: bool = True) -> None:
        self._driver = driver
        self._self_test = self_test
        self._lock = threading.RLock()
        self._tested: set[int] = set()

    def first_nonfinite(self, layout: Layout, x: Any, *, threads: int = 1) -> tuple[int, tuple[int, ...]] | None:  # noqa: ARG002
        """Count non-finite values; waits for the stream. See `Backend.first_nonfinite`."""
        where = self._driver.place(x)
        return self._nonfinite(layout, self._memory(layout, where), where)

    def encode(self, layout: Layout, x: Any, anchor: Any, residual: Any, *, threads: int = 1) -> None:  # noqa: ARG002
        """Encode in one launch; see `Backend.encode`."""
        self._trust(self._driver.place(x))
        self.run_encode(layout, x, anchor, residual)

    def decode(
        self,
        layout: Layout,
        anchor: Any,
        residual: Any | None,
        out: Any,
        dtype: DType,
        *,
        threads: int = 1,  # noqa: ARG002
    ) -> None:
        """Decode in one launch; see `Backend.decode`."""
        self._trust(self._driver.place(out))
        self.run_decode(layout, anchor, residual, out, dtype)

    def run_encode(self, layout: Layout, x: Any, anchor: Any, residual: Any) -> None:
        """`encode`, trusting the device."""
        where = self._driver.place(x)
        self._run("encode", layout, self._memory(layout, where), layout.dtype, where=where, streams=(anchor, residual))

    def run_decode(self, layout: Layout, anchor: Any, residual: Any | None, out: Any, dtype: DType) -> None:
        """`decode`, trusting the device."""
        where = self._driver.place(out)
        memory = self._memory(layout, where)
        self._run(_decode(residual), layout, memory, dtype, where=where, streams=(anchor, residual))

    def first_nonfinite_paged(self, layout: Layout, cache: PagedMemory) -> tuple[int, tuple[int, ...]] | None:
        """Count non-finite values among a sequence's tokens; see `PagedBackend.first_nonfinite_paged`."""
        where = self._driver.place(cache.blocks)
        return self._nonfinite(layout, self._paged_memory(cache, where), where)

    def encode_paged(self, layout: Layout, cache: PagedMemory, anchor: Any, residual: Any) -> None:
        """Encode from a paged cache in one launch; see `PagedBackend.encode_paged`."""
        where = self._driver.place(cache.blocks)
        self._trust(where)
        memory = self._paged_memory(cache, where)
        self._run("encode", layout, memory, layout.dtype, where=where, streams=(anchor, residual))

    def decode_paged(self, layout: Layout, anchor: Any, residual: Any | None, cache: PagedMemory, dtype: DType) -> None:
        """Decode into a paged cache in one launch; see `PagedBackend.decode_paged`."""
        where = self._driver.place(cache.blocks)
        self._trust(where)
        memory = self._paged_memory(cache, where)
        self._run(_decode(residual), layout, memory, dtype, where=where, streams=(anchor, residual))

    def _trust(self, where: Place) -> None:
        """Run the self-test of a device once."""
        if not self._self_test or where.device in self._tested:
            return
        with self._lock:
            if where.device not in self._tested:
                cuda_selftest.self_test(self, self._driver, where)
                self._tested.add(where.device)

    def _memory(self, layout: Layout, where: Place) -> Memory:
        return Memory.of(where.address, where.shape, where.strides, layout.token_axis)

    def _paged_memory(self, cache: PagedMemory, where: Place) -> Memory:
        slots, block_stride = where.shape[2], where.strides[0]
        shape, strides = (slots, where.shape[1], where.shape[3]), (where.strides[2], where.strides[1], where.strides[3])
        inner = Memory.of(where.address, shape, strides, 0).inner
        table = self._driver.place(cache.table).address
        return Memory(where.address, (), inner, where.strides[2], slots, block_stride, table)

    def _nonfinite(self, layout: Layout, memory: Memory, where: Place) -> tuple[int, tuple[int, ...]] | None:
        launch = plan("nonfinite", layout, memory, layout.dtype)
        if launch is None:
            return None
        count, first = self._driver.count(launch, where)
        if not count:
            return None
        index = []
        for length in reversed(layout.shape):
            first, position = divmod(first, length)
            index.append(position)
        return count, tuple(reversed(index))

    def _run(
        self, operation: Operation, layout: Layout, memory: Memory, dtype: DType, *, where: Place, streams: Streams
    ) -> None:
        addresses = [0 if data is None else self._driver.place(data).address for data in streams]
        launch = plan(operation, layout, memory, dtype, anchor=addresses[0], residual=addresses[1])
        if launch is None:
            return
        launch.argument["tables"] = self._driver.upload(cuda_tables.tables(layout.params), where)
        self._driver.launch(launch, where)
