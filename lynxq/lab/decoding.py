"""Greedy and sampled decoding of a batch from caches of unequal lengths, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lynxq.arrays import Array
from lynxq.lab import libraries
from lynxq.lab.caches import cache_of, padding_mask
from lynxq.lab.models import LanguageModel
from lynxq.speculative import Distributions, Draft, Drafting


def draft(
    model: LanguageModel,
    caches: Sequence[Mapping[str, Array]],
    first: Array,
    count: int,
    *,
    temperature: float = 0.0,
    random: object = None,
) -> Draft:
    """Decode tokens of a batch, and keep what they were drawn from.

    Parameters
    ----------
    model : LanguageModel
    caches : sequence of mapping of str to torch tensor, shape (tokens, KV heads, head dim)
        The cache of each row, of any lengths.
    first : torch tensor of int64, shape (rows,)
        The token that follows each cache, and is known.
    count : int
        Tokens to decode.
    temperature : float
        0 takes the most probable token.
    random : numpy Generator, torch Generator, optional
        Where random numbers come from; not needed if the temperature is 0.

    Returns
    -------
    Draft
        `count` tokens of each row.

    Raises
    ------
    ShapeError
        If the model has too few positions for the longest row.
    """
    torch = libraries.torch()
    lengths = [len(tensors["layer.0.key"]) for tensors in caches]
    model.check_length(max(lengths), count)
    cache = cache_of(model, *caches, reserve=count)
    drafting = Drafting(len(caches))
    uniforms = torch.zeros(len(caches), dtype=torch.float64).numpy()  # without effect where all is certain
    ids = first
    for step in range(count):
        logits = _forward(model, cache, lengths, step, ids[:, None], keep=1)[:, 0]
        rows = Distributions.from_logits(logits.cpu(), temperature=temperature)
        ids = drafting.draw(rows, uniforms if temperature == 0 else random)
    return drafting.finish()


def logits_of(model: LanguageModel, caches: Sequence[Mapping[str, Array]], tokens: Array) -> Array:
    """Logits of given tokens behind caches of unequal lengths, in one pass.

    Parameters
    ----------
    model : LanguageModel
    caches : sequence of mapping of str to torch tensor, shape (tokens, KV heads, head dim)
        The cache of each row.
    tokens : torch tensor of int64, shape (rows, T)

    Returns
    -------
    torch tensor of float32, shape (rows, T, V), on the model's device
        Of the token after each one.
    """
    lengths = [len(tensors["layer.0.key"]) for tensors in caches]
    cache = cache_of(model, *caches, reserve=tokens.shape[1])
    return _forward(model, cache, lengths, 0, tokens, keep=0)


def _forward(model: LanguageModel, cache: object, lengths: list[int], done: int, ids: Array, *, keep: int) -> Array:
    if len(set(lengths)) == 1:
        return model.forward(ids, cache, keep=keep)
    torch = libraries.torch()
    positions = torch.tensor(lengths)[:, None] + done + torch.arange(ids.shape[1])
    mask = padding_mask(lengths, done + ids.shape[1])
    return model.forward(ids, cache, keep=keep, positions=positions, mask=mask)
