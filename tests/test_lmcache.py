"""The LMCache serde without LMCache, and, if asked for, `lmcache_suite.py` inside of the real one."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import tracemalloc
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq.errors import (
    ContainerError,
    DTypeError,
    IdentityError,
    MissingLibraryError,
    MissingResidualError,
    NonFiniteError,
    ParamsError,
    ShapeError,
)
from lynxq.integrations.lmcache import LynxqDeserializer, LynxqSerializer, Options, register
from lynxq.integrations.lmcache.blob import NO_KEY, blob_of, digest_of
from tests.environments import ROOT, environment

#: What lmcache 0.5.6 needs without a GPU; its own list wants CUDA.
REQUIREMENTS = [
    *("torch==2.13.0", "numpy<=2.2.6", "requests", "aiofile", "aiofiles", "blake3", "aiohttp", "msgspec", "numba"),
    *("nvtx", "psutil", "py-cpuinfo", "pyyaml", "pyzmq", "sortedcontainers", "cachetools", "prometheus_client"),
    *("httpx", "fastapi", "uvicorn", "redis", "safetensors", "cryptography", "opentelemetry-api", "opentelemetry-sdk"),
    *("opentelemetry-exporter-prometheus", "huggingface_hub", "transformers", "pytest>=8.3"),
]
SLOW = "LYNXQ_SLOW_TESTS"


@dataclass(frozen=True)
class Key:
    """The fields of LMCache's `ObjectKey`."""

    chunk_hash: bytes = b"\x01\x02"
    model_name: str = "some/model"
    kv_rank: int = 3
    object_group_id: int = 0
    cache_salt: str = ""


class Object:
    """What is used of LMCache's memory objects: groups one after the other in flat memory."""

    def __init__(self, shapes, dtypes=(torch.bfloat16,), raw=None):
        self.shapes, self.dtypes = shapes, dtypes
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
        self.ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        self.raw_data = torch.zeros(self.ends[-1], dtype=torch.uint8) if raw is None else raw
        self.used = self.ends[-1]

    def get_size(self):
        return self.used

    def get_shapes(self):
        return self.shapes

    def get_dtypes(self):
        return self.dtypes

    def get_tensor(self, index):
        part = self.raw_data[self.ends[index - 1] if index else 0 : self.ends[index]]
        return part.view(self.dtypes[index]).view(self.shapes[index])


def filled(shapes, dtypes=(torch.bfloat16,), seed=0):
    obj = Object(shapes, dtypes)
    generator = torch.Generator().manual_seed(seed)
    for index, shape in enumerate(shapes):
        obj.get_tensor(index).copy_(torch.randn(shape, generator=generator))
    return obj


def serde(**config):
    options = Options.of(config)
    return LynxqSerializer(options), LynxqDeserializer(options)


def stored(serializer, obj, key=None, spare=0):
    size = serializer.estimate_serialized_size(SimpleNamespace(shapes=obj.shapes, dtypes=obj.dtypes))
    buffer = Object([(size + spare,)], (torch.uint8,), torch.full((size + spare,), 0xEE, dtype=torch.uint8))
    assert serializer.serialize(obj, buffer, key) == size
    return buffer


def loaded(deserializer, buffer, like, key=None):
    target = Object(like.shapes, like.dtypes)
    deserializer.deserialize(buffer, target, key)
    return target


def refused(deserializer, buffer, like, key=None, error=ContainerError):
    """Whether a load raises and leaves the target as it was."""
    target = filled(like.shapes, like.dtypes, seed=99)
    before = target.raw_data.clone()
    with pytest.raises(error):
        deserializer.deserialize(buffer, target, key)
    return torch.equal(target.raw_data, before)


# --- layouts -----------------------------------------------------------------------------------------


