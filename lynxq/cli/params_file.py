"""Files of parameters: a calibration, or `Params` for all tensors."""

from __future__ import annotations

from pathlib import Path

from lynxq.calibration import Calibration
from lynxq.cli.console import UsageError, plain
from lynxq.errors import ParamsError
from lynxq.params import Params


def read(path: Path) -> Calibration | Params:
    """What a file holds; raises `UsageError` for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{plain(path)} holds no parameters: it is not text") from None
    found: Calibration | Params
    try:
        found = Calibration.from_json(text) if '"entries"' in text else Params.from_json(text)
    except ParamsError as error:
        raise UsageError(f"{plain(path)} holds no parameters: {error}") from None
    return found
