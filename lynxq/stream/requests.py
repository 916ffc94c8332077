"""What a receiver has asked for, and what it said of that: the sender's side of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from lynxq.errors import ProtocolError
from lynxq.format.frames import STREAMS
from lynxq.layout import Stream
from lynxq.stream.limits import SenderLimits
from lynxq.stream.messages import read_checksums
from lynxq.stream.outgoing import Outgoing
from lynxq.stream.records import Record


@dataclass
class Asked:
    """A request: what the receiver said of it, and what is sent once there is a source."""

    wanted: tuple[Stream, ...]
    identity: int
    have: dict[Stream, dict[tuple[int, int], int]] = field(default_factory=lambda: {"anchor": {}, "residual": {}})
    checksums: int = 0
    accepted: bool = False
    sending: Outgoing | None = None

    def start(self) -> None:
        """Let those streams go whose time has come."""
        if self.sending is None:
            return
        if self.accepted:
            self.sending.started = set(self.sending.streams)
        elif not self.identity:  # a receiver that has nothing takes anchors before it has looked at the header
            self.sending.started = {"anchor"}


class Requests:
    """The requests of one receiver that have not ended."""

    def __init__(self, limits: SenderLimits) -> None:
        self._limits = limits
        self._open: dict[int, Asked] = {}
        self._last = 0
        self._checksums = 0

    def get(self, number: int) -> Asked | None:
        """A request by its number, None if it has ended."""
        return self._open.get(number)

    def numbers(self) -> list[int]:
        """The numbers of all of them."""
        return list(self._open)

    def add(self, record: Record) -> Asked | None:
        """Take a request in; None if there are as many as may be."""
        if record.request <= self._last:
            raise ProtocolError(f"a request must have a number above {self._last}, got {record.request}")
        self._last = record.request
        if len(self._open) >= self._limits.max_requests:
            return None
        asked = self._open[record.request] = Asked(tuple(STREAMS.values())[: record.kind + 1], record.total)
        return asked

    def of(self, record: Record) -> Asked | None:
        """The request of a record; None if it ended here, which the receiver may not know yet."""
        if not 0 < record.request <= self._last:
            raise ProtocolError(f"request {record.request} was never made")
        return self._open.get(record.request)

    def have(self, record: Record) -> None:
        """Note checksums of pages that the receiver has."""
        asked, found = self.of(record), read_checksums(record.body)
        if asked is None:
            return
        if asked.accepted or not asked.identity:
            raise ProtocolError(f"request {record.request} must say what it has before it accepts, and name a segment")
        asked.checksums += len(found)
        self._checksums += len(found)
        if self._checksums > self._limits.max_checksums:
            raise ProtocolError(f"at most {self._limits.max_checksums} checksums are kept, got {self._checksums}")
        have = asked.have[STREAMS[record.kind]]
        have.update({(record.tensor, page): value for page, value in enumerate(found, record.page)})

    def forget(self, number: int) -> None:
        """Forget a request."""
        asked = self._open.pop(number)
        self._checksums -= asked.checksums
        if asked.sending is not None:
            asked.sending.close()
