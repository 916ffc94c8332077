"""docs/results.md and docs/calibration.md: what is generated is up to date, and says it where others are better."""

from __future__ import annotations

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


def result(name):
    path = ROOT / "bench" / "results" / name
    if not path.exists():
        pytest.skip(f"{name} is not measured yet, and the page says so")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def quality():
    return result("quality-lm-smollm2.json")


@pytest.fixture(scope="module")
def ablation():
    return result("ablation-smollm2.json")


def test_pages_are_what_the_script_writes():
    command = [sys.executable, str(ROOT / "bench" / "results.py"), "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_figures_are_there(ablation):
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


def test_the_ablation_is_of_committed_code_and_says_what_it_lacks(ablation):
    assert not ablation["environment"]["commit"].endswith("+")
    names = set(tables.texts(ablation))
    assert len(names) >= 2
    assert all(set(row["texts"]) == names for row in ablation["rows"])
    missing = sum(any("kl" not in one for one in row["texts"].values()) for row in ablation["rows"])
    said = f"KL is missing for {missing} of {len(ablation['rows'])} choices."
    assert tables.ablation(ablation)[-1].endswith(said) is bool(missing)


def test_the_quality_is_of_committed_code_and_says_what_it_lacks(quality):
    assert not quality["environment"]["commit"].endswith("+")
    assert len(set(tables.texts(quality))) >= 2
    methods = {row["method"] for row in tables.by_method(quality)}
    said = f"{quality['methods'] - len(methods)} of {quality['methods']} methods are missing."
    assert tables.quality(quality)[-1].endswith(said) is (len(methods) < quality["methods"])


def made(kls, bits=None):
    """A result of made-up methods: a KL for each of their names."""
    titles = {"pair": "Our pair", "pair-5+3": "Our finer pair", "cal-vnmse": "calibrated"}
    rows = [
        {
            "text": text,
            "method": method,
            "title": titles.get(method, method),
            "tier": "anchor" if method in titles else "-",
            "kl": kl,
            "top1": 0.9,
            **dict.fromkeys(("bits_per_element", "key_bits", "value_bits"), (bits or {}).get(method, 4.6)),
            **{f"{kind}_{error}": 0.01 for kind in ("key", "value") for error in ("vnmse", "centred_vnmse")},
        }
        for text in ("a", "b")
        for method, kl in kls.items()
    ]
    calibrations = {"cal-vnmse": {"objective": "centred_vnmse", "budget_bits": 4.6}}
    return {"texts": [{"name": "a"}, {"name": "b"}], "rows": rows, "methods": len(kls), "calibrations": calibrations}


def test_a_better_baseline_is_named():
    (better,) = tables.verdicts(made({"pair": 2e-3, "Rival": 1e-3, "Other": 3e-3}))
    assert better == "- Our pair (4.60 bits, KL 2.0e-03): **worse** than Rival (4.60 bits, 1.0e-03)."
    (best,) = tables.verdicts(made({"pair": 2e-3, "Rival": 3e-3, "Other": 1e-3}, {"Other": 5.0}))
    assert best.endswith("none has a lower KL; the best is Rival (4.60 bits, 3.0e-03).")
    (alone,) = tables.verdicts(made({"pair": 2e-3, "Other": 1e-3}, {"Other": 5.0}))
    assert alone.endswith("no baseline here has as few bits.")


def test_a_target_that_is_missed_or_not_measured_is_said_to_be():
    reached = {"pair": 1e-3, "pair-5+3": 5e-4, "kivi4-w0": 2e-3, "kivi4-w0-sinks": 1e-3}
    assert ["**no**" in line for line in tables.targets(made(reached))[2:6]] == [False] * 4
    missed = {"pair": 3e-3, "pair-5+3": 2e-3, "kivi4-w0": 2e-3, "kivi4-w0-sinks": 1e-3}
    assert ["**no**" in line for line in tables.targets(made(missed))[2:6]] == [True] * 4
    assert all("not measured yet | **no**" in line for line in tables.targets(made(reached))[6:])


def test_one_text_alone_counts_for_nothing():
    half = made({"pair": 1e-3, "Rival": 2e-3})
    half["rows"] = [row for row in half["rows"] if (row["text"], row["method"]) != ("b", "Rival")]
    assert [row["method"] for row in tables.by_method(half)] == ["pair"]
    assert tables.quality(half)[-1] == "The run was interrupted: 1 of 2 methods are missing."


def test_fronts_have_what_no_other_beats():
    def row(bits, kl):
        return {"texts": {"a": {"bits": bits, "kl": kl}, "b": {"bits": bits, "kl": 3 * kl}}}

    best = tables.front([row(4, 2.0), row(5, 3.0), row(5, 1.0), row(6, 1.0), row(4, 2.5)], "kl")
    assert [(one["bits"], one["kl"]) for one in best] == [(4, 4.0), (5, 2.0)]
    unfinished = {"texts": {"a": {"bits": 3, "kl": 0.0}, "b": {"bits": 3}}}
    assert tables.front([row(4, 2.0), unfinished], "kl")[0]["bits"] == 4


@pytest.mark.parametrize(("factor", "verdict"), [(2, "does not pay"), (0.5, "pays"), (1, "makes no clear difference")])
def test_whether_calibration_pays_is_said(factor, verdict):
    lines = tables.calibration(made({"pair": 1e-3, "pair-5+3": 1e-3, "cal-vnmse": factor * 1e-3}))
    assert lines[-1] == (
        f"- calibrated by centred vNMSE for K and V, 4.60 bits: {factor:.2f} times the KL of Our pair; it {verdict}."
    )
