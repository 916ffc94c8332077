"""What a model says when the prefix of its cache is a reconstruction, against what it says with the exact one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq.arguments import integer
from lynxq.arrays import Array
from lynxq.errors import ShapeError
from lynxq.evaluate import Method
from lynxq.lab import attention, coding, libraries
from lynxq.lab.attention import AttentionCall
from lynxq.lab.caches import cache_of
from lynxq.lab.coding import Coding, PerTensor, Reconstruction
from lynxq.lab.decoding import draft, logits_of
from lynxq.lab.passages import Passage
from lynxq.lab.results import Record
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


@dataclass(frozen=True)
class Quality(Record):
    """One line of a table: a method and tier on a passage.

    Attributes
    ----------
    model, text, method, title : str
    tier : {"anchor", "full", "-"}
        "-" for methods without tiers.
    prefix, continuation : int
        Tokens whose cache was replaced, and tokens that were scored.
    bits_per_element, key_bits, value_bits : float
        Bits per value, counting every stored byte: of all, of keys, of values.
    nbytes : int
        Bytes of the prefix as stored.
    vnmse_key, vnmse_value : float
        Squared error over squared norm, pooled over layers.
    kl_mean, kl_p99 : float
        KL(p_exact ‖ p) of the next token in nats: mean, and 99th percentile over positions.
    top1 : float
        Share of positions at which the most probable token is the same.
    perplexity, perplexity_exact : float
        Of the continuation.
    attention_error : float
        ‖o - ô‖² / ‖o‖² of attention outputs, pooled over layers and heads; NaN if not measured.
    layer_attention_errors : tuple of float
        The same of every layer.
    divergence : int or None
        First token at which greedy decoding differs; None if none of `greedy_tokens` does.
    greedy_tokens : int
        Tokens that were decoded greedily.
    encode_ms, decode_ms, run_ms : float
        Milliseconds of coding, decoding and running the model with the result.
    """

    model: str
    text: str
    method: str
    title: str
    tier: str
    prefix: int
    continuation: int
    bits_per_element: float
    key_bits: float
    value_bits: float
    nbytes: int
    vnmse_key: float
    vnmse_value: float
    kl_mean: float
    kl_p99: float
    top1: float
    perplexity: float
    perplexity_exact: float
    attention_error: float
    layer_attention_errors: tuple[float, ...]
    divergence: int | None
    greedy_tokens: int
    encode_ms: float
    decode_ms: float
    run_ms: float


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
        If there is no continuation.
    """
    integer("greedy", greedy, 0, 1 << 24)
    if passage.following < 2:
        raise ShapeError("a passage must have a continuation of at least one token, and a token after it, got none")
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
    torch = libraries.torch()
    passage = against.passage
    _check(passage, tensors)
    logits = passage.model.forward(_continuation(passage), cache_of(passage.model, tensors))[0]
    following = passage.tokens[passage.prefix + 1 :].to(logits.device)
    parts = [
        _compare(against.logits[rows], logits[rows], following[rows])
        for rows in (slice(start, start + _ROWS) for start in range(0, len(logits), _ROWS))
    ]
    kl, agrees, nll = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
    errors = tuple(
        call.error(tensors[f"layer.{call.layer}.key"], tensors[f"layer.{call.layer}.value"])
        for call in against.calls
        if f"layer.{call.layer}.key" in tensors
    )
    return Scores(kl, agrees, nll, errors, _divergence(against, tensors))


def quality(
    against: Reference, methods: Iterable[Coding], *, progress: Callable[[str], None] | None = None
) -> Iterator[Quality]:
    """Score every tier of several methods on a passage.

    Parameters
    ----------
    against : Reference
    methods : iterable of str, Method or PerTensor
        As :func:`lynxq.lab.reconstructions` takes them.
    progress : callable, optional
        Called with the name of a method when it is done.

    Yields
    ------
    Quality
        As soon as each is measured.

    Raises
    ------
    ParamsError
        If a method is not known; before anything is run.

    Examples
    --------
    >>> from lynxq import lab
    >>> passage = lab.prepare(lab.load(), open("book.txt").read())  # doctest: +SKIP
    >>> for line in lab.quality(lab.reference(passage), ["pair", "int8"]):  # doctest: +SKIP
    ...     print(line.method, line.tier, line.bits_per_element, line.kl_mean)
    """
    return _quality(against, [coding.method(one) for one in methods], progress)


def _quality(
    against: Reference, methods: list[Method | PerTensor], progress: Callable[[str], None] | None
) -> Iterator[Quality]:
    exact = _perplexity(against)
    for one in methods:
        for near in coding.reconstructions(against.passage.tensors, one):
            begin = time.perf_counter()
            scores = score(against, near.tensors)
            yield _line(against, near, scores, exact, 1e3 * (time.perf_counter() - begin))
        if progress is not None:
            progress(one.name)


def _line(against: Reference, near: Reconstruction, scores: Scores, exact: float, run_ms: float) -> Quality:
    pooled = sum(scores.attention[1:], scores.attention[0]).pooled if scores.attention else math.nan
    return Quality(
        model=against.passage.model.name,
        text=against.passage.name,
        method=near.method,
        title=near.title,
        tier=near.tier,
        prefix=against.passage.prefix,
        continuation=len(scores.kl),
        bits_per_element=near.bits_per_element,
        key_bits=near.keys.bits_per_element,
        value_bits=near.values.bits_per_element,
        nbytes=near.nbytes,
        vnmse_key=near.keys.errors.vnmse,
        vnmse_value=near.values.errors.vnmse,
        kl_mean=float(scores.kl.mean()),
        kl_p99=float(np.percentile(scores.kl, 99)),
        top1=float(scores.agrees.mean()),
        perplexity=scores.perplexity,
        perplexity_exact=exact,
        attention_error=pooled,
        layer_attention_errors=tuple(error.pooled for error in scores.attention),
        divergence=scores.divergence,
        greedy_tokens=len(against.greedy),
        encode_ms=near.encode_ms,
        decode_ms=near.decode_ms,
        run_ms=run_ms,
    )


def _continuation(passage: Passage) -> Array:
    """Tokens to run; the last one of the passage is only predicted."""
    return passage.tokens[None, passage.prefix : -1]


def _perplexity(against: Reference) -> float:
    passage = against.passage
    following = passage.tokens[passage.prefix + 1 :].to(against.logits.device)
    total = 0.0
    for start in range(0, len(following), _ROWS):
        rows = slice(start, start + _ROWS)
        total += float(_compare(against.logits[rows], against.logits[rows], following[rows])[2].sum())
    return math.exp(total / len(following))


def _compare(exact: Array, near: Array, following: Array) -> tuple[Array, Array, Array]:
    """KL, agreement and -log p of some rows, in float64: single precision is as coarse as the smallest KLs."""
    p, q = exact.double().log_softmax(-1), near.double().log_softmax(-1)
    # Equal logits give exactly 0. Rounding may leave a sum of tiny terms below it, and no KL is negative.
    kl = (p.exp() * (p - q)).sum(-1).clamp(min=0)
    return kl, exact.argmax(-1) == near.argmax(-1), -q.gather(1, following[:, None])[:, 0]


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
