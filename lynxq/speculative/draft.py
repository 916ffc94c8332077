"""`Draft`: drafted tokens together with the distributions that they were drawn from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lynxq.arguments import instance, integer, shown
from lynxq.arrays import Array
from lynxq.errors import DistributionError, DTypeError, ShapeError
from lynxq.speculative import rows
from lynxq.speculative.distributions import Distributions
from lynxq.speculative.rows import Integers


class Draft:
    """Drafted tokens of a batch, and what each was drawn from; immutable.

    The acceptance rule needs the probability that the drafter gave to a token *and* the whole distribution it came
    from, for what replaces it. So there is no way to make a draft of tokens alone. :class:`Drafting` records both
    as it draws.

    Parameters
    ----------
    tokens : array of integers, shape (N,)
        Tokens of all requests, one request after the other, in the order in which they were drafted.
    distributions : Distributions
        N rows: what each token was drawn from, after temperature and masks. A drafter without randomness has
        ``Distributions.certain(tokens, vocabulary)``, or logits with ``temperature=0``.
    lengths : iterable of int, length B
        Tokens of each request, summing to N; 0 is allowed.

    Raises
    ------
    DistributionError
        If a token has probability 0 in its distribution: it was drawn from something else.
    DTypeError, ShapeError, ParamsError
        If an argument is of another type, or they do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import Distributions, Draft
    >>> q = Distributions.from_probabilities(np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]))
    >>> Draft(np.array([1, 0, 1]), q, lengths=[2, 1])
    Draft(requests=2, tokens=3, vocabulary=2)
    >>> Draft(np.array([1, 1, 1]), q, lengths=[2, 1])
    Traceback (most recent call last):
        ...
    lynxq.errors.DistributionError: a drafted token must come from its row, but token 1 of row 1 has probability 0
    """

    __slots__ = ("chances", "distributions", "ids", "lengths")

    def __init__(self, tokens: Array, distributions: Distributions, lengths: Iterable[int]) -> None:
        instance("distributions", distributions, Distributions, DTypeError)
        self.lengths = _lengths(lengths)
        self.distributions = distributions
        self.ids, home = rows.token_ids(tokens, distributions.rows, distributions.vocabulary)
        if home != distributions.home:
            raise DTypeError(
                f"tokens and distributions must be of one library and device, got {home} and {distributions.home}"
            )
        if self.lengths.sum() != len(self.ids):
            raise ShapeError(f"lengths must sum to the {len(self.ids)} tokens, got a sum of {self.lengths.sum()}")
        self.chances = distributions.of_tokens(self.ids, np.arange(len(self.ids)))
        if not (self.chances > 0).all():
            row = int(np.argmin(self.chances))
            raise DistributionError(
                f"a drafted token must come from its row, but token {self.ids[row]} of row {row} has probability 0"
            )

    @property
    def tokens(self) -> Array:
        """The tokens as int64, in the caller's library and on its device."""
        return self.distributions.home.put(self.ids)

    @property
    def requests(self) -> int:
        """B, the number of requests."""
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Draft(requests={self.requests}, tokens={len(self.ids)}, vocabulary={self.distributions.vocabulary})"


class Drafting:
    """Draws draft tokens step by step and keeps what they were drawn from.

    Parameters
    ----------
    requests : int
        B, the requests of the batch.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import Distributions, Drafting
    >>> rng = np.random.default_rng(0)
    >>> drafting = Drafting(2)
    >>> uniform = np.zeros((2, 8), np.float32)
    >>> first = drafting.draw(Distributions.from_logits(uniform), rng)  # a token of each request
    >>> second = drafting.draw(Distributions.from_logits(uniform[:1]), rng, requests=[1])  # request 0 is done
    >>> drafting.finish().lengths.tolist()
    [1, 2]
    """

    def __init__(self, requests: int) -> None:
        self._requests = integer("requests", requests, 0, 1 << 31)
        self._steps: list[tuple[Integers, Integers, Distributions]] = []

    def draw(self, distributions: Distributions, random: object, *, requests: Iterable[int] | None = None) -> Array:
        """Draw the next token of some requests.

        Parameters
        ----------
        distributions : Distributions
            One row for each of `requests`.
        random : numpy Generator, torch Generator, or array of float64
            As :meth:`Distributions.draw` takes it.
        requests : iterable of int, optional
            Numbers of the requests, each at most once; all by default.

        Returns
        -------
        array of int64, shape (rows,)

        Raises
        ------
        DTypeError, ShapeError, ParamsError
            If the arguments do not fit each other or the batch.
        """
        instance("distributions", distributions, Distributions, DTypeError)
        chosen = np.arange(self._requests) if requests is None else _requests(requests, self._requests)
        if len(chosen) != distributions.rows:
            raise ShapeError(f"distributions must have a row for each of {len(chosen)} requests, got {distributions}")
        tokens = distributions.draw(random)
        self._steps.append((chosen, rows.host(rows.view(tokens, "tokens")[0]), distributions))
        return tokens

    def finish(self) -> Draft:
        """The draft of all that was drawn.

        Raises
        ------
        DistributionError
            If steps differ in vocabulary, library or device, or some are of logits and some of probabilities.
        ShapeError
            If nothing was drawn.
        """
        if not self._steps:
            raise ShapeError("a draft needs at least one step, got none")
        owner = np.concatenate([step[0] for step in self._steps])
        order = np.argsort(owner, kind="stable")
        tokens = np.concatenate([step[1] for step in self._steps])[order]
        made = Distributions.concatenate([step[2] for step in self._steps], order)
        return Draft(made.home.put(tokens), made, np.bincount(owner, minlength=self._requests))


def _lengths(lengths: Iterable[int]) -> Integers:
    try:
        return np.array([integer("a length", length, 0, 1 << 48) for length in lengths], np.int64)
    except TypeError:
        raise ShapeError(f"lengths must be a sequence of integers, got {shown(lengths)}") from None


def _requests(requests: Iterable[int], count: int) -> Integers:
    chosen = [integer("a request", request, 0, count - 1) for request in requests]
    if len(set(chosen)) != len(chosen):
        raise ShapeError(f"a request must be named at most once in a step, got {shown(chosen)}")
    return np.array(chosen, np.int64)
