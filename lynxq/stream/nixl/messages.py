"""What the two sides tell each other: an offer and a ticket by any way there is, and notices through NIXL."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

from lynxq.arguments import shown
from lynxq.errors import ProtocolError
from lynxq.layout import Stream

VERSION = 1
_WORD = (1 << 64) - 1


def _pack(kind: str, **fields: Any) -> bytes:
    return json.dumps({"lynxq": kind, "version": VERSION, **fields}, sort_keys=True).encode()


def _unpack(kind: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(bytes(data))
        if fields["lynxq"] != kind or fields["version"] != VERSION:
            raise ProtocolError(f"a message must be of kind {kind!r} and version {VERSION}, got {shown(fields)}")
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise ProtocolError(f"this is no message of kind {kind!r}: {error!r}") from None
    return dict(fields)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _WORD:
        raise ValueError(f"a number must be an integer of 64 bits, got {shown(value)}")
    return value


@dataclass(frozen=True)
class Offer:
    """From the sender: how to reach it, its number of the request, and the segment header."""

    agent: bytes
    request: int
    header: bytes

    def pack(self) -> bytes:
        """The offer as bytes."""
        return _pack("offer", agent=_text(self.agent), request=self.request, header=_text(self.header))

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The inverse of `pack`; raises `ProtocolError`."""
        fields = _unpack("offer", data)
        try:
            return cls(_bytes(fields["agent"]), _number(fields["request"]), _bytes(fields["header"]))
        except (TypeError, ValueError, KeyError) as error:
            raise ProtocolError(f"an offer has a field that is not there or not right: {error!r}") from None


@dataclass(frozen=True)
class Ticket:
    """From the receiver: how to reach it, both numbers of the request, and where the streams go (address, size)."""

    agent: bytes
    request: int
    receiver: int
    identity: int
    regions: Mapping[Stream, tuple[int, int]]

    def pack(self) -> bytes:
        """The ticket as bytes."""
        return _pack(
            "ticket",
            agent=_text(self.agent),
            request=self.request,
            receiver=self.receiver,
            identity=self.identity,
            regions={stream: list(region) for stream, region in self.regions.items()},
        )

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The inverse of `pack`; raises `ProtocolError`."""
        fields = _unpack("ticket", data)
        try:
            regions: dict[Stream, tuple[int, int]] = {}
            for stream, (address, size) in fields["regions"].items():
                if stream not in get_args(Stream):
                    raise ValueError(f"no such stream: {shown(stream)}")  # noqa: TRY301 - one place says what is wrong
                regions[stream] = (_number(address), _number(size))
            request, receiver, identity = (_number(fields[name]) for name in ("request", "receiver", "identity"))
            return cls(_bytes(fields["agent"]), request, receiver, identity, regions)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise ProtocolError(f"a ticket has a field that is not there or not right: {error!r}") from None


class Notice(NamedTuple):
    """A short message through NIXL about one request, under the number that its reader gave it.

    ``written`` comes behind the data of a slice: `stream`, `begin`, `end`. ``taken`` says that all slices were seen.
    ``cancel`` asks a sender to stop, and ``stopped`` answers that nothing more will be written.
    """

    kind: str
    request: int
    stream: str = "-"
    begin: int = 0
    end: int = 0

    def pack(self) -> bytes:
        """The notice as bytes."""
        return " ".join(map(str, ("lynxq", *self))).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """The inverse of `pack`; None for anything else."""
        words = data.split(b" ")
        if (
            len(words) != 6
            or words[0] != b"lynxq"
            or not all(w.isdigit() and len(w) < 20 for w in (words[2], *words[4:]))
        ):
            return None
        kind, stream = words[1].decode("ascii", "replace"), words[3].decode("ascii", "replace")
        return cls(kind, int(words[2]), stream, int(words[4]), int(words[5]))
