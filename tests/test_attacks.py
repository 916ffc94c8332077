"""Damaged and hostile containers: a typed error or what was stored, never anything else."""

import random

import numpy as np
import pytest

import lynxq
from lynxq.errors import (
    AnchorChecksumError,
    FrameError,
    ResidualChecksumError,
    ResidualMismatchError,
    TruncatedError,
)
from tests.containers import (
    anchors_end,
    coded,
    decoded,
    error_of,
    flipped,
    frame,
    frames,
    readings,
    spans,
    stored,
    stored_split,
    two,
)

TENSORS = two()
DATA = stored(TENSORS)
LATER = two(7, first=(20, 9))
GROWN = DATA + stored(LATER)
ONE, MORE = {"k": coded(9)}, {"k": coded(8, 1, first_token=9)}


def failures(found):
    return {key: error for key, error in found.items() if error is not None}


def blame(data, position):
    """The failures that damage at one byte of a sound file must lead to, and no others."""
    for span in spans(data):
        if span.begin <= position < span.header:
            return None  # whatever opening says
    (hit,) = [each for each in frames(data) if each.begin <= position < each.end]
    checksums = AnchorChecksumError, ResidualChecksumError
    error = FrameError if position < hit.payload else checksums[hit.kind]
    tiers = ("anchor", "full") if hit.kind == 0 else ("full",)
    return {(hit.segment, "kv"[hit.tensor], tier): error for tier in tiers}


