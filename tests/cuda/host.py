"""Run the CUDA kernels on the CPU: the same source through g++, or what NVIDIA's compiler made of it.

`HostDriver` stands in for the driver of `CudaBackend`, so that the planning, the launches
and the kernels that a GPU would run are what the tests run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lynxq.backends.cuda import nvrtc
from lynxq.backends.cuda.backend import CudaBackend, Place
from lynxq.backends.cuda.plan import Launch
from tests.cuda import ptx

SHIM = Path(__file__).parent / "shim"
KERNELS = nvrtc.KERNELS
#: -ffp-contract=off: some hosts would fuse a product and a sum, which CUDA's intrinsics never do. -fno-gnu-unique:
#: shared memory is static in inline functions, which all libraries of a process would have in common.
FLAGS = [
    *("-std=c++17", "-O1", "-ffp-contract=off", "-fno-fast-math", "-U_FORTIFY_SOURCE", "-fPIC", "-shared"),
    *(
        "-fno-gnu-unique",
        "-Wl,-Bsymbolic",
        "-Wall",
        "-Wno-unknown-pragmas",
        "-Wno-unused",
        "-Wno-clobbered",
        "-Wno-sign-compare",
    ),
]
#: Flags of a build, by what it looks for. Sanitizers that follow threads need one OS thread for each CUDA thread.
MODES = {
    "plain": "",
    "ubsan": "-g -fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all -static-libubsan",
    "asan": "-DSHIM_THREADS -pthread -g -fsanitize=address,undefined -fno-sanitize-recover=all",
    "tsan": "-DSHIM_THREADS -pthread -g -fsanitize=thread",
}
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')


def compiler() -> str | None:
    """The host compiler, or None."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def _cache() -> Path:
    path = Path(os.environ.get("LYNXQ_TEST_CACHE") or Path(tempfile.gettempdir()) / f"lynxq-host-{os.getuid()}")
    path.mkdir(parents=True, exist_ok=True)
    return path


@functools.cache
def _precompiled(command: tuple[str, ...]) -> Path:
    """A folder with the shim as a precompiled header, which halves the time of every build."""
    header = SHIM / "cuda_host_shim.h"
    digest = hashlib.sha256("\0".join(command).encode() + header.read_bytes()).hexdigest()[:16]
    folder = _cache() / f"shim-{digest}"
    if not (folder / "cuda_host_shim.h.gch").exists():
        folder.mkdir(exist_ok=True)
        shutil.copy(header, folder)
        part = folder / f"{os.getpid()}.part"
        run = [*command, "-x", "c++-header", str(folder / header.name), "-o", str(part)]
        subprocess.run(
            [word for word in run if word not in ("-shared", "-Wl,-Bsymbolic")], check=True, capture_output=True
        )
        part.replace(folder / "cuda_host_shim.h.gch")
    return folder


class BuildError(Exception):
    """The host's compiler rejects a source."""