@st.composite
def objects(draw):
    layout = draw(st.sampled_from(["KV_2LTD", "KV_2TD", "KV_T2D", "KV_MLA_FMT", "KV_FUSED"]))
    layers, heads, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 8, 80]))
    tokens = draw(st.sampled_from([0, 1, 7, 8, 9, 31]))
    first = draw(st.sampled_from([(1,), ()]))
    shape = {
        "KV_2LTD": (2, layers, tokens, heads * head_dim),
        "KV_2TD": (2, tokens, heads * head_dim),
        "KV_T2D": (tokens, 2, heads * head_dim),
        "KV_MLA_FMT": (*first, layers, tokens, head_dim),
        "KV_FUSED": (*first, layers, tokens, heads * 2 * head_dim),
    }[layout]
    page = {"page": 8, "range_size": 8, "chunk": 4, "sink_tokens": draw(st.integers(0, 4))}
    options = {
        "layout": layout,
        "head_dim": head_dim,
        "tier": draw(st.sampled_from(["full", "anchor"])),
        "keys": page,
        "values": {"page": draw(st.sampled_from([8, 16])), "sink_tokens": 0},
    }
    return options, shape, draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))


def tensors_of(x, layout, head_dim):
    """Keys and values, or the one tensor for both, by plain indexing of an object: tokens along the axis after."""
    if layout == "KV_MLA_FMT":
        return {"0.latent": (x, x.ndim - 2)}
    if layout == "KV_FUSED":
        heads = x.reshape(*x.shape[:-1], x.shape[-1] // (2 * head_dim), 2, head_dim)
        return {name: (heads[..., index, :], x.ndim - 2) for index, name in enumerate(("0.key", "0.value"))}
    pairs = x.movedim(1, 0) if layout == "KV_T2D" else x
    return {name: (pairs[index], x.ndim - 3) for index, name in enumerate(("0.key", "0.value"))}


@given(objects())
def test_a_blob_is_the_container_of_its_tensors(case):
    """Written frame by frame into place, it has the bytes of `save`, the estimated size, and decodes to the same."""
    config, shape, dtype = case
    obj = filled([shape], [dtype])
    serializer, deserializer = serde(**config)
    key = Key()
    blob = stored(serializer, obj, key)
    options, encoded = serializer.options, {}
    for name, (tensor, axis) in tensors_of(obj.get_tensor(0), config["layout"], config["head_dim"]).items():
        params = options.values if name == "0.value" else options.keys
        encoded[name] = lynxq.encode(tensor, params, token_axis=axis, head_dim=config["head_dim"])
    kept = encoded if config["tier"] == "full" else {name: each.anchor_only() for name, each in encoded.items()}
    file = io.BytesIO()
    lynxq.save(file, kept, metadata={"lmcache.key": digest_of(key), "lmcache.layout": config["layout"]})
    assert bytes(blob.raw_data.numpy()) == file.getvalue()
    target = loaded(deserializer, blob, obj, key)
    decode = lynxq.decode_full if config["tier"] == "full" else lynxq.decode_anchor
    for name, (tensor, _) in tensors_of(target.get_tensor(0), config["layout"], config["head_dim"]).items():
        assert torch.equal(tensor, decode(encoded[name]))


def test_groups_have_names_and_heads_of_their_own():
    obj = filled([(2, 1, 9, 32), (2, 2, 9, 24)], (torch.bfloat16, torch.float32))
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=[32, 8])
    blob = stored(serializer, obj)
    with lynxq.open(bytes(blob.raw_data.numpy())) as reader:
        assert {name: each.layout.head_dim for name, each in reader.items()} == {
            "0.key": 32, "0.value": 32, "1.key": 8, "1.value": 8,
        }  # fmt: skip
    target = loaded(deserializer, blob, obj)
    for index in range(2):
        for name, (tensor, axis) in tensors_of(obj.get_tensor(index), "KV_2LTD", None).items():
            params = lynxq.Params.values() if name == "0.value" else lynxq.Params.keys()
            encoded = lynxq.encode(tensor, params, token_axis=axis, head_dim=[32, 8][index])
            found = target.get_tensor(index)[0 if name == "0.key" else 1]
            assert torch.equal(found, lynxq.decode_full(encoded))


