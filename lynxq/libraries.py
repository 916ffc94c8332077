"""Libraries that optional parts of lynxq need: imported when they are used, with one error where they are missing."""

from __future__ import annotations

import shlex
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

from lynxq.errors import MissingLibraryError


def need(module: str, package: str) -> Any:
    """Import a module of an optional library.

    Parameters
    ----------
    module : str
    package : str
        What to install for it, such as ``lynxq[lab]``.

    Raises
    ------
    MissingLibraryError
        If it cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module, package, error) from error


def absent(module: str, package: str, error: ImportError) -> Any:
    """What stands for a class of a library that cannot be imported, to inherit from.

    So a module of ours can be imported, by tools and for its documentation; but where an instance is made of the class,
    or of one that inherits from it, that raises what :func:`need` would.
    """
    return type("Absent", (Absent,), {"_error": missing(module, package, error)})


class Absent:
    """The base of all such classes."""

    _error: MissingLibraryError

    def __new__(cls, *_: Any, **__: Any) -> NoReturn:  # noqa: D102 - there are no instances
        raise cls._error.with_traceback(None)


def missing(module: str, package: str, error: Exception | None = None) -> MissingLibraryError:
    """The error for a module that cannot be imported, for whatever reason an import had."""
    # It may be another library, which the first one needs.
    named = error.name if isinstance(error, ModuleNotFoundError) and error.name else module
    library = named.partition(".")[0]
    if error is None or (isinstance(error, ModuleNotFoundError) and find_spec(library) is None):
        what = f"{library} is not installed"
    else:  # another version than is needed, or one that does not run here
        what = f"{library} cannot be used ({error})"
    return MissingLibraryError(f"{what}: pip install {shlex.quote(package)}", name=library)
