"""torch tensors on the CPU: the same bytes as numpy, torch back, and no copies."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given

import lynxq
from lynxq import Encoded, LynxqError, Params, testing
from lynxq.errors import DTypeError, NonFiniteError, ShapeError
from tests.scalar_model import DTYPES

DECODES = (lynxq.decode_anchor, lynxq.decode_full)
NAMES = sorted(DTYPES)


def to_torch(x):
    """The same bits as a tensor."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16).reshape(x.shape)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(x).reshape(x.shape))


def bits(tensor):
    """Bytes of an array or a tensor."""
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    return tensor.detach().contiguous().view(torch.uint8 if tensor.ndim else tensor.dtype).numpy().tobytes()


def sample(dtype="float32", shape=(40, 2, 6)):
    x = testing.contents("outliers", shape, dtype, seed=9)
    return x, to_torch(x.copy())


def check_same(tensor, x, **arguments):
    encoded, wanted = lynxq.encode(tensor, **arguments), lynxq.encode(x, **arguments)
    assert isinstance(encoded.anchor, torch.Tensor)
    assert isinstance(encoded.residual, torch.Tensor)
    assert encoded.anchor.dtype == encoded.residual.dtype == torch.uint8
    assert encoded.layout == wanted.layout
    assert encoded.framework == "torch"
    assert bits(encoded.anchor) == bits(wanted.anchor)
    assert bits(encoded.residual) == bits(wanted.residual)
    return encoded, wanted


@given(testing.tensors(memory=False), testing.params())
def test_the_same_bytes_and_bits_as_numpy(sample, params):
    x, axis = sample
    encoded, wanted = check_same(to_torch(x.copy()), x, params=params, token_axis=axis)
    for decode in DECODES:
        decoded = decode(encoded)
        assert isinstance(decoded, torch.Tensor)
        assert decoded.dtype == getattr(torch, x.dtype.name)
        assert tuple(decoded.shape) == x.shape
        assert bits(decoded) == bits(decode(wanted))
    assert np.array_equal(lynxq.error_bound(encoded), lynxq.error_bound(wanted))
    part = encoded.pages(0, encoded.layout.pages)
    assert isinstance(part.anchor, torch.Tensor)


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_every_dtype_into_every_dtype(source, target):
    x, tensor = sample(source)
    encoded, wanted = check_same(tensor, x, token_axis=0)
    for name in (target, f"torch.{target}", getattr(torch, target), DTYPES[target]):
        decoded = lynxq.decode_full(encoded, dtype=name)
        assert decoded.dtype == getattr(torch, target)
        assert bits(decoded) == bits(lynxq.decode_full(wanted, dtype=target))


@pytest.mark.parametrize("dtype", NAMES)
def test_strided_tensors(dtype):
    x, tensor = sample(dtype)
    views = [
        (tensor.transpose(0, 1), x.transpose(1, 0, 2), 1),
        (tensor.permute(2, 1, 0), x.transpose(2, 1, 0), -1),
        (tensor[::3, :, 1::2], x[::3, :, 1::2], 0),
        (tensor[5:, 1], x[5:, 1], 0),
        (tensor[:, :, :1].expand(40, 2, 6), np.broadcast_to(x[:, :, :1], (40, 2, 6)), 0),
        (tensor[:1].expand(40, 2, 6), np.broadcast_to(x[:1], (40, 2, 6)), 0),
    ]
    for tensor_view, array_view, axis in views:
        check_same(tensor_view, array_view, token_axis=axis)


@pytest.mark.parametrize("dtype", NAMES)
def test_tensors_with_a_gradient(dtype):
    x, tensor = sample(dtype)
    leaf = tensor.requires_grad_()
    encoded, _ = check_same(leaf, x, token_axis=0)
    check_same(leaf * 1, x, token_axis=0)
    check_same(torch.nn.Parameter(tensor), x, token_axis=0)
    assert not lynxq.decode_full(encoded).requires_grad
    assert leaf.grad is None
    with torch.inference_mode():
        check_same(tensor * 1, x, token_axis=0)


def test_lazily_negated_tensors():
    z = torch.complex(torch.ones(8, 3), torch.arange(24.0).reshape(8, 3))
    tensor = z.conj().imag
    assert tensor.is_neg()
    check_same(tensor, tensor.resolve_neg().numpy().copy(), token_axis=0)


