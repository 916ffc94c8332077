"""A continuation behind an exact prefix, and the same behind any replacement of it, position by position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import integer
from lynxq.arrays import Array
from lynxq.errors import ShapeError
from lynxq.lab import attention, libraries
from lynxq.lab.attention import AttentionCall
from lynxq.lab.caches import cache_of
from lynxq.lab.decoding import draft, logits_of
from lynxq.lab.passages import Passage
from lynxq.metrics import AttentionError

#: Positions whose distributions are in float64 at once.
_ROWS = 32


@dataclass(frozen=True, eq=False)
class Reference:
    """The continuation of a passage with the exact cache: what every reconstruction is held against.

    Made by :func:`reference`.

    Attributes
    ----------
    passage : Passage
    logits : torch tensor of float32, shape (C, V)
        At every token of the continuation.
    calls : list of AttentionCall
        Attention of every layer; empty if attention is not measured.
    greedy : torch tensor of int64, shape (N,)
        What greedy decoding gives behind the prefix and the first token after it.
    """

    passage: Passage
    logits: Array
    calls: list[AttentionCall]
    greedy: Array

    @property
    def perplexity(self) -> float:
        """Of the continuation behind the exact prefix."""
        return math.exp(_compare(self, self.logits)[2].mean())


@dataclass(frozen=True, eq=False)
class Scores:
    """Effects of a replaced prefix, position by position; made by :func:`score`.

    Attributes
    ----------
    kl : ndarray of float64, shape (C,)
        KL(p_exact ‖ p) of the next token, in nats.
    agrees : ndarray of bool, shape (C,)
        Whether the most probable token is the same.
    nll : ndarray of float64, shape (C,)
        -log p of the token that comes next in the text, in nats.
    attention : tuple of AttentionError
        Of every layer: queries of the continuation, exact, meet the replaced prefix and exact keys and values of the
        continuation. Empty if not measured.
    divergence : int or None
        First token, counted from 0, at which greedy decoding differs; None if none does.
    """

    kl: NDArray[np.float64]
    agrees: NDArray[np.bool_]
    nll: NDArray[np.float64]
    attention: tuple[AttentionError, ...]
    divergence: int | None

    @property
    def perplexity(self) -> float:
        """The exponential of the mean of `nll`."""
        return math.exp(self.nll.mean()) if len(self.nll) else math.nan


def reference(passage: Passage, *, attention_errors: bool = True, greedy: int = 64) -> Reference:
    """Run the continuation of a passage, once, with the exact cache.

    Parameters
    ----------
    passage : Passage
        With a continuation of at least one token.
    attention_errors : bool
        Whether attention outputs will be compared, which takes about a third of the time of a comparison.
    greedy : int
        Tokens to decode greedily, to see where decoding diverges; 0 for none.

    Returns
    -------
    Reference

    Raises
    ------
    ShapeError
        If there is no continuation, or the model has too few positions for what is decoded.
    """
    integer("greedy", greedy, 0, 1 << 24)
    if passage.following < 2:
        raise ShapeError("a passage must have a continuation of at least one token, and a token after it, got none")
    passage.model.check_length(passage.prefix, greedy)
    model, exact = passage.model, passage.tensors
    ids = _continuation(passage)
    if attention_errors:
        with attention.recorded(model) as calls:
            logits = model.forward(ids, cache_of(model, exact))
    else:
        calls, logits = [], model.forward(ids, cache_of(model, exact))
    first = passage.tokens[passage.prefix : passage.prefix + 1]
    tokens = draft(model, [exact], first, greedy).tokens if greedy else first[:0]
    return Reference(passage, logits[0], calls, tokens)


def score(against: Reference, tensors: Mapping[str, Array]) -> Scores:
    """Run the continuation with other tensors in place of the prefix.

    Parameters
    ----------
    against : Reference
    tensors : mapping of str to torch tensor, shape (prefix, KV heads, head dim)
        Whatever stands for the exact ones: ``layer.{i}.key`` and ``layer.{i}.value``.

    Returns
    -------
    Scores

    Raises
    ------
    ShapeError
        If tensors are missing, or have other shapes.
    """
    passage = against.passage
    _check(passage, tensors)
    logits = passage.model.forward(_continuation(passage), cache_of(passage.model, tensors))[0]
    kl, agrees, nll = _compare(against, logits)
    errors = tuple(
        call.error(tensors[f"layer.{call.layer}.key"], tensors[f"layer.{call.layer}.value"])
        for call in against.calls
        if f"layer.{call.layer}.key" in tensors
    )
    return Scores(kl, agrees, nll, errors, _divergence(against, tensors))


def _continuation(passage: Passage) -> Array:
    """Tokens to run; the last one of the passage is only predicted."""
    return passage.tokens[None, passage.prefix : -1]


def _compare(against: Reference, logits: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """KL, agreement and -log p, in float64: single precision is as coarse as the smallest KLs."""
    passage = against.passage
    following = passage.tokens[passage.prefix + 1 :, None].to(logits.device)
    parts = []
    for start in range(0, len(logits), _ROWS):
        rows = slice(start, start + _ROWS)
        p, q = against.logits[rows].double().log_softmax(-1), logits[rows].double().log_softmax(-1)
        # Equal logits give exactly 0. Rounding may leave a sum of tiny terms below it, and no KL is negative.
        kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)
        same = against.logits[rows].argmax(-1) == logits[rows].argmax(-1)
        parts.append([kl, same, -q.gather(1, following[rows])[:, 0]])
    kl, same, nll = (np.concatenate([x.cpu().numpy() for x in part]) for part in zip(*parts, strict=True))
    return kl, same, nll


def _divergence(against: Reference, tensors: Mapping[str, Array]) -> int | None:
    """Where greedy decoding leaves the exact one. Up to there both have one past, so one pass over it tells."""
    if not len(against.greedy):
        return None
    passage = against.passage
    torch = libraries.torch()
    ids = torch.cat([passage.tokens[passage.prefix : passage.prefix + 1], against.greedy[:-1]])
    chosen = logits_of(passage.model, [tensors], ids[None])[0].argmax(-1).cpu()
    differs = (chosen != against.greedy).nonzero()
    return int(differs[0]) if len(differs) else None


def _check(passage: Passage, tensors: Mapping[str, Array]) -> None:
    for name, exact in passage.tensors.items():
        if name not in tensors or tensors[name].shape != exact.shape:
            found = tuple(tensors[name].shape) if name in tensors else "no such tensor"
            raise ShapeError(f"{name} must have shape {tuple(exact.shape)}, got {found}")
