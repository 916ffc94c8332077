"""`ProgressiveCache`: a cache for transformers that starts as an anchor and becomes full."""

from __future__ import annotations

from collections.abc import Mapping

from lynxq.arguments import choice, instance, integer, real
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ShapeError
from lynxq.integrations.hf.gate import Gate
from lynxq.integrations.hf.layer import ProgressiveLayer
from lynxq.integrations.hf.library import Cache, torch
from lynxq.integrations.hf.names import Described, named_dtype, one_dtype, place_of, prefixes
from lynxq.layout import Layout, Tier


class ProgressiveCache(Cache):
    """A cache whose prefix is filled from anchor pages as they arrive, and refined in place by residual pages.

    It goes where transformers takes a cache, ``model(ids, cache=cache)`` or ``model.generate(ids, cache=cache)``
    (``past_key_values=`` before 5.24). Memory is one tensor of keys and one of values for each layer, taken once
    with room for `capacity` tokens. A page is decoded from its streams straight into its place: what was decoded is
    never coded again, and refining needs no second cache.

    A model may use the cache once the anchor is complete, and layer by layer before: the forward pass waits at the
    first layer whose anchor is not. Tokens that it generates stand behind the prefix and are kept when the
    prefix is refined. They were computed from the anchor, though: for the tokens and the cache of the full prefix,
    drop them (:meth:`truncate` to :attr:`prefix`) and let the model read them again, all in one pass. That is what
    verification does; see :mod:`lynxq.speculative`.

    One thread may write while another one runs the model.

    Parameters
    ----------
    tensors : mapping of str to Layout, Encoded or StoredTensor
        What the prefix is, such as an open container. Names are ``layer.{i}.key`` and ``layer.{i}.value``, shapes
        ``[batch, heads, tokens, head dim]``, token axis 2. No data is read.
    capacity : int, optional
        Tokens there is room for; 256 more than the prefix has by default. A cache that outgrows its
        memory moves to twice as much.
    dtype : torch.dtype or str, optional
        Of keys and values; that of the encoded tensors by default. It must be the model's.
    device : torch.device or str, optional
        Of keys and values; the CPU by default.
    timeout : float
        Seconds that a forward pass waits for an anchor that is not there. With 0 it fails at once.

    Raises
    ------
    ShapeError, DTypeError
        If the tensors are not those of one cache: of one dtype unless `dtype` is given, one batch size and length, and
        one number of heads in a layer.
    MissingLibraryError
        If torch or transformers is not installed.
    """

    def __init__(
        self,
        tensors: Mapping[str, Layout | Encoded | Described],
        *,
        capacity: int | None = None,
        dtype: object = None,
        device: object = None,
        timeout: float = 0.0,
    ) -> None:
        library = torch()
        found = prefixes(tensors)
        if dtype is None:
            one_dtype(tensors, found)
        tokens = found[0][0].tokens
        room = tokens + 256 if capacity is None else integer("capacity", capacity, 0, 1 << 48)
        self._gate = Gate(real("timeout", timeout, 0.0))
        place = (None if dtype is None else named_dtype(library, dtype)), device
        super().__init__(
            layers=[ProgressiveLayer(index, pair, room, self._gate, place) for index, pair in enumerate(found)]
        )

    def write(self, name: str, pages: Encoded) -> None:
        """Decode pages of a tensor into their place.

        Parameters
        ----------
        name : str
            As in `tensors`.
        pages : Encoded
            Pages of the tensor, or all of it: its layout says where they belong, as :meth:`Encoded.pages` and
            :meth:`StoredTensor.encoded` give it. Without a residual they are decoded as an anchor, with it in full.
            An anchor that comes after the full pages changes nothing.

        Raises
        ------
        ShapeError, DTypeError
            If the pages are not such of this tensor. The cache is unchanged.
        """
        layer, which = self._place(name)
        instance("pages", pages, Encoded, DTypeError)
        layer.write(which, pages)

    def _place(self, name: str) -> tuple[ProgressiveLayer, int]:
        layer, which = place_of(name)
        if layer >= len(self.layers):
            raise ShapeError(f"the cache has {len(self.layers)} layers, got {name!r}")
        return self.layers[layer], which

    def fill(self, name: str, states: object) -> None:
        """Set keys or values of the whole prefix that come from elsewhere; they count as full.

        Parameters
        ----------
        name : str
            As in `tensors`.
        states : tensor, shape ``[batch, heads, tokens, head dim]``
            As the tensor was described, of any floating-point dtype.

        Raises
        ------
        ShapeError, DTypeError
            If the states are not such of this tensor. The cache is unchanged.
        """
        layer, which = self._place(name)
        layer.fill(which, states)

    @property
    def required(self) -> Tier:
        """The tier that a forward pass waits for, layer by layer: "anchor" unless set to "full".

        With "full" a verification may begin before the whole residual is there.
        """
        tier: Tier = self._gate.tier
        return tier

    @required.setter
    def required(self, tier: Tier) -> None:
        choice("required", tier, Tier)
        self._gate.tier = tier

    @property
    def waited(self) -> float:
        """Seconds that forward passes have waited for what had not arrived."""
        return self._gate.waited

    def fail(self, failure: BaseException) -> None:
        """Say that nothing more will arrive: who waits, now or later, gets a `CacheNotReadyError`."""
        self._gate.fail(failure)

    @property
    def prefix(self) -> int:
        """Tokens of the prefix that is written by :meth:`write`."""
        return int(self.layers[0].prefix)

    @property
    def tier(self) -> Tier | None:
        """The lowest tier of the prefix's tokens: "full", "anchor", or None as long as one of them is missing."""
        tiers = [layer.tier for layer in self.layers]
        if None in tiers:
            return None
        return "anchor" if "anchor" in tiers else "full"

    def tier_of(self, layer: int) -> Tier | None:
        """The tier of one layer."""
        tier: Tier | None = self.layers[integer("layer", layer, 0, len(self.layers) - 1)].tier
        return tier

    def truncate(self, tokens: int) -> None:
        """Keep the first tokens only, at any length; ``cache.truncate(cache.prefix)`` drops what was generated.

        Parameters
        ----------
        tokens : int
            Those to keep, at most as many as there are. If they are fewer than the prefix has, the prefix is so
            short from then on, and pages of the rest are ignored.
        """
        length = integer("tokens", tokens, 0, self.get_seq_length())
        for layer in self.layers:
            layer.truncate(length)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for keys and values, unused room included."""
        storages = (buffer.storage for layer in self.layers for buffer in layer._buffers)
        return sum(storage.numel() * storage.element_size() for storage in storages)
