"""A second writer of segment headers, from the format's text alone: valid checksums around any content."""

import struct

import xxhash

from lynxq import Params
from lynxq.layout import Layout
from tests.containers import KEYS

MAGIC = b"\x89LYNX\r\n\x1a"
RECORD = "<IHBBBBBBBBHIIIIdQQ"


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


def padded(data, alignment, fill=b"\0"):
    return data + fill * (-len(data) % alignment)


def record(name=b"k", *, shape=(20, 2), points=None, padding=b"\0", **changes):
    """A record of the table of tensors; by default that of the key tensor of `containers.two`."""
    points = struct.pack("<8f", *KEYS.points) if points is None else points
    tail = struct.pack(f"<{len(shape)}Q", *shape) + points + name
    size = struct.calcsize(RECORD) + len(tail)
    fields = {
        "size": size + -size % 8,
        "name_size": len(name),
        "dtype": 0,
        "axes": len(shape),
        "token_axis": 0,
        "axis": 0,
        "center": 0,
        "metadata": 0,
        "anchor_bits": 4,
        "residual_bits": 4,
        "reserved": 0,
        "range_size": 8,
        "chunk": 4,
        "page": 8,
        "sink_tokens": 2,
        "alpha": 0.5,
        "head_dim": 2,
        "first_token": 0,
    }
    assert set(changes) <= set(fields)
    return padded(struct.pack(RECORD, *{**fields, **changes}.values()) + tail, 8, padding)


def description(records=None, entries=(), counts=None):
    """Metadata and table of tensors."""
    records = [record()] if records is None else records
    parts = [struct.pack("<II", *((len(entries), len(records)) if counts is None else counts))]
    for key, value in entries:
        parts += [struct.pack("<II", len(key), len(value)), key, value]
    return b"".join([*parts, *records])


def streams(shape=(20, 2), params=KEYS, dtype="float32", token_axis=0):
    """The table of streams of a container with one tensor."""
    layout = Layout.of(Params() if params is None else params, shape, dtype, token_axis=token_axis)
    return tuple(
        (kind, layout.stream_size(stream) + 64 * layout.pages) for kind, stream in enumerate(("anchor", "residual"))
    )


def stream_table(table):
    """Its bytes; rows of (kind, size), or (kind, reserved u16, reserved u32, size)."""
    rows = [row if len(row) == 4 else (row[0], 0, 0, row[1]) for row in table]
    return b"".join(struct.pack("<HHIQ", *row) for row in rows)


def header(text=None, table=None, *, padding=b"\0", rest=None, **changes):
    """A segment header: preamble, table of streams, description, padding; `changes` go into the preamble."""
    text = description() if text is None else text
    table = streams() if table is None else table
    body = padded(stream_table(table) + text, 64, padding) if rest is None else rest
    fields = {
        "magic": MAGIC,
        "major": 1,
        "minor": 0,
        "streams": len(table),
        "reserved": 0,
        "description_size": len(text),
        "header_size": 64 + len(body),
        "segment_size": 64 + len(body) + sum(row[-1] for row in table),
        "description": checksum(text),
        "rest": checksum(body),
    }
    assert set(changes) <= {*fields, "checksum"}
    damage = changes.pop("checksum", 0)
    preamble = struct.pack("<8sBBHIQQQQQ", *{**fields, **changes}.values())
    return preamble + struct.pack("<Q", checksum(preamble) ^ damage) + body


def reheaded(data, **changes):
    """A sound file of one segment with another table of streams or preamble around the same description."""
    size, end = struct.unpack_from("<QQ", data, 24)
    count, text_size = struct.unpack_from("<H4xQ", data, 10)
    rows = [struct.unpack_from("<HHIQ", data, 64 + 16 * row) for row in range(count)]
    extra = changes.pop("extra", ())
    text = data[64 + 16 * count : 64 + 16 * count + text_size]
    return header(text, (*rows, *extra), **changes) + data[size:end]
