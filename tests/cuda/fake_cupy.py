"""A stand-in for the parts of CuPy that the driver uses, on the CPU.

Arrays are numpy memory behind cupy's attributes. A module "loaded" from a path runs the kernel that was compiled for
that path, through the PTX translator. What waits for the device is counted, so that a test can say nothing waited.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from tests.cuda import host


class ndarray:  # noqa: N801
    """Device memory. Reading its values without `get` is a mistake, and not possible."""

    def __init__(self, values: np.ndarray[Any, Any], device: int = 0) -> None:
        self._values = values
        self.shape, self.strides, self.dtype = values.shape, values.strides, values.dtype
        self.data = SimpleNamespace(ptr=values.__array_interface__["data"][0])
        self.device = SimpleNamespace(id=device)
        self.size, self.ndim = values.size, values.ndim

    def get(self) -> np.ndarray[Any, Any]:
        STATE.waits += 1
        return self._values.copy()

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(self._values[index], self.device.id)


class _State:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.devices = 1
        self.device = 0
        self.stream = 0
        self.waits = 0
        self.launches: list[tuple[str, int, int]] = []
        self.paths: dict[str, tuple[str, tuple[tuple[str, int], ...], int]] = {}
        self.failure: Exception | None = None
        self.break_kernels = False


STATE = _State()


class _Device:
    def __init__(self, number: int | None = None) -> None:
        self.id = STATE.device if number is None else number
        self.compute_capability = "90"

    def __enter__(self) -> Self:
        self._before, STATE.device = STATE.device, self.id
        return self

    def __exit__(self, *_: object) -> None:
        STATE.device = self._before


class _Stream:
    def __init__(self, pointer: int) -> None:
        self.ptr = pointer

    def __enter__(self) -> Self:
        self._before, STATE.stream = STATE.stream, self.ptr
        return self

    def __exit__(self, *_: object) -> None:
        STATE.stream = self._before

    def synchronize(self) -> None:
        STATE.waits += 1


class RawModule:
    """``cupy.RawModule(path=...)``, the only form that adds no compiler option."""

    def __init__(self, *, path: str) -> None:
        self._unit, self._defines, self._architecture = STATE.paths[path]

    def get_function(self, name: str) -> Any:
        module = host.ptx_module(self._unit, self._defines, self._architecture)

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            STATE.launches.append((name, STATE.device, STATE.stream))
            for argument in arguments:
                assert isinstance(argument, np.ndarray)
                assert argument.size == 1, "CuPy passes numpy arrays of one element by value and refuses others"
            if not STATE.break_kernels:
                module.launch(name, grid[0], block[0], *arguments)

        return launch


def _device_count() -> int:
    if STATE.failure:
        raise STATE.failure
    return STATE.devices


def asarray(values: Any, dtype: Any = None) -> ndarray:
    return ndarray(np.array(values, dtype), STATE.device)


def empty(shape: Any, dtype: Any) -> ndarray:
    values = np.empty(shape, dtype)
    values.view(np.uint8).fill(0xA5)
    return ndarray(values, STATE.device)


cuda = SimpleNamespace(
    Device=_Device,
    ExternalStream=_Stream,
    Stream=SimpleNamespace(null=_Stream(0)),
    get_current_stream=lambda: _Stream(STATE.stream),
    runtime=SimpleNamespace(getDeviceCount=_device_count),
)
