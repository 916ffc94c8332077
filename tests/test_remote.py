"""Containers behind a URL: which bytes are asked for, in how many requests, and what a store must be able to do."""

import errno
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import lynxq
from lynxq.cli import app
from lynxq.container import remote
from lynxq.errors import (
    AnchorChecksumError,
    MissingLibraryError,
    MissingResidualError,
    MissingTensorError,
    NotLynxError,
    ParamsError,
    SourceError,
    TruncatedError,
    WriterError,
)
from lynxq.tensorfile import open_tensors
from lynxq.urls import is_url
from tests.containers import (
    METADATA,
    anchors_end,
    coded,
    decoded,
    error_of,
    flipped,
    frame,
    frames,
    readings,
    runs,
    spans,
    stored,
    stored_split,
    two,
)


def large(seed=0, first=(0, 0)):
    """Two tensors whose anchors are several times as large as what opening reads."""
    return {
        "k": coded(4000, seed, channels=4, first_token=first[0]),
        "v": coded(3000, seed + 1, channels=4, first_token=first[1], dtype="float16"),
    }


TENSORS = large()
DATA = stored(TENSORS)
HEADER = spans(DATA)[0].header


class Recorded(MemoryFileSystem):
    """Files in memory that note what is asked of them, and may give less, more, or an error."""

    protocol = "recorded"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    requests: ClassVar = []
    answers: ClassVar = []
    turn: ClassVar = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("recorded://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.requests.append((self._strip_protocol(path), start, end))
        assert self.turn.acquire(blocking=False), "files in memory have one position: one reader at a time"
        time.sleep(1e-4)
        found = super().cat_file(path, start, end)
        self.turn.release()
        return self.answers.pop(0)(found) if self.answers else found

    def info(self, path, **kwargs):
        self.requests.append((self._strip_protocol(path), "info"))
        return super().info(path)


fsspec.register_implementation("recorded", Recorded, clobber=True)


@pytest.fixture
def store():
    Recorded.store.clear()
    MemoryFileSystem.store.clear()
    Recorded.requests.clear()
    Recorded.answers.clear()
    fs = Recorded()
    fs.pipe_file("/kv.lynx", DATA)
    return fs


def ranges(path="/kv.lynx"):
    """The ranges asked for since the last call, those of files that were opened left out."""
    found = [request[1:] for request in Recorded.requests if request[0] == path and request[1] != "info"]
    Recorded.requests.clear()
    return found


def test_the_test_data_is_larger_than_what_opening_reads():
    assert HEADER < remote.HEAD < anchors_end(DATA) // 4
    assert anchors_end(DATA) < len(DATA)


def test_opening_asks_for_the_size_and_for_one_range(store):
    with lynxq.open("recorded://kv.lynx") as reader:
        assert sorted(Recorded.requests, key=len) == [("/kv.lynx", "info"), ("/kv.lynx", 0, remote.HEAD)]
        assert reader.describe() == lynxq.describe(DATA)
        assert len(Recorded.requests) == 2


def test_every_segment_costs_one_range(store):
    grown = DATA + stored(large(5, first=(4000, 3000)))
    store.pipe_file("/kv.lynx", grown)
    Recorded.requests.clear()
    with lynxq.open("recorded://kv.lynx") as reader:
        assert reader.segments == 2
        assert ranges() == [(0, remote.HEAD), (len(DATA), len(DATA) + remote.HEAD)]
        truth = [TENSORS, large(5, first=(4000, 3000))]
        for name in "kv":
            wanted = np.concatenate([decoded(part[name], "full") for part in truth])
            assert reader[name].decode().tobytes() == wanted.tobytes()


def test_the_anchor_tier_asks_for_no_residual_byte_and_merges_pages(store):
    found = lynxq.load("recorded://kv.lynx", tier="anchor")
    assert ranges() == [(0, remote.HEAD), (HEADER, anchors_end(DATA))]
    for name, encoded in TENSORS.items():
        assert found[name].tobytes() == decoded(encoded, "anchor").tobytes()


def test_the_full_tier_is_one_more_request(store):
    found = lynxq.load("recorded://kv.lynx")
    assert ranges() == [(0, remote.HEAD), (HEADER, len(DATA))]
    for name, encoded in TENSORS.items():
        assert found[name].tobytes() == decoded(encoded, "full").tobytes()


def test_some_names_ask_for_their_own_pages(store):
    lynxq.load("recorded://kv.lynx", names=["v"])
    own = [(each.begin, each.end) for each in frames(DATA) if each.tensor == 1]
    _, *asked = ranges()
    assert sorted(asked) == sorted(runs(own))
    assert len(asked) == 2


@pytest.mark.parametrize("tier", ["anchor", "full"])
@pytest.mark.parametrize("tokens", [(0, 4000), (3333, 3334), (80, 88), (79, 89), (3999, 4000), (17, 17), (0, 0)])
def test_token_ranges_ask_for_the_pages_that_they_need(store, tier, tokens):
    with lynxq.open("recorded://kv.lynx") as reader:
        ranges()
        alone = reader["k"].decode(tier, tokens=tokens)
        separately = ranges()
        with reader.fetched(["k"], tier, tokens):
            together = ranges()
            again = reader["k"].decode(tier, tokens=tokens)
            assert ranges() == []
        assert reader._sources[0]._held.keys() == {0}  # what was fetched is let go of
    pages = [
        (each.begin, each.end)
        for each in frames(DATA)
        if each.tensor == 0
        and each.kind <= (tier == "full")
        and max(tokens[0], 8 * each.page) < min(tokens[1], 8 * each.page + 8)
    ]
    wanted = [part for part in runs(pages) if part[1] > remote.HEAD]
    assert sorted(separately) == wanted
    assert sorted(together) == runs(pages)
    truth = decoded(TENSORS["k"], tier)[slice(*tokens)]
    assert alone.tobytes() == again.tobytes() == truth.tobytes()


@pytest.mark.parametrize("source", ["recorded://kv.lynx", DATA])
def test_what_cannot_be_fetched(store, source):
    with lynxq.open(source) as reader:
        with pytest.raises(MissingTensorError), reader.fetched(["k", "x"]):
            pass
        with pytest.raises(ParamsError), reader.fetched(["k"], "near"):
            pass
    with pytest.raises(MissingTensorError):
        lynxq.load(source, names=["x"])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))))
