"""`Lookup`: tokens to propose from a reference text, such as the rejected rest of a draft."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from lynxq.arguments import integer, shown
from lynxq.errors import DTypeError, ParamsError

#: Proposed tokens for each one that the text and the reference agree in.
_GROWTH = 4
_MOST = 1 << 31


class Lookup:
    """Proposes how a text goes on, from a reference that it resembles (prompt lookup decoding).

    A draft that was rejected early usually agrees with the final text again after a few tokens. So its rest is a
    reference: where the last tokens of the text occur in it, what follows there is proposed. A pass over the last token
    and these verifies them, by the rule of :func:`lynxq.speculative.verify` with ``Distributions.certain``.

    The place is that of the longest n-gram that the text ends with; of several, the one nearest to where the reference
    would be if it had gone on in step since the last match. Four times as many tokens are proposed as agree there,
    more as long as they turn out right. Where less than `least` agree nothing is proposed, and after each proposal of
    which no token was right one more has to: a text that has nothing to do with the reference costs next to nothing.
    Proposals are a function of the reference and the text alone. Each token of the text takes time in proportion to
    the reference.

    Parameters
    ----------
    reference : iterable of int
    most : int
        Tokens of a proposal, at most.
    least : int
        Tokens that must agree. The default is for processors on which a pass of a few tokens takes as long as two of
        one token, so that a proposal must be right to pay. Where it takes as long as one, 1 pays more.

    Raises
    ------
    ParamsError
        If `most` is no integer from 0, or `least` none from 1; also from `propose`, for a limit that is no integer.
    DTypeError
        If the reference, or a text, is not an iterable of integers.

    Notes
    -----
    Apoorv Saxena: Prompt Lookup Decoding, 2023. Yang et al.: Inference with Reference: Lossless Acceleration of Large
    Language Models, 2023, arXiv 2304.04487. There the reference is the prompt or a retrieved document.

    Examples
    --------
    >>> from lynxq.speculative import Lookup
    >>> lookup = Lookup([12, 5, 6, 7, 8, 9, 1, 2], least=2)
    >>> lookup.extend([11, 5])  # 11 is in place of 12, and nowhere in the reference
    >>> lookup.propose(64)
    []
    >>> lookup.extend([6])
    >>> lookup.propose(4)
    [7, 8, 9, 1]
    >>> lookup.extend([7, 8, 9, 1, 2])  # all were right, and one more token came of the pass
    >>> lookup.propose(64)
    []
    """

    def __init__(self, reference: Iterable[int], *, most: int = 16, least: int = 3) -> None:
        self._reference = tuple(_tokens("the reference", reference))
        self._most = integer("most", most, 0, _MOST, ParamsError)
        self._least = integer("least", least, 1, _MOST, ParamsError)
        self._agreeing = [0] * (len(self._reference) + 1)  # tokens before each place that the text ends with, too
        self._in_step = 0
        self._proposal: list[int] = []
        self._wrong = 0

    def propose(self, limit: int) -> list[int]:
        """The tokens that may come next, at most `limit`; none if there is nothing to go by."""
        limit = integer("limit", limit, -_MOST, _MOST, ParamsError)
        self._proposal = []
        places = range(len(self._reference))
        if not places or limit <= 0:
            return []
        place = max(places, key=lambda one: (self._agreeing[one], -abs(one - self._in_step)))
        agreeing = self._agreeing[place]
        if agreeing >= self._least + self._wrong:
            self._in_step = place
            self._proposal = list(self._reference[place : place + min(_GROWTH * agreeing, self._most, limit)])
        return list(self._proposal)

    def extend(self, tokens: Iterable[int]) -> None:
        """Go on with the text: what came of the last proposal, or of a pass without one."""
        tokens = _tokens("the text", tokens)
        if self._proposal and tokens:
            self._wrong = 0 if tokens[0] == self._proposal[0] else self._wrong + 1
        self._proposal = []
        for token in tokens:
            before = zip(self._agreeing, self._reference, strict=False)
            self._agreeing = [0, *(count + 1 if token == other else 0 for count, other in before)]
        self._in_step += len(tokens)


def _tokens(what: str, tokens: Iterable[int]) -> list[int]:
    """Tokens as Python's integers, whatever integers they are: an equal token of another type is the same token."""
    try:
        return [operator.index(token) for token in tokens]
    except TypeError:
        raise DTypeError(f"{what} must be an iterable of integers, got {shown(tokens)}") from None
