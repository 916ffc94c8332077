"""How kernels are compiled, and the few operations that numba has no word for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

#: No reassociation and no contraction: the arithmetic of the codec is normative. Division follows numpy. Kernels
#: allocate nothing, and without numba's runtime they do not count references to every row they look at either.
_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy", "_nrt": False}
#: Ways to call kernels that are not used, and take time to compile.
_KERNEL: dict[str, Any] = {**_OPTIONS, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {**_KERNEL, "no_cpython_wrapper": True}


def inner(function: Callable[..., Any]) -> Any:
    """Compile a helper of kernels; it becomes part of its callers and is not cached by itself."""
    return njit(**_INNER)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, cached on disk if there is a folder to keep it in."""
    dispatcher = njit(**_KERNEL)(function)
    with suppress(RuntimeError):  # neither the install folder nor the user's cache folder can be written
        dispatcher._cache = _Cache(function)
    return dispatcher


class _Cache(FunctionCache):
    """numba's cache on disk as a help: what cannot be read is compiled anew, what cannot be kept is not kept."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001 - whatever unpickling damaged bytes raises
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):
            super().save_overload(sig, data)


def _hold_compiler(hold: Callable[[], Any], release: Callable[[], Any]) -> None:
    """Let no process fork while a thread compiles: the child would wait for a lock that nobody holds there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=hold, after_in_parent=release, after_in_child=release)


_hold_compiler(global_compiler_lock.acquire, global_compiler_lock.release)


def _digest() -> int:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7], "big") | 1


#: A number, not zero, that changes with the source of any kernel. numba compares the file of a cached function with
#: that of its compilation, but not the files of what it calls, so cached functions name this number.
SOURCE = _digest()


@intrinsic
def float_of(_context: Any, _bits: Any) -> Any:
    """The float32 of a bit pattern."""

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of(_context: Any, _value: Any) -> Any:
    """The bit pattern of a float32."""

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def fused(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """a·b + c with one rounding. Only for candidates that are verified afterwards: it is not normative."""

    def generate(_target: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), generate
