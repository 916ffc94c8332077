"""The CUDA backend from the public functions down, with a fake CuPy whose kernels run on the CPU."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

import lynxq
from lynxq import Params, backends, paged, testing
from lynxq.backends import placement
from lynxq.backends.cuda import nvrtc
from lynxq.errors import BackendError, DTypeError, NonFiniteError, ShapeError
from tests.cuda import fake_cupy
from tests.cuda.fake_cupy import STATE
from tests.cuda.tools import needs_compiler, needs_nvrtc

pytestmark = [needs_compiler, needs_nvrtc]


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    """A machine with one GPU, as far as lynxq can tell."""
    STATE.reset()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)

    def path(unit, defines, architecture):
        name = str(tmp_path / f"{len(STATE.paths)}.cubin")
        STATE.paths[name] = unit, defines, architecture
        return name

    monkeypatch.setattr(nvrtc, "cubin_path", path)
    placement._load.cache_clear()
    yield fake_cupy
    placement._load.cache_clear()
    STATE.reset()


def _keys(dtype="bfloat16", shape=(300, 2, 64)):
    return testing.contents("normal", shape, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("preset", [Params.keys, Params.values])
def test_cupy_arrays_give_the_bytes_of_numpy_arrays(cupy, dtype, preset):
    x = _keys(dtype)
    expected = lynxq.encode(x, preset(), token_axis=0)
    encoded = lynxq.encode(cupy.asarray(x), preset(), token_axis=0)
    assert encoded.library == "cupy"
    assert isinstance(encoded.anchor, cupy.ndarray)
    host = encoded.to_host()
    assert host.library == "numpy"
    assert np.array_equal(host.anchor, expected.anchor)
    assert np.array_equal(host.residual, expected.residual)
    for decode in (lynxq.decode_anchor, lynxq.decode_full):
        out = decode(encoded)
        assert isinstance(out, cupy.ndarray)
        assert np.array_equal(out.get().view(np.uint8), decode(expected).view(np.uint8))


def test_without_the_check_nothing_waits_and_one_kernel_runs(cupy):
    x = cupy.asarray(_keys())
    out = lynxq.encode(x, token_axis=0)  # the first use compiles, and tests the device
    decoded = lynxq.decode_full(out)
    lynxq.decode_anchor(out, out=decoded)
    STATE.waits, STATE.launches = 0, []
    lynxq.encode(x, token_axis=0, out=out, check=False)
    lynxq.decode_anchor(out, out=decoded)
    lynxq.decode_full(out, out=decoded)  # over the anchor decode: the residual needs no second tensor
    assert STATE.waits == 0
    assert [name for name, _, _ in STATE.launches] == ["lynxq_encode", "lynxq_decode_anchor", "lynxq_decode_full"]
    expected = lynxq.decode_full(lynxq.encode(_keys(), token_axis=0))
    assert np.array_equal(decoded.get().view(np.uint16), expected.view(np.uint16))


def test_work_is_put_on_the_callers_stream_and_device(cupy):
    x = fake_cupy.ndarray(_keys(), device=3)
    encoded = lynxq.encode(x, token_axis=0)
    STATE.launches = []
    with cupy.cuda.ExternalStream(77):
        encoded = lynxq.encode(x, token_axis=0)
        lynxq.decode_full(encoded)
    assert {(device, stream) for _, device, stream in STATE.launches} == {(3, 77)}
    assert encoded.anchor.device.id == 3
    assert (STATE.device, STATE.stream) == (0, 0), "what is current for the caller stays so"


def test_the_check_finds_what_is_not_finite_and_leaves_out_alone(cupy):
    x = _keys("float32")
    out = lynxq.encode(cupy.asarray(x), token_axis=0)
    before = out.anchor.get()
    x[7, 1, 3] = np.inf
    with pytest.raises(NonFiniteError) as caught:
        lynxq.encode(cupy.asarray(x), token_axis=0, out=out)
    assert (caught.value.count, caught.value.first_index) == (1, (7, 1, 3))
    assert np.array_equal(out.anchor.get(), before)


def test_a_gpu_that_computes_something_else_is_refused(cupy):
    STATE.break_kernels = True
    with pytest.raises(BackendError, match="self-test of backend 'cuda' failed on device 0"):
        lynxq.encode(cupy.asarray(_keys()), token_axis=0, check=False)


def test_arrays_and_backends_must_fit(cupy):
    x = _keys()
    on_device = cupy.asarray(x)
    encoded = lynxq.encode(on_device, token_axis=0)
    for call, error, message in (
        (lambda: lynxq.encode(on_device, token_axis=0, backend="reference"), BackendError, "needs backend 'cuda'"),
        (lambda: lynxq.encode(x, token_axis=0, backend="cuda"), BackendError, "needs an array on a CUDA device"),
        (lambda: lynxq.decode_full(encoded, out=np.empty_like(x)), DTypeError, "out must be a cupy array"),
        (lambda: lynxq.decode_full(encoded, out=cupy.empty((1, 2), x.dtype)), ShapeError, "out must have shape"),
        (lambda: lynxq.decode_full(encoded, dtype="float32", out=on_device), DTypeError, "out must have dtype"),
        (lambda: lynxq.decode_full(encoded, out=fake_cupy.ndarray(x, device=1)), DTypeError, "on the device"),
        (lambda: lynxq.decode_full(lynxq.encode(x, token_axis=0), out=on_device), DTypeError, "out must be a numpy"),
        (lambda: lynxq.encode(cupy.asarray(np.arange(8)), token_axis=0), DTypeError, "convert it first"),
        (lambda: lynxq.encode(x, token_axis=0, out=encoded), DTypeError, "numpy arrays"),
    ):
        with pytest.raises(error, match=message):
            call()
    repeated = np.broadcast_to(np.zeros((1, 2, 64), ml_dtypes.bfloat16), x.shape)
    with pytest.raises(ShapeError, match="overlap itself"):
        lynxq.decode_full(encoded, out=fake_cupy.ndarray(repeated))


def test_streams_of_an_encode_must_not_share_memory(cupy):
    x = cupy.asarray(_keys())
    encoded = lynxq.encode(x, token_axis=0)
    same = lynxq.Encoded(
        encoded.layout, encoded.anchor, fake_cupy.ndarray(encoded.anchor._values[: encoded.residual.size])
    )
    with pytest.raises(ShapeError, match="share memory"):
        lynxq.encode(x, token_axis=0, out=same)


def test_paged_caches_on_a_device(cupy):
    cache = _keys(shape=(40, 16, 2, 64)).transpose(0, 2, 1, 3)  # NHD seen as (blocks, heads, slots, head_dim)
    table = np.random.default_rng(0).permutation(40)[:19].astype(np.int32)
    expected = paged.encode_paged(cache, table, tokens=300)
    encoded = paged.encode_paged(fake_cupy.ndarray(cache), cupy.asarray(table), tokens=300)
    assert np.array_equal(encoded.anchor.get(), expected.anchor)
    STATE.waits, STATE.launches = 0, []
    target = fake_cupy.ndarray(np.zeros_like(cache))
    paged.decode_full_paged(encoded, target, cupy.asarray(table))
    assert STATE.waits == 0
    assert len(STATE.launches) == 1
    wanted = np.zeros_like(cache)
    paged.decode_full_paged(expected, wanted, table)
    assert np.array_equal(target.get().view(np.uint16), wanted.view(np.uint16))
    with pytest.raises(DTypeError, match="where the cache is"):
        paged.encode_paged(fake_cupy.ndarray(cache), table, tokens=300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: setattr(STATE, "failure", RuntimeError("cudaErrorInsufficientDriver")),
            "no usable NVIDIA driver or GPU",
        ),
        (lambda: setattr(STATE, "devices", 0), "no CUDA device"),
    ],
)
def test_what_is_missing_is_said_and_not_raised(cupy, change, message):
    change()
    assert message in backends.available()["cuda"]
    with pytest.raises(BackendError, match=message):
        lynxq.encode(cupy.asarray(_keys()), token_axis=0)


def test_a_missing_cupy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    placement._load.cache_clear()
    assert "CuPy cannot be imported" in backends.available()["cuda"]
    placement._load.cache_clear()


def test_a_missing_compiler_is_said(cupy, monkeypatch):
    monkeypatch.setattr(nvrtc, "_candidates", lambda: ["/nowhere/libnvrtc.so"])
    for function in (nvrtc.library, nvrtc.version):
        function.cache_clear()
    assert backends.available()["cuda"] == "NVRTC is not installed: pip install nvidia-cuda-nvrtc"
    for function in (nvrtc.library, nvrtc.version):
        function.cache_clear()


def test_a_machine_with_a_gpu_has_the_backend(cupy):
    assert backends.available()["cuda"] is None
