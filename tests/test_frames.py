"""The frame header: 64 bytes, every one of which is checked."""

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lynxq.errors import (
    AnchorChecksumError,
    ContainerError,
    FrameError,
    ReservedError,
    ResidualChecksumError,
    ResidualMismatchError,
    StreamKindError,
    TruncatedError,
)
from lynxq.format.frames import HEADER_SIZE, FrameHeader, check_kind, checksum

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)

FIELDS = {"kind": 1, "tensor": 2, "page": 3, "size": 4, "payload": 5, "anchor": 6, "segment": 7}


def forged(*, magic=b"LXFR", kind=1, reserved=0, anchor=6, reserved_too=0, damage=0):
    """The bytes of a frame header with a valid checksum, whatever it says."""
    body = struct.pack("<4sHHIIQQQQQ", magic, kind, reserved, 2, 3, 4, 5, anchor, 7, reserved_too)
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body) ^ damage)


@st.composite
def headers(draw):
    kind = draw(st.sampled_from([0, 1, 0x8000, 0xFFFF]))
    anchor = 0 if kind == 0 else draw(U64)
    return FrameHeader(kind, draw(U32), draw(U32), draw(U64), draw(U64), anchor, draw(U64))


@given(headers(), st.binary(max_size=8))
def test_round_trip(header, after):
    data = header.pack()
    assert len(data) == HEADER_SIZE == 64
    assert FrameHeader.unpack(data + after) == header
    assert FrameHeader.unpack(np.frombuffer(data + after, np.uint8)) == header
    assert FrameHeader.unpack(memoryview(data)).pack() == data


def test_bytes_are_those_of_the_format():
    assert FrameHeader(**FIELDS).pack() == forged()


def test_checksum_is_xxh3_64_with_seed_0():
    # The digest of nothing, as xxHash's own sanity check has it.
    assert checksum(b"") == 0x2D06800538D394C2
    assert checksum(b"") == checksum(memoryview(b"")) == checksum(np.empty(0, np.uint8))


@pytest.mark.parametrize("size", range(HEADER_SIZE))
def test_truncated(size):
    with pytest.raises(TruncatedError) as caught:
        FrameHeader.unpack(forged()[:size])
    assert (caught.value.needed, caught.value.available) == (HEADER_SIZE, size)


def test_every_bit_flip_is_found():
    for kind in (0, 1):
        data = FrameHeader(**{**FIELDS, "kind": kind, "anchor": 6 * kind}).pack()
        for bit in range(8 * HEADER_SIZE):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FrameError):
                FrameHeader.unpack(damaged)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"magic": b"LXFr"}, FrameError, "b'LXFr'"),
        ({"damage": 1}, FrameError, "checksum"),
        ({"damage": 1 << 63}, FrameError, "checksum"),
        ({"reserved": 1}, ReservedError, "0x1"),
        ({"reserved": 0x8000}, ReservedError, "0x8000"),
        ({"reserved_too": 1}, ReservedError, "0x1"),
        ({"reserved_too": 1 << 63}, ReservedError, "0x8000000000000000"),
        ({"kind": 2}, StreamKindError, "kind 2 is critical"),
        ({"kind": 0x7FFF}, StreamKindError, "kind 32767 is critical"),
        ({"kind": 0}, ReservedError, "must name no other anchor, got 0x6"),
    ],
)
def test_malformed_with_a_valid_checksum(changes, error, message):
    with pytest.raises(error, match=message) as caught:
        FrameHeader.unpack(forged(**changes))
    assert type(caught.value) is error


@pytest.mark.parametrize("kind", [0x8000, 0x8001, 0xFFFF])
def test_unknown_ancillary_kinds_are_read(kind):
    assert FrameHeader.unpack(forged(kind=kind)) == FrameHeader(**{**FIELDS, "kind": kind})
    assert check_kind(kind) is False


def test_known_kinds():
    assert [check_kind(kind) for kind in (0, 1)] == [True, True]


PLACE = {"kind": 1, "tensor": 2, "page": 3, "size": 4, "segment": 7}


def test_right_place():
    assert FrameHeader(**FIELDS).check_place(**PLACE) is None


@pytest.mark.parametrize(
    ("field", "name"),
    [("kind", "kind"), ("tensor", "tensor"), ("page", "page"), ("size", "payload size"), ("segment", "segment")],
)
def test_wrong_place(field, name):
    with pytest.raises(FrameError, match=f"^{name} of a frame must be 99 at its place, got {FIELDS[field]}"):
        FrameHeader(**FIELDS).check_place(**{**PLACE, field: 99})


@pytest.mark.parametrize(("kind", "error"), [(0, AnchorChecksumError), (1, ResidualChecksumError)])
def test_payload(kind, error):
    payload = bytes(range(64))
    header = FrameHeader(**{**FIELDS, "kind": kind, "payload": xxhash.xxh3_64_intdigest(payload)})
    for same in (payload, memoryview(payload), np.frombuffer(payload, np.uint8)):
        assert header.check_payload(same) is None
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(error, match="page 3 of tensor 2"):
            header.check_payload(damaged)
    for other in (b"", payload[:-1], payload + b"\0"):
        with pytest.raises(error):
            header.check_payload(other)


def test_damaged_payload_of_an_ancillary_frame():
    with pytest.raises(ContainerError):
        FrameHeader(**{**FIELDS, "kind": 0x8000}).check_payload(b"other")


def test_anchor():
    assert FrameHeader(**FIELDS).check_anchor(6) is None
    for other in (0, 7, 6 | 1 << 63):
        with pytest.raises(ResidualMismatchError, match="page 3 of tensor 2"):
            FrameHeader(**FIELDS).check_anchor(other)