def test_numpy_objects():
    x = np.random.default_rng(0).standard_normal((2, 2, 20, 16), dtype=np.float32)
    blob = blob_of(Options.of({"layout": "KV_2LTD", "head_dim": 8}), (x.shape,), ("float32",))
    target = np.zeros(blob.size, np.uint8)
    assert blob.write([x], target) == blob.size
    y = np.zeros_like(x)
    blob.read(target, [y])
    assert np.array_equal(y[1], lynxq.decode_full(lynxq.encode(x[1], lynxq.Params.values(), token_axis=1, head_dim=8)))


@pytest.mark.parametrize("tier", ["full", "anchor"])
def test_objects_are_coded_in_place(tier):
    """Beside the two buffers there is next to no memory; an anchor tier drops one page of residuals at a time."""
    x = np.random.default_rng(0).standard_normal((2, 4, 600, 512), dtype=np.float32)
    options = Options.of({"layout": "KV_2LTD", "head_dim": 64, "tier": tier, "threads": 1})
    blob = blob_of(options, (x.shape,), ("float32",))
    target, y = np.zeros(blob.size, np.uint8), np.zeros_like(x)
    for work in (lambda: blob.write([x], target), lambda: blob.read(target, [y])):
        work()
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < x.nbytes / 25


def test_figures_of_the_documentation():
    """Bits per value of a bfloat16 object of 256 tokens with heads of 128, and what its sinks cost."""
    page = (ROOT / "docs" / "integrations" / "lmcache.md").read_text(encoding="utf-8")
    shape = (2, 32, 256, 8 * 128)
    for tier in ("full", "anchor"):
        bits = {}
        for sinks in (0, 4):
            config = {"layout": "KV_2LTD", "head_dim": 128, "tier": tier}
            changes = {"sink_tokens": sinks}
            options = Options.of({**config, "keys": changes, "values": changes})
            bits[sinks] = 8 * blob_of(options, (shape,), ("bfloat16",)).size / prod(shape)
        assert f" {bits[4]:.2f} " in page
        assert f"{bits[4] - bits[0]:.2f} " in page


# --- misses ------------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_cut_is_noticed():
    obj = filled([(2, 1, 10, 8)])
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8)
    blob = stored(serializer, obj, Key())
    raw = blob.raw_data
    for place in range(raw.numel()):
        raw[place] ^= 1 << (place % 8)
        assert refused(deserializer, blob, obj, Key()), place
        raw[place] ^= 1 << (place % 8)
    for size in range(0, raw.numel(), 7):
        blob.used = size
        assert refused(deserializer, blob, obj, Key()), size
    blob.used = raw.numel()
    loaded(deserializer, blob, obj, Key())


@pytest.mark.parametrize("tail", [b"", b"\0" * 64, b"\x89LYNX\r\n\x1a" + bytes(56), "itself"])
def test_what_follows_a_blob_is_ignored(tail):
    obj = filled([(2, 1, 10, 8)])
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8)
    blob = stored(serializer, obj, spare=10)
    plain = stored(serializer, obj).raw_data
    tail = plain if tail == "itself" else torch.tensor(list(tail), dtype=torch.uint8)
    longer = torch.cat([plain, tail])
    buffer = Object([(longer.numel(),)], (torch.uint8,), longer)
    assert torch.equal(loaded(deserializer, buffer, obj).raw_data, loaded(deserializer, blob, obj).raw_data)


