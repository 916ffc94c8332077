"""Params: what is valid, what is equal, and that JSON brings it back."""

import copy
import dataclasses
import json
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import find, given

import lynxq
from lynxq import LynxqError, Params, companding, testing
from lynxq.errors import ParamsError
from lynxq.params import SPLITS

POINTS = tuple(k / 7 for k in range(8))

BAD = [
    *[(name, value) for name in ("axis", "center", "metadata") for value in ("Token", "", None, 3, ["token"], b"u8")],
    *[
        (name, value)
        for name in ("range_size", "chunk", "page", "anchor_bits", "residual_bits", "sink_tokens")
        for value in (-1, 65537, 8.0, "8", None, True, [8], math.nan, 1 << 70)
    ],
    ("range_size", 0),
    ("chunk", 0),
    ("page", 0),
    ("page", 4),
    ("page", 260),
    ("range_size", 96),
    ("chunk", 48),
    ("anchor_bits", 2),
    ("anchor_bits", 7),
    ("residual_bits", 1),
    ("residual_bits", 5),
    ("anchor_bits", 5),
    ("residual_bits", 6),
    ("sink_tokens", 257),
    *[("alpha", value) for value in (-0.5, 9.9e-7, 1000001, math.nan, math.inf, -math.inf, "1", None, True, 1j, [1])],
    *[("anchor_points", value) for value in (5, (), POINTS[1:], (*POINTS, 1.0), "01234567", (*POINTS[:7], 1.5))],
    *[("anchor_points", (*POINTS[:7], value)) for value in (0.5, -1, math.nan, math.inf, None, "1", True)],
    ("anchor_points", (-0.25, *POINTS[1:])),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named(name, value):
    with pytest.raises(ParamsError) as caught:
        Params(**{name: value})
    assert isinstance(caught.value, LynxqError | ValueError)
    message = str(caught.value)
    assert name in message
    shown = [repr(value)]
    if name == "anchor_points" and isinstance(value, tuple | str):
        shown += [str(len(value)), *map(repr, value[-1:]), *map(repr, value[:1])]
    assert any(text in message.split("got")[1] for text in shown)


@pytest.mark.parametrize(
    "changes",
    [
        {"axis": np.array(["token", "channel"])},
        {"page": np.array([8, 16])},
        {"page": 10**5000},
        {"alpha": 10**5000},
        {"alpha": np.array([0.5, 1.0])},
        {"anchor_points": np.zeros((8, 2))},
        {"anchor_points": (*POINTS[:7], 1e300)},
        {"anchor_points": {1: 2}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_odd_values_give_no_other_exception(changes):
    with pytest.raises(ParamsError):
        Params(**changes)


@pytest.mark.parametrize("a", range(1, 9))
@pytest.mark.parametrize("r", range(1, 9))
def test_splits_have_at_most_a_byte(a, r):
    if 3 <= a <= 6 and 2 <= r <= 5 and a + r <= 8:
        assert Params(anchor_bits=a, residual_bits=r).levels == (2 ** (a - 1) - 1) * 2**r
        assert (a, r) in SPLITS
    else:
        assert (a, r) not in SPLITS
        with pytest.raises(ParamsError, match=rf"anchor_bits.*{a}|residual_bits.*{r}"):
            Params(anchor_bits=a, residual_bits=r)


def test_levels_of_the_splits():
    pairs = [(3, 2), (3, 5), (4, 2), (4, 3), (4, 4), (5, 2), (5, 3), (6, 2)]
    assert [Params(anchor_bits=a, residual_bits=r).levels for a, r in pairs] == [12, 96, 28, 56, 112, 60, 120, 124]


def test_page_and_range_are_free_along_channels():
    params = Params(axis="channel", range_size=96, chunk=48, page=8)
    assert (params.range_size, params.chunk, params.page) == (96, 48, 8)
    assert Params(axis="channel", range_size=65536, chunk=1).range_size == 65536


def test_limits_are_allowed():
    assert Params(page=65536, range_size=65536, chunk=65536, sink_tokens=65536).sink_tokens == 65536
    assert Params(page=8, range_size=1, chunk=1, sink_tokens=0).chunk == 1
    assert [Params(alpha=alpha).alpha for alpha in (0, 1e-6, 1e6)] == [0.0, 1e-6, 1e6]


def test_values_are_canonical():
    params = Params(page=np.int64(256), alpha=1, sink_tokens=np.uint8(2))
    assert type(params.page) is int
    assert type(params.alpha) is float
    assert type(params.sink_tokens) is int
    assert math.copysign(1.0, Params(alpha=-0.0).alpha) == 1.0
    assert Params(alpha=Decimal("0.25")) == Params(alpha=np.float32(0.25)) == Params(alpha=Fraction(1, 4))
    points = Params(anchor_points=[-0.0, 0.1, *POINTS[2:]]).anchor_points
    assert type(points) is tuple
    assert math.copysign(1.0, points[0]) == 1.0
    assert points[1] == float(np.float32(0.1))
    assert {type(point) for point in points} == {float}


def test_metadata_width_does_not_matter_where_nothing_is_stored():
    same = {Params(range_size=64, chunk=64, metadata=metadata) for metadata in ("u8", "u16", "f32")}
    assert len(same) == 1
    mean = {Params(range_size=64, chunk=64, center="mean", metadata=metadata) for metadata in ("u8", "u16", "f32")}
    assert len(mean) == 3


def test_default_points_are_none():
    points = companding.anchor_points(0.5, 4, 4).tolist()
    assert Params(anchor_points=points).anchor_points is None
    assert Params(anchor_points=points) == Params()
    other = Params(anchor_points=[*points[:6], points[5], 1.0])
    assert other != Params()
    assert other.points == (*points[:6], points[5], 1.0)
    assert Params().points == tuple(points)
    assert Params(alpha=1.0, anchor_points=points).anchor_points == tuple(points)


@given(testing.params(), testing.params())
def test_equality_is_that_of_the_fields(one, other):
    fields = [field.name for field in dataclasses.fields(Params)]
    equal = all(getattr(one, name) == getattr(other, name) for name in fields)
    assert (one == other) is equal
    again = Params(**{name: getattr(one, name) for name in fields})
    assert again == one
    assert hash(again) == hash(one)
    assert len({one, again, other}) == 2 - equal


@pytest.mark.parametrize(
    "changes",
    [
        {"axis": "channel"},
        {"range_size": 32},
        {"chunk": 8},
        {"page": 512},
        {"anchor_bits": 5, "residual_bits": 3},
        {"alpha": 0.6},
        {"center": "mean"},
        {"metadata": "u16"},
        {"metadata": "f32"},
        {"sink_tokens": 3},
        {"anchor_points": POINTS},
    ],
    ids=str,
)
def test_what_is_unequal_gives_other_results(changes):
    """The other half of "equal exactly when the bytes are": each field changes a stream or a decode."""
    x = np.random.default_rng(0).standard_normal((600, 3), dtype=np.float32)
    default, changed = (lynxq.encode(x, params, token_axis=0) for params in (Params(), Params(**changes)))
    assert default.params != changed.params
    streams = [(e.anchor.tobytes(), e.residual.tobytes()) for e in (default, changed)]
    if "anchor_points" in changes:
        assert streams[0] == streams[1]  # the points belong to the decoder
        assert not np.array_equal(lynxq.decode_anchor(default), lynxq.decode_anchor(changed))
        assert np.array_equal(lynxq.decode_full(default), lynxq.decode_full(changed))
    else:
        assert streams[0] != streams[1]


@given(testing.params())
def test_json_round_trip(params):
    text = params.to_json()
    assert Params.from_json(text) == params
    assert Params.from_json(text).to_json() == text
    assert Params.from_dict(params.to_dict()) == params
    assert list(json.loads(text)) == sorted(params.to_dict())
    assert copy.deepcopy(params) == params


def test_json_of_the_default():
    assert Params.from_json("{}") == Params()
    assert json.loads(Params().to_json()) == {
        "alpha": 0.5,
        "anchor_bits": 4,
        "anchor_points": None,
        "axis": "token",
        "center": "midrange",
        "chunk": 32,
        "metadata": "u8",
        "page": 256,
        "range_size": 256,
        "residual_bits": 4,
        "sink_tokens": 4,
    }


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "1", '"page"', "[" * 100000, '{"pages": 8}', '{"page": 8.5}', '{"alpha": NaN}', None, 5],
    ids=lambda text: str(text)[:12],
)
def test_bad_json(text):
    with pytest.raises(ParamsError):
        Params.from_json(text)


@pytest.mark.parametrize("data", [None, 3, "axis", [("page", 8)], {"pagge": 8}, {3: 4}, {3: 4, "x": 5}], ids=str)
def test_bad_dict(data):
    with pytest.raises(ParamsError):
        Params.from_dict(data)


def test_an_unknown_field_is_named():
    with pytest.raises(ParamsError, match="pagge"):
        Params.from_dict({"pagge": 8})


def test_presets():
    assert Params.keys() == Params()
    values = Params.values()
    assert (values.axis, values.range_size, values.chunk, values.range_implies_chunk) == ("channel", 64, 64, True)
    assert values.sink_tokens == 4
    assert Params.values(chunk=32, metadata="u16").metadata == "u16"
    assert Params.keys(alpha=2) == Params(alpha=2.0)
    paper = Params.paper()
    assert (paper.alpha, paper.center, paper.metadata, paper.sink_tokens) == (255.0, "mean", "f32", 0)
    assert paper.points == tuple(companding.levels(255.0, 112)[::16].tolist())
    coarse = Params.paper(anchor_bits=3, residual_bits=5, alpha=100)
    assert coarse.points == tuple(companding.levels(100.0, 96)[::32].tolist())
    assert Params.paper(anchor_points=None).anchor_points is None
    with pytest.raises(ParamsError):
        Params.paper(alpha=-1)


def test_immutable():
    params = Params()
    for name in ("alpha", "anything"):
        with pytest.raises(AttributeError):
            setattr(params, name, 1)
    with pytest.raises(AttributeError):
        del params.alpha
    with pytest.raises(TypeError):
        Params("token")  # type: ignore[misc]


@pytest.mark.parametrize("fixed", [{"residual_bits": 9}, {"anchor_bits": 2}, {"anchor_bits": 6, "residual_bits": 3}])
def test_the_strategy_leaves_what_is_wrong_with_fixed_fields_to_params(fixed):
    with pytest.raises(ParamsError, match="_bits must be"):
        find(testing.params(**fixed), lambda _: True)
