"""The tests of the kernels must notice kernels that are broken. Minutes, so only where LYNXQ_SLOW_TESTS is set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.mutants import MUTANTS, mutated
from tests.cuda.tools import needs_compiler, slow

pytestmark = needs_compiler


@slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(name, tmp_path):
    file, old, new, _ = MUTANTS[name]
    folder = mutated(tmp_path, file, old, new)
    run = subprocess.run(
        [sys.executable, "-m", "tests.cuda.mutants", name, str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode != 0, "the mutant survives"
    assert run.returncode < 0 or "Traceback" not in run.stderr, run.stderr[-2000:]


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_up_to_date(name, tmp_path):
    file, old, new, _ = MUTANTS[name]
    mutated(tmp_path, file, old, new)
