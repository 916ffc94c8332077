"""The error of attention outputs; its public place is :mod:`lynxq.metrics`, with the rules for corner cases."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lynxq.arrays import Array
from lynxq.errors import ParamsError, ShapeError
from lynxq.metrics import pieces
from lynxq.metrics.pieces import Floats

#: Rows of queries, and of keys, that are handled at once.
BLOCK = 512


@dataclass(frozen=True)
class AttentionError:
    """Relative squared error of attention outputs, per query head and pooled; add them to pool over layers.

    Parameters
    ----------
    squared_error : tuple of float
        ‖o - ô‖² of every query head, summed over queries.
    squared_norm : tuple of float
        ‖o‖² of every query head.

    Raises
    ------
    ShapeError
        If the two do not have one length, or two sums of different heads are added.

    Examples
    --------
    >>> from lynxq.metrics import AttentionError
    >>> error = AttentionError((1.0, 0.0), (2.0, 8.0))
    >>> error.per_head, error.pooled, (error + error).pooled
    ((0.5, 0.0), 0.1, 0.1)
    """

    squared_error: tuple[float, ...]
    squared_norm: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.squared_error) != len(self.squared_norm):
            raise ShapeError(
                f"squared_error and squared_norm must have one length, "
                f"got {len(self.squared_error)} and {len(self.squared_norm)}"
            )

    @property
    def per_head(self) -> tuple[float, ...]:
        """‖o - ô‖² / ‖o‖² of every query head."""
        return tuple(pieces.ratio(e, n) for e, n in zip(self.squared_error, self.squared_norm, strict=True))

    @property
    def pooled(self) -> float:
        """‖o - ô‖² / ‖o‖² over all query heads together."""
        return pieces.ratio(math.fsum(self.squared_error), math.fsum(self.squared_norm))

    def __add__(self, other: AttentionError) -> AttentionError:
        if not isinstance(other, AttentionError):
            return NotImplemented
        if len(self.squared_error) != len(other.squared_error):
            raise ShapeError(
                f"errors must have one number of query heads, "
                f"got {len(self.squared_error)} and {len(other.squared_error)}"
            )
        return AttentionError(
            tuple(map(operator.add, self.squared_error, other.squared_error)),
            tuple(map(operator.add, self.squared_norm, other.squared_norm)),
        )


def attention_output_error(
    queries: Array,
    keys: Array,
    values: Array,
    keys_hat: Array,
    values_hat: Array,
    *,
    causal: bool = True,
    scale: float | None = None,
    first_query: int | None = None,
) -> AttentionError:
    """Relative squared error of softmax attention when keys and values are replaced by reconstructions.

    Parameters
    ----------
    queries : array, shape (Tq, Hq, D)
        After the position embedding, as the keys are.
    keys : array, shape (Tk, Hkv, D)
        Query head h uses KV head ``h // (Hq // Hkv)`` (grouped queries).
    values : array, shape (Tk, Hkv, Dv)
    keys_hat, values_hat : array
        Reconstructions, of the shapes of `keys` and `values`.
    causal : bool
        Whether a query at position p sees the keys 0 to p only.
    scale : float, optional
        Factor of the logits; 1/√D by default.
    first_query : int, optional
        Position of the first query, not negative. By default the queries are the last Tq positions. Without
        meaning, and ignored, unless `causal`.

    Returns
    -------
    AttentionError
        Per query head and pooled. 0/0 is 0; infinite for the query heads of a KV head whose reconstruction
        is not finite.

    Raises
    ------
    ShapeError
        If shapes do not fit each other, there are no keys, or `first_query` is negative.
    ParamsError
        If `scale` is not finite.
    DTypeError
        If an array is not one of floats on the CPU.
    NonFiniteError
        If queries, keys or values hold NaN or infinity.

    Notes
    -----
    Blocks of queries meet blocks of keys with a running maximum (the online softmax of Milakov and
    Gimelshein, arXiv 1805.02867), so that memory does not grow with the number of tokens.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> from lynxq.metrics import attention_output_error
    >>> rng = np.random.default_rng(0)
    >>> queries = rng.standard_normal((16, 4, 32), np.float32)
    >>> keys, values = rng.standard_normal((2, 512, 2, 32), np.float32)
    >>> keys_hat, values_hat = (lynxq.decode_full(lynxq.encode(x, token_axis=0)) for x in (keys, values))
    >>> error = attention_output_error(queries, keys, values, keys_hat, values_hat)
    >>> len(error.per_head), error.pooled < 1e-3
    (4, True)
    """
    q, k, v = pieces.floats("queries", queries), pieces.floats("keys", keys), pieces.floats("values", values)
    k_hat, v_hat = pieces.floats("keys_hat", keys_hat), pieces.floats("values_hat", values_hat)
    _check_attention(q, k, v)
    pieces.same_shape("keys_hat", k_hat, "keys", k)
    pieces.same_shape("values_hat", v_hat, "values", v)
    factor = 1.0 / math.sqrt(k.shape[2]) if scale is None else float(scale)
    if not math.isfinite(factor):
        raise ParamsError(f"scale must be finite, got {scale!r}")
    first = _first_query(first_query, len(q), len(k)) if causal else None
    with np.errstate(all="ignore"):
        for array in (q, k, v):
            pieces.require_finite(array)
        sums = np.zeros((2, q.shape[1]))
        group = q.shape[1] // k.shape[1]
        for head in range(k.shape[1]):
            heads = slice(head * group, (head + 1) * group)
            one = (slice(None), slice(head, head + 1))
            for start in range(0, len(q), max(1, BLOCK // group)):
                rows = slice(start, min(start + max(1, BLOCK // group), len(q)))
                block = pieces.load(q, (rows, heads)) * factor
                last = None if first is None else first + np.arange(rows.start, rows.stop)
                output = _attend(block, last, k[one], v[one])
                error = _attend(block, last, k_hat[one], v_hat[one]) - output
                sums[:, heads] += np.square(error).sum((0, 2)), np.square(output).sum((0, 2))
            if pieces.nonfinite(k_hat[one]) or pieces.nonfinite(v_hat[one]):
                sums[0, heads] = math.inf
    return AttentionError(tuple(sums[0].tolist()), tuple(sums[1].tolist()))


def _attend(queries: Floats, last: NDArray[np.int64] | None, keys: Array, values: Array) -> Floats:
    """Attention outputs of scaled queries (b, g, D) over one KV head; query i sees the keys up to last[i]."""
    rows = queries.reshape(-1, queries.shape[2])
    seen = None if last is None else np.repeat(last, queries.shape[1])[:, None]
    tokens = len(keys) if last is None else min(len(keys), int(last[-1]) + 1)
    best = np.full(len(rows), -np.inf)
    weight = np.zeros(len(rows))
    total = np.zeros((len(rows), values.shape[2]))
    for start in range(0, tokens, BLOCK):
        stop = min(start + BLOCK, tokens)
        scores = rows @ pieces.load(keys, (slice(start, stop), 0)).T
        if seen is not None:
            scores[np.arange(start, stop) > seen] = -np.inf
        # Key 0 is in the first block and every query sees it, so the running maximum is finite from there on.
        top = np.maximum(best, scores.max(axis=1))
        shares = np.exp(scores - top[:, None])
        shrink = np.exp(best - top)
        weight = weight * shrink + shares.sum(axis=1)
        total = total * shrink[:, None] + shares @ pieces.load(values, (slice(start, stop), 0))
        best = top
    return (total / weight[:, None]).reshape(*queries.shape[:2], values.shape[2])


def _check_attention(q: Array, k: Array, v: Array) -> None:
    for what, array in (("queries", q), ("keys", k), ("values", v)):
        if array.ndim != 3:
            raise ShapeError(f"{what} must have three axes (tokens, heads, head dim), got shape {tuple(array.shape)}")
    if 0 in k.shape:
        raise ShapeError(f"keys must have a token, a head and a channel at least, got shape {tuple(k.shape)}")
    if k.shape[:2] != v.shape[:2]:
        raise ShapeError(
            f"keys and values must have the same tokens and heads, got shapes {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if q.shape[2] != k.shape[2]:
        raise ShapeError(f"queries and keys must have one head dim, got shapes {tuple(q.shape)} and {tuple(k.shape)}")
    if not q.shape[1] or q.shape[1] % k.shape[1]:
        raise ShapeError(f"query heads must be a multiple of the {k.shape[1]} KV heads, got shape {tuple(q.shape)}")


def _first_query(first: int | None, queries: int, keys: int) -> int:
    if first is None:
        first = keys - queries
        if first < 0:
            raise ShapeError(f"{queries} queries cannot be the last of {keys} positions: give first_query")
    elif first < 0:
        raise ShapeError(f"first_query must not be negative, got {first}")
    return operator.index(first)
