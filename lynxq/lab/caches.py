"""From tensors by name to a cache that transformers computes with, and back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache as once
from typing import Any

from lynxq.arrays import Array
from lynxq.errors import ModelError, ShapeError
from lynxq.lab import libraries
from lynxq.lab.models import LanguageModel


def empty_cache() -> Any:
    """A cache of no tokens.

    All layers keep all tokens, also those with a sliding window: their mask hides what the window has left behind.
    So every tensor of a capture has the same tokens.
    """
    return libraries.transformers().DynamicCache()


def cache_of(model: LanguageModel, *rows: Mapping[str, Array], reserve: int = 0) -> Any:
    """A cache that holds given keys and values, for a batch of one or more rows.

    Parameters
    ----------
    model : LanguageModel
    *rows : mapping of str to torch tensor, shape (tokens, heads, head dim)
        ``layer.{i}.key`` and ``layer.{i}.value`` for every layer. Shorter rows are filled with zeros on the *left*;
        :func:`padding_mask` tells the model.
    reserve : int
        Tokens to make room for. Decoding token by token then copies nothing.

    Returns
    -------
    transformers.Cache
        In the model's dtype, on its device.

    Raises
    ------
    ShapeError
        If a tensor is missing or does not fit the others.
    """
    torch = libraries.torch()
    layers = _layer_count(rows[0])
    lengths = [len(row["layer.0.key"]) for row in rows]
    made = []
    for number in range(layers):
        pair = []
        for kind in ("key", "value"):
            name = f"layer.{number}.{kind}"
            _, heads, dim = _tensor(rows[0], name).shape
            shape = (len(rows), heads, max(lengths) + reserve, dim)
            buffer = torch.zeros(shape, dtype=model.dtype, device=model.device)
            for target, row, length in zip(buffer, rows, lengths, strict=True):
                tensor = _tensor(row, name)
                if tuple(tensor.shape) != (length, heads, dim):
                    raise ShapeError(f"{name} must have shape {(length, heads, dim)}, got {tuple(tensor.shape)}")
                target[:, max(lengths) - length : max(lengths)] = tensor.transpose(0, 1)
            pair.append(buffer)
        made.append(_reserved_layer()(*pair, max(lengths)))
    return libraries.transformers().Cache(layers=made)


def padding_mask(lengths: list[int], following: int) -> Array:
    """What :meth:`LanguageModel.forward` needs for rows of unequal lengths that `following` tokens come after.

    Returns
    -------
    torch tensor of int64, shape (rows, longest + following)
        0 where a row is padded, else 1.
    """
    torch = libraries.torch()
    total = max(lengths) + following
    return (torch.arange(total)[None] >= max(lengths) - torch.tensor(lengths)[:, None]).long()


def tensors_of(cache: Any, *, dtype: str | None = None, start: int = 0, stop: int | None = None) -> dict[str, Array]:
    """Keys and values of a cache of one row, by name.

    Parameters
    ----------
    cache : transformers.Cache
    dtype : str, optional
        Round to this dtype, to nearest even; the cache's own by default.
    start, stop : int
        Tokens to take; all by default.

    Returns
    -------
    dict of str to torch tensor, shape (tokens, heads, head dim), contiguous, on the CPU
        ``layer.0.key``, ``layer.0.value``, ``layer.1.key`` and so on; keys are what attention sees, so after their
        position embedding.

    Raises
    ------
    ModelError
        If a layer keeps no keys and values.
    ShapeError
        If the cache has more than one row.
    """
    torch = libraries.torch()
    tensors = {}
    for number, layer in enumerate(cache.layers):
        for kind in ("key", "value"):
            states = getattr(layer, f"{kind}s", None)
            if states is None or states.ndim != 4:
                raise ModelError(f"every layer of a model must keep keys and values, got {type(layer).__name__}")
            if len(states) != 1:
                raise ShapeError(f"a cache must have one row, got {len(states)}")
            part = states[0, :, start:stop].transpose(0, 1).detach()
            wanted = part.dtype if dtype is None else getattr(torch, dtype)
            tensors[f"layer.{number}.{kind}"] = part.to("cpu", wanted).contiguous()
    return tensors


def _layer_count(tensors: Mapping[str, Array]) -> int:
    count = sum(name.endswith(".key") for name in tensors)
    if not count:
        raise ShapeError("a cache needs the tensors of at least one layer, got none")
    return count


def _tensor(tensors: Mapping[str, Array], name: str) -> Array:
    if name not in tensors:
        raise ShapeError(f"a cache needs a tensor {name}, and there is none")
    return tensors[name]


@once
def _reserved_layer() -> Any:
    """The class of a cache layer that grows within a buffer; made here, since its base is of an optional library."""

    class ReservedLayer(libraries.transformers().DynamicLayer):  # type: ignore[misc]
        """Keys and values in front of a buffer with room for more."""

        def __init__(self, keys: Array, values: Array, length: int) -> None:
            super().__init__()
            self.lazy_initialization(keys, values)
            self._buffers: tuple[Array, Array] | None = keys, values
            self.keys, self.values = keys[:, :, :length], values[:, :, :length]

        def update(self, key_states: Array, value_states: Array, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
            """Add tokens in place, as long as there is room."""
            start = self.keys.shape[2]
            stop = start + key_states.shape[2]
            if self._buffers is None or stop > self._buffers[0].shape[2]:
                self._buffers = None
                grown: tuple[Array, Array] = super().update(key_states, value_states, *args, **kwargs)
                return grown
            keys, values = self._buffers
            keys[:, :, start:stop], values[:, :, start:stop] = key_states, value_states
            self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]
            return self.keys, self.values

    return ReservedLayer
