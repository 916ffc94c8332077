"""``--methods``: names with commas between them, or all."""

from __future__ import annotations

from typing import Annotated

import typer

from lynxq import evaluate
from lynxq.cli import console

Methods = Annotated[str, typer.Option(help=f"names separated by commas, or all: {', '.join(evaluate.METHODS)}")]


def names(methods: str) -> list[str]:
    """The names in an option, each once; raises `UsageError` if one comes again, or is empty."""
    found = [name.strip() for name in methods.split(",")]
    for name in found:
        if not name:
            raise console.UsageError(f"--methods must be names with commas between them, got {methods!r}")
        if found.count(name) > 1:
            raise console.UsageError(f"{name} is named more than once in --methods")
    return found


def of_evaluate(methods: str) -> list[str]:
    """The same for methods of `evaluate`; all are those whose libraries are there, and a line says which are not."""
    if methods != "all":
        return names(methods)
    missing = [name for name, method in evaluate.METHODS.items() if not method.available]
    if missing:
        console.err.print(f"left out, for want of the extra `baselines`: {', '.join(missing)}")
    return [name for name in evaluate.METHODS if name not in missing]
