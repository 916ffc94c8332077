"""Tensors that do not belong together are refused when a cache is made of them, by name and value."""

import numpy as np
import pytest

import lynxq
from lynxq.errors import DTypeError, ShapeError
from lynxq.integrations.hf import ProgressiveCache, to_cache

SHAPE = (1, 2, 40, 16)
NAMES = [f"layer.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
MAKERS = {"ProgressiveCache": ProgressiveCache, "to_cache": to_cache}


def coded(shape=SHAPE, dtype="float32", axis=2, first=0):
    return lynxq.encode(np.ones(shape, dtype), token_axis=axis, first_token=first)


def tensors(**changed):
    return {name: changed.get(name.replace(".", "_"), coded()) for name in NAMES}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("other", "error", "value"),
    [
        ({"dtype": "float16"}, DTypeError, "float16"),
        ({"shape": (1, 2, 41, 16)}, ShapeError, "41"),
        ({"shape": (3, 2, 40, 16)}, ShapeError, "(3, 2, 40, 16)"),
        ({"shape": (1, 5, 40, 16)}, ShapeError, "(1, 5, 40, 16)"),
        ({"shape": (40, 2, 16), "axis": 0}, ShapeError, "(40, 2, 16)"),
        ({"axis": 1}, ShapeError, "token axis 1"),
        ({"first": 7}, ShapeError, "token 7"),
    ],
    ids=["dtype", "tokens", "batch", "heads", "dimensions", "axis", "first-token"],
)
def test_one_tensor_of_another_kind_is_named(make, name, other, error, value):
    given = tensors() | {name: coded(**other)}
    with pytest.raises(error) as caught:
        make(given)
    assert value in str(caught.value)
    if name != NAMES[0]:  # what the others are compared with
        assert repr(name) in str(caught.value) or "'layer.0.key'" in str(caught.value)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("name", NAMES[:3])
def test_a_tensor_that_is_not_there_is_named(make, name):
    given = {other: tensor for other, tensor in tensors().items() if other != name}
    with pytest.raises(ShapeError, match=f"needs {name!r}, which is not there"):
        make(given)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_several_dtypes_are_one_in_a_cache_that_has_its_own(make):
    given = tensors() | {NAMES[1]: coded(dtype="float16")}
    cache = make(given, dtype="float16")
    assert {str(layer.keys.dtype) for layer in cache.layers} == {"torch.float16"}
    assert {str(layer.values.dtype) for layer in cache.layers} == {"torch.float16"}
