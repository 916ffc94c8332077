"""The segment header: one form for one content, and an error for everything else."""

import io
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import testing
from lynxq.errors import (
    HeaderChecksumError,
    HeaderError,
    LimitError,
    NotLynxError,
    TextModeError,
    TruncatedError,
    VersionError,
)
from lynxq.format import header as module
from lynxq.format.header import Header, Preamble
from lynxq.layout import Layout
from tests import forge
from tests.containers import METADATA, coded, decoded, error_of, flipped, readings, spans, stored, two
from tests.malformed import BOTH, HEADERS, IMPLIED, LINEAR, TWICE, describing, points, tensor


def unpack(data):
    preamble = Preamble.unpack(data)
    return Header.unpack(preamble, data[64 : preamble.header_size])


@st.composite
def layouts(draw):
    shape = draw(st.lists(st.integers(0, 40), min_size=1, max_size=16))
    axis = draw(st.integers(0, len(shape) - 1))
    first = draw(st.integers(0, 2**48))
    dtype = draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    shape = [n if sum(shape[:i]) < 80 else 1 for i, n in enumerate(shape)]
    head = draw(st.sampled_from([None, 1]))
    return Layout.of(draw(testing.params()), shape, dtype, token_axis=axis, head_dim=head, first_token=first)


texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(
    st.dictionaries(texts, texts, max_size=4),
    st.dictionaries(names, layouts(), max_size=4),
    st.sampled_from([(), ("anchor",), ("residual",), ("anchor", "residual")]),
)
def test_round_trip(metadata, tensors, streams):
    header = Header.of(metadata, tensors, streams)
    data = header.pack()
    assert len(data) == header.size
    assert len(data) % 64 == 0
    found = unpack(data)
    assert (found.metadata, found.tensors, found.streams) == (metadata, tensors, header.streams)
    assert list(found.tensors) == list(tensors)
    assert found.pack() == data
    assert (found.identity, found.segment_size) == (header.identity, header.segment_size)
    assert Header.of(dict(reversed(metadata.items())), tensors, streams).pack() == data


def test_metadata_is_sorted_by_bytes():
    data = Header.of({"\U0001f600": "1", "\uffff": "2", "b": "3", "a": "4", "": "5"}, {}, ["anchor"]).pack()
    assert list(unpack(data).metadata) == ["", "a", "b", "\uffff", "\U0001f600"]


def test_forger_makes_what_the_writer_makes():
    data = stored({"k": coded(20)}, {})
    assert data[: spans(data)[0].header] == forge.header()
    data = stored({"k": coded(20)}, METADATA)
    entries = sorted((key.encode(), value.encode()) for key, value in METADATA.items())
    assert forge.header(forge.description(entries=entries)) == data[: spans(data)[0].header]
    assert forge.reheaded(data) == data


@pytest.mark.parametrize(("make", "error", "message"), HEADERS.values(), ids=HEADERS)
def test_malformed_with_valid_checksums(make, error, message):
    data = make() + bytes(4096)
    for source in (data, io.BytesIO(data)):
        with pytest.raises(error, match=re.escape(message)) as caught:
            lynxq.open(source)
        assert type(caught.value) is error


def test_what_the_table_of_malformations_changes_is_well_formed_otherwise():
    for data in (
        tensor(),
        describing([(b"", b"")]),
        tensor(name=b"n" * 1),
        tensor(alpha=0.0, points=struct.pack("<8f", *LINEAR.points)),
        forge.header(forge.description([forge.record(chunk=8)]), forge.streams(params=IMPLIED)),
        forge.header(forge.description([forge.record(), forge.record(b"l")]), TWICE),
        forge.header(forge.description([forge.record(b"n" * 1024)])),
        describing([(b"a" * 2**16, b"b" * 2**16)]),
        tensor(points=points(i0=0.0)),
        tensor(first_token=2**48),
        forge.header(table=[*BOTH, *((0x8000 + n, 0) for n in range(62))]),
    ):
        assert unpack(data).pack() == data


def test_description_cut_at_every_byte():
    text = forge.description(entries=[(b"a", b"b"), (b"c", b"d")])
    assert error_of(unpack, forge.header(text)) is None
    for size in range(len(text)):
        assert error_of(unpack, forge.header(text[:size])) is HeaderError


