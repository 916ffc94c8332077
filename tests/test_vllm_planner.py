"""The scheduler's side: what is found, what is loaded where, and which pages a step completes."""

from __future__ import annotations

from typing import Any

import pytest

from lynxq.integrations.stores import BlobStore
from lynxq.integrations.vllm.plan import Load, Save
from lynxq.integrations.vllm.planner import Planner
from tests.vllm_fakes import geometry, request, spec, step

#: Blocks of 16 tokens, pages of 64.
TOKENS = list(range(1000, 1300))


class Names(BlobStore):
    """A store that only knows names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.asked: list[str] = []

    def contains(self, name: str) -> bool:
        self.asked.append(name)
        return name in self.names

    def open(self, name: str) -> Any:
        raise AssertionError("the planner reads nothing")

    def write(self, name: str, data: bytes) -> None:
        raise AssertionError("the planner writes nothing")

    def delete(self, name: str) -> None:
        raise AssertionError("the planner deletes nothing")


def _planner(store: Names, options: dict[str, Any] | None = None, **changes: Any) -> Planner:
    layout = geometry(options, **changes.pop("parallel", {}))
    return Planner(layout, store, **{"further": lambda *_: None, **changes})


def _keys(tokens: list[int], pages: int, **changes: Any) -> list[str]:
    """Keys of a prompt's pages, from the saves of a planner of its own."""
    planner = _planner(Names(), **changes)
    planner.allocated(request(tokens), [], 0)
    saves = planner.step(step({"r": (list(range(99)), 0, len(tokens))})).saves
    assert len(saves) >= pages
    return [save.key for save in saves[:pages]]


def _fill(store: Names, tokens: list[int], pages: int, shards: int = 1, **changes: Any) -> list[str]:
    keys = _keys(tokens, pages, **changes)
    store.names |= {f"{key}-{shard}of{shards}" for key in keys for shard in range(shards)}
    return keys


@pytest.mark.parametrize(
    ("stored", "local", "length", "expected"),
    [
        (0, 0, 300, 0),
        (1, 0, 300, 64),
        (4, 0, 300, 256),
        (4, 64, 300, 192),
        (4, 96, 300, 160),  # the engine's own cache ends within a page
        (1, 96, 300, 0),  # it has more than is stored
        (4, 256, 300, 0),
        (4, 288, 300, 0),
        (2, 0, 128, 112),  # the last token is computed, and with it its block
        (2, 112, 128, 0),
        (2, 0, 129, 128),
        (1, 0, 63, 0),
        (1, 0, 64, 48),
    ],
)
def test_matched(stored, local, length, expected):
    store = Names()
    _fill(store, TOKENS, stored)
    assert _planner(store).matched(request(TOKENS[:length]), local) == expected


def test_a_gap_ends_the_prefix():
    store = Names()
    keys = _fill(store, TOKENS, 4)
    store.names.remove(f"{keys[1]}-0of1")
    assert _planner(store).matched(request(TOKENS), 0) == 64
    assert _planner(store).matched(request(TOKENS), 64) == 0
    assert _planner(store).matched(request(TOKENS), 128) == 128, "pages that the engine has need not be stored"


def test_only_a_common_prefix_is_found():
    store = Names()
    _fill(store, TOKENS, 4)
    fork = [*TOKENS[:150], *reversed(TOKENS[:150])]
    assert _planner(store).matched(request(fork), 0) == 128
    assert _planner(store).matched(request([1, *TOKENS[1:]]), 0) == 0


def test_what_else_values_depend_on_is_part_of_the_key():
    store = Names()
    _fill(store, TOKENS, 4)
    asked = []

    def further(asker, first, last):
        asked.append((first, last))
        return ("adapter",) if first >= 64 else None

    assert _planner(store, further=further).matched(request(TOKENS), 0) == 64
    assert asked == [(0, 64), (64, 128), (128, 192), (192, 256)]


def test_a_page_must_be_stored_by_every_rank():
    store = Names()
    changes: dict[str, Any] = {"parallel": {"tensor_parallel_size": 2}}
    keys = _fill(store, TOKENS, 4, shards=2, **changes)
    assert _planner(store, **changes).matched(request(TOKENS), 0) == 256
    store.names.remove(f"{keys[2]}-1of2")
    assert _planner(store, **changes).matched(request(TOKENS), 0) == 128


def test_tokens_that_were_generated_count_as_tokens_to_compute():
    store = Names()
    _fill(store, TOKENS[:128], 2)
    assert _planner(store).matched(request(TOKENS[:128], generated=1), 0) == 128


