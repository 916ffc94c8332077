"""Stores of blobs: a folder and fsspec keep the same promises."""

from __future__ import annotations

import threading
from io import BytesIO
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import lynxq
from lynxq.container import atomic
from lynxq.errors import ParamsError, SourceError
from lynxq.integrations import stores
from lynxq.integrations.stores import BlobStore, FolderStore, FsspecStore, open_store


@pytest.fixture(params=["folder", "fsspec"])
def store(request, tmp_path) -> BlobStore:
    if request.param == "folder":
        return open_store(tmp_path / "not" / "there")
    fsspec.filesystem("memory").store.clear()
    return open_store("memory://pages/of/a/model")


def _container(value: float) -> bytes:
    buffer = BytesIO()
    lynxq.save(buffer, {"a": lynxq.encode(np.full((300, 2, 8), value, np.float32), token_axis=0)})
    return buffer.getvalue()


def test_kinds(tmp_path):
    assert isinstance(open_store(str(tmp_path)), FolderStore)
    assert isinstance(open_store(tmp_path), FolderStore)
    assert isinstance(open_store("memory://x"), FsspecStore)
    for wrong in (None, "", 3, b"folder"):
        with pytest.raises(ParamsError, match="a store must be"):
            open_store(wrong)
    for wrong in ("nonsense://x", "reference://", "memory://a::b"):
        with pytest.raises(SourceError):
            open_store(wrong)


def test_write_open_delete(store):
    assert not store.contains("page-1")
    with pytest.raises(FileNotFoundError), store.open("page-1"):
        pass
    store.delete("page-1")
    for value in (1.0, 2.0):
        store.write("page-1", _container(value))
        assert store.contains("page-1")
        with store.open("page-1") as source, lynxq.open(source) as reader:
            assert np.all(reader["a"].decode() == value)
    assert not store.contains("page-2")
    store.delete("page-1")
    assert not store.contains("page-1")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a\nb", "a" * 300, "ä", "C:x"])
def test_names_that_could_leave_the_store_are_refused(store, name):
    for call in (store.contains, store.delete, lambda name: store.write(name, b"x")):
        with pytest.raises(ParamsError, match="name"):
            call(name)


def test_another_client_sees_what_is_written_and_deleted(tmp_path):
    url = f"local://{tmp_path}"
    here, there = open_store(url), open_store(url)
    assert not there.contains("page")
    here.write("page", b"x")
    assert there.contains("page")
    here.delete("page")
    assert not there.contains("page")


def test_what_a_filesystem_remembers_of_a_folder_does_not_count():
    class Remembering(MemoryFileSystem):
        """Answers from the listing that it made first, as those of object stores do."""

        cachable = False
        listings: dict[str, list[str]]

        def isfile(self, path):
            folder = path.rsplit("/", 1)[0]
            return path in self.listings.setdefault(folder, [each for each in self.store if each.startswith(folder)])

        def invalidate_cache(self, path=None):
            self.listings.pop(path, None)

    here, there = open_store("memory://remembered"), FsspecStore("memory://remembered")
    there._system = Remembering()
    there._system.listings = {}
    assert not there.contains("page")
    here.write("page", b"x")
    assert there.contains("page")


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_crash_leaves_the_old_blob(tmp_path, monkeypatch, step):
    store = FolderStore(tmp_path)
    store.write("page", b"old")

    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    module, name = {"write": (stores, "write_all"), "sync": (atomic, "sync"), "rename": (Path, "replace")}[step]
    monkeypatch.setattr(module, name, crash)
    with pytest.raises(Crash):
        store.write("page", b"new")
    monkeypatch.undo()
    assert (tmp_path / "pa" / "page.lynx").read_bytes() == b"old"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["page.lynx"]


def test_concurrent_writers_and_readers_never_see_a_part(tmp_path):
    store = FolderStore(tmp_path)
    contents = [_container(float(value)) for value in range(4)]
    store.write("page", contents[0])
    stop, wrong = threading.Event(), []

    def write(blob: bytes) -> None:
        while not stop.is_set():
            store.write("page", blob)

    writers = [threading.Thread(target=write, args=(blob,)) for blob in contents]
    for writer in writers:
        writer.start()
    try:
        for _ in range(60):
            with store.open("page") as source:
                if Path(source).read_bytes() not in contents:  # type: ignore[arg-type]
                    wrong.append("a part")
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not wrong
