"""Made-up keys and values with the pathologies of real ones, seeded: where schemes break, without a model.

Every pathology is one that was seen in a real cache, exaggerated where noted, and can be had alone:

* ``bias``: channels of keys have a constant of up to ±200, and one has 900, as Qwen2's key projections do. It is added
  before RoPE, like the bias of a linear layer.
* ``rope``: keys are rotated by their position (Su et al., arXiv 2104.09864; halves of a head are paired, base 10000).
  A bias becomes an oscillation, fast in the first channels, slow in the last ones of either half.
* ``constant``: two channels of every head hardly change (by a thousandth), and one does not at all.
* ``outliers``: one token in 256 is 1000 times as large as the others (exaggerated).
* ``sink``: token 0 has values fifty times smaller than it would have, and its key is at four deviations in every
  channel: the extreme of its chunk (attention sinks, arXiv 2309.17453).

They are applied in this order. Without any, keys and values are independent normal variables, with a deviation of its
own for every channel and a slow drift along tokens. One seed gives one cache for as long as numpy's generator stays the
same; these are inputs for tests, not a format.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, dtypes
from lynxq.arguments import choice, integer
from lynxq.errors import ParamsError

Pathology = Literal["bias", "rope", "constant", "outliers", "sink"]

#: All of them, in the order in which they are applied.
PATHOLOGIES: tuple[Pathology, ...] = get_args(Pathology)

BIAS, PEAK_BIAS = 200.0, 900.0
OUTLIER, OUTLIER_EVERY = 1000.0, 256
ROPE_BASE = 10000.0

F64 = NDArray[np.float64]


def cache(
    tokens: int = 2048,
    heads: int = 2,
    head_dim: int = 128,
    *,
    layers: int = 1,
    pathologies: Iterable[Pathology] = PATHOLOGIES,
    seed: int = 0,
    dtype: object = "bfloat16",
) -> dict[str, NDArray[Any]]:
    """A KV cache.

    Parameters
    ----------
    tokens, heads, head_dim, layers : int
        Extents; any may be 0 but `head_dim`, which is positive.
    pathologies : iterable of str
        Names out of `PATHOLOGIES`; their order does not matter.
    seed : int
        Not negative. A layer's numbers do not depend on the number of layers, nor its unaffected parts on the
        pathologies.
    dtype : str or dtype
        float32, float16 or bfloat16; values beyond its largest one become that one.

    Returns
    -------
    dict of str to ndarray, shape (tokens, heads, head_dim)
        ``layer.N.key`` and ``layer.N.value`` for every layer.

    Raises
    ------
    ShapeError, DTypeError
        If an extent or the dtype does not fit.
    ParamsError
        If a pathology is not known, or the seed is negative.

    Examples
    --------
    >>> from lynxq import synthetic
    >>> cache = synthetic.cache(512, pathologies=["bias"], dtype="float32")
    >>> sorted(cache), round(abs(cache["layer.0.key"]).max() / 100)
    (['layer.0.key', 'layer.0.value'], 9)
    """
    for what, extent, low in (("tokens", tokens, 0), ("heads", heads, 0), ("head_dim", head_dim, 1)):
        integer(what, extent, low, 1 << 40)
    integer("layers", layers, 0, 1 << 20)
    integer("seed", seed, 0, 1 << 62, ParamsError)
    chosen = tuple(pathologies)
    for name in chosen:
        choice("pathology", name, Pathology)
    element = dtypes.named(dtype)
    result = {}
    for layer in range(layers):
        key, value = _layer(np.random.default_rng([seed, layer]), (tokens, heads, head_dim), frozenset(chosen))
        for kind, x in (("key", key), ("value", value)):
            raw = dtypes.from_float32(x.astype(np.float32), element)
            result[f"layer.{layer}.{kind}"] = raw.view(arrays.numpy_dtype(element))
    return result


def rope(x: F64, first_position: int = 0) -> F64:
    """Rotate the two halves of every head against each other by the position of the token.

    Parameters
    ----------
    x : ndarray, shape (tokens, heads, head_dim)
        With an odd head_dim, the last channel stays as it is.
    first_position : int
        Position of the first token.

    Returns
    -------
    ndarray of float64
        Of the norm of `x`, token by token.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.synthetic import rope
    >>> rope(np.array([[[1.0, 0.0]], [[1.0, 0.0]]])).round(3).tolist()  # cos 1 and sin 1 for the second token
    [[[1.0, 0.0]], [[0.54, 0.841]]]
    """
    half = x.shape[-1] // 2
    frequency = ROPE_BASE ** (-np.arange(half) / max(half, 1))
    angle = (first_position + np.arange(len(x)))[:, None, None] * frequency
    first, second = x[..., :half], x[..., half : 2 * half]
    rotated = [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    return np.concatenate([*rotated, x[..., 2 * half :]], axis=-1).astype(np.float64)


def _layer(rng: np.random.Generator, shape: tuple[int, int, int], chosen: frozenset[str]) -> tuple[F64, F64]:
    tokens, heads, dim = shape
    key, value = _plain(rng, shape), _plain(rng, shape)
    # Everything random is drawn whether it is used or not, so that the pathologies do not disturb each other.
    bias = rng.uniform(-BIAS, BIAS, (heads, dim)) * (rng.random((heads, dim)) < 0.25)
    steady = rng.standard_normal((2, heads, dim))
    offset = int(rng.integers(OUTLIER_EVERY // 2, OUTLIER_EVERY))
    sign = np.where(rng.random((heads, dim)) < 0.5, -1.0, 1.0)
    deviation = key.std(axis=0) if tokens else np.ones((heads, dim))
    if "bias" in chosen and heads:
        # The last channel of a head turns most slowly under RoPE, so that 900 stays near 900 for long.
        bias[0, -1] = PEAK_BIAS
        key += bias
    centre = key.mean(axis=0) if tokens else bias
    if "rope" in chosen:
        key = rope(key)
    if "constant" in chosen:
        for x, level in zip((key, value), steady, strict=True):
            x[..., : min(2, dim)] = level[:, :2] + 1e-3 * x[..., :2] / max(
                float(np.abs(x[..., :2]).max(initial=0)), 1.0
            )
            x[..., 2:3] = level[:, 2:3]
    if "outliers" in chosen:
        key[offset::OUTLIER_EVERY] *= OUTLIER
        value[offset::OUTLIER_EVERY] *= OUTLIER
    if "sink" in chosen:
        key[:1] = centre + 4 * sign * deviation
        value[:1] /= 50
    return key, value


def _plain(rng: np.random.Generator, shape: tuple[int, int, int]) -> F64:
    """Normal variables with a deviation for every channel and a drift along tokens."""
    deviation = np.exp(0.5 * rng.standard_normal(shape[1:]))
    phase = rng.uniform(0, 2 * np.pi, shape[1:])
    drift = np.sin(np.arange(shape[0])[:, None, None] / 100 + phase)
    noise: F64 = rng.standard_normal(shape) + 0.5 * drift
    return noise * deviation
