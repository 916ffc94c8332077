"""What methods do to what a model says: a line of a table for each of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lynxq.evaluate import Method, RowTier
from lynxq.lab import reconstruction
from lynxq.lab.reconstruction import Coding, PerTensor, Reconstruction
from lynxq.lab.results import Record
from lynxq.lab.scores import Reference, Scores, score


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
    tier: RowTier
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
    return _quality(against, [reconstruction.method(one) for one in methods], progress)


def _quality(
    against: Reference, methods: list[Method | PerTensor], progress: Callable[[str], None] | None
) -> Iterator[Quality]:
    exact = against.perplexity
    for one in methods:
        for near in reconstruction.reconstructions(against.passage.tensors, one):
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
