"""What the codec of zarr 3 stores in chunks and metadata, and what it leaves out."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import lynxq
from lynxq import Params
from lynxq.integrations.zarr import LynxqCodec, at_tier
from tests.containers import KEYS, VALUES
from tests.zarr_arrays import DTYPES, coded, create, stored, values


@pytest.mark.parametrize("params", [KEYS, VALUES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_are_containers_and_reads_are_decodes(dtype, params):
    x = values(dtype)
    array = create(dtype=dtype, params=params)
    array[:] = x
    wanted = coded(x, params)
    assert array[:].dtype == x.dtype
    assert array[:].tobytes() == wanted["full"].tobytes()
    assert at_tier(array, "anchor")[:].tobytes() == wanted["anchor"].tobytes()
    assert at_tier(at_tier(array, "anchor"), "full")[:].tobytes() == wanted["full"].tobytes()
    chunks = stored(array)
    assert len(chunks) == 2 * 4
    for layer in range(2):
        for number in range(4):
            begin = 32 * number
            tokens = min(32, 100 - begin)
            (found,) = lynxq.load(chunks[f"c/{layer}/{number}/0/0"]).items()
            assert found[0] == "chunk"
            assert found[1].shape == (1, tokens, 2, 6)
            assert found[1].tobytes() == wanted["full"][layer : layer + 1, begin : begin + tokens].tobytes()


def test_metadata_says_everything_and_nothing_else():
    codec = LynxqCodec(params=VALUES, token_axis=1, head_dim=3, tier="anchor")
    assert codec.to_dict() == {
        "name": "lynxq",
        "configuration": {"params": VALUES.to_dict(), "token_axis": 1, "head_dim": 3},
    }
    again = LynxqCodec.from_dict(json.loads(json.dumps(codec.to_dict())))
    assert again == codec.at_tier("full") != codec
    array = create(serializer=codec.at_tier("full"))
    text = array.store_path.store._store_dict["zarr.json"].to_bytes()
    assert json.loads(text)["codecs"] == [codec.to_dict()]
    assert pickle.loads(pickle.dumps(codec)) == codec  # noqa: S301 - our own
    for changed in ({"token_axis": 0}, {"head_dim": 6}, {"params": KEYS}, {"view": "bfloat16"}):
        assert LynxqCodec(**{"params": VALUES, "token_axis": 1, "head_dim": 3, **changed}) != again


def test_zarr_finds_the_codec_without_being_told(tmp_path):
    x = values()
    create(tmp_path / "kv.zarr")[:] = x
    code = f"""
import sys, zarr
assert "lynxq" not in sys.modules
array = zarr.open_array({str(tmp_path / "kv.zarr")!r}, mode="r")
sys.stdout.buffer.write(array[:].tobytes())
"""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == coded(x)["full"].tobytes()


def test_the_default_parameters_are_those_of_keys():
    assert LynxqCodec(token_axis=0).chunks.params == Params.keys()


def test_bits_of_bfloat16():
    x = values("bfloat16")
    array = create(dtype="uint16", serializer=LynxqCodec(params=KEYS, token_axis=1, view="bfloat16"))
    array[:] = x.view(np.uint16)
    for tier, wanted in coded(x).items():
        assert at_tier(array, tier)[:].tobytes() == wanted.tobytes()
    assert lynxq.describe(stored(array)["c/0/0/0/0"])["tensors"]["chunk"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("fill", [0.0, -1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_at_the_end_of_a_chunk_is_exact_and_widens_no_range(dtype, fill):
    x = values(dtype) + DTYPES[dtype](40)
    array = create(dtype=dtype, fill_value=fill)
    array[0, :37] = x[0, :37]
    assert sorted(stored(array)) == ["c/0/0/0/0", "c/0/1/0/0"]
    encoded = lynxq.encode(x[:1, 32:37], KEYS, token_axis=1)
    with lynxq.open(stored(array)["c/0/1/0/0"]) as reader:
        assert reader["chunk"].tokens == 5
        assert reader["chunk"].encoded().anchor.tobytes() == encoded.anchor.tobytes()
    for tier, decode in (("full", lynxq.decode_full), ("anchor", lynxq.decode_anchor)):
        read = at_tier(array, tier)
        assert read[:1, 32:37].tobytes() == decode(encoded).tobytes()
        empty = np.full((1, 27, 2, 6), fill, x.dtype)
        assert read[:1, 37:64].tobytes() == empty.tobytes()
        assert read[:1, 35:41, :, 3].tobytes() == np.concatenate([decode(encoded), empty], 1)[:, 3:9, :, 3].tobytes()
        assert read[:1, 50].tobytes() == empty[:, 0].tobytes()
        assert read[1, 99].tobytes() == empty[0, 0].tobytes()


def test_a_fill_value_between_tokens_is_stored():
    array = create()
    array[0, 20:30] = values()[0, 20:30]
    with lynxq.open(stored(array)["c/0/0/0/0"]) as reader:
        assert reader["chunk"].tokens == 30
    assert not array[0, :16].any()  # runs of one value are exact


def test_a_chunk_of_nothing_but_fill_can_be_stored():
    array = create(config={"write_empty_chunks": True})
    array[:] = 0
    assert len(stored(array)) == 8
    for tier in ("full", "anchor"):
        assert not at_tier(array, tier)[:].any()
        assert not at_tier(array, tier)[0, 3:5].any()
