"""encode, decode_anchor, decode_full: check the arguments, pick a backend, run it."""

from __future__ import annotations

from typing import Any

from lynxq import backends, devices, dtypes
from lynxq.arguments import instance
from lynxq.arrays import Array
from lynxq.encoded import Encoded
from lynxq.errors import DTypeError, NonFiniteError, ShapeError
from lynxq.layout import Layout, Tier
from lynxq.params import Params
from lynxq.threads import thread_count


def encode(
    x: Array,
    params: Params | None = None,
    *,
    token_axis: int,
    first_token: int = 0,
    head_dim: int | None = None,
    valid_tokens: int | None = None,
    backend: str | None = None,
    threads: int | None = None,
    out: Encoded | None = None,
    check: bool = True,
) -> Encoded:
    """Code a tensor of keys or values into an anchor and a residual stream.

    Implements Algorithm 1 of the paper (arXiv 2607.01831) with its gaps closed as on the algorithm page.

    Parameters
    ----------
    x : numpy array, torch tensor or cupy array, shape (outer…, tokens, inner…)
        float32, float16 or bfloat16, with any strides; it is not copied as a whole. All values must be finite.
    params : Params, optional
        ``Params.keys()`` by default.
    token_axis : int
        The axis of tokens. Axes before it are independent of each other; axes after it are channels, and
        the last one of these is the head.
    first_token : int
        Position of the first token in its sequence. Sink tokens are those of the sequence's beginning.
    head_dim : int, optional
        Where heads end if the last axis holds several of them; it must divide that axis.
    valid_tokens : int, optional
        Tokens that hold values. What follows them is never read and decodes to zero.
    backend : str, optional
        Name of a backend; the best one that runs here by default. It changes speed, never bytes.
    threads : int, optional
        How many threads may work; ``LYNXQ_THREADS``, or else one for each processor, by default. It changes
        speed, never bytes. Small tensors take fewer.
    out : Encoded, optional
        An earlier result with streams of the same sizes, whose buffers are to be reused. If the call fails
        they are unchanged.
    check : bool
        Whether to look for NaN and infinity first in an array on a GPU, which reads it once more and waits for
        the result; without it the call only queues one kernel on the caller's current stream. The codes of runs
        that hold such values are then unspecified, and nothing else is affected. On the CPU the check always runs.

    Returns
    -------
    Encoded
        Its streams are arrays of the same library as `x`.

    Raises
    ------
    DTypeError, ShapeError, ParamsError
        If an argument does not fit.
    NonFiniteError
        If a valid value is NaN or infinite, unless it is on a GPU and `check` is off.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> encoded = lynxq.encode(keys, token_axis=0)
    >>> lynxq.decode_full(encoded).shape
    (512, 2, 64)
    """
    params = Params.keys() if params is None else params
    instance("params", params, Params, DTypeError)
    source = devices.as_raw(x)
    layout = Layout.of(
        params,
        source.raw.shape,
        source.dtype,
        token_axis=token_axis,
        head_dim=head_dim,
        first_token=first_token,
        valid_tokens=valid_tokens,
    )
    engine, count = backends.get_for(x, backend), thread_count(threads)
    anchor, residual = stream_buffers(layout, x, source.raw, out)
    found = None
    if check or not devices.on_device(x):
        found = engine.first_nonfinite(layout, source.raw, threads=count)
    if found is not None:
        raise NonFiniteError(*found)
    streams = devices.as_bytes(anchor, "anchor"), devices.as_bytes(residual, "residual")
    engine.encode(layout, source.raw, *streams, threads=count)
    return Encoded(layout, anchor, residual)