def check_flips(data, truth, bits):
    for bit in bits:
        found = readings(flipped(data, bit), truth)
        expected = blame(data, bit // 8)
        if expected is None:
            assert list(found) == ["open"], bit
        else:
            assert failures(found) == expected, bit


@pytest.mark.parametrize("part", range(4))
def test_every_bit_flip(part):
    quarter = len(DATA) * 2
    check_flips(DATA, [TENSORS], range(quarter * part, quarter * (part + 1)))


def test_every_bit_flip_in_two_segments():
    data = stored(ONE) + stored(MORE)
    check_flips(data, [ONE, MORE], range(8 * len(data)))


def test_flips_in_the_second_segment_leave_the_first_one_when_tails_are_allowed():
    data = stored(ONE) + stored(MORE)
    begin = spans(data)[1].begin
    for bit in range(8 * begin, 8 * begin + 64):  # the magic bytes: what follows is no segment
        found = readings(flipped(data, bit), [ONE, MORE], allow_trailing=True)
        assert found == {(0, "k", "anchor"): None, (0, "k", "full"): None}
    for bit in range(8 * begin + 64, 8 * spans(data)[1].header):
        assert list(readings(flipped(data, bit), [ONE, MORE], allow_trailing=True)) == ["open"]


def test_every_bit_flip_of_a_split_pair(tmp_path):
    anchor, residual = stored_split(tmp_path, ONE)
    for bit in range(8 * len(anchor)):
        expected = blame(anchor, bit // 8)
        found = readings(flipped(anchor, bit), [ONE], residual=residual)
        assert failures(found) == expected if expected else list(found) == ["open"], bit
    for bit in range(8 * len(residual)):
        expected = blame(residual, bit // 8)
        found = readings(anchor, [ONE], residual=flipped(residual, bit))
        assert failures(found) == expected if expected else list(found) == ["open"], bit


def test_verify_names_every_damaged_stream():
    damaged = DATA
    for kind, tensor in ((0, 1), (1, 0)):
        damaged = flipped(damaged, 8 * frame(DATA, kind, tensor, 0).payload)
    with lynxq.open(damaged) as reader:
        found = [(type(error), str(error).split(" does")[0]) for error in reader.verify()]
    assert found == [
        (AnchorChecksumError, "anchor page 0 of tensor 1"),
        (ResidualChecksumError, "residual page 0 of tensor 0"),
    ]


def test_truncation_at_every_byte():
    ends = {(each.kind, each.tensor): each.end for each in frames(DATA)}
    for size in range(len(DATA)):
        for allow_trailing in (False, True):
            found = readings(DATA[:size], [TENSORS], allow_trailing=allow_trailing)
            if size < anchors_end(DATA):
                assert found == {"open": TruncatedError}
            else:
                cut = [name for tensor, name in enumerate("kv") if size < ends[1, tensor]]
                assert failures(found) == {(0, name, "full"): TruncatedError for name in cut}


def test_truncation_at_every_byte_of_two_segments():
    data = stored(ONE) + stored(MORE)
    first, _ = spans(data)
    for size in range(first.end, len(data)):
        for allow_trailing in (False, True):
            found = readings(data[:size], [ONE, MORE], allow_trailing=allow_trailing)
            if size == first.end or (allow_trailing and size < anchors_end(data)):
                assert found == {(0, "k", "anchor"): None, (0, "k", "full"): None}
            elif size < anchors_end(data):
                assert set(found) == {"open"}
                assert found["open"].__name__ in ("TruncatedError", "TrailingBytesError")
            else:
                assert failures(found) == {(1, "k", "full"): TruncatedError}


def test_truncation_at_every_byte_of_a_split_pair(tmp_path):
    anchor, residual = stored_split(tmp_path, ONE)
    for size in range(len(anchor)):
        assert readings(anchor[:size], [ONE], residual=residual) == {"open": TruncatedError}
    for size in range(len(residual)):
        found = readings(anchor, [ONE], residual=residual[:size])
        whole = {(0, "k", "full"): TruncatedError}
        assert (failures(found) if size >= spans(residual)[0].header else found) in (whole, {"open": TruncatedError})
        assert ("open" in found) is (size < spans(residual)[0].header)


def test_random_damage():
    rng = random.Random(2)
    for source, truth in ((DATA, [TENSORS]), (GROWN, [TENSORS, LATER])):
        for _ in range(300):
            data = bytearray(source)
            for _ in range(rng.choice([1, 1, 2, 5])):
                at, size = rng.randrange(len(data)), rng.choice([1, 8, 64, 200])
                action = rng.randrange(5)
                if action == 0:
                    data[at : at + size] = rng.randbytes(min(size, len(data) - at))
                elif action == 1:
                    del data[at : at + size]
                elif action == 2:
                    data[at:at] = rng.randbytes(size)
                elif action == 3:
                    other = rng.randrange(len(data))
                    data[at : at + size] = data[other : other + size]
                else:
                    data[at : at + size] = bytes(size)
                data = data or bytearray(1)
            for allow_trailing in (False, True):
                found = readings(bytes(data), truth, allow_trailing=allow_trailing)
                assert found  # the referee fails on anything but errors of containers and the truth


# --- whole frames in the wrong place ---------------------------------------------------------------------


def moved(data, place, other, source):
    assert place.end - place.begin == source.end - source.begin
    return data[: place.begin] + other[source.begin : source.end] + data[place.end :]


def test_every_frame_at_every_place_of_its_size():
    every = [(DATA, each) for each in frames(DATA)] + [(GROWN, each) for each in frames(GROWN) if each.segment]
    tried = set()
    for place in frames(DATA):
        for data, source in every:
            if source[:4] == place[:4] or source.end - source.begin != place.end - place.begin:
                continue
            tiers = ("anchor", "full") if place.kind == 0 else ("full",)
            expected = {(0, "kv"[place.tensor], tier): FrameError for tier in tiers}
            assert failures(readings(moved(DATA, place, data, source), [TENSORS])) == expected
            tried.add(tuple(a != b for a, b in zip(place[:4], source[:4], strict=True)))
    assert len(tried) >= 6  # another segment, kind, tensor, page, and combinations of these


def test_frames_of_other_files():
    tensors = {"k": coded(24), "l": coded(24, 1)}
    data = stored(tensors)
    renamed = stored({"k": coded(24), "m": coded(24, 1)})
    longer = stored({"k": coded(25), "l": coded(24, 1)})
    noted = stored(tensors, {"model": "other"})
    for other in (renamed, longer, noted):
        for kind in (0, 1):
            place, source = frame(data, kind, 0, 1), frame(other, kind, 0, 1)
            found = failures(readings(moved(data, place, other, source), [tensors]))
            tiers = ("anchor", "full") if kind == 0 else ("full",)
            assert found == {(0, "k", tier): FrameError for tier in tiers}


def test_residuals_of_another_file_with_the_same_description():
    other = stored(two(9))
    mixed = DATA[: anchors_end(DATA)] + other[anchors_end(DATA) :]
    wrong = {(0, name, "full"): ResidualMismatchError for name in "kv"}
    assert failures(readings(mixed, [TENSORS])) == wrong
    place = frame(DATA, 1, 0, 1)
    assert failures(readings(moved(DATA, place, other, place), [TENSORS])) == {(0, "k", "full"): ResidualMismatchError}
    with lynxq.open(mixed) as reader:
        assert [type(error) for error in reader.verify()] == [ResidualMismatchError] * 2
        out = np.full((20, 2), np.nan, np.float32)
        assert error_of(reader["k"].decode, out=out) is ResidualMismatchError
        assert np.isnan(out).all()


def test_anchors_of_another_file_with_the_same_description_do_not_pass_a_full_decode():
    # Alone they cannot be told from the right ones: each such frame is whole and at its place.
    other = stored(two(9))
    place = frame(DATA, 0, 0, 1)
    with lynxq.open(moved(DATA, place, other, place)) as reader:
        assert error_of(reader["k"].decode) is ResidualMismatchError
        assert [type(error) for error in reader.verify()] == [ResidualMismatchError]
        near = decoded(two(9)["k"], "anchor")[8:16]
        assert reader["k"].decode("anchor", tokens=(8, 16)).tobytes() == near.tobytes()


def test_a_residual_page_of_another_anchor_is_not_handed_out():
    mixed = DATA[: anchors_end(DATA)] + stored(two(9))[anchors_end(DATA) :]
    with lynxq.open(mixed) as reader:
        assert error_of(reader["k"].page, "residual", 0) is ResidualMismatchError


def test_segments_out_of_order_or_twice():
    first, second = stored(ONE), stored(MORE)
    for data in (second + first, first + first, first + second + second, first + second + first):
        assert readings(data, [ONE, MORE])["open"].__name__ == "SegmentError"


def test_a_damaged_page_is_not_handed_out():
    for each in frames(DATA):
        stream, payload = (("anchor", AnchorChecksumError), ("residual", ResidualChecksumError))[each.kind]
        for position, error in ((each.begin, FrameError), (each.payload - 1, FrameError), (each.payload, payload)):
            for bit in (0, 7):
                with lynxq.open(flipped(DATA, 8 * position + bit)) as reader:
                    assert error_of(reader["kv"[each.tensor]].page, stream, each.page) is error


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("tier", ["anchor", "full"])
def test_out_is_untouched_when_any_frame_is_damaged(library, tier):
    for each in frames(GROWN):
        if each.tensor or (each.kind and tier == "anchor"):
            continue
        for position in (each.begin + 5, each.begin + 40, each.payload, each.end - 1):
            room = np.full((81, 5), np.nan, np.float32)
            out = room[1:81:2, 1:5:2]
            if library == "torch":
                torch = pytest.importorskip("torch")
                out = torch.from_numpy(room)[1:81:2, 1:5:2]
            with lynxq.open(flipped(GROWN, 8 * position)) as reader:
                assert error_of(reader["k"].decode, tier, out=out) is not None
            assert np.isnan(room).all()
