"""Chunks of zarr that are damaged, or other containers than the array's."""

import io

import numpy as np

import lynxq
from lynxq import Params
from lynxq.errors import AnchorChecksumError, ContainerError, IdentityError, ResidualChecksumError, TruncatedError
from lynxq.integrations.zarr import at_tier
from tests.containers import KEYS, anchors_end, frames
from tests.zarr_arrays import create, put, stored, values


def reads(array):
    """What each kind of read says of a chunk."""
    found = {}
    for tier in ("anchor", "full"):
        for name, selection in (("whole", (0, slice(0, 32))), ("part", (0, slice(0, 1)))):
            try:
                at_tier(array, tier)[selection]
            except ContainerError as error:
                found[tier, name] = type(error)
    return found


def test_damage_is_found_where_it_is_read():
    array = create()
    array[:] = values()
    key = "c/0/0/0/0"
    data = stored(array)[key]
    everywhere = {(tier, name) for tier in ("anchor", "full") for name in ("whole", "part")}
    anchor, residual = (next(each for each in frames(data) if each.kind == kind) for kind in (0, 1))
    for at, error, where in (
        (40, None, everywhere),
        (anchor.payload, AnchorChecksumError, everywhere),
        (residual.payload, ResidualChecksumError, {("full", "whole"), ("full", "part")}),
        (len(data) - 1, ResidualChecksumError, {("full", "whole")}),
    ):
        damaged = bytearray(data)
        damaged[at] ^= 4
        put(array, key, bytes(damaged))
        found = reads(array)
        assert found.keys() == where
        assert error is None or set(found.values()) == {error}
    for size, where in (
        (0, everywhere),
        (63, everywhere),
        (100, everywhere),
        (anchors_end(data) - 1, everywhere - {("anchor", "part")}),
        (len(data) - 1, {("full", "whole")}),
    ):
        put(array, key, data[:size])
        assert reads(array) == dict.fromkeys(where, TruncatedError)


def test_other_containers_are_refused():
    array = create()
    array[:] = values()
    key = "c/0/0/0/0"
    x = values()[:1, :32]
    encoded = {
        "two": [lynxq.encode(x, KEYS, token_axis=1)] * 2,
        "tokens": [lynxq.encode(values()[:1, :33], KEYS, token_axis=1)],
        "axis": [lynxq.encode(x, KEYS, token_axis=0)],
        "outer": [lynxq.encode(values()[:, :32], KEYS, token_axis=1)],
        "inner": [lynxq.encode(x[..., :5], KEYS, token_axis=1)],
        "dtype": [lynxq.encode(x.astype(np.float16), KEYS, token_axis=1)],
        "none": [],
    }
    for what, tensors in encoded.items():
        file = io.BytesIO()
        lynxq.save(file, {f"{what} {number}": each for number, each in enumerate(tensors)})
        put(array, key, file.getvalue())
        assert set(reads(array).values()) == {IdentityError}
        assert len(reads(array)) == 4
    put(array, key, b"x" * 5000)
    assert len(reads(array)) == 4


def test_chunks_of_other_parameters_and_longer_headers_are_read():
    array = create()
    x = values()[:1, :32]
    params = Params(page=8, range_size=8, chunk=8, anchor_bits=6, residual_bits=2)
    encoded = lynxq.encode(x, params, token_axis=1)
    file = io.BytesIO()
    lynxq.save(file, {"a long name " * 10: encoded}, metadata={"from": "elsewhere"})
    put(array, "c/0/0/0/0", file.getvalue())
    for tier, decode in (("full", lynxq.decode_full), ("anchor", lynxq.decode_anchor)):
        assert at_tier(array, tier)[:1, :32].tobytes() == decode(encoded).tobytes()
        assert at_tier(array, tier)[:1, 9:12].tobytes() == decode(encoded)[:, 9:12].tobytes()