@pytest.mark.parametrize("dtype", NAMES)
def test_out_is_the_given_tensor(dtype):
    x, tensor = sample(dtype)
    encoded, wanted = check_same(tensor, x, token_axis=0)
    for out in (torch.full(x.shape, torch.nan), torch.full((6, 2, 40), torch.nan).permute(2, 1, 0)):
        target = out.to(getattr(torch, dtype))
        pointer = target.data_ptr()
        for decode in DECODES:
            assert decode(encoded, out=target) is target
            assert target.data_ptr() == pointer
            assert bits(target) == bits(decode(wanted))


def test_buffers_are_reused():
    x, tensor = sample()
    encoded, _ = check_same(tensor, x, token_axis=0)
    old = Encoded(encoded.layout, *(torch.full_like(s, 0xA5) for s in (encoded.anchor, encoded.residual)))
    again = lynxq.encode(tensor, token_axis=0, out=old)
    assert again.anchor is old.anchor
    assert again.residual is old.residual
    assert torch.equal(again.anchor, encoded.anchor)
    assert torch.equal(again.residual, encoded.residual)


def test_libraries_are_not_mixed():
    x, tensor = sample()
    ours, theirs = lynxq.encode(x, token_axis=0), lynxq.encode(tensor, token_axis=0)
    with pytest.raises(DTypeError, match="numpy"):
        lynxq.decode_full(ours, out=torch.empty(x.shape))
    with pytest.raises(DTypeError, match="torch"):
        lynxq.decode_full(theirs, out=np.empty(x.shape, np.float32))
    with pytest.raises(DTypeError, match="torch"):
        lynxq.encode(tensor, token_axis=0, out=ours)
    with pytest.raises(DTypeError, match="numpy"):
        lynxq.encode(x, token_axis=0, out=theirs)
    with pytest.raises(DTypeError, match="kind"):
        Encoded(ours.layout, ours.anchor, theirs.residual)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(8, 3, dtype=torch.float64),
        lambda: torch.ones(8, 3, dtype=torch.int32),
        lambda: torch.ones(8, 3, dtype=torch.uint16),
        lambda: torch.ones(8, 3, dtype=torch.bool),
        lambda: torch.ones(8, 3, dtype=torch.complex64),
        lambda: torch.ones(8, 3, dtype=torch.float8_e4m3fn),
        lambda: torch.ones(8, 3, device="meta"),
        lambda: torch.ones(8, 3).to_sparse(),
    ],
    ids=["float64", "int32", "uint16", "bool", "complex64", "float8", "meta", "sparse"],
)
def test_tensors_that_are_refused(make):
    with pytest.raises(DTypeError):
        lynxq.encode(make(), token_axis=0)


def test_a_scalar_tensor_has_no_axis():
    for dtype in NAMES:
        with pytest.raises(ShapeError):
            lynxq.encode(torch.tensor(1.0, dtype=getattr(torch, dtype)), token_axis=0)


def test_outs_that_are_refused():
    _, tensor = sample()
    encoded = lynxq.encode(tensor, token_axis=0)
    for out in (
        torch.empty(40, 2, 5),
        torch.empty(40, 2, 6, dtype=torch.float64),
        torch.empty(40, 2, 1).expand(40, 2, 6),
        torch.empty(40, 2, 6, device="meta"),
    ):
        with pytest.raises(LynxqError):
            lynxq.decode_full(encoded, out=out)
    out = torch.full((40, 2, 6), 7.0)
    with pytest.raises(DTypeError):
        lynxq.decode_full(encoded, out=out, dtype="float16")
    assert bool((out == 7).all())


@pytest.mark.parametrize("dtype", NAMES)
def test_nonfinite_and_invalid_tokens(dtype):
    _, tensor = sample(dtype)
    tensor[30:] = torch.nan
    encoded = lynxq.encode(tensor, token_axis=0, valid_tokens=30)
    alone = lynxq.encode(tensor[:30], token_axis=0)
    assert torch.equal(encoded.anchor, alone.anchor)
    assert not bool(lynxq.decode_full(encoded)[30:].any())
    with pytest.raises(NonFiniteError) as caught:
        lynxq.encode(tensor, token_axis=0)
    assert (caught.value.count, caught.value.first_index) == (10 * 12, (30, 0, 0))


def test_the_input_is_not_changed():
    _, tensor = sample("bfloat16")
    before, version = tensor.clone(), tensor._version
    lynxq.decode_full(lynxq.encode(tensor, Params.values(), token_axis=0))
    assert torch.equal(tensor, before)
    assert tensor._version == version
