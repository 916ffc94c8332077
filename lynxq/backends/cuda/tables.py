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
_CELL_BITS = range(5, 11)


class Grid(NamedTuple):
    """A uniform grid over [0, 1): `bits` is 0 if none is fine enough."""

    bits: int
    below: NDArray[np.uint32]
    next: NDArray[np.float32]


@lru_cache(maxsize=64)
def grid(alpha: float, count: int) -> Grid:
    """The coarsest grid with at most one threshold in a cell.

    Cell j holds every t with round(t·4·2^bits) div 4 = j, ties to even, which is the half-open interval from j - ⅛
    to j + ⅞ cells. It knows how many thresholds are at or below its lower edge, and the next one. A comparison with
    that one gives the level: the grid saves time and decides nothing. Cells past that of t = 1 hold L.

    Parameters
    ----------
    alpha : float
        Strength of the companding.
    count : int
        L, the number of levels above zero.

    Examples
    --------
    >>> grid(0.5, 112).bits
    8
    >>> grid(2000.0, 112).bits
    0
    """
    thresholds = companding.thresholds(alpha, count)
    following = np.append(thresholds, np.float32(np.inf))
    for bits in _CELL_BITS:
        cells = 1 << bits
        edges = (np.arange(cells + 2) - 0.125) / cells  # exact in float64, as thresholds are
        below = np.searchsorted(thresholds.astype(np.float64), edges, side="right")
        if np.diff(below).max() <= 1:
            table = np.full(2 * cells, count, np.uint32)
            table[: cells + 1] = below[:-1]
            return Grid(bits, table, following[table])
    return Grid(0, np.empty(0, np.uint32), np.empty(0, np.float32))


@lru_cache(maxsize=64)
def tables(params: Params) -> bytes:
    """What the kernels read of a set of parameters, in the order that ``kernels/codes.cuh`` states."""
    thresholds = np.full(_THRESHOLDS, np.inf, np.float32)
    thresholds[: params.levels] = companding.thresholds(params.alpha, params.levels)
    cells = grid(params.alpha, params.levels)
    parts = (thresholds, quantizer.anchor_table(params), quantizer.full_table(params), cells.next, cells.below)
    return b"".join(part.tobytes() for part in parts)
