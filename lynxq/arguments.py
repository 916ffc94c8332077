"""Checks of arguments that several modules make, and how messages show what was wrong."""

from __future__ import annotations

import math
import operator
from typing import Any, get_args

from lynxq.errors import LynxqError, ParamsError, ShapeError
from lynxq.urls import hidden, is_url, shown_url

_SHOWN = 200


def shown(value: object) -> str:
    """A value as a message shows it: its repr, cut to a line, without secrets of URLs; its type if it has no repr."""
    try:
        text = repr(shown_url(value)) if is_url(value) else hidden(repr(value))
    except ValueError:  # an integer of more digits than Python prints
        return f"a huge {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def integer(what: str, value: object, low: int, high: int, error: type[LynxqError] = ShapeError) -> int:
    """An integer of any integer type but bool, from `low` to `high`; raises `error` for anything else."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(f"{what} must be an integer, got {shown(value)}") from None
    if isinstance(value, bool) or not low <= number <= high:
        raise error(f"{what} must be an integer from {low} to {high}, got {shown(value)}")
    return number


def span(what: str, value: object, limit: int) -> tuple[int, int]:
    """A pair of integers 0 <= start <= stop <= limit; raises `ShapeError` for anything else."""
    try:
        start, stop = (integer(what, end, -(1 << 63), (1 << 63) - 1) for end in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what} must be a pair of integers, got {shown(value)}") from error
    if not 0 <= start <= stop <= limit:
        raise ShapeError(f"{what} must be within 0 and {limit}, got {start} to {stop}")
    return start, stop


def choice(what: str, value: object, choices: Any) -> None:
    """Raise `ParamsError` unless a value is one of the strings of a ``Literal`` type."""
    if not isinstance(value, str) or value not in get_args(choices):
        raise ParamsError(f"{what} must be one of {get_args(choices)}, got {shown(value)}")


def instance(what: str, value: object, kind: type, error: type[LynxqError]) -> None:
    """Raise `error` unless a value is an instance of a class."""
    if not isinstance(value, kind):
        raise error(f"{what} must be of type {kind.__name__}, got {type(value).__name__}")


def real(what: str, value: object, low: float, high: float = math.inf, *, exclusive: bool = False) -> float:
    """A finite number from `low` (or above it, if `exclusive`) to `high`; raises `ParamsError` for anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ParamsError(f"{what} must be a number, got {shown(value)}") from None
    if isinstance(value, str | bytes | bool) or not math.isfinite(number):
        raise ParamsError(f"{what} must be a finite number, got {shown(value)}")
    if not low <= number <= high or (exclusive and number == low):
        least = f"above {low:g}" if exclusive else f"at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ParamsError(f"{what} must be {least}{most}, got {number:g}")
    return number
