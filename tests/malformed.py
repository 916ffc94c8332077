"""Every way to break a segment header whose checksums are valid: how, the error, and a part of its message."""

import struct

from lynxq import Params
from lynxq.errors import (
    HeaderChecksumError,
    HeaderError,
    LimitError,
    NotLynxError,
    ReservedError,
    StreamKindError,
    VersionError,
)
from tests import forge
from tests.containers import KEYS


def bits(number):
    return struct.pack("<I", number)


def points(**changes):
    """Anchor points as bytes, some of them replaced: by number or by bit pattern."""
    values = [struct.pack("<f", value) for value in KEYS.points]
    for index, value in changes.items():
        values[int(index[1:])] = value if isinstance(value, bytes) else struct.pack("<f", value)
    return b"".join(values)


def tensor(**changes):
    return forge.header(forge.description([forge.record(**changes)]))


def describing(entries=(), counts=None, records=None):
    return forge.header(forge.description(records, entries, counts))


BOTH = forge.streams()
TWICE = [(kind, 2 * size) for kind, size in BOTH]
IMPLIED = Params(page=8, range_size=8, chunk=8, sink_tokens=2)
LINEAR = Params(page=8, range_size=8, chunk=4, sink_tokens=2, alpha=0.0)

TENSORS = {
    "dtype": ({"dtype": 3}, "dtype of tensor 'k' must be one of"),
    "dtype 255": ({"dtype": 255}, "dtype of tensor 'k' must be one of"),
    "grouping axis": ({"axis": 2}, "grouping axis must be below 2"),
    "center": ({"center": 2}, "center must be below 2"),
    "metadata width": ({"metadata": 3}, "metadata width must be below 3"),
    "split 4+5": ({"residual_bits": 5}, "bits of a tensor must be one of"),
    "split 8+0": ({"anchor_bits": 8, "residual_bits": 0}, "bits of a tensor must be one of"),
    "split 0+8": ({"anchor_bits": 0, "residual_bits": 8}, "bits of a tensor must be one of"),
    "split 255": ({"anchor_bits": 255, "residual_bits": 255}, "bits of a tensor must be one of"),
    "no axes": ({"shape": (), "token_axis": 0}, "a tensor must have 1 to 16 axes"),
    "17 axes": ({"shape": (1,) * 17, "head_dim": 1}, "a tensor must have 1 to 16 axes"),
    "255 axes": ({"axes": 255}, "a tensor must have 1 to 16 axes"),
    "axes beyond the shape": ({"axes": 3}, "a tensor name needs 1 bytes"),
    "long axis": ({"shape": (2**48 + 1, 0), "head_dim": 1}, "axis length must be"),
    "longest axis": ({"shape": (2**64 - 1, 2)}, "axis length must be"),
    "many elements": ({"shape": (2**48, 2**8 + 1), "head_dim": 1}, "at most 2**56 elements"),
    "elements beyond 64 bits": ({"shape": (2**48, 2**48), "head_dim": 1}, "at most 2**56 elements"),
    "elements that wrap to 0": ({"shape": (2**32, 2**32), "head_dim": 1}, "at most 2**56 elements"),
    "many elements beside none": ({"shape": (2**48, 2**48, 0), "head_dim": 1}, "at most 2**56 elements"),
    "many pages": ({"shape": (2**35 + 1, 1), "head_dim": 1}, "at most 2**32 pages of 8 tokens"),
    "many pages of nothing": ({"shape": (2**35 + 1, 0), "head_dim": 1}, "at most 2**32 pages of 8 tokens"),
    "token axis": ({"token_axis": 2}, "token_axis must be"),
    "token axis -1": ({"token_axis": 255}, "token_axis must be"),
    "head_dim 0": ({"head_dim": 0}, "head_dim must be"),
    "head_dim that does not divide": ({"shape": (20, 6), "head_dim": 4}, "head_dim must divide the last axis"),
    "head_dim too long": ({"head_dim": 4}, "head_dim must divide the last axis"),
    "head_dim without channels": (
        {"shape": (2, 20), "token_axis": 1, "head_dim": 2},
        "head_dim must divide the last axis",
    ),
    "first token": ({"first_token": 2**48 + 1}, "first_token must be"),
    "page 0": ({"page": 0}, "page must be an integer from 8 to 65536"),
    "page 12": ({"page": 12, "range_size": 4}, "page must be a multiple of 8"),
    "page 65544": ({"page": 65544}, "page must be an integer from 8 to 65536"),
    "range 0": ({"range_size": 0}, "range_size must be an integer"),
    "range that does not divide the page": ({"range_size": 16}, "range_size must divide page"),
    "chunk 0": ({"chunk": 0}, "chunk must be an integer"),
    "chunk that does not divide the range": ({"chunk": 3}, "chunk must divide range_size"),
    "sinks beyond the page": ({"sink_tokens": 9}, "sink_tokens must be at most page"),
    "sinks 2**32-1": ({"sink_tokens": 2**32 - 1}, "sink_tokens must be an integer"),
    "alpha NaN": ({"alpha": float("nan")}, "alpha must be a finite number"),
    "alpha infinite": ({"alpha": float("inf")}, "alpha must be a finite number"),
    "alpha negative": ({"alpha": -0.5}, "alpha must be 0 or from"),
    "alpha small": ({"alpha": 9e-7}, "alpha must be 0 or from"),
    "alpha subnormal": ({"alpha": 5e-324}, "alpha must be 0 or from"),
    "alpha large": ({"alpha": 1.1e6}, "alpha must be 0 or from"),
    "points NaN": ({"points": points(i3=float("nan"))}, "anchor_points must be a finite"),
    "points signalling NaN": ({"points": points(i3=bits(0x7F800001))}, "anchor_points must be a finite"),
    "points infinite": ({"points": points(i7=float("inf"))}, "anchor_points must be a finite"),
    "points beyond 1": ({"points": points(i7=bits(0x3F800001))}, "anchor_points must not decrease"),
    "points negative": ({"points": points(i0=-1e-3)}, "anchor_points must not decrease"),
    "points that decrease": ({"points": points(i1=0.9)}, "anchor_points must not decrease"),
    "points -0.0": ({"points": points(i0=-0.0)}, "the one form"),
    "record too long": ({"size": 168}, "record size of tensor 'k' must be 112"),
    "record too short": ({"size": 0}, "record size of tensor 'k' must be 112"),
    "record size 2**32-1": ({"size": 2**32 - 1}, "record size of tensor 'k' must be 112"),
    "padding": ({"padding": b"\1"}, "the one form"),
    "empty name": ({"name": b""}, "must not be empty"),
    "name not UTF-8": ({"name": b"\xff"}, "a tensor name must be UTF-8"),
    "name overlong": ({"name": b"\xc0\x80"}, "a tensor name must be UTF-8"),
    "name a surrogate": ({"name": b"\xed\xa0\x80"}, "a tensor name must be UTF-8"),
    "name cut": ({"name": "κ".encode()[:1]}, "a tensor name must be UTF-8"),
    "name beyond the description": ({"name_size": 65535}, "a tensor name needs 65535 bytes"),
}