def test_ranges_are_merged_without_a_byte_more(ranges):
    found = remote.merged(ranges)
    assert {at for begin, end in found for at in range(begin, end)} == {
        at for begin, end in ranges for at in range(begin, end)
    }
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert all(begin < end for begin, end in found)


def test_large_reads_are_asked_for_in_parts(store, monkeypatch):
    monkeypatch.setattr(remote, "PART", 20_000)
    found = lynxq.load("recorded://kv.lynx", tier="anchor")
    asked = ranges()[1:]
    assert max(end - begin for begin, end in asked) == 20_000
    assert runs(asked) == [(HEADER, anchors_end(DATA))]
    assert len(asked) == -(-(anchors_end(DATA) - HEADER) // 20_000)
    assert found["v"].tobytes() == decoded(TENSORS["v"], "anchor").tobytes()


def test_what_is_held_at_a_time_is_bounded(store, monkeypatch):
    monkeypatch.setattr("lynxq.container.reader._BATCH", 1)
    found = lynxq.load("recorded://kv.lynx", tier="anchor")
    starts = [spans(DATA)[0].header, frame(DATA, 0, 1, 0).begin]
    assert [begin for begin, _ in ranges()[1:]] == starts
    assert found["v"].tobytes() == decoded(TENSORS["v"], "anchor").tobytes()


def test_a_split_container_in_two_stores(store, tmp_path):
    anchor, residual = stored_split(tmp_path, TENSORS)
    fsspec.filesystem("memory").pipe_file("/hot.lynx", anchor)
    store.pipe_file("/cold.lynx", residual)
    Recorded.requests.clear()
    found = lynxq.load("memory://hot.lynx", residual="recorded://cold.lynx", tier="anchor")
    assert found["k"].tobytes() == decoded(TENSORS["k"], "anchor").tobytes()
    assert ranges("/cold.lynx") == [(0, remote.HEAD)]
    found = lynxq.load("memory://hot.lynx", residual="recorded://cold.lynx")
    assert found["k"].tobytes() == decoded(TENSORS["k"], "full").tobytes()
    assert ranges("/cold.lynx") == [(0, remote.HEAD), (HEADER, len(residual))]
    assert error_of(lynxq.open, "recorded://cold.lynx") is not None
    with pytest.raises(MissingResidualError):
        lynxq.load("memory://hot.lynx")


@pytest.mark.parametrize("tensors", [two(), TENSORS])
def test_everything_reads_as_from_a_file(store, tensors):
    store.pipe_file("/kv.lynx", stored(tensors))
    lazy = fsspec.open("recorded://kv.lynx")
    for source in ("recorded://kv.lynx", "recorded:///kv.lynx", lazy):
        assert set(readings(source, [tensors]).values()) == {None}
        assert lynxq.describe(source) == lynxq.describe(stored(tensors))


def test_prefixes_and_damage(store):
    end = anchors_end(DATA)
    for cut, error in ((end, None), (end - 1, TruncatedError), (HEADER - 1, TruncatedError), (0, TruncatedError)):
        store.pipe_file("/kv.lynx", DATA[:cut])
        assert error_of(lynxq.load, "recorded://kv.lynx", tier="anchor") is error
        assert error_of(lynxq.load, "recorded://kv.lynx") is TruncatedError
    place = frame(DATA, 0, 0, 40).payload
    store.pipe_file("/kv.lynx", flipped(DATA, 8 * place))
    with lynxq.open("recorded://kv.lynx") as reader:
        assert [type(error) for error in reader.verify()] == [AnchorChecksumError]
    store.pipe_file("/kv.lynx", b"not a container")
    assert error_of(lynxq.open, "recorded://kv.lynx") is NotLynxError
    with pytest.raises(FileNotFoundError):
        lynxq.open("recorded://none.lynx")
    store.pipe_file("/folder/kv.lynx", DATA)
    with pytest.raises(IsADirectoryError, match="recorded:///folder is a folder"):
        lynxq.open("recorded://folder")


def test_verify_fetches_every_byte_once(store):
    with lynxq.open("recorded://kv.lynx") as reader:
        ranges()
        assert reader.verify() == []
        assert ranges() == [(HEADER, len(DATA))]


def test_short_answers_are_completed(store):
    def half(data):
        return data[: len(data) // 2]

    Recorded.answers[:] = [half, half, lambda data: data, half, lambda data: data[:1], half]
    found = lynxq.load("recorded://kv.lynx", tier="anchor")
    assert found["k"].tobytes() == decoded(TENSORS["k"], "anchor").tobytes()
    assert Recorded.answers == []
    assert len(ranges()) == 3 + 4


def test_a_store_that_goes_on_giving_too_little(store):
    with lynxq.open("recorded://kv.lynx") as reader:
        Recorded.answers[:] = [lambda _: b""] * 100
        with pytest.raises(TruncatedError, match=r"recorded:///kv\.lynx"):
            reader["k"].decode("anchor")
        assert len(Recorded.answers) == 100 - 4


def test_errors_of_a_store(store):
    def fails(error):
        def answer(_):
            raise error

        return answer

    with lynxq.open("recorded://kv.lynx") as reader:
        missing = FileNotFoundError(errno.ENOENT, "gone")
        missing.__cause__ = RuntimeError("401")
        for error, expected, message in (
            (PermissionError("no"), PermissionError, "PermissionError: no"),
            (RuntimeError("odd"), OSError, "RuntimeError: odd"),
            (missing, FileNotFoundError, r"FileNotFoundError: \[Errno 2\] gone: RuntimeError: 401"),
        ):
            Recorded.answers[:] = [fails(error)]
            with pytest.raises(expected, match=f"^recorded:///kv\\.lynx: {message}$") as caught:
                reader["k"].decode("anchor")
            assert caught.value.errno == getattr(error, "errno", None)
        Recorded.answers[:] = [lambda _: DATA]
        with pytest.raises(SourceError, match="served in ranges"):
            reader["k"].decode("anchor")


def test_threads_share_a_remote_reader(store):
    with lynxq.open("recorded://kv.lynx") as reader:

        def work(number):
            name, tier, start = "kv"[number % 2], ("anchor", "full")[number // 2 % 2], 50 * number
            found = reader[name].decode(tier, tokens=(start, start + 20))
            return found.tobytes() == decoded(TENSORS[name], tier)[start : start + 20].tobytes()

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(50)))
    assert error_of(reader["k"].decode) is SourceError


# --- what is a URL ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("s3://bucket/kv.lynx", True),
        ("memory://kv.lynx", True),
        ("simplecache::s3://bucket/kv.lynx", True),
        ("abfs+x.y-1://kv", True),
        ("kv.lynx", False),
        ("C:/kv.lynx", False),
        ("c://kv.lynx", False),
        ("folder/s3://kv.lynx", False),
        ("a::b", False),
        ("://kv", False),
        (b"s3://bucket/kv", False),
    ],
)
def test_what_is_a_url(place, url):
    assert is_url(place) is url


