"""The host shim: it must catch what a GPU would not forgive, and compute what a GPU computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.host import BuildError, HostModule
from tests.cuda.tools import needs_compiler

pytestmark = needs_compiler
HEAD = 'extern "C" __global__ void k(float* x) {'


def _run(body: str, threads: int = 64, order: int = 0) -> np.ndarray:
    x = np.arange(64, dtype=np.float32)
    module = HostModule(f"{HEAD} {body} }}")
    module.set_order(order)
    module.launch("k", 1, threads, x)
    return x


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if (threadIdx.x < 32) __syncthreads();", "exited while others wait"),
        ("if (threadIdx.x < 32) { __syncthreads();\n } else {\n __syncthreads(); }", "divergent __syncthreads"),
        ("x[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0);", "outside its own mask"),
        ("if (threadIdx.x & 1) x[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);", "exited|deadlock"),
    ],
)
def test_misuse_of_barriers_and_shuffles_is_reported(body, message):
    with pytest.raises(RuntimeError, match=message):
        _run(body)
    assert np.array_equal(_run("x[threadIdx.x] += 1;"), np.arange(1, 65)), "the engine works afterwards"


@pytest.mark.parametrize("expression", ["expf(x[0])", "__logf(x[0])", "rsqrtf(x[0])", "__fdividef(x[0], x[1])"])
def test_functions_that_are_not_exact_do_not_compile(expression):
    with pytest.raises(BuildError, match=r"poisoned|not declared"):
        _run(f"x[0] = {expression};")


def test_a_missing_barrier_shows():
    body = "__shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; {} x[threadIdx.x] = s[63 - threadIdx.x];"
    reverse = np.arange(64, dtype=np.float32)[::-1]
    for order in (0, 1, 7):
        assert np.array_equal(_run(body.format("__syncthreads();"), order=order), reverse)
        assert not np.array_equal(_run(body.format(""), order=order), reverse)


def test_shared_memory_starts_as_garbage():
    assert _run("__shared__ float s[64]; if (x[0] > 99) s[0] = 1; x[threadIdx.x] = s[threadIdx.x];")[0] != 0


def test_too_many_threads_are_refused():
    with pytest.raises(RuntimeError, match="invalid block size"):
        _run("x[0] = 1;", threads=2048)


def test_a_struct_is_passed_by_value():
    module = HostModule(
        'struct S { int a; double b; }; extern "C" __global__ void k(S s, double* x) { x[0] = s.a + s.b; }'
    )
    x = np.zeros(2)
    module.launch("k", 1, 1, np.array((3, 0.25), np.dtype([("a", "i4"), ("b", "f8")], align=True)), x)
    assert x[0] == 3.25


def test_conversions_of_all_halves_and_many_floats():
    source = """extern "C" __global__ void k(const unsigned short* h, float* wide, const float* f, unsigned short* half,
                                                 unsigned short* bf) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        wide[i] = __half2float(__ushort_as_half(h[i]));
        half[i] = __half_as_ushort(__float2half_rn(f[i]));
        bf[i] = __bfloat16_as_ushort(__float2bfloat16_rn(f[i]));
    }"""
    halves = np.arange(65536, dtype=np.uint16)
    bits = np.random.default_rng(1).integers(0, 2**32, 65536, dtype=np.uint64).astype(np.uint32)
    bits[:6] = 0x477FEFFF, 0x477FF000, 0x38800000, 0x387FFFFF, 0x33000000, 0x33000001
    floats = bits.view(np.float32)
    wide, half, bfloat = np.zeros(65536, np.float32), np.zeros(65536, np.uint16), np.zeros(65536, np.uint16)
    HostModule(source).launch("k", 256, 256, halves, wide, floats, half, bfloat)
    finite = ~np.isnan(halves.view(np.float16))
    assert np.array_equal(wide[finite], halves.view(np.float16).astype(np.float32)[finite])
    number = ~np.isnan(floats)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(half[number], floats.astype(np.float16).view(np.uint16)[number])
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert np.array_equal(bfloat[number], rounded.astype(np.uint16)[number])
