"""What is refused, and how: every wrong argument gives a typed error, and nothing is ever reinterpreted."""

from array import array

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import LynxqError, Params, testing
from lynxq.errors import BackendError, DTypeError, NonFiniteError, ShapeError
from tests.scalar_model import DTYPES

ONES = np.ones((8, 4), np.float32)

TRAPS = {
    "float64": np.ones((8, 4)),
    "longdouble": np.ones((8, 4), np.longdouble),
    "int8": np.ones((8, 4), np.int8),
    "int16": np.ones((8, 4), np.int16),
    "uint16": np.ones((8, 4), np.uint16),
    "int32": np.ones((8, 4), np.int32),
    "uint64": np.ones((8, 4), np.uint64),
    "bool": np.ones((8, 4), bool),
    "complex64": np.ones((8, 4), np.complex64),
    "big-endian float32": ONES.astype(">f4"),
    "big-endian float16": ONES.astype(">f2"),
    "object": ONES.astype(object),
    "structured": np.zeros((8, 4), [("a", np.float32)]),
    "record": np.zeros((8, 4), [("a", np.float32)]).view(np.recarray),
    "void": np.zeros((8, 4), "V2"),
    "text": ONES.astype(str),
    "bytes": ONES.astype("S4"),
    "date": ONES.astype("M8[s]"),
    "duration": ONES.astype("m8[s]"),
    "float8": ONES.astype(ml_dtypes.float8_e4m3fn),
    "int4": ONES.astype(ml_dtypes.int4),
    "masked": np.ma.array(ONES, mask=ONES > 2),
    "list": ONES.tolist(),
    "tuple": (1.0, 2.0),
    "float": 1.0,
    "numpy scalar": np.float32(1),
    "None": None,
    "bytes object": b"\0\0\x80\x3f",
    "memoryview": memoryview(ONES),
    "array.array": array("f", [1.0, 2.0]),
    "class": np.float32,
    "string": "keys.npy",
}


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_dtype_traps(name):
    with pytest.raises(DTypeError) as caught:
        lynxq.encode(TRAPS[name], token_axis=0)
    assert isinstance(caught.value, LynxqError | TypeError)
    if isinstance(TRAPS[name], np.ndarray) and name != "masked":
        assert str(TRAPS[name].dtype) in str(caught.value)


def test_subclasses_of_arrays_are_taken():
    plain = lynxq.encode(ONES, token_axis=0)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(ONES)
    assert lynxq.encode(matrix, token_axis=0).anchor.tobytes() == plain.anchor.tobytes()


def test_a_tensor_needs_an_axis():
    with pytest.raises(ShapeError):
        lynxq.encode(np.array(1.0, np.float32), token_axis=0)


@pytest.mark.parametrize(
    "dtype", ["float64", np.int8, np.dtype(">f4"), ">f2", "bf16", 4, [], object, float, ""], ids=str
)
def test_result_dtypes_that_are_not_there(dtype):
    encoded = lynxq.encode(ONES, token_axis=0)
    for decode in (lynxq.decode_anchor, lynxq.decode_full):
        with pytest.raises(DTypeError):
            decode(encoded, dtype=dtype)


WRONG = [
    *[("params", value) for value in ("keys", {"alpha": 1}, Params, 3, [])],
    *[("token_axis", value) for value in ("0", None, 0.0, [0], (0,), 2, -3, 1 << 70, np.array([0, 1]), True)],
    *[("first_token", value) for value in ("0", None, 0.5, [], -1, 1 << 70, True)],
    *[("head_dim", value) for value in ("4", 2.0, [], 0, 3, -4, 1 << 70, True)],
    *[("valid_tokens", value) for value in ("4", 2.0, [], -1, 9, 1 << 70, True)],
    *[("backend", value) for value in ("fpga", "", 3, [], {}, b"reference", np.zeros(2))],
    *[("out", value) for value in ("x", 3, [], ONES, Params())],
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}={value!s:.12}" for name, value in WRONG])
def test_wrong_arguments_of_encode(name, value):
    arguments = {"token_axis": 0} | {name: value}
    with pytest.raises(LynxqError):
        lynxq.encode(ONES, arguments.pop("params", None), **arguments)


