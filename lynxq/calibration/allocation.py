"""Bits shared among tensors: the least total error within a budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Combinations that are kept after each step; below it the result is exact.
KEPT = 4096


def frontier(bits: Sequence[float], errors: Sequence[float]) -> list[int]:
    """Indices of the options that no other one beats in both bits and error, by rising bits."""
    order = sorted(range(len(bits)), key=lambda i: (bits[i], errors[i], i))
    kept: list[int] = []
    for i in order:
        if not kept or errors[i] < errors[kept[-1]]:
            kept.append(i)
    return kept


def allocate(options: Sequence[Sequence[tuple[float, float]]], budget: float) -> list[int] | None:
    """One option for each group so that bits add up to at most the budget, with the least sum of errors.

    Parameters
    ----------
    options : sequence of sequences of (bits, error)
        What each group can choose from.
    budget : float
        Most bits together.

    Returns
    -------
    list of int or None
        Indices of the options, one for each group; None if even the smallest ones are too large.

    Notes
    -----
    Groups are combined one after the other, and of all combinations only those are kept that no other one beats (the
    multiple-choice knapsack by dominance; Kellerer, Pferschy, Pisinger, *Knapsack Problems*, chapter 11). If there are
    more than `KEPT`, the best in each of as many equal intervals of bits stay. A tie goes to the earlier option.

    Examples
    --------
    >>> from lynxq.calibration.allocation import allocate
    >>> allocate([[(4, 9.0), (5, 3.0)], [(4, 8.0), (5, 6.0)]], 9)
    [1, 0]
    """
    least = [0.0, *np.cumsum([min(bits for bits, _ in group) for group in reversed(options)]).tolist()][::-1]
    bits, errors = np.zeros(1), np.zeros(1)
    steps = []
    for number, group in enumerate(options):
        own = np.array(group, dtype=np.float64)
        all_bits = (bits[:, None] + own[None, :, 0]).ravel()
        all_errors = (errors[:, None] + own[None, :, 1]).ravel()
        # Room for the groups to come; the tolerance is that of sums of floats.
        fits = np.flatnonzero(all_bits + least[number + 1] <= budget * (1 + 1e-12))
        if not len(fits):
            return None
        order = fits[np.lexsort((fits, all_errors[fits], all_bits[fits]))]
        falling = np.minimum.accumulate(all_errors[order])
        best = order[np.concatenate([[True], all_errors[order][1:] < falling[:-1]])]
        if len(best) > KEPT:
            low, high = all_bits[best[0]], all_bits[best[-1]]
            place = ((all_bits[best] - low) / (high - low) * KEPT).astype(np.intp)
            # Along the frontier errors fall, so that the last in an interval is its best; the first is the smallest.
            best = best[np.concatenate([[True], place[1:-1] != place[2:], [True]])] if len(best) > 2 else best
        steps.append(np.stack(np.divmod(best, len(group)), axis=1))
        bits, errors = all_bits[best], all_errors[best]
    at = len(bits) - 1  # the largest that fits has the least error
    chosen = []
    for step in reversed(steps):
        at, option = (int(value) for value in step[at])
        chosen.append(option)
    return chosen[::-1]
