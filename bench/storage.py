"""Saving and loading containers, as operations to be timed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from timing import Operation

import lynxq

_MOUNTS = Path("/proc/mounts")


def default_directory() -> Path:
    """A folder in memory where there is one: what is measured is our work, not the disk's."""
    shared = Path("/dev/shm")  # noqa: S108 - that is where Linux has its tmpfs
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def filesystem(directory: Path) -> str:
    """Type of the file system that holds a folder, as the kernel names it."""
    if not _MOUNTS.exists():
        return "unknown"
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text(encoding="utf-8").splitlines()]
    holding = [(len(point), kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"


@contextmanager
def threads_of_load(threads: int) -> Iterator[None]:
    """Decodes from a container take the number of threads from the environment."""
    old = os.environ.get("LYNXQ_THREADS")
    os.environ["LYNXQ_THREADS"] = str(threads)
    try:
        yield
    finally:
        if old is None:
            del os.environ["LYNXQ_THREADS"]
        else:
            os.environ["LYNXQ_THREADS"] = old


def container_operations(
    path: Path, encoded: lynxq.Encoded, out: np.ndarray[Any, Any], backend: str
) -> dict[str, Operation]:
    """Operations on a container with one tensor. `save` begins with coded streams; loads end with decoded values.

    Every load opens the file anew and checks all checksums of what it reads; the file is in the page cache.
    """

    def load(tier: str) -> object:
        with lynxq.open(path) as reader:
            return reader["x"].decode(tier, out=out, backend=backend)

    operations: dict[str, Operation] = {
        "save": lambda: lynxq.save(path, {"x": encoded}),
        "load": lambda: load("full"),
        "load_anchor": lambda: load("anchor"),
    }
    operations["save"]()
    return operations
