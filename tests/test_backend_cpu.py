"""The numba backend: the reference's bytes, whatever the threads, the memory layout and the process."""

import gc
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import lynxq
from lynxq import Params, arrays, backends, companding, testing
from lynxq import threads as workers
from lynxq.errors import BackendError, NonFiniteError, ParamsError
from lynxq.layout import Layout

pytest.importorskip("numba")

from numba import njit, types

from lynxq.backends.cpu import backend as cpu
from lynxq.backends.cpu import plan as cpu_plan
from lynxq.backends.cpu import tables as cpu_tables
from lynxq.backends.cpu.kernels import bits, codes, convert, decode, jit, lookup, scan, statistics

KEYS, VALUES = Params.keys(), Params.values()
ROOT = Path(lynxq.__file__).parent


def tensor(shape, dtype="bfloat16", kind="normal", seed=0):
    return testing.contents(kind, shape, dtype, seed)


def streams(encoded):
    return encoded.anchor.tobytes(), encoded.residual.tobytes()


# --- the same bytes ----------------------------------------------------------------------------------


def test_conformance():
    testing.check_backend("cpu", examples=120)


def test_conformance_finds_a_wrong_byte(monkeypatch):
    real = cpu.CpuBackend.encode

    def spoiled(self, layout, x, anchor, residual, *, threads=1):
        real(self, layout, x, anchor, residual, threads=threads)
        if residual.size:
            residual[-1] ^= 1

    monkeypatch.setattr(cpu.CpuBackend, "encode", spoiled)
    with pytest.raises(AssertionError, match="the residual stream differs in 1 of"):
        testing.check_backend("cpu", examples=5)


@pytest.mark.parametrize("params", [KEYS, VALUES], ids=["keys", "values"])
@pytest.mark.parametrize("shape", [(700, 8, 128), (700, 3, 64), (513, 576)], ids=str)
def test_large_rows_and_any_number_of_threads(shape, params):
    x = tensor(shape)
    expected = lynxq.encode(x, params, token_axis=0, backend="reference")
    near, full = (f(expected, backend="reference") for f in (lynxq.decode_anchor, lynxq.decode_full))
    for threads in (1, 2, 5, 64):
        encoded = lynxq.encode(x, params, token_axis=0, backend="cpu", threads=threads)
        assert streams(encoded) == streams(expected)
        assert lynxq.decode_anchor(encoded, backend="cpu", threads=threads).tobytes() == near.tobytes()
        assert lynxq.decode_full(encoded, backend="cpu", threads=threads).tobytes() == full.tobytes()


@pytest.mark.parametrize("shape", [(3, 300, 16), (2, 5, 300, 4), (4, 300)], ids=str)
@pytest.mark.parametrize("params", [KEYS, VALUES], ids=["keys", "values"])
def test_narrow_heads(shape, params):
    x = tensor(shape)
    axis = len(shape) - 2 if len(shape) > 2 else 1
    expected = lynxq.encode(x, params, token_axis=axis, backend="reference")
    encoded = lynxq.encode(x, params, token_axis=axis, backend="cpu")
    assert streams(encoded) == streams(expected)
    assert lynxq.decode_full(encoded, backend="cpu").tobytes() == lynxq.decode_full(expected).tobytes()


@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.1, 0.5, 0.6, 0.61, 1.0, 2.0, 255.0, 1e4, 1e6])
@pytest.mark.parametrize("split", [(3, 5), (4, 4), (5, 3), (6, 2)], ids=str)
def test_candidates_are_right_next_to_every_threshold(alpha, split):
    """Where it is hard: all float32 within some dozen steps of a threshold, and the ends."""
    count = companding.level_count(*split)
    table = companding.thresholds(alpha, count)
    near = table.view(np.uint32)[:, None] + np.arange(-64, 65, dtype=np.int64)
    t = np.unique(np.clip(near, 0, 0x3F800010).astype(np.uint32)).view(np.float32)
    t = np.concatenate([t, np.float32([0, 2.0**-149, 2.0**-126, 1.0]), np.linspace(0, 1, 100_001, dtype=np.float32)])
    assert np.array_equal(_codes(t, alpha, count), np.searchsorted(table, t, side="right"))


def _codes(t, alpha, count):
    """Codes of t, with a centre of 0 and a scale of 1."""
    candidate, out = cpu_tables.candidate(alpha, count), np.empty(t.size, np.uint8)
    zeros, ones = np.zeros(t.size, np.float32), np.ones(t.size, np.float32)
    arguments = candidate.form, t.view(np.uint32), zeros, ones, candidate.coefficients, candidate.margin
    _row_codes_f32(*arguments, cpu_tables.thresholds(alpha, count), out)
    return out


