"""The page about transformers runs as it stands, and the prompt cache does what it says."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import lynxq
from tests import tiny_model

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "integrations" / "transformers.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    if int(transformers.__version__.split(".")[1]) < 24:
        code = code.replace("cache=cache", "past_key_values=cache")
    names = {}
    exec(compile(code, "transformers.md", "exec"), names)  # noqa: S102 - our own text
    assert names["text"].shape == names["draft"].shape == (1, 620)
    assert names["cache"].tier == "full"
    assert names["cache"].get_seq_length() == 599 + int(names["kept"])


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("prompt_cache", DOCS / "examples" / "prompt_cache.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.save(tmp_path_factory.mktemp("model"))


def words(tokens, seed=0):
    return [int(n) for n in np.random.default_rng(seed).integers(1, 64, tokens)]


def write(path, tokens):
    path.write_text(" ".join(f"w{n}" for n in tokens), encoding="utf-8")
    return str(path)


def test_the_second_run_loads(example, folder, tmp_path, capsys):
    prompt = write(tmp_path / "prompt.txt", words(700))
    arguments = [str(folder), prompt, "--folder", str(tmp_path / "store"), "--tokens", "8"]
    example.main(arguments)
    first = capsys.readouterr().out
    assert "nothing on disk" in first
    assert "the same as without the cache: True" in first  # nothing was loaded: exactly the same
    assert "stored " in first
    example.main(arguments)
    second = capsys.readouterr().out
    assert "512 tokens from disk" in second
    assert "speed-up: " in second
    assert re.search("the same as without the cache: (True|False)", second)
    assert "stored already" in second
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_common_beginnings_are_shared_and_never_coded_twice(example, folder, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    store = example.PromptCache(tmp_path, "toy")
    old = words(700)
    path = store.save(old, example.prefill(model, old, transformers.DynamicCache()), None)
    assert store.find(words(700, seed=1)) is None
    assert example.PromptCache(tmp_path, "other").find(old) is None
    assert store.find(old[:512]).pages == 1  # the last token must be left
    assert store.find(old[:513]) == (path, 2)

    longer = old + words(600, seed=2)
    hit = store.find(longer)
    new = store.save(longer, example.prefill(model, longer, store.load(hit, torch.float32)), hit)
    forked = old[:300] + words(800, seed=3)
    found = store.find(forked)
    assert found.pages == 1
    fork = store.save(forked, example.prefill(model, forked, store.load(found, torch.float32)), found)
    assert store.find([*longer, 1]) == (new, 5)
    third = longer[:1290] + words(300, seed=4)
    hit = store.find(third)
    assert hit.pages == 5
    last = store.save(third, example.prefill(model, third, store.load(hit, torch.float32)), hit)
    with lynxq.open(path) as a, lynxq.open(new) as b, lynxq.open(fork) as c, lynxq.open(last) as d:
        assert [reader["layer.0.key"].shape[2] for reader in (a, b, c, d)] == [512, 1280, 1024, 1536]
        assert [reader.segments for reader in (a, b, c, d)] == [1, 2, 2, 3]
        for name in a:
            for stream in ("anchor", "residual"):
                pages = [bytes(a[name].page(stream, page)) for page in range(2)]
                assert [bytes(b[name].page(stream, page, segment=0)) for page in range(2)] == pages
                assert bytes(c[name].page(stream, 0, segment=0)) == pages[0]
                assert bytes(d[name].page(stream, 2, segment=1)) == bytes(b[name].page(stream, 2, segment=1))
        assert all(not reader.verify() for reader in (a, b, c, d))
