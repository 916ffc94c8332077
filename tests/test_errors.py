"""Error classes as values: they cross processes, and their messages stay short whatever they show."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest

import lynxq
from lynxq import errors

CLASSES = [value for _, value in inspect.getmembers(errors, inspect.isclass) if value.__module__ == errors.__name__]


def example(kind):
    if kind is errors.NonFiniteError:
        return kind(3, (1, 2))
    if kind is errors.TruncatedError:
        return kind("a thing", 9, 4)
    if kind is errors.RequestError:
        return kind("prompt", 3, "the source failed")
    return kind("one sentence, got 5")


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_are_lynxq_errors_and_survive_pickling(kind):
    error = example(kind)
    assert isinstance(error, errors.LynxqError)
    for twin in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):  # noqa: S301 - our own bytes
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_messages_stay_short_however_much_there_is_to_show(tmp_path):
    zero = np.zeros((1, 1), np.float32)
    many = {f"tensor {'x' * 100} {i}": lynxq.encode(zero, token_axis=0) for i in range(300)}
    path = tmp_path / "kv.lynx"
    lynxq.save(path, many, metadata={"key": "v" * 60000})
    one = {"k": lynxq.encode(zero, token_axis=0, first_token=1)}
    for call in (
        lambda: lynxq.load(path, names=["absent" * 1000]),
        lambda: lynxq.append(path, one),
        lambda: lynxq.open(path, expect=lynxq.Expect(names=["k"])),
        lambda: lynxq.open(path, expect=lynxq.Expect(metadata={"key": "w" * 60000})),
        lambda: lynxq.open("x" * 100000 + "\0"),
        lambda: lynxq.Params(chunk="y" * 100000),
        lambda: lynxq.encode(zero, token_axis="z" * 100000),
    ):
        with pytest.raises(errors.LynxqError) as caught:
            call()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "arguments",
    [
        {"metadata": ["model"]},
        {"shapes": {"k": 300}},
        {"shapes": 5},
        {"dtype": "float64"},
        {"params": "keys"},
        {"names": "k"},
    ],
)
def test_expectations_that_make_no_sense(arguments):
    with pytest.raises(errors.LynxqError):
        lynxq.Expect(**arguments)


def test_expectations_take_dtypes_of_any_spelling(tmp_path):
    assert lynxq.Expect(dtype=np.float32) == lynxq.Expect(dtype="float32")


def test_wrong_types_at_the_border_of_the_container(tmp_path):
    for target in (None, b"path", 5):
        with pytest.raises(errors.SourceError):
            lynxq.save(target, {})
    with pytest.raises(errors.ParamsError):
        lynxq.open(b"", expect={"model": "m"})