_row_codes_f32 = njit(nogil=True, error_model="numpy")(codes.make_codes(convert.widen_f32).py_func)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_every_float32_has_the_right_code(alpha):
    """All 2^30 values would take minutes; every 97th takes a second and is another one in every cell."""
    table = companding.thresholds(alpha, 112)
    t = np.arange(0, 0x3F800001, 97, dtype=np.uint32).view(np.float32)
    assert np.array_equal(_codes(t, alpha, 112), np.searchsorted(table, t, side="right"))


def test_both_lookups_agree():
    rng = np.random.default_rng(0)
    values, rows = rng.standard_normal(256).astype(np.float32), rng.integers(0, 256, 333).astype(np.uint8)
    tables, out = lookup.tables_of(values), np.empty(333, np.float32)
    plain = njit(lookup._lookup_plain.py_func)
    plain(tables, rows, out)
    assert np.array_equal(out, values[rows])
    out[:] = 0
    njit(lookup.lookup_row.py_func)(tables, rows, out)
    assert np.array_equal(out, values[rows])


def test_a_rejected_call_changes_nothing():
    x = tensor((300, 64))
    encoded = lynxq.encode(x, token_axis=0, backend="cpu")
    before = streams(encoded)
    bad = x.copy()
    bad[299, 63], bad[5, 7] = np.nan, np.inf
    with pytest.raises(NonFiniteError, match=r"2 non-finite values, the first at index \(5, 7\)"):
        lynxq.encode(bad, token_axis=0, backend="cpu", out=encoded)
    assert streams(encoded) == before


# --- threads and processes ---------------------------------------------------------------------------


def test_many_threads_at_once():
    inputs = [tensor((600, 4, 64), seed=seed) for seed in range(8)]
    expected = [streams(lynxq.encode(x, token_axis=0, backend="reference")) for x in inputs]
    failures = []

    def work(index):
        for turn in range(6):
            n = (index + turn) % len(inputs)
            encoded = lynxq.encode(inputs[n], token_axis=0, backend="cpu", threads=1 + turn % 3)
            if streams(encoded) != expected[n]:
                failures.append((index, turn))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _child(x, queue):
    queue.put(streams(lynxq.encode(x, token_axis=0, backend="cpu", threads=2)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_works_after_fork():
    x = tensor((2048, 2, 128))
    expected = streams(lynxq.encode(x, token_axis=0, backend="cpu", threads=2))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_child, args=(x, queue))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join(60)
    assert process.exitcode == 0


def test_work_is_shared_and_errors_come_through():
    seen, names = [], set()

    def work(first, last):
        names.add(threading.get_ident())
        seen.extend(range(first, last))

    workers.run(work, 100, 3)
    assert sorted(seen) == list(range(100))
    assert len(names) <= 3

    def fails(first, last):
        if first == 0:
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        workers.run(fails, 100, 3)


@pytest.mark.parametrize(("text", "count"), [("3", 3), (" 2 ", 2), ("1000", workers.MAX_THREADS)])
def test_threads_of_the_environment(monkeypatch, text, count):
    monkeypatch.setenv("LYNXQ_THREADS", text)
    assert workers.thread_count(None) == count
    assert workers.thread_count(7) == 7


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²", "9" * 30])
def test_wrong_threads_of_the_environment(monkeypatch, text):
    monkeypatch.setenv("LYNXQ_THREADS", text)
    with pytest.raises(ParamsError, match="LYNXQ_THREADS must be an integer"):
        workers.thread_count(None)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_wrong_threads(threads):
    with pytest.raises(ParamsError, match="threads must be an integer"):
        lynxq.encode(np.ones((3, 2), np.float32), token_axis=0, threads=threads)


# --- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [KEYS, VALUES, Params(chunk=1, range_size=256)], ids=["keys", "values", "chunk 1"])
@pytest.mark.parametrize("order", ["contiguous", "transposed"])
def test_extra_memory(params, order):
    x = testing.MEMORY[order](tensor((2048, 4096)))
    encoded = lynxq.encode(x, params, token_axis=0, backend="cpu", threads=8)
    out = np.empty_like(x)
    lynxq.decode_full(encoded, backend="cpu", out=out)
    gc.collect()
    cpu_plan._local.__dict__.clear()
    tracemalloc.start()
    try:
        lynxq.encode(x, params, token_axis=0, backend="cpu", threads=8, out=encoded)
        lynxq.decode_full(encoded, backend="cpu", threads=8, out=out)
        lynxq.decode_anchor(encoded, backend="cpu", threads=8, out=out)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("axis", ["token", "channel"])
@pytest.mark.parametrize("page", [8, 256, 65536])
@pytest.mark.parametrize("threads", [1, 16, 64])
@pytest.mark.parametrize(("shape", "token_axis"), [((70000, 4096), 0), ((4, 70000, 8), 1), ((65536, 70000), 1)])
def test_scratch_is_bounded(axis, page, threads, shape, token_axis):
    params = Params(axis=axis, page=page, range_size=page if axis == "token" else 64, chunk=8)
    layout = Layout.of(params, shape, "float32", token_axis=token_axis)
    steps = (4 * shape[1], *[0] * (len(shape) - 1))
    raw = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), shape, steps)
    units = cpu_plan.cut(layout, cpu_plan.flatten(np.broadcast_to(raw[:1], shape), writable=False), threads)
    if units.scratch <= cpu._MAX_SCRATCH:
        assert units.scratch * units.threads(threads) <= 16 << 20


