"""What a result must say of where it comes from."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lynxq

RESULTS = Path(__file__).parent / "results"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def environment(*packages: str) -> dict[str, Any]:
    """Machine, versions of Python and of packages, and commit ("+" if the code differs from it)."""
    versions = {"python": platform.python_version(), "lynxq": lynxq.__version__}
    for package in ("numpy", *packages):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    changed = _git("status", "--porcelain", "--", "lynxq", "bench/*.py")
    return {
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "commit": _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else ""),
    }
