"""A guaranteed bound on the error of a decode, from the metadata alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lynxq import arrays, companding, quantizer
from lynxq.arguments import choice, instance
from lynxq.backends import reference
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError
from lynxq.layout import Tier
from lynxq.params import Params

#: Relative slack for the float32 roundings of encode and decode: a dozen units in the last place.
_SLACK = 2.0**-20


@lru_cache(maxsize=64)
def largest_gap(params: Params, tier: Tier) -> float:
    """Largest distance from an input to its reconstruction, in units of σ̂, over all bins of a tier."""
    edges = np.concatenate([[0.0], companding.thresholds(params.alpha, params.levels), [1.0]]).astype(np.float64)
    if tier == "full":
        points = companding.levels(params.alpha, params.levels).astype(np.float64)
    else:
        half = 1 << (params.residual_bits - 1)
        v_mag = (np.arange(params.levels + 1) + half - 1) >> params.residual_bits
        points = np.array(params.points)[v_mag]
    return float(max((points - edges[:-1]).max(), (edges[1:] - points).max()))


def error_bound(encoded: Encoded, tier: Tier = "full") -> NDArray[np.float64]:
    """Bound the error of every value of a decode into the encoded tensor's own dtype.

    |x - x̂| never exceeds it, whatever the values were; it is constant in a chunk, zero for sink tokens, and
    never larger for the full decode than for the anchor decode. Only ranges, centres and scales are read.

    Parameters
    ----------
    encoded : Encoded
        The residual need not be there.
    tier : {"anchor", "full"}
        Which decode to bound.

    Returns
    -------
    ndarray of float64, shape ``encoded.shape``
        In the unit of the values. Zero for tokens that are not valid.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> x = np.random.default_rng(0).standard_normal((300, 64), dtype=np.float32)
    >>> encoded = lynxq.encode(x, token_axis=0)
    >>> bool((np.abs(x - lynxq.decode_anchor(encoded)) <= lynxq.error_bound(encoded, "anchor")).all())
    True
    """
    instance("encoded", encoded, Encoded, DTypeError)
    choice("tier", tier, Tier)
    layout = encoded.layout
    anchor = arrays.as_bytes(encoded.anchor, "anchor")
    result = np.zeros((layout.outer, layout.shape[layout.token_axis], layout.channels))
    gap = largest_gap(layout.params, tier)
    for page in range(layout.pages):
        coded, sinks = layout.coded(page), layout.page_sinks(page)
        if not coded:
            continue
        with np.errstate(all="ignore"):
            chunks = reference.page_scales(layout, anchor, page)
            lo, hi, mu, sigma = (part.astype(np.float64) for part in chunks)
        reach = np.abs(mu) + sigma
        bound = sigma * gap + reach * _SLACK + np.maximum(np.abs(lo), np.abs(hi)) * layout.dtype.unit_roundoff
        bound = np.minimum(bound + 4 * layout.dtype.subnormal_roundoff, hi - lo)
        start, stop = layout.span(page)
        result[:, start + sinks : stop] = quantizer.expand_chunks(bound, layout.groups(coded))
    return result.reshape(encoded.shape)
