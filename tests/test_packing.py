"""Bit planes, against a packer that sets one bit after the other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lynxq import packing

PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2]}
BITS = sorted(PLANES)


def slow_pack(codes, bits):
    outer, tokens, channels = codes.shape
    planes, taken = [], 0
    for width in PLANES[bits]:
        plane = np.zeros((outer, -(-tokens * width // 8), channels), np.uint8)
        for o, t, c in np.ndindex(codes.shape):
            for bit in range(width):
                if int(codes[o, t, c]) >> (taken + bit) & 1:
                    position = t * width + bit
                    plane[o, position // 8, c] += 1 << position % 8
        planes.append(plane)
        taken += width
    return planes


@st.composite
def codes(draw):
    bits = draw(st.sampled_from(BITS))
    shape = draw(st.tuples(st.integers(1, 2), st.integers(0, 19), st.integers(1, 3)))
    return bits, draw(arrays(np.uint8, shape, elements=st.integers(0, (1 << bits) - 1)))


@given(codes())
def test_every_bit_is_at_its_place(case):
    bits, values = case
    packed = packing.pack(values, bits)
    wanted = slow_pack(values, bits)
    assert len(packed) == len(wanted)
    for plane, expected in zip(packed, wanted, strict=True):
        assert plane.dtype == np.uint8
        assert np.array_equal(plane, expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", [*range(20), 255, 256, 257])
def test_round_trip(bits, tokens):
    values = np.random.default_rng(tokens).integers(0, 1 << bits, (2, tokens, 3), dtype=np.uint8)
    before = values.copy()
    planes = packing.pack(values, bits)
    assert np.array_equal(packing.unpack(planes, bits, tokens), values)
    assert np.array_equal(values, before)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", range(1, 17))
def test_unused_bits_are_zero_and_ignored(bits, tokens):
    ones = np.full((1, tokens, 2), (1 << bits) - 1, np.uint8)
    planes = packing.pack(ones, bits)
    for plane, width in zip(planes, PLANES[bits], strict=True):
        used = tokens * width
        assert np.bitwise_count(plane).sum() == used * 2
        if used % 8:
            plane[:, -1] |= np.uint8(0xFF << used % 8 & 0xFF)
    assert np.array_equal(packing.unpack(planes, bits, tokens), ones)


@pytest.mark.parametrize("bits", BITS)
def test_strided_codes(bits):
    values = np.random.default_rng(0).integers(0, 1 << bits, (3, 22, 8), dtype=np.uint8)
    strided = values.transpose(2, 1, 0)[::2, ::-1]
    for plane, expected in zip(
        packing.pack(strided, bits), packing.pack(np.ascontiguousarray(strided), bits), strict=True
    ):
        assert np.array_equal(plane, expected)


def test_the_documented_examples():
    """The first token is in the lowest bits; the first plane holds the lowest bits of a code."""
    four = packing.pack(np.array([1, 2, 15], np.uint8).reshape(1, 3, 1), 4)
    assert [plane.ravel().tolist() for plane in four] == [[0x21, 0x0F]]
    five = packing.pack(np.array([0b10001, 0b00010], np.uint8).reshape(1, 2, 1), 5)
    assert [plane.ravel().tolist() for plane in five] == [[0x21], [0b01]]
    six = packing.pack(np.array([0b100001, 0b110010], np.uint8).reshape(1, 2, 1), 6)
    assert [plane.ravel().tolist() for plane in six] == [[0x21], [0b1110]]
    three = packing.pack(np.array([0b101, 0b010, 0b111], np.uint8).reshape(1, 3, 1), 3)
    assert [plane.ravel().tolist() for plane in three] == [[0b111001], [0b101]]
