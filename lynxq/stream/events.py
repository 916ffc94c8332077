"""What the two state machines tell the one who runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lynxq.errors import LynxqError
from lynxq.format.frames import FrameHeader
from lynxq.format.header import Header
from lynxq.layout import Layout, Stream


@dataclass(frozen=True)
class Event:
    """Something that happened to a request."""

    request: int


# --- of a sender -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requested(Event):
    """The receiver asks for a name: answer with `Sender.open` or `Sender.refuse`."""

    name: str
    streams: tuple[Stream, ...]


@dataclass(frozen=True)
class Delivered(Event):
    """The receiver has all pages that it wants; its request is forgotten."""


@dataclass(frozen=True)
class Ended(Event):
    """The request ended at this side: its source failed, or holds something else than before."""

    code: int
    reason: str


# --- of either side --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cancelled(Event):
    """The receiver wants no more of a request; nothing more of it comes."""


@dataclass(frozen=True)
class Closed(Event):
    """The peer will say nothing more. `request` is 0."""


# --- of a receiver ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestOpened(Event):
    """The segment header is here: what the tensors are, and which streams come."""

    header: Header = field(repr=False)

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The tensors, in the order of the segment."""
        return self.header.tensors


@dataclass(frozen=True)
class TensorOpened(Event):
    """A tensor will come; one such event for each, before any page."""

    tensor: int
    name: str
    layout: Layout


@dataclass(frozen=True)
class PageEvent(Event):
    """A page of a tensor."""

    tensor: int
    name: str
    page: int


@dataclass(frozen=True)
class AnchorPage(PageEvent):
    """An anchor page: whole, and equal to its checksum."""

    frame: FrameHeader = field(repr=False)
    payload: memoryview = field(repr=False)


@dataclass(frozen=True)
class ResidualPage(PageEvent):
    """A residual page: whole, equal to its checksum, and the refinement of the anchor page handed out before."""

    frame: FrameHeader = field(repr=False)
    payload: memoryview = field(repr=False)


@dataclass(frozen=True)
class Retried(PageEvent):
    """A page arrived damaged and was asked for again."""

    stream: Stream
    error: LynxqError


@dataclass(frozen=True)
class Damaged(PageEvent):
    """A page that will not come: it was damaged each time, or is damaged where it is kept."""

    stream: Stream
    error: LynxqError


@dataclass(frozen=True)
class AnchorReady(Event):
    """All anchor pages of a tensor have been handed out."""

    tensor: int
    name: str


@dataclass(frozen=True)
class ResidualReady(Event):
    """All residual pages of a tensor have been handed out."""

    tensor: int
    name: str


@dataclass(frozen=True)
class Done(Event):
    """Nothing more comes; `damaged` pages are missing."""

    damaged: int


@dataclass(frozen=True)
class Failed(Event):
    """The request ended before all pages were here; nothing more of it comes. What was handed out before is of no use
    if `code` says that the sender has something else under the name now.
    """

    code: int
    reason: str