def test_header_cut_at_every_byte():
    data = forge.header(forge.description(entries=[(b"a", b"b")]))
    for size in range(len(data)):
        assert error_of(lynxq.open, data[:size]) is TruncatedError


def test_every_bit_flip_is_found():
    data = forge.header(forge.description(entries=[(b"a", b"b")]))
    for bit in range(8 * len(data)):
        wrong_magic = (TextModeError if bit >= 40 or bit == 7 else NotLynxError) if bit < 64 else None
        expected = wrong_magic or (VersionError if bit < 72 else HeaderChecksumError)
        assert error_of(unpack, flipped(data, bit)) is expected, bit


def test_text_mode_damage():
    data = stored(two())
    for damaged in (
        data.replace(b"\r\n", b"\n"),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"\r\n", b"\r"),
        bytes(byte & 0x7F for byte in data),
        data[:5] + b"\n\x1a",
    ):
        assert error_of(lynxq.open, damaged) is TextModeError


@pytest.mark.parametrize("make", [bytes, bytearray, io.BytesIO, lambda data: np.frombuffer(data, np.uint8)])
def test_empty_and_short(make):
    assert error_of(lynxq.open, make(b"")) is TruncatedError
    assert error_of(lynxq.open, make(b"\x89")) is TruncatedError
    assert error_of(lynxq.open, make(b"\x88")) is NotLynxError
    assert error_of(lynxq.open, make(forge.MAGIC)) is TruncatedError


def test_empty_file(tmp_path):
    path = tmp_path / "empty.lynx"
    for content, error in ((b"", TruncatedError), (b"\x89", TruncatedError), (b"P", NotLynxError)):
        path.write_bytes(content)
        assert error_of(lynxq.open, path) is error


def test_higher_minor_versions_are_read():
    tensors = two()
    data = stored(tensors)
    for minor in (1, 255):
        newer = forge.reheaded(data, minor=minor)
        assert newer != data
        assert set(readings(newer, [tensors]).values()) == {None}
        assert lynxq.describe(newer)["format"] == f"1.{minor}"


def test_ancillary_streams_are_skipped(tmp_path):
    tensors, later = two(), two(5, first=(20, 9))
    extra = [(0x8000, 64), (0xFFFF, 128)]
    data = forge.reheaded(stored(tensors), extra=extra) + b"\xaa" * 192
    assert set(readings(data, [tensors]).values()) == {None}
    with lynxq.open(data) as reader:
        assert (reader.consumed, reader.complete, reader.verify()) == (len(data), True, [])
    assert set(readings(data + stored(later), [tensors, later]).values()) == {None}
    path = tmp_path / "kv.lynx"
    path.write_bytes(data)
    lynxq.append(path, later)
    assert path.read_bytes() == data + stored(later)
    with lynxq.open(data[:-1]) as reader:
        assert (reader.consumed, reader.complete) == (len(data), False)
        assert reader["k"].decode().tobytes() == decoded(tensors["k"], "full").tobytes()


def test_writer_refuses_what_readers_refuse():
    one = {"k": coded(8)}
    layout = one["k"].layout
    for metadata, tensors, error in (
        ({}, {"": layout}, HeaderError),
        ({}, {3: layout}, HeaderError),
        ({}, {"\ud800": layout}, HeaderError),
        ({}, {"n" * 1025: layout}, LimitError),
        ({"a": 1}, {}, HeaderError),
        ({1: "a"}, {}, HeaderError),
        ({"\ud800": "a"}, {}, HeaderError),
        ({"a": "\ud800"}, {}, HeaderError),
        ({"a": "b" * (2**16 + 1)}, {}, LimitError),
        ({"a" * (2**16 + 1): "b"}, {}, LimitError),
        ({str(n): "" for n in range(2**16 + 1)}, {}, LimitError),
        ([("a", "b")], {}, HeaderError),
    ):
        assert error_of(Header.of, metadata, tensors, ["anchor"]) is error


def test_header_size_is_capped(monkeypatch):
    tensors = {"k": coded(8).layout}
    size = len(Header.of({}, tensors, ["anchor"]).pack())
    monkeypatch.setattr(module, "MAX_HEADER", size)
    assert len(Header.of({}, tensors, ["anchor"]).pack()) == size
    monkeypatch.setattr(module, "MAX_HEADER", size - 64)
    assert error_of(Header.of, {}, tensors, ["anchor"]) is LimitError
