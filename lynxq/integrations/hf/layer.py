"""`ProgressiveLayer`: a layer whose prefix arrives as an anchor, and is refined where it lies."""

from __future__ import annotations

from copy import deepcopy
from threading import Lock
from typing import Any

import numpy as np

from lynxq import devices
from lynxq.arguments import instance
from lynxq.codec import decode_anchor, decode_full
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, ShapeError
from lynxq.integrations.hf.buffer import Buffer
from lynxq.integrations.hf.gate import Gate
from lynxq.integrations.hf.library import DynamicLayer, torch
from lynxq.integrations.hf.names import KINDS, Prefix, tensor_name
from lynxq.layout import Tier

_MISSING, _ANCHOR, _FULL = 0, 1, 2
_TIERS: tuple[Tier | None, ...] = (None, "anchor", "full")


class ProgressiveLayer(DynamicLayer):
    """A layer of a :class:`ProgressiveCache`; to a model it is a `DynamicLayer`.

    Tokens of the prefix are written by :meth:`write`, those behind it by the model. Both are in one piece of memory
    with room at the end, so that neither a new token nor a refinement copies what is there.
    """

    is_compileable = False
    is_croppable = True
    is_sliding = False
    is_initialized = False

    def __init__(self, index: int, prefix: tuple[Prefix, Prefix], capacity: int, gate: Gate, place: Any) -> None:
        dtype, device = place
        super().__init__()
        self._index = index
        self._gate = gate
        self._lock = Lock()  # a buffer must not move while a page is decoded into it
        self._shapes = tuple(one.shape for one in prefix)
        self._buffers = [
            Buffer.empty(one.shape, capacity, dtype=dtype or getattr(torch(), one.dtype), device=device)
            for one in prefix
        ]
        self._states = [np.zeros(one.tokens, np.uint8) for one in prefix]  # of every token of the prefix
        self._rows: Any = None  # which rows of what arrives the rows of the batch are; None for all in order
        self.dtype, self.device = self._buffers[0].storage.dtype, self._buffers[0].storage.device
        self.is_initialized = True

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgressiveLayer:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        with self._lock:
            twin.__dict__.update({k: deepcopy(v, memo) for k, v in self.__dict__.items() if k != "_lock"})
        twin._lock = Lock()
        return twin

    # --- what arrives ------------------------------------------------------------------------------

    @property
    def prefix(self) -> int:
        """Tokens at the beginning that are written by :meth:`write`."""
        return len(self._states[0])

    @property
    def tier(self) -> Tier | None:
        """The lowest tier of the prefix's tokens; None as long as one of them is missing."""
        return _TIERS[min((int(state.min()) for state in self._states if state.size), default=_FULL)]

    def write(self, which: int, pages: Encoded) -> None:
        """Decode pages into their place; see :meth:`ProgressiveCache.write`."""
        begin = pages.layout.first_token
        wanted = list(self._shapes[which])
        wanted[2] = pages.layout.tokens
        end = begin + wanted[2]
        name = tensor_name(self._index, KINDS[which])
        if pages.token_axis != 2 or list(pages.shape) != wanted or end > self._shapes[which][2]:
            raise ShapeError(
                f"pages of {name!r} must be of shape {self._shapes[which]} and token axis 2, "
                f"got shape {pages.shape}, token axis {pages.token_axis} and first token {begin}"
            )
        tier = _ANCHOR if pages.residual is None else _FULL
        with self._lock:
            end = min(end, self.prefix)
            part = self._states[which][begin:end]
            if not part.size or part.min() >= tier:
                return  # cropped away, or there already: what is full never becomes an anchor again
            if tier == _ANCHOR and part.max() == _FULL:
                raise ShapeError(f"an anchor of {name!r} came for tokens {begin} to {end}, some of which are full")
            self._decode(self._buffers[which].storage[:, :, begin:end], pages)
            part[:] = tier
        self._gate.open()

    def fill(self, which: int, states: Any) -> None:
        """Take keys or values of the whole prefix as they are; see :meth:`ProgressiveCache.fill`."""
        name = tensor_name(self._index, KINDS[which])
        instance(name, states, torch().Tensor, DTypeError)
        if not states.is_floating_point():
            raise DTypeError(f"{name!r} must be of a floating-point dtype, got {states.dtype}")
        if tuple(states.shape) != self._shapes[which]:
            raise ShapeError(f"{name!r} must be of shape {self._shapes[which]}, got {tuple(states.shape)}")
        with self._lock:
            part = states[:, :, : self.prefix]
            rows = part if self._rows is None else part.index_select(0, self._rows.to(part.device))
            self._buffers[which].storage[:, :, : self.prefix] = rows.detach()
            self._states[which][:] = _FULL
        self._gate.open()

    def _decode(self, place: Any, pages: Encoded) -> None:
        """Decode into a part of the storage: directly, unless it was cropped or its rows were reordered."""
        pages = _moved(pages, place.device)
        decode = decode_anchor if pages.residual is None else decode_full
        if self._rows is None and place.shape[2] == pages.layout.tokens:
            decode(pages, out=place)
            return
        whole = decode(pages, dtype=place.dtype)[:, :, : place.shape[2]]
        place.copy_(whole if self._rows is None else whole.index_select(0, self._rows.to(whole.device)))

    # --- what a model does -------------------------------------------------------------------------

    @property
    def keys(self) -> Any:
        """Keys in use, shape ``[batch, heads, tokens, head dim]``; a view."""
        return self._buffers[0].view if self.is_initialized else None

    @keys.setter
    def keys(self, states: Any) -> None:
        self._replace(0, states)

    @property
    def values(self) -> Any:
        """Values in use, shape ``[batch, heads, tokens, head dim]``; a view."""
        return self._buffers[1].view if self.is_initialized else None

    @values.setter
    def values(self, states: Any) -> None:
        self._replace(1, states)

    def _replace(self, which: int, states: Any) -> None:
        """Take other keys or values, as those who prune caches set them. What is to be refined cannot be replaced."""
        if not self.is_initialized and states is None:
            return  # the base class declares its attributes
        if self.tier != "full":
            raise ShapeError(f"layer {self._index} cannot get other keys or values before its residual is there")
        if states is None:
            raise DTypeError(f"keys and values of layer {self._index} must be tensors, got None")
        with self._lock:
            self._forget()
            self._buffers[which] = Buffer(states, states.shape[2])

    def _forget(self) -> None:
        """There is no prefix any more: all tokens are the model's own."""
        self._states = [np.zeros(0, np.uint8) for _ in KINDS]

    def lazy_initialization(self, key_states: Any, value_states: Any = None) -> None:
        """Nothing to do: memory is taken when the cache is made."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Append tokens, and return all keys and values; waits for the prefix.

        Raises
        ------
        CacheNotReadyError
            If the prefix is not there in time, in the tier that is required.
        ShapeError
            If batch size, heads or head dim are not those of the cache: it was made for another model or batch.
        """
        del args, kwargs
        self._gate.wait(self._index, lambda: self.tier)
        with self._lock:
            for buffer, kind, states in zip(self._buffers, KINDS, (key_states, value_states), strict=True):
                if not buffer.takes(states):  # a batch of 1 or a single head would be repeated without a word
                    raise ShapeError(
                        f"the model gives {tensor_name(self._index, kind)!r} shape {tuple(states.shape)}, which does "
                        f"not continue {tuple(buffer.view.shape)} of the cache: batch, heads and head dim must agree"
                    )
            return self._buffers[0].append(key_states), self._buffers[1].append(value_states)

    def get_seq_length(self) -> int:
        """Tokens in use, those of the prefix that have not arrived included."""
        return self._buffers[0].tokens

    def get_max_length(self) -> int:
        """-1: there is no limit, memory grows."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Drop tokens at the end: so many if the number is negative; down to this length if it is positive.

        The second is what early versions of transformers 5 did. 0 changes nothing.
        """
        length = self.get_seq_length()
        self.truncate(max(length + tokens_to_remove, 0) if tokens_to_remove <= 0 else min(tokens_to_remove, length))

    def truncate(self, tokens: int) -> None:
        """Keep the first tokens; what has not arrived of the dropped ones is ignored when it does."""
        with self._lock:
            for buffer in self._buffers:
                buffer.tokens = min(buffer.tokens, tokens)
            self._states = [state[:tokens] for state in self._states]
        self._gate.open()  # a pass may have waited for what is not needed any more

    def reset(self) -> None:
        """Drop all tokens; memory is kept."""
        self.truncate(0)

    def _select(self, rows: Any) -> None:
        with self._lock:
            for buffer in self._buffers:
                buffer.select(rows)
            self._rows = rows if self._rows is None else self._rows.index_select(0, rows.to(self._rows.device))

    def reorder_cache(self, beam_idx: Any) -> None:
        """Reorder the batch, for beam search."""
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        rows = torch().arange(self._buffers[0].storage.shape[0], device=self.device)
        self._select(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Any) -> None:
        """Keep some rows of the batch: numbers, or one truth value for each row."""
        rows = torch().as_tensor(indices, device=self.device)
        self._select(rows.nonzero()[:, 0] if rows.dtype == torch().bool else rows)

    def offload(self) -> None:
        """Move to the memory of the CPU."""
        with self._lock:
            for buffer in self._buffers:
                buffer.to("cpu")

    def prefetch(self) -> None:
        """Move back to the device."""
        with self._lock:
            for buffer in self._buffers:
                buffer.to(self.device)


def _moved(pages: Encoded, device: Any) -> Encoded:
    """The same pages with torch streams on a device."""
    if device.type == "cpu":
        return pages.to_host().to("torch")
    near = pages if devices.on_device(pages.anchor) else pages.to("torch")
    residual = None if near.residual is None else torch().as_tensor(near.residual, device=device)
    return Encoded(pages.layout, torch().as_tensor(near.anchor, device=device), residual)
