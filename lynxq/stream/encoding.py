"""`EncodingSource`: pages are sent while the next ones are being encoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from lynxq import devices
from lynxq.arguments import instance, integer, shown
from lynxq.arrays import Array
from lynxq.codec import encode
from lynxq.container.entries import entry_of
from lynxq.container.segments import stored_layout
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ParamsError, ShapeError, SourceFailedError
from lynxq.format.header import Header
from lynxq.layout import Layout, Stream
from lynxq.params import Params
from lynxq.stream.sources import Frame, Source

#: A tensor's name, and its next pages.
Piece = tuple[str, Encoded]


class EncodingSource(Source):
    """Sends pages that an iterator makes, on a thread of its own, while they are being made.

    The iterator is asked for more only while fewer than `ahead` anchor pages wait to be sent: a slow link or a slow
    receiver slows the encoder down. What has been made is kept until the source is closed, so that any page can be
    sent again; the memory for it is that of the encoded tensors, and the iterator's input is needed no more when it
    has ended.

    Parameters
    ----------
    layouts : mapping of str to Layout
        The tensors, before any page exists.
    pieces : iterable of (str, Encoded)
        Name and next pages of a tensor: those pages' own layout and both streams, as ``encode`` of a range of tokens
        gives them. Of each tensor in order; tensors in any order, and they are sent in that order.
    metadata : mapping of str to str, optional
        As for :func:`lynxq.save`.
    ahead : int
        Anchor pages that may wait to be sent before the iterator is asked for more.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> from lynxq.stream import EncodingSource
    >>> x = np.ones((600, 2, 64), np.float32)
    >>> layout = lynxq.Layout.of(lynxq.Params.keys(), x.shape, "float32", token_axis=0)
    >>> pieces = (
    ...     ("key", lynxq.encode(x[begin : begin + 256], token_axis=0, first_token=begin))
    ...     for begin in range(0, 600, 256)
    ... )
    >>> source = EncodingSource({"key": layout}, pieces)
    >>> source.wait("anchor", 0, 2).header.page
    2
    >>> source.close()
    """

    def __init__(
        self,
        layouts: Mapping[str, Layout],
        pieces: Iterable[Piece],
        *,
        metadata: Mapping[str, str] | None = None,
        ahead: int = 16,
    ) -> None:
        self._layouts = {name: stored_layout(layout) for name, layout in layouts.items()}
        self.header = Header.of(metadata or {}, self._layouts, ("anchor", "residual"))
        self._ahead = integer("ahead", ahead, 1, 1 << 32, ParamsError)
        self._names = {name: index for index, name in enumerate(self._layouts)}
        self._next = [0] * len(self._layouts)  # pages that exist, of each tensor
        self._order: list[tuple[int, int]] = []  # tensor and page, in the order of being made
        self._made: dict[tuple[Stream, int, int], Frame] = {}
        self._waiting: set[tuple[int, int]] = set()  # anchor pages that nobody has asked for yet
        self._failure: BaseException | None = None
        self._closed = self._ended = False
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []
        self._pieces = pieces
        self._thread = threading.Thread(target=self._run, name="lynxq-encoding", daemon=True)
        self._thread.start()

    # --- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            for name, piece in self._pieces:
                self._add(name, piece)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._ahead)
                    if self._closed:
                        return
            self._check_all()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the one who asks for a frame is told
            with self._changed:
                self._failure = error
        finally:
            with self._changed:
                self._ended = True
                pieces, self._pieces = self._pieces, ()
                self._changed.notify_all()
            del pieces  # without the lock: what an iterator does when it is dropped is its own matter
            self._wake()

    def _add(self, name: str, piece: Encoded) -> None:
        """Keep the frames of the next pages of a tensor."""
        if name not in self._names:
            raise ShapeError(f"a piece must belong to one of {list(self._names)}, got {name!r}")
        instance("a piece", piece, Encoded, DTypeError)
        index, layout = self._names[name], self._layouts[name]
        start = self._next[index]
        entry = entry_of(name, piece.to_host())
        stop = start + entry.layout.pages
        if stop > layout.pages or entry.layout != layout.narrowed(start, stop):
            raise ShapeError(f"a piece of {name!r} must be its next pages, from page {start}, got {piece}")
        made: dict[tuple[Stream, int, int], Frame] = {}
        for page in range(start, stop):
            anchor, payload = entry.frame("anchor", index, page - start, self.header.identity)
            made["anchor", index, page] = Frame(replace(anchor, page=page), payload)
            residual, payload = entry.frame("residual", index, page - start, self.header.identity, anchor.payload)
            made["residual", index, page] = Frame(replace(residual, page=page), payload)
        with self._changed:
            self._made.update(made)
            self._order += ((index, page) for page in range(start, stop))
            self._waiting.update((index, page) for page in range(start, stop))
            self._next[index] = stop
            self._changed.notify_all()
        self._wake()

    def _check_all(self) -> None:
        for name, index in self._names.items():
            if self._next[index] != self._layouts[name].pages:
                raise ShapeError(
                    f"pieces must have all {self._layouts[name].pages} pages of {name!r}, got {self._next[index]}"
                )

    def _wake(self) -> None:
        for watcher in list(self._watchers):
            watcher()

    # --- the sender's side -------------------------------------------------------------------------

    def frame(self, stream: Stream, tensor: int, page: int) -> Frame | None:
        """One frame, or None if it does not exist yet; raises `SourceFailedError` if it never will."""
        with self._changed:
            return self._frame(stream, tensor, page)

    def _frame(self, stream: Stream, tensor: int, page: int) -> Frame | None:
        found = self._made.get((stream, tensor, page))
        if found is None:
            self._check_going_on()
        elif stream == "anchor" and (tensor, page) in self._waiting:
            self._waiting.discard((tensor, page))
            self._changed.notify_all()
        return found

    def _check_going_on(self) -> None:
        if self._failure is not None:
            raise SourceFailedError(
                f"pages could not be made: {str(self._failure) or type(self._failure).__name__}"
            ) from self._failure
        if self._closed:
            raise SourceFailedError("the source is closed")
        if self._ended:
            raise SourceFailedError("all pages have been made, and this is none of them")

    def place(self, position: int) -> tuple[int, int] | None:
        """Tensor and page, in the order in which the iterator made them."""
        with self._changed:
            if position < len(self._order):
                return self._order[position]
            self._check_going_on()
            return None

    def wait(self, stream: Stream, tensor: int, page: int) -> Frame:
        """One frame, when it exists."""
        with self._changed:
            while (found := self._frame(stream, tensor, page)) is None:
                self._changed.wait()
            return found

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Ask for `wake` to be called when frames have come into being; returns what ends that."""
        self._watchers.append(wake)
        return lambda: self._watchers.remove(wake)

    def close(self) -> None:
        """Stop the thread after the piece that it is making, and wait for it; drops what was made."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._made.clear()


def encoding(
    tensors: Mapping[str, Array],
    params: Params | Mapping[str, Params] | None = None,
    *,
    token_axis: int,
    first_token: int = 0,
    head_dim: int | None = None,
    valid_tokens: int | None = None,
    metadata: Mapping[str, str] | None = None,
    step: int = 4,
    ahead: int = 16,
    backend: str | None = None,
    threads: int | None = None,
) -> EncodingSource:
    """A source that encodes tensors page by page while it sends them; the bytes are those of encoding them whole.

    Parameters
    ----------
    tensors : mapping of str to array
        As for :func:`lynxq.encode`. They must not change before the source has encoded them.
    params : Params or mapping of str to Params, optional
        Of all tensors, or of each; ``Params.keys()`` by default.
    token_axis, first_token, head_dim, valid_tokens, backend, threads
        As for :func:`lynxq.encode`, of all tensors.
    metadata : mapping of str to str, optional
        As for :func:`lynxq.save`.
    step : int
        Pages that are encoded at a time. More cost less in all, and the first one is later.
    ahead : int
        As for :class:`EncodingSource`.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq import stream
    >>> keys = np.random.default_rng(0).standard_normal((1, 2, 1000, 64), dtype=np.float32)
    >>> with stream.encoding({"layer.0.key": keys}, token_axis=2) as source:
    ...     source.wait("residual", 0, 3).header.page
    3
    """
    step = integer("step", step, 1, 1 << 32, ParamsError)
    instance("tensors", tensors, Mapping, DTypeError)
    for name in params if isinstance(params, Mapping) else ():
        if name not in tensors:
            raise ParamsError(f"params must be for tensors that are there, got some for {shown(name)}")
    layouts: dict[str, Layout] = {}
    for name, x in tensors.items():
        chosen = params.get(name) if isinstance(params, Mapping) else params
        chosen = Params.keys() if chosen is None else chosen
        instance("params", chosen, Params, DTypeError)
        raw = devices.as_raw(x)
        layouts[name] = Layout.of(
            chosen,
            raw.raw.shape,
            raw.dtype,
            token_axis=token_axis,
            head_dim=head_dim,
            first_token=first_token,
            valid_tokens=valid_tokens,
        )

    def pieces() -> Iterator[Piece]:
        for name, layout in layouts.items():
            for start in range(0, layout.pages, step):
                begin, end = layout.span(start)[0], layout.span(min(start + step, layout.pages) - 1)[1]
                part = tensors[name][(*(slice(None),) * layout.token_axis, slice(begin, end))]
                yield (
                    name,
                    encode(
                        part,
                        layout.params,
                        token_axis=layout.token_axis,
                        first_token=first_token + begin,
                        head_dim=layout.head_dim,
                        backend=backend,
                        threads=threads,
                    ),
                )

    return EncodingSource(layouts, pieces(), metadata=metadata, ahead=ahead)
