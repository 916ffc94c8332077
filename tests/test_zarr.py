"""The codec of zarr 3, in zarr: what is stored, what is read of it, and how dask works on it."""

import io
import json
import pickle
import subprocess
import sys

import dask
import dask.array
import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import lynxq
from lynxq import Params
from lynxq.errors import (
    AnchorChecksumError,
    ContainerError,
    DTypeError,
    IdentityError,
    NonFiniteError,
    ParamsError,
    ResidualChecksumError,
    ShapeError,
    TruncatedError,
    WriterError,
)
from lynxq.integrations import zarr_bfloat16
from lynxq.integrations.zarr import LynxqCodec, at_tier
from tests.containers import KEYS, VALUES, anchors_end, frames, spans

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


class Recorded(WrapperStore):
    """A store that notes the ranges that are asked of it."""

    def __init__(self, store):
        super().__init__(store)
        self.requests = []

    async def get(self, key, prototype, byte_range=None):
        if "c/" in key:
            self.requests.append((key, None if byte_range is None else (byte_range.start, byte_range.end)))
        return await super().get(key, prototype, byte_range)


# --- what is stored --------------------------------------------------------------------------------


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


# --- what is not stored ----------------------------------------------------------------------------


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


# --- what is read ----------------------------------------------------------------------------------


def test_an_anchor_read_asks_for_no_residual_byte():
    array = create(Recorded(MemoryStore()), shape=(2, 512, 2, 6), chunks=(1, 256, 2, 6))
    array[:] = values(shape=array.shape)
    data = {key: value.to_bytes() for key, value in array.store_path.store._store._store_dict.items() if "c/" in key}
    requests = array.store_path.store.requests
    requests.clear()
    at_tier(array, "anchor")[:]
    assert sorted(requests) == sorted(
        (key, part)
        for key, each in data.items()
        for part in ((0, spans(each)[0].header), (spans(each)[0].header, anchors_end(each)))
    )
    requests.clear()
    array[:]
    assert sorted(requests) == [(key, None) for key in sorted(data)]
    for tier, streams in (("anchor", 1), ("full", 2)):
        requests.clear()
        at_tier(array, tier)[0, 300:301]
        (key, head), *pages = requests
        assert (key, head) == ("c/0/1/0/0", (0, spans(data[key])[0].header))
        wanted = [(each.begin, each.end) for each in frames(data[key]) if each.page == 44 // 8][:streams]
        assert sorted(pages) == [(key, each) for each in wanted]


def selections():
    """An integer or a slice for each axis; zarr has no negative steps."""

    def axis(length):
        slices = st.builds(slice, st.integers(0, length), st.integers(0, length), st.integers(1, 9))
        return st.one_of(st.integers(-length, length - 1), slices, st.just(slice(None)))

    return st.tuples(*map(axis, SHAPE))


READ = create()
READ[:] = values()
TIERS = {tier: (at_tier(READ, tier), wanted) for tier, wanted in coded(values()).items()}


@given(selection=selections(), tier=st.sampled_from(["full", "anchor"]))
def test_selections(selection, tier):
    array, wanted = TIERS[tier]
    assert np.array_equal(array[selection], wanted[selection])


@given(
    tokens=st.lists(st.integers(0, 99), min_size=1, max_size=9),
    other=st.integers(0, 5),
    mask=st.lists(st.booleans(), min_size=100, max_size=100),
    tier=st.sampled_from(["full", "anchor"]),
)
def test_advanced_selections(tokens, other, mask, tier):
    array, wanted = TIERS[tier]
    assert np.array_equal(array.oindex[1, tokens, :, other], wanted[1][tokens][:, :, other])
    assert np.array_equal(array.oindex[:, np.array(mask)], wanted[:, np.array(mask)])
    points = ([0] * len(tokens), tokens, [1] * len(tokens), [other] * len(tokens))
    assert np.array_equal(array.vindex[points], wanted[points])
    assert np.array_equal(array.blocks[1, 2], wanted[1:, 64:96])


def test_a_part_of_a_chunk_can_be_written():
    array = create()
    x = values()
    array[:] = x
    before = array[:]
    array[1, 40:44] = 7
    after = array[:]
    assert (after[1, 40:44] == 7).all()
    assert np.abs(after - before)[1, 32:40].max() < 1
    untouched = np.ones(SHAPE, bool)
    untouched[1, 32:64] = False
    assert after[untouched].tobytes() == before[untouched].tobytes()


def test_shards():
    x = values()
    array = create(shards=(2, 64, 2, 6))
    array[:] = x
    assert len(stored(array)) == 2
    for tier, wanted in coded(x).items():
        assert at_tier(array, tier)[:].tobytes() == wanted.tobytes()
        assert at_tier(array, tier)[1, 30:70].tobytes() == wanted[1, 30:70].tobytes()


def test_a_transposed_array():
    x = values()
    filters = [zarr.codecs.TransposeCodec(order=(1, 0, 2, 3))]
    array = create(filters=filters, serializer=LynxqCodec(params=KEYS, token_axis=0), shape=SHAPE)
    array[:] = x
    assert array[:].tobytes() == coded(x)["full"].tobytes()
    with pytest.raises(ParamsError, match="TransposeCodec"):
        at_tier(array, "anchor")


# --- what is refused -------------------------------------------------------------------------------


def test_an_array_at_the_anchor_tier_is_not_written_to():
    array = create()
    array[:] = values()
    before = stored(array)
    for selection in (slice(None), (0, 3), (slice(None), slice(0, 64))):
        with pytest.raises(WriterError, match="'anchor' cannot be written"):
            at_tier(array, "anchor")[selection] = 1
    assert stored(array) == before


def test_tiers_need_the_codec_alone():
    for more in ({"compressors": "auto"}, {"compressors": [ZstdCodec()]}, {"serializer": BytesCodec()}):
        with pytest.raises(ParamsError, match="only codec"):
            at_tier(create(**more), "anchor")
    with pytest.raises(ParamsError, match="only codec"):
        at_tier(zarr.create_array({}, shape=(4,), dtype="f4", zarr_format=2), "anchor")
    with pytest.raises(ParamsError, match="tier"):
        at_tier(create(), "residual")
    compressed = create(compressors=[ZstdCodec()])
    compressed[:] = values()
    assert compressed[:].tobytes() == coded(values())["full"].tobytes()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dtype": "float64"}, DTypeError),
        ({"dtype": "int8"}, DTypeError),
        ({"dtype": "uint16"}, DTypeError),
        ({"dtype": ">f4"}, DTypeError),
        ({"serializer": {"token_axis": 4}}, ShapeError),
        ({"serializer": {"token_axis": 1, "head_dim": 4}}, ShapeError),
        ({"serializer": {"token_axis": 1, "view": "bfloat16"}}, DTypeError),
        ({"serializer": {"token_axis": -1}}, ParamsError),
        ({"serializer": {"token_axis": 1.0}}, ParamsError),
        ({"serializer": {"token_axis": 1, "head_dim": 0}}, ParamsError),
        ({"serializer": {"token_axis": 1, "view": "float8"}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": 3}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": {"page": 7}}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": {"pages": 8}}}, ParamsError),
        ({"serializer": {"token_axis": 1, "tier": "near"}}, ParamsError),
    ],
)
def test_arrays_that_cannot_be_coded_are_refused_when_they_are_made(arguments, error):
    store = {}
    with pytest.raises(error):
        create(store, **{k: LynxqCodec(**v) if isinstance(v, dict) else v for k, v in arguments.items()})
    assert store == {}


