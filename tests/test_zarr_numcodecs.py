"""The codec of numcodecs: by itself, in arrays of zarr format 2, and behind references to ordinary containers."""

import json
import pickle
import subprocess
import sys

import fsspec
import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore

import lynxq
from lynxq import Params
from lynxq.errors import (
    DTypeError,
    IdentityError,
    MissingResidualError,
    NotLynxError,
    ParamsError,
    ShapeError,
    TruncatedError,
    WriterError,
)
from lynxq.integrations.numcodecs import Lynxq
from tests.containers import KEYS, anchors_end, coded, decoded, stored, two

CODEC = Lynxq(params=KEYS, token_axis=1)


def values(dtype=np.float32, shape=(2, 50, 6)):
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_encode_gives_a_container_and_decode_its_array(dtype):
    x = values(dtype)
    data = CODEC.encode(x)
    encoded = lynxq.encode(x, KEYS, token_axis=1)
    wanted = lynxq.decode_full(encoded)
    assert lynxq.load(data)["chunk"].tobytes() == wanted.tobytes()
    for buffer in (data, bytes(data), np.frombuffer(data, np.uint8), np.frombuffer(data, np.uint64)):
        found = CODEC.decode(buffer)
        assert (found.shape, found.dtype) == (x.shape, x.dtype)
        assert found.tobytes() == wanted.tobytes()
    for out in (np.empty_like(x), bytearray(x.nbytes)):
        CODEC.decode(data, out=out)
        assert (out if isinstance(out, bytearray) else out.tobytes()) == wanted.tobytes()
    near = Lynxq(token_axis=1, tier="anchor")
    for part in (data, bytes(data)[: anchors_end(bytes(data))]):
        assert near.decode(part).tobytes() == lynxq.decode_anchor(encoded).tobytes()


def test_bits_of_bfloat16():
    codec = Lynxq(params=KEYS, token_axis=1, view="bfloat16")
    x = values(ml_dtypes.bfloat16)
    found = codec.decode(codec.encode(x.view(np.uint16)))
    assert found.dtype == np.uint16
    assert found.tobytes() == lynxq.decode_full(lynxq.encode(x, KEYS, token_axis=1)).tobytes()
    with pytest.raises(IdentityError, match="bfloat16"):
        codec.decode(CODEC.encode(values()))


def test_configurations():
    codec = Lynxq(params=Params.values(), token_axis=1, head_dim=3, view="bfloat16", tier="anchor")
    config = codec.get_config()
    assert config == {
        "id": "lynxq",
        "params": Params.values().to_dict(),
        "token_axis": 1,
        "head_dim": 3,
        "view": "bfloat16",
        "tier": "anchor",
    }
    for again in (numcodecs.get_codec(json.loads(json.dumps(config))), pickle.loads(pickle.dumps(codec))):  # noqa: S301
        assert type(again) is Lynxq
        assert again == codec != CODEC
        assert repr(again) == repr(codec)
    assert CODEC.get_config() == {"id": "lynxq", "params": KEYS.to_dict(), "token_axis": 1}
    assert repr(CODEC) == f"Lynxq(params={KEYS.to_dict()!r}, token_axis=1)"
    for wrong in (
        {},
        {"token_axis": "1"},
        {"token_axis": 1, "level": 3},
        {"token_axis": 1, "params": []},
        {"token_axis": 1, "view": []},
    ):
        with pytest.raises(ParamsError):
            numcodecs.get_codec({"id": "lynxq", **wrong})


def test_numcodecs_finds_the_codec_without_being_told():
    data = bytes(CODEC.encode(values()))
    code = """
import sys, numcodecs
codec = numcodecs.get_codec({"id": "lynxq", "token_axis": 1})
sys.stdout.buffer.write(codec.decode(sys.stdin.buffer.read()).tobytes())
"""
    result = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == CODEC.decode(data).tobytes()


