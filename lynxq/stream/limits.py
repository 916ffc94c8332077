"""What a peer may make us keep, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError
from lynxq.format.header import MAX_HEADER
from lynxq.stream.records import MIN_CONTROL, MIN_DATA

_MAX = 1 << 56


@dataclass(frozen=True, kw_only=True)
class SenderLimits:
    """What a receiver may make a sender keep.

    Parameters
    ----------
    max_requests : int
        Requests at one time on one connection.
    max_checksums : int
        Checksums of pages that a receiver has already, over all requests at one time; 8 bytes each.
    max_again : int
        How often one page is sent again.
    max_control : int
        Most bytes of a record that is not data.
    max_backlog : int
        Bytes of answers that may wait because the receiver does not read them.
    """

    max_requests: int = 64
    max_checksums: int = 1 << 20
    max_again: int = 8
    max_control: int = 1 << 16
    max_backlog: int = 1 << 24

    def __post_init__(self) -> None:
        _check(self, {"max_control": MIN_CONTROL})


@dataclass(frozen=True, kw_only=True)
class ReceiverLimits:
    """What a sender may make a receiver keep.

    Parameters
    ----------
    anchor_window, residual_window : int
        Bytes of frames of that stream that have begun to arrive and were not yet taken. Two windows: a receiver
        that is full of residuals still takes anchors. No frame may be larger than its window.
    max_request_bytes : int
        Bytes of all streams of one request.
    max_tensors : int
        Tensors of one request. A header of strangers costs about a millisecond for each.
    max_header : int
        Bytes of a segment header.
    max_data : int
        Most bytes of a frame in one record, and so what an anchor may have to wait for at most.
    retries : int
        How often a damaged page is asked for again before it is given up.
    """

    anchor_window: int = 1 << 26
    residual_window: int = 1 << 26
    max_request_bytes: int = 1 << 35
    max_tensors: int = 1024
    max_header: int = 1 << 20
    max_data: int = 1 << 16
    retries: int = 3

    def __post_init__(self) -> None:
        _check(self, {"max_header": MIN_CONTROL, "max_data": MIN_DATA, "retries": 0})
        integer("max_header", self.max_header, MIN_CONTROL, MAX_HEADER, ParamsError)
        integer("max_data", self.max_data, MIN_DATA, 1 << 24, ParamsError)


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long a peer may take, in seconds.

    Parameters
    ----------
    greeting : float
        From the connection to the first record.
    silence : float
        Between two signs of life, and for taking what is sent to it.
    keepalive : float
        After so long without anything to send, a sign of life is sent; a third of the peer's `silence` is wise.
    stall : float
        How long a receiver that is alive may let a sender wait with all that it could send: for credit, for the word
        that the header was accepted, for the word that all was received.
    """

    greeting: float = 10.0
    silence: float = 30.0
    keepalive: float = 5.0
    stall: float = 120.0

    def __post_init__(self) -> None:
        for field in fields(self):
            real(field.name, getattr(self, field.name), 0.0, exclusive=True)


def _check(limits: SenderLimits | ReceiverLimits, least: dict[str, int]) -> None:
    for field in fields(limits):
        integer(field.name, getattr(limits, field.name), least.get(field.name, 1), _MAX, ParamsError)
