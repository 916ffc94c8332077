"""What the machine offers, and why a test is skipped where something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

from lynxq.backends.cuda import nvrtc
from lynxq.errors import BackendError
from tests.cuda import host

#: Set to run the sanitizers and the mutants, which take minutes.
SLOW = "LYNXQ_SLOW_TESTS"


def _has_nvrtc() -> bool:
    try:
        nvrtc.version()
    except BackendError:
        return False
    return True


def cuda_tool(name: str) -> str | None:
    """Path of a tool of the CUDA toolkit, from its wheel or from PATH."""
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / name
    return str(wheel) if wheel.is_file() else shutil.which(name)


needs_compiler = pytest.mark.skipif(host.compiler() is None, reason="no C++ compiler: install g++")
needs_nvrtc = pytest.mark.skipif(not _has_nvrtc(), reason="no NVRTC: pip install nvidia-cuda-nvrtc")
needs_cuobjdump = pytest.mark.skipif(
    cuda_tool("cuobjdump") is None, reason="no cuobjdump: pip install nvidia-cuda-cuobjdump"
)
slow = pytest.mark.skipif(SLOW not in os.environ, reason=f"takes minutes: set {SLOW}=1")


def resources(cubin: bytes) -> dict[str, dict[str, int]]:
    """What cuobjdump says of every kernel: REG, STACK, SHARED, LOCAL and more."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuda_tool("cuobjdump")), "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {
        match[1]: {key: int(value) for key, value in re.findall(r"([A-Z]+)(?:\[\d+\])?:(\d+)", match[2])}
        for match in re.finditer(r"Function (\w+):\s*\n\s*(.*)", text)
    }
