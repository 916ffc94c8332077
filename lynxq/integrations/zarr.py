"""The codec ``lynxq`` for arrays of zarr 3: each chunk is a container, and anchors can be read without residuals.

zarr finds it through an entry point. Importing this module is needed to make codecs, and for arrays of bfloat16: it
makes that data type known to zarr.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lynxq.arguments import choice, shown
from lynxq.container.ranges import HeldSource, merged
from lynxq.container.reader import Reader
from lynxq.errors import ParamsError, SourceError, TruncatedError, WriterError
from lynxq.format.header import PREAMBLE_SIZE, Preamble
from lynxq.integrations import zarr_bfloat16
from lynxq.integrations.zarr_chunks import NAME, Chunks
from lynxq.layout import Layout, Tier
from lynxq.libraries import absent
from lynxq.params import Params

try:
    from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
except ImportError as error:
    ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin = (absent("zarr", "lynxq[zarr]", error) for _ in range(2))
else:
    zarr_bfloat16.register()

if TYPE_CHECKING:
    import zarr
    from zarr.abc.store import ByteGetter
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer


@dataclass(frozen=True)
class LynxqCodec(ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin):
    """Codes chunks of float32, float16 or bfloat16 as containers; the serializer of an array.

    It must be the only codec of the array, ``compressors=None``: compressors gain nothing, and hide the anchors.

    Parameters
    ----------
    params : Params, or a mapping of its fields
        ``Params.keys()`` by default.
    token_axis : int
        The axis of tokens. Chunks should have whole pages along it, a multiple of ``params.page``, and span all
        channels of a head. Every chunk is coded by itself, so each keeps the first ``params.sink_tokens`` verbatim.
    head_dim : int, optional
        Where heads end if the last axis holds several of them.
    view : {"bfloat16"}, optional
        For arrays of uint16 that hold the bits of bfloat16.
    tier : {"full", "anchor"}
        What is read. It is not part of the metadata: use :func:`at_tier`.

    Raises
    ------
    MissingLibraryError
        If zarr is not installed.
    ParamsError
        If a value is not one of these.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> from lynxq.integrations.zarr import LynxqCodec, at_tier
    >>> array = zarr.create_array(
    ...     {}, shape=(1024, 2, 64), chunks=(512, 2, 64), dtype="float32",
    ...     serializer=LynxqCodec(token_axis=0), compressors=None,
    ... )
    >>> array[:] = np.random.default_rng(0).standard_normal(array.shape, dtype=np.float32)
    >>> full, near = array[:600], at_tier(array, "anchor")[:600]
    >>> bool(0 < np.abs(full - near).max() < 0.5)
    True
    """

    is_fixed_size = False

    chunks: Chunks
    tier: Tier

    def __init__(
        self,
        *,
        token_axis: int,
        params: Params | None = None,
        head_dim: int | None = None,
        view: str | None = None,
        tier: Tier = "full",
    ) -> None:
        choice("tier", tier, Tier)
        params = Params.keys() if params is None else params
        object.__setattr__(self, "chunks", Chunks(params, token_axis, head_dim, view))
        object.__setattr__(self, "tier", tier)

    def at_tier(self, tier: Tier) -> Self:
        """The same codec, reading at a tier."""
        chunks = self.chunks
        return type(self)(
            params=chunks.params, token_axis=chunks.token_axis, head_dim=chunks.head_dim, view=chunks.view, tier=tier
        )

    # --- metadata ----------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The codec of an array's metadata; raises `ParamsError` for a configuration that is not one of this codec."""
        config = data.get("configuration", {})
        if data.get("name") != NAME or not isinstance(config, dict):
            raise ParamsError(f"a codec must be {NAME!r} with a configuration, got {shown(data)}")
        Chunks.check_config(config)
        return cls(**config)

    def to_dict(self) -> dict[str, Any]:
        """The codec as it stands in an array's metadata."""
        return {"name": NAME, "configuration": self.chunks.to_config()}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Refuse arrays that cannot be coded, before anything is written."""
        self.chunks.layout(getattr(chunk_grid, "chunk_shape", shape), dtype.to_native_dtype())

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Not known: tokens that hold nothing but the fill value are not stored."""
        raise NotImplementedError

    # --- whole chunks ------------------------------------------------------------------------------

    def _layout(self, chunk_spec: ArraySpec) -> Layout:
        return self.chunks.layout(chunk_spec.shape, chunk_spec.dtype.to_native_dtype())

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        if self.tier != "full":
            raise WriterError(f"an array that is read at the tier {self.tier!r} cannot be written to")
        chunk, fill = chunk_data.as_numpy_array(), _fill(chunk_spec)
        data = await asyncio.to_thread(self.chunks.encode, chunk, fill)
        return chunk_spec.prototype.buffer.from_bytes(data)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return await asyncio.to_thread(self._decode, Reader(chunk_data.as_numpy_array()), chunk_spec, None)

    def _decode(self, reader: Reader, chunk_spec: ArraySpec, tokens: tuple[int, int] | None) -> NDBuffer:
        with reader:
            found = self.chunks.decode(reader, self._layout(chunk_spec), self.tier, tokens, _fill(chunk_spec))
        return chunk_spec.prototype.nd_buffer.from_numpy_array(found)

    # --- parts of chunks ---------------------------------------------------------------------------

    async def _decode_partial_single(
        self, byte_getter: ByteGetter, selection: Any, chunk_spec: ArraySpec
    ) -> NDBuffer | None:
        layout = self._layout(chunk_spec)
        tokens, within = _tokens(selection, layout)
        if self.tier == "full" and tokens == (0, layout.tokens):
            whole = await byte_getter.get(chunk_spec.prototype)
            return None if whole is None else (await self._decode_single(whole, chunk_spec))[within]
        reader = await self._reader(_Getter(byte_getter, chunk_spec.prototype), layout, tokens)
        if reader is None:
            return None
        return (await asyncio.to_thread(self._decode, reader, chunk_spec, tokens))[within]

    async def _reader(self, getter: _Getter, layout: Layout, tokens: tuple[int, int]) -> Reader | None:
        """A chunk of which what a decode reads has been fetched in two steps: the header, then all of the pages."""
        head = await getter.get(0, self.chunks.header_size(layout))
        if head is None:
            return None
        preamble = Preamble.unpack(head[:PREAMBLE_SIZE])
        if preamble.header_size > len(head):  # written with other parameters, or cut off
            head = await getter.exactly(0, preamble.header_size)
        source = HeldSource(preamble.segment_size)
        source.hold(0, head)
        reader = Reader(source)
        wanted = merged(each for _, each in reader.ranges(reader, self.tier, tokens))
        parts = await asyncio.gather(*(getter.exactly(*each) for each in wanted))
        for (begin, _), part in zip(wanted, parts, strict=True):
            source.hold(begin, part)
        return reader


