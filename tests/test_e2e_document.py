"""docs/e2e.md has the tables of the committed results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lynxq.cli import e2e
from lynxq.e2e import methods

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "e2e-smollm2.json"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import e2e_report

    return e2e_report


def test_the_page_is_what_the_report_writes():
    if not RESULTS.exists():
        pytest.skip("no results are committed")
    command = [sys.executable, str(ROOT / "bench" / "e2e.py"), "--report", "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_page_and_the_help_name_every_method():
    names = set(methods.by_name())
    page = (ROOT / "docs" / "e2e.md").read_text(encoding="utf-8")
    assert {name for name in names | {methods.CALIBRATED} if f"`{name}`" not in page} == set()
    assert set(e2e._METHODS.split(", ")) == names


def row(method, prompt=2048, link=25.0, **more):
    job = {"method": method, "prompt_tokens": prompt, "rate": 5e6, "temperature": more.pop("temperature", 0.0)}
    at = more.pop("at", 1.0)
    final = [at + 0.01 * i for i in range(64)]
    times = {"first_drafted": more.pop("drafted_at", at), "first_final": at, "final_at": final, "anchor_at": at}
    return {"link": link, "job": job, "tokens": list(range(64)), **times, **more}


def test_repetitions_are_compared_within_and_shown_by_their_middle(bench):
    """A turn in which everything is slow changes nothing; of three runs the table shows the middle one."""
    rows = []
    for repeat, slow in enumerate((1.0, 3.0, 1.0)):
        rows += [
            row("int8", at=10.0 * slow, repeat=repeat),
            row("int4", at=5.0 * slow, repeat=repeat),
            row(
                "lynx-4+3", at=8.0 * slow + repeat / 4, drafted_at=5.5 * slow, repeat=repeat, verify_seconds=0.5 * slow
            ),
        ]
    result = {
        "rows": json.loads(json.dumps(rows)), "model": "M", "text": "T", "load_before": 0.5,
        "environment": {"processor": "P", "system": "S", "commit": "c"},
        "reference": {"step": 0.05, "tokens": 2048, "bf16_bytes": 47_000_000},
    }  # fmt: skip
    assert "| Lynx, 4+3 bits | 1.10 | 0.55 | -3.83 | – | 0.81 |" in bench.goals(result)[-1]
    shown = [line for line in bench.tables(result) if line.startswith("| Lynx, 4+3")]
    assert len(shown) == 1
    assert "| 5.50 | 8.50 |" in shown[0]


def test_tables_say_what_the_rows_say(bench):
    tie = {"rounding": 1e-4, "difference": {"place": 3, "gap": 1e-4}}
    rows = [
        row("int8", at=10.0, same_as_bf16=False),
        row("int4", at=5.0),
        row("lynx", at=10.5, drafted_at=5.5, drafted=40, accepted=39, verify_seconds=1.0, same_as_full=True),
        row("lynx", at=3.0, drafted=10, accepted=10, same_as_full=False, **tie),
        row("lynx", at=3.0, temperature=0.8, drafted=10, accepted=8, same_as_full=True),
        {**row("lynx"), "error": "the link was cut", "final_at": [], "first_final": None},
    ]  # fmt: skip
    result = {
        "rows": json.loads(json.dumps(rows)), "model": "M", "text": "T", "load_before": 0.5,
        "environment": {"processor": "P", "system": "S", "commit": "c"},
        "reference": {"step": 0.05, "tokens": 2048, "bf16_bytes": 47_000_000},
    }  # fmt: skip
    assert (
        "like 25 Gbit/s | Lynx | 0.60 | 0.30 "
        in bench.goals({**result, "rows": result["rows"][:2] + result["rows"][3:4]})[-1]
    )
    line = bench.goals({**result, "rows": result["rows"][:3]})[-1]
    assert "| 1.10 | 0.55 | 0.50 | – | 1.05 |" in line
    grouped = [*result["rows"][:3], row("int8-token", at=10.25)]
    assert "| 0.50 | 0.25 | 1.05 |" in bench.goals({**result, "rows": grouped})[-1]
    table = bench.losslessness(result, None)
    assert any("prompts | 2, 1 |" in one for one in table)
    assert any("from the full reconstruction | 1 |" in one for one in table)
    assert any("at a tie of two logits | 1 |" in one for one in table)
    assert any("49 of 50 (98.0%)" in one for one in table)
    assert any("8 of 10 (80.0%)" in one for one in table)
    assert bench.token_rate([]) == 0
    shown = "\n".join(bench.tables(result))
    assert "| Lynx | 0.0 | 5.50 | 10.50 | 10.81 | 11.13 | 39 / 40 | yes | – |" in shown
    assert "sampled at temperature 0.8" in shown
    assert "looked up" not in shown + "".join(table)


def test_tables_say_what_was_looked_up_where_something_was(bench):
    found = {"drafted": 40, "accepted": 1, "proposed": 30, "kept": 20, "passes": {"lookup": 6, "step": 9}}
    rows = [row("lynx", **found), row("lynx", temperature=0.8, **{**found, "kept": 3}), row("lynx-4+3", drafted=2)]
    result = {
        "rows": rows, "model": "M", "text": "T", "load_before": 0.5,
        "environment": {"processor": "P", "system": "S", "commit": "c"},
        "reference": {"step": 0.05, "tokens": 2048, "bf16_bytes": 47_000_000},
    }  # fmt: skip
    shown = "\n".join(bench.tables(result))
    assert "| 1 / 40, looked up 20 / 30 |" in shown
    assert "| 0 / 2 |" in shown
    table = "\n".join(bench.losslessness(result, None))
    assert "and kept, greedy | 20 of 30 (66.7%), in 6 passes |" in table
    assert "and kept, sampled | 3 of 30 (10.0%), in 6 passes |" in table
