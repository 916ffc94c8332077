"""Reading containers: `open` (lazy), `load` (everything), `describe` (no data)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lynxq.arguments import choice, shown
from lynxq.arrays import Array, Library
from lynxq.container.expect import Expect
from lynxq.container.reader import Reader
from lynxq.container.source import Readable
from lynxq.errors import ParamsError
from lynxq.layout import Tier


def open(  # noqa: A001 - the name that users of containers expect
    source: Readable,
    *,
    residual: Readable | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> Reader:
    """Open a container; only its headers are read.

    Parameters
    ----------
    source : path, URL, bytes-like or seekable binary file object
        A whole container, any prefix of one that covers the anchors, or the anchor file of a split one. A path
        is mapped into memory: the file must not be truncated while it is open. A URL such as ``s3://bucket/kv.lynx``,
        or what ``fsspec.open`` returns for one, is read in ranges (extra ``remote``): the file must not be replaced
        while it is open.
    residual : path, URL, bytes-like or binary file object, optional
        The residual file of a split container.
    expect : Expect, optional
        What the container must be.
    allow_trailing : bool
        Ignore what follows the last segment, as in the oversized buffers of some stores;
        ``Reader.consumed`` says where it begins.

    Returns
    -------
    Reader

    Raises
    ------
    ContainerError
        One of its subclasses for everything that can be wrong, see :mod:`lynxq.errors`.
    OSError
        If a file cannot be opened.

    Examples
    --------
    >>> import io, numpy as np, lynxq
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> file = io.BytesIO()
    >>> lynxq.save(file, {"layer.0.key": lynxq.encode(keys, token_axis=0)}, metadata={"model": "toy"})
    >>> with lynxq.open(file) as reader:
    ...     reader["layer.0.key"].decode("anchor", tokens=(100, 164)).shape
    (64, 2, 64)
    """
    return Reader(source, residual=residual, expect=expect, allow_trailing=allow_trailing)


def load(
    source: Readable,
    *,
    tier: Tier = "full",
    names: Iterable[str] | None = None,
    residual: Readable | None = None,
    framework: Library = "numpy",
    dtype: object = None,
    backend: str | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> dict[str, Array]:
    """Decode the tensors of a container.

    Parameters
    ----------
    source, residual, expect, allow_trailing
        As for :func:`open`.
    tier : {"full", "anchor"}
        With "anchor" no residual byte is read.
    names : iterable of str, optional
        The tensors to decode; all by default.
    framework : {"numpy", "torch"}
        Library of the results.
    dtype, backend
        As for :func:`lynxq.decode_anchor`.

    Returns
    -------
    dict of str to array

    Raises
    ------
    ContainerError
        One of its subclasses for everything that can be wrong, see :mod:`lynxq.errors`.
    MissingResidualError
        If the full tier is asked for, and there is no residual stream.
    """
    with open(source, residual=residual, expect=expect, allow_trailing=allow_trailing) as reader:
        if isinstance(names, str):
            raise ParamsError(f"names must be a collection of names, got the string {shown(names)}")
        chosen = list(reader if names is None else names)
        choice("tier", tier, Tier)
        found = {}
        for batch in reader.batches(chosen, tier):
            with reader.fetched(batch, tier):
                for name in batch:
                    found[name] = reader[name].decode(tier, dtype=dtype, framework=framework, backend=backend)
        return found


def describe(
    source: Readable,
    *,
    residual: Readable | None = None,
    expect: Expect | None = None,
    allow_trailing: bool = False,
) -> dict[str, Any]:
    """What a container holds, as JSON types, without reading or decoding any data.

    Parameters
    ----------
    source, residual, expect, allow_trailing
        As for :func:`open`.

    Returns
    -------
    dict
        Format version, sizes, metadata, and for every tensor its shape, dtype, parameters and sizes in bytes.
    """
    with open(source, residual=residual, expect=expect, allow_trailing=allow_trailing) as reader:
        return reader.describe()
