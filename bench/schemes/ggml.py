"""q8_0 and q4_0 of ggml, the formats of llama.cpp's quantized KV cache, by its compiled library.

The library is that of the package libggml-python, or one built for this machine, whose folder is in the environment
variable `LYNXQ_BENCH_GGML` (bench/README.md says how). As in ggml's own copies between types, blocks are widened to
float32, quantized while they are in the cache, and the other way round.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lynxq.naming import Kind
from schemes.base import Peer, UnsuitableError, Values, widen

VARIABLE = "LYNXQ_BENCH_GGML"
#: Values of a block of the formats; its bytes are an fp16 scale and the codes.
GROUP = 32
#: Values that are widened at once: their float32 stays in the L2 cache.
BLOCK = 1 << 16
_BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
_Function = Callable[[int, int, int], None]


def folder() -> Path:
    """Where the library is: one for a process, since two would find each other's symbols."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    found = find_spec("libggml")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'libggml'", name="libggml")
    return Path(found.submodule_search_locations[0]) / "lib64"


def build() -> str:
    """Which library is measured, for results."""
    try:
        _libraries()
    except OSError as error:
        return f"none, {error}"
    except ModuleNotFoundError:
        return "none, numpy code of gguf instead"
    return "built for this machine" if os.environ.get(VARIABLE) else "package libggml-python"


@cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """ggml's base and CPU libraries, with the tables that they compute at the start."""
    base, cpu = (ctypes.CDLL(str(folder() / f"libggml-{part}.so")) for part in ("base", "cpu"))
    cpu.ggml_cpu_init()
    return base, cpu


def _function(library: ctypes.CDLL, name: str) -> _Function:
    function: Any = getattr(library, name)
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function


class Ggml(Peer):
    def __init__(self, x: Values, kind: Kind, *, form: str) -> None:
        super().__init__(x, kind)
        if x.shape[-1] % GROUP:
            raise UnsuitableError(f"rows must be multiples of {GROUP} values, got {x.shape[-1]}")
        base, cpu = _libraries()
        self._widen, self._narrow = _function(cpu, "ggml_cpu_bf16_to_fp32"), _function(cpu, "ggml_cpu_fp32_to_bf16")
        self._quantize = _function(cpu, f"quantize_row_{form}")
        self._dequantize = _function(base, f"dequantize_row_{form}")
        self._codes = np.zeros(x.size // GROUP * _BLOCK_BYTES[form], np.uint8)
        self._floats = np.zeros(BLOCK, np.float32)
        codes, size = self._codes.ctypes.data, _BLOCK_BYTES[form]
        self._blocks = [
            (x.itemsize * start, codes + start // GROUP * size, min(BLOCK, x.size - start))
            for start in range(0, x.size, BLOCK)
        ]

    def encode(self) -> None:
        source, floats = self.x.ctypes.data, self._floats.ctypes.data
        for offset, codes, count in self._blocks:
            self._widen(source + offset, floats, count)
            self._quantize(floats, codes, count)

    def decode(self) -> None:
        target, floats = self.out.ctypes.data, self._floats.ctypes.data
        for offset, codes, count in self._blocks:
            self._dequantize(codes, floats, count)
            self._narrow(floats, target + offset, count)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes


class Gguf(Peer):
    """The same formats by the numpy code of the package gguf, where no library is."""

    def __init__(self, x: Values, kind: Kind, *, form: str) -> None:
        super().__init__(x, kind)
        if x.shape[-1] % GROUP:
            raise UnsuitableError(f"rows must be multiples of {GROUP} values, got {x.shape[-1]}")
        import gguf

        self._library = gguf
        self._type = gguf.GGMLQuantizationType[form.upper()]
        self._floats = np.zeros(x.shape, np.float32)

    def encode(self) -> None:
        widen(self.x, self._floats)
        self._codes = self._library.quants.quantize(self._floats, self._type)

    def decode(self) -> None:
        floats = self._library.quants.dequantize(self._codes, self._type)
        self.out[...] = floats.reshape(self.out.shape)

    @property
    def nbytes(self) -> int:
        return int(self._codes.nbytes)
