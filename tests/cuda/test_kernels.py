"""The kernels, compiled by the host's compiler and by NVIDIA's, against the reference: every byte, every bit."""

from __future__ import annotations

import json
import mmap

import numpy as np
import pytest

from lynxq import Params, arrays, dtypes, testing
from lynxq.backends.base import Backend
from lynxq.backends.reference import ReferenceBackend
from lynxq.layout import Layout
from tests.cuda import cases, host
from tests.cuda.tools import needs_compiler, needs_nvrtc
from tests.golden.cases import CASES as GOLDEN
from tests.golden.cases import digest
from tests.golden.regenerate import CHECKSUMS

pytestmark = needs_compiler


@pytest.mark.parametrize("name", cases.CASES)
def test_source_gives_the_bytes_of_the_reference_in_any_thread_order(name):
    for order in (0, 1, 12345):
        for seed in (0, 1):
            cases.check(host.backend("source", order), cases.CASES[name], seed)


@needs_nvrtc
@pytest.mark.parametrize(
    ("architecture", "name"),  # every kernel file for both, every case for one
    [*(("sm_80", name) for name in cases.FEW), *(("sm_90", name) for name in cases.CASES)],
)
def test_compiler_output_gives_the_bytes_of_the_reference(name, architecture):
    for order in (0, 999):
        cases.check(host.backend(architecture, order), cases.CASES[name])


@pytest.mark.parametrize("content", testing.CONTENTS)
@pytest.mark.parametrize("name", cases.FEW)
def test_hostile_contents(name, content):
    case = cases.CASES[name]
    for seed in range(3):
        cases.check(host.backend(), cases.Case(**{**vars(case), "content": content}), seed)


@needs_nvrtc
@pytest.mark.parametrize("content", testing.CONTENTS)
@pytest.mark.parametrize("name", ["keys float32", "mean float32", "channel mean short head", "into float16"])
def test_hostile_contents_of_compiler_output(name, content):
    case = cases.CASES[name]
    for seed in range(3):
        cases.check(host.backend("sm_90"), cases.Case(**{**vars(case), "content": content}), seed)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_checksums(name):
    case, known = GOLDEN[name], json.loads(CHECKSUMS.read_text(encoding="utf-8"))[name]
    source = arrays.as_raw(case.make())
    layout = Layout.of(case.params, source.raw.shape, source.dtype, token_axis=case.token_axis, **case.options)
    backend = host.backend()
    anchor, residual = (np.full(layout.stream_size(stream), 0xA5, np.uint8) for stream in ("anchor", "residual"))
    backend.encode(layout, source.raw, anchor, residual)
    assert digest(anchor) == known["anchor"]
    assert digest(residual) == known["residual"]
    for low, key in ((None, "decode_anchor"), (residual, "decode_full")):
        out = np.full(layout.shape, 77, layout.dtype.raw)
        backend.decode(layout, anchor, low, out, layout.dtype)
        assert digest(out) == known[key]


@pytest.mark.parametrize("kind", ["source", pytest.param("sm_90", marks=needs_nvrtc)])
@pytest.mark.parametrize("dtype", dtypes.BY_NAME)
@pytest.mark.parametrize("memory", ["contiguous", "strided", "unaligned"])
def test_non_finite_values_are_counted_and_the_first_is_found(kind, dtype, memory):
    values = testing.contents("extremes", (2, 300, 16), dtype)
    layout = Layout.of(Params.keys(), values.shape, dtype, token_axis=1, valid_tokens=290)
    backend = host.backend(kind, order=5)
    x = arrays.as_raw(testing.MEMORY[memory](values)).raw
    assert backend.first_nonfinite(layout, x) is None
    values[0, 295, 3] = np.nan  # not a valid token
    values[1, 289, 15] = np.nan
    values[1, 4, 2] = -np.inf
    values[0, 257, 1] = np.inf
    x = arrays.as_raw(testing.MEMORY[memory](values)).raw
    assert backend.first_nonfinite(layout, x) == (3, (0, 257, 1))


@pytest.mark.parametrize("name", ["keys", "values", "paper", "mean float32"])
def test_what_is_not_finite_harms_nothing_but_its_run(name):
    case = cases.CASES[name]
    x = arrays.as_raw(case.tensor()).raw.copy()
    x.reshape(-1)[-3] = 0x7FC0 if x.dtype == np.uint16 else np.nan
    layout = case.layout()
    wanted, got = ([np.zeros(layout.stream_size(s), np.uint8) for s in ("anchor", "residual")] for _ in "ab")
    ReferenceBackend().encode(layout, arrays.as_raw(case.tensor()).raw, *wanted)
    host.backend().encode(layout, x, *got)
    differ = sum(int(np.count_nonzero(a != b)) for a, b in zip(wanted, got, strict=True))
    assert 0 < differ < 3 * case.params.page


def far_apart(backend: Backend) -> bool:
    """Whether a backend agrees with the reference on tokens that lie further than 2^32 bytes apart."""
    step = (1 << 27) + 16  # in memory of which little is ever touched
    with mmap.mmap(-1, 40 * step) as memory:
        room = np.frombuffer(memory, np.uint8)
        x = np.lib.stride_tricks.as_strided(room.view(np.float32), (40, 16), (step, 4))
        x[:] = testing.contents("normal", x.shape, "float32")
        layout = Layout.of(Params.keys(), x.shape, "float32", token_axis=0)
        wanted, got = ([np.zeros(layout.stream_size(s), np.uint8) for s in ("anchor", "residual")] for _ in "ab")
        ReferenceBackend().encode(layout, x.copy(), *wanted)
        backend.encode(layout, x, *got)
        out = np.empty(x.shape, np.float32)
        ReferenceBackend().decode(layout, *wanted, out, layout.dtype)
        backend.decode(layout, *wanted, x, layout.dtype)
        same = all(np.array_equal(a, b) for a, b in zip((*wanted, out), (*got, x.copy()), strict=True))
        del x, room
    return same


def test_offsets_have_64_bits():
    assert far_apart(host.backend())
