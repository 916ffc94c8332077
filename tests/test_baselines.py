"""lynxq.baselines against direct formulas, with every stored byte counted."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynxq import baselines
from lynxq.baselines import SCHEMES, BFloat16, PerTensorInteger, Scheme
from lynxq.errors import DTypeError, NonFiniteError, ParamsError, ShapeError

EVERY = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


@st.composite
def tensors(draw, dtypes=DTYPES):
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale, shift = 10.0 ** draw(st.integers(-4, 3)), draw(st.sampled_from([0.0, 200.0, -3.0]))
    return (rng.standard_normal(shape) * scale + shift).astype(draw(st.sampled_from(dtypes)))


# --- what every scheme must do ---------------------------------------------------------------------


@EVERY
@settings(deadline=None)
@given(x=tensors(), data=st.data())
def test_shape_dtype_and_bytes(scheme, x, data):
    coded = scheme.encode(x, token_axis=data.draw(st.integers(-x.ndim, x.ndim - 1)))
    assert coded.nbytes == sum(len(part.tobytes()) for part in coded.parts.values())
    assert coded.elements == x.size
    assert coded.bits_per_element == (8 * coded.nbytes / x.size if x.size else 0.0)
    decoded = coded.decode()
    assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype)
    assert np.isfinite(decoded.astype(np.float32)).all()


@EVERY
def test_decoding_needs_the_stored_bytes_and_no_more(scheme):
    x = np.random.default_rng(0).standard_normal((33, 2, 5)).astype(np.float32)
    coded = scheme.encode(x, token_axis=0)
    stored = {name: np.frombuffer(part.tobytes(), part.dtype).reshape(part.shape) for name, part in coded.parts.items()}
    again = scheme.restore(stored, coded.shape, coded.token_axis)
    np.testing.assert_array_equal(again, coded.decode())


@EVERY
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -200.0, 65504.0, 2.0**-24])
@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_tensors_are_exact(scheme, value, dtype):
    x = np.full((17, 3), value, dtype)
    if scheme.name == "bf16":
        x = x.astype(ml_dtypes.bfloat16)
    decoded = scheme.encode(x, token_axis=0).decode()
    np.testing.assert_array_equal(decoded.astype(np.float32), x.astype(np.float32))


@EVERY
def test_torch_in_torch_out(scheme):
    x = torch.randn(20, 2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    decoded = scheme.encode(x, token_axis=0).decode()
    assert isinstance(decoded, torch.Tensor)
    assert decoded.dtype is torch.bfloat16
    same = scheme.encode(x.float().numpy().astype(ml_dtypes.bfloat16), token_axis=0).decode()
    np.testing.assert_array_equal(decoded.float().numpy(), same.astype(np.float32))


@EVERY
def test_strides_do_not_matter(scheme):
    x = np.random.default_rng(1).standard_normal((12, 6, 4)).astype(np.float16)
    for view in (x[::-1], x.transpose(2, 0, 1), x[1::3, :, ::2], np.broadcast_to(x[:1], x.shape)):
        expected = scheme.encode(view.copy(), token_axis=0)
        actual = scheme.encode(view, token_axis=0)
        for name, part in expected.parts.items():
            np.testing.assert_array_equal(actual.parts[name], part)


@EVERY
def test_arguments_that_do_not_fit(scheme):
    x = np.ones((4, 3), np.float32)
    with pytest.raises(ShapeError, match=r"token_axis must be an axis of shape \(4, 3\), got 2"):
        scheme.encode(x, token_axis=2)
    with pytest.raises(ShapeError):
        scheme.encode(np.array(1.0, np.float32), token_axis=0)
    with pytest.raises(DTypeError):
        scheme.encode(x.astype(np.float64), token_axis=0)
    x[2, 1] = x[3, 2] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        scheme.encode(x, token_axis=0)
    assert (caught.value.count, caught.value.first_index) == (2, (2, 1))


@EVERY
def test_registry(scheme):
    assert baselines.get(scheme.name) is scheme
    assert scheme.title
    assert scheme.for_kind("key") is scheme.for_kind(None) is scheme
    assert repr(scheme.encode(np.ones((4, 2), np.float32), token_axis=0)).startswith(f"CodedBaseline({scheme.name}, ")


def test_unknown_name():
    with pytest.raises(ParamsError, match="baseline must be one of bf16, int8, int4, got 'int5'"):
        baselines.get("int5")


def test_a_new_scheme_is_two_functions():
    class Sign(Scheme):
        name, title = "sign", "one bit"

        def compress(self, values, token_axis):
            size = np.abs(values).mean(token_axis, keepdims=True)
            return {"size": size, "signs": np.packbits(values >= 0)}

        def restore(self, parts, shape, token_axis):
            del token_axis  # the shape of "size" tells
            signs = np.unpackbits(parts["signs"], count=np.prod(shape)).reshape(shape)
            return np.where(signs, parts["size"], -parts["size"])

    coded = Sign().encode(np.array([[1.0, -2.0], [-3.0, -2.0]], np.float32), token_axis=-1)
    assert coded.nbytes == 2 * 4 + 1
    assert coded.decode().tolist() == [[1.5, -1.5], [-2.5, -2.5]]


# --- integers --------------------------------------------------------------------------------------


@settings(deadline=None)
@given(tensors(), st.sampled_from([4, 8]))
def test_integers_equal_the_published_formula(x, bits):
    coded = PerTensorInteger(bits).encode(x, token_axis=0)
    assert coded.nbytes == 8 + (x.size * bits + 7) // 8
    if not x.size:
        return
    exact = x.astype(np.float64)
    scale = (exact.max() - exact.min()) / (2**bits - 1)
    if scale:
        zero = -exact.min() / scale
        codes = np.round(exact / scale + zero)
        expected = (codes - zero) * scale
    else:
        expected = exact
    values = PerTensorInteger(bits).restore(coded.parts, x.shape, 0)
    # Between two codes rounding decides, and the formula's own rounding errors decide differently: both are right.
    tie = np.abs(np.abs(exact - expected) - scale / 2) < 1e-6 * max(scale, np.abs(exact).max())
    near = np.abs(values - expected) <= 1e-6 * np.abs(exact).max()
    assert (near | tie).all()
    assert (np.abs(values - exact) <= scale / 2 + 1e-6 * np.abs(exact).max()).all()
    assert values.min() == exact.min()
    assert values.max() == exact.max()


def test_int4_by_hand():
    x = np.array([[0.0, 15.0, 7.4], [7.6, 1.0, 2.0], [14.0, 13.0, 3.0]], np.float32)
    coded = PerTensorInteger(4).encode(x, token_axis=0)
    # Codes 0 15 7 8 1 2 14 13 3, the first of a pair low.
    assert coded.parts["codes"].tobytes() == bytes([0xF0, 0x87, 0x21, 0xDE, 0x03])
    assert coded.parts["range"].tolist() == [0.0, 15.0]
    assert coded.decode().tolist() == [[0, 15, 7], [8, 1, 2], [14, 13, 3]]


def test_int8_by_hand():
    coded = PerTensorInteger(8).encode(np.array([-128.0, 0.4, 127.0], np.float32), token_axis=0)
    assert coded.parts["codes"].tolist() == [0, 128, 255]
    assert coded.decode().tolist() == [-128.0, 0.0, 127.0]
    assert coded.nbytes == 8 + 3


def test_the_largest_float32_range_does_not_overflow():
    largest = np.finfo(np.float32).max
    x = np.array([-largest, 0.0, largest], np.float32)
    for bits in (4, 8):
        decoded = PerTensorInteger(bits).encode(x, token_axis=0).decode()
        assert decoded[0] == -largest
        assert decoded[2] == largest


def test_many_values_are_coded_as_few_are(monkeypatch):
    x = np.random.default_rng(2).standard_normal((101, 7)).astype(np.float32)
    whole = {bits: PerTensorInteger(bits).encode(x, token_axis=0) for bits in (4, 8)}
    monkeypatch.setattr(baselines.integer, "_PIECE", 16)
    for bits, coded in whole.items():
        again = PerTensorInteger(bits).encode(x, token_axis=0)
        np.testing.assert_array_equal(again.parts["codes"], coded.parts["codes"])


@pytest.mark.parametrize("bits", [0, 3, 16, "4"])
def test_other_bits(bits):
    with pytest.raises(ParamsError, match="bits must be 4 or 8"):
        PerTensorInteger(bits)


# --- bf16 ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(tensors((ml_dtypes.bfloat16,)))
def test_bf16_is_the_identity_on_bf16(x):
    coded = BFloat16().encode(x, token_axis=0)
    assert coded.nbytes == 2 * x.size
    np.testing.assert_array_equal(coded.decode().view(np.uint16), x.view(np.uint16))


@settings(deadline=None)
@given(tensors((np.float32,)))
def test_bf16_rounds_float32_as_ml_dtypes_does(x):
    decoded = BFloat16().encode(x, token_axis=0).decode()
    np.testing.assert_array_equal(decoded, x.astype(ml_dtypes.bfloat16).astype(np.float32))