@pytest.mark.parametrize("value", [None, "x", 3, ONES, Params(), [], {}], ids=str)
@pytest.mark.parametrize("decode", [lynxq.decode_anchor, lynxq.decode_full])
def test_decode_of_something_else(decode, value):
    with pytest.raises(LynxqError, match="Encoded"):
        decode(value)


@pytest.mark.parametrize("decode", [lynxq.decode_anchor, lynxq.decode_full])
@pytest.mark.parametrize("backend", ["fpga", 3, [], {}, b"reference"], ids=str)
def test_wrong_backends_of_decode(decode, backend):
    with pytest.raises(BackendError):
        decode(lynxq.encode(ONES, token_axis=0), backend=backend)


@pytest.mark.parametrize(("start", "stop"), [("0", 1), (0, None), (0.0, 1.0), ([0], 1), (None, None)])
def test_wrong_types_of_page_numbers(start, stop):
    with pytest.raises(ShapeError):
        lynxq.encode(ONES, token_axis=0).pages(start, stop)


@pytest.mark.parametrize("tier", ["residual", None, 3, []], ids=str)
def test_wrong_tiers_of_a_stream(tier):
    with pytest.raises(LynxqError):
        lynxq.encode(ONES, token_axis=0).residual_for(tier)


def test_an_encoded_is_immutable():
    encoded = lynxq.encode(ONES, token_axis=0)
    with pytest.raises(AttributeError):
        encoded.residual = None


def test_the_unknown_backend_is_named_with_those_there_are():
    with pytest.raises(BackendError, match=r"reference.*fpga"):
        lynxq.encode(ONES, token_axis=0, backend="fpga")
    named = lynxq.encode(ONES, token_axis=0, backend="reference")
    assert named.anchor.tobytes() == lynxq.encode(ONES, token_axis=0).anchor.tobytes()
    assert np.array_equal(lynxq.decode_full(named, backend="reference"), ONES)


# --- values that are not finite --------------------------------------------------------------------


@given(testing.tensors(memory=False), testing.params(), st.data())
def test_nonfinite_values_are_counted_and_placed(sample, params, data):
    x, axis = sample
    flat = x.reshape(-1).copy()
    places = data.draw(st.lists(st.integers(0, max(flat.size - 1, 0)), max_size=4)) if flat.size else []
    flat[places] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, -np.nan]))
    x = testing.MEMORY[data.draw(st.sampled_from(sorted(testing.MEMORY)))](flat.reshape(x.shape))
    valid = data.draw(st.none() | st.integers(0, x.shape[axis]))
    wide = x.astype(np.float64)
    wide[(slice(None),) * (axis % x.ndim) + (slice(valid, None) if valid is not None else slice(0, 0),)] = 0
    bad = np.argwhere(~np.isfinite(wide))
    if not len(bad):
        assert lynxq.encode(x, params, token_axis=axis, valid_tokens=valid).shape == x.shape
        return
    with pytest.raises(NonFiniteError) as caught:
        lynxq.encode(x, params, token_axis=axis, valid_tokens=valid)
    assert caught.value.count == len(bad)
    assert caught.value.first_index == tuple(bad[0].tolist())
    assert {type(i) for i in caught.value.first_index} == {int}
    assert str(caught.value.first_index) in str(caught.value)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_nonfinite_value_in_every_dtype(dtype, value):
    x = np.zeros((3, 300, 2), DTYPES[dtype])
    x[2, 10, 1] = x[1, 299, 0] = value
    with pytest.raises(NonFiniteError, match=r"2 non-finite values, the first at index \(1, 299, 0\)"):
        lynxq.encode(x, token_axis=1)
    x[2, 10, 1] = 0
    with pytest.raises(NonFiniteError, match="1 non-finite value, the first"):
        lynxq.encode(x, token_axis=1)


def test_sinks_must_be_finite_too():
    x = np.ones((9, 2), np.float32)
    x[0, 1] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        lynxq.encode(x, token_axis=0)
    assert caught.value.first_index == (0, 1)
