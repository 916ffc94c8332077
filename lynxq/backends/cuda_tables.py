"""Tables of the CUDA kernels: thresholds, reconstruction factors, and a grid that narrows the threshold search."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lynxq import companding, quantizer
from lynxq.params import Params

#: Room for thresholds; the largest L is 124, the rest is infinite.
_THRESHOLDS = 128
#: Grids to try, log2 of the cells. A finer one than the last costs more shared memory than a binary search time.
_CELL_BITS = range(5, 12)


class Grid(NamedTuple):
    """A uniform grid over [0, 1): `bits` is 0 if none is fine enough."""

    bits: int
    below: NDArray[np.uint8]


@lru_cache(maxsize=64)
def grid(alpha: float, count: int) -> Grid:
    """The coarsest grid with at most one threshold in a cell.

    Cell j holds every t with round(t·2^bits) = j, ties to even, and knows the number of thresholds at or below
    its lower edge. One comparison with the next threshold then gives the level: the grid saves time and decides
    nothing. Entries past the cell of t = 1 hold L.

    Parameters
    ----------
    alpha : float
        Strength of the companding.
    count : int
        L, the number of levels above zero.

    Examples
    --------
    >>> grid(0.5, 112).bits
    7
    >>> grid(2000.0, 112).bits
    0
    """
    thresholds = companding.thresholds(alpha, count).astype(np.float64)
    for bits in _CELL_BITS:
        cells = 1 << bits
        edges = (np.arange(cells + 2) - 0.5) / cells  # exact
        below = np.searchsorted(thresholds, edges, side="right")
        if np.diff(below).max() <= 1:
            table = np.full(2 * cells, count, np.uint8)
            table[: cells + 1] = below[:-1]
            return Grid(bits, table)
    return Grid(0, np.empty(0, np.uint8))


@lru_cache(maxsize=64)
def tables(params: Params) -> bytes:
    """What the kernels read of a set of parameters, in the order that ``kernels/codes.cuh`` states."""
    thresholds = np.full(_THRESHOLDS, np.inf, np.float32)
    thresholds[: params.levels] = companding.thresholds(params.alpha, params.levels)
    parts = (
        thresholds,
        quantizer.anchor_table(params),
        quantizer.full_table(params),
        grid(params.alpha, params.levels).below,
    )
    return b"".join(part.tobytes() for part in parts)
