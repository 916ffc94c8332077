"""docs/results.md and docs/calibration.md: what is generated is up to date, and says it where others are better."""

from __future__ import annotations

import copy
import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import results_tables as tables  # noqa: E402 - a script's module, not of the package


@pytest.fixture(scope="module")
def quality():
    return json.loads((ROOT / "bench" / "results" / "quality-lm-smollm2.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ablation():
    return json.loads((ROOT / "bench" / "results" / "ablation-smollm2.json").read_text(encoding="utf-8"))


def test_pages_are_what_the_script_writes():
    command = [sys.executable, str(ROOT / "bench" / "results.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_figures_are_there():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert len(images) == 2
    for image in images:
        assert (ROOT / "docs" / image).stat().st_size > 10_000


def test_examples_of_the_page_on_calibration():
    text = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(code, {}, "calibration.md", "calibration.md", 0)
    output = []
    assert doctest.DocTestRunner(verbose=False).run(test, out=output.append).failed == 0, "".join(output)


def test_results_are_of_committed_code_and_say_what_they_lack(quality, ablation):
    for result in (quality, ablation):
        assert not result["environment"]["commit"].endswith("+")
        assert len(result["texts"]) >= 2
    names = set(tables.texts(ablation))
    assert all(set(row["texts"]) == names for row in ablation["rows"])
    missing = sum(any("kl" not in one for one in row["texts"].values()) for row in ablation["rows"])
    said = f"KL is missing for {missing} of {len(ablation['rows'])} choices."
    assert tables.ablation(ablation)[-1].endswith(said) is bool(missing)
    methods = {row["method"] for row in tables.by_method(quality)}
    said = f"{quality['methods'] - len(methods)} of {quality['methods']} methods are missing."
    assert tables.quality(quality)[-1].endswith(said) is (len(methods) < quality["methods"])


def test_a_better_baseline_is_named(quality):
    pair = next(row for row in tables.by_method(quality) if (row["method"], row["tier"]) == ("pair", "anchor"))
    for factor, expected in ((0.5, True), (2.0, False)):
        changed = copy.deepcopy(quality)
        for row in changed["rows"]:
            if row["method"] == "int8":
                row |= {"kl": factor * pair["kl"], "bits_per_element": pair["bits_per_element"], "title": "Rival"}
            elif row["tier"] == "-":
                row["kl"] = 10.0
        (line,) = [line for line in tables.verdicts(changed) if line.startswith(f"- {pair['title']} (4.5")]
        assert ("**worse** than Rival" in line) is expected
        assert ("none has a lower KL; the best is Rival" in line) is not expected


def test_a_target_that_is_missed_is_said_to_be(quality):
    missed = copy.deepcopy(quality)
    for row in missed["rows"]:
        if (row["method"], row["tier"]) == ("pair", "anchor"):
            row["kl"] = 1.0
    lines = tables.targets(missed)[2:]
    assert ["**no**" in line for line in lines][:2] == [True, True]


def test_fronts_have_what_no_other_beats():
    def row(bits, kl):
        return {"texts": {"a": {"bits": bits, "kl": kl}, "b": {"bits": bits, "kl": 3 * kl}}}

    best = tables.front([row(4, 2.0), row(5, 3.0), row(5, 1.0), row(6, 1.0), row(4, 2.5)], "kl")
    assert [(one["bits"], one["kl"]) for one in best] == [(4, 4.0), (5, 2.0)]


def test_what_does_not_pay_is_said(quality):
    worse = copy.deepcopy(quality)
    for row in worse["rows"]:
        if row["method"].startswith("cal-"):
            row["kl"] = 1.0
    verdicts = [line for line in tables.calibration(worse) if line.startswith("- ")]
    assert verdicts
    assert all(line.endswith("it does not pay.") for line in verdicts)