def test_local_urls_are_local_files(tmp_path):
    path, url = tmp_path / "kv.lynx", f"file://{tmp_path}/kv.lynx"
    lynxq.save(url, two(), metadata=METADATA)
    assert path.read_bytes() == stored(two())
    assert set(readings(url, [two()]).values()) == {None}
    lynxq.append(url, two(7, first=(20, 9)))
    assert set(readings(fsspec.open(url), [two(), two(7, first=(20, 9))]).values()) == {None}
    with lynxq.open(url) as reader:
        assert type(reader._sources[0]).__name__ == "MappedSource"
    assert error_of(lynxq.save_split, path, url, two()) is WriterError
    with lynxq.Writer(url, metadata=METADATA) as writer:
        for name, encoded in two(3).items():
            writer.add(name, encoded)
    assert path.read_bytes() == stored(two(3))
    assert list(tmp_path.iterdir()) == [path]


def test_chains_are_followed(store, tmp_path):
    with zipfile.ZipFile(tmp_path / "kv.zip", "w") as archive:
        archive.writestr("inner/kv.lynx", DATA)
    found = lynxq.load(f"zip://inner/kv.lynx::file://{tmp_path}/kv.zip", names=["v"])
    assert found["v"].tobytes() == decoded(TENSORS["v"], "full").tobytes()


