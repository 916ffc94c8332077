"""What people expect of a published package: types, extras, entry points, citation, completion; documents agree."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

import lynxq
from lynxq import libraries
from lynxq.errors import MissingLibraryError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_types_are_announced():
    assert files("lynxq").joinpath("py.typed").is_file()


@pytest.mark.parametrize("group", sorted(PROJECT["entry-points"]))
def test_entry_points_are_installed_and_lead_somewhere(group):
    installed = {point.name: point for point in entry_points(group=group)}
    for name, value in PROJECT["entry-points"][group].items():
        assert installed[name].value == value, "install lynxq again: its entry points have changed"
        loaded = installed[name].load()
        assert f"{loaded.__module__}:{loaded.__qualname__}" == value


def test_the_table_of_extras_is_complete():
    table = README.split("| Extra |")[1].split("\n\n")[0]
    named = re.findall(r"`([a-z0-9-]+)`", "".join(line.split("|")[1] for line in table.splitlines()[2:]))
    assert sorted(named) == sorted(PROJECT["optional-dependencies"])


def test_extras_named_in_messages_exist():
    for path in sorted((ROOT / "lynxq").rglob("*.py")):
        for extras in re.findall(r"lynxq\[([a-z0-9,-]+)\]", path.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys(), path


def test_the_table_of_integrations_has_all():
    table = README.split("| System |")[1].split("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    systems = {re.sub(r"\[(.*?)\].*", r"\1", row) for row in rows}
    assert systems == {"fsspec", "zarr", "numcodecs", "transformers", "LMCache", "vLLM", "SGLang", "NIXL"}


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == lynxq.__version__
    assert citation["license"] == PROJECT["license"]
    for key in ("cff-version", "message", "title", "authors"):
        assert citation[key]
    (paper,) = citation["references"]
    assert "2607.01831" in paper["identifiers"][0]["value"]


def test_contributing_fits_a_page():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    for path in re.findall(r"`((?:tests|docs|lynxq|bench|\.ci)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path


# --- without what is optional ----------------------------------------------------------------------

CODED = (
    "import lynxq, numpy; x = lynxq.encode(numpy.ones((1, 1, 8, 8), 'f4'), token_axis=2); "
    "tensors = {'layer.0.key': x, 'layer.0.value': x}"
)


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("zarr", "from lynxq.integrations.zarr import LynxqCodec; LynxqCodec(token_axis=0)", "zarr"),
        ("zarr", "from lynxq.integrations.zarr_bfloat16 import BFloat16; BFloat16()", "zarr"),
        ("numcodecs", "from lynxq.integrations.numcodecs import Lynxq; Lynxq(token_axis=0)", "numcodecs"),
        ("fsspec", "import lynxq; lynxq.open('memory://kv.lynx')", "remote"),
        ("torch", "from lynxq.integrations.hf import from_cache; from_cache(None)", "hf"),
        ("torch", "from lynxq.integrations.hf import ProgressiveCache; ProgressiveCache({})", "hf"),
        ("transformers", "from lynxq.integrations.hf import ProgressiveCache; ProgressiveCache({})", "hf"),
        ("transformers", f"from lynxq.integrations.hf import to_cache; {CODED}; to_cache(tensors)", "hf"),
        ("torch", "from lynxq import lab; lab.load('.')", "lab"),
        ("transformers", "from lynxq import lab; lab.load('.')", "lab"),
        ("matplotlib", "from lynxq import plots; plots.draw({}, xlabel='', ylabel='')", "plot"),
        ("textalloc", "from lynxq import plots; plots.draw({}, xlabel='', ylabel='')", "plot"),
        ("lmcache", "from lynxq.integrations.lmcache import register; register()", "lmcache"),
    ],
)
def test_what_is_missing_is_named(missing, code, extra):
    hide = f"import sys; sys.modules[{missing!r}] = None; "
    result = subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last == f"lynxq.errors.MissingLibraryError: {missing} is not installed: pip install 'lynxq[{extra}]'"


def test_what_is_there_but_of_no_use_is_not_said_to_be_missing(tmp_path, monkeypatch):
    (tmp_path / "old_one").mkdir()
    (tmp_path / "old_one" / "__init__.py").write_text("")
    (tmp_path / "broken_one.py").write_text("import not_there_at_all")
    (tmp_path / "failing_one.py").write_text("raise ImportError('libx.so: too old')")
    monkeypatch.syspath_prepend(tmp_path)
    for module, sentence in (
        ("old_one.new_part", "old_one cannot be used (No module named 'old_one.new_part'): pip install 'lynxq[x]'"),
        ("broken_one", "not_there_at_all is not installed: pip install 'lynxq[x]'"),
        ("failing_one", "failing_one cannot be used (libx.so: too old): pip install 'lynxq[x]'"),
    ):
        with pytest.raises(MissingLibraryError) as caught:
            libraries.need(module, "lynxq[x]")
        assert str(caught.value) == sentence
        subclass = type("Sub", (libraries.absent(module, "lynxq[x]", caught.value.__cause__),), {})
        with pytest.raises(MissingLibraryError) as caught:
            subclass(1, a=2)
        assert str(caught.value) == sentence


# --- the command line ------------------------------------------------------------------------------

PROGRAM = Path(sysconfig.get_path("scripts"), "lynxq")


def test_python_m_is_the_same_command():
    results = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "-m", "lynxq"], [PROGRAM])
    ]
    assert set(results) == {f"lynxq {lynxq.__version__}\n"}


COMPLETED = {
    "lynxq ver": "verify",
    "lynxq ev": "eval",
    "lynxq decode --t": "--tier",
    "lynxq decode --tier ''": "full anchor",
    "lynxq encode --preset k": "keys",
}


def test_bash_completes():
    """The script that ``--show-completion`` prints, in a real bash."""
    script = f'eval "$(_LYNXQ_COMPLETE=source_bash {PROGRAM})"\n'
    for words in COMPLETED:
        script += f"""
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_lynxq_completion {PROGRAM}
echo "${{COMPREPLY[@]}}"
"""
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    found = [sorted(line.split()) for line in result.stdout.splitlines()]
    assert found == [sorted(words.split()) for words in COMPLETED.values()]


def test_completion_is_offered():
    shown = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown


# --- pages with examples ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["zarr.md", "object-stores.md"])
def test_examples_of_integrations_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "integrations" / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    names: dict[str, object] = {}
    exec(compile(code, page, "exec"), names)  # noqa: S102 - our own text
    if page == "zarr.md":
        assert names["near"].shape == (1024, 64)
        assert names["norms"].shape == (2, 4)
    else:
        assert names["part"].shape == (256, 8, 128)
        assert set(names["described"]["tensors"]) == {"layer.0.key"}