@pytest.mark.parametrize(
    "data",
    [
        {"name": "lynxq"},
        {"name": "lynx", "configuration": {"token_axis": 1}},
        {"name": "lynxq", "configuration": {}},
        {"name": "lynxq", "configuration": 3},
        {"name": "lynxq", "configuration": {"token_axis": 1, "tier": "anchor"}},
        {"name": "lynxq", "configuration": {"token_axis": 1, "axis": 1}},
        {"name": "lynxq", "configuration": {"token_axis": 1, "params": {"alpha": -1}}},
    ],
)
def test_configurations_that_are_refused(data):
    with pytest.raises(ParamsError):
        LynxqCodec.from_dict(data)


def test_values_that_cannot_be_coded_are_not_stored():
    array = create()
    x = values()
    x[1, 70] = np.nan
    with pytest.raises(NonFiniteError):
        array[1, 64:96] = x[1, 64:96]
    assert stored(array) == {}


# --- damage ----------------------------------------------------------------------------------------


def reads(array):
    """What each kind of read says of a chunk."""
    found = {}
    for tier in ("anchor", "full"):
        for name, selection in (("whole", (0, slice(0, 32))), ("part", (0, slice(0, 1)))):
            try:
                at_tier(array, tier)[selection]
            except ContainerError as error:
                found[tier, name] = type(error)
    return found


def test_damage_is_found_where_it_is_read():
    array = create()
    array[:] = values()
    key = "c/0/0/0/0"
    data = stored(array)[key]
    everywhere = {(tier, name) for tier in ("anchor", "full") for name in ("whole", "part")}
    anchor, residual = (next(each for each in frames(data) if each.kind == kind) for kind in (0, 1))
    for at, error, where in (
        (40, None, everywhere),
        (anchor.payload, AnchorChecksumError, everywhere),
        (residual.payload, ResidualChecksumError, {("full", "whole"), ("full", "part")}),
        (len(data) - 1, ResidualChecksumError, {("full", "whole")}),
    ):
        damaged = bytearray(data)
        damaged[at] ^= 4
        put(array, key, bytes(damaged))
        found = reads(array)
        assert found.keys() == where
        assert error is None or set(found.values()) == {error}
    for size, where in (
        (0, everywhere),
        (63, everywhere),
        (100, everywhere),
        (anchors_end(data) - 1, everywhere - {("anchor", "part")}),
        (len(data) - 1, {("full", "whole")}),
    ):
        put(array, key, data[:size])
        assert reads(array) == dict.fromkeys(where, TruncatedError)