@pytest.mark.parametrize(
    "change",
    [{"chunk_hash": b"\x01"}, {"model_name": "m"}, {"kv_rank": 4}, {"object_group_id": 1}, {"cache_salt": "0"}],
)
def test_a_blob_belongs_to_its_key(change):
    obj = filled([(2, 1, 10, 8)])
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8)
    key, other = Key(), replace(Key(), **change)
    blob = stored(serializer, obj, key)
    assert digest_of(key) != digest_of(other)
    assert blob.raw_data.numel() == stored(serializer, obj, other).raw_data.numel()
    assert refused(deserializer, blob, obj, other, IdentityError)
    loaded(deserializer, blob, obj, key)
    loaded(deserializer, blob, obj)  # a version of LMCache that passes no key
    assert refused(deserializer, stored(serializer, obj), obj, key, IdentityError)


def test_the_digest_is_not_that_of_no_key():
    assert len(digest_of(Key())) == len(NO_KEY)
    assert digest_of(Key()) != NO_KEY


def test_a_blob_of_other_options_is_a_miss():
    obj = filled([(2, 4, 10, 16)])
    blob = stored(serde(layout="KV_2LTD", head_dim=8)[0], obj)
    assert refused(serde(layout="KV_2LTD", head_dim=16)[1], blob, obj, error=IdentityError)
    for shape, layout in (((2, 4, 9, 16), "KV_2LTD"), ((4, 10, 32), "KV_FUSED")):
        assert refused(serde(layout=layout, head_dim=8)[1], blob, Object([shape]), error=IdentityError)
    assert refused(
        serde(layout="KV_2LTD", head_dim=8)[1], blob, Object(obj.shapes, (torch.float16,)), None, IdentityError
    )
    anchors = stored(serde(layout="KV_2LTD", head_dim=8, tier="anchor")[0], obj)
    assert refused(serde(layout="KV_2LTD", head_dim=8)[1], anchors, obj, error=MissingResidualError)


def test_a_blob_keeps_its_parameters():
    """Other parameters than the configured ones decode to what was stored."""
    obj = filled([(2, 2, 10, 16)])
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8, keys={"alpha": 2.0})
    blob = stored(serializer, obj)
    other = serde(layout="KV_2LTD", head_dim=8)[1]
    assert torch.equal(loaded(other, blob, obj).raw_data, loaded(deserializer, blob, obj).raw_data)


def test_the_anchors_of_a_full_blob():
    obj = filled([(2, 2, 10, 16)])
    blob = stored(serde(layout="KV_2LTD", head_dim=8)[0], obj)
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8, tier="anchor")
    anchors = stored(serializer, obj)
    assert torch.equal(loaded(deserializer, blob, obj).raw_data, loaded(deserializer, anchors, obj).raw_data)


# --- refusals ----------------------------------------------------------------------------------------


def test_values_that_are_not_finite():
    obj = filled([(2, 1, 300, 8)])
    obj.get_tensor(0)[1, 0, 299, 7] = float("nan")
    serializer, deserializer = serde(layout="KV_2LTD", head_dim=8)
    size = serializer.estimate_serialized_size(SimpleNamespace(shapes=obj.shapes, dtypes=obj.dtypes))
    buffer = Object([(size,)], (torch.uint8,))
    with pytest.raises(NonFiniteError):
        serializer.serialize(obj, buffer)
    assert refused(deserializer, buffer, obj)


def test_a_buffer_that_is_too_small():
    obj = filled([(2, 1, 10, 8)])
    serializer, _ = serde(layout="KV_2LTD", head_dim=8)
    size = stored(serializer, obj).used - 1
    buffer = Object([(size,)], (torch.uint8,))
    with pytest.raises(ShapeError, match=f"got {size} bytes"):
        serializer.serialize(obj, buffer)
    assert not buffer.raw_data.any()


