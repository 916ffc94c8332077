"""The driver of the CUDA backend: CuPy loads and launches what :mod:`lynxq.backends.cuda.nvrtc` compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lynxq import devices
from lynxq.backends.cuda import nvrtc
from lynxq.backends.cuda.backend import Place
from lynxq.backends.cuda.plan import Launch
from lynxq.errors import BackendError


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def import_cupy() -> Any:
    """CuPy on a machine where kernels can be compiled, loaded and run.

    Raises
    ------
    BackendError
        Says what is missing: CuPy, the driver, a GPU, or NVRTC.
    """
    try:
        import cupy
    except Exception as error:  # a broken CUDA installation raises more than ImportError
        raise BackendError(f"CuPy cannot be imported ({_reason(error)}): pip install cupy-cuda13x") from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise BackendError(f"there is no usable NVIDIA driver or GPU ({_reason(error)})") from error
    if not count:
        raise BackendError("there is no CUDA device")
    nvrtc.version()
    return cupy


class CupyDriver:
    """Runs launches on CUDA devices; see :class:`lynxq.backends.cuda.backend.Driver`.

    Raises
    ------
    BackendError
        If something is missing, see `import_cupy`.
    """

    def __init__(self) -> None:
        self._cupy = import_cupy()
        self._lock = threading.Lock()
        self._kernels: dict[tuple[object, ...], Any] = {}
        self._tables: dict[tuple[int, bytes], Any] = {}

    def place(self, array: Any) -> Place:
        """Locate a device array."""
        if not isinstance(array, devices.DeviceArray):
            raise BackendError(f"backend 'cuda' needs arrays on a CUDA device, got {type(array).__name__}")
        return Place(array.address, array.shape, array.strides, array.device, array.stream)

    @contextmanager
    def _at(self, where: Place) -> Iterator[None]:
        """Make a device and a stream current."""
        cuda = self._cupy.cuda
        with cuda.Device(where.device):
            stream = cuda.ExternalStream(where.stream) if where.stream else cuda.Stream.null
            with stream:
                yield

    def upload(self, data: bytes, where: Place) -> int:
        """Address of a copy of `data` on the device; waits for the copy the first time."""
        key = where.device, data
        with self._lock:
            if key not in self._tables:
                with self._at(where):
                    self._tables[key] = self._cupy.asarray(np.frombuffer(data, np.uint8))
                    self._cupy.cuda.get_current_stream().synchronize()  # other streams will read it
            return int(self._tables[key].data.ptr)

    def launch(self, launch: Launch, where: Place) -> None:
        """Put a launch on the stream; compiles or loads the kernel the first time."""
        with self._at(where):
            kernel = self._kernel(launch, where)
            kernel((launch.blocks,), (launch.threads,), (launch.argument,))

    def _kernel(self, launch: Launch, where: Place) -> Any:
        key = where.device, launch.kernel, launch.defines
        with self._lock:
            if key not in self._kernels:
                capability = self._cupy.cuda.Device(where.device).compute_capability
                path = nvrtc.cubin_path(launch.unit, launch.defines, int(capability))
                # From a path, so that CuPy compiles nothing and adds no option.
                self._kernels[key] = self._cupy.RawModule(path=str(path)).get_function(launch.kernel)
            return self._kernels[key]

    def count(self, launch: Launch, where: Place) -> tuple[int, int]:
        """Launch with two counters, wait, and return them."""
        with self._at(where):
            counters = self._cupy.asarray(np.array([0, 2**64 - 1], np.uint64))
            launch.argument["report"] = counters.data.ptr
            self.launch(launch, where)
            count, first = counters.get().tolist()
        return count, first

    def to_device(self, array: np.ndarray[Any, Any], where: Place) -> Any:
        """A copy of a numpy array on the device, as an array that `place` knows."""
        with self._at(where):
            return devices.locate(self._cupy.asarray(array))

    def to_host(self, array: Any, where: Place) -> np.ndarray[Any, Any]:
        """A copy of what `to_device` made; waits for the stream."""
        with self._at(where):
            result: np.ndarray[Any, Any] = array.owner.get()
            return result