def test_other_containers_are_refused():
    array = create()
    array[:] = values()
    key = "c/0/0/0/0"
    x = values()[:1, :32]
    encoded = {
        "two": [lynxq.encode(x, KEYS, token_axis=1)] * 2,
        "tokens": [lynxq.encode(values()[:1, :33], KEYS, token_axis=1)],
        "axis": [lynxq.encode(x, KEYS, token_axis=0)],
        "outer": [lynxq.encode(values()[:, :32], KEYS, token_axis=1)],
        "inner": [lynxq.encode(x[..., :5], KEYS, token_axis=1)],
        "dtype": [lynxq.encode(x.astype(np.float16), KEYS, token_axis=1)],
        "none": [],
    }
    for what, tensors in encoded.items():
        file = io.BytesIO()
        lynxq.save(file, {f"{what} {number}": each for number, each in enumerate(tensors)})
        put(array, key, file.getvalue())
        assert set(reads(array).values()) == {IdentityError}
        assert len(reads(array)) == 4
    put(array, key, b"x" * 5000)
    assert len(reads(array)) == 4


def test_chunks_of_other_parameters_and_longer_headers_are_read():
    array = create()
    x = values()[:1, :32]
    params = Params(page=8, range_size=8, chunk=8, anchor_bits=6, residual_bits=2)
    encoded = lynxq.encode(x, params, token_axis=1)
    file = io.BytesIO()
    lynxq.save(file, {"a long name " * 10: encoded}, metadata={"from": "elsewhere"})
    put(array, "c/0/0/0/0", file.getvalue())
    for tier, decode in (("full", lynxq.decode_full), ("anchor", lynxq.decode_anchor)):
        assert at_tier(array, tier)[:1, :32].tobytes() == decode(encoded).tobytes()
        assert at_tier(array, tier)[:1, 9:12].tobytes() == decode(encoded)[:, 9:12].tobytes()


# --- dask ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "dtype", "tiers"),
    [
        ("threads", "float16", ["full", "anchor"]),
        ("threads", "bfloat16", ["full", "anchor"]),
        ("processes", "bfloat16", ["anchor"]),  # processes take seconds to start
    ],
)
def test_dask_writes_and_reads_in_parallel(scheduler, dtype, tiers, tmp_path):
    x = values(dtype)
    array = create(LocalStore(tmp_path / "kv.zarr"), dtype=dtype)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        dask.array.store(dask.array.from_array(x, chunks=CHUNKS), array, lock=False)
        wanted = coded(x)
        for tier in tiers:
            lazy = dask.array.from_array(at_tier(array, tier), chunks=CHUNKS)
            found = lazy[:, 20:90].compute()
            assert found.dtype == x.dtype
            assert found.tobytes() == wanted[tier][:, 20:90].tobytes()


# --- bfloat16 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (np.float32(1 / 3), float(ml_dtypes.bfloat16(1 / 3))),
        (ml_dtypes.bfloat16(-2), -2.0),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ("Infinity", "Infinity"),
        (np.uint16(0x7FC1).view(ml_dtypes.bfloat16), "0x7fc1"),
    ],
)
def test_fill_values_of_bfloat16(value, shown):
    dtype = zarr_bfloat16.BFloat16()
    scalar = dtype.cast_scalar(value)
    assert dtype.to_json_scalar(scalar, zarr_format=3) == shown
    again = dtype.from_json_scalar(shown, zarr_format=3)
    assert np.asarray(again).tobytes() == np.asarray(scalar).tobytes()
    store = {}
    array = zarr.create_array(store, shape=(3,), dtype="bfloat16", fill_value=value)
    metadata = json.loads(store["zarr.json"].to_bytes())
    assert (metadata["data_type"], metadata["fill_value"]) == ("bfloat16", shown)
    assert zarr.open_array(store)[:].tobytes() == np.asarray(scalar).tobytes() * 3
    array[1:] = [1, 2]
    assert zarr.open_array(store)[1:].tolist() == [1, 2]


@pytest.mark.parametrize("value", [None, "0.5", "nan", b"1", 1j, True, [1, 2], object()])
def test_what_is_no_bfloat16(value):
    dtype = zarr_bfloat16.BFloat16()
    assert not dtype._check_scalar(value)
    with pytest.raises(TypeError, match="made of a number"):
        dtype.cast_scalar(value)


def test_other_types_are_not_bfloat16():
    for other in (np.float16, np.uint16, ml_dtypes.float8_e4m3fn, "V2"):
        with pytest.raises(ValueError, match="must be"):
            zarr_bfloat16.BFloat16.from_native_dtype(np.dtype(other))
    with pytest.raises(ValueError, match="zarr format 2"):
        zarr.create_array({}, shape=(3,), dtype="bfloat16", zarr_format=2)
    zarr_bfloat16.register()
    assert zarr.dtype.data_type_registry.get("bfloat16") is zarr_bfloat16.BFloat16


def test_only_arrays_of_zarr_have_tiers():
    with pytest.raises(ParamsError, match=r"must be a zarr\.Array, got ndarray"):
        at_tier(np.zeros(3), "anchor")
    with pytest.raises(ParamsError, match="view must be"):
        LynxqCodec(token_axis=0, view=[])
