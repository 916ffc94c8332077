"""The PTX translator and the policy: they must see what a compiler option does, and refuse what they do not know."""

from __future__ import annotations

import numpy as np
import pytest

from lynxq.backends.cuda import nvrtc
from tests.cuda import cases, policy, ptx
from tests.cuda.host import HostModule
from tests.cuda.test_plan import _launch
from tests.cuda.tools import needs_compiler, needs_cuobjdump, needs_nvrtc, resources

pytestmark = [needs_compiler, needs_nvrtc]

CONTRACTIBLE = """
extern "C" __global__ void k(const float* a, const float* b, const float* c, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a[i] * b[i] + c[i];
}"""
INTEGERS = """
extern "C" __global__ void k(const unsigned* a, const unsigned* b, unsigned* out) {
    const int i = threadIdx.x;
    const int s = (int)a[i], t = (int)b[i];
    out[i] = __byte_perm(a[i], b[i], 0x5170);
    out[32 + i] = (unsigned)(s >> (b[i] & 31)) + (a[i] << (b[i] & 7));
    out[64 + i] = (unsigned)(((long long)s * t) >> 13);
    out[96 + i] = __umulhi(a[i], b[i]) + (unsigned)(s % (t | 1)) + a[i] / (b[i] | 1);
    out[128 + i] = (unsigned)(short)a[i] + (unsigned)(int)(signed char)b[i];
    out[160 + i] = __shfl_xor_sync(0xffffffffu, a[i], 5) + __shfl_sync(0xffffffffu, b[i], i + 1, 8);
    out[192 + i] = (unsigned)min(s, t) ^ (a[i] < b[i] ? a[i] : ~b[i]);
    out[224 + i] = (unsigned)__float2int_rz((float)s) + __float2uint_rz(fabsf((float)t));
}"""


def _module(source: str, *options: str, strict: bool = True) -> HostModule:
    code = nvrtc.compile_source(source, ("-arch=sm_90", "-default-device", *options), "test.cu")
    return HostModule(ptx.translate(code.ptx, strict=strict), translated=True)


def _operands():
    random = np.random.default_rng(3)
    a, b, c = (random.standard_normal(4096).astype(np.float32) * np.float32(10) for _ in "abc")
    a[:64] = np.float32(2.0**-130)
    b[:64] = np.float32(1.5)
    c[:64] = 0
    return a, b, c


def test_compiler_options_show_as_wrong_bits():
    a, b, c = _operands()
    out = np.zeros_like(a)
    _module(CONTRACTIBLE, "-fmad=false", strict=False).launch("k", 16, 256, a, b, c, out)
    expected = a * b + c
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("options", [(), ("-ftz=true", "-fmad=false")])
def test_contraction_and_flush_to_zero_are_refused(options):
    with pytest.raises(ptx.InexactError, match="not bit-exact"):
        _module(CONTRACTIBLE, *options)


def test_unknown_operations_are_refused():
    head = ".visible .entry k(.param .u64 p)\n{\n"
    for body in ("lg2.rn.f32 %f1, %f2;", "mma.sync.aligned %r1;", "ld.global.u32 %r1, [nowhere];"):
        with pytest.raises(ptx.UnknownError):
            ptx.translate(f"{head} .reg .b32 %r<9>;\n .reg .f32 %f<9>;\n {body}\n ret;\n}}", strict=False)


def test_integer_operations_agree_with_the_source():
    random = np.random.default_rng(5)
    a, b = (random.integers(0, 2**32, 32, dtype=np.uint64).astype(np.uint32) for _ in "ab")
    a[:4], b[:4] = (0, 1, 2**31, 2**32 - 1), (1, 0, 31, 5)
    results = [np.zeros(256, np.uint32) for _ in range(2)]
    HostModule(INTEGERS).launch("k", 1, 32, a, b, results[0])
    _module(INTEGERS).launch("k", 1, 32, a, b, results[1])
    assert np.array_equal(*results)


