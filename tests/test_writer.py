"""Writer, save and save_split: the whole new file or the old one, and nothing beside it."""

import errno
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lynxq
from lynxq.container import atomic
from lynxq.errors import (
    ContainerError,
    DTypeError,
    HeaderError,
    LimitError,
    MissingResidualError,
    SourceError,
    WriterError,
)
from tests.containers import METADATA, coded, error_of, stored, stored_split, two

TENSORS = two()
BARE = {name: encoded.anchor_only() for name, encoded in TENSORS.items()}


def write(path, tensors, **arguments):
    with lynxq.Writer(path, metadata=METADATA, **arguments) as writer:
        for name, encoded in tensors.items():
            writer.add(name, encoded)


def save(path, tensors):
    lynxq.save(path, tensors, metadata=METADATA)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("tensors", [TENSORS, BARE, {}, dict(reversed(TENSORS.items())), {"": None}])
def test_writer_and_save_give_the_same_bytes(tmp_path, tensors):
    if "" in tensors:
        tensors = {f"{n}": lynxq.encode(np.zeros((n, 3, 0), np.float32), token_axis=n % 3) for n in range(4)}
    write(tmp_path / "writer.lynx", tensors)
    save(tmp_path / "save.lynx", tensors)
    save(str(tmp_path / "text.lynx"), tensors)
    wanted = stored(tensors)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("writer.lynx", "save.lynx", "text.lynx"), wanted
    )


def test_split_writer_and_save_split_give_the_same_bytes(tmp_path):
    wanted = stored_split(tmp_path, TENSORS)
    write(tmp_path / "a", TENSORS, residual=tmp_path / "r")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "r").read_bytes()) == wanted
    assert names(tmp_path) == ["a", "anchor.lynx", "r", "residual.lynx"]


def test_streams_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(lynxq.decode_full(TENSORS["k"]))
    encoded = lynxq.encode(x, TENSORS["k"].params, token_axis=0)
    assert isinstance(encoded.anchor, torch.Tensor)
    write(tmp_path / "kv.lynx", {"k": encoded})
    assert (tmp_path / "kv.lynx").read_bytes() == stored({"k": encoded}) == stored({"k": encoded.to("numpy")})


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("w", TENSORS)
    save("s", TENSORS)
    assert names(tmp_path) == ["s", "w"]


def test_closing(tmp_path):
    writer = lynxq.Writer(tmp_path / "kv.lynx", metadata=METADATA)
    writer.add("k", TENSORS["k"])
    assert names(tmp_path) == []
    writer.close()
    assert (tmp_path / "kv.lynx").read_bytes() == stored({"k": TENSORS["k"]})
    for call in (writer.close, lambda: writer.add("v", TENSORS["v"])):
        with pytest.raises(ContainerError, match="the writer is closed"):
            call()
    with lynxq.Writer(tmp_path / "early.lynx") as writer:
        writer.close()
    assert names(tmp_path) == ["early.lynx", "kv.lynx"]


def test_abort(tmp_path):
    (tmp_path / "kv.lynx").write_bytes(b"old")
    writer = lynxq.Writer(tmp_path / "kv.lynx")
    writer.add("k", TENSORS["k"])
    writer.abort()
    writer.abort()
    for call in (writer.close, lambda: writer.add("v", TENSORS["v"])):
        with pytest.raises(ContainerError, match="the writer is closed"):
            call()
    with lynxq.Writer(tmp_path / "kv.lynx") as writer:
        writer.abort()
    assert (names(tmp_path), (tmp_path / "kv.lynx").read_bytes()) == (["kv.lynx"], b"old")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_target_as_it_was(tmp_path, error):
    (tmp_path / "kv.lynx").write_bytes(b"old")

    def body(writer):
        writer.add("k", TENSORS["k"])
        raise error

    for target in ("kv.lynx", "new.lynx"):
        with pytest.raises(error), lynxq.Writer(tmp_path / target, residual=tmp_path / "r") as writer:
            body(writer)
    assert (names(tmp_path), (tmp_path / "kv.lynx").read_bytes()) == (["kv.lynx"], b"old")