# --- speed that does not depend on a clock -----------------------------------------------------------

_U16 = types.Array(types.uint16, 1, "C", readonly=True)
_U8, _F32, _I16, _INT = types.uint8[::1], types.float32[::1], types.int16[::1], types.int64


def assembly(function, *signature):
    """Assembly of a helper of kernels, compiled by itself for this processor."""
    compiled = njit(**jit._KERNEL)(function.py_func)
    compiled.compile(signature)
    return compiled.inspect_asm(compiled.signatures[0])


_STATISTICS = statistics.make_statistics(convert.widen_bf16, convert.key_16, convert.unkey_16)
_ROW_CODES = codes.make_codes(convert.widen_bf16)
_HOT = {
    "codes": (_ROW_CODES, (_INT, _U16, _F32, _F32, _F32, _INT, _F32, _U8), r"vf?n?madd\w*ps\s.*zmm"),
    "statistics along tokens": (_STATISTICS.chunk_of_rows, (_U16, _INT, _INT, _INT, _I16, _I16), r"vpminsw\s.*zmm"),
    "statistics along channels": (
        _STATISTICS.chunks_of_row,
        (_U16, types.int64[::1], _INT, _I16, _I16),
        r"vpminsw\s.*zmm",
    ),
    "split and pack": (bits.pack_nibbles, (_U8, _U8, _U8, _U8), r"vpsubb\s.*zmm"),
    "join": (bits.join_nibbles, (_U8, _U8, _U8, _U8), r"vpternlogq|vpandq\s.*zmm|vpor.*zmm"),
    "values of a row": (
        decode.make_writers(convert.narrow_bf16)[0],
        (*[_F32] * 5, types.uint16[::1]),
        r"vmaxps\s.*zmm",
    ),
    "values of a chunk": (
        decode.make_writers(convert.narrow_bf16)[1],
        (_F32, *[types.float32] * 4, types.uint16[::1]),
        r"vmaxps\s.*zmm",
    ),
    "scan": (scan._any_row, (_U16, types.uint16), r"vpmaxuw\s.*zmm"),
}


@pytest.mark.skipif(not lookup.has_byte_permute(), reason="the patterns are those of AVX-512")
@pytest.mark.parametrize(("function", "signature", "pattern"), _HOT.values(), ids=_HOT)
def test_hot_loops_are_vectors(function, signature, pattern):
    text = assembly(function, *signature)
    assert re.search(pattern, text), "this loop is not made of vector instructions any more"
    assert not re.search(r"vpmovzx\w*q\s.*zmm", text), "lanes of 64 bits: an integer was widened"


@pytest.mark.skipif(not lookup.has_byte_permute(), reason="needs AVX-512 VBMI")
def test_look_ups_permute_bytes():
    text = assembly(lookup.lookup_row, _F32, _U8, _F32)
    assert re.search(r"vperm[it]2b", text)


# --- start-up, and what is not there -----------------------------------------------------------------


def python(code, *, check=True, folder=None, **environment):
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **environment}
    )
    assert not check or process.returncode == 0, process.stderr
    return process