@pytest.mark.parametrize("url", ["memory://a::b", "memory://a::memory://b", "file://{}/a::b", "http://host/a::b"])
def test_a_chain_whose_first_link_reads_from_nothing_is_refused(url, store, tmp_path):
    url = url.format(tmp_path)
    for function in (lynxq.open, lynxq.load, lambda place: lynxq.save(place, two())):
        with pytest.raises(SourceError, match="'::' joins file systems"):
            function(url)
    assert list(store.store) == ["/kv.lynx"]
    assert not list(tmp_path.iterdir())


def test_wrong_urls(monkeypatch):
    with pytest.raises(SourceError, match="no URL that fsspec knows"):
        lynxq.open("nonsense://kv.lynx")
    for incomplete in ("reference://", "dir://x"):
        with pytest.raises(SourceError, match=r"cannot be opened: [A-Za-z]+Error"):
            lynxq.open(incomplete)
    with pytest.raises(SourceError, match="decompressed"):
        lynxq.open(fsspec.open("memory://kv.lynx", compression="gzip"))
    with pytest.raises(SourceError, match="as text"):
        lynxq.open(fsspec.open("memory://kv.lynx", mode="rt"))
    monkeypatch.setitem(sys.modules, "dropboxdrivefs", None)
    with pytest.raises(MissingLibraryError, match="a library that is not installed"):
        lynxq.open("dropbox://kv.lynx")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for function in (lynxq.open, lynxq.load, lynxq.describe):
        with pytest.raises(MissingLibraryError, match=r"pip install 'lynxq\[remote\]'"):
            function("memory://kv.lynx")
    assert list(lynxq.open(DATA)) == ["k", "v"]


# --- writing ---------------------------------------------------------------------------------------


