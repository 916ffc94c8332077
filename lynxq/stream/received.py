"""`Received`: the tensors of a request, as far as they have arrived."""

from __future__ import annotations

from collections.abc import Mapping

from lynxq import arrays
from lynxq.arguments import choice, shown, span
from lynxq.arrays import Array
from lynxq.codec import decode
from lynxq.encoded import Encoded
from lynxq.errors import IncompleteError, MissingTensorError
from lynxq.format.assembler import Assembler
from lynxq.format.header import Header
from lynxq.layout import Layout, Tier
from lynxq.stream.events import AnchorPage, ResidualPage


class Received:
    """Puts tensors together from pages. Give it the pages that a :class:`Receiver` hands out.

    Another thread than the one that adds pages may ask for what is here, such as the one that runs a model.

    A decode says which tier it wants, and fails where that has not arrived: nothing approximate is given for something
    exact.

    Parameters
    ----------
    header : Header
        As :class:`RequestOpened` has it.

    Attributes
    ----------
    metadata : mapping of str to str
    layouts : mapping of str to Layout
        The tensors.
    streams : tuple of str
        The streams that the sender has of what was asked for.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.metadata: Mapping[str, str] = dict(header.metadata)
        self.layouts: Mapping[str, Layout] = dict(header.tensors)
        self.streams = header.stream_names
        self._tensors = {name: Assembler(layout) for name, layout in self.layouts.items()}

    def add(self, page: AnchorPage | ResidualPage) -> None:
        """Take a page."""
        self._tensors[page.name].put(page.frame, page.payload)

    def _tensor(self, name: str) -> Assembler:
        if not isinstance(name, str) or name not in self._tensors:
            raise MissingTensorError(f"no tensor {shown(name)} was sent, there are {shown(list(self._tensors))}")
        return self._tensors[name]

    def tier(self, name: str) -> Tier | None:
        """The best tier that all of a tensor can be decoded to now, None if not even its anchors are here."""
        tensor = self._tensor(name)
        if tensor.count("anchor") < tensor.layout.pages:
            return None
        return "full" if "residual" in self.streams and tensor.count("residual") == tensor.layout.pages else "anchor"

    def encoded(self, name: str, tier: Tier = "full", pages: tuple[int, int] | None = None) -> Encoded:
        """A tensor, or some of its pages, as an `Encoded` with numpy streams; shares memory with this object.

        Parameters
        ----------
        name : str
        tier : {"full", "anchor"}
        pages : (int, int), optional
            First page and the one after the last; all pages by default.

        Raises
        ------
        IncompleteError
            If something of it is not here.
        MissingTensorError
            If there is no such tensor.
        """
        choice("tier", tier, Tier)
        tensor = self._tensor(name)
        if tier == "full" and "residual" not in self.streams:
            raise IncompleteError(f"no residual of {shown(name)} was asked for, or the sender has none")
        return tensor.encoded(tier, *((None, None) if pages is None else span("pages", pages, tensor.layout.pages)))

    def decode(
        self,
        name: str,
        tier: Tier = "full",
        *,
        pages: tuple[int, int] | None = None,
        dtype: object = None,
        out: Array | None = None,
        backend: str | None = None,
        threads: int | None = None,
    ) -> Array:
        """Decode a tensor, or some of its pages, such as into a slice of a cache.

        Parameters
        ----------
        name, tier, pages
            As for :meth:`encoded`.
        dtype, out, backend, threads
            As for :func:`lynxq.decode_anchor`. An `out` that is a torch tensor is filled as one.

        Returns
        -------
        array
            `out`, or a new array, of the shape of the tensor with the tokens of those pages only:
            ``layout.span(page)`` gives the tokens of a page.
        """
        piece = self.encoded(name, tier, pages)
        if out is not None:
            piece = piece.to(arrays.library_of(out))
        return decode(piece, tier, dtype=dtype, out=out, backend=backend, threads=threads)
