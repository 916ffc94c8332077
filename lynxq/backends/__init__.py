"""The registry of backends: names, lazy loaders, and why one is not there.

To add one, write a module with a :class:`lynxq.backends.base.Backend` and register it in `_LOADERS`; then run
``lynxq.testing.check_backend("name")``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lynxq.arguments import shown
from lynxq.backends.base import Backend
from lynxq.backends.placement import device_backend, device_reasons, get_for
from lynxq.errors import BackendError

__all__ = ["available", "device_backend", "get", "get_for"]


def _reference() -> Backend:
    from lynxq.backends.reference import ReferenceBackend

    return ReferenceBackend()


#: Best first: what `get` takes when no name is given.
_LOADERS: dict[str, Callable[[], Backend]] = {"reference": _reference}


@cache
def _load(name: str) -> Backend:
    return _LOADERS[name]()


def get(name: str | None = None) -> Backend:
    """The backend of a name, or the best one that runs here.

    Raises
    ------
    BackendError
        If there is no such backend, or it cannot run here; the message says why.
    """
    if name is None:
        name = next(iter(_LOADERS))
    if not isinstance(name, str) or name not in _LOADERS:
        raise BackendError(f"backend must be one of {', '.join(_LOADERS)}, got {shown(name)}")
    return _load(name)


def available() -> dict[str, str | None]:
    """All backends, and why one does not run here.

    Returns
    -------
    dict of str to (str or None)
        For every name None if the backend runs here, and a sentence otherwise.

    Examples
    --------
    >>> available()["reference"] is None
    True
    """
    return {**dict.fromkeys(_LOADERS), **device_reasons()}
