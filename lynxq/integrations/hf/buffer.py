"""`Buffer`: keys or values of a layer in one piece of memory with room at the end."""

from __future__ import annotations

from typing import Any

from lynxq.integrations.hf.library import torch


class Buffer:
    """A tensor ``[batch, heads, tokens, head dim]`` that grows in place while its capacity lasts.

    Attributes
    ----------
    storage : tensor, shape ``[batch, heads, capacity, head dim]``
    tokens : int
        Those in use.
    """

    def __init__(self, storage: Any, tokens: int) -> None:
        self.storage = storage
        self.tokens = tokens

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], capacity: int, *, dtype: Any, device: Any) -> Buffer:
        """Uninitialised memory for `capacity` tokens, of which ``shape[2]`` are in use."""
        batch, heads, tokens, dim = shape
        with torch().inference_mode(False):  # such a tensor could be written to in that mode only
            storage = torch().empty((batch, heads, max(capacity, tokens), dim), dtype=dtype, device=device)
        return cls(storage, tokens)

    @property
    def view(self) -> Any:
        """The tokens in use; shares memory."""
        return self.storage[:, :, : self.tokens]

    def takes(self, states: Any) -> bool:
        """Whether tokens are of the batch size, heads and head dim of these."""
        shape = tuple(self.storage.shape)
        return states.dim() == 4 and (*states.shape[:2], states.shape[3]) == (*shape[:2], shape[3])

    def append(self, states: Any) -> Any:
        """Write tokens behind those in use; returns `view`. Moves to twice the memory if there is no room."""
        end = self.tokens + states.shape[2]
        if end > self.storage.shape[2]:
            batch, heads, _, dim = self.storage.shape
            shape = (batch, heads, self.tokens, dim)
            grown = Buffer.empty(shape, 2 * end, dtype=self.storage.dtype, device=self.storage.device)
            grown.view.copy_(self.view)
            self.storage = grown.storage
        self.storage[:, :, self.tokens : end] = states.detach()  # memory that is used again can be in no graph
        self.tokens = end
        return self.view

    def select(self, rows: Any) -> None:
        """Take rows of the batch, in that order, each as often as it is named."""
        self.storage = self.storage.index_select(0, rows.to(self.storage.device))

    def to(self, device: Any) -> None:
        """Move to a device."""
        self.storage = self.storage.to(device, non_blocking=True)
