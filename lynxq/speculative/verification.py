"""`verify`: which drafted tokens stay, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lynxq.arguments import instance
from lynxq.arrays import Array
from lynxq.errors import DTypeError, ShapeError
from lynxq.speculative import rows
from lynxq.speculative.distributions import Distributions
from lynxq.speculative.draft import Draft
from lynxq.speculative.rule import accepts, leftover


@dataclass(frozen=True, eq=False)
class Verified:
    """Final tokens of a batch: they follow the target's distribution, and none is ever taken back.

    Attributes
    ----------
    tokens : array of int64, shape (accepted.sum() + B,)
        Final tokens of all requests, one request after the other: the accepted ones and one more each.
    accepted : ndarray of int64, shape (B,)
        Drafted tokens that stay.
    drafted : ndarray of int64, shape (B,)
        Drafted tokens there were. Where all stay, the last final token is the bonus token; elsewhere it replaces
        the first rejected one.
    """

    tokens: Array
    accepted: rows.Integers
    drafted: rows.Integers

    @property
    def lengths(self) -> rows.Integers:
        """Final tokens of each request: the accepted ones and one more, shape (B,)."""
        return self.accepted + 1

    def split(self) -> list[Array]:
        """The final tokens of each request, as views."""
        ends = np.cumsum(self.lengths).tolist()
        return [self.tokens[end - length : end] for end, length in zip(ends, self.lengths.tolist(), strict=True)]


def verify(draft: Draft, target: Distributions, random: object) -> Verified:
    """Accept drafted tokens, and draw one more for each request (equations 6, 10 and 11 of the references).

    A drafted token x stays with probability min(1, p(x)/q(x)), as long as all before it stay. The first one that
    does not is replaced by a token drawn from max(0, p - q), normalised; if all stay, a bonus token is drawn from
    the target's last row. What comes out is distributed as if drawn from p, whatever q is. With greedy targets
    (``temperature=0``) the same rule is the exact match: a token stays if it is the target's.

    Parameters
    ----------
    draft : Draft
        N tokens of B requests, and what they were drawn from (q).
    target : Distributions
        N + B rows (p), one request after the other: of a request with n drafted tokens, the n rows for the
        positions of these, and the row that follows the last of them. One forward pass over the draft gives them.
    random : numpy Generator, torch Generator, or array of float64, shape (N + B,)
        Uniform numbers of [0, 1), or where to take them, laid out as the target's rows. The last one of a request
        draws its additional token. Results are a function of these: the same for numpy arrays and torch tensors
        on the CPU. On another device the library's exp may differ in the last bit.

    Returns
    -------
    Verified

    Raises
    ------
    DTypeError, ShapeError, ParamsError
        If an argument is of another type, or draft and target differ in vocabulary, library or device.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import Distributions, Draft, verify
    >>> q = Distributions.from_probabilities(np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]]))
    >>> draft = Draft(np.array([0, 2]), q, lengths=[2])
    >>> p = Distributions.from_probabilities(np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]))
    >>> verify(draft, p, np.array([0.9, 0.4, 0.7])).tokens.tolist()  # 0.4 < 0.25 / 0.5: all stay, and a bonus
    [0, 2, 2]
    >>> verify(draft, p, np.array([0.9, 0.6, 0.7])).tokens.tolist()  # 2 is rejected, only 0 can replace it
    [0, 0]
    """
    instance("draft", draft, Draft, DTypeError)
    instance("target", target, Distributions, DTypeError)
    _check(draft, target)
    count, requests = len(draft.ids), draft.requests
    uniforms = rows.random_numbers(random, count + requests)
    owner = np.repeat(np.arange(requests), draft.lengths)
    starts = np.cumsum(draft.lengths) - draft.lengths  # first draft row of each request
    place = np.arange(count) + owner  # target row of each drafted token

    stays = accepts(target.of_tokens(draft.ids, place), draft.chances, uniforms[place])
    failures = np.concatenate([[0], np.cumsum(~stays)])
    stays = failures[1:] == failures[starts][owner]  # nothing before it, nor itself, was rejected
    accepted = np.bincount(owner[stays], minlength=requests).astype(np.int64)

    last = starts + np.arange(requests) + draft.lengths
    following = np.empty(requests, np.int64)
    for part in rows.blocks(requests, target.vocabulary):
        chances = target.matrix((last - draft.lengths + accepted)[part])
        rejected = np.flatnonzero((accepted < draft.lengths)[part])
        if len(rejected):
            row = rows.like(rejected, chances)
            chances[row] = leftover(chances[row], draft.distributions.matrix((starts + accepted)[part][rejected]))
        following[part] = rows.draw(chances, uniforms[last[part]])

    ends = np.cumsum(accepted + 1)
    tokens = np.empty(int(accepted.sum()) + requests, np.int64)
    tokens[ends - 1] = following
    kept = np.flatnonzero(stays)
    tokens[np.arange(len(kept)) + owner[kept]] = draft.ids[kept]
    return Verified(target.home.put(tokens), accepted, draft.lengths.copy())


def _check(draft: Draft, target: Distributions) -> None:
    made = draft.distributions
    if target.home != made.home:
        raise DTypeError(f"draft and target must be of one library and device, got {made.home} and {target.home}")
    if target.vocabulary != made.vocabulary:
        raise ShapeError(f"draft and target must have one vocabulary, got {made.vocabulary} and {target.vocabulary}")
    rows_wanted = len(draft.ids) + draft.requests
    if target.rows != rows_wanted:
        raise ShapeError(
            f"target must have {rows_wanted} rows, one for each drafted token and one more for each request, "
            f"got {target.rows}"
        )
