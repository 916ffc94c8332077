"""Texts to try models on: any file, and two that come with Python itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from lynxq.arguments import shown
from lynxq.errors import ParamsError


def python_reference() -> str:
    """Prose about Python: its language reference, as ``help()`` shows it. It depends on the version of Python."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError as error:  # distributions may leave it out
        raise ParamsError("this Python comes without pydoc_data, which has the text of its reference") from error
    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def python_source() -> str:
    """Source code: modules of Python's standard library. It depends on the version of Python."""
    names = ("argparse", "ast", "asyncio.base_events", "dataclasses", "difflib", "doctest", "inspect", "typing")
    return "\n\n".join(inspect.getsource(import_module(name)) for name in names)


#: Texts that need no file, by name.
TEXTS: Mapping[str, Callable[[], str]] = MappingProxyType(
    {"python-reference": python_reference, "python-source": python_source}
)


def read(source: str) -> tuple[str, str]:
    """The name and the content of a text.

    Parameters
    ----------
    source : str
        A name of `TEXTS`, or the path of a file in UTF-8.

    Returns
    -------
    name, text : str

    Raises
    ------
    ParamsError
        If it is neither, or the file is not UTF-8.

    Examples
    --------
    >>> from lynxq.lab import texts
    >>> name, text = texts.read("python-source")
    >>> name, "def parse_args" in text
    ('python-source', True)
    """
    if source in TEXTS:
        return source, TEXTS[source]()
    path = Path(source)
    if not path.is_file():
        raise ParamsError(f"a text must be a file or one of {', '.join(TEXTS)}, got {shown(source)}")
    try:
        return path.stem, path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ParamsError(f"a text must be in UTF-8, and {shown(source)} is not") from None
