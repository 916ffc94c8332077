"""`out=`: whose memory it is, that all of it is written, and that a failed call writes none of it."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq import Encoded, Params, testing
from lynxq.errors import BackendError, DTypeError, LynxqError, MissingResidualError, NonFiniteError, ShapeError
from tests.scalar_model import DTYPES

DECODES = (lynxq.decode_anchor, lynxq.decode_full)
OUTS = sorted(set(testing.MEMORY) - {"read-only"})


def poisoned(encoded):
    """An Encoded of the same layout whose buffers hold 0xA5."""
    return Encoded(encoded.layout, *(np.full(s.size, 0xA5, np.uint8) for s in (encoded.anchor, encoded.residual)))


def sample(shape=(40, 3), dtype="float32", kind="normal"):
    return testing.contents(kind, shape, dtype, seed=8)


# --- decode ----------------------------------------------------------------------------------------


@given(testing.tensors(), testing.params(), st.sampled_from(OUTS), st.sampled_from(sorted(DTYPES)), st.data())
def test_decode_writes_every_element_of_any_out(sample, params, memory, dtype, data):
    x, axis = sample
    valid = data.draw(st.none() | st.integers(0, x.shape[axis]))
    encoded = lynxq.encode(x, params, token_axis=axis, valid_tokens=valid)
    for decode in DECODES:
        wanted = decode(encoded, dtype=dtype)
        out = testing.MEMORY[memory](np.full(x.shape, np.nan, DTYPES[dtype]))
        assert decode(encoded, out=out) is out
        assert out.tobytes() == wanted.tobytes()


def test_decode_writes_nothing_around_a_strided_out():
    x = sample((40, 3, 4))
    encoded = lynxq.encode(x, token_axis=0)
    room = np.full((80, 6, 9), 7.0, np.float32)
    view = room[::-2, 1:4, 1::2]
    lynxq.decode_full(encoded, out=view)
    assert np.array_equal(view, lynxq.decode_full(encoded))
    view[...] = 7.0
    assert (room == 7.0).all()


def test_the_full_decode_may_overwrite_the_anchor_decode():
    encoded = lynxq.encode(sample(), token_axis=0)
    out = lynxq.decode_anchor(encoded)
    assert lynxq.decode_full(encoded, out=out) is out
    assert np.array_equal(out, lynxq.decode_full(encoded))


def test_decode_reads_only():
    encoded = lynxq.encode(sample(), token_axis=0)
    copies = encoded.anchor.copy(), encoded.residual.copy()
    encoded.anchor.setflags(write=False)
    encoded.residual.setflags(write=False)
    for decode in DECODES:
        decode(encoded)
    assert np.array_equal(encoded.anchor, copies[0])
    assert np.array_equal(encoded.residual, copies[1])


def overlapping():
    return np.lib.stride_tricks.as_strided(np.zeros(60, np.float32), (40, 3), (4, 4))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: np.zeros((40, 4), np.float32), ShapeError),
        (lambda: np.zeros((40, 3, 1), np.float32), ShapeError),
        (lambda: np.zeros(120, np.float32), ShapeError),
        (lambda: np.zeros((40, 3), np.float64), DTypeError),
        (lambda: np.zeros((40, 3), np.int32), DTypeError),
        (lambda: np.zeros((40, 3), ">f4"), DTypeError),
        (lambda: np.zeros((40, 3), np.uint16), DTypeError),
        (lambda: np.broadcast_to(np.zeros((40, 1), np.float32), (40, 3)), DTypeError),
        (lambda: np.lib.stride_tricks.as_strided(np.zeros(40, np.float32), (40, 3), (4, 0)), ShapeError),
        (overlapping, ShapeError),
        (lambda: np.ma.zeros((40, 3), np.float32), DTypeError),
        (lambda: testing.MEMORY["read-only"](np.zeros((40, 3), np.float32)), DTypeError),
        (lambda: [[0.0] * 3] * 40, DTypeError),
        (lambda: "out", DTypeError),
    ],
    ids=range(14),
)
def test_an_out_that_does_not_fit(make, error):
    encoded = lynxq.encode(sample(), token_axis=0)
    for decode in DECODES:
        out = make()
        before = bytes(out.data) if isinstance(out, np.ndarray) else repr(out)
        with pytest.raises(error):
            decode(encoded, out=out)
        assert (bytes(out.data) if isinstance(out, np.ndarray) else repr(out)) == before


def test_an_out_of_another_dtype_than_asked_for():
    encoded = lynxq.encode(sample(), token_axis=0)
    out = np.full((40, 3), 7, np.float16)
    for decode in DECODES:
        with pytest.raises(DTypeError, match="float16"):
            decode(encoded, out=out, dtype="float32")
    assert (out == 7).all()
    assert lynxq.decode_full(encoded, out=out, dtype=np.float16) is out


def test_an_out_inside_the_streams():
    x = sample((64, 64), "float32")
    encoded = lynxq.encode(x, Params(sink_tokens=64), token_axis=0)
    out = encoded.anchor[-x.nbytes :].view(np.float32).reshape(x.shape)
    before = encoded.anchor.copy()
    with pytest.raises(ShapeError, match="memory"):
        lynxq.decode_anchor(encoded, out=out)
    assert np.array_equal(encoded.anchor, before)


@pytest.mark.parametrize("changes", [{"dtype": "int8"}, {"backend": "fpga"}], ids=str)
def test_a_failed_decode_leaves_out_alone(changes):
    encoded = lynxq.encode(sample(), token_axis=0)
    out = np.full((40, 3), np.nan, np.float32)
    for decode in DECODES:
        with pytest.raises(LynxqError):
            decode(encoded, out=out, **changes)
        assert np.isnan(out).all()


def test_a_full_decode_without_residual():
    encoded = lynxq.encode(sample(), token_axis=0).anchor_only()
    out = np.full((40, 3), np.nan, np.float32)
    with pytest.raises(MissingResidualError):
        lynxq.decode_full(encoded, out=out)
    assert np.isnan(out).all()


# --- encode ----------------------------------------------------------------------------------------


@given(testing.tensors(), testing.params())
def test_encode_writes_every_byte_of_reused_buffers(sample, params):
    x, axis = sample
    fresh = lynxq.encode(x, params, token_axis=axis)
    old = poisoned(fresh)
    again = lynxq.encode(x, params, token_axis=axis, out=old)
    assert again.anchor is old.anchor
    assert again.residual is old.residual
    assert again.anchor.tobytes() == fresh.anchor.tobytes()
    assert again.residual.tobytes() == fresh.residual.tobytes()


def test_reused_buffers_take_the_new_layout():
    """Streams of the same sizes are enough: here for the transposed problem, then for another dtype."""
    first = lynxq.encode(sample((24, 16), "float16"), token_axis=0)
    x = sample((24, 16), "bfloat16")
    second = lynxq.encode(x, token_axis=0, first_token=0, out=first)
    assert second.dtype == "bfloat16"
    assert second.anchor is first.anchor
    assert np.array_equal(lynxq.decode_full(second), lynxq.decode_full(lynxq.encode(x, token_axis=0)))


def nan_at_the_end():
    x = sample()
    x[-1, -1] = np.nan
    return x


@pytest.mark.parametrize(
    ("x", "changes", "error"),
    [
        (nan_at_the_end(), {}, NonFiniteError),
        (sample(), {"backend": "fpga"}, BackendError),
        (sample(), {"token_axis": 2}, ShapeError),
        (sample(), {"params": "keys"}, DTypeError),
        (sample((80, 3)), {}, ShapeError),
        (sample((40, 30)), {}, ShapeError),
        (sample((3, 40)), {}, ShapeError),
        (np.ones((40, 3)), {}, DTypeError),
    ],
    ids=range(8),
)
def test_a_failed_encode_leaves_the_buffers_alone(x, changes, error):
    old = poisoned(lynxq.encode(sample(), token_axis=0))
    arguments = {"token_axis": 0, "out": old} | changes
    with pytest.raises(error):
        lynxq.encode(x, arguments.pop("params", None), **arguments)
    assert (old.anchor == 0xA5).all()
    assert (old.residual == 0xA5).all()


def test_buffers_that_cannot_be_reused():
    x = sample()
    encoded = lynxq.encode(x, token_axis=0)
    with pytest.raises(DTypeError, match="both streams"):
        lynxq.encode(x, token_axis=0, out=encoded.anchor_only())
    for out in (encoded.anchor, "encoded", [encoded], {}):
        with pytest.raises(DTypeError, match="Encoded"):
            lynxq.encode(x, token_axis=0, out=out)
    for name in ("anchor", "residual"):
        old = poisoned(encoded)
        getattr(old, name).setflags(write=False)
        with pytest.raises(DTypeError, match="writable"):
            lynxq.encode(x, token_axis=0, out=old)


def test_an_input_inside_the_buffers():
    encoded = lynxq.encode(sample((64, 64)), Params(sink_tokens=64), token_axis=0)
    x = encoded.anchor[: 64 * 64 * 4].view(np.float32).reshape(64, 64)
    with pytest.raises(ShapeError, match="memory"):
        lynxq.encode(x, Params(sink_tokens=64), token_axis=0, out=encoded)


def test_buffers_that_overlap_each_other():
    x = sample()
    encoded = lynxq.encode(x, token_axis=0)
    room = np.full(max(encoded.anchor.size, encoded.residual.size), 0xA5, np.uint8)
    both = Encoded(encoded.layout, room[: encoded.anchor.size], room[: encoded.residual.size])
    with pytest.raises(ShapeError, match="memory"):
        lynxq.encode(x, token_axis=0, out=both)
    assert (room == 0xA5).all()


# --- Encoded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda a: a[:-1], ShapeError),
        (lambda a: np.append(a, np.uint8(0)), ShapeError),
        (lambda a: a.reshape(-1, 1), ShapeError),
        (lambda a: np.repeat(a, 2)[::2], ShapeError),
        (lambda a: a[::-1], ShapeError),
        (lambda a: a.view(np.int8), DTypeError),
        (lambda a: a.astype(np.uint16), DTypeError),
        (lambda a: a.tobytes(), DTypeError),
        (lambda a: a.tolist(), DTypeError),
        (memoryview, DTypeError),
        (np.ma.array, DTypeError),
    ],
    ids=range(11),
)
def test_streams_of_the_wrong_kind(change, error):
    encoded = lynxq.encode(sample((40, 3), "float16"), token_axis=0)
    with pytest.raises(error, match=r"anchor|array"):
        Encoded(encoded.layout, change(encoded.anchor), encoded.residual)
    with pytest.raises(error, match=r"residual|array"):
        Encoded(encoded.layout, encoded.anchor, change(encoded.residual))


def test_an_anchor_must_be_there():
    encoded = lynxq.encode(sample(), token_axis=0)
    with pytest.raises(DTypeError):
        Encoded(encoded.layout, None, encoded.residual)
    for layout in (None, "layout", (40, 3)):
        with pytest.raises(LynxqError):
            Encoded(layout, encoded.anchor, encoded.residual)


def test_bfloat16_out_is_that_of_ml_dtypes():
    encoded = lynxq.encode(sample((40, 3), "bfloat16"), token_axis=0)
    assert lynxq.decode_full(encoded).dtype == ml_dtypes.bfloat16
