"""Which backend works on an array: the memory it is in decides, not the caller."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lynxq import devices
from lynxq.arguments import shown
from lynxq.backends.base import Backend
from lynxq.errors import BackendError


def _cuda() -> Backend:
    from lynxq.backends.cuda.backend import CudaBackend
    from lynxq.backends.cuda.driver import CupyDriver

    return CudaBackend(CupyDriver())


#: Backends of arrays that are not in the memory of the CPU, best first.
DEVICE_BACKENDS: dict[str, Callable[[], Backend]] = {"cuda": _cuda}


@cache
def _load(name: str) -> tuple[Backend | None, str]:
    """A backend, or None and why it does not run here. The first call looks for a driver, a GPU and a compiler."""
    try:
        return DEVICE_BACKENDS[name](), ""
    except BackendError as error:
        return None, str(error)


def device_reasons() -> dict[str, str | None]:
    """For every backend of a device None if it runs here, and a sentence otherwise."""
    return {name: _load(name)[1] or None for name in DEVICE_BACKENDS}


def device_backend(name: str) -> Backend:
    """A backend of a device.

    Raises
    ------
    BackendError
        If it cannot run here; the message says why.
    """
    backend, reason = _load(name)
    if backend is None:
        raise BackendError(f"backend {name!r} does not run here: {reason}")
    return backend


def get_for(array: object, name: str | None = None) -> Backend:
    """The backend of a name, or the best one, for an array where it is.

    Raises
    ------
    BackendError
        If there is no such backend, it cannot run here, or it cannot reach the array.
    """
    from lynxq import backends

    known = isinstance(name, str) and name in DEVICE_BACKENDS
    if devices.on_device(array):
        if name is not None and not known:
            raise BackendError(f"an array on a CUDA device needs backend 'cuda', got {shown(name)}")
        return device_backend(name or next(iter(DEVICE_BACKENDS)))
    if known:
        raise BackendError(f"backend {name!r} needs an array on a CUDA device, got {type(array).__name__}")
    return backends.get(name)
