"""lynxq.baselines against direct formulas, with every stored byte counted."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynxq import baselines
from lynxq.baselines import SCHEMES, BFloat16, GroupedInteger, PerTensorInteger, Scheme
from lynxq.errors import DTypeError, MissingLibraryError, NonFiniteError, ParamsError, ShapeError

KINDS = {
    f"{name}-{kind}": scheme.for_kind(kind)
    for name, scheme in SCHEMES.items()
    for kind in ("key", "value")
    if kind == "key" or scheme.for_kind(kind) is not scheme
}
EVERY = pytest.mark.parametrize("scheme", KINDS.values(), ids=KINDS)
#: Schemes that do not reproduce a constant exactly, and the relative error that their levels allow.
ROUGH = {"bf16": 2.0**-8, "fp8": 1e-6, "fp8-unscaled": None, "turboquant3": 0.8, "turboquant4": 0.4}
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
    coded = scheme.encode(
        x,
        token_axis=data.draw(st.integers(-x.ndim, x.ndim - 1)),
        layer=data.draw(st.none() | st.integers(0, 40)),
        first_token=data.draw(st.integers(0, 5)),
    )
    assert coded.nbytes == sum(len(part.tobytes()) for part in coded.parts.values())
    assert coded.elements == x.size
    assert coded.bits_per_element == (8 * coded.nbytes / x.size if x.size else 0.0)
    decoded = coded.decode()
    assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype)
    assert np.isfinite(decoded.astype(np.float32)).all()


@EVERY
@pytest.mark.parametrize("shape", [(33, 2, 5), (300, 1, 64), (5, 2, 80)])
def test_decoding_needs_the_stored_bytes_and_no_more(scheme, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    coded = scheme.encode(x, token_axis=0)
    stored = {name: np.frombuffer(part.tobytes(), part.dtype).reshape(part.shape) for name, part in coded.parts.items()}
    again = scheme.restore(stored, coded.context)
    np.testing.assert_array_equal(again.reshape(shape), coded.decode())


@EVERY
def test_coding_is_deterministic(scheme):
    x = np.random.default_rng(0).standard_normal((70, 2, 32)).astype(np.float16)
    one, two = (scheme.encode(x.copy(), token_axis=0) for _ in range(2))
    assert {name: part.tobytes() for name, part in one.parts.items()} == {
        name: part.tobytes() for name, part in two.parts.items()
    }


@EVERY
def test_layouts_of_one_cache_give_the_same_bytes(scheme):
    x = np.random.default_rng(4).standard_normal((140, 2, 40)).astype(np.float16)
    parts = scheme.encode(x, token_axis=0).parts
    flat = scheme.encode(x.reshape(140, 80), token_axis=0, head_dim=40)
    batch = scheme.encode(x[None], token_axis=1)
    for other in (flat, batch):
        assert {name: part.tobytes() for name, part in other.parts.items()} == {
            name: part.tobytes() for name, part in parts.items()
        }
    np.testing.assert_array_equal(flat.decode().reshape(x.shape), batch.decode()[0])


@EVERY
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -200.0, 65504.0, 2.0**-24])
@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_tensors_are_exact(scheme, value, dtype):
    x = np.full((17, 3), value, dtype)
    decoded = scheme.encode(x, token_axis=0).decode().astype(np.float64)
    exact = x.astype(np.float64)
    if scheme.name == "fp8-unscaled":
        assert np.abs(decoded).max() <= 448
    elif scheme.name in ROUGH:
        assert np.abs(decoded - exact).max() <= ROUGH[scheme.name] * np.abs(exact).max()
    else:
        np.testing.assert_array_equal(decoded, exact)


@EVERY
@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_values_neither_crash_nor_leave_the_finite(scheme, dtype):
    rng = np.random.default_rng(5)
    largest = 65504.0 if dtype is np.float16 else 3.38e38
    x = rng.standard_normal((150, 2, 8))
    for change in (
        lambda y: y * largest / 8,
        lambda y: np.where(rng.random(y.shape) < 0.1, np.sign(y) * largest, y),
        lambda y: y * 1e-44,
        lambda y: np.where(np.arange(150)[:, None, None] == 7, y * 1000, y),
        lambda y: np.where(np.arange(8) == 3, 900.0, y),
        lambda y: np.where(np.arange(150)[:, None, None] < 40, 0.0, y),
    ):
        y = np.clip(change(x), -largest, largest).astype(dtype)
        assert np.isfinite(scheme.encode(y, token_axis=0).decode().astype(np.float32)).all()


@EVERY
def test_errors_are_within_what_the_bits_allow(scheme):
    x = np.random.default_rng(6).standard_normal((512, 2, 64)).astype(np.float32)
    coded = scheme.encode(x, token_axis=0, layer=5)
    error = float(np.square(coded.decode() - x).sum() / np.square(x).sum())
    # No code can do better than the rate-distortion bound of a Gaussian source, and none here is ten times off
    # (α-law is 20 times off, and the ranges and tables of a short tensor take bits that do not lower the error).
    assert 2 ** (-2 * coded.bits_per_element) <= error * (1 + 1e-3)
    assert error < 0.2


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
    assert baselines.get(scheme.name).title == scheme.title
    assert scheme.for_kind("key") is not None
    assert scheme.for_kind("key") == scheme.for_kind(None) == baselines.get(scheme.name)
    assert scheme.for_kind("value").for_kind("key") == baselines.get(scheme.name)
    assert scheme.paper
    assert scheme.available
    assert repr(scheme.encode(np.ones((4, 2), np.float32), token_axis=0)).startswith(f"CodedBaseline({scheme.name}, ")


def test_unknown_name():
    with pytest.raises(ParamsError, match=r"baseline must be one of bf16, int8, .*, got 'int5'"):
        baselines.get("int5")


def test_a_new_scheme_is_two_functions():
    class Sign(Scheme):
        name, title = "sign", "one bit"

        def compress(self, values, context):
            del context
            size = np.abs(values).mean(axis=1, keepdims=True)
            return {"size": size, "signs": np.packbits(values >= 0)}

        def restore(self, parts, context):
            signs = np.unpackbits(parts["signs"], count=np.prod(context.block)).reshape(context.block)
            return np.where(signs, parts["size"], -parts["size"])

    coded = Sign().encode(np.array([[1.0, -2.0], [-3.0, -2.0]], np.float32), token_axis=-1)
    assert coded.nbytes == 2 * 4 + 1
    assert coded.decode().tolist() == [[1.5, -1.5], [-2.5, -2.5]]


def test_missing_libraries_are_named(monkeypatch):
    scheme = baselines.get("cachegen")
    monkeypatch.setattr(baselines.base, "find_spec", {}.get)
    assert not scheme.available
    assert baselines.get("int4").available
    with pytest.raises(MissingLibraryError, match=r"constriction is not installed: pip install 'lynxq\[bas"):
        scheme.encode(np.ones((4, 2), np.float32), token_axis=0)


def test_head_dim_must_divide_the_last_axis():
    scheme = baselines.get("int4-g32")
    x = np.ones((4, 12), np.float32)
    assert scheme.encode(x, token_axis=0, head_dim=4).parts["low"].size == 12
    for token_axis, head_dim in ((0, 5), (1, 2), (0, 0)):
        with pytest.raises(ShapeError, match="head_dim must"):
            scheme.encode(x, token_axis=token_axis, head_dim=head_dim)


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
    values = PerTensorInteger(bits).restore(coded.parts, coded.context).reshape(x.shape)
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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("granularity", ["token", "channel", 3, 32])
@settings(deadline=None)
@given(x=tensors((np.float32, np.float16)))
def test_groups_equal_the_published_formula(bits, granularity, x):
    x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    coded = GroupedInteger(bits, granularity).encode(x, token_axis=0)
    decoded = coded.decode().astype(np.float64)
    tokens, channels = x.shape
    if granularity == "channel":
        groups = [np.s_[:, c] for c in range(channels)] if tokens else []
    else:
        size = max(channels, 1) if granularity == "token" else granularity
        groups = [np.s_[t, c : c + size] for t in range(tokens) for c in range(0, channels, size)]
    width = max((abs(float(v)) for v in x.ravel()), default=0.0)
    kept = 2 if width <= 65504 else 4
    assert coded.nbytes == -(-x.size * bits // 8) + 2 * kept * len(groups)
    for group in groups:
        exact = x[group].astype(np.float64)
        low = np.float64(np.float16(exact.min()))
        scale = np.float64(np.float16((exact.max() - exact.min()) / (2**bits - 1)))
        # A step and what rounding to float16 and to the tensor's dtype can do.
        slack = scale / 2 + 2**bits * 2.0**-24 + np.abs(exact).max() * 2.0**-9
        assert np.abs(decoded[group] - exact).max() <= slack
        codes = np.clip(np.rint((exact - low) / scale), 0, 2**bits - 1) if scale else np.zeros_like(exact)
        expected = (low + codes * scale).astype(x.dtype).astype(np.float64)
        tie = np.abs(np.abs(exact - low - codes * scale) - scale / 2) < 1e-6 * max(scale, 1.0)
        assert ((np.abs(decoded[group] - expected) <= 1e-6 * np.abs(exact).max()) | tie).all()


def test_groups_by_hand():
    x = np.array([[0, 15, 0, 30, 5], [-15, 0, 7, 7, -1]], np.float32)
    coded = GroupedInteger(4, 2).encode(x, token_axis=0)
    assert coded.parts["low"].ravel().tolist() == [0, 0, 5, -15, 7, -1]
    assert coded.parts["scale"].ravel().tolist() == [1, 2, 0, 1, 0, 0]
    assert coded.parts["codes"].tobytes() == bytes([0xF0, 0xF0, 0x00, 0x0F, 0x00])
    np.testing.assert_array_equal(coded.decode(), x)


@pytest.mark.parametrize("granularity", ["tensor", 0, -1, 1.5])
def test_other_granularities(granularity):
    with pytest.raises(ParamsError, match="granularity must be"):
        GroupedInteger(4, granularity)
    with pytest.raises(ParamsError, match="bits must be 4 or 8"):
        GroupedInteger(3, "token")


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
