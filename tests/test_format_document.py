"""docs/format.md against the library: its hex dump, its field tables, its caps and its errors."""

import importlib.util
import io
import math
import re
import struct
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xxhash

import lynxq
from lynxq import Params, errors, layout
from lynxq.format import description, frames, header
from lynxq.format.frames import FrameHeader
from lynxq.layout import Layout
from lynxq.params import SPLITS

DOCS = Path(__file__).parents[1] / "docs"
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f64": "d"}
HEADINGS = {
    "preamble": "5.1 Preamble",
    "stream": "5.2 Stream table",
    "counts": "5.3 Description",
    "entry": "5.3 Description",
    "record": "5.4 Tensor record",
    "frame": "4.1 Frame header",
}
#: Where one of each structure begins in the example.
PLACES = {"preamble": 0, "stream": 0x40, "counts": 0x60, "entry": 0x68, "record": 0x78, "frame": 0x100}


def tables(text, heading):
    """The tables below a heading, each a list of rows by column name; code marks are taken off."""
    section = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL).group(1)
    for block in re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE):
        lines = [
            [cell.strip().replace("`", "") for cell in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        yield [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def field_table(name):
    return list(tables(TEXT, HEADINGS[name]))[name == "entry"]


def load_script():
    spec = importlib.util.spec_from_file_location("format_example", DOCS / "examples" / "format_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXT = (DOCS / "format.md").read_text(encoding="utf-8")
DUMP = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})  ; \S.*$", TEXT, re.MULTILINE)
EXAMPLE = bytes.fromhex("".join(data for _, data in DUMP))


# --- the example -----------------------------------------------------------------------------------


def test_the_document_ends_with_the_dump():
    assert [int(offset, 16) for offset, _ in DUMP] == list(range(0, 896, 16))
    assert TEXT.rstrip().removesuffix("```").rstrip().splitlines()[-1].startswith("0370  ")


def test_the_library_writes_the_dump():
    script = load_script()
    assert script.file_bytes() == EXAMPLE
    assert script.hex_dump(EXAMPLE).splitlines() == ["  ".join(row) for row in DUMP]


def quoted(column):
    (rows,) = tables(TEXT, "17. Example")
    return np.array([[float(value) for value in row[column].split(",")] for row in rows], np.float16)


def test_the_dump_decodes_to_the_quoted_values():
    assert np.array_equal(load_script().tensor(), quoted("Values"))
    for tier, column in (("anchor", "Anchor decode"), ("full", "Full decode")):
        decoded = lynxq.load(EXAMPLE, tier=tier)["key"]
        assert decoded.tobytes() == quoted(column).tobytes()


def test_the_dump_is_what_the_text_says_of_it():
    with lynxq.open(EXAMPLE) as reader:
        assert reader.verify() == []
        assert reader.metadata == {"model": "toy"}
        assert reader["key"].layout == Layout.of(
            Params(page=8, range_size=8, chunk=4, sink_tokens=1), (10, 2), "float16", token_axis=0
        )
        sizes = [64 + reader["key"].layout.page_size(stream, 0) for stream in ("anchor", "residual")]
    assert sizes == [192, 128]
    assert 256 + 2 * sizes[0] + 2 * sizes[1] == len(EXAMPLE) == 896


def test_the_anchors_of_the_dump_suffice():
    decoded = lynxq.load(EXAMPLE[:0x280], tier="anchor")["key"]
    assert decoded.tobytes() == quoted("Anchor decode").tobytes()
    with pytest.raises(errors.TruncatedError):
        lynxq.load(EXAMPLE[:0x27F], tier="anchor")


# --- field tables ----------------------------------------------------------------------------------


def fields_of(*codes):
    """Offset, size and type of every field of packed structures."""
    offset = 0
    for code in codes:
        for count, kind in re.findall(r"(\d*)([A-Za-z])", code.removeprefix("<")):
            for _ in range(1 if kind == "s" else int(count or 1)):
                size = struct.calcsize(f"<{count}s" if kind == "s" else f"<{kind}")
                yield offset, size, f"bytes[{size}]" if kind == "s" else {v: k for k, v in TYPES.items()}[kind]
                offset += size


@pytest.mark.parametrize(
    ("name", "structures"),
    [
        ("preamble", [header._PREAMBLE, header._CHECKSUM]),
        ("stream", [header._STREAM]),
        ("counts", [description._COUNTS]),
        ("entry", [description._ENTRY]),
        ("record", [description._RECORD]),
        ("frame", [frames._HEADER, frames._CHECKSUM]),
    ],
)
def test_field_tables_are_those_of_the_code(name, structures):
    rows = [(int(row["Offset"]), int(row["Size"]), row["Type"]) for row in field_table(name)]
    assert rows == list(fields_of(*(structure.format for structure in structures)))
    assert sum(structure.size for structure in structures) == rows[-1][0] + rows[-1][1]


def read(name, begin):
    """The fields of a structure of the example, read with the table of the document."""
    values = {}
    for row in field_table(name):
        code = TYPES.get(row["Type"], f"{row['Size']}s")
        (values[row["Field"]],) = struct.unpack_from(f"<{code}", EXAMPLE, begin + int(row["Offset"]))
    return values


def test_field_names_are_those_of_the_code():
    found = read("preamble", PLACES["preamble"])
    preamble = header.Preamble.unpack(EXAMPLE)
    assert (found["magic"], (found["major"], found["minor"])) == (header.MAGIC, header.VERSION)
    for name in vars(preamble):
        assert found[name] == getattr(preamble, name)
    for place in (0x100, 0x1C0, 0x280, 0x300):
        frame = FrameHeader.unpack(EXAMPLE[place:])
        found = read("frame", place)
        assert found["magic"] == frames.MAGIC
        for name in vars(frame):
            assert found[name] == getattr(frame, name)
    subject, found = lynxq.open(EXAMPLE)["key"].layout, read("record", PLACES["record"])
    for name in ("range_size", "chunk", "page", "anchor_bits", "residual_bits", "sink_tokens", "alpha"):
        assert found[name] == getattr(subject.params, name)
    for name in ("token_axis", "head_dim", "first_token"):
        assert found[name] == getattr(subject, name)
    assert (found["dtype"], found["axes"]) == (subject.dtype.number, len(subject.shape))


def test_magic_bytes_are_quoted_right():
    for name, magic in (("preamble", header.MAGIC), ("frame", frames.MAGIC)):
        assert field_table(name)[0]["Range"].startswith(magic.hex(" "))


def test_numbers_of_choices_are_quoted_right():
    ranges = {row["Field"]: row["Range"] for row in field_table("record")}
    for field, choices in (
        ("axis", description._AXES),
        ("center", description._CENTERS),
        ("metadata", description._METADATA),
    ):
        expected = ", ".join(f"{number} {choice}" for number, choice in enumerate(choices))
        assert ranges[field].split(";")[0] == expected


def sealed(data):
    """The data with right checksums of description, header and first frame."""
    data = bytearray(data)
    for place, begin, end in ((40, 96, 232), (48, 64, 256), (56, 0, 56), (0x138, 0x100, 0x138)):
        struct.pack_into("<Q", data, place, xxhash.xxh3_64_intdigest(bytes(data[begin:end])))
    return bytes(data)


def damaged(name, row):
    """The example with a field of all ones, and right checksums wherever that field is not one."""
    data = bytearray(EXAMPLE)
    begin = PLACES[name] + int(row["Offset"])
    field = slice(begin, begin + int(row["Size"]))
    data[field] = b"\xff" * int(row["Size"])
    bad = bytes(data)
    data = bytearray(sealed(data))
    data[field] = bad[field]
    if row["Field"] in ("description", "rest"):  # the preamble's own checksum comes after these
        struct.pack_into("<Q", data, 56, xxhash.xxh3_64_intdigest(bytes(data[:56])))
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "row"),
    [pytest.param(name, row, id=f"{name}-{row['Field']}") for name in PLACES for row in field_table(name)],
)
def test_errors_of_fields(name, row):
    assert sealed(EXAMPLE) == EXAMPLE
    documented = tuple(getattr(errors, word) for word in re.findall(r"\w+Error", row["Error"]))
    if not documented:
        lynxq.load(damaged(name, row))
        return
    with pytest.raises(documented) as caught:
        lynxq.load(damaged(name, row))
    assert type(caught.value) in documented


