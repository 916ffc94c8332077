"""A passage: a text whose first tokens are a cache, to be replaced, and whose others tell what that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lynxq.arguments import integer
from lynxq.arrays import Array
from lynxq.errors import ShapeError
from lynxq.lab.caches import empty_cache, tensors_of
from lynxq.lab.models import LanguageModel


@dataclass(frozen=True, eq=False)
class Passage:
    """Tokens, and the exact cache of the first of them; made by :func:`prepare`.

    Attributes
    ----------
    model : LanguageModel
    name : str
        Name of the text, for tables.
    tokens : torch tensor of int64, shape (prefix + following,)
    prefix : int
        Tokens whose keys and values are in `tensors`.
    tensors : dict of str to torch tensor, shape (prefix, KV heads, head dim)
        What the model computed, rounded to bfloat16, as a cache is stored and sent. This is what "exact" means in the
        lab, so errors of a scheme are not mixed with those of the rounding.
    """

    model: LanguageModel
    name: str
    tokens: Array
    prefix: int
    tensors: Mapping[str, Array]

    @property
    def following(self) -> int:
        """Tokens after the prefix."""
        return len(self.tokens) - self.prefix

    def shortened(self, prefix: int) -> dict[str, Array]:
        """The tensors of a shorter prefix: later tokens do not change earlier ones.

        Returns
        -------
        dict of str to torch tensor, shape (prefix, KV heads, head dim)
            Views.

        Raises
        ------
        ShapeError
            If it is longer than the prefix of the passage, or empty.
        """
        length = integer("prefix", prefix, 1, self.prefix)
        return {name: tensor[:length] for name, tensor in self.tensors.items()}


def prepare(
    model: LanguageModel,
    text: str | Array,
    *,
    prefix: int = 1024,
    continuation: int = 512,
    start: int = 0,
    name: str = "text",
) -> Passage:
    """Run a model over the prefix of a text, once for all methods.

    Parameters
    ----------
    model : LanguageModel
    text : str or array of integers, shape (tokens,)
    prefix : int
        Tokens whose cache will be replaced.
    continuation : int
        Tokens behind them to be scored. One more token is needed, which the last of them predicts.
    start : int
        Tokens of the text to leave out at its beginning. What comes next is a sequence of its own.
    name : str
        Name of the text, for tables.

    Returns
    -------
    Passage

    Raises
    ------
    ShapeError
        If the text is too short, or the model has fewer positions.
    """
    begin = integer("start", start, 0, 1 << 48)
    length = integer("prefix", prefix, 1, 1 << 48) + integer("continuation", continuation, 0, 1 << 48) + 1
    model.check_length(prefix, continuation)  # the last token is only predicted
    tokens = model.tokens(text)[begin : begin + length]
    if len(tokens) < length:
        raise ShapeError(
            f"a text must have {length} tokens for a prefix of {prefix} and a continuation of {continuation}, "
            f"got {len(tokens)}"
        )
    cache = empty_cache()
    model.forward(tokens[None, :prefix], cache, keep=1)
    return Passage(model, name, tokens, prefix, tensors_of(cache, dtype="bfloat16"))
