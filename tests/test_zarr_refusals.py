"""Arrays, configurations and values that the codec of zarr 3 refuses."""

import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, ZstdCodec

from lynxq.errors import DTypeError, NonFiniteError, ParamsError, ShapeError, WriterError
from lynxq.integrations.zarr import LynxqCodec, at_tier
from tests.zarr_arrays import coded, create, stored, values


def test_an_array_at_the_anchor_tier_is_not_written_to():
    array = create()
    array[:] = values()
    before = stored(array)
    for selection in (slice(None), (0, 3), (slice(None), slice(0, 64))):
        with pytest.raises(WriterError, match="'anchor' cannot be written"):
            at_tier(array, "anchor")[selection] = 1
    assert stored(array) == before


def test_tiers_need_the_codec_alone():
    for more in ({"compressors": "auto"}, {"compressors": [ZstdCodec()]}, {"serializer": BytesCodec()}):
        with pytest.raises(ParamsError, match="only codec"):
            at_tier(create(**more), "anchor")
    with pytest.raises(ParamsError, match="only codec"):
        at_tier(zarr.create_array({}, shape=(4,), dtype="f4", zarr_format=2), "anchor")
    with pytest.raises(ParamsError, match="tier"):
        at_tier(create(), "residual")
    compressed = create(compressors=[ZstdCodec()])
    compressed[:] = values()
    assert compressed[:].tobytes() == coded(values())["full"].tobytes()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dtype": "float64"}, DTypeError),
        ({"dtype": "int8"}, DTypeError),
        ({"dtype": "uint16"}, DTypeError),
        ({"dtype": ">f4"}, DTypeError),
        ({"serializer": {"token_axis": 4}}, ShapeError),
        ({"serializer": {"token_axis": 1, "head_dim": 4}}, ShapeError),
        ({"serializer": {"token_axis": 1, "view": "bfloat16"}}, DTypeError),
        ({"serializer": {"token_axis": -1}}, ParamsError),
        ({"serializer": {"token_axis": 1.0}}, ParamsError),
        ({"serializer": {"token_axis": 1, "head_dim": 0}}, ParamsError),
        ({"serializer": {"token_axis": 1, "view": "float8"}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": 3}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": {"page": 7}}}, ParamsError),
        ({"serializer": {"token_axis": 1, "params": {"pages": 8}}}, ParamsError),
        ({"serializer": {"token_axis": 1, "tier": "near"}}, ParamsError),
    ],
)
def test_arrays_that_cannot_be_coded_are_refused_when_they_are_made(arguments, error):
    store = {}
    with pytest.raises(error):
        create(store, **{k: LynxqCodec(**v) if isinstance(v, dict) else v for k, v in arguments.items()})
    assert store == {}


@pytest.mark.parametrize(
    "data",
    [
        {"name": "lynxq"},
        {"name": "lynx", "configuration": {"token_axis": 1}},
        {"name": "lynxq", "configuration": {}},
        {"name": "lynxq", "configuration": 3},
        {"name": "lynxq", "configuration": {"token_axis": 1, "tier": "anchor"}},
        {"name": "lynxq", "configuration": {"token_axis": 1, "axis": 1}},
        {"name": "lynxq", "configuration": {"token_axis": 1, "params": {"alpha": -1}}},
    ],
)
def test_configurations_that_are_refused(data):
    with pytest.raises(ParamsError):
        LynxqCodec.from_dict(data)


def test_values_that_cannot_be_coded_are_not_stored():
    array = create()
    x = values()
    x[1, 70] = np.nan
    with pytest.raises(NonFiniteError):
        array[1, 64:96] = x[1, 64:96]
    assert stored(array) == {}


def test_only_arrays_of_zarr_have_tiers():
    with pytest.raises(ParamsError, match=r"must be a zarr\.Array, got ndarray"):
        at_tier(np.zeros(3), "anchor")
    with pytest.raises(ParamsError, match="view must be"):
        LynxqCodec(token_axis=0, view=[])
