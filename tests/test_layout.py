"""Layout: integer arithmetic that places every byte, and refuses what it cannot place."""

from itertools import pairwise
from math import ceil, prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lynxq import Params, layout, testing
from lynxq.errors import DTypeError, ShapeError
from lynxq.layout import Layout
from tests.scalar_model import runs_of

STREAMS = ("anchor", "residual")


@st.composite
def layouts(draw):
    params = draw(testing.params())
    shape = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = draw(st.integers(0, 300) | st.integers(0, 40))
    return Layout.of(
        params,
        shape,
        draw(st.sampled_from(["float32", "float16", "bfloat16"])),
        token_axis=axis,
        first_token=draw(st.sampled_from([0, 0, 2, 1000])),
        valid_tokens=draw(st.none() | st.integers(0, shape[axis])),
    )


@given(layouts())
def test_sections_are_in_order_aligned_and_apart(subject):
    for stream in STREAMS:
        for page in range(subject.pages):
            sections = subject.sections(stream, page)
            names = [section.name for section in sections]
            assert len(set(names)) == len(names)
            assert sections[0].offset == 0
            for section in sections:
                assert section.offset % 16 == 0
                assert section.nbytes == prod(section.shape) * section.itemsize
            for before, after in pairwise(sections):
                assert 0 <= after.offset - before.offset - before.nbytes < 16
            end = sections[-1].offset + sections[-1].nbytes
            assert subject.page_size(stream, page) == ceil(end / 64) * 64


@given(layouts())
def test_section_names_and_shapes(subject):
    params, planes = subject.params, {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2]}
    for page in range(subject.pages):
        coded, sinks = subject.coded(page), subject.page_sinks(page)
        length = coded if params.axis == "token" else subject.channels
        head = max(coded, 1) if params.axis == "token" else subject.head_dim
        runs = runs_of(length, params, head)
        numbers = {"ranges": len(runs), "centres": sum(map(len, runs))}

        def shape(number, numbers=numbers, coded=coded):
            if params.axis == "token":
                return subject.outer, numbers[number], subject.channels
            return subject.outer, coded, numbers[number]

        size = subject.dtype.itemsize
        wanted = [("lo", shape("ranges"), size), ("hi", shape("ranges"), size)]
        if params.chunk != params.range_size or params.center == "mean":
            width = {"u8": 1, "u16": 2, "f32": 4}[params.metadata]
            wanted += [("mu", shape("centres"), width), ("sigma", shape("centres"), width)]
        wanted.append(("sinks", (subject.outer, sinks, subject.channels), size))
        for stream, bits in (("anchor", params.anchor_bits), ("residual", params.residual_bits)):
            rows = [(f"{stream}{w}", (subject.outer, ceil(coded * w / 8), subject.channels), 1) for w in planes[bits]]
            sections = subject.sections(stream, page)
            assert [(s.name, s.shape, s.itemsize) for s in sections] == (wanted if stream == "anchor" else []) + rows


@given(layouts())
def test_groups_are_the_runs_and_chunks(subject):
    for page in range(subject.pages):
        coded = subject.coded(page)
        groups = subject.groups(coded)
        along_tokens = subject.params.axis == "token"
        length = coded if along_tokens else subject.channels
        runs = runs_of(length, subject.params, max(coded, 1) if along_tokens else subject.head_dim)
        assert (groups.axis, groups.length) == (1 if along_tokens else 2, length)
        assert list(groups.chunk_starts) == [chunk.start for run in runs for chunk in run]
        numbers = [0]
        for run in runs:
            numbers.append(numbers[-1] + len(run))
        assert list(groups.run_starts) == numbers[:-1]


@given(layouts())
def test_offsets_are_sums_of_sizes(subject):
    for stream in STREAMS:
        offset = 0
        for page in range(subject.pages):
            assert subject.page_offset(stream, page) == offset
            assert subject.page_size(stream, page) % 64 == 0
            offset += subject.page_size(stream, page)
        assert subject.page_offset(stream, subject.pages) == offset
        assert subject.stream_size(stream) == offset