@dataclass(frozen=True)
class _Getter:
    """Ranges of one chunk."""

    source: ByteGetter
    prototype: BufferPrototype

    async def get(self, begin: int, end: int) -> np.ndarray[Any, Any] | None:
        """The bytes of a range, fewer where the chunk ends; None if there is no chunk."""
        from zarr.abc.store import RangeByteRequest

        part = await self.source.get(self.prototype, RangeByteRequest(begin, end))
        if part is None:
            return None
        if len(part) > end - begin:
            raise SourceError(f"a store must give ranges of chunks, got {len(part)} for {end - begin} bytes")
        data: np.ndarray[Any, Any] = part.as_numpy_array()
        return data

    async def exactly(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """The bytes of a range; raises `TruncatedError` if they are not all there."""
        part = await self.get(begin, end)
        if part is None or len(part) < end - begin:
            raise TruncatedError("a chunk", end, begin if part is None else begin + len(part))
        return part


def _fill(chunk_spec: ArraySpec) -> np.ndarray[Any, Any]:
    return np.asarray(chunk_spec.fill_value, chunk_spec.dtype.to_native_dtype())


def _tokens(selection: Any, layout: Layout) -> tuple[tuple[int, int], Any]:
    """The tokens of a chunk that a selection touches, and the selection within these tokens."""
    axis = layout.token_axis
    whole = (0, layout.tokens), selection
    if not isinstance(selection, tuple) or len(selection) != len(layout.shape):
        return whole
    chosen = selection[axis]
    if isinstance(chosen, slice):
        steps = range(layout.tokens)[chosen]
        if not steps or steps.step < 0:
            return whole
        low, high = steps[0], steps[-1] + 1
        within: Any = slice(0, high - low, steps.step)
    elif isinstance(chosen, int | np.integer) and chosen >= 0:
        low, high, within = int(chosen), int(chosen) + 1, 0
    elif isinstance(chosen, np.ndarray) and chosen.dtype.kind in "iu" and chosen.size and chosen.min() >= 0:
        low, high = int(chosen.min()), int(chosen.max()) + 1
        within = chosen - low
    else:
        return whole
    return (low, high), (*selection[:axis], within, *selection[axis + 1 :])


def at_tier(array: zarr.Array[Any], tier: Tier) -> zarr.Array[Any]:
    """The same array, read at a tier; what is stored does not change.

    At the tier "anchor" a read asks the store for the headers of chunks and for the anchors of the pages that it
    touches, not for residuals, and the array cannot be written to. Arrays keep their tier when they are pickled, so
    dask may read them in other threads and processes.

    Parameters
    ----------
    array : zarr.Array
        Of zarr format 3, with `LynxqCodec` as its only codec, or as the only one within shards. zarr reads an inner
        chunk of a shard as a whole before it asks the codec: there anchors save work but no bytes.
    tier : {"full", "anchor"}

    Returns
    -------
    zarr.Array

    Raises
    ------
    ParamsError
        If other codecs stand around the codec, there is none, or it is no array of zarr.
    """
    from zarr import Array
    from zarr.core.array import AsyncArray

    choice("tier", tier, Tier)
    if not isinstance(array, Array):
        raise ParamsError(f"array must be a zarr.Array, got {type(array).__name__}")
    inner = array.async_array
    codecs = _at_tier(getattr(inner.metadata, "codecs", ()), tier)
    changed = AsyncArray(replace(inner.metadata, codecs=codecs), inner.store_path, inner.config)
    return Array(changed)


def _at_tier(codecs: Any, tier: Tier) -> tuple[Any, ...]:
    from zarr.codecs import ShardingCodec

    if len(codecs) == 1 and isinstance(codecs[0], LynxqCodec):
        return (codecs[0].at_tier(tier),)
    if len(codecs) == 1 and isinstance(codecs[0], ShardingCodec):
        shards = codecs[0]
        return (
            ShardingCodec(
                chunk_shape=shards.chunk_shape,
                codecs=_at_tier(shards.codecs, tier),
                index_codecs=shards.index_codecs,
                index_location=shards.index_location,
            ),
        )
    found = [type(codec).__name__ for codec in codecs]
    raise ParamsError(f"an array has tiers if LynxqCodec is its only codec (compressors=None), got {shown(found)}")