class HostModule:
    """A shared library made of kernels.

    Parameters
    ----------
    source : str
        CUDA C++ with ``extern "C"`` kernels, or the C++ that `ptx.translate` returns.
    options : sequence of str
        Further options of the compiler: definitions and include paths.
    mode : str
        A name in `MODES`.
    translated : bool
        Whether the source is C++ that needs no export of its kernels.
    folder : Path
        Of the files that the source may include.
    """

    def __init__(
        self,
        source: str,
        options: tuple[str, ...] = (),
        mode: str = "plain",
        *,
        translated: bool = False,
        folder: Path = KERNELS,
    ) -> None:
        exports = [] if translated else [f"SHIM_EXPORT({name})" for name in _KERNEL.findall(source)]
        unit = "\n".join(['#include "cuda_host_shim.h"', '#line 1 "kernel.cu"', source, *exports, ""])
        command = [compiler() or "g++", *FLAGS, *MODES[mode].split()]
        if translated:
            command.append("-O0")  # what is translated is long, and its runs are short
        command += [f"-I{_precompiled(tuple(command))}", f"-I{SHIM}", *options]
        digest = hashlib.sha256("\0".join([*command, unit]).encode())
        for header in (*sorted(SHIM.glob("*.h")), *sorted(folder.glob("*.cu*"))):
            digest.update(header.read_bytes())
        library = _cache() / f"{digest.hexdigest()[:32]}.so"
        if not library.exists():
            self._build(command, unit, library)
        self._library = ctypes.CDLL(str(library))
        self._library.shim_set_order.argtypes = [ctypes.c_uint]
        probe = np.array([1 + 2.0**-12, -(1 + 2.0**-11), np.finfo(np.float32).tiny], np.float32)
        faults = self._library.shim_fp_selftest(ctypes.c_void_p(probe.ctypes.data))
        if faults:
            raise RuntimeError(
                f"this host does not compute IEEE float32: contraction {faults & 1}, flush {faults >> 1}"
            )

    @staticmethod
    def _build(command: list[str], unit: str, library: Path) -> None:
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            path = Path(folder) / "unit.cpp"
            path.write_text(unit, encoding="utf-8")
            run = subprocess.run([*command, str(path), "-o", f"{path}.so"], capture_output=True, text=True, check=False)
            if run.returncode:
                raise BuildError(f"host compile failed: {' '.join(command)}\n{run.stderr}")
            Path(f"{path}.so").replace(library)

    def set_order(self, seed: int) -> None:
        """0: threads and blocks run forward, 1: backward, others: shuffled. Results must not depend on it."""
        self._library.shim_set_order(seed)

    def launch(self, name: str, blocks: int, threads: int, *arguments: np.ndarray[Any, Any]) -> None:
        """Run a kernel. Arrays of one element are passed by value, as CuPy does; others by their address."""
        kernel = getattr(self._library, f"shim_launch_{name}")
        kernel.restype = ctypes.c_char_p
        kernel.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        slots = (ctypes.c_void_p * max(len(arguments), 1))()
        values = [a if a.ndim == 0 else np.array(a.ctypes.data, np.uintp) for a in arguments]
        for k, value in enumerate(values):
            slots[k] = value.ctypes.data
        sizes = np.array([blocks, 1, 1, threads, 1, 1], np.uint32)
        error = kernel(sizes.ctypes.data, 0, slots)
        if error:
            raise RuntimeError(f"{name}: {error.decode()}")


@functools.cache
def source_module(
    unit: str, defines: tuple[tuple[str, int], ...], mode: str = "plain", folder: Path = KERNELS
) -> HostModule:
    """A kernel file through g++."""
    options = (f"-I{folder}", *nvrtc.definitions(defines))
    return HostModule((folder / f"{unit}.cu").read_text(encoding="utf-8"), options, mode, folder=folder)


@functools.cache
def ptx_module(unit: str, defines: tuple[tuple[str, int], ...], architecture: int, mode: str = "plain") -> HostModule:
    """A kernel file through NVRTC, its PTX translated."""
    code = nvrtc.compile_unit(unit, defines, architecture)
    return HostModule(ptx.translate(code.ptx), mode=mode, translated=True)


class HostDriver:
    """Runs launches on numpy arrays.

    Parameters
    ----------
    module : callable
        (source file, compile-time parameters) to `HostModule`.
    order : int
        See `HostModule.set_order`.
    """

    def __init__(self, module: Callable[[str, tuple[tuple[str, int], ...]], HostModule], order: int = 0) -> None:
        self._module = module
        self._tables: dict[bytes, np.ndarray[Any, Any]] = {}
        self.order = order
        self.launches: list[Launch] = []

    def place(self, array: np.ndarray[Any, Any]) -> Place:
        return Place(array.__array_interface__["data"][0], array.shape, array.strides, 0, 0)

    def upload(self, data: bytes, where: Place) -> int:
        buffer = self._tables.setdefault(data, np.frombuffer(data, np.uint8).copy())
        return buffer.ctypes.data

    def launch(self, launch: Launch, where: Place) -> None:
        self.launches.append(launch)
        module = self._module(launch.unit, launch.defines)
        module.set_order(self.order)
        module.launch(launch.kernel, launch.blocks, launch.threads, launch.argument)

    def count(self, launch: Launch, where: Place) -> tuple[int, int]:
        report = np.array([0, 2**64 - 1], np.uint64)
        launch.argument["report"] = report.ctypes.data
        self.launch(launch, where)
        return int(report[0]), int(report[1])

    def to_device(self, array: np.ndarray[Any, Any], where: Place) -> np.ndarray[Any, Any]:
        return array.copy()

    def to_host(self, array: np.ndarray[Any, Any], where: Place) -> np.ndarray[Any, Any]:
        return array


def backend(kind: str = "source", order: int = 0, mode: str = "plain", folder: Path = KERNELS) -> CudaBackend:
    """The CUDA backend on the CPU: "source", or "sm_90" and the like for NVIDIA's compiler output."""

    def module(unit: str, defines: tuple[tuple[str, int], ...]) -> HostModule:
        if kind == "source":
            return source_module(unit, defines, mode, folder)
        return ptx_module(unit, defines, int(kind.removeprefix("sm_")), mode)

    return CudaBackend(HostDriver(module, order), self_test=False)