@given(layouts())
def test_full_pages_have_one_size(subject):
    params = subject.params
    for stream in STREAMS:
        sizes = {
            subject.page_size(stream, page)
            for page in range(subject.pages)
            if subject.coded(page) == params.page and not subject.page_sinks(page)
        }
        assert len(sizes) <= 1


@given(layouts())
def test_pages_partition_the_tokens(subject):
    spans = [subject.span(page) for page in range(subject.pages)]
    tokens = [token for start, stop in spans for token in range(start, stop)]
    assert tokens == (list(range(subject.tokens)) if subject.outer * subject.channels else [])
    assert all(stop > start for start, stop in spans)
    assert all(start % subject.params.page == 0 for start, _ in spans)
    assert sum(subject.page_sinks(page) for page in range(subject.pages)) == (subject.sinks if spans else 0)
    assert subject.sinks == min(max(subject.params.sink_tokens - subject.first_token, 0), subject.tokens)
    for page, (start, stop) in enumerate(spans):
        assert subject.coded(page) == stop - start - subject.page_sinks(page) >= 0


@given(layouts(), st.data())
def test_narrowed_keeps_pages_as_they_are(subject, data):
    start = data.draw(st.integers(0, subject.pages))
    stop = data.draw(st.integers(start, subject.pages))
    part = subject.narrowed(start, stop)
    assert part.pages == stop - start
    assert part.narrowed(0, part.pages) == part
    assert (part.params, part.dtype, part.head_dim) == (subject.params, subject.dtype, subject.head_dim)
    assert (part.outer_shape, part.inner_shape) == (subject.outer_shape, subject.inner_shape)
    assert part.tokens == part.shape[part.token_axis]
    for stream in STREAMS:
        size = subject.page_offset(stream, stop) - subject.page_offset(stream, start)
        assert part.stream_size(stream) == size
        for page in range(part.pages):
            assert part.sections(stream, page) == subject.sections(stream, start + page)
            assert part.page_size(stream, page) == subject.page_size(stream, start + page)
    assume(part.pages)
    assert part.first_token == subject.first_token + start * subject.params.page
    assert part.tokens == sum(subject.coded(p) + subject.page_sinks(p) for p in range(start, stop))


def test_narrowed_to_all_pages_is_the_layout():
    subject = Layout.of(Params(page=8, range_size=8, chunk=8), (2, 29, 3), "float16", token_axis=1)
    assert subject.narrowed(0, subject.pages) == subject


def test_a_known_layout():
    """Sizes worked out by hand: 600 tokens of 2 heads of 64 in bfloat16 with the keys preset."""
    subject = Layout.of(Params.keys(), (600, 2, 64), "bfloat16", token_axis=0)
    assert (subject.outer, subject.channels, subject.head_dim, subject.pages, subject.sinks) == (1, 128, 64, 3, 4)
    ranges, centres = 128 * 2, 128 * 8
    assert subject.page_size("anchor", 1) == 2 * ranges + 2 * centres + 128 * 128
    assert subject.page_size("anchor", 0) == 2 * ranges + 2 * centres + 4 * 128 * 2 + 126 * 128
    assert subject.page_size("anchor", 2) == 2 * ranges + 2 * 128 * 3 + 44 * 128
    assert [subject.page_size("residual", page) for page in range(3)] == [126 * 128, 128 * 128, 44 * 128]
    values = Layout.of(Params.values(), (1, 2, 600, 80), "float32", token_axis=2, first_token=600)
    assert (values.outer, values.channels, values.sinks) == (2, 80, 0)
    assert [s.shape for s in values.sections("anchor", 0)] == [(2, 256, 2), (2, 256, 2), (2, 0, 80), (2, 128, 80)]
    assert [s.name for s in values.sections("anchor", 0)] == ["lo", "hi", "sinks", "anchor4"]


