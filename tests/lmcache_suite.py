"""The LMCache serde inside of the real LMCache: run by test_lmcache.py in an environment that has it."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("lmcache", reason="runs where lmcache is installed")
os.environ["LMCACHE_TRACK_USAGE"] = "false"

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import get_arg_parser, parse_args_to_config
from lmcache.v1.distributed.l2_adapters import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, _object_key_to_filename
from lmcache.v1.distributed.serde import (
    AsyncSerdeProcessor,
    Deserializer,
    SerdeConfig,
    Serializer,
    create_serde_processor,
    get_registered_serde_types,
)
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.multiprocess.ext_server_module import load_server_module_components, parse_server_module_specs

import lynxq
from lynxq.integrations import lmcache as integration

KEY = ObjectKey(b"\x01" * 32, "some/model", ObjectKey.ComputeKVRank(2, 1, 2, 1), 0, "salt")
OTHERS = [
    replace(KEY, chunk_hash=b"\x02" * 32),
    replace(KEY, model_name="some/other"),
    replace(KEY, kv_rank=0),
    replace(KEY, object_group_id=1),
    replace(KEY, cache_salt=""),
]
PAGE = lynxq.Params.keys().page


def memory_obj(shapes, dtypes, *, fill=None, spare=0):
    """An object as LMCache's allocators make it, `spare` bytes longer than its groups."""
    shapes = [torch.Size(shape) for shape in shapes]
    size = sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)) + spare
    raw = (
        torch.randint(0, 256, (size,), dtype=torch.uint8)
        if fill is None
        else torch.full((size,), fill, dtype=torch.uint8)
    )
    meta = MemoryObjMetadata(shapes[0], dtypes[0], 0, size, 1, shapes=shapes, dtypes=dtypes)
    return TensorMemoryObj(raw, meta, None)


def kv(shape, dtype=torch.bfloat16, seed=0):
    """A filled object of one group."""
    obj = memory_obj([shape], [dtype], fill=0)
    generator = torch.Generator().manual_seed(seed)
    obj.tensor.copy_(torch.randn(shape, generator=generator) * torch.rand(shape[-1], generator=generator) * 8)
    return obj


def empty_like(obj):
    return memory_obj(obj.get_shapes(), obj.get_dtypes(), fill=0x5A)


def bytes_of(obj):
    return bytes(obj.raw_data.numpy())


class Processor:
    """A serde processor as its callers see it: submitted, signalled, asked."""

    def __init__(self, **options):
        self.serde = create_serde_processor(SerdeConfig("lynxq", options))
        assert isinstance(self.serde, AsyncSerdeProcessor)

    def buffer(self, obj, spare=0):
        size = self.serde.estimate_serialized_size(MemoryLayoutDesc(obj.get_shapes(), obj.get_dtypes()))
        return memory_obj([(size + spare,)], [torch.uint8])

    def _wait(self, fd, query, task):
        deadline = time.monotonic() + 600  # kernels may have to be compiled
        while (result := query(task)) is None:
            assert time.monotonic() < deadline
            select.select([fd], [], [], 0.05)
        return result

    def store(self, sources, buffers, keys):
        task = self.serde.submit_serialize(sources, buffers, keys)
        return self._wait(self.serde.get_serialize_event_fd(), self.serde.query_serialize_result, task)

    def load(self, buffers, targets, keys):
        task = self.serde.submit_deserialize(buffers, targets, keys)
        return self._wait(self.serde.get_deserialize_event_fd(), self.serde.query_deserialize_result, task)

    def stored(self, obj, key=KEY):
        """A buffer with the object."""
        buffer = self.buffer(obj)
        assert self.store([obj], [buffer], [key])
        return buffer

    def missed(self, buffer, obj, key=KEY):
        """Whether a load fails and leaves the target alone."""
        target = empty_like(obj)
        before = bytes_of(target)
        return not self.load([buffer], [target], [key]) and bytes_of(target) == before