def test_what_is_refused_can_be_followed_by_what_is_not(tmp_path):
    with lynxq.Writer(tmp_path / "kv.lynx", metadata=METADATA) as writer:
        for name in ("", "\ud800", 3):
            assert error_of(writer.add, name, TENSORS["k"]) is HeaderError
        assert error_of(writer.add, "n" * 1025, TENSORS["k"]) is LimitError
        writer.add("k", TENSORS["k"])
        with pytest.raises(ContainerError, match="'k' twice"):
            writer.add("k", TENSORS["v"])
        for wrong in (None, np.zeros(3), "k"):
            with pytest.raises(DTypeError):
                writer.add("v", wrong)
        with pytest.raises(MissingResidualError):
            writer.add("v", BARE["v"])
        writer.add("v", TENSORS["v"])
    assert (tmp_path / "kv.lynx").read_bytes() == stored(TENSORS)


def test_metadata_is_refused_at_once(tmp_path):
    for metadata, error in (
        ({"a": 1}, HeaderError),
        ({1: "a"}, HeaderError),
        ({"a": "\ud800"}, HeaderError),
        ({"a": "b" * 70000}, LimitError),
    ):
        assert error_of(lynxq.Writer, tmp_path / "kv.lynx", metadata=metadata) is error
        assert error_of(lynxq.save, tmp_path / "kv.lynx", TENSORS, metadata=metadata) is error
    assert error_of(lynxq.Writer, tmp_path / "a", residual=tmp_path / "a") is WriterError
    assert names(tmp_path) == []


@pytest.mark.parametrize("metadata", ["text", 5, [1]])
def test_metadata_that_is_no_mapping(tmp_path, metadata):
    assert error_of(lynxq.save, io.BytesIO(), TENSORS, metadata=metadata) is HeaderError
    assert error_of(lynxq.Writer, tmp_path / "kv.lynx", metadata=metadata) is HeaderError


def test_a_split_container_needs_residuals(tmp_path):
    with pytest.raises(MissingResidualError, match="'k'"):
        write(tmp_path / "a", BARE, residual=tmp_path / "r")
    with pytest.raises(MissingResidualError, match="'k'"):
        lynxq.save_split(tmp_path / "a", tmp_path / "r", BARE)
    assert names(tmp_path) == []


# --- failures --------------------------------------------------------------------------------------------


class FullError(OSError):
    """What the tests let fail with."""


def fail(*arguments):
    raise FullError(errno.ENOSPC, "no space left")


POINTS = {
    "fsync": (os, "fsync"),
    "rename": (atomic.Path, "replace"),
    "rights": (atomic.Path, "chmod"),
    "frames": ("lynxq.container.saving", "write_streams"),
}


@pytest.mark.parametrize(("owner", "name"), POINTS.values(), ids=POINTS)
@pytest.mark.parametrize("how", [save, write])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, how, owner, name):
    path = tmp_path / "kv.lynx"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(f"{owner}.{name}", fail) if isinstance(owner, str) else patch.setattr(owner, name, fail)
        with pytest.raises(FullError):
            how(path, TENSORS)
    assert (names(tmp_path), path.read_bytes()) == (["kv.lynx"], b"old")
    how(path, TENSORS)
    assert (names(tmp_path), path.read_bytes()) == (["kv.lynx"], stored(TENSORS))


def test_a_failure_while_splitting_leaves_both_old_files(tmp_path, monkeypatch):
    before = stored_split(tmp_path, two(9))
    pair = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    real, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            fail()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(FullError):
        lynxq.save_split(*pair, TENSORS, metadata=METADATA)
    assert tuple(path.read_bytes() for path in pair) == before
    assert names(tmp_path) == ["anchor.lynx", "residual.lynx"]


def test_the_residual_file_takes_its_place_first(tmp_path, monkeypatch):
    moves = []
    real = atomic.Path.replace

    def replace(self, target):
        moves.append(target.name)
        return real(self, target)

    monkeypatch.setattr(atomic.Path, "replace", replace)
    stored_split(tmp_path, TENSORS)
    write(tmp_path / "a", TENSORS, residual=tmp_path / "r")
    assert moves == ["residual.lynx", "anchor.lynx", "r", "a"]


