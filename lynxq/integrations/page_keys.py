"""Under which keys pages are stored: a hash of everything that their values depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


def root(scheme: str, identity: Mapping[str, object]) -> bytes:
    """What tells caches apart that must not be mixed up; the beginning of a chain of keys.

    Parameters
    ----------
    scheme : str
        Name and version of what is behind the keys: to be changed with whatever changes that.
    identity : mapping of str to JSON types
        Model, layout of its cache and parameters of the codec.

    Returns
    -------
    bytes
        SHA-256.
    """
    return hashlib.sha256(json.dumps([scheme, dict(identity)], sort_keys=True).encode()).digest()


def chain(start: bytes, pages: Iterable[tuple[Sequence[int], object]]) -> list[str]:
    """Keys of the pages of a sequence; a key depends on its page and on all pages before it.

    Two sequences share the keys of the pages that they have in common, and no others, so that the longest stored
    prefix is found by walking along the keys until one is missing.

    Parameters
    ----------
    start : bytes
        As :func:`root` makes it.
    pages : iterable of (token ids, further)
        Token ids of a page, and whatever else its values depend on, such as images and an adapter; `further` is
        distinguished by its ``repr``.

    Returns
    -------
    list of str
        Hexadecimal, one for each page.

    Examples
    --------
    >>> from lynxq.integrations.page_keys import chain, root
    >>> start = root("example-1", {"model": "toy"})
    >>> first, second = chain(start, [([1, 2], None), ([3, 4], None)])
    >>> chain(start, [([1, 2], None), ([3, 5], None)])[0] == first
    True
    """
    keys, before = [], start
    for tokens, further in pages:
        extra = repr(further).encode()
        digest = hashlib.sha256(before + len(extra).to_bytes(8, "little") + extra)
        digest.update(np.asarray(tokens, dtype="<i8").tobytes())
        before = digest.digest()
        keys.append(before.hex())
    return keys
