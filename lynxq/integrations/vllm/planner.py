"""The scheduler's side: which pages of a request are stored, and which to load and save in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lynxq.integrations import page_keys
from lynxq.integrations.stores import BlobStore
from lynxq.integrations.vllm.geometry import Geometry
from lynxq.integrations.vllm.plan import Load, Plan, Save


@dataclass
class _Tracked:
    """A request as far as pages are concerned."""

    keys: list[str]
    local_tokens: int = 0  # what the engine's own prefix cache held when it asked last
    blocks: list[int] = field(default_factory=list)


class Planner:
    """Decides what is loaded and saved; touches no data.

    Only pages of the prompt are stored: what a request generates is stored when it comes back in a later prompt.

    Parameters
    ----------
    geometry : Geometry
    store : BlobStore
        Asked whether pages are there.
    further : callable
        ``further(request, first, last)`` tells what the values of some tokens depend on besides token ids.
    loads, saves : bool
        Whether to load and to save at all.
    """

    def __init__(
        self,
        geometry: Geometry,
        store: BlobStore,
        *,
        further: Callable[[Any, int, int], object],
        loads: bool = True,
        saves: bool = True,
    ) -> None:
        self._geometry = geometry
        self._store = store
        self._further = further
        self._may_load = loads
        self._may_save = saves
        self._requests: dict[str, _Tracked] = {}
        self._pending: list[tuple[Load, ...]] = []
        self._acknowledged = 0

    def matched(self, request: Any, local_tokens: int) -> int:
        """Tokens that can be loaded behind those that the engine has.

        At least one token of a request is always left to compute, and loads end with a block.
        """
        if not self._may_load:
            return 0
        tracked = self._track(request)
        tracked.local_tokens = local_tokens
        page, block = self._geometry.page_tokens, self._geometry.block_size
        stored = local_tokens // page
        limit = (request.num_tokens - 1) // block * block
        reach = local_tokens
        while reach < limit and stored < len(tracked.keys) and self._stored(tracked.keys[stored]):
            stored += 1
            reach = min(stored * page, limit)
        return max(reach - local_tokens, 0)

    def allocated(self, request: Any, blocks: Sequence[int], tokens: int) -> None:
        """The engine took blocks for a request, of which some tokens are to be loaded."""
        tracked = self._track(request)
        if tokens:
            loads = self._loads(tracked, blocks, tracked.local_tokens, tracked.local_tokens + tokens)
            self._pending.append(tuple(loads))

    def step(self, output: Any) -> Plan:
        """What is to be done in the step that the scheduler has put together (a vLLM SchedulerOutput)."""
        saves: list[Save] = []
        for request_id, computed in self._scheduled(output):
            tracked = self._requests[request_id]
            saves += self._saves(tracked, computed, computed + output.num_scheduled_tokens[request_id])
        plan = Plan(tuple(self._pending), tuple(saves), self._acknowledged)
        self._pending.clear()
        self._acknowledged = 0
        return plan

    def loads_failed(self) -> None:
        """The scheduler has learnt that loads of a step failed, and takes back what was built on them."""
        self._acknowledged += 1

    def finished(self, request_id: str) -> None:
        """The request is over."""
        self._requests.pop(request_id, None)

    def _track(self, request: Any) -> _Tracked:
        if request.request_id not in self._requests:
            page = self._geometry.page_tokens
            tokens = list(request.all_token_ids[: request.num_prompt_tokens])
            starts = range(0, len(tokens) - page + 1, page)
            pages = ((tokens[start : start + page], self._further(request, start, start + page)) for start in starts)
            self._requests[request.request_id] = _Tracked(page_keys.chain(self._geometry.root, pages))
        return self._requests[request.request_id]

    def _stored(self, key: str) -> bool:
        """Whether every rank's part of a page is there."""
        names = (self._geometry.blob(key, shard) for shard in range(self._geometry.shards))
        return all(self._store.contains(name) for name in names)

    def _loads(self, tracked: _Tracked, blocks: Sequence[int], start: int, stop: int) -> Iterator[Load]:
        geometry = self._geometry
        first, last = start // geometry.block_size, stop // geometry.block_size
        while first < last:
            page, skip = divmod(first, geometry.page_blocks)
            end = min(last, (page + 1) * geometry.page_blocks)
            yield Load(tracked.keys[page], skip, tuple(blocks[first:end]))
            first = end

    def _saves(self, tracked: _Tracked, before: int, after: int) -> Iterator[Save]:
        """The pages of the prompt that this step completes."""
        if not self._may_save:
            return
        page, blocks = self._geometry.page_tokens, self._geometry.page_blocks
        for number in range(before // page, min(after // page, len(tracked.keys))):
            first = number * blocks
            yield Save(tracked.keys[number], number * page, tuple(tracked.blocks[first : first + blocks]))

    def _scheduled(self, output: Any) -> Iterator[tuple[str, int]]:
        """Requests of a step that are known here, and how many of their tokens were computed before it."""
        for new in output.scheduled_new_reqs:
            if new.req_id in self._requests:
                self._requests[new.req_id].blocks = list(new.block_ids[0])
                yield new.req_id, new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        rows = zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)
        for request_id, new_blocks, computed in rows:
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            if request_id in cached.resumed_req_ids:
                tracked.blocks.clear()
            if new_blocks is not None:
                tracked.blocks += new_blocks[0]
            yield request_id, computed