_FIRST = """
import json, numba.core.dispatcher as d
import numpy as np, lynxq
compiled = []
real = d._FunctionCompiler.compile
d._FunctionCompiler.compile = lambda self, args, ret: (compiled.append(self.py_func.__name__), real(self, args, ret))[1]
x = np.arange(24000, dtype=np.float32).reshape(300, 80)
encoded = lynxq.encode(x, token_axis=0, backend="cpu")
lynxq.decode_full(encoded, backend="cpu")
import lynxq.backends.cpu.kernels.encode as kernels
print(json.dumps([compiled, int(encoded.anchor.sum()), lynxq.__file__, kernels.encode_f32.stats.cache_path]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the package whose folders cannot be written: `__pycache__` is a file (the tests may run as root)."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT, folder / "lynxq", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("backends", "backends/cpu", "backends/cpu/kernels"):
        (folder / "lynxq" / name / "__pycache__").write_text("")
    return folder


def test_a_read_only_install_uses_the_users_cache_and_a_second_process_compiles_nothing(installed, tmp_path):
    environment = {
        "XDG_CACHE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_CACHE_DIR": "",
    }
    first, second = (json.loads(python(_FIRST, folder=tmp_path, **environment).stdout) for _ in range(2))
    assert Path(first[2]).is_relative_to(installed)
    assert Path(first[3]).is_relative_to(tmp_path)
    assert "encode_f32" in first[0]
    assert second[0] == []
    assert first[1] == second[1]


def test_a_changed_helper_is_not_taken_from_the_cache():
    assert jit._digest() == jit.SOURCE
    assert jit.SOURCE in [cell.cell_contents for cell in cpu.encode_f32.py_func.__closure__]


_WITHOUT = """
import json, sys, warnings
{block}
import numpy as np, lynxq
from lynxq import backends
from lynxq.errors import BackendError
x = np.arange(600, dtype=np.float32).reshape(300, 2)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        encoded = lynxq.encode(x, token_axis=0)
        lynxq.decode_full(encoded)
    there = backends.available()
try:
    backends.get("cpu")
except BackendError as error:
    message = str(error)
print(json.dumps([[str(w.message) for w in caught], there, message, backends.get().name, int(encoded.anchor.sum())]))
"""


_BROKEN = """
import importlib.abc
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numba":
            raise SystemError("numba needs another numpy")
sys.meta_path.insert(0, Broken())
"""


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("sys.modules['numba'] = None", "numba is not installed: pip install numba"),
        (
            "import types; sys.modules['numba'] = types.ModuleType('numba')",
            "ImportError",
        ),
        (
            _BROKEN,
            "SystemError: numba needs another numpy",
        ),
    ],
    ids=["missing", "wrong", "broken"],
)
def test_without_numba(block, reason):
    shown, there, message, name, total = json.loads(python(_WITHOUT.format(block=block)).stdout)
    assert len(shown) == 1
    assert reason in shown[0]
    assert there["reference"] is None
    assert reason in there["cpu"]
    assert reason in message
    assert name == "reference"
    x = np.arange(600, dtype=np.float32).reshape(300, 2)
    assert total == int(lynxq.encode(x, token_axis=0).anchor.sum())


def test_what_is_there():
    there = backends.available()
    assert {name: there[name] for name in ("cpu", "reference")} == dict.fromkeys(("cpu", "reference"))
    assert set(there) == {"cpu", "reference", "cuda"}
    assert backends.get().name == "cpu"
    with pytest.raises(BackendError, match="backend must be one of cpu, reference, got 'gpu'"):
        backends.get("gpu")


def test_warmup_compiles_nothing_twice():
    backends.warmup()
    before = [kernel.signatures for kernel in (*cpu._ENCODE.values(), *cpu._DECODE.values())]
    backends.warmup()
    assert [kernel.signatures for kernel in (*cpu._ENCODE.values(), *cpu._DECODE.values())] == before
    assert all(len(signatures) == 1 for signatures in before)


def test_one_specialization_for_each_type_of_elements():
    for kind in testing.MEMORY:
        for params in (KEYS, VALUES, Params.paper()):
            x = testing.MEMORY[kind](tensor((40, 3, 70), "float32"))
            encoded = lynxq.encode(x, params, token_axis=0, backend="cpu", threads=2)
            out = testing.MEMORY[kind](np.empty((40, 3, 70), np.float32))
            if out.flags.writeable:
                lynxq.decode_full(encoded, backend="cpu", out=out)
    assert len(cpu.encode_f32.signatures) == 1
    assert len(cpu.decode_f32.signatures) == 1
    assert arrays.as_raw(x).dtype.name == "float32"


@pytest.mark.parametrize("damage", ["empty", "half", "nonsense"])
def test_a_damaged_kernel_cache_is_made_anew(tmp_path, damage):
    script = tmp_path / "script.py"
    script.write_text(
        "from lynxq.backends.cpu.kernels.jit import kernel\n"
        "@kernel\ndef more(x):\n    return x + 1\n"
        "print(more(1), sum(more.stats.cache_hits.values()))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT.parent)}
    printed = []
    for _ in range(4):
        command = [sys.executable, str(script)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        printed.append(result.stdout)
        if len(printed) == 2:
            files = [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.nbc")]
            assert len(files) == 2
            for path in files:
                data = path.read_bytes()
                path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "nonsense": b"\x80" * 99}[damage])
    assert printed == ["2 0\n", "2 1\n", "2 0\n", "2 1\n"]


def test_without_compilation_the_reference_is_taken():
    code = "import numpy as np, lynxq; print(lynxq.backends.available()['cpu'])"
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT.parent)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert "NUMBA_DISABLE_JIT" in result.stdout
