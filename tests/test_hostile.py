"""Hostile containers whose checksums are all valid: a typed error, or arrays of the shape that they claim."""

import io
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Params, testing
from lynxq.errors import ContainerError, HeaderError, LimitError, TruncatedError
from tests import forge
from tests.containers import KEYS, anchors_end, coded, error_of, frames, spans, stored


def peak(function, *arguments):
    """Most bytes that were allocated at once while a call failed."""
    tracemalloc.start()
    try:
        with pytest.raises(ContainerError):
            function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def huge(shape, params=KEYS):
    """A header of one tensor with sizes that fit it."""
    record = forge.record(shape=shape, page=params.page, head_dim=max(shape[-1], 1))
    return forge.header(forge.description([record]), forge.streams(shape, params))


LARGE = Params(page=65536, range_size=8, chunk=4, sink_tokens=2)

HUGE = {
    "tokens": (lambda: huge((2**35, 1)), TruncatedError),
    "channels": (lambda: huge((8, 2**48)), TruncatedError),
    "elements": (lambda: huge((2**28, 2**28)), TruncatedError),
    "a large page": (lambda: huge((65536, 2**40), LARGE), TruncatedError),
    "header beyond the cap": (lambda: forge.header(header_size=1 << 62), LimitError),
    "metadata": (lambda: forge.header(forge.description(counts=(65536, 1))), HeaderError),
    "metadata text": (lambda: forge.header(struct.pack("<IIII", 1, 0, 2**32 - 1, 2**32 - 1)), HeaderError),
    "tensors": (lambda: forge.header(forge.description(counts=(0, 1 << 16))), HeaderError),
    "streams": (lambda: forge.header(streams=65535), LimitError),
}


@pytest.mark.parametrize(("make", "error"), HUGE.values(), ids=HUGE)
def test_no_memory_on_the_word_of_a_header(make, error):
    data = make() + bytes(4096)
    assert error_of(lynxq.load, data) is error
    for source in (data, io.BytesIO(data)):
        assert peak(lynxq.load, source) < 200_000


def test_no_memory_for_a_residual_that_is_not_there():
    tensors = {"k": coded(20000)}
    data = stored(tensors)
    prefix = data[: anchors_end(data)]
    assert peak(lynxq.load, prefix) < 12 * len(prefix)


def test_shapes_without_values_take_no_time_and_no_memory():
    for shape in ((2**35, 0), (0, 2**48), (2**35, 2**21, 0)):
        found = lynxq.load(huge(shape))["k"]
        assert (found.shape, found.nbytes) == (shape, 0)


@given(st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)), max_size=4))
def test_any_description_after_a_valid_preamble(text, table):
    assert error_of(lynxq.open, forge.header(text, table, segment_size=0)) is not None
    rest = forge.stream_table(table) + text
    data = forge.header(text, table, rest=forge.padded(rest, 64), segment_size=0)
    assert error_of(lynxq.load, data + bytes(1000)) is not None


TEXT = forge.description(entries=[(b"kind", b"x")])


@given(st.integers(0, len(TEXT) - 1), st.binary(min_size=1, max_size=12))
def test_any_change_of_a_description_with_valid_checksums(at, patch):
    text = (TEXT[:at] + patch + TEXT[at + len(patch) :])[: len(TEXT)]
    data = stored({"k": coded(20)}, {"kind": "x"})
    span = spans(data)[0]
    changed = forge.header(text) + data[span.header :]
    assert (changed == data) is (text == TEXT)
    if changed != data:
        assert error_of(lynxq.load, changed) is not None


@given(testing.tensors(max_elements=150, memory=False), testing.params(), st.randoms(use_true_random=False))
def test_any_payload_with_valid_checksums_decodes(sample, params, rng):
    """Whoever can write checksums can write any page; what it decodes to has the right shape, and no more is said."""
    data = bytearray(stored({"k": lynxq.encode(sample.x, params, token_axis=sample.token_axis)}))
    anchors = {}
    for each in frames(bytes(data)):
        size = each.end - each.payload
        content = rng.randbytes(size) if rng.random() < 0.7 else bytes([rng.choice([0, 0x7F, 0x80, 0xFF])]) * size
        data[each.payload : each.end] = content
        struct.pack_into("<Q", data, each.begin + 24, forge.checksum(content))
        anchors.setdefault(each.page, forge.checksum(content))
        struct.pack_into("<Q", data, each.begin + 32, anchors[each.page] if each.kind else 0)
        struct.pack_into("<Q", data, each.begin + 56, forge.checksum(bytes(data[each.begin : each.begin + 56])))
    for tier in ("anchor", "full"):
        for dtype in (None, "float16", "bfloat16"):
            assert lynxq.load(bytes(data), tier=tier, dtype=dtype)["k"].shape == sample.x.shape
