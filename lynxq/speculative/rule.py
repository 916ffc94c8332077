"""The rule that makes speculation lossless: equations 6, 10 and 11 of the references, element by element."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lynxq.arrays import Array
from lynxq.errors import DTypeError, ShapeError
from lynxq.speculative import rows
from lynxq.speculative.distributions import Distributions
from lynxq.speculative.rows import Floats, Matrix


def accepts(p: Floats, q: Floats, uniforms: Floats) -> NDArray[np.bool_]:
    """Whether u < min(1, p/q), without a division, for q > 0 and u in [0, 1)."""
    # where p = q is subnormal, u·q can round up to p: the first term is no optimisation
    return (p >= q) | (uniforms * q < p)


def leftover(p: Matrix, q: Matrix) -> Matrix:
    """max(0, p - q) of every row, not normalised; p where rounding left nothing of it."""
    lib = rows.library(p)
    over = lib.where(p > q, p - q, 0.0)
    return lib.where(lib.amax(over, -1)[:, None] > 0, over, p)


def acceptance_probability(p: Array, q: Array) -> Array:
    """How likely a token drawn from q is accepted: Σ min(p, q), which is 1 minus their total variation distance.

    Parameters
    ----------
    p : array of floats, shape (N, V)
        Target distributions.
    q : array of floats, shape (N, V)
        Draft distributions.

    Returns
    -------
    array of float64, shape (N,)
        The mean of equation 6 of the references over the draft distribution.

    Raises
    ------
    DistributionError, DTypeError, ShapeError
        If an argument is no matrix of probabilities, or they differ in shape or library.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import acceptance_probability
    >>> acceptance_probability(np.array([[0.5, 0.5]]), np.array([[0.25, 0.75]])).tolist()
    [0.75]
    """
    target, draft = _pair(p, q)
    every = np.arange(target.rows)
    left, right = target.matrix(every), draft.matrix(every)
    result = rows.library(left).minimum(left, right).sum(-1)
    return target.home.put(result) if isinstance(result, np.ndarray) else result


def corrected_distribution(p: Array, q: Array) -> Array:
    """What replaces a rejected token: max(0, p - q), normalised (equation 11 of the references).

    Parameters
    ----------
    p : array of floats, shape (N, V)
        Target distributions.
    q : array of floats, shape (N, V)
        Draft distributions.

    Returns
    -------
    array of float64, shape (N, V)
        p itself in rows where p and q are equal: nothing is rejected there, so any choice is right.

    Raises
    ------
    DistributionError, DTypeError, ShapeError
        If an argument is no matrix of probabilities, or they differ in shape or library.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import corrected_distribution
    >>> corrected_distribution(np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])).tolist()
    [[1.0, 0.0, 0.0]]
    """
    target, draft = _pair(p, q)
    every = np.arange(target.rows)
    result = leftover(target.matrix(every), draft.matrix(every))
    result = result / result.sum(-1)[:, None]
    return target.home.put(result) if isinstance(result, np.ndarray) else result


def _pair(p: Array, q: Array) -> tuple[Distributions, Distributions]:
    target, draft = Distributions.from_probabilities(p), Distributions.from_probabilities(q)
    if target.home != draft.home:
        raise DTypeError(f"p and q must be of one library and device, got {target.home} and {draft.home}")
    if (target.rows, target.vocabulary) != (draft.rows, draft.vocabulary):
        raise ShapeError(
            f"p and q must have one shape, got {(target.rows, target.vocabulary)} and {(draft.rows, draft.vocabulary)}"
        )
    return target, draft