@pytest.fixture
def processor():
    opened = []

    def open_one(**options):
        opened.append(Processor(**options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.serde.close()


def reconstructed(x, tier, params, head_dim=None):
    """What lynxq alone makes of tokens along the last axis but one."""
    encoded = lynxq.encode(x, params, token_axis=-2, head_dim=head_dim)
    return lynxq.decode_anchor(encoded) if tier == "anchor" else lynxq.decode_full(encoded)


def expected(x, layout, head_dim, tier, keys=None, values=None):
    """The same for a whole object."""
    keys, values = keys or lynxq.Params.keys(), values or lynxq.Params.values()
    if layout == "KV_MLA_FMT":
        return reconstructed(x, tier, keys)
    if layout == "KV_FUSED":
        *outer, tokens, hidden = x.shape
        heads = x.view(*outer, tokens, hidden // (2 * head_dim), 2, head_dim).movedim(-3, -4)  # heads before tokens
        k = reconstructed(heads[..., 0, :].contiguous(), tier, keys)
        v = reconstructed(heads[..., 1, :].contiguous(), tier, values)
        return torch.stack([k, v], -2).movedim(-4, -3).reshape(x.shape)
    pair = 1 if layout == "KV_T2D" else 0
    k = reconstructed(x.select(pair, 0).contiguous(), tier, keys, head_dim)
    v = reconstructed(x.select(pair, 1).contiguous(), tier, values, head_dim)
    return torch.stack([k, v], pair)


def test_it_is_registered_once_and_is_what_lmcache_expects():
    integration.register()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: integration.register(), range(64)))
    assert get_registered_serde_types().count("lynxq") == 1
    assert issubclass(integration.LynxqSerializer, Serializer)
    assert issubclass(integration.LynxqDeserializer, Deserializer)
    assert issubclass(integration.L2Adapter, L2AdapterInterface)


LAYOUTS = [
    ("KV_2LTD", (2, 3, None, 64)),
    ("KV_2TD", (2, None, 64)),
    ("KV_T2D", (None, 2, 64)),
    ("KV_MLA_FMT", (1, 3, None, 72)),
    ("KV_MLA_FMT", (3, None, 72)),
    ("KV_FUSED", (1, 3, None, 128)),
    ("KV_FUSED", (3, None, 128)),
]


@pytest.mark.parametrize("tokens", [1, 16, PAGE, 2 * PAGE + 3])
@pytest.mark.parametrize("tier", ["full", "anchor"])
@pytest.mark.parametrize(("layout", "shape"), LAYOUTS)
def test_round_trip(processor, layout, shape, tier, tokens):
    head_dim = None if layout == "KV_MLA_FMT" else 32
    obj = kv([tokens if each is None else each for each in shape])
    serde = processor(layout=layout, head_dim=head_dim, tier=tier)
    buffer = serde.stored(obj)
    assert buffer.get_size() == serde.buffer(obj).get_size()  # the estimate is the size
    assert (
        serde.serde.estimate_serialized_size(MemoryLayoutDesc(obj.get_shapes(), obj.get_dtypes())) == buffer.get_size()
    )
    target = empty_like(obj)
    assert serde.load([buffer], [target], [KEY])
    assert torch.equal(target.tensor, expected(obj.tensor, layout, head_dim, tier))
    assert list(lynxq.open(bytes_of(buffer)).verify()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_and_parameters(processor, dtype):
    obj = kv((2, 2, 100, 160), dtype)
    changes = {"anchor_bits": 5, "residual_bits": 3, "sink_tokens": 0}
    serde = processor(layout="KV_2LTD", head_dim=80, keys=changes, values={"metadata": "f32", "chunk": 32}, threads=1)
    target = empty_like(obj)
    assert serde.load([serde.stored(obj)], [target], [KEY])
    keys, values = lynxq.Params.keys(**changes), lynxq.Params.values(metadata="f32", chunk=32)
    assert torch.equal(target.tensor, expected(obj.tensor, "KV_2LTD", 80, "full", keys, values))


def test_objects_of_several_groups(processor):
    shapes, dtypes = [(2, 3, 40, 64), (2, 1, 40, 256)], [torch.bfloat16, torch.float16]
    obj = memory_obj(shapes, dtypes, fill=0)
    for index in range(2):
        obj.get_tensor(index).copy_(torch.randn(shapes[index]))
    serde = processor(layout="KV_2LTD", head_dim=[32, 128])
    target = empty_like(obj)
    assert serde.load([serde.stored(obj)], [target], [KEY])
    for index, head_dim in enumerate((32, 128)):
        assert torch.equal(target.get_tensor(index), expected(obj.get_tensor(index), "KV_2LTD", head_dim, "full"))


def test_what_follows_a_blob_is_ignored(processor):
    obj = kv((2, 2, 70, 64))
    serde = processor(layout="KV_2LTD", head_dim=64)
    blob = bytes_of(serde.stored(obj))
    for tail in (b"\0" * 100, os.urandom(4096), blob, blob[:100]):
        buffer = serde.buffer(obj, spare=len(tail))
        buffer.raw_data.copy_(torch.frombuffer(bytearray(blob + tail), dtype=torch.uint8))
        target = empty_like(obj)
        assert serde.load([buffer], [target], [KEY])
        assert torch.equal(target.tensor, expected(obj.tensor, "KV_2LTD", 64, "full"))


def test_a_blob_of_another_key_is_a_miss(processor):
    obj = kv((2, 2, 70, 64))
    serde = processor(layout="KV_2LTD", head_dim=64)
    buffer = serde.stored(obj)
    assert [serde.missed(buffer, obj, key) for key in OTHERS] == [True] * len(OTHERS)
    assert not serde.missed(buffer, obj)


def test_the_key_may_be_left_out(processor):
    """Older and later versions of LMCache may call without it."""
    obj = kv((2, 2, 70, 64))
    serde = processor(layout="KV_2LTD", head_dim=64)
    options = integration.Options.of({"layout": "KV_2LTD", "head_dim": 64})
    serializer, deserializer = integration.LynxqSerializer(options), integration.LynxqDeserializer(options)
    buffer, target = serde.buffer(obj), empty_like(obj)
    assert serializer.serialize(obj, buffer) == buffer.get_size()
    deserializer.deserialize(buffer, target)
    assert torch.equal(target.tensor, expected(obj.tensor, "KV_2LTD", 64, "full"))
    assert serde.missed(buffer, obj)  # it is bound to no key
    deserializer.deserialize(serde.stored(obj), empty_like(obj))


def test_damage_is_a_miss(processor):
    obj = kv((2, 1, 10, 32))
    serde = processor(layout="KV_2LTD", head_dim=32)
    buffer = serde.stored(obj)
    raw = buffer.raw_data
    places = [*range(0, raw.numel(), 37), raw.numel() - 1]
    for place in places:
        raw[place] ^= 1 << (place % 8)
        assert serde.missed(buffer, obj), place
        raw[place] ^= 1 << (place % 8)
    for size in (0, 1, 63, 64, 200, raw.numel() // 2, raw.numel() - 1):
        buffer.set_used_size(size)
        assert serde.missed(buffer, obj), size
    buffer.set_used_size(raw.numel())
    assert not serde.missed(buffer, obj)


def test_objects_of_another_form_are_a_miss(processor):
    obj = kv((2, 2, 64, 64))
    serde = processor(layout="KV_2LTD", head_dim=64)
    buffer = serde.stored(obj)
    for other in (kv((2, 2, 63, 64)), kv((2, 1, 64, 64)), kv((2, 2, 64, 64), torch.float16)):
        assert serde.missed(buffer, other)
    assert processor(layout="KV_2LTD", head_dim=32).missed(buffer, obj)
    anchors = processor(layout="KV_2LTD", head_dim=64, tier="anchor").stored(obj)
    assert serde.missed(anchors, obj)  # never an approximation instead of the full tier


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(processor, bad):
    obj = kv((2, 2, 300, 64))
    obj.tensor[1, 1, 299, 63] = bad
    serde = processor(layout="KV_2LTD", head_dim=64)
    buffer = serde.buffer(obj)
    assert not serde.store([obj], [buffer], [KEY])
    assert serde.missed(buffer, obj)


def test_unsupported_objects_are_refused_before_memory_is_taken(processor):
    serde = processor(layout="KV_2LTD", head_dim=64).serde
    for shapes, dtypes in (
        ([(2, 2, 64, 64)], [torch.uint8]),
        ([(2, 2, 64, 64)], [torch.float8_e4m3fn]),
        ([(1, 2, 64, 64)], [torch.bfloat16]),
        ([(2, 2, 64, 65)], [torch.bfloat16]),
        ([(2, 2, 64, 64), (100,)], [torch.bfloat16, torch.uint8]),
    ):
        with pytest.raises(lynxq.LynxqError):
            serde.estimate_serialized_size(MemoryLayoutDesc([torch.Size(shape) for shape in shapes], dtypes))


def test_buffers_at_odd_addresses(processor):
    obj = kv((2, 2, 70, 64))
    serde = processor(layout="KV_2LTD", head_dim=64)
    aligned = serde.stored(obj)
    moved = torch.empty(aligned.get_size() + 1, dtype=torch.uint8)[1:]
    buffer = TensorMemoryObj(moved, aligned.meta, None)
    assert serde.store([obj], [buffer], [KEY])
    assert bytes_of(buffer) == bytes_of(aligned)
    target = empty_like(obj)
    assert serde.load([buffer], [target], [KEY])
    assert torch.equal(target.tensor, expected(obj.tensor, "KV_2LTD", 64, "full"))


def test_many_workers(processor):
    objects = [kv((2, 2, 200, 64), seed=seed) for seed in range(12)]
    keys = [replace(KEY, chunk_hash=bytes([index]) * 32) for index in range(12)]
    serde = processor(layout="KV_2LTD", head_dim=64, max_workers=4)
    buffers, targets = [serde.buffer(each) for each in objects], [empty_like(each) for each in objects]
    stores = [serde.serde.submit_serialize([a], [b], [c]) for a, b, c in zip(objects, buffers, keys, strict=True)]
    fd, query = serde.serde.get_serialize_event_fd(), serde.serde.query_serialize_result
    assert all(serde._wait(fd, query, task) for task in stores)
    loads = [serde.serde.submit_deserialize([a], [b], [c]) for a, b, c in zip(buffers, targets, keys, strict=True)]
    fd, query = serde.serde.get_deserialize_event_fd(), serde.serde.query_deserialize_result
    assert all(serde._wait(fd, query, task) for task in loads)
    for obj, target in zip(objects, targets, strict=True):
        assert torch.equal(target.tensor, expected(obj.tensor, "KV_2LTD", 64, "full"))


# --- the storage manager, its fs adapter, and the loading hooks --------------------------------------

SHAPE = (2, 2, 256, 256)
LAYOUT_DESC = MemoryLayoutDesc([torch.Size(SHAPE)], [torch.bfloat16])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kv"


def blocks(language):
    """The code on the documentation page."""
    page = Path(os.environ["LYNXQ_ROOT"], "docs", "integrations", "lmcache.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(folder):
    """The commands of the documentation page, as lists of arguments, with another folder."""
    found = [shlex.split(each) for each in blocks("sh")]
    assert [each[-2] for each in found] == ["--l2-adapter", "--server-module"]
    return [[each.replace("/var/cache/kv", os.fspath(folder)) for each in one[2:]] for one in found]


def small(arguments):
    """The same arguments, for a machine with little memory."""
    return [*arguments[:1], "0.25", *arguments[2:]]


@pytest.fixture(params=["plugin", "server-module"])
def manager(request, folder):
    """LMCache's storage manager with the adapter of the documentation page, loaded by LMCache's own loaders."""
    by_plugin, by_module = commands(folder)
    arguments = small(by_plugin if request.param == "plugin" else by_module)
    own = arguments if request.param == "plugin" else arguments[:-2]
    result = StorageManager(parse_args_to_config(get_arg_parser().parse_args(own)))
    try:
        if request.param == "server-module":
            load_server_module_components(
                parse_server_module_specs(arguments[-1:]),
                server_context=SimpleNamespace(storage_manager=result),
                mp_config=None,
                coordinator_config=None,
                built_modules=(),
            )
        yield result
    finally:
        result.close()


def put(manager, key, tensor):
    """Write an object into L1 and wait until L2 is done with it."""
    objects = manager.reserve_write([key], LAYOUT_DESC)
    objects[key].tensor.copy_(tensor)
    manager.finish_write([key])


def prefetched(manager, key):
    """LMCache's answer to a prefetch of one object."""
    row = GroupedObjectKeys([key], key.object_group_id, LAYOUT_DESC)
    handle = manager.submit_prefetch_task(PrefetchTaskSpec([row]))
    deadline = time.monotonic() + 600  # kernels may have to be compiled
    while (result := manager.query_prefetch_status(handle)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def get(manager, key):
    """The object as prefetched from L2, None if it is a miss."""
    manager.clear(force=False)
    while (result := prefetched(manager, key)).l1_hit_count:  # the store controller had not let go of it yet
        manager.finish_read_prefetched([key])
        time.sleep(0.05)
        manager.clear(force=False)
    if not result.l2_hit_count:
        return None
    with manager.read_prefetched_results([key]) as objects:
        found = objects[0].tensor.clone()
    manager.finish_read_prefetched([key])
    return found


def wait_for(path):
    deadline = time.monotonic() + 600  # kernels may have to be compiled
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_through_the_storage_manager_and_fs(manager, folder, capsys):
    keys = [replace(KEY, chunk_hash=bytes([index]) * 32) for index in range(3)]
    tensors = [kv(SHAPE, seed=seed).tensor for seed in range(3)]
    paths = [folder / _object_key_to_filename(key) for key in keys]
    for key, tensor, path in zip(keys, tensors, paths, strict=True):
        put(manager, key, tensor)
        wait_for(path)
    options = integration.Options.of({"layout": "KV_2LTD", "head_dim": 128})
    size = integration.LynxqSerializer(options).estimate_serialized_size(LAYOUT_DESC)
    assert {path.stat().st_size for path in folder.glob("*.data")} == {size}
    for key, tensor in zip(keys, tensors, strict=True):
        assert torch.equal(get(manager, key), expected(tensor, "KV_2LTD", 128, "full"))
    (code,) = blocks("python")
    exec(compile(code.replace("/var/cache/kv", os.fspath(folder)), "lmcache.md", "exec"), {})  # noqa: S102 - our own text
    assert capsys.readouterr().out.count(".data ") == 3

    shutil.copy(paths[0], paths[1])  # the blob of another key
    damaged = bytearray(paths[2].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    paths[2].write_bytes(damaged)
    assert get(manager, keys[1]) is None
    assert get(manager, keys[2]) is None
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    assert get(manager, keys[2]) is None
    assert torch.equal(get(manager, keys[0]), expected(tensors[0], "KV_2LTD", 128, "full"))


def test_what_cannot_be_coded_leaves_no_file(manager, folder, caplog):
    bad, good = KEY, OTHERS[0]
    tensor = kv(SHAPE).tensor
    tensor[0, 0, 0, 0] = float("nan")
    put(manager, bad, tensor)
    deadline = time.monotonic() + 600
    while "(SERIALIZE) failed" not in caplog.text:  # together they would be one task, and fail together
        assert time.monotonic() < deadline
        time.sleep(0.01)
    put(manager, good, torch.nan_to_num(tensor))
    wait_for(folder / _object_key_to_filename(good))
    assert not (folder / _object_key_to_filename(bad)).exists()
    assert get(manager, good) is not None
    assert get(manager, bad) is None


def test_the_plugin_is_the_adapter_inside(folder):
    adapter = integration.L2Adapter({"type": "fs", "base_path": os.fspath(folder)})
    assert isinstance(adapter, FSL2Adapter)
    adapter.close()
    for params in ({}, {"type": 1}, {"type": "fs", "base_path": os.fspath(folder), "serde": {"type": "lynxq"}}):
        with pytest.raises(lynxq.errors.ParamsError):
            integration.L2Adapter(params)


@pytest.mark.parametrize("which", [0, 1], ids=["plugin", "server-module"])
def test_the_server_starts_with_the_commands_of_the_documentation(folder, which):
    with socket.socket() as first, socket.socket() as second:
        ports = []
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
            ports.append(each.getsockname()[1])
    command = [Path(sys.executable).with_name("lmcache"), "server", *small(commands(folder)[which])]
    command += ["--port", str(ports[0]), "--http-port", str(ports[1])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    try:
        deadline, status = time.monotonic() + 120, None
        while status is None and process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/status", timeout=5) as answer:
                    status = json.load(answer)
            except OSError:
                time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        reader.join()
    assert status is not None, "".join(lines)
    text = json.dumps(status)
    assert '"serde_wrapped": true' in text
    assert os.fspath(folder) in text
