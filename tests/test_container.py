"""Containers: what is stored comes back, bit for bit, and only what is asked for is read."""

import io
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Expect, Params, testing
from lynxq.errors import (
    DTypeError,
    IdentityError,
    MissingResidualError,
    MissingTensorError,
    ParamsError,
    ShapeError,
    TrailingBytesError,
    TruncatedError,
)
from tests.containers import (
    KEYS,
    METADATA,
    VALUES,
    anchors_end,
    coded,
    decoded,
    error_of,
    frames,
    readings,
    stored,
    two,
)

TIERS = ("anchor", "full")


def as_torch(x):
    copy = np.array(x, order="C")
    if copy.dtype.name == "bfloat16":
        return torch.from_numpy(copy.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def raw(x):
    """The bytes of an array of either library."""
    return x.contiguous().view(torch.uint8).numpy().tobytes() if isinstance(x, torch.Tensor) else x.tobytes()


texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def contents(draw):
    """Named encoded tensors of either library, all with a residual or all without."""
    whole = draw(st.booleans())
    tensors = {}
    for name in draw(st.lists(names, max_size=3, unique=True)):
        x, axis = draw(testing.tensors(max_elements=200))
        x = as_torch(x) if draw(st.booleans()) else x
        first = draw(st.sampled_from([0, 3, 1000]))
        encoded = lynxq.encode(x, draw(testing.params()), token_axis=axis, first_token=first)
        tensors[name] = encoded if whole else encoded.anchor_only()
    return tensors


@given(contents(), st.dictionaries(texts, texts, max_size=3), st.sampled_from(["numpy", "torch"]))
def test_round_trip(tensors, metadata, framework):
    data = stored(tensors, metadata)
    assert stored(tensors, metadata) == data
    with lynxq.open(data) as reader:
        assert list(reader) == list(tensors)
        assert (reader.metadata, reader.consumed, reader.complete) == (metadata, len(data), True)
        assert reader.verify() == []
        assert json.loads(json.dumps(reader.describe())) == reader.describe()
        for name, encoded in tensors.items():
            assert reader[name].layout == encoded.layout
            assert reader[name].shape == encoded.shape
    for tier in TIERS if all(each.residual is not None for each in tensors.values()) else TIERS[:1]:
        found = lynxq.load(data, tier=tier, framework=framework)
        assert list(found) == list(tensors)
        for name, encoded in tensors.items():
            wanted = decoded(encoded, tier)
            assert str(found[name].dtype).removeprefix("torch.") == encoded.dtype
            assert isinstance(found[name], torch.Tensor if framework == "torch" else np.ndarray)
            assert tuple(found[name].shape) == encoded.shape
            assert raw(found[name]) == raw(wanted)


@given(testing.tensors(max_elements=200, memory=False), testing.params(), st.data())
def test_every_token_range_is_the_slice(sample, params, data):
    x, axis = sample
    tokens = x.shape[axis]
    at = data.draw(st.integers(0, tokens))
    parts = [x.take(range(at), axis), x.take(range(at, tokens), axis)] if at else [x]
    segments = []
    for number, part in enumerate(parts):
        segments.append(lynxq.encode(part, params, token_axis=axis, first_token=7 + at * number))
    reader = lynxq.open(b"".join(stored({"x": each}) for each in segments))
    for tier in TIERS:
        wanted = np.concatenate([decoded(each, tier) for each in segments], axis)
        assert reader["x"].decode(tier).tobytes() == wanted.tobytes()
        for _ in range(4):
            start = data.draw(st.integers(0, tokens))
            stop = data.draw(st.integers(start, tokens))
            found = reader["x"].decode(tier, tokens=(start, stop), framework="torch")
            slices = wanted.take(range(start, stop), axis)
            assert tuple(found.shape) == slices.shape
            assert raw(found) == slices.tobytes()


@pytest.mark.parametrize("shape", [(20, 0), (0, 20)])
def test_token_ranges_of_a_tensor_without_values(shape):
    axis = shape.index(20)
    reader = lynxq.open(stored({"x": lynxq.encode(np.zeros(shape, np.float32), KEYS, token_axis=axis)}))
    for start in range(21):
        for stop in range(start, 21):
            assert reader["x"].decode(tokens=(start, stop)).shape[axis] == stop - start


def test_token_ranges_are_checked():
    tensor = lynxq.open(stored(two()))["k"]
    for tokens in ((-1, 2), (0, 21), (3, 2), (21, 21)):
        with pytest.raises(ShapeError, match=f"got {tokens[0]} to {tokens[1]}"):
            tensor.decode(tokens=tokens)
    for tokens in (3, (1,), (1, 2, 3), (0.5, 3), ("a", "b"), "ab", (None, 3)):
        with pytest.raises(ShapeError, match="tokens must be a pair of integers"):
            tensor.decode(tokens=tokens)
    for tier in ("", "residual", None):
        with pytest.raises(ValueError, match="tier must be"):
            tensor.decode(tier)


def test_order_is_kept_and_tells():
    tensors = two()
    assert list(lynxq.load(stored(dict(reversed(tensors.items()))))) == ["v", "k"]
    assert stored(dict(reversed(tensors.items()))) != stored(tensors)


def test_order_of_metadata_does_not_tell():
    assert stored(two(), dict(reversed(METADATA.items()))) == stored(two(), METADATA)


def test_every_kind_of_params_and_dtype():
    tensors = {}
    for params in (KEYS, VALUES, Params(), Params.values(), Params.paper(), Params.keys(alpha=0.0)):
        for dtype in ("float32", "float16", "bfloat16"):
            tensors[f"{len(tensors)}"] = coded(40, params=params, dtype=dtype)
    with lynxq.open(stored(tensors)) as reader:
        for name, encoded in tensors.items():
            assert (reader[name].params, reader[name].dtype) == (encoded.params, encoded.dtype)
            assert reader[name].decode(dtype="float16").tobytes() == decoded(encoded, "full", dtype="float16").tobytes()


def test_nothing():
    for tensors in ({}, {"empty": lynxq.encode(np.zeros((3, 0, 2), np.float32), token_axis=0)}):
        data = stored(tensors, {})
        assert frames(data) == []
        assert {name: x.shape for name, x in lynxq.load(data).items()} == dict.fromkeys(tensors, (3, 0, 2))
        assert error_of(lynxq.open, data[:-1]) is TruncatedError


def test_anchor_only(tmp_path):
    whole = two()
    tensors = {name: encoded.anchor_only() for name, encoded in whole.items()}
    data = stored(tensors)
    assert len(data) < len(stored(whole))
    with lynxq.open(data) as reader:
        assert not reader["k"].has_residual
        assert reader.complete
        assert reader["k"].decode("anchor").tobytes() == decoded(whole["k"], "anchor").tobytes()
        for call in (reader["k"].decode, reader["k"].encoded, lambda: reader["k"].page("residual", 0)):
            with pytest.raises(MissingResidualError, match="'k'"):
                call()
    with pytest.raises(MissingResidualError):
        lynxq.load(data)
    for mixed in ({"k": whole["k"], "v": tensors["v"]}, {"k": tensors["k"], "v": whole["v"]}):
        with pytest.raises(MissingResidualError):
            lynxq.save(io.BytesIO(), mixed)
    with pytest.raises(MissingResidualError):
        lynxq.save_split(tmp_path / "a", tmp_path / "r", tensors)
    assert list(tmp_path.iterdir()) == []


def test_only_valid_tokens_are_stored():
    x = testing.contents("normal", (20, 2), "float32")
    garbage = np.concatenate([x, np.full((12, 2), np.nan, np.float32)])
    padded = lynxq.encode(garbage, KEYS, token_axis=0, valid_tokens=20)
    assert stored({"k": padded}) == stored({"k": lynxq.encode(x, KEYS, token_axis=0)})
    none = lynxq.encode(garbage, KEYS, token_axis=0, valid_tokens=0)
    assert lynxq.load(stored({"k": none}))["k"].shape == (0, 2)


def test_only_valid_tokens_are_stored_of_a_tensor_without_values():
    encoded = lynxq.encode(np.zeros((20, 0), np.float32), KEYS, token_axis=0, valid_tokens=5)
    assert lynxq.load(stored({"k": encoded}))["k"].shape == (5, 0)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("tier", TIERS)
def test_out(library, tier):
    tensors = two()
    reader = lynxq.open(stored(tensors))
    room = np.full((41, 5), np.nan, np.float32)
    room = torch.from_numpy(room) if library == "torch" else room
    out = room[1:41:2, 1:5:2]
    assert reader["k"].decode(tier, out=out) is out
    assert raw(out) == decoded(tensors["k"], tier).tobytes()
    assert np.isnan(np.asarray(room)).sum() == 41 * 5 - 40  # what lies between is as it was
    half = np.empty((5, 2), np.float16)
    assert reader["k"].decode(tier, tokens=(3, 8), out=half) is half
    assert half.tobytes() == decoded(tensors["k"], tier, dtype="float16")[3:8].tobytes()


def test_out_is_checked_before_anything_is_read():
    reader = lynxq.open(stored(two())[: anchors_end(stored(two()))])
    frozen = np.empty((20, 2), np.float32)
    frozen.setflags(write=False)
    for out, error in (
        (np.empty((20, 3), np.float32), ShapeError),
        (np.empty((20, 2), np.float64), DTypeError),
        (np.empty((20, 2), ">f4"), DTypeError),
        (np.broadcast_to(np.empty(2, np.float32), (20, 2)), DTypeError),
        (frozen, DTypeError),
        ([[0.0, 0.0]] * 20, DTypeError),
    ):
        with pytest.raises(error):
            reader["k"].decode("full", out=out)
    with pytest.raises(DTypeError, match="framework must be"):
        reader["k"].decode("anchor", framework="jax")
    with pytest.raises(DTypeError, match="dtype must be"):
        reader["k"].decode("anchor", dtype="float64")


@pytest.mark.parametrize("tokens", [(1, 5), (1, 8), (1, 20)])
def test_out_of_another_dtype_than_the_one_asked_for(tokens):
    reader = lynxq.open(stored({"k": coded(8)}) + stored({"k": coded(12, first_token=8)}))
    out = np.full((tokens[1] - tokens[0], 2), np.nan, np.float16)
    with pytest.raises(DTypeError, match="out must have dtype float32, got float16"):
        reader["k"].decode(tokens=tokens, dtype="float32", out=out)
    assert np.isnan(out).all()


def test_trailing_bytes():
    tensors = two()
    data = stored(tensors)
    for tail in (b"\0", b"\x89LYN", bytes(64), b"x" * 100):
        assert error_of(lynxq.open, data + tail) is TrailingBytesError
        with lynxq.open(data + tail, allow_trailing=True) as reader:
            assert (reader.consumed, reader.complete, reader.segments) == (len(data), True, 1)
        assert lynxq.describe(data + tail, allow_trailing=True) == lynxq.describe(data)
        assert set(readings(data + tail, [tensors], allow_trailing=True).values()) == {None}
        assert list(lynxq.load(data + tail, allow_trailing=True)) == ["k", "v"]


def test_every_prefix_that_covers_the_anchors_is_usable():
    tensors = two()
    data = stored(tensors)
    ends = {each.page: each.end for each in frames(data) if (each.kind, each.tensor) == (1, 0)}
    near, full = decoded(tensors["k"], "anchor"), decoded(tensors["k"], "full")
    for size in range(anchors_end(data), len(data)):
        with lynxq.open(data[:size]) as reader:
            assert (reader.complete, reader.consumed, reader.anchor_end) == (False, len(data), anchors_end(data))
            assert reader.describe()["complete"] is False
            assert reader["k"].decode("anchor").tobytes() == near.tobytes()
            assert error_of(reader["v"].decode) is TruncatedError
            for page, end in ends.items():
                tokens = 8 * page, min(8 * page + 8, 20)
                if size >= end:
                    assert reader["k"].decode(tokens=tokens).tobytes() == full[slice(*tokens)].tobytes()
                else:
                    assert error_of(reader["k"].decode, tokens=tokens) is TruncatedError
            found = [type(error) for error in reader.verify()]
            assert found == [TruncatedError] * (1 + (size < max(ends.values())))


def test_expect():
    data = stored(two())
    fine = Expect(
        metadata={"model": "toy"}, dtype=None, params=KEYS, shapes={"k": (20, 2), "v": [9, 2]}, names=("v", "k")
    )
    assert list(lynxq.load(data, expect=fine)) == ["k", "v"]
    assert list(lynxq.open(data, expect=Expect(params={"k": KEYS}, names={"k", "v"}))) == ["k", "v"]
    assert list(lynxq.open(stored({"k": coded(8)}), expect=Expect(dtype="float32"))) == ["k"]
    grown = b"".join(stored(each) for each in ({"k": coded(8)}, {"k": coded(4, first_token=8)}))
    assert list(lynxq.open(grown, expect=Expect(shapes={"k": (12, 2)}))) == ["k"]
    for wrong, message in (
        (Expect(metadata={"model": "toys"}), "metadata 'model' must be 'toys', got 'toy'"),
        (Expect(metadata={"layer": "1"}), "metadata 'layer' must be '1', got None"),
        (Expect(dtype="float32"), "dtype of 'v' must be 'float32', got 'float16'"),
        (Expect(params=VALUES), "params of 'k' must be"),
        (Expect(params={"v": VALUES}), "params of 'v' must be"),
        (Expect(params={"w": KEYS}), "params of 'w' must be"),
        (Expect(shapes={"k": (20, 3)}), "shape of 'k' must be"),
        (Expect(shapes={"w": (20, 2)}), "shape of 'w' must be .* got None"),
        (Expect(names=["k"]), "tensor names must be"),
        (Expect(names=["k", "v", "w"]), "tensor names must be"),
    ):
        for call in (lynxq.open, lynxq.load):
            with pytest.raises(IdentityError, match=message):
                call(data[: anchors_end(data)], expect=wrong)


def test_describe():
    tensors = two()
    found = json.loads(json.dumps(lynxq.describe(stored(tensors) + stored(two(first=(20, 9))))))
    assert (found["format"], found["segments"], found["metadata"]) == ("1.0", 2, METADATA)
    assert found["bytes"] == 2 * len(stored(tensors))
    assert found["anchor_end"] == len(stored(tensors)) + anchors_end(stored(tensors))
    one, two_ = found["tensors"]["k"], found["tensors"]["v"]
    assert (one["shape"], one["dtype"], one["token_axis"], one["head_dim"]) == ([40, 2], "float32", 0, 2)
    assert (two_["shape"], two_["dtype"], two_["first_token"]) == ([18, 2], "float16", 0)
    assert Params.from_dict(one["params"]) == KEYS
    sizes = {"anchor": tensors["k"].anchor.size, "residual": tensors["k"].residual.size}
    assert one["bytes"]["residual"] == 2 * sizes["residual"]
    assert one["bits_per_element"]["residual"] == 8 * sizes["residual"] / 40


def test_names():
    data = stored(two())
    assert list(lynxq.load(data, names=["v"])) == ["v"]
    assert lynxq.load(data, names=()) == {}
    assert list(lynxq.load(data, names=(name for name in "vk"))) == ["v", "k"]
    with pytest.raises(ParamsError, match="the string 'v'"):
        lynxq.load(data, names="v")
    with pytest.raises(MissingTensorError, match=r"no tensor 'w', it has \['k', 'v'\]"):
        lynxq.load(data, names=["k", "w"])
    with lynxq.open(data) as reader:
        assert ("w" in reader, len(reader), repr(reader["k"])[:17]) == (False, 2, "StoredTensor('k',")
        with pytest.raises(KeyError):
            reader["w"]