def test_a_huge_tensor_is_placed_without_touching_memory():
    subject = Layout.of(Params(), (1 << 40, 1 << 16), "float32", token_axis=0)
    assert subject.pages == 1 << 32
    assert subject.page_size("residual", 5) == (1 << 16) * 128
    assert subject.page_offset("residual", 1 << 31) == ((1 << 31) * 128 - 2) * (1 << 16)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3), (0, 5, 0)])
def test_empty_tensors_have_no_pages(shape):
    for axis in range(len(shape)):
        subject = Layout.of(Params(), shape, "float32", token_axis=axis)
        assert subject.pages == 0
        assert subject.elements == 0
        assert [subject.stream_size(stream) for stream in STREAMS] == [0, 0]


def test_caps():
    params = Params()
    assert Layout.of(params, (1,) * 16, "float32", token_axis=15).token_axis == 15
    assert Layout.of(params, (1 << 40, 1 << 16), "float32", token_axis=0).elements == 1 << 56
    assert Layout.of(params, (1 << 48, 1 << 8), "float32", token_axis=1).shape[0] == 1 << 48
    assert Layout.of(params, (1 << 48,), "float32", token_axis=0, valid_tokens=1 << 40).pages == 1 << 32
    with pytest.raises(ShapeError, match="pages"):
        Layout.of(params, ((1 << 40) + 1,), "float32", token_axis=0)
    for shape in ((), (1,) * 17, ((1 << 48) + 1,), (1 << 48, (1 << 8) + 1), (1 << 48, 1 << 48, 0), (-1,), (2, -3)):
        with pytest.raises(ShapeError):
            Layout.of(params, shape, "float32", token_axis=0)
    with pytest.raises(ShapeError, match="first_token"):
        Layout.of(params, (4,), "float32", token_axis=0, first_token=(1 << 48) + 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_axis": 3},
        {"token_axis": -4},
        {"token_axis": 1.0},
        {"token_axis": None},
        {"token_axis": "1"},
        {"head_dim": 0},
        {"head_dim": 5},
        {"head_dim": 24},
        {"head_dim": -6},
        {"head_dim": 2.0},
        {"first_token": -1},
        {"first_token": 0.0},
        {"first_token": None},
        {"valid_tokens": -1},
        {"valid_tokens": 21},
        {"valid_tokens": 3.0},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_named(changes):
    arguments = {"token_axis": 1} | changes
    with pytest.raises(ShapeError, match=next(iter(changes))) as caught:
        Layout.of(Params(), (2, 20, 12), "float32", **arguments)
    assert str(next(iter(changes.values()))) in str(caught.value)


def test_head_dim():
    assert Layout.of(Params(), (20, 12), "float32", token_axis=0).head_dim == 12
    assert Layout.of(Params(), (20, 12), "float32", token_axis=0, head_dim=4).head_dim == 4
    assert Layout.of(Params(), (12, 20), "float32", token_axis=1).head_dim == 1
    assert Layout.of(Params(), (20, 0), "float32", token_axis=0).head_dim == 1
    with pytest.raises(ShapeError, match="head_dim"):
        Layout.of(Params(), (12, 20), "float32", token_axis=1, head_dim=4)


def test_negative_token_axis():
    assert Layout.of(Params(), (2, 20, 12), "float32", token_axis=-2) == Layout.of(
        Params(), (2, 20, 12), "float32", token_axis=1
    )


@pytest.mark.parametrize("dtype", ["float64", "int8", "", None, 3, "bfloat", ">f4"])
def test_unknown_dtypes(dtype):
    with pytest.raises(DTypeError):
        Layout.of(Params(), (2,), dtype, token_axis=0)


@given(st.integers(0, 10**9), st.integers(1, 10**4))
def test_integer_helpers(value, divisor):
    assert layout.ceil_div(value, divisor) == value // divisor + (value % divisor > 0)
    aligned = layout.align(value, divisor)
    assert aligned % divisor == 0
    assert 0 <= aligned - value < divisor
