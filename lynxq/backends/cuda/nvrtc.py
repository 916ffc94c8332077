"""Compile the CUDA kernels with NVRTC, and keep what it made on disk.

CuPy appends ``-ftz=true`` to the options of every kernel that it compiles, which would flush subnormals to zero
(cupy/cupy#9576). Hence NVRTC is called here with exactly the options that the arithmetic of the format needs, and CuPy
only loads the result. No CUDA header is included, so the NVRTC library is all that is needed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lynxq.errors import BackendError

KERNELS = Path(__file__).parent / "kernels"
#: No contraction of products and sums, subnormals kept, division and square root rounded correctly.
OPTIONS = ("-std=c++17", "-default-device", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")

Defines = tuple[tuple[str, int], ...]


class Code(NamedTuple):
    """What NVRTC made of a source file."""

    ptx: str
    cubin: bytes


def definitions(defines: Iterable[tuple[str, int]]) -> list[str]:
    """Compile-time parameters as options of a compiler."""
    return [f"-D{name}={value}" for name, value in defines]


def _candidates() -> list[str]:
    """Where the NVRTC library may be: the wheels of CUDA 13 and 12, a toolkit, the system's search path."""
    found: list[str] = []
    roots = [Path(sysconfig.get_paths()[name]) / "nvidia" for name in ("purelib", "platlib")]
    for pattern in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        found += [str(root / pattern) for root in dict.fromkeys(roots) if (root / pattern).is_file()]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if variable in os.environ:
            found += sorted(map(str, Path(os.environ[variable], "lib64").glob("libnvrtc.so*")))
    return [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]


@functools.cache
def library() -> ctypes.CDLL:
    """The NVRTC library.

    Raises
    ------
    BackendError
        If there is none.
    """
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise BackendError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


@functools.cache
def version() -> tuple[int, int]:
    """Version of the NVRTC library."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _result(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compile_source(source: str, options: Iterable[str], name: str) -> Code:
    """Compile a source text.

    Raises
    ------
    BackendError
        With the compiler's messages.
    """
    lib, program = library(), ctypes.c_void_p()
    if lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None):
        raise BackendError("NVRTC cannot create a program")
    try:
        words = [option.encode() for option in options]
        status = lib.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        if status:
            log = _result(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise BackendError(f"NVRTC cannot compile {name}: {log}")
        return Code(_result(program, "PTX").rstrip(b"\0").decode(), _result(program, "CUBIN"))
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def compile_unit(unit: str, defines: Defines, architecture: int) -> Code:
    """Compile a kernel file for an architecture such as 90."""
    source = (KERNELS / f"{unit}.cu").read_text(encoding="utf-8")
    options = (f"-arch=sm_{architecture}", *OPTIONS, f"-I{KERNELS}", *definitions(defines))
    return compile_source(source, options, f"{unit}.cu")


@functools.cache
def _sources_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(KERNELS.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$LYNXQ_CACHE_DIR``, or ``lynxq`` in the user's cache."""
    given = os.environ.get("LYNXQ_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lynxq"


def cubin_path(unit: str, defines: Defines, architecture: int) -> Path:
    """Path of the compiled kernels of a file; compiles them unless they are on disk already.

    The file's name is a hash of the sources, the options, the architecture and the compiler's version.

    Raises
    ------
    BackendError
        If NVRTC is missing or rejects the source, or the file cannot be written.
    """
    key = "\0".join([unit, str(architecture), str(version()), *OPTIONS, *definitions(defines)]).encode()
    path = cache_folder() / f"{hashlib.sha256(_sources_digest() + key).hexdigest()[:40]}.cubin"
    if path.is_file():
        return path
    code = compile_unit(unit, defines, architecture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code.cubin)
        Path(file.name).replace(path)  # several processes may compile the same file
    except OSError as error:
        raise BackendError(f"compiled kernels cannot be kept in {path.parent}: {error}; set LYNXQ_CACHE_DIR") from error
    return path
