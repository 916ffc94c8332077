"""What a result must say of where it comes from."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lynxq

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parent.parent


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def load_average() -> float | None:
    """Processes that wanted a processor during the last minute, where the system counts them."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", *arguments]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    """The commit, with "+" if the code differs from it."""
    try:
        changed = _git("status", "--porcelain", "--", "lynxq", "bench", ":(exclude)bench/results")
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not a git checkout"


def environment(*packages: str) -> dict[str, Any]:
    """Machine, versions of Python and of packages, and commit ("+" if the code differs from it)."""
    versions = {"python": platform.python_version(), "lynxq": lynxq.__version__}
    for package in ("numpy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "commit": _commit(),
    }


def machine(result: dict[str, Any]) -> str:
    """Where a result comes from, in half a sentence."""
    where = result["environment"]
    load = "" if result["load_before"] is None else f", load {result['load_before']:.1f} at the start"
    return f"{where['processor']}, {where['system']}, commit `{where['commit']}`{load}"
