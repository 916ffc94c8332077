"""docs/baselines.md: its table is what the script writes, and its example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lynxq import baselines

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


def test_the_table_is_what_the_script_writes(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, str(ROOT / "bench" / "baselines.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE) == list(baselines.SCHEMES)


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_examples_run(code, capsys):
    exec(compile(code, "baselines.md", "exec"), {})  # noqa: S102 - our own text
    token, channel = (float(line.split()[1]) for line in capsys.readouterr().out.splitlines())
    assert token > 100 * channel
