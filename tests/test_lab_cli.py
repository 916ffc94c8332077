"""``lynxq lab`` on a small model in a folder, and what happens where libraries are missing."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import lynxq
from lynxq import lab
from lynxq.cli import app
from lynxq.tensorfile import open_tensors
from tests.lab_models import tiny

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    model = tiny()
    model.module.save_pretrained(path)
    model.tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "fox.txt"
    path.write_text("the quick brown fox jumps over the lazy dog " * 8)
    return path


def run(*arguments):
    result = RUNNER.invoke(app, ["lab", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_capture_writes_what_the_library_captures(folder, text, tmp_path):
    kv, queries = tmp_path / "kv.safetensors", tmp_path / "q.safetensors"
    shown = run(*("capture", text, "-o", kv, "--queries", queries, "--tokens", 100, "--start", 3, "--model", folder))
    assert "4 tensors of (100, 2, 16)" in shown
    expected = lab.capture(lab.load(folder), text.read_text()[3:103], queries=True)
    for path, tensors in ((kv, expected.tensors), (queries, expected.queries)):
        with open_tensors(path) as file:
            assert file.names == list(tensors)
            for name, array in file.items():
                assert array.tobytes() == tensors[name].view(dtype=lab.libraries.torch().int16).numpy().tobytes()
    same = ("--queries", str(kv), "--force", "--model", str(folder))
    for output in (str(kv), str(tmp_path / "x" / ".." / "kv.safetensors")):
        refused = RUNNER.invoke(app, ["lab", "capture", str(text), "-o", output, *same])
        assert "write queries to another one" in str(refused.exception) or "is not a folder" in str(refused.exception)
    again = RUNNER.invoke(app, ["lab", "capture", str(text), "-o", str(kv), "--model", str(folder)])
    assert isinstance(again.exception, lynxq.LynxqError)
    assert "pass --force" in str(again.exception)


SIZES = ("--prefix", 100, "--continuation", 40, "--greedy", 8)


def test_quality_as_table_json_csv_and_picture(folder, text, tmp_path):
    plot = tmp_path / "kl.svg"
    common = ("quality", text, "python-reference", "--methods", "pair,int8", "--model", folder, *SIZES)
    table = run(*common, "--plot", plot)
    assert sum(line.strip().startswith(("fox ", "python-reference ")) for line in table.splitlines()) == 6
    assert plot.read_text().startswith("<?xml")
    rows = json.loads(run(*common, "--json"))
    assert [(row["text"], row["method"], row["tier"]) for row in rows[:3]] == [
        ("fox", "pair", "anchor"),
        ("fox", "pair", "full"),
        ("fox", "int8", "-"),
    ]
    passage = lab.prepare(lab.load(folder), text.read_text(), prefix=100, continuation=40)
    for row, line in zip(rows, lab.quality(lab.reference(passage, greedy=8), ["pair", "int8"]), strict=False):
        assert row["kl_mean"] == line.kl_mean
        assert row["layer_attention_errors"] == list(line.layer_attention_errors)
    again = list(csv.DictReader(io.StringIO(run(*common, "--csv"))))
    assert [float(row["kl_mean"]) for row in again] == [row["kl_mean"] for row in rows]
    assert [float(row["layer_attention_errors.1"]) for row in again] == [r["layer_attention_errors"][1] for r in rows]


def test_acceptance_as_table_json_and_picture(folder, text, tmp_path):
    plot = tmp_path / "accepted.png"
    common = ("acceptance", text, "--methods", "pair,int4", "--model", folder, "--prefix", 90)
    options = ("--starts", 3, "--draft", 5)
    table = run(*common, *options, "--plot", plot)
    assert "pair, anchor" in table
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(run(*common, *options, "--json", "--temperature", 1, "--seed", 3, "--exact"))
    passage = lab.prepare(lab.load(folder), text.read_text(), prefix=90, continuation=0)
    expected = lab.acceptance(passage, ["pair", "int4"], starts=3, draft=5, temperature=1.0, seed=3, exact=True)
    assert [(row["accepted"], row["target"]) for row in rows] == [(list(x.accepted), x.target) for x in expected]
    assert {row["mean_accepted"] for row in rows} == {sum(row["accepted"]) / 3 for row in rows}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "pair,nonsense"), "'nonsense'"),
        (("--methods", "pair,int8, pair"), "pair is named more than once in --methods"),
        (("--json", "--csv"), "not both"),
        (("--plot", "no/such/folder/x.png"), "is not a folder"),
        (("--model", "no-such-model"), "a folder with a config.json or a .gguf file, got 'no-such-model'"),
        (("--compute", "float8"), "float8"),
    ],
)
def test_wrong_options_are_found_before_the_model_runs(text, options, message):
    result = RUNNER.invoke(app, ["lab", "quality", str(text), *options])
    assert isinstance(result.exception, lynxq.LynxqError)
    assert message in str(result.exception)


WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
import lynxq.cli
sys.argv = ["lynxq", *{arguments!r}]
lynxq.cli.main()
"""


def without(missing, *arguments):
    code = WITHOUT.format(missing=missing, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_needs_no_extra():
    for arguments in (("--help",), ("lab", "--help"), ("lab", "quality", "--help")):
        result = without(["torch", "transformers", "gguf", "matplotlib"], *arguments)
        assert result.returncode == 0, result.stderr
        assert "lab" in result.stdout


@pytest.mark.parametrize(
    ("missing", "options", "sentence"),
    [
        (["torch"], (), "lynxq: torch is not installed: pip install 'lynxq[lab]'\n"),
        (["transformers"], (), "lynxq: transformers is not installed: pip install 'lynxq[lab]'\n"),
        (
            ["matplotlib"],
            ("--plot", "x.png"),
            "lynxq: matplotlib is not installed: pip install 'lynxq[plot]'\n",
        ),
    ],
)
def test_a_missing_extra_is_one_sentence(missing, options, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("LYNXQ_CACHE", str(tmp_path))  # no model is there yet
    result = without(missing, "lab", "quality", "python-reference", *options)
    assert (result.returncode, result.stderr) == (1, sentence)


def test_the_lab_is_imported_without_its_libraries():
    code = "import sys, lynxq; lynxq.lab; print([n for n in ('torch', 'transformers', 'gguf') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