@pytest.mark.parametrize("pair", ["bf16", "f16"])
def test_pairs_are_compared_and_converted_half_by_half(pair):
    source = """extern "C" __global__ void k(const unsigned* a, const unsigned* b, const float* f, unsigned* out) {
        const int i = threadIdx.x;
        asm("min.TYPEx2 %0, %1, %2;" : "=r"(out[i]) : "r"(a[i]), "r"(b[i]));
        asm("max.TYPEx2 %0, %1, %2;" : "=r"(out[32 + i]) : "r"(a[i]), "r"(b[i]));
        asm("cvt.rn.TYPEx2.f32 %0, %1, %2;" : "=r"(out[64 + i]) : "f"(f[i]), "f"(f[i] * 2.0f));
    }""".replace("TYPE", pair)
    kind = np.dtype(np.float16)
    random = np.random.default_rng(1)
    low, high = (random.standard_normal((2, 32)).astype(kind) for _ in "ab")
    if pair == "bf16":  # halves that are exact in both, and no zeros, of which numpy takes either
        low, high = (np.round(v * 4) + kind.type(0.5) for v in (low, high))

    def shape(v):
        return v.astype(np.float32).view(np.uint32) >> 16 if pair == "bf16" else v.view(np.uint16).astype(np.uint32)

    word = lambda v: (shape(v)[0] | shape(v)[1] << 16).astype(np.uint32)  # noqa: E731
    floats = random.standard_normal(32).astype(np.float32)
    out = np.zeros(96, np.uint32)
    _module(source, "-fmad=false").launch("k", 1, 32, word(low), word(high), floats, out)
    assert np.array_equal(out[:32], word(np.minimum(low, high)))
    assert np.array_equal(out[32:64], word(np.maximum(low, high)))
    if pair == "f16":
        assert np.array_equal(out[64:] >> 16, floats.astype(np.float16).view(np.uint16))
        assert np.array_equal(out[64:] & 0xFFFF, (floats * 2).astype(np.float16).view(np.uint16))


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", cases.FEW)
def test_kernels_keep_the_policy(name, architecture):
    for operation in ("encode", "decode_full", "nonfinite"):
        launch = _launch(operation, cases.CASES[name].layout())
        found = policy.float_operations(nvrtc.compile_unit(launch.unit, launch.defines, architecture).ptx)
        assert launch.kernel in found
        for kernel, operations in found.items():
            assert not [op for op in operations if policy.inexact(op)], kernel


def test_policy_has_teeth():
    launch = _launch("encode", cases.CASES["keys"].layout())
    source = f'#define BROKEN\n#include "{launch.unit}.cu"\n'
    options = ("-arch=sm_90", "-default-device", "-ftz=true", f"-I{nvrtc.KERNELS}", *nvrtc.definitions(launch.defines))
    operations = policy.float_operations(nvrtc.compile_source(source, options, "broken.cu").ptx)[launch.kernel]
    assert any(policy.inexact(op) for op in operations), "what CuPy's option makes of the kernels must be refused"


@needs_cuobjdump
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(
    ("name", "registers"), [("keys", 80), ("keys float32", 72), ("values", 72), ("values float32", 72)]
)
def test_kernels_of_the_presets_spill_nothing_and_leave_room_for_three_blocks(name, registers, architecture):
    for operation in ("encode", "decode_full"):
        launch = _launch(operation, cases.CASES[name].layout())
        for kernel, used in resources(nvrtc.compile_unit(launch.unit, launch.defines, architecture).cubin).items():
            assert used["STACK"] == used["LOCAL"] == 0, (kernel, used)
            assert used["REG"] <= registers, (kernel, used)
            assert used["SHARED"] <= 48 * 1024, (kernel, used)


@needs_cuobjdump
@pytest.mark.parametrize("name", [name for name in cases.FEW if name not in ("keys", "values")])
def test_other_kernels_keep_within_a_block_of_256_threads(name):
    for operation in ("encode", "decode_full"):
        launch = _launch(operation, cases.CASES[name].layout())
        for kernel, used in resources(nvrtc.compile_unit(launch.unit, launch.defines, 90).cubin).items():
            assert used["REG"] * launch.threads <= 65536, (kernel, used)