def test_a_file_is_on_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, atomic.Path.replace
    wanted = stored(TENSORS)

    def synced(descriptor):
        events.append(("sync", os.fstat(descriptor).st_size == len(wanted)))
        fsync(descriptor)

    def moved(self, target):
        events.append(("move", self.read_bytes() == wanted, self.parent == target.parent))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(atomic.Path, "replace", moved)
    save(tmp_path / "kv.lynx", TENSORS)
    assert events[:2] == [("sync", True), ("move", True, True)]
    assert [event[0] for event in events[2:]] == (["sync"] if os.name == "posix" else [])


@pytest.mark.parametrize("how", [save, write])
def test_a_directory_is_no_target(tmp_path, how):
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="regular file"):
        how(tmp_path / "folder", TENSORS)
    with pytest.raises(FileNotFoundError):
        how(tmp_path / "none" / "kv.lynx", TENSORS)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == []


# --- what a file system keeps beside bytes ---------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
@pytest.mark.parametrize("how", [save, write])
def test_rights(tmp_path, how):
    path = tmp_path / "kv.lynx"
    before = os.umask(0o027)
    try:
        how(path, TENSORS)
        assert path.stat().st_mode & 0o777 == 0o640
        for mode in (0o600, 0o664, 0o444):
            path.chmod(mode)
            how(path, TENSORS)
            assert path.stat().st_mode & 0o777 == mode
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


@pytest.mark.parametrize("how", [save, write])
def test_a_link_is_followed(tmp_path, how):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("none")
    for name in ("link", "dangling"):
        how(tmp_path / name, TENSORS)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == stored(TENSORS)
    assert names(tmp_path) == ["dangling", "file", "link", "none"]


def test_append_follows_a_link(tmp_path):
    save(tmp_path / "file", {"k": coded(8)})
    (tmp_path / "link").symlink_to("file")
    lynxq.append(tmp_path / "link", {"k": coded(8, 1, first_token=8)})
    assert (tmp_path / "link").is_symlink()
    assert lynxq.load(tmp_path / "file")["k"].shape == (16, 2)


def test_an_open_reader_keeps_what_it_opened(tmp_path):
    path = tmp_path / "kv.lynx"
    save(path, TENSORS)
    with lynxq.open(path) as reader:
        save(path, two(9))
        assert reader["k"].decode().tobytes() == lynxq.decode_full(TENSORS["k"]).tobytes()


def test_threads_share_a_writer(tmp_path):
    """Seeking and writing are two steps; and checksums are of what the caller passed, not of what was spooled."""
    tensors = {f"k{i}": coded(40, i) for i in range(24)}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with lynxq.Writer(tmp_path / "kv.lynx") as writer, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: writer.add(name, tensors[name]), tensors))
    finally:
        sys.setswitchinterval(before)
    with lynxq.open(tmp_path / "kv.lynx") as reader:
        assert sorted(reader) == sorted(tensors)
        for name, encoded in tensors.items():
            assert reader[name].decode().tobytes() == lynxq.decode_full(encoded).tobytes()


def test_damage_in_a_temporary_file_is_not_signed_as_good(tmp_path):
    encoded = coded(20, 0)
    writer = lynxq.Writer(tmp_path / "kv.lynx")
    writer.add("k", encoded)
    spool = writer._spools["anchor"]
    spool.seek(encoded.layout.page_offset("anchor", 1))
    spool.write(b"\xff" * 9)
    with pytest.raises(WriterError, match="page 1 was damaged"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", ["kv.lynx", "x/../kv.lynx", "link"])
def test_one_file_for_both_streams_is_refused(tmp_path, monkeypatch, spelling):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "kv.lynx").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("kv.lynx")
    for write in (
        lambda: lynxq.save_split("kv.lynx", spelling, {"k": coded(20, 0)}),
        lambda: lynxq.Writer("kv.lynx", residual=spelling),
    ):
        with pytest.raises(WriterError, match="two files"):
            write()
    assert (tmp_path / "kv.lynx").read_bytes() == b"precious"


def test_links_are_followed_and_only_regular_files_are_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    lynxq.save(link, {"k": coded(20, 0)})
    assert link.is_symlink()
    assert lynxq.load(target).keys() == {"k"}
    assert target.stat().st_mode & 0o777 == 0o600
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(SourceError, match="regular file"):
            lynxq.save(path, {"k": coded(20, 0)})
    assert pipe.is_fifo()


def test_names_as_long_as_file_systems_allow(tmp_path):
    path = tmp_path / ("n" * 250)
    lynxq.save(path, {"k": coded(20, 0)})
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
