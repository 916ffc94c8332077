"""Which backend works on an array: the memory it is in decides, not the caller."""

from __future__ import annotations

from functools import cache

from lynxq import devices
from lynxq.arguments import shown
from lynxq.backends.base import Backend
from lynxq.errors import BackendError

#: Backends of arrays that are not in the memory of the CPU.
DEVICE_BACKENDS = ("cuda",)


@cache
def _load(name: str) -> tuple[Backend | None, str]:
    """A backend, or None and why it does not run here. The first call looks for a driver, a GPU and a compiler."""
    from lynxq.backends.cuda import CudaBackend
    from lynxq.backends.cuda_driver import CupyDriver

    try:
        return CudaBackend(CupyDriver()), ""
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

    if devices.on_device(array):
        if name not in (None, *DEVICE_BACKENDS):
            raise BackendError(f"an array on a CUDA device needs backend 'cuda', got {shown(name)}")
        return device_backend(name or DEVICE_BACKENDS[0])
    if name in DEVICE_BACKENDS:
        raise BackendError(f"backend {name!r} needs an array on a CUDA device, got {type(array).__name__}")
    return backends.get(name)
