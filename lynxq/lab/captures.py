"""Real keys, values and queries of a text, as a model's attention sees them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lynxq import arrays
from lynxq.arguments import choice
from lynxq.arrays import Array
from lynxq.errors import ShapeError
from lynxq.lab import attention, libraries
from lynxq.lab.caches import empty_cache, tensors_of
from lynxq.lab.models import LanguageModel

#: Element types that captures are rounded to.
Stored = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True, eq=False)
class Capture:
    """Keys and values, and queries if they were asked for, of all tokens of a text.

    Attributes
    ----------
    model : str
        Name of the model.
    tokens : torch tensor of int64, shape (tokens,)
    tensors : dict of str to torch tensor, shape (tokens, KV heads, head dim)
        ``layer.{i}.key``, after the position embedding, and ``layer.{i}.value``.
    queries : dict of str to torch tensor, shape (tokens, query heads, head dim)
        ``layer.{i}.query``, after the position embedding; empty if not asked for.
    """

    model: str
    tokens: Array
    tensors: Mapping[str, Array]
    queries: Mapping[str, Array]

    def save(self, path: str | os.PathLike[str], queries_path: str | os.PathLike[str] | None = None) -> None:
        """Write a safetensors file that ``lynxq encode`` and ``lynxq eval`` read, and another one for queries.

        Queries have a file of their own because they are no part of a cache.
        """
        from lynxq.tensorfile import save_tensors

        metadata = {
            "model": self.model,
            "tokens": str(len(self.tokens)),
            "tokens_sha256": hashlib.sha256(self.tokens.numpy().tobytes()).hexdigest(),
        }
        for target, tensors in ((path, self.tensors), (queries_path, self.queries)):
            if target is not None:
                save_tensors(target, {name: _numpy(tensor) for name, tensor in tensors.items()}, metadata)


def capture(model: LanguageModel, text: str | Array, *, dtype: Stored = "bfloat16", queries: bool = False) -> Capture:
    """Run a model over a text and keep the cache.

    Parameters
    ----------
    model : LanguageModel
    text : str or array of integers, shape (tokens,)
        A text, or token ids.
    dtype : {"bfloat16", "float16", "float32"}
        What tensors are rounded to.
    queries : bool
        Whether to keep queries, too.

    Returns
    -------
    Capture
        Tensors on the CPU.

    Raises
    ------
    ShapeError
        If the text has no token, or more than the model has positions.
    ModelError
        If the model keeps no keys and values.

    Examples
    --------
    >>> import lynxq
    >>> from lynxq import lab
    >>> cache = lab.capture(lab.load(), "It was a dark and stormy night.")  # doctest: +SKIP
    >>> lynxq.encode(cache.tensors["layer.0.key"], token_axis=0)  # doctest: +SKIP
    Encoded(shape=(8, 3, 64), dtype=bfloat16, 11.00 + 2.00 bits per element)
    """
    choice("dtype", dtype, Stored)
    ids = model.tokens(text)
    if not len(ids):
        raise ShapeError("a text must have at least one token, got none")
    cache = empty_cache()
    if not queries:
        model.forward(ids[None], cache, keep=1)
        return Capture(model.name, ids, tensors_of(cache, dtype=dtype), {})
    with attention.recorded(model) as calls:
        model.forward(ids[None], cache, keep=1)
    torch = libraries.torch()
    asked = {
        f"layer.{call.layer}.query": call.queries[0].transpose(0, 1).to("cpu", getattr(torch, dtype)).contiguous()
        for call in calls
    }
    return Capture(model.name, ids, tensors_of(cache, dtype=dtype), asked)


def _numpy(tensor: Array) -> Any:
    """A CPU tensor as a numpy array of the same memory, bfloat16 included."""
    source = arrays.as_raw(tensor)
    return source.raw.view(arrays.numpy_dtype(source.dtype))
