"""A page of a paged cache as a container, and back into the blocks of another cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import lynxq
from lynxq.container import Expect
from lynxq.container.source import Readable
from lynxq.encoded import Encoded
from lynxq.errors import ShapeError
from lynxq.integrations.vllm.geometry import Geometry, Part
from lynxq.paged import decode_anchor_paged, decode_full_paged, encode_paged

#: Layers' caches by name: torch tensors, logical (blocks, heads, slots, channels) views with any strides.
Caches = Mapping[str, Any]


def check_caches(geometry: Geometry, caches: Caches) -> None:
    """Raise `ShapeError` unless the caches are those that the geometry describes."""
    for layer in geometry.layers:
        if layer not in caches:
            raise ShapeError(f"the engine registered no cache for {layer!r}")
        cache = caches[layer]
        dtype = str(getattr(cache, "dtype", None)).removeprefix("torch.")
        shape = tuple(getattr(cache, "shape", ()))
        if dtype != geometry.dtype or len(shape) != 4 or (shape[1], shape[3]) != (geometry.heads, geometry.channels):
            raise ShapeError(
                f"the cache of {layer!r} must be {geometry.dtype} (blocks, {geometry.heads}, slots, "
                f"{geometry.channels}), got {dtype} {shape}"
            )
        if not shape[2] or geometry.block_size % shape[2]:
            raise ShapeError(f"blocks of {layer!r} must divide {geometry.block_size} tokens, got {shape[2]}")


def pack(
    geometry: Geometry, caches: Caches, blocks: Sequence[int], *, first_token: int, metadata: Mapping[str, str]
) -> bytes:
    """Code the page that lies in some blocks of every layer, as a container.

    Parameters
    ----------
    geometry : Geometry
    caches : mapping of str to torch tensor
        Not changed.
    blocks : sequence of int
        Blocks of the scheduler, in the order of their tokens; a page of them.
    first_token : int
        Position of the page's first token in its sequence.
    metadata : mapping of str to str
        Of the container.

    Returns
    -------
    bytes

    Raises
    ------
    NonFiniteError
        If the page holds NaN or infinity.
    """
    tensors: dict[str, Encoded] = {}
    for layer in geometry.layers:
        cache = caches[layer]
        table = _table(geometry, cache, blocks)
        for part in geometry.parts:
            encoded = encode_paged(
                _channels(cache, part), table, part.params, tokens=geometry.page_tokens, first_token=first_token
            )
            kept = encoded if geometry.tier == "full" else encoded.anchor_only()
            tensors[f"{layer}.{part.name}"] = kept.to_host()
    buffer = BytesIO()
    lynxq.save(buffer, tensors, metadata=metadata)
    return buffer.getvalue()


def unpack(geometry: Geometry, source: Readable, *, metadata: Mapping[str, str]) -> dict[str, Encoded]:
    """Read a page and check everything in it, before any cache is touched.

    Parameters
    ----------
    geometry : Geometry
    source : path, buffer or binary file
        A container that :func:`pack` made.
    metadata : mapping of str to str
        What the container must say of itself.

    Returns
    -------
    dict of str to Encoded

    Raises
    ------
    ContainerError
        If the container is damaged, or is not the one that is asked for.
    """
    expect = Expect(
        metadata=metadata,
        dtype=geometry.dtype,
        names=list(geometry.shapes),
        shapes=geometry.shapes,
        params=geometry.params,
    )
    with lynxq.open(source, expect=expect) as reader:
        return {name: tensor.encoded(geometry.tier) for name, tensor in reader.items()}


def scatter(
    geometry: Geometry, tensors: Mapping[str, Encoded], caches: Caches, blocks: Sequence[int], *, skip: int = 0
) -> None:
    """Decode a page, or a range of its blocks, into blocks of every layer.

    Parameters
    ----------
    geometry : Geometry
    tensors : mapping of str to Encoded
        As :func:`unpack` returns them.
    caches : mapping of str to torch tensor
        Nothing but the blocks is written.
    blocks : sequence of int
        Blocks of the scheduler that are to hold the page's blocks from `skip` on; there may be fewer than in a page.
    skip : int
        Blocks at the page's beginning that are not wanted.
    """
    for layer in geometry.layers:
        cache = caches[layer]
        for part in geometry.parts:
            encoded = _beside(tensors[f"{layer}.{part.name}"], cache)
            target = _channels(cache, part)
            if len(blocks) == geometry.page_blocks:
                _decode(geometry, encoded, target, _table(geometry, cache, blocks))
            else:
                _scatter_some(geometry, encoded, target, blocks, skip)


def _scatter_some(geometry: Geometry, encoded: Encoded, target: Any, blocks: Sequence[int], skip: int) -> None:
    """Blocks that are not wanted may belong to others, so the page is decoded elsewhere and copied from there."""
    table = _table(geometry, target, blocks).long()
    split = geometry.block_size // target.shape[2]
    count = geometry.page_blocks * split
    page = target.new_empty((count, *target.shape[1:]))
    _decode(geometry, encoded, page, _table(geometry, page, range(geometry.page_blocks)))
    target[table] = page[skip * split : skip * split + len(table)]


def _decode(geometry: Geometry, encoded: Encoded, target: Any, table: Any) -> None:
    decode = decode_full_paged if geometry.tier == "full" else decode_anchor_paged
    decode(encoded, target, table)


def _channels(cache: Any, part: Part) -> Any:
    return cache[..., part.start : part.stop]


def _table(geometry: Geometry, cache: Any, blocks: Sequence[int]) -> Any:
    """The block table of the cache: kernels may split a block of the scheduler into several of their own."""
    import torch

    split = geometry.block_size // cache.shape[2]
    table = torch.as_tensor(list(blocks), dtype=torch.int32).repeat_interleave(split) * split
    table += torch.arange(split, dtype=torch.int32).repeat(len(blocks))
    return table.to(cache.device)


def _beside(encoded: Encoded, cache: Any) -> Encoded:
    """Streams where the cache is."""
    there = encoded.to("torch")
    if cache.device.type == "cpu":
        return there
    residual = None if there.residual is None else there.residual.to(cache.device)
    return replace(there, anchor=there.anchor.to(cache.device), residual=residual)
