"""A GGUF model kept as a Hugging Face folder: reading GGUF takes transformers half a minute, each time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lynxq.lab.download import digest

_WEIGHTS, _SUMS = "model.safetensors", "lynxq.json"


def converted(gguf: Path, read: Callable[[Path], tuple[Any, Any]]) -> Path:
    """The folder of a model beside its GGUF file, made at the first call, and again if it is damaged.

    Parameters
    ----------
    gguf : path
    read : callable
        From the path of a GGUF file to a model in float32 and its tokenizer.

    Returns
    -------
    path
        Weights in float32: what was four bits and scales fits in nothing smaller exactly.
    """
    folder = gguf.with_suffix("")
    if _sound(folder):
        return folder
    module, tokenizer = read(gguf)
    with tempfile.TemporaryDirectory(dir=gguf.parent, prefix="convert-") as temporary:
        made = Path(temporary, folder.name)
        module.save_pretrained(made, max_shard_size="100GB")
        tokenizer.save_pretrained(made)
        sums = {path.name: digest(path) for path in sorted(made.iterdir())}
        (made / _SUMS).write_text(json.dumps(sums, indent=1), encoding="utf-8")
        if folder.exists():
            # Set aside first: a folder that is not empty cannot be replaced.
            folder.rename(Path(temporary, "damaged"))
        try:
            made.rename(folder)
        except OSError:
            if not _sound(folder):  # another process was first
                raise
    return folder


def _sound(folder: Path) -> bool:
    """Whether a folder has all files that were written to it, as they were written."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        return _WEIGHTS in sums and all(digest(folder / name) == found for name, found in sums.items())
    except (OSError, ValueError, AttributeError):
        return False