# --- pages and places ------------------------------------------------------------------------------


def count(expression, known):
    """A length of a shape as the document writes it."""
    if expression == "ceil(coded · w / 8)":
        return math.ceil(known["coded"] * known["w"] / 8)
    return known[expression]


def documented_sections(subject, stream, page):
    """Names, offsets, shapes and element sizes of a page's sections, and its size, by the document's tables."""
    params, coded = subject.params, subject.coded(page)
    along = params.axis == "token"
    heads = subject.channels // subject.head_dim
    known = {"outer": subject.outer, "channels": subject.channels, "coded": coded, "sinks": subject.page_sinks(page)}
    for name, size in (("runs", params.range_size), ("chunks", params.chunk)):
        known[name] = math.ceil(coded / size) if along else heads * math.ceil(subject.head_dim / size)
    planes = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2]}
    anchor, residual = tables(TEXT, "3. Pages")
    found, end = [], 0
    for row in anchor if stream == "anchor" else residual:
        if row["Present"] == "unless implied" and params.range_implies_chunk:
            continue
        base = row["Section"].removesuffix("w")
        split = base in ("anchor", "residual") and row["Section"] != base
        for width in planes[getattr(params, f"{base}_bits")] if split else [0]:
            shape = row[f"Shape, axis = {params.axis}"]
            shape = row["Shape, axis = token"] if shape == "the same" else shape
            parts = re.findall(r"ceil\([^)]*\)|\w+", shape)
            size = {"u8": 1, "dtype of the tensor": subject.dtype.itemsize}.get(
                row["Element"], {"u8": 1, "u16": 2, "f32": 4}[params.metadata]
            )
            lengths = tuple(count(part, {**known, "w": width}) for part in parts)
            begin = math.ceil(end / 16) * 16
            found.append((base + (str(width) if width else ""), begin, lengths, size))
            end = begin + math.prod(lengths) * size
    return found, math.ceil(end / 64) * 64