def stream_buffers(layout: Layout, like: Array, raw: Any, out: Encoded | None) -> tuple[Array, Array]:
    """Both streams' memory: new and of the library and device of `like`, or that of an earlier result."""
    sizes = layout.stream_size("anchor"), layout.stream_size("residual")
    if out is None:
        return devices.empty_bytes(sizes[0], like), devices.empty_bytes(sizes[1], like)
    instance("out", out, Encoded, DTypeError)
    library = devices.library_of(like)
    if out.framework != library or out.residual is None:
        raise DTypeError(f"out must be an Encoded with both streams as {library} arrays")
    streams = devices.as_bytes(out.anchor, "anchor"), devices.as_bytes(out.residual, "residual")
    if (streams[0].size, streams[1].size) != sizes:
        raise ShapeError(f"out must have streams of {sizes} bytes, got {(streams[0].size, streams[1].size)}")
    for stream in streams:
        if not devices.writable(stream):
            raise DTypeError("the streams of out must be writable")
        if not devices.same_device(stream, raw):
            raise DTypeError("the streams of out must be on the device of the input")
        if devices.may_share_memory(stream, raw):
            raise ShapeError("out must not share memory with the input")
    if devices.may_share_memory(*streams):
        raise ShapeError("the streams of out must not share memory with each other")
    return out.anchor, out.residual


def decode_anchor(
    encoded: Encoded,
    *,
    dtype: object = None,
    out: Array | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Array:
    """Reconstruct a tensor from its anchor stream alone.

    Parameters
    ----------
    encoded : Encoded
        With or without a residual stream; it is not read.
    dtype : str or dtype, optional
        Of the result: that of `out`, or that of the encoded tensor by default. Values beyond its largest
        finite one become that one.
    out : array, optional
        Array of the tensor's shape and of the same library as the streams, with any strides, to write into.
        If the call fails it is unchanged.
    backend : str, optional
        Name of a backend; the best one that runs here by default. It changes speed, never bits.
    threads : int, optional
        How many threads may work, as for :func:`encode`.

    Returns
    -------
    array, shape ``encoded.shape``
        `out`, or a new numpy array or torch tensor. Every value lies within the range of its run.

    Raises
    ------
    DTypeError, ShapeError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> near = lynxq.decode_anchor(lynxq.encode(keys, token_axis=0))
    >>> bool(np.abs(near - keys).max() < 0.4)
    True
    """
    return decode(encoded, "anchor", dtype=dtype, out=out, backend=backend, threads=threads)


def decode_full(
    encoded: Encoded,
    *,
    dtype: object = None,
    out: Array | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Array:
    """Reconstruct a tensor from both streams.

    Parameters
    ----------
    encoded : Encoded
        With its residual stream.
    dtype, out, backend, threads
        As for :func:`decode_anchor`; `out` may hold the anchor decode, which is then overwritten.

    Returns
    -------
    array, shape ``encoded.shape``

    Raises
    ------
    MissingResidualError
        If there is no residual stream.
    DTypeError, ShapeError
        If an argument does not fit.

    Examples
    --------
    >>> import numpy as np, lynxq
    >>> keys = np.random.default_rng(0).standard_normal((512, 2, 64), dtype=np.float32)
    >>> close = lynxq.decode_full(lynxq.encode(keys, token_axis=0))
    >>> bool(np.abs(close - keys).max() < 0.03)
    True
    """
    return decode(encoded, "full", dtype=dtype, out=out, backend=backend, threads=threads)


def decode(
    encoded: Encoded,
    tier: Tier,
    *,
    dtype: object = None,
    out: Array | None = None,
    backend: str | None = None,
    threads: int | None = None,
) -> Array:
    """What `decode_anchor` and `decode_full` are, for those within lynxq who hold the tier in a variable."""
    instance("encoded", encoded, Encoded, DTypeError)
    anchor = devices.as_bytes(encoded.anchor, "anchor")
    stream = encoded.residual_for(tier)
    residual = None if stream is None else devices.as_bytes(stream, "residual")
    engine, count = backends.get_for(encoded.anchor, backend), thread_count(threads)
    wanted = None if dtype is None else dtypes.named(dtype)
    if out is None:
        out = devices.empty(encoded.shape, wanted or encoded.layout.dtype, encoded.anchor)
    target = devices.as_output(out, encoded.shape, encoded.framework, wanted)
    if not devices.same_device(target.raw, anchor):
        raise DTypeError("out must be on the device of the encoded streams")
    if any(devices.may_share_memory(target.raw, data) for data in (anchor, residual) if data is not None):
        raise ShapeError("out must not share memory with the encoded streams")
    engine.decode(encoded.layout, anchor, residual, target.raw, target.dtype, threads=count)
    return out
