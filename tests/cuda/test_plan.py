"""Launch plans: what is decided before a kernel runs."""

from __future__ import annotations

import numpy as np
import pytest

from lynxq import Params, companding
from lynxq.backends.cuda import plan as cuda_plan
from lynxq.backends.cuda import tables as cuda_tables
from lynxq.backends.cuda.memory import Memory
from lynxq.backends.cuda.plan import plan
from lynxq.errors import BackendError
from lynxq.layout import Layout
from tests.cuda import cases, host
from tests.cuda.tools import needs_compiler


def _launch(operation, layout, address=1 << 20):
    itemsize = layout.dtype.itemsize
    strides = np.cumprod([itemsize, *layout.shape[:0:-1]])[::-1].tolist()
    memory = Memory.of(address, layout.shape, strides, layout.token_axis)
    return plan(operation, layout, memory, layout.dtype, anchor=1 << 30, residual=1 << 31)


@needs_compiler
def test_struct_of_python_and_of_the_kernels_agree():
    source = """
    #include "plan.cuh"
    extern "C" __global__ void sizes(i64* out) {
        const i64 all[] = {sizeof(Plan), offsetof(Plan, report), offsetof(Plan, sinks), offsetof(Plan, full_residual),
                           offsetof(Plan, outer_stride), offsetof(Plan, inner_stride), offsetof(Plan, kinds),
                           sizeof(PageKind)};
        for (int k = 0; k < 8; ++k) out[k] = all[k];
    }"""
    out = np.zeros(8, np.int64)
    host.HostModule(source, (f"-I{host.KERNELS}", "-DWIDE=0")).launch("sizes", 1, 1, out)
    fields = cuda_plan.PLAN.fields
    names = ("report", "sinks", "full_residual", "outer_stride", "inner_stride", "kinds")
    assert out.tolist() == [cuda_plan.PLAN.itemsize, *(fields[name][1] for name in names), cuda_plan._KIND.itemsize]


def test_argument_fits_what_every_driver_accepts():
    assert cuda_plan.PLAN.itemsize <= 4096


@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("operation", ["encode", "decode_anchor", "decode_full", "nonfinite"])
def test_blocks_cover_the_tensor_and_fit_a_gpu(name, operation):
    layout = cases.CASES[name].layout()
    launch = _launch(operation, layout)
    if launch is None:
        assert not layout.elements
        return
    defines = dict(launch.defines)
    assert 1 <= launch.threads == defines["LANES"] * defines["STRIPS"] <= 256
    tiles, groups = int(launch.argument["tiles"]), int(launch.argument["groups"])
    assert launch.blocks % (tiles * groups) == 0
    if defines.get("ENCODER") == 1:
        assert launch.threads % 32 == 0, "every lane of a warp takes part in a shuffle"


def test_presets_move_sixteen_bytes_at_a_time_and_fill_cache_lines():
    for params in (Params.keys(), Params.values()):
        for dtype, wide in (("bfloat16", 8), ("float32", 4)):
            layout = Layout.of(params, (8192, 8, 128), dtype, token_axis=0)
            for operation in ("encode", "decode_full", "nonfinite"):
                defines = dict(_launch(operation, layout).defines)
                assert defines["VEC"] == wide
                assert defines["LANES"] >= 8
            assert dict(_launch("encode", layout).defines)["ENCODER"] == (0 if params.axis == "token" else 1)


@pytest.mark.parametrize(("address", "wide", "bytewise"), [(4096, 8, 0), (4098, 1, 0), (4097, 1, 1)])
def test_alignment_of_the_array_decides_how_it_is_read(address, wide, bytewise):
    layout = Layout.of(Params.keys(), (300, 64), "bfloat16", token_axis=0)
    defines = dict(_launch("encode", layout, address).defines)
    assert (defines["VEC"], defines["BYTEWISE"]) == (wide, bytewise)


def test_neighbouring_axes_become_one():
    memory = Memory.of(0, (2, 3, 5, 1, 7, 11), (10000, 3000, 77, 999, 11, 1), 2)
    assert (memory.outer, memory.inner, memory.token_stride) == (((2, 10000), (3, 3000)), ((77, 1),), 77)
    assert Memory.of(0, (2, 3, 5), (300, 100, 4), 2).outer == ((6, 100),)


def test_tensors_beyond_two_to_the_31_elements_are_planned():
    layout = Layout.of(Params.keys(), (2, 64, 1 << 20, 1024), "bfloat16", token_axis=2)
    launch = _launch("encode", layout)
    assert launch.blocks == 2 * 64 * (1 << 20) // 256 * 1024 // 64
    assert int(launch.argument["full_anchor"]) * layout.pages > 2**32


def test_a_tensor_too_large_for_one_grid_is_refused():
    layout = Layout.of(Params.keys(page=8, range_size=8, chunk=8), (1 << 34, 64), "bfloat16", token_axis=0)
    with pytest.raises(BackendError, match="thread blocks"):
        _launch("encode", layout)


@pytest.mark.parametrize("count", [96, 112, 120, 124])
@pytest.mark.parametrize("alpha", [0.0, 1e-6, 0.5, 2.0, 10.0, 50.0, 100.0, 255.0, 1e6])
def test_grid_finds_the_level_of_every_critical_value(alpha, count):
    """Every threshold and its neighbours, and every edge of a cell and its neighbours."""
    grid, thresholds = cuda_tables.grid(alpha, count), companding.thresholds(alpha, count)
    if not grid.bits:
        return
    edges = ((np.arange(2 << grid.bits) - 0.125) / (1 << grid.bits)).astype(np.float32)
    critical = np.concatenate([thresholds, edges, np.float32([0, 1, 2**-149, 1 + 2**-23])])
    t = np.concatenate([np.nextafter(critical, np.float32(side)) for side in (-9, 9)] + [critical])
    t = t[(t >= 0) & (t < 1.5)]
    cell = (t + np.float32(2.0 ** (21 - grid.bits))).view(np.uint32) & np.uint32((8 << grid.bits) - 4)
    level = grid.below[cell // 4] + (t >= grid.next[cell // 4])
    assert np.array_equal(level, np.searchsorted(thresholds, t, side="right"))


def test_grid_is_there_for_the_default():
    assert cuda_tables.grid(0.5, 112).bits == 8
