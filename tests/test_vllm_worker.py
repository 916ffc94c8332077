"""The workers' side: bytes into the store, bits into the blocks, and what happens when something is wrong."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lynxq
from lynxq.errors import ShapeError
from lynxq.integrations.stores import FolderStore, open_store
from lynxq.integrations.vllm import pages
from lynxq.integrations.vllm.geometry import Geometry
from lynxq.integrations.vllm.plan import Load, Plan, Save
from lynxq.integrations.vllm.worker import Worker
from tests.vllm_fakes import MLAAttentionSpec, geometry, spec

BLOCKS = 24
#: Orders of a cache in memory, layers among them, as permutations of (layer, block, head, slot, channel).
ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}


def caches_of(layout: Geometry, order: str = "LBHNC", *, split: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """Caches of all layers as vLLM makes them: views of one memory, blocks split into those of the kernel."""
    shape = (len(layout.layers), BLOCKS * split, layout.heads, layout.block_size // split, layout.channels)
    permutation = ORDERS[order]
    memory = torch.randn([shape[axis] for axis in permutation], generator=torch.Generator().manual_seed(seed))
    views = memory.to(getattr(torch, layout.dtype)).permute([permutation.index(axis) for axis in range(5)])
    return dict(zip(layout.layers, views, strict=True))


def rows(layout: Geometry, cache: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    """Tokens of some blocks of the scheduler, one by one: shape (tokens, heads, channels)."""
    slots = cache.shape[2]
    places = [
        divmod(block * layout.block_size + token, slots) for block in blocks for token in range(layout.block_size)
    ]
    return torch.stack([cache[block, :, slot] for block, slot in places])


def poisoned(caches: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(cache, 777.0) for name, cache in caches.items()}


LAYOUTS = {
    "full": geometry(),
    "anchor": geometry({"tier": "anchor"}),
    "latent": geometry({}, spec(MLAAttentionSpec, num_kv_heads=1, head_size=72, head_size_v=0)),
    "float32": geometry({}, spec(dtype=torch.float32)),
}
META = {"key": "k"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_page_comes_back_as_lynxq_decodes_it(name, order, split):
    layout = LAYOUTS[name]
    caches = caches_of(layout, order, split=split)
    blocks, into = [7, 0, 23, 4], [2, 9, 1, 22]
    data = pages.pack(layout, caches, blocks, first_token=64, metadata=META)
    target = poisoned(caches_of(layout, order, split=split))
    pages.scatter(layout, pages.unpack(layout, data, metadata=META), target, into)
    for layer in layout.layers:
        given = rows(layout, caches[layer], blocks)
        found = rows(layout, target[layer], into)
        for part in layout.parts:
            encoded = lynxq.encode(given[..., part.start : part.stop], part.params, token_axis=0, first_token=64)
            decode = lynxq.decode_full if layout.tier == "full" else lynxq.decode_anchor
            assert torch.equal(found[..., part.start : part.stop], decode(encoded))
        others = [block for block in range(BLOCKS) if block not in into]
        assert torch.all(rows(layout, target[layer], others) == 777.0), "a block of others was written"


@given(data=st.data(), split=st.sampled_from([1, 2, 16]), order=st.sampled_from(sorted(ORDERS)))
def test_a_range_of_a_page_is_that_range(data, split, order):
    layout = LAYOUTS["full"]
    skip = data.draw(st.integers(0, layout.page_blocks - 1))
    count = data.draw(st.integers(1, layout.page_blocks - skip))
    blocks = data.draw(st.permutations(range(BLOCKS)))[:count]
    caches = caches_of(layout, order, split=split)
    page = pages.unpack(layout, pages.pack(layout, caches, [3, 2, 1, 0], first_token=0, metadata=META), metadata=META)
    whole, some = poisoned(caches), poisoned(caches)
    pages.scatter(layout, page, whole, [0, 1, 2, 3])
    pages.scatter(layout, page, some, blocks, skip=skip)
    for layer in layout.layers:
        assert torch.equal(
            rows(layout, some[layer], blocks), rows(layout, whole[layer], list(range(skip, skip + count)))
        )
        others = [block for block in range(BLOCKS) if block not in blocks]
        assert torch.all(rows(layout, some[layer], others) == 777.0)


def test_anchors_take_about_half():
    caches = caches_of(LAYOUTS["full"])
    full, anchor = (
        len(pages.pack(LAYOUTS[tier], caches, [0, 1, 2, 3], first_token=64, metadata=META))
        for tier in ("full", "anchor")
    )
    assert 0.5 < anchor / full < 0.65


@pytest.mark.parametrize(
    "change",
    [
        lambda caches: caches.pop("layers.1.attn"),
        lambda caches: caches.update({"layers.1.attn": caches["layers.1.attn"].float()}),
        lambda caches: caches.update({"layers.1.attn": caches["layers.1.attn"][:, :1]}),
        lambda caches: caches.update({"layers.1.attn": caches["layers.1.attn"][..., :-1]}),
        lambda caches: caches.update({"layers.1.attn": caches["layers.1.attn"][:, :, :7]}),
        lambda caches: caches.update({"layers.1.attn": caches["layers.1.attn"][0]}),
        lambda caches: caches.update({"layers.1.attn": [caches["layers.1.attn"]]}),
    ],
)
def test_caches_that_do_not_fit_are_refused(tmp_path, change):
    layout = LAYOUTS["full"]
    caches = caches_of(layout)
    change(caches)
    with pytest.raises(ShapeError, match=r"layers\.1\.attn"):
        Worker(layout, FolderStore(tmp_path), 0).register(caches)


# --- the worker ----------------------------------------------------------------------------------------


class Rank:
    """A worker with a cache and a folder."""

    def __init__(self, folder: Path, layout: Geometry = LAYOUTS["full"], *, seed: int = 0, **changes: Any) -> None:
        self.layout, self.folder = layout, folder
        self.caches = caches_of(layout, seed=seed)
        self.worker = Worker(layout, FolderStore(folder), changes.pop("shard", 0), **changes)
        self.worker.register(self.caches)

    def file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{self.layout.blob(key, 0)}.lynx"


PAGES = {"aaaa": [0, 1, 2, 3], "bbbb": [4, 5, 6, 7], "cccc": [8, 9, 10, 11]}
SAVES = Plan(saves=tuple(Save(key, 64 * n, tuple(blocks)) for n, (key, blocks) in enumerate(PAGES.items())))
LOADS = Plan(loads=(tuple(Load(key, 0, tuple(blocks)) for key, blocks in PAGES.items()),))


def _saved(folder: Path) -> Rank:
    rank = Rank(folder)
    rank.worker.save(SAVES)
    rank.worker.close()
    assert rank.worker.counters["pages_saved"] == 3
    return rank


def test_save_and_load(tmp_path):
    first = _saved(tmp_path)
    second = Rank(tmp_path, seed=1)
    second.worker.load(LOADS)
    assert second.worker.take_failed() == set()
    assert second.worker.counters == {"pages_loaded": 3, "tokens_loaded": 192}
    for layer, cache in first.caches.items():
        error = rows(first.layout, cache, list(range(12))) - rows(first.layout, second.caches[layer], list(range(12)))
        assert 0 < error.abs().max() < 0.1


def test_an_object_store(tmp_path):
    layout = LAYOUTS["full"]
    _saved(tmp_path)
    store = open_store("memory://worker")
    for seed, plan in ((0, SAVES), (1, LOADS)):
        caches = caches_of(layout, seed=seed)
        worker = Worker(layout, store, 0)
        worker.register(caches)
        worker.save(plan)
        worker.load(plan)
        worker.close()
        assert not worker.take_failed()
    other = Rank(tmp_path, seed=1)
    other.worker.load(LOADS)
    assert all(torch.equal(caches[layer], other.caches[layer]) for layer in layout.layers)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def _swap(path: Path) -> None:
    """A sound page of another key, such as a file that someone renamed."""
    path.write_bytes(path.parents[1].joinpath("cc", "cccc-0of1.lynx").read_bytes())


DAMAGE = {
    "flipped": _flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "cut in the anchors": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"PK" * 5000),
    "trailing": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another page": _swap,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_page_is_reported_and_deleted(tmp_path, name):
    first = _saved(tmp_path)
    DAMAGE[name](first.file("bbbb"))
    second = Rank(tmp_path, seed=1)
    before = {layer: cache.clone() for layer, cache in second.caches.items()}
    second.worker.load(LOADS)
    assert second.worker.take_failed() == {*PAGES["bbbb"], *PAGES["cccc"]}, "what follows is not usable either"
    assert second.worker.take_failed() == set()
    assert not first.file("bbbb").exists()
    assert first.file("cccc").exists()
    for layer, cache in second.caches.items():
        assert torch.equal(cache[4:], before[layer][4:]), "a part of a damaged page was written"


def test_the_anchor_tier_wants_no_residual_and_the_full_tier_misses_it(tmp_path):
    anchors = Rank(tmp_path, LAYOUTS["anchor"])
    anchors.worker.save(SAVES)
    anchors.worker.close()
    full = Rank(tmp_path)
    full.worker.load(LOADS)
    assert full.worker.counters["loads_failed"] == 1
    again = Rank(tmp_path, LAYOUTS["anchor"])
    again.worker.load(Plan(loads=((Load("bbbb", 0, (4, 5, 6, 7)),),)))
    assert again.worker.counters["pages_loaded"] == 1


def test_a_missing_page_and_a_store_that_fails_are_reported_and_nothing_is_deleted(tmp_path, monkeypatch):
    _saved(tmp_path)
    rank = Rank(tmp_path)
    rank.worker.load(Plan(loads=((Load("dddd", 0, (5, 6, 7, 8)),), (Load("aaaa", 2, (1,)),))))
    assert rank.worker.take_failed() == {5, 6, 7, 8}, "requests fail one by one"
    assert rank.worker.counters["tokens_loaded"] == 16

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FolderStore, "open", broken)
    rank.worker.load(LOADS)
    assert rank.worker.take_failed() == set(range(12))
    assert rank.file("aaaa").exists()


def test_nothing_is_saved_until_the_scheduler_knows_of_what_failed(tmp_path):
    rank = Rank(tmp_path)
    missing = Plan(loads=((Load("dddd", 0, (1, 2, 3, 4)),),))
    rank.worker.load(missing)
    rank.worker.save(SAVES)
    rank.worker.load(Plan())  # a step that was scheduled before the failure was known
    rank.worker.save(SAVES)
    rank.worker.load(missing)  # so was this, and it fails as well
    rank.worker.save(SAVES)
    rank.worker.load(Plan(acknowledged=1))  # the scheduler knows of the first failure only
    rank.worker.save(SAVES)
    assert rank.worker.counters == {"loads_failed": 2, "saves_skipped": 12}
    rank.worker.load(Plan(acknowledged=1))
    rank.worker.save(SAVES)
    rank.worker.close()
    assert rank.worker.counters["pages_saved"] == 3


def test_a_failure_of_another_rank_stops_saving_here_too(tmp_path):
    _saved(tmp_path)
    asked = []

    def any_failed(failed: bool) -> bool:
        asked.append(failed)
        return True

    rank = Rank(tmp_path / "other", any_failed=any_failed)
    rank.worker.load(Plan())
    assert not asked, "ranks meet only in steps with loads"
    rank.worker = Worker(rank.layout, FolderStore(tmp_path), 0, any_failed=any_failed)
    rank.worker.register(rank.caches)
    rank.worker.load(LOADS)
    assert asked == [False]
    assert rank.worker.take_failed() == set(), "this rank's blocks are in order"
    rank.worker.save(Plan(saves=(Save("eeee", 0, (1, 2, 3, 4)),)))
    assert not rank.file("eeee").exists()
    assert rank.worker.counters["saves_skipped"] == 1


def test_a_page_that_is_there_is_not_coded_again(tmp_path):
    rank = _saved(tmp_path)
    times = rank.file("aaaa").stat().st_mtime_ns
    again = Rank(tmp_path)
    again.worker.save(SAVES)
    again.worker.close()
    assert again.worker.counters == {"saves_skipped": 3}
    assert rank.file("aaaa").stat().st_mtime_ns == times


def test_ranks_do_not_share_pages(tmp_path):
    layout = geometry({}, tensor_parallel_size=2)
    for shard in range(2):
        rank = Rank(tmp_path, layout, shard=shard, seed=shard)
        rank.worker.save(SAVES)
        rank.worker.close()
    assert len(list(tmp_path.rglob("*.lynx"))) == 6
    (tmp_path / "aa" / "aaaa-0of2.lynx").replace(tmp_path / "aa" / "aaaa-1of2.lynx")
    rank = Rank(tmp_path, layout, shard=1)
    rank.worker.load(LOADS)
    assert rank.worker.counters["loads_failed"] == 1, "the heads of another rank"


def test_what_cannot_be_saved_is_a_warning(tmp_path, monkeypatch, caplog):
    rank = Rank(tmp_path)
    rank.caches["layers.0.attn"][5, 0, 0, 0] = float("nan")
    rank.worker.save(SAVES)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FolderStore, "write", full)
    rank.worker.save(Plan(saves=(Save("eeee", 0, (12, 13, 14, 15)),)))
    rank.worker.close()
    assert rank.worker.counters["saves_failed"] == 2
    assert rank.worker.counters["pages_saved"] == 2
    assert "non-finite" in caplog.text
    assert "No space left" in caplog.text


def test_memory_of_pages_that_wait_to_be_written_is_bounded(tmp_path, monkeypatch):
    rank = Rank(tmp_path)
    going, done = threading.Event(), threading.Event()
    monkeypatch.setattr(FolderStore, "write", lambda *_: going.wait(30))
    many = Plan(saves=tuple(Save(f"{n:04}", 0, (0, 1, 2, 3)) for n in range(12)))
    saver = threading.Thread(target=lambda: (rank.worker.save(many), done.set()))
    saver.start()
    assert not done.wait(0.5), "all pages were taken while none was written"
    going.set()
    saver.join(30)
    rank.worker.close()
    assert rank.worker.counters["pages_saved"] == 12
