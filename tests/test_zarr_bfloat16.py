"""The data type bfloat16 in zarr 3."""

import json

import ml_dtypes
import numpy as np
import pytest
import zarr

from lynxq.integrations import zarr_bfloat16


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, 0.5),
        (3, 3.0),
        (np.float32(1 / 3), float(ml_dtypes.bfloat16(1 / 3))),
        (ml_dtypes.bfloat16(-2), -2.0),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ("Infinity", "Infinity"),
        (np.uint16(0x7FC1).view(ml_dtypes.bfloat16), "0x7fc1"),
    ],
)
def test_fill_values_of_bfloat16(value, shown):
    dtype = zarr_bfloat16.BFloat16()
    scalar = dtype.cast_scalar(value)
    assert dtype.to_json_scalar(scalar, zarr_format=3) == shown
    again = dtype.from_json_scalar(shown, zarr_format=3)
    assert np.asarray(again).tobytes() == np.asarray(scalar).tobytes()
    store = {}
    array = zarr.create_array(store, shape=(3,), dtype="bfloat16", fill_value=value)
    metadata = json.loads(store["zarr.json"].to_bytes())
    assert (metadata["data_type"], metadata["fill_value"]) == ("bfloat16", shown)
    assert zarr.open_array(store)[:].tobytes() == np.asarray(scalar).tobytes() * 3
    array[1:] = [1, 2]
    assert zarr.open_array(store)[1:].tolist() == [1, 2]


@pytest.mark.parametrize("value", [None, "0.5", "nan", b"1", 1j, True, [1, 2], object()])
def test_what_is_no_bfloat16(value):
    dtype = zarr_bfloat16.BFloat16()
    assert not dtype._check_scalar(value)
    with pytest.raises(TypeError, match="made of a number"):
        dtype.cast_scalar(value)


def test_other_types_are_not_bfloat16():
    for other in (np.float16, np.uint16, ml_dtypes.float8_e4m3fn, "V2"):
        with pytest.raises(ValueError, match="must be"):
            zarr_bfloat16.BFloat16.from_native_dtype(np.dtype(other))
    with pytest.raises(ValueError, match="zarr format 2"):
        zarr.create_array({}, shape=(3,), dtype="bfloat16", zarr_format=2)
    zarr_bfloat16.register()
    assert zarr.dtype.data_type_registry.get("bfloat16") is zarr_bfloat16.BFloat16
