"""Append: the next token range of the same tensors, or the file as it was."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lynxq
from lynxq.container import appending, atomic, entries
from lynxq.errors import (
    AnchorChecksumError,
    ContainerError,
    DTypeError,
    IdentityError,
    MissingAnchorError,
    MissingResidualError,
    NotLynxError,
    ResidualMismatchError,
    SegmentError,
    TrailingBytesError,
    TruncatedError,
    WriterError,
)
from tests.containers import (
    KEYS,
    METADATA,
    VALUES,
    anchors_end,
    coded,
    decoded,
    error_of,
    flipped,
    frame,
    readings,
    spans,
    stored,
    stored_split,
    two,
)

FIRST, SECOND, THIRD = two(), two(5, (9, 8), (20, 9)), two(9, (3, 17), (29, 17))
DATA = stored(FIRST)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(DATA)
    return path


def one(tokens, seed=0, first_token=0, **arguments):
    return {"k": coded(tokens, seed, first_token=first_token, **arguments)}


def test_append_is_concatenation(path):
    lynxq.append(path, SECOND)
    assert path.read_bytes() == DATA + stored(SECOND)
    lynxq.append(str(path), THIRD)
    assert path.read_bytes() == DATA + stored(SECOND) + stored(THIRD)
    assert set(readings(path, [FIRST, SECOND, THIRD]).values()) == {None}
    with lynxq.open(path) as reader:
        assert (reader["k"].shape, reader["v"].shape, reader.segments) == ((32, 2), (34, 2), 3)
        assert reader.anchor_end == anchors_end(path.read_bytes())
        for name in "kv":
            parts = [decoded(each[name], "full") for each in (FIRST, SECOND, THIRD)]
            assert reader[name].decode().tobytes() == np.concatenate(parts).tobytes()
            for segment, part in enumerate((FIRST, SECOND, THIRD)):
                assert reader[name].encoded(segment=segment).layout == part[name].layout


def test_append_to_anchors_only(tmp_path):
    path = tmp_path / "kv.lynx"
    tensors = [{name: each.anchor_only() for name, each in part.items()} for part in (FIRST, SECOND)]
    path.write_bytes(stored(tensors[0]))
    lynxq.append(path, tensors[1])
    assert path.read_bytes() == stored(tensors[0]) + stored(tensors[1])


def test_append_to_a_split_pair(tmp_path):
    wanted = [b"".join(both) for both in zip(*(stored_split(tmp_path, each) for each in (FIRST, SECOND)), strict=True)]
    anchor, residual = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    lynxq.save_split(anchor, residual, FIRST, metadata=METADATA)
    lynxq.append(anchor, SECOND, residual=residual)
    assert [anchor.read_bytes(), residual.read_bytes()] == wanted
    assert set(readings(anchor, [FIRST, SECOND], residual=residual).values()) == {None}


def test_append_nothing(tmp_path):
    path = tmp_path / "kv.lynx"
    path.write_bytes(stored(one(8)))
    lynxq.append(path, one(0, first_token=8))
    lynxq.append(path, one(4, 1, first_token=8))
    assert lynxq.load(path)["k"].shape == (12, 2)
    path.write_bytes(stored({}))
    lynxq.append(path, {})
    assert lynxq.load(path) == {}


def test_only_valid_tokens_count(tmp_path):
    path = tmp_path / "kv.lynx"
    x = np.full((16, 2), np.nan, np.float32)
    x[:5] = 1.0
    path.write_bytes(stored({"k": lynxq.encode(x, KEYS, token_axis=0, valid_tokens=5)}))
    lynxq.append(path, one(4, first_token=5))
    assert lynxq.load(path)["k"].shape == (9, 2)


HEADS = lynxq.encode(np.ones((4, 2), np.float32), KEYS, token_axis=0, first_token=8, head_dim=1)
OUTER = lynxq.encode(np.ones((1, 4, 2), np.float32), KEYS, token_axis=1, first_token=8)
ACROSS = lynxq.encode(np.ones((2, 4), np.float32), KEYS, token_axis=1, first_token=8)

MISMATCHES = {
    "another name": ({"l": coded(4, first_token=8)}, "must have tensors \\['k'\\], got \\['l'\\]"),
    "more names": ({**one(4, first_token=8), "l": coded(4)}, "must have tensors"),
    "no names": ({}, "must have tensors"),
    "a gap": (one(4, first_token=9), "first token of 'k' must be 8 to continue it, got 9"),
    "an overlap": (one(4, first_token=7), "first token of 'k' must be 8 to continue it, got 7"),
    "the beginning": (one(4), "first token of 'k' must be 8 to continue it, got 0"),
    "another dtype": (one(4, first_token=8, dtype="float16"), "dtype of 'k' must be float32"),
    "other params": (one(4, first_token=8, params=VALUES), "params of 'k' must be"),
    "another alpha": (
        one(4, first_token=8, params=replace(KEYS, alpha=1.0)),
        "params of 'k'",
    ),
    "more channels": (one(4, first_token=8, channels=3), "head_dim of 'k' must be 2"),
    "another head_dim": ({"k": HEADS}, "head_dim of 'k' must be 2 to continue it, got 1"),
    "another token axis": ({"k": ACROSS}, "token axis of 'k' must be 0"),
    "an outer axis": ({"k": OUTER}, "token axis of 'k' must be 0"),
    "no residual": ({"k": coded(4, first_token=8).anchor_only()}, "must have the streams"),
}


@pytest.mark.parametrize(("tensors", "message"), MISMATCHES.values(), ids=MISMATCHES)
def test_what_does_not_continue_is_refused(tmp_path, tensors, message):
    path = tmp_path / "kv.lynx"
    before = stored(one(8))
    path.write_bytes(before)
    with pytest.raises(SegmentError, match=message):
        lynxq.append(path, tensors)
    assert path.read_bytes() == before
    if "streams" not in message:  # a file of segments of both kinds has anchors for all
        assert error_of(lynxq.open, before + stored(tensors)) is SegmentError


@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 4, 2)])
def test_other_axes_must_be_the_same(shape):
    first = lynxq.encode(np.ones((2, 8, 2), np.float32), KEYS, token_axis=1, head_dim=1)
    second = lynxq.encode(np.ones(shape, np.float32), KEYS, token_axis=1, first_token=8, head_dim=1)
    assert error_of(lynxq.open, stored({"k": first}) + stored({"k": second})) is SegmentError


def test_other_metadata_or_order_is_refused():
    assert error_of(lynxq.open, DATA + stored(SECOND, {"model": "other"})) is SegmentError
    assert error_of(lynxq.open, DATA + stored(dict(reversed(SECOND.items())))) is SegmentError


def test_a_residual_stream_in_some_segments_only():
    bare = {name: each.anchor_only() for name, each in SECOND.items()}
    with lynxq.open(DATA + stored(bare)) as reader:
        assert not reader["k"].has_residual
        assert reader["k"].decode("anchor").shape == (29, 2)
        assert reader["k"].decode(tokens=(0, 20)).tobytes() == decoded(FIRST["k"], "full").tobytes()
        with pytest.raises(MissingResidualError):
            reader["k"].decode()


def test_what_cannot_be_appended_to(tmp_path, path):
    anchor, residual = stored_split(tmp_path, FIRST)
    whole = {"anchor.lynx": anchor, "residual.lynx": residual}
    for content, error in (
        (b"", TruncatedError),
        (b"old", NotLynxError),
        (DATA[:-1], TruncatedError),
        (DATA + b"\0", TrailingBytesError),
    ):
        path.write_bytes(content)
        assert error_of(lynxq.append, path, SECOND) is error
        assert path.read_bytes() == content
    pair = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    assert error_of(lynxq.append, pair[1], SECOND) is MissingAnchorError
    assert error_of(lynxq.append, pair[0], SECOND) is SegmentError
    assert error_of(lynxq.append, pair[0], SECOND, residual=pair[0]) is WriterError
    path.write_bytes(stored_split(tmp_path, two(tokens=(20, 10)))[1])
    for file, content in zip(pair, whole.values(), strict=True):
        file.write_bytes(content)
    assert error_of(lynxq.append, pair[0], SECOND, residual=path) is ResidualMismatchError
    for wrong in (None, [coded(4)], {"k": np.zeros(3)}):
        with pytest.raises(DTypeError):
            lynxq.append(pair[0], wrong, residual=pair[1])
    assert {file.name: file.read_bytes() for file in pair} == whole
    with pytest.raises(FileNotFoundError):
        lynxq.append(tmp_path / "none", SECOND)


def test_append_over_a_torn_tail(path):
    for tail in (b"\0", bytes(64), b"torn" * 1000):
        path.write_bytes(DATA + tail)
        lynxq.append(path, SECOND, allow_trailing=True)
        assert path.read_bytes() == DATA + stored(SECOND)


# --- failures --------------------------------------------------------------------------------------------


def failing(monkeypatch, owner, name, count):
    """Let the call of a function with that number fail, from 0 on; returns the calls that there were."""
    real, calls = getattr(owner, name), []

    def replacement(*arguments):
        calls.append(arguments)
        if len(calls) == count + 1:
            raise OSError(errno.ENOSPC, "no space left, says the test")
        return real(*arguments)

    monkeypatch.setattr(owner, name, replacement)
    return calls


@pytest.mark.parametrize("tail", [b"", b"torn" * 999])
@pytest.mark.parametrize("where", [(os, "fsync", 2), (entries, "checksum", 6)], ids=["fsync", "checksum"])
def test_a_failure_in_the_middle_leaves_the_file_as_it_was(path, monkeypatch, where, tail):
    owner, name, times = where
    path.write_bytes(DATA + tail)
    for count in range(times):
        with monkeypatch.context() as patch:
            failing(patch, owner, name, count)
            with pytest.raises(OSError, match="says the test"):
                lynxq.append(path, SECOND, allow_trailing=True)
        assert path.read_bytes() == DATA + tail
    with monkeypatch.context() as patch:
        calls = failing(patch, owner, name, times)
        lynxq.append(path, SECOND, allow_trailing=True)
        assert len(calls) == times
    assert path.read_bytes() == DATA + stored(SECOND)


def test_a_failure_in_the_middle_leaves_both_files_as_they_were(tmp_path, monkeypatch):
    before = stored_split(tmp_path, FIRST)
    pair = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    for count in range(4):
        with monkeypatch.context() as patch:
            failing(patch, os, "fsync", count)
            with pytest.raises(OSError, match="says the test"):
                lynxq.append(pair[0], SECOND, residual=pair[1])
        assert tuple(file.read_bytes() for file in pair) == before


@pytest.mark.parametrize("room", [1, 64, 300, 700])
def test_a_full_disk_leaves_the_file_as_it_was(path, room):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(DATA) + room, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            lynxq.append(path, SECOND)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == DATA


# --- crashes ---------------------------------------------------------------------------------------------


def test_every_truncation_of_an_append(path):
    tensors, more = one(9), one(8, 1, 9)
    whole = stored(tensors) + stored(more)
    begin = spans(whole)[1].begin
    untouched = {(0, "k", "anchor"): None, (0, "k", "full"): None}
    for size in range(begin, len(whole)):
        torn = (whole[:begin] + bytes(64) + whole[begin + 64 :])[:size]  # the preamble is written last
        assert readings(torn, [tensors, more], allow_trailing=True) == untouched
        if size > begin:
            assert readings(torn, [tensors, more]) == {"open": TrailingBytesError}
        if size % 16 == 0:
            path.write_bytes(torn)
            lynxq.append(path, more, allow_trailing=True)
            assert path.read_bytes() == whole


def snapshots(monkeypatch, files):
    """The files as they are after every flush to disk, and how many bytes of them have just been flushed."""
    states = []
    real = atomic.sync

    def sync(file):
        real(file)
        states.append(tuple(Path(each).read_bytes() for each in files))

    monkeypatch.setattr(appending, "sync", sync)
    return states


def test_nothing_stored_is_ever_rewritten_and_the_preamble_comes_last(path, monkeypatch):
    states = snapshots(monkeypatch, [path])
    lynxq.append(path, SECOND)
    whole = DATA + stored(SECOND)
    assert states == [(DATA + bytes(64) + whole[len(DATA) + 64 :],), (whole,)]


def test_a_split_pair_is_sound_at_every_flush(tmp_path, monkeypatch):
    stored_split(tmp_path, FIRST)
    pair = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    states = snapshots(monkeypatch, pair)
    lynxq.append(pair[0], SECOND, residual=pair[1])
    segments = []
    for anchor, residual in states:
        found = readings(anchor, [FIRST, SECOND], residual=residual, allow_trailing=True)
        assert set(found.values()) == {None}
        segments.append(len({key[0] for key in found}))
    assert segments == [1, 1, 1, 2]


@pytest.mark.parametrize("retried", [SECOND, two(6, (9, 8), (20, 9)), two(6, (4, 4), (20, 9))])
def test_a_split_pair_takes_an_append_after_a_crash_between_its_files(tmp_path, retried):
    stored_split(tmp_path, FIRST)
    pair = tmp_path / "anchor.lynx", tmp_path / "residual.lynx"
    before = pair[0].read_bytes()
    lynxq.append(pair[0], SECOND, residual=pair[1])
    for torn in (before, before + bytes(64) + b"torn"):
        pair[0].write_bytes(torn)  # the residual file has the segment, the anchor file has not
        lynxq.append(pair[0], retried, residual=pair[1], allow_trailing=True)
        assert set(readings(pair[0], [FIRST, retried], residual=pair[1]).values()) == {None}


def test_append_does_not_mend_what_is_damaged(path):
    path.write_bytes(flipped(DATA, 8 * frame(DATA, 0, 0, 1).payload))
    lynxq.append(path, SECOND)
    found = readings(path, [FIRST, SECOND])
    assert {key for key, error in found.items() if error is AnchorChecksumError} == {
        (0, "k", "anchor"),
        (0, "k", "full"),
    }


def test_a_residual_file_far_ahead_is_not_cut_back(tmp_path):
    """One segment ahead is what a crash leaves; more is an old copy of the anchor file."""
    hot, cold = tmp_path / "hot", tmp_path / "cold"
    lynxq.save_split(hot, cold, FIRST, metadata=METADATA)
    old = hot.read_bytes()
    for tensors in (SECOND, THIRD):
        lynxq.append(hot, tensors, residual=cold)
    hot.write_bytes(old)
    before = cold.read_bytes()
    with pytest.raises(ResidualMismatchError, match="2 segments ahead"):
        lynxq.append(hot, SECOND, residual=cold)
    assert (hot.read_bytes(), cold.read_bytes()) == (old, before)


def test_a_torn_segment_can_be_left_out(path):
    """Cut off before its anchors are there, a later segment is trailing bytes for a reader that allows these."""
    lynxq.append(path, SECOND)
    whole = path.read_bytes()
    with lynxq.open(whole) as reader:
        end = reader.anchor_end
    for size in range(len(DATA), end):
        with lynxq.open(whole[:size], allow_trailing=True) as reader:
            assert (reader.segments, reader.consumed) == (1, len(DATA))
        if size > len(DATA):
            with pytest.raises(ContainerError):
                lynxq.open(whole[:size])


def test_expectations_are_checked_before_anything_is_added(path):
    before = path.read_bytes()
    with pytest.raises(IdentityError, match="metadata 'model'"):
        lynxq.append(path, SECOND, expect=lynxq.Expect(metadata={"model": "another"}))
    assert path.read_bytes() == before
    lynxq.append(path, SECOND, expect=lynxq.Expect(names=["k", "v"]))
    assert path.read_bytes() == before + stored(SECOND)
