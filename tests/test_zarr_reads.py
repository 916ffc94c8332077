"""What is read of an array of zarr: tiers, selections, shards, and tasks of dask."""

import dask
import dask.array
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from lynxq.errors import ParamsError
from lynxq.integrations.zarr import LynxqCodec, at_tier
from tests.containers import KEYS, anchors_end, frames, spans
from tests.zarr_arrays import CHUNKS, SHAPE, coded, create, stored, values


class Recorded(WrapperStore):
    """A store that notes the ranges that are asked of it."""

    def __init__(self, store):
        super().__init__(store)
        self.requests = []

    async def get(self, key, prototype, byte_range=None):
        if "c/" in key:
            self.requests.append((key, None if byte_range is None else (byte_range.start, byte_range.end)))
        return await super().get(key, prototype, byte_range)


def test_an_anchor_read_asks_for_no_residual_byte():
    array = create(Recorded(MemoryStore()), shape=(2, 512, 2, 6), chunks=(1, 256, 2, 6))
    array[:] = values(shape=array.shape)
    data = {key: value.to_bytes() for key, value in array.store_path.store._store._store_dict.items() if "c/" in key}
    requests = array.store_path.store.requests
    requests.clear()
    at_tier(array, "anchor")[:]
    assert sorted(requests) == sorted(
        (key, part)
        for key, each in data.items()
        for part in ((0, spans(each)[0].header), (spans(each)[0].header, anchors_end(each)))
    )
    requests.clear()
    array[:]
    assert sorted(requests) == [(key, None) for key in sorted(data)]
    for tier, streams in (("anchor", 1), ("full", 2)):
        requests.clear()
        at_tier(array, tier)[0, 300:301]
        (key, head), *pages = requests
        assert (key, head) == ("c/0/1/0/0", (0, spans(data[key])[0].header))
        wanted = [(each.begin, each.end) for each in frames(data[key]) if each.page == 44 // 8][:streams]
        assert sorted(pages) == [(key, each) for each in wanted]


def selections():
    """An integer or a slice for each axis; zarr has no negative steps."""

    def axis(length):
        slices = st.builds(slice, st.integers(0, length), st.integers(0, length), st.integers(1, 9))
        return st.one_of(st.integers(-length, length - 1), slices, st.just(slice(None)))

    return st.tuples(*map(axis, SHAPE))


READ = create()
READ[:] = values()
TIERS = {tier: (at_tier(READ, tier), wanted) for tier, wanted in coded(values()).items()}


@given(selection=selections(), tier=st.sampled_from(["full", "anchor"]))
def test_selections(selection, tier):
    array, wanted = TIERS[tier]
    assert np.array_equal(array[selection], wanted[selection])


@given(
    tokens=st.lists(st.integers(0, 99), min_size=1, max_size=9),
    other=st.integers(0, 5),
    mask=st.lists(st.booleans(), min_size=100, max_size=100),
    tier=st.sampled_from(["full", "anchor"]),
)
def test_advanced_selections(tokens, other, mask, tier):
    array, wanted = TIERS[tier]
    assert np.array_equal(array.oindex[1, tokens, :, other], wanted[1][tokens][:, :, other])
    assert np.array_equal(array.oindex[:, np.array(mask)], wanted[:, np.array(mask)])
    points = ([0] * len(tokens), tokens, [1] * len(tokens), [other] * len(tokens))
    assert np.array_equal(array.vindex[points], wanted[points])
    assert np.array_equal(array.blocks[1, 2], wanted[1:, 64:96])


def test_a_part_of_a_chunk_can_be_written():
    array = create()
    x = values()
    array[:] = x
    before = array[:]
    array[1, 40:44] = 7
    after = array[:]
    assert (after[1, 40:44] == 7).all()
    assert np.abs(after - before)[1, 32:40].max() < 1
    untouched = np.ones(SHAPE, bool)
    untouched[1, 32:64] = False
    assert after[untouched].tobytes() == before[untouched].tobytes()


def test_shards():
    x = values()
    array = create(shards=(2, 64, 2, 6))
    array[:] = x
    assert len(stored(array)) == 2
    for tier, wanted in coded(x).items():
        assert at_tier(array, tier)[:].tobytes() == wanted.tobytes()
        assert at_tier(array, tier)[1, 30:70].tobytes() == wanted[1, 30:70].tobytes()


def test_a_transposed_array():
    x = values()
    filters = [zarr.codecs.TransposeCodec(order=(1, 0, 2, 3))]
    array = create(filters=filters, serializer=LynxqCodec(params=KEYS, token_axis=0), shape=SHAPE)
    array[:] = x
    assert array[:].tobytes() == coded(x)["full"].tobytes()
    with pytest.raises(ParamsError, match="TransposeCodec"):
        at_tier(array, "anchor")


@pytest.mark.parametrize(
    ("scheduler", "dtype", "tiers"),
    [
        ("threads", "float16", ["full", "anchor"]),
        ("threads", "bfloat16", ["full", "anchor"]),
        ("processes", "bfloat16", ["anchor"]),  # processes take seconds to start
    ],
)
def test_dask_writes_and_reads_in_parallel(scheduler, dtype, tiers, tmp_path):
    x = values(dtype)
    array = create(LocalStore(tmp_path / "kv.zarr"), dtype=dtype)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        dask.array.store(dask.array.from_array(x, chunks=CHUNKS), array, lock=False)
        wanted = coded(x)
        for tier in tiers:
            lazy = dask.array.from_array(at_tier(array, tier), chunks=CHUNKS)
            found = lazy[:, 20:90].compute()
            assert found.dtype == x.dtype
            assert found.tobytes() == wanted[tier][:, 20:90].tobytes()
