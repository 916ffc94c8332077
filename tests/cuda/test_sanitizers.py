"""Bounds, undefined behaviour and races of the kernels. Minutes, so only where LYNXQ_SLOW_TESTS is set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cuda import cases, sanitize
from tests.cuda.mutants import mutated
from tests.cuda.tools import needs_compiler, slow

pytestmark = needs_compiler
ROOT = Path(__file__).parents[2]


def _run(mode: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words, environment = sanitize.command(mode)
    return subprocess.run(
        [*words, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500
    )


@slow
@pytest.mark.parametrize("mode", ["ubsan", "asan", "tsan"])
def test_kernels_are_clean(mode):
    result = _run(mode)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]


@slow
@pytest.mark.parametrize(
    ("mode", "file", "old", "new", "message"),
    [
        ("asan", "pages.cuh", "k < kind.next[which]", "k < kind.next[which] + 64", "heap-buffer-overflow"),
        ("tsan", "encode_token.cuh", "        __syncthreads();\n    }\n#else", "    }\n#else", "data race"),
        (
            "ubsan",
            "address.cuh",
            "const uint4 part = *reinterpret_cast<const uint4*>(p + 4 * k)",
            "const uint4 part = *reinterpret_cast<const uint4*>(p + 4 * k + 2)",
            "misaligned",
        ),
    ],
)
def test_sanitizers_notice_what_they_are_for(mode, file, old, new, message, tmp_path):
    result = _run(mode, str(mutated(tmp_path, file, old, new)))
    assert result.returncode != 0
    assert message in result.stdout + result.stderr, result.stderr[-3000:]


def test_every_case_of_a_sanitizer_is_there():
    assert {name for names in sanitize.NAMES.values() for name in names} <= set(cases.CASES)
