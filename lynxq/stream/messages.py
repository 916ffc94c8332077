"""What the bodies of records hold: greetings, names, reasons, checksums. Normative text in docs/wire.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from lynxq.arguments import shown
from lynxq.errors import ParamsError, ProtocolError
from lynxq.format.frames import Buffer
from lynxq.stream.records import MIN_CONTROL, MIN_DATA, Record, Type

VERSION = (1, 0)
#: Caps of the wire: bytes of a name that is asked for, and of the text of a reason.
MAX_NAME = 1024
MAX_REASON = 1024

_HELLO = struct.Struct("<HHBBBB16sIIIIQQQ")
#: Bytes of the body of a greeting.
HELLO_SIZE = _HELLO.size
_CODE = struct.Struct("<I")


class Role(IntEnum):
    """Which side of a connection a peer is."""

    SENDER = 0
    RECEIVER = 1


class Code(IntEnum):
    """Why a request or a connection ended. `CANCELLED` is never sent: it is what a receiver tells its own side."""

    UNKNOWN = 1
    BUSY = 2
    FAILED = 3
    CHANGED = 4
    REFUSED = 5
    PROTOCOL = 6
    CANCELLED = 7


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first record of each direction of each connection.

    Attributes
    ----------
    role : Role
    session : bytes
        16 random bytes that the receiver chose; the connections that belong together name the same ones.
    lane, lanes : int
        Number of this connection, and how many belong together: 1, or 2 with residuals on the second one.
    max_data, max_control : int
        Most bytes of the body of a data record, and of any other, that this peer takes.
    max_requests : int
        Requests at one time that this peer serves; 0 from a receiver.
    anchor_limit, residual_limit : int
        First credit, in bytes of frames; 0 from a sender.
    """

    role: Role
    session: bytes
    lane: int = 0
    lanes: int = 1
    max_data: int = 0
    max_control: int = MIN_CONTROL
    max_requests: int = 0
    anchor_limit: int = 0
    residual_limit: int = 0
    minor: int = VERSION[1]

    def record(self) -> Record:
        """The record of the greeting."""
        body = _HELLO.pack(
            VERSION[0], self.minor, self.role, self.lane, self.lanes, 0, self.session, self.max_data,
            self.max_control, self.max_requests, 0, self.anchor_limit, self.residual_limit, 0,
        )  # fmt: skip
        return Record(Type.HELLO, body=body)

    @classmethod
    def read(cls, record: Record) -> Hello:
        """Check and read a greeting; raises `ProtocolError`."""
        if record.type != Type.HELLO:
            raise ProtocolError(f"a connection must begin with a greeting, got a record of type {record.type}")
        if len(record.body) < 2 or struct.unpack_from("<H", record.body)[0] != VERSION[0]:
            raise ProtocolError(f"a peer must speak version {VERSION[0]} of the wire, got {bytes(record.body[:4])!r}")
        if len(record.body) != _HELLO.size:
            raise ProtocolError(f"a greeting must have {_HELLO.size} bytes, got {len(record.body)}")
        fields = _HELLO.unpack(record.body)
        _, minor, role, lane, lanes, reserved, session, max_data, max_control, max_requests = fields[:10]
        reserved_too, anchor_limit, residual_limit, reserved_three = fields[10:]
        if reserved or reserved_too or reserved_three:
            raise ProtocolError("the reserved fields of a greeting must be zero")
        if role not in tuple(Role):
            raise ProtocolError(f"the role of a peer must be 0 or 1, got {role}")
        if lanes not in (1, 2) or lane >= lanes:
            raise ProtocolError(f"a connection must be number 0 of 1, or 0 or 1 of 2, got {lane} of {lanes}")
        if max_data if role == Role.SENDER else max_data < MIN_DATA:
            raise ProtocolError(
                f"max_data must be 0 from a sender, from a receiver at least {MIN_DATA}, got {max_data}"
            )
        if max_requests if role == Role.RECEIVER else (anchor_limit or residual_limit):
            raise ProtocolError("a greeting must have no fields of the other side")
        if max_control < MIN_CONTROL:
            raise ProtocolError(f"a peer must take bodies of {MIN_CONTROL} bytes, got {max_control}")
        return cls(
            role=Role(role),
            session=session,
            lane=lane,
            lanes=lanes,
            max_data=max_data,
            max_control=max_control,
            max_requests=max_requests,
            anchor_limit=anchor_limit,
            residual_limit=residual_limit,
            minor=minor,
        )


def reason_record(type_: Type, code: int, text: str, request: int = 0) -> Record:
    """A record that says why a request or a connection ends."""
    return Record(type_, request=request, body=_CODE.pack(code) + text.encode("utf-8", "replace")[:MAX_REASON])


def read_reason(record: Record) -> tuple[int, str]:
    """Code and text of a reason; the text is for people and may be cut in the middle of a character."""
    if not _CODE.size <= len(record.body) <= _CODE.size + MAX_REASON:
        raise ProtocolError(
            f"a reason must have {_CODE.size} to {_CODE.size + MAX_REASON} bytes, got {len(record.body)}"
        )
    return _CODE.unpack_from(record.body)[0], bytes(record.body[_CODE.size :]).decode("utf-8", "replace")


def check_name(name: object) -> None:
    """Raise `ParamsError` unless a name can be asked for."""
    try:
        size = len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_NAME:
        raise ParamsError(f"a name must be a string of 1 to {MAX_NAME} bytes of UTF-8, got {shown(name)}")


def read_name(record: Record) -> str:
    """The name that a request asks for."""
    if not 1 <= len(record.body) <= MAX_NAME:
        raise ProtocolError(f"a name must have 1 to {MAX_NAME} bytes, got {len(record.body)}")
    try:
        return bytes(record.body).decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"a name must be UTF-8, got {bytes(record.body)!r}") from None


def pack_checksums(values: Sequence[int]) -> bytes:
    """Checksums as the body of a record."""
    return struct.pack(f"<{len(values)}Q", *values)


def read_checksums(body: Buffer) -> tuple[int, ...]:
    """Checksums of consecutive pages."""
    if not len(body) or len(body) % 8:
        raise ProtocolError(f"checksums must have a multiple of 8 bytes, got {len(body)}")
    return struct.unpack(f"<{len(body) // 8}Q", body)