@pytest.mark.parametrize("axis", ["token", "channel"])
@pytest.mark.parametrize("metadata", ["u8", "u16", "f32"])
@pytest.mark.parametrize("bits", SPLITS)
def test_sections_are_those_of_the_code(axis, metadata, bits):
    for chunk, dtype, tokens, sinks in product([4, 8], ["float32", "bfloat16"], [3, 16, 37], [0, 3, 5]):
        params = Params(
            axis=axis,
            page=16,
            range_size=8,
            chunk=chunk,
            metadata=metadata,
            anchor_bits=bits[0],
            residual_bits=bits[1],
            sink_tokens=sinks,
        )
        subject = Layout.of(params, (2, tokens, 3, 11), dtype, token_axis=1)
        for stream, page in product(["anchor", "residual"], range(subject.pages)):
            found, size = documented_sections(subject, stream, page)
            assert found == [tuple(section) for section in subject.sections(stream, page)]
            assert size == subject.page_size(stream, page)


def test_frames_are_where_the_formula_says():
    """Section 6 of the document, on a container of three tensors."""
    shapes = {"a": (300, 2, 3), "b": (0, 5), "c": (17, 1)}
    params = Params(page=8, range_size=8, chunk=4)
    encoded = {name: lynxq.encode(np.ones(shape, np.float32), params, token_axis=0) for name, shape in shapes.items()}
    file = io.BytesIO()
    lynxq.save(file, encoded)
    data = file.getvalue()
    place = struct.unpack_from("<Q", data, 24)[0]
    for kind, stream in enumerate(("anchor", "residual")):
        for number, tensor in enumerate(encoded.values()):
            pages = tensor.layout.pages
            sizes = [documented_sections(tensor.layout, stream, page)[1] for page in range(pages)]
            for page in range(pages):
                offset = 0 if page == 0 else sizes[0] + (page - 1) * sizes[min(1, pages - 1)]
                frame = FrameHeader.unpack(data[place + offset + 64 * page :])
                assert (frame.kind, frame.tensor, frame.page, frame.size) == (kind, number, page, sizes[page])
            place += sum(sizes) + 64 * pages
    assert place == len(data)


