"""README's example runs, its commands are the ones we test, and its tables are the committed results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_examples_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own text
    assert (tmp_path / "kv.lynx").stat().st_size > 0


def test_the_two_commands_are_shown():
    assert "pip install . && lynxq demo" in README
    assert "pip install '.[test]' && pytest" in README


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_tables_are_what_the_script_writes():
    command = [sys.executable, str(ROOT / "bench" / "readme.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
