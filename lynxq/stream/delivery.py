"""Events that wait to be taken: anchors before residuals, whatever arrived first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from lynxq.layout import Stream
from lynxq.stream.events import Event
from lynxq.stream.windows import Window


class Delivery:
    """Three queues, each of which is taken from only if those before it are empty: what requests are, anchor pages,
    residual pages.

    Parameters
    ----------
    windows : mapping of str to Window
        Where the bytes of a page are freed when it is taken.
    """

    def __init__(self, windows: Mapping[Stream, Window]) -> None:
        self._windows = windows
        self._news: deque[Event] = deque()
        self._pages: dict[Stream, deque[tuple[Event, int]]] = {"anchor": deque(), "residual": deque()}

    def tell(self, event: Event) -> None:
        """Add an event that comes before all pages."""
        self._news.append(event)

    def hand(self, stream: Stream, event: Event, size: int = 0) -> None:
        """Add an event among the pages of a stream; it holds a frame of `size` bytes."""
        self._pages[stream].append((event, size))

    def take(self) -> Event | None:
        """The next event."""
        if self._news:
            return self._news.popleft()
        for stream, queue in self._pages.items():
            if queue:
                event, size = queue.popleft()
                self._windows[stream].free(size)
                return event
        return None

    def drop(self, request: int) -> None:
        """Drop all events of a request."""
        self._news = deque(event for event in self._news if event.request != request)
        for stream, queue in self._pages.items():
            self._windows[stream].free(sum(size for event, size in queue if event.request == request))
            self._pages[stream] = deque(entry for entry in queue if entry[0].request != request)
