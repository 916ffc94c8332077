"""What a tensor is, judged by its name: keys or values, of which layer, and which preset suits it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from lynxq.params import Params

Kind = Literal["key", "value"]

_WORDS: Mapping[str, Kind] = {"key": "key", "keys": "key", "value": "value", "values": "value"}
_LETTERS: Mapping[str, Kind] = {"k": "key", "v": "value"}

#: A run of lower-case letters with or without its capital, a run of capitals that ends before such a word, or
#: digits: "keyCache0" is key, Cache, 0 and "KVCache" is KV, Cache.
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")

#: A number behind a word for a layer, with at most one separator between.
_LAYER = re.compile(r"(?:^|[^a-z])(?:layers?|blocks?|blk|h)[^a-z0-9]?([0-9]+)", re.IGNORECASE)
#: A number that touches no letter.
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")


def kind_of(name: str) -> Kind | None:
    """Tell from a tensor's name whether it holds keys or values.

    The name is split at everything that is not a letter or a digit, between letters and digits, and at
    capitals. Then, first for the words key, keys, value and values, and if these say nothing for the letters k
    and v:

    * a key part directly followed by a value part names the pair, not one of the two, and does not count:
      ``past_key_values.3.key`` holds keys;
    * a letter that touches a digit does not count: ``v2`` is a version and ``128k`` a length;
    * if all parts that still count agree, that is the answer.

    Parameters
    ----------
    name : str

    Returns
    -------
    {"key", "value"} or None
        None if no part counts (``kv_cache``), or both kinds do.

    Examples
    --------
    >>> from lynxq.naming import kind_of
    >>> kind_of("layer.0.key"), kind_of("model.layers.7.self_attn.v_proj"), kind_of("past_key_values.3.value")
    ('key', 'value', 'value')
    >>> kind_of("kv_cache.0"), kind_of("monkey"), kind_of("deepseek_v2.latent")
    (None, None, None)
    """
    parts = list(_parts(name))
    for vocabulary in (_WORDS, _LETTERS):
        kinds = set(_single([vocabulary.get(part) for part in parts]))
        if kinds:
            return kinds.pop() if len(kinds) == 1 else None
    return None


def layer_of(name: str) -> int | None:
    """Tell from a tensor's name which layer it belongs to.

    The number that follows the word layer, layers, block, blocks, blk or h; if there is none, the only number in the
    name that touches no letter.

    Parameters
    ----------
    name : str

    Returns
    -------
    int or None
        None if the name has no such number, or several.

    Examples
    --------
    >>> from lynxq.naming import layer_of
    >>> layer_of("model.layers.7.v_proj"), layer_of("past_key_values.3.value"), layer_of("deepseek_v2.latent")
    (7, 3, None)
    """
    numbers = {int(number) for number in _LAYER.findall(name) or _NUMBER.findall(name)}
    return numbers.pop() if len(numbers) == 1 else None


def preset_for(kind: Kind | None) -> Params:
    """The preset that we recommend for a kind of tensor.

    Parameters
    ----------
    kind : {"key", "value"} or None
        As :func:`kind_of` gives it.

    Returns
    -------
    Params
        ``Params.values()`` for values. ``Params.keys()`` for keys and for what is not known: it does well on
        values too, while the values preset does badly on keys.

    Examples
    --------
    >>> from lynxq.naming import kind_of, preset_for
    >>> preset_for(kind_of("layer.0.value")).axis
    'channel'
    >>> preset_for(None) == preset_for("key")
    True
    """
    return Params.values() if kind == "value" else Params.keys()


def _parts(name: str) -> Iterator[str]:
    """The parts of a name in lower case, without single letters that touch a digit."""
    for match in _PART.finditer(name):
        around = name[max(match.start() - 1, 0) : match.start()] + name[match.end() : match.end() + 1]
        if len(match.group()) > 1 or not any(character.isdigit() for character in around):
            yield match.group().lower()


def _single(kinds: list[Kind | None]) -> Iterator[Kind]:
    """The kinds named by single parts: a key followed directly by a value is a pair, and is left out."""
    position = 0
    while position < len(kinds):
        kind = kinds[position]
        if kinds[position : position + 2] == ["key", "value"]:
            position += 1
        elif kind is not None:
            yield kind
        position += 1