HEADERS = {
    "description checksum": (lambda: forge.header(description=1), HeaderError, "the one form"),
    "header checksum": (lambda: forge.header(checksum=1), HeaderChecksumError, "preamble does not match"),
    "checksum of the rest": (
        lambda: forge.header()[:64] + bytes(192),
        HeaderChecksumError,
        "segment header does not match",
    ),
    "padding": (lambda: forge.header(padding=b"\1"), HeaderError, "the one form"),
    "reserved": (lambda: forge.header(reserved=1), ReservedError, "preamble must be zero, got 0x1"),
    "reserved high bit": (lambda: forge.header(reserved=1 << 31), ReservedError, "got 0x80000000"),
    "header size 0": (lambda: forge.header(header_size=0), HeaderError, "header size must be 256 for its parts"),
    "header size small": (lambda: forge.header(header_size=64), HeaderError, "header size must be 256 for its parts"),
    "header size not a multiple of 64": (
        lambda: forge.header(header_size=250),
        HeaderError,
        "header size must be 256 for its parts",
    ),
    "header size at the cap": (
        lambda: forge.header(header_size=1 << 26),
        HeaderError,
        "header size must be 256 for its parts",
    ),
    "header size beyond the cap": (
        lambda: forge.header(header_size=(1 << 26) + 64),
        LimitError,
        "a header must be at most",
    ),
    "header size 2**64-64": (lambda: forge.header(header_size=2**64 - 64), LimitError, "a header must be at most"),
    "description size 0": (lambda: forge.header(description_size=0), HeaderError, "for its parts, got 256"),
    "description size -1": (lambda: forge.header(description_size=2**64 - 1), HeaderError, "for its parts, got 256"),
    "description longer": (
        lambda: forge.header(description_size=len(forge.description()) + 1),
        HeaderError,
        "1 bytes follow",
    ),
    "description shorter": (
        lambda: forge.header(description_size=len(forge.description()) - 1),
        HeaderError,
        "padding needs 7 bytes",
    ),
    "description with more": (lambda: forge.header(forge.description() + b"\0"), HeaderError, "1 bytes follow"),
    "segment size 0": (lambda: forge.header(segment_size=0), HeaderError, "segment size must be 1216"),
    "segment size larger": (lambda: forge.header(segment_size=2**64 - 1), HeaderError, "segment size must be 1216"),
    "65 streams": (lambda: forge.header(table=[(0x8000 + n, 0) for n in range(65)]), LimitError, "at most 64 streams"),
    "65535 streams": (lambda: forge.header(streams=65535), LimitError, "at most 64 streams"),
    "anchor size": (
        lambda: forge.header(table=[(0, BOTH[0][1] + 64), BOTH[1]]),
        HeaderError,
        "stream 0 must have 576 bytes",
    ),
    "residual size": (lambda: forge.header(table=[BOTH[0], (1, 0)]), HeaderError, "stream 1 must have 384 bytes"),
    "residual size 2**64-64": (
        lambda: forge.header(table=[BOTH[0], (1, 2**64 - 64)], segment_size=0),
        HeaderError,
        "stream 1 must have 384 bytes",
    ),
    "residual first": (lambda: forge.header(table=BOTH[::-1]), HeaderError, "stream kinds must increase"),
    "anchor twice": (lambda: forge.header(table=[BOTH[0], BOTH[0]]), HeaderError, "stream kinds must increase"),
    "ancillary twice": (
        lambda: forge.header(table=[*BOTH, (0x8000, 0), (0x8000, 0)]),
        HeaderError,
        "stream kinds must increase",
    ),
    "ancillary before anchor": (
        lambda: forge.header(table=[(0x8000, 0), *BOTH]),
        HeaderError,
        "stream kinds must increase",
    ),
    "ancillary odd size": (lambda: forge.header(table=[*BOTH, (0x8000, 63)]), HeaderError, "a multiple of 64 bytes"),
    "ancillary size 2**64-64": (
        lambda: forge.header(table=[*BOTH, (0x8000, 2**64 - 64)], segment_size=0),
        HeaderError,
        "segment size must be",
    ),
    "critical kind 2": (lambda: forge.header(table=[*BOTH, (2, 0)]), StreamKindError, "is critical"),
    "critical kind 0x7fff": (lambda: forge.header(table=[*BOTH, (0x7FFF, 0)]), StreamKindError, "is critical"),
    "stream reserved": (
        lambda: forge.header(table=[BOTH[0], (1, 1, 0, BOTH[1][1])]),
        ReservedError,
        "of stream 1 must be zero",
    ),
    "stream reserved too": (
        lambda: forge.header(table=[BOTH[0], (1, 0, 1 << 31, BOTH[1][1])]),
        ReservedError,
        "of stream 1 must be zero",
    ),
    "record reserved": (lambda: tensor(reserved=1), ReservedError, "of a tensor must be zero"),
    "record reserved high bit": (lambda: tensor(reserved=1 << 15), ReservedError, "of a tensor must be zero"),
    "same name twice": (lambda: forge.header(forge.description([forge.record()] * 2), TWICE), HeaderError, "'k' twice"),
    "more tensors than records": (lambda: describing(counts=(0, 2)), HeaderError, "a tensor needs 56 bytes"),
    "fewer tensors than records": (lambda: describing(counts=(0, 0)), HeaderError, "112 bytes follow"),
    "tensors at the cap": (lambda: describing(counts=(0, 1 << 16)), HeaderError, "a tensor needs 56 bytes"),
    "tensors beyond the cap": (
        lambda: describing(counts=(0, (1 << 16) + 1)),
        LimitError,
        "tensors must be at most 65536",
    ),
    "metadata at the cap": (lambda: describing(counts=(1 << 16, 1)), HeaderError, "metadata needs 112 bytes"),
    "metadata beyond the cap": (
        lambda: describing(counts=((1 << 16) + 1, 1)),
        LimitError,
        "metadata entries must be at most 65536",
    ),
    "metadata unsorted": (lambda: describing([(b"b", b""), (b"a", b"")]), HeaderError, "keys must increase"),
    "metadata twice": (lambda: describing([(b"a", b""), (b"a", b"")]), HeaderError, "keys must increase"),
    "metadata key not UTF-8": (lambda: describing([(b"\xff", b"")]), HeaderError, "metadata must be UTF-8"),
    "metadata value not UTF-8": (lambda: describing([(b"a", b"\xff")]), HeaderError, "metadata must be UTF-8"),
    "metadata long key": (
        lambda: describing([(b"a" * (2**16 + 1), b"")]),
        LimitError,
        "a metadata key must be at most 65536",
    ),
    "metadata long value": (
        lambda: describing([(b"a", b"b" * (2**16 + 1))]),
        LimitError,
        "a metadata value must be at most 65536",
    ),
    "long name": (lambda: tensor(name=b"n" * 1025), LimitError, "a tensor name must be at most 1024"),
    "alpha -0.0": (
        lambda: tensor(alpha=-0.0, points=struct.pack("<8f", *LINEAR.points)),
        HeaderError,
        "the one form",
    ),
    "metadata width where none is stored": (
        lambda: forge.header(forge.description([forge.record(chunk=8, metadata=1)]), forge.streams(params=IMPLIED)),
        HeaderError,
        "the one form",
    ),
    "magic": (lambda: forge.header(magic=b"\x89LYNY\r\n\x1a"), NotLynxError, "a segment must begin with"),
    "magic zero": (lambda: forge.header(magic=bytes(8)), NotLynxError, "a segment must begin with"),
    "major 0": (lambda: forge.header(major=0), VersionError, "is not supported"),
    "major 2": (lambda: forge.header(major=2), VersionError, "is not supported"),
    "major 2, everything else new": (lambda: forge.MAGIC + b"\2" + bytes(range(55)), VersionError, "is not supported"),
    **{
        name: (lambda changes=changes: tensor(**changes), HeaderError, text)
        for name, (changes, text) in TENSORS.items()
    },
}