def test_files_in_memory_are_replaced_as_a_whole(store, monkeypatch):
    memory = fsspec.filesystem("memory")
    for target in ("memory://kv.lynx", fsspec.open("memory://kv.lynx", "wb")):
        lynxq.save(target, two(), metadata=METADATA)
        assert memory.cat_file("/kv.lynx") == stored(two())
        with lynxq.Writer(target, metadata=METADATA) as writer:
            writer.add("k", two(3)["k"])
            assert memory.cat_file("/kv.lynx") == stored(two())
        assert memory.cat_file("/kv.lynx") == stored({"k": two(3)["k"]})
    assert list(memory.store) == ["/kv.lynx"]
    before = memory.cat_file("/kv.lynx")
    with suppress(KeyError), lynxq.Writer("memory://kv.lynx") as writer:
        writer.add("k", two()["k"])
        raise KeyError
    assert memory.cat_file("/kv.lynx") == before
    monkeypatch.setattr(MemoryFileSystem, "cp_file", None)
    with pytest.raises(OSError, match=r"memory:///kv\.lynx: TypeError"):
        lynxq.save("memory://kv.lynx", two())
    assert memory.cat_file("/kv.lynx") == before
    assert list(memory.store) == ["/kv.lynx"]


@pytest.mark.parametrize("url", ["memory://", "memory:///", "memory://hot", "memory://hot/"])
def test_folders_in_memory_are_not_replaced(url, store):
    lynxq.save("memory://hot/kv.lynx", two())
    before = dict(store.store)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        lynxq.save(url, two())
    assert store.store == before


def test_split_files_in_memory(store):
    lynxq.save_split("memory://hot/kv.lynx", "memory://cold/kv.lynx", two(), metadata=METADATA)
    assert set(readings("memory://hot/kv.lynx", [two()], residual="memory://cold/kv.lynx").values()) == {None}
    with lynxq.Writer("memory://hot/w.lynx", residual="memory://cold/w.lynx", metadata=METADATA) as writer:
        for name, encoded in two().items():
            writer.add(name, encoded)
    memory = fsspec.filesystem("memory")
    for folder in ("hot", "cold"):
        assert memory.cat_file(f"/{folder}/kv.lynx") == memory.cat_file(f"/{folder}/w.lynx")
    for same in ("memory://hot/kv.lynx", "memory:///hot/kv.lynx"):
        assert error_of(lynxq.save_split, "memory://hot/kv.lynx", same, two()) is WriterError
    with pytest.raises(WriterError, match="two files"):
        lynxq.Writer("memory://hot/kv.lynx", residual="memory://hot/kv.lynx")


def test_what_a_store_cannot_do_is_refused_before_anything_is_written(store):
    with pytest.raises(WriterError, match=r"recorded:///kv.lynx may be seen half written"):
        lynxq.save("recorded://kv.lynx", two())
    with pytest.raises(WriterError, match="append extends a file where it is"):
        lynxq.append("recorded://kv.lynx", two())
    with pytest.raises(WriterError, match="append extends a file where it is"):
        lynxq.append("memory://kv.lynx", two(), residual="memory://cold.lynx")
    assert store.store["/kv.lynx"].getvalue() == DATA
    with fsspec.open("recorded://own.lynx", "wb") as file:
        lynxq.save(file, two(), metadata=METADATA)
    assert store.store["/own.lynx"].getvalue() == stored(two())


# --- the command line ------------------------------------------------------------------------------


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_commands_take_urls(store, tmp_path):
    lynxq.save_split("memory://hot.lynx", "memory://cold.lynx", TENSORS, metadata=METADATA)
    assert "recorded://kv.lynx: format 1.0" in run("info", "recorded://kv.lynx").stdout
    assert "recorded://kv.lynx: all checksums match" in run("verify", "recorded://kv.lynx").stdout
    for arguments in (["recorded://kv.lynx"], ["memory://hot.lynx", "--residual", "memory://cold.lynx"]):
        run("verify", *arguments)
        run("decode", *arguments, "-o", tmp_path / "kv.safetensors", "--force")
        with open_tensors(tmp_path / "kv.safetensors") as file:
            assert file["k"].tobytes() == decoded(TENSORS["k"], "full").tobytes()
    Recorded.requests.clear()
    run("decode", "recorded://kv.lynx", "-o", tmp_path / "near.safetensors", "--tier", "anchor")
    assert max(end for _, end in ranges()) == anchors_end(DATA)
    for path in (tmp_path / "none.lynx", tmp_path):  # a path must lead to a file
        run("info", path, code=2)
        run("verify", "recorded://kv.lynx", "--residual", path, code=2)
    with pytest.raises(FileNotFoundError):
        run("info", "memory://none.lynx")