def resealed(data):
    """The example with right checksums of its first anchor frame, and of the residual frame that refines it."""
    data = bytearray(data)
    for place in (0x118, 0x2A0):
        struct.pack_into("<Q", data, place, xxhash.xxh3_64_intdigest(bytes(data[0x140:0x1C0])))
    for begin in (0x100, 0x280):
        struct.pack_into("<Q", data, begin + 56, xxhash.xxh3_64_intdigest(bytes(data[begin : begin + 56])))
    return bytes(data)


def test_unused_bits_are_ignored():
    """Padding of a page, and the high nibble of token 7's codes, where no token 8 is."""
    data = bytearray(EXAMPLE)
    for section in lynxq.open(EXAMPLE)["key"].layout.sections("anchor", 0):
        begin = 0x140 + section.offset + section.nbytes
        end = min(begin - begin % -16, 0x1C0)
        data[begin:end] = b"\xff" * (end - begin)
    data[0x1A0:0x1C0] = b"\xff" * 0x20
    data[0x196:0x198] = b"\xf8\xf8"
    assert resealed(EXAMPLE) == EXAMPLE
    assert resealed(data) != EXAMPLE
    assert lynxq.load(resealed(data))["key"].tobytes() == quoted("Full decode").tobytes()


@pytest.mark.parametrize("place", [0xE4, 0xE8, 0xFF])
def test_padding_of_headers_is_zero(place):
    data = bytearray(EXAMPLE)
    data[place] = 1
    with pytest.raises(errors.HeaderError):
        lynxq.load(sealed(data))


def test_streams_of_unknown_kinds():
    """Section 8: an ancillary stream is skipped, a critical one refused."""
    with lynxq.open(EXAMPLE) as reader:
        tensors, metadata = {"key": reader["key"].layout}, reader.metadata
    for kind in (0x7FFF, 0x8000):
        known = header.Header.of(metadata, tensors, ["anchor", "residual"])
        more = header.Header(metadata, tensors, (*known.streams, (kind, 64)))
        data = more.pack() + EXAMPLE[0x100:] + b"\xff" * 64
        if kind >= frames.ANCILLARY:
            assert lynxq.load(data)["key"].tobytes() == quoted("Full decode").tobytes()
            continue
        with pytest.raises(errors.StreamKindError):
            lynxq.load(data)


# --- caps and errors -------------------------------------------------------------------------------


def test_caps_are_those_of_the_code():
    caps = {
        "bytes of a segment header": header.MAX_HEADER,
        "streams of a segment": header.MAX_STREAMS,
        "tensors of a segment": description.MAX_TENSORS,
        "entries of user metadata": description.MAX_METADATA,
        "bytes of a metadata key or value": description.MAX_TEXT,
        "bytes of a tensor name": description.MAX_NAME,
        "axes of a tensor": layout.MAX_AXES,
        "length of an axis, head_dim, first_token": layout.MAX_LENGTH,
        "elements of a tensor": layout.MAX_ELEMENTS,
        "tokens of a page, values of a run or chunk": lynxq.params.MAX_PAGE,
    }
    (rows,) = tables(TEXT, "10. Caps")
    numbers = {row["What"]: row["At most"].split("^") for row in rows}
    assert {what: int(parts[0]) ** int((*parts, "1")[1]) for what, parts in numbers.items()} == caps


def test_every_container_error_is_listed():
    def below(kind):
        return {kind.__name__} | {name for each in kind.__subclasses__() for name in below(each)}

    (rows,) = tables(TEXT, "14. Errors")
    assert {row["Class"] for row in rows} == below(errors.ContainerError) - {"ContainerError"}
    for name in re.findall(r"`(\w+Error)`", TEXT):
        assert issubclass(getattr(errors, name), errors.LynxqError)


def test_stream_kinds_are_those_of_the_code():
    (rows,) = tables(TEXT, "8. Stream kinds")
    assert [row["Kind"] for row in rows] == ["0", "1", "2 … 0x7fff", f"{frames.ANCILLARY:#x} … 0xffff"]
    assert [row["Stream"] for row in rows[:2]] == list(frames.KINDS)


def test_the_first_example_of_the_overview_runs(tmp_path, monkeypatch):
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(code, found)  # noqa: S102 - our own documentation
    assert found["part"].shape == (256, 8, 128)
    assert sorted(found["near"]) == sorted(found["close"]) == ["layer.0.key", "layer.0.value"]