def test_loads_go_to_the_blocks_behind_those_that_are_there():
    store = Names()
    keys = _fill(store, TOKENS, 4)
    planner = _planner(store)
    asker = request(TOKENS)
    assert planner.matched(asker, 96) == 160
    blocks = list(range(50, 69))
    planner.allocated(asker, blocks, 160)
    plan = planner.step(step({"r": (blocks, 256, 44)}))
    assert plan.loads == (
        (
            Load(keys[1], 2, (56, 57)),
            Load(keys[2], 0, (58, 59, 60, 61)),
            Load(keys[3], 0, (62, 63, 64, 65)),
        ),
    )
    assert not plan.saves
    assert planner.step(step()).loads == ()


def test_a_load_may_end_within_a_page():
    store = Names()
    keys = _fill(store, TOKENS, 2)
    planner, asker = _planner(store), request(TOKENS[:128])
    assert planner.matched(asker, 0) == 112
    planner.allocated(asker, list(range(8)), 112)
    assert planner.step(step({"r": (list(range(8)), 112, 16)})).loads == (
        (Load(keys[0], 0, (0, 1, 2, 3)), Load(keys[1], 0, (4, 5, 6))),
    )


def test_what_a_step_completes_is_saved():
    planner, asker = _planner(Names()), request(TOKENS)
    keys = _keys(TOKENS, 4)
    planner.allocated(asker, [], 0)
    steps = [
        (step({"r": ([10, 11, 12, 13, 14], 0, 70)}), [Save(keys[0], 0, (10, 11, 12, 13))]),
        (step(cached={"r": ([15, 16], 70, 40)}), []),
        (step(cached={"r": ([17], 110, 18)}), [Save(keys[1], 64, (14, 15, 16, 17))]),
        (
            step(cached={"r": (list(range(30, 42)), 128, 172)}),
            [Save(keys[2], 128, (30, 31, 32, 33)), Save(keys[3], 192, (34, 35, 36, 37))],
        ),
        (step(cached={"r": (None, 300, 1)}), []),
        (step(cached={"r": ([43, 44, 45, 46], 301, 64)}), []),  # what is generated is not stored
    ]
    for output, expected in steps:
        assert list(planner.step(output).saves) == expected


def test_what_is_computed_again_is_saved_again():
    """After a load that failed, the scheduler takes the request back to the tokens before it."""
    planner, asker = _planner(Names()), request(TOKENS)
    planner.allocated(asker, [], 0)
    assert len(planner.step(step({"r": (list(range(19)), 256, 44)})).saves) == 0
    planner.loads_failed()
    plan = planner.step(step(cached={"r": (None, 64, 96)}))
    assert [save.first_token for save in plan.saves] == [64]
    assert plan.acknowledged == 1
    assert planner.step(step(cached={"r": (None, 160, 96)})).acknowledged == 0


def test_blocks_of_a_request_that_was_preempted_are_new():
    planner, asker = _planner(Names()), request(TOKENS)
    planner.allocated(asker, [], 0)
    planner.step(step({"r": ([1, 2, 3, 4, 5], 0, 70)}))
    plan = planner.step(step(cached={"r": ([21, 22, 23, 24, 25], 0, 70)}, resumed=("r",)))
    assert [save.blocks for save in plan.saves] == [(21, 22, 23, 24)]


def test_requests_are_forgotten():
    planner, asker = _planner(Names()), request(TOKENS)
    planner.allocated(asker, [], 0)
    planner.finished("r")
    planner.finished("never seen")
    assert not planner.step(step(cached={"r": ([1], 0, 300)})).saves
    assert not planner._requests


def test_roles():
    store = Names()
    _fill(store, TOKENS, 4)
    producer, consumer = _planner(store, loads=False), _planner(store, saves=False)
    assert producer.matched(request(TOKENS), 0) == 0
    consumer.allocated(request(TOKENS), [], 0)
    assert not consumer.step(step({"r": (list(range(19)), 0, 300)})).saves


def test_no_more_is_asked_of_the_store_than_needed():
    store = Names()
    _fill(store, TOKENS, 2)
    _planner(store).matched(request(TOKENS), 64)
    assert len(store.asked) == 2
    store.asked.clear()
    _planner(store).matched(request(TOKENS[:64]), 48)
    assert not store.asked


def test_pages_of_one_block():
    planner = Planner(geometry({"page_tokens": 16}, spec()), Names(), further=lambda *_: None)
    planner.allocated(request(TOKENS), [], 0)
    plan = planner.step(step({"r": (list(range(19)), 0, 300)}))
    assert [save.blocks for save in plan.saves] == [(number,) for number in range(18)]
