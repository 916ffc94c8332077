"""The registry of backends: names, lazy loaders, and why one is not there.

To add one, write a module with a :class:`lynxq.backends.base.Backend` and register it in `_LOADERS`; then run
``lynxq.testing.check_backend("name")``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

from lynxq.arguments import shown
from lynxq.backends.base import Backend
from lynxq.backends.placement import device_reasons, get_for
from lynxq.dtypes import BY_NAME, named
from lynxq.errors import BackendError

__all__ = ["available", "get", "get_for", "warmup"]


def _cpu() -> Backend:
    from lynxq.backends.cpu.backend import CpuBackend

    return CpuBackend()


def _reference() -> Backend:
    from lynxq.backends.reference import ReferenceBackend

    return ReferenceBackend()


#: Best first: what `get` takes when no name is given. The last one needs nothing that lynxq does not need itself.
_LOADERS: dict[str, Callable[[], Backend]] = {"cpu": _cpu, "reference": _reference}


@cache
def _load(name: str) -> tuple[Backend | None, str]:
    """A backend, or None and why it does not run here: whatever a library may raise when it is imported."""
    try:
        return _LOADERS[name](), ""
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed: pip install {(error.name or '').partition('.')[0]}"
    except Exception as error:  # noqa: BLE001
        return None, f"{type(error).__name__}: {error}"


@cache
def _warn(name: str, reason: str, instead: str) -> None:
    """Say once that a slower backend is used."""
    message = f"backend {name!r} does not run here, {instead!r} is used, which is many times slower ({reason})"
    warnings.warn(message, RuntimeWarning, stacklevel=5)


def available() -> dict[str, str | None]:
    """All backends, best first, and why one does not run here.

    Returns
    -------
    dict of str to (str or None)
        For every name None if the backend runs here, and a sentence otherwise.

    Examples
    --------
    >>> available()["reference"] is None
    True
    """
    return {name: _load(name)[1] or None for name in _LOADERS} | device_reasons()


def get(name: str | None = None) -> Backend:
    """The backend of a name, or the best one that runs here.

    Without a name, a `RuntimeWarning` says once if that is not the best one there is, and how to install it.

    Raises
    ------
    BackendError
        If there is no such backend, or it cannot run here; the message says why.
    """
    if name is not None and (not isinstance(name, str) or name not in _LOADERS):
        raise BackendError(f"backend must be one of {', '.join(_LOADERS)}, got {shown(name)}")
    missing = ("", "")
    for candidate in _LOADERS if name is None else (name,):
        backend, reason = _load(candidate)
        if backend is not None:
            if missing[0]:
                _warn(*missing, candidate)
            return backend
        missing = missing if missing[0] else (candidate, reason)
    raise BackendError(f"backend {missing[0]!r} does not run here: {missing[1]}")


def warmup(*dtypes: str) -> None:
    """Compile the kernels of the best backend, or load them from its cache on disk.

    The first call of a kernel does that otherwise: many seconds without a cache, a fraction of one with it.

    Parameters
    ----------
    *dtypes : str
        The element types to prepare for; all by default.

    Examples
    --------
    >>> warmup("bfloat16")
    """
    get().warmup(*(named(dtype) for dtype in dtypes or BY_NAME))
