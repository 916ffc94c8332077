"""Arrays of zarr with the codec, the bytes of their chunks, and what the library makes of the same values."""

import ml_dtypes
import numpy as np
import zarr

import lynxq
from lynxq.integrations.zarr import LynxqCodec
from tests.containers import KEYS

SHAPE, CHUNKS = (2, 100, 2, 6), (1, 32, 2, 6)
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def values(dtype="float32", shape=SHAPE, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return x.astype(DTYPES[dtype])


def create(store=None, *, dtype="float32", params=KEYS, shape=SHAPE, chunks=CHUNKS, fill_value=0, **more):
    arguments = {"serializer": LynxqCodec(params=params, token_axis=1), "compressors": None, **more}
    return zarr.create_array(
        {} if store is None else store, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill_value, **arguments
    )


def stored(array):
    """The bytes of all chunks by their keys."""
    store = array.store_path.store
    found = {key: store._store_dict[key] for key in sorted(store._store_dict) if "c/" in key}
    return {key: value.to_bytes() for key, value in found.items()}


def put(array, key, data):
    array.store_path.store._store_dict[key] = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(data)


def coded(x, params=KEYS, chunks=CHUNKS):
    """What the library makes of an array chunk by chunk: the decodes of both tiers."""
    decodes = {"full": np.empty_like(x), "anchor": np.empty_like(x)}
    for layer in range(x.shape[0]):
        for begin in range(0, x.shape[1], chunks[1]):
            part = slice(layer, layer + 1), slice(begin, begin + chunks[1])
            encoded = lynxq.encode(x[part], params, token_axis=1)
            decodes["full"][part] = lynxq.decode_full(encoded)
            decodes["anchor"][part] = lynxq.decode_anchor(encoded)
    return decodes