def test_what_cannot_be_encoded_or_decoded():
    x = values()
    for wrong, error in (
        (x.tobytes(), DTypeError),
        (x.astype(np.float64), DTypeError),
        (x.astype(">f4"), DTypeError),
        (x.view(np.uint32), DTypeError),
        (np.asfortranarray(x), ShapeError),
        (x[:, ::2], ShapeError),
        (x.ravel(), ShapeError),
    ):
        with pytest.raises(error):
            CODEC.encode(wrong)
    with pytest.raises(WriterError, match="'anchor' cannot encode"):
        Lynxq(token_axis=1, tier="anchor").encode(x)
    data = bytes(CODEC.encode(x))
    with pytest.raises(ShapeError, match="out must be in C order"):
        CODEC.decode(data, out=np.asfortranarray(x))
    for dtype, others in (("float16", ["bfloat16", "int16", "uint16"]), ("float32", ["int32", "float64", "float16"])):
        coded_array = CODEC.encode(values(dtype))
        for other in others:
            out = np.zeros(x.shape, other)
            with pytest.raises(DTypeError, match=f"out must be of dtype {dtype} like the chunk, got {other}"):
                CODEC.decode(coded_array, out=out)
            assert not out.any()
    for wrong, error in (
        (b"", TruncatedError),
        (b"x" * 100, NotLynxError),
        (data[: anchors_end(data)], TruncatedError),
        (stored(two()), IdentityError),
        (lynxq_bytes(lynxq.encode(x, KEYS, token_axis=1).anchor_only()), MissingResidualError),
    ):
        with pytest.raises(error):
            CODEC.decode(wrong)


def lynxq_bytes(encoded):
    return stored({"x": encoded})


@pytest.mark.parametrize("where", ["compressor", "filter"])
def test_arrays_of_zarr_format_2(where):
    x = values()
    codecs = {"compressors": CODEC} if where == "compressor" else {"filters": [CODEC], "compressors": None}
    store = {}
    array = zarr.create_array(store, shape=x.shape, chunks=(1, 25, 6), dtype="f4", zarr_format=2, **codecs)
    array[:] = x
    again = zarr.open_array(store, mode="r")
    for layer in range(2):
        for begin in (0, 25):
            part = slice(layer, layer + 1), slice(begin, begin + 25)
            wanted = lynxq.decode_full(lynxq.encode(x[part], KEYS, token_axis=1))
            assert again[part].tobytes() == wanted.tobytes()
    near = zarr.create_array(
        {}, shape=x.shape, chunks=(1, 25, 6), dtype="f4", zarr_format=2, order="F", compressors=CODEC
    )
    with pytest.raises(ShapeError, match="C order"):
        near[:] = x


@pytest.mark.parametrize("tier", ["full", "anchor"])
def test_references_to_containers(tier, tmp_path):
    """What kerchunk writes: an array whose chunks are ranges of files, here of ordinary containers."""
    parts = [coded(20, seed, first_token=20 * seed, channels=4) for seed in range(3)]
    metadata = {
        "zarr_format": 2,
        "shape": [60, 4],
        "chunks": [20, 4],
        "dtype": "<f4",
        "order": "C",
        "fill_value": 0,
        "filters": None,
        "compressor": Lynxq(token_axis=0, tier=tier).get_config(),
    }
    references = {".zarray": json.dumps(metadata)}
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.lynx"
        lynxq.save(path, {"layer.0.key": part})
        end = lynxq.describe(path)["anchor_end"] if tier == "anchor" else path.stat().st_size
        references[f"{number}.0"] = [f"file://{path}", 0, end]
    fs = fsspec.filesystem("reference", fo=references, remote_protocol="file", asynchronous=True)
    array = zarr.open_array(FsspecStore(fs, read_only=True, path=""), mode="r", zarr_format=2)
    wanted = np.concatenate([decoded(part, tier) for part in parts])
    assert array[:].tobytes() == wanted.tobytes()