@pytest.mark.parametrize(
    ("layout", "shapes", "dtype", "error"),
    [
        ("KV_2LTD", [(1, 2, 8, 16)], "bfloat16", ShapeError),
        ("KV_2LTD", [(2, 8, 16)], "bfloat16", ShapeError),
        ("KV_2TD", [(3, 8, 16)], "bfloat16", ShapeError),
        ("KV_T2D", [(2, 8, 16)], "bfloat16", ShapeError),
        ("KV_MLA_FMT", [(2, 2, 8, 16)], "bfloat16", ShapeError),
        ("KV_MLA_FMT", [(16,)], "bfloat16", ShapeError),
        ("KV_MLA_FMT", [()], "bfloat16", ShapeError),
        ("KV_FUSED", [(1, 2, 8, 24)], "bfloat16", ShapeError),
        ("KV_FUSED", [(2, 2, 8, 32)], "bfloat16", ShapeError),
        ("KV_2LTD", [(2, 2, 8, 20)], "bfloat16", ShapeError),
        ("KV_2LTD", [(2, 2, 8, 16)], "uint8", DTypeError),
        ("KV_2LTD", [(2, 2, 8, 16)], "torch.float8_e4m3fn", DTypeError),
        ("KV_2LTD", [(2, 2, 8, 16), (100,)], "bfloat16", ShapeError),
        ("KV_2LTD", [], "bfloat16", DTypeError),
    ],
)
def test_objects_that_cannot_be_coded(layout, shapes, dtype, error):
    serializer, _ = serde(layout=layout, head_dim=8)
    with pytest.raises(error):
        serializer.estimate_serialized_size(SimpleNamespace(shapes=shapes, dtypes=[dtype] * len(shapes)))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "layout must be given"),
        ({"layout": "KV_BLOB", "head_dim": 8}, "layout must be one of"),
        ({"layout": "KV_2LTD"}, "head_dim must be given"),
        ({"layout": "KV_2LTD", "head_dim": 0}, "head_dim must be an integer"),
        ({"layout": "KV_2LTD", "head_dim": [8, "8"]}, "head_dim must be an integer"),
        ({"layout": "KV_2LTD", "head_dim": 8, "tier": "residual"}, "tier must be one of"),
        ({"layout": "KV_2LTD", "head_dim": 8, "bits": 4}, "option must be one of"),
        ({"layout": "KV_2LTD", "head_dim": 8, "keys": {"bits": 4}}, "parameter must be one of"),
        ({"layout": "KV_2LTD", "head_dim": 8, "values": 4}, "values must be of type Params"),
        ({"layout": "KV_2LTD", "head_dim": 8, "max_workers": 0}, "max_workers must be an integer"),
        ({"layout": "KV_2LTD", "head_dim": 8, "threads": 1.5}, "threads must be an integer"),
    ],
)
def test_options_that_cannot_be_used(config, match):
    with pytest.raises(ParamsError, match=match):
        Options.of(config)


def test_heads_for_another_number_of_groups():
    serializer, _ = serde(layout="KV_2LTD", head_dim=[8, 8])
    with pytest.raises(ParamsError, match="1 groups"):
        serializer.estimate_serialized_size(SimpleNamespace(shapes=[(2, 2, 8, 16)], dtypes=["bfloat16"]))


@pytest.mark.skipif(importlib.util.find_spec("lmcache") is not None, reason="lmcache is installed")
def test_registration_says_what_is_missing():
    with pytest.raises(MissingLibraryError, match="lmcache"):
        register()


@pytest.mark.skipif(SLOW not in os.environ, reason=f"takes minutes and 1.6 GB: set {SLOW}=1")
def test_inside_of_lmcache(tmp_path):
    python = environment("lmcache", REQUIREMENTS, without_dependencies=["lmcache==0.5.6"])
    subprocess.run([python, "-m", "lynxq", "warmup"], check=True)
    suite = Path(__file__).with_name("lmcache_suite.py")
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "--noconftest", "--import-mode=importlib", "-q", "-ra"]
    result = subprocess.run(
        [python, "-m", "pytest", "-p", "no:cacheprovider", *options, str(suite)],
        cwd=tmp_path,
        env={**os.environ, "LYNXQ_ROOT": str(ROOT), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-8000:]
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
