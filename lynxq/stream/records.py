"""Records: what two peers send each other, as bytes. Normative text in docs/wire.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from lynxq.errors import ProtocolError
from lynxq.format.frames import Buffer, checksum

MAGIC = b"LXWR"
HEADER_SIZE = 64
#: From here on, a peer that does not know a type of record skips it; below, it refuses it.
ANCILLARY = 0x8000
#: Every peer takes bodies of this size, whatever its greeting says.
MIN_CONTROL = 4096
#: So does every receiver with bodies of data; smaller ones would be mostly headers.
MIN_DATA = 256

_HEADER = struct.Struct("<4sHHIIIIQQQQ")
_CHECKSUM = struct.Struct("<Q")


class Type(IntEnum):
    """Types of records."""

    HELLO = 1
    REQUEST = 2
    HAVE = 3
    ACCEPT = 4
    CREDIT = 5
    AGAIN = 6
    CANCEL = 7
    RECEIVED = 8
    OPEN = 16
    DATA = 17
    LOST = 18
    END = 19
    PING = 32
    ERROR = 33
    BYE = 34


#: The fields that records of a type use; all others are 0, and a record without "body" has none.
FIELDS: dict[int, frozenset[str]] = {
    Type.HELLO: frozenset({"body"}),
    Type.REQUEST: frozenset({"kind", "request", "total", "body"}),
    Type.HAVE: frozenset({"kind", "request", "tensor", "page", "body"}),
    Type.ACCEPT: frozenset({"request"}),
    Type.CREDIT: frozenset({"kind", "total"}),
    Type.AGAIN: frozenset({"kind", "request", "tensor", "page"}),
    Type.CANCEL: frozenset({"request"}),
    Type.RECEIVED: frozenset({"request"}),
    Type.OPEN: frozenset({"request", "body"}),
    Type.DATA: frozenset({"kind", "request", "tensor", "page", "offset", "total", "body"}),
    Type.LOST: frozenset({"kind", "request", "tensor", "page"}),
    Type.END: frozenset({"request", "body"}),
    Type.PING: frozenset(),
    Type.ERROR: frozenset({"body"}),
    Type.BYE: frozenset(),
}


class Record(NamedTuple):
    """A record; what its fields mean depends on its type."""

    type: int
    kind: int = 0
    request: int = 0
    tensor: int = 0
    page: int = 0
    offset: int = 0
    total: int = 0
    body: Buffer = b""

    def pack(self) -> bytes:
        """The record's bytes: a header of 64, and the body."""
        covered = 0 if self.type == Type.DATA else checksum(self.body)
        head = _HEADER.pack(
            MAGIC, self.type, self.kind, self.request, self.tensor, self.page, len(self.body), self.offset, self.total,
            covered, 0,
        )  # fmt: skip
        return b"".join((head, _CHECKSUM.pack(checksum(head)), self.body))


class RecordReader:
    """Cuts bytes that arrive in pieces of any size into records.

    Never keeps more than one record: the header is checked, and its size compared with the caps, before the body
    is waited for.

    Parameters
    ----------
    max_data, max_control : int
        Most bytes of the body of a data record, and of any other.
    """

    def __init__(self, max_data: int, max_control: int) -> None:
        self._max_data = max_data
        self._max_control = max_control
        self._rest = bytearray()
        self._needed = HEADER_SIZE  # bytes of the record that has begun

    def feed(self, data: Buffer) -> Iterator[Record]:
        """The records that are complete with these bytes; their bodies are views of them.

        Raises
        ------
        ProtocolError
            If the bytes are not those of a record that may be sent. No more must be fed then.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:  # however small the pieces are, each byte is moved but once
                return
            data, self._rest = self._rest, bytearray()
        view = memoryview(data)
        position, self._needed = 0, HEADER_SIZE
        while len(view) - position >= HEADER_SIZE:
            fields = self._header(view[position : position + HEADER_SIZE])
            end = position + HEADER_SIZE + fields[5]
            if end > len(view):
                self._needed = end - position
                break
            record = _record(fields, view[position + HEADER_SIZE : end])
            position = end
            if record.type < ANCILLARY:
                yield record
        self._rest = bytearray(view[position:])

    def _header(self, head: memoryview) -> tuple[int, ...]:
        magic, *fields, reserved = _HEADER.unpack_from(head)
        if magic != MAGIC:
            raise ProtocolError(f"a record must begin with {MAGIC!r}, got {magic!r}")
        if _CHECKSUM.unpack_from(head, _HEADER.size)[0] != checksum(head[: _HEADER.size]):
            raise ProtocolError("the checksum of a record's header does not match its bytes")
        kind, size = fields[0], fields[5]
        if reserved:
            raise ProtocolError(f"the reserved field of a record must be zero, got {reserved:#x}")
        if kind not in FIELDS and kind < ANCILLARY:
            raise ProtocolError(f"a record of type {kind} is not known, and must not be skipped")
        cap = self._max_data if kind == Type.DATA else self._max_control
        if size > cap:
            raise ProtocolError(f"the body of a record of type {kind} must have at most {cap} bytes, got {size}")
        return tuple(fields)


def _record(fields: tuple[int, ...], body: memoryview) -> Record:
    type_, kind, request, tensor, page, _, offset, total, covered = fields
    if covered != (0 if type_ == Type.DATA else checksum(body)):
        raise ProtocolError(f"the checksum of the body of a record of type {type_} does not match its bytes")
    record = Record(type_, kind, request, tensor, page, offset, total, body)
    if type_ < ANCILLARY:
        for name, value in zip(Record._fields[1:-1], record[1:-1], strict=True):
            if value and name not in FIELDS[type_]:
                raise ProtocolError(f"{name} of a record of type {type_} must be zero, got {value}")
        if len(body) and "body" not in FIELDS[type_]:
            raise ProtocolError(f"a record of type {type_} must have no body, got {len(body)} bytes")
        if kind > 1:
            raise ProtocolError(f"the stream kind of a record must be 0 or 1, got {kind}")
    return record
