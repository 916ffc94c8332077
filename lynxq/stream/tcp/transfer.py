"""`Transfer`: one request of a client, from the header to the last page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from lynxq.arrays import Array
from lynxq.encoded import Encoded
from lynxq.errors import IncompleteError, LynxqError, RequestError, TransferError
from lynxq.format.header import Header
from lynxq.layout import Layout, Stream, Tier
from lynxq.stream.events import (
    AnchorPage,
    AnchorReady,
    Cancelled,
    Damaged,
    Done,
    Event,
    Failed,
    RequestOpened,
    ResidualPage,
    Retried,
)
from lynxq.stream.messages import Code
from lynxq.stream.received import Received


class Sink(Protocol):
    """What takes the pages of a transfer."""

    def add(self, page: AnchorPage | ResidualPage, /) -> None:
        """Take a page; it must be quick, because nothing else is received meanwhile."""


#: What makes a sink when the header is here.
MakeSink = Callable[[Header], Sink]


class Ready(NamedTuple):
    """Pages of a tensor that are here: from `start` to before `stop`. Of a residual, its anchors are here too."""

    stream: Stream
    name: str
    start: int
    stop: int


class Transfer:
    """What arrives of one request. Made by :meth:`Client.request`.

    Attributes
    ----------
    name : str
        What was asked for.
    header : Header
        Of the segment.
    sink : Sink
        What takes the pages.
    damaged : list of Damaged
        Pages that will not come.
    retried : int
        Pages that arrived damaged and were asked for again.
    """

    def __init__(
        self,
        name: str,
        number: int,
        *,
        cancel: Callable[[], None],
        make_sink: MakeSink,
        on_anchor_ready: Callable[[Ready], None] | None,
        on_residual_ready: Callable[[Ready], None] | None,
    ) -> None:
        self.name = name
        self.number = number
        self.damaged: list[Damaged] = []
        self.retried = 0
        self.header: Header
        self.sink: Sink
        self.failure: LynxqError | None = None
        self.ended = False
        self._opened = False
        self._cancel = cancel
        self._make_sink = make_sink
        self._callbacks = {"anchor": on_anchor_ready, "residual": on_residual_ready}
        self._tensors_left = -1  # tensors whose anchors are not all here
        self._fresh: dict[Stream, dict[str, list[tuple[int, int]]]] = {"anchor": {}, "residual": {}}
        self._changed = asyncio.Event()

    @property
    def metadata(self) -> Mapping[str, str]:
        """What the sender says of the tensors."""
        return self.header.metadata

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The tensors."""
        return self.header.tensors

    # --- what arrives ------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Take an event of the receiver."""
        if isinstance(event, AnchorPage | ResidualPage):
            self._page(event)
        elif isinstance(event, RequestOpened):
            self.header = event.header
            self.sink = self._make_sink(event.header)
            self._tensors_left = len(event.layouts)
            self._opened = True
        elif isinstance(event, AnchorReady):
            self._tensors_left -= 1
        elif isinstance(event, Damaged):
            self.damaged.append(event)
        elif isinstance(event, Retried):
            self.retried += 1
        elif isinstance(event, Failed):
            self.fail(RequestError(self.name, event.code, event.reason))
        elif isinstance(event, Cancelled):
            self.fail(RequestError(self.name, Code.CANCELLED, "it was cancelled"))
        elif isinstance(event, Done):
            self.ended = True
        self._changed.set()

    def fail(self, error: LynxqError) -> None:
        """Nothing more comes."""
        self.failure = error
        self.ended = True
        self._changed.set()

    def _page(self, event: AnchorPage | ResidualPage) -> None:
        self.sink.add(event)
        stream: Stream = "anchor" if isinstance(event, AnchorPage) else "residual"
        ready = Ready(stream, event.name, event.page, event.page + 1)
        callback = self._callbacks[stream]
        if callback is not None:
            callback(ready)
        runs = self._fresh[stream].setdefault(event.name, [])
        if runs and runs[-1][1] == event.page:
            runs[-1] = (runs[-1][0], event.page + 1)
        else:
            runs.append((event.page, event.page + 1))

    # --- waiting -----------------------------------------------------------------------------------

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def opened(self) -> None:
        """Return when the header is here."""
        while not self._opened:
            self._check()
            await self._wait()

    async def ready(self) -> AsyncIterator[Ready]:
        """Pages as they come: anchors as long as there are any, then residuals.

        Pages that follow each other are put together while nobody asks for them. Ends when nothing more comes; raises
        what :meth:`done` raises.
        """
        while True:
            fresh = self._next_fresh()
            if fresh is not None:
                yield fresh
            elif self.ended:
                self._check_complete()
                return
            else:
                await self._wait()

    def _next_fresh(self) -> Ready | None:
        for stream, tensors in self._fresh.items():
            for name, runs in tensors.items():
                start, stop = runs.pop(0)
                if not runs:
                    del tensors[name]
                return Ready(stream, name, start, stop)
        return None

    async def anchors(self) -> None:
        """Return when the anchors of all tensors are here.

        Raises
        ------
        RequestError, ConnectionLostError
            If the request ended before.
        IncompleteError
            If an anchor page was damaged each time.
        """
        await self.opened()
        while self._tensors_left:
            self._check()
            self._check_damage("anchor")
            await self._wait()

    async def done(self) -> None:
        """Return when all of the request is here.

        Raises
        ------
        RequestError, ConnectionLostError
            If the request ended before.
        IncompleteError
            If a page was damaged each time; the others are here.
        """
        while not self.ended:
            await self._wait()
        self._check_complete()

    def _check_complete(self) -> None:
        self._check()
        self._check_damage(None)

    def _check_damage(self, stream: Stream | None) -> None:
        for event in self.damaged:
            if stream in (None, event.stream):
                raise IncompleteError(
                    f"{event.stream} page {event.page} of {event.name!r} will not come: {event.error}"
                ) from event.error

    def cancel(self) -> None:
        """Want no more of it; who waits gets a `RequestError`."""
        self._cancel()

    # --- what is here ------------------------------------------------------------------------------

    @property
    def received(self) -> Received:
        """The tensors as far as they are here; raises `TransferError` if a sink of the caller's has the pages."""
        if not isinstance(self.sink, Received):
            raise TransferError(f"the pages of {self.name!r} went to {self.sink!r}")
        return self.sink

    def tier(self, name: str) -> Tier | None:
        """As :meth:`Received.tier`."""
        return self.received.tier(name)

    def encoded(self, name: str, tier: Tier = "full", pages: tuple[int, int] | None = None) -> Encoded:
        """As :meth:`Received.encoded`."""
        return self.received.encoded(name, tier, pages)

    def decode(self, name: str, tier: Tier = "full", **arguments: Any) -> Array:
        """As :meth:`Received.decode`."""
        return self.received.decode(name, tier, **arguments)
