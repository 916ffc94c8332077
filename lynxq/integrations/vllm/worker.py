"""The workers' side: loads pages into the blocks of the cache, and saves pages out of them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Lock

from lynxq.errors import ContainerError, MissingResidualError
from lynxq.integrations.stores import BlobStore
from lynxq.integrations.vllm import pages
from lynxq.integrations.vllm.geometry import Geometry
from lynxq.integrations.vllm.plan import Load, Plan, Save

logger = logging.getLogger(__name__)

#: Pages that may wait to be written; a step that saves more waits, so that memory stays bounded.
_QUEUE = 8


class Worker:
    """Moves pages between the cache of one rank and a store.

    A load that fails is never an error of the engine: its blocks are reported, and the engine recomputes them or
    fails the request, by its policy. From then until the scheduler knows, nothing is saved, because steps in flight
    may build on what was not loaded. A save that fails is a page that is not stored.

    Parameters
    ----------
    geometry : Geometry
    store : BlobStore
    shard : int
        Rank whose heads these are.
    any_failed : callable, optional
        ``any_failed(failed)`` tells whether a load failed on any rank in this step; all ranks call it in the same
        steps. What one rank lacks spoils the values that the others compute from then on.

    Attributes
    ----------
    counters : collections.Counter
        ``pages_loaded``, ``tokens_loaded``, ``loads_failed``, ``pages_saved``, ``bytes_saved``, ``saves_skipped``,
        ``saves_failed``.
    """

    def __init__(
        self,
        geometry: Geometry,
        store: BlobStore,
        shard: int,
        *,
        any_failed: Callable[[bool], bool] = bool,
    ) -> None:
        self._geometry = geometry
        self._store = store
        self._shard = shard
        self._any_failed = any_failed
        self._caches: pages.Caches = {}
        self._failed: set[int] = set()  # blocks that the engine has not been told of
        self._spoiled_steps = 0  # steps with failed loads that the scheduler has not acknowledged
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="lynxq-save")
        self._room = BoundedSemaphore(_QUEUE)
        self._lock = Lock()
        self.counters: Counter[str] = Counter()

    def register(self, caches: pages.Caches) -> None:
        """Take the caches of all layers; raises `ShapeError` if they are not as the geometry says."""
        pages.check_caches(self._geometry, caches)
        self._caches = caches

    def load(self, plan: Plan) -> None:
        """Fill the blocks of the plan's loads; returns when they are filled, or queued on the device."""
        self._spoiled_steps = max(self._spoiled_steps - plan.acknowledged, 0)
        if not plan.loads:
            return
        failed: set[int] = set()
        for loads in plan.loads:
            for number, load in enumerate(loads):
                if not self._load(load):
                    # The engine falls back to the tokens before the first block that failed.
                    failed.update(block for rest in loads[number:] for block in rest.blocks)
                    break
        self._failed |= failed
        self._spoiled_steps += self._any_failed(bool(failed))

    def save(self, plan: Plan) -> None:
        """Code the pages of the plan's saves; they are written to the store in the background."""
        if self._spoiled_steps:
            self._count("saves_skipped", len(plan.saves))
            return
        for save in plan.saves:
            self._save(save)

    def take_failed(self) -> set[int]:
        """Blocks whose loads failed since the last call."""
        blocks, self._failed = self._failed, set()
        return blocks

    def close(self) -> None:
        """Return when everything is written."""
        self._writer.shutdown()

    def _metadata(self, key: str) -> dict[str, str]:
        return {"key": key, "shard": f"{self._shard}/{self._geometry.shards}"}

    def _load(self, load: Load) -> bool:
        name = self._geometry.blob(load.key, self._shard)
        try:
            with self._store.open(name) as source:
                tensors = pages.unpack(self._geometry, source, metadata=self._metadata(load.key))
            pages.scatter(self._geometry, tensors, self._caches, load.blocks, skip=load.skip)
        except (ContainerError, MissingResidualError) as error:
            logger.warning("lynxq: page %s is damaged and is deleted: %s", name, error)
            self._delete(name)
        except Exception as error:  # noqa: BLE001 - stores have errors of their own, and none may stop the engine
            logger.warning("lynxq: page %s cannot be loaded: %s", name, error)
        else:
            self._count("pages_loaded")
            self._count("tokens_loaded", len(load.blocks) * self._geometry.block_size)
            return True
        self._count("loads_failed")
        return False

    def _delete(self, name: str) -> None:
        """Remove a damaged page, so that it is computed and stored again and not found damaged for ever."""
        try:
            self._store.delete(name)
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("lynxq: page %s cannot be deleted: %s", name, error)

    def _save(self, save: Save) -> None:
        name = self._geometry.blob(save.key, self._shard)
        try:
            if self._store.contains(name):
                self._count("saves_skipped")
                return
            data = pages.pack(
                self._geometry,
                self._caches,
                save.blocks,
                first_token=save.first_token,
                metadata=self._metadata(save.key),
            )
        except Exception as error:  # noqa: BLE001 - as above
            self._not_saved(name, error)
            return
        self._room.acquire()
        written = self._writer.submit(self._store.write, name, data)
        written.add_done_callback(lambda done: self._written(name, len(data), done))

    def _written(self, name: str, size: int, done: Future[None]) -> None:
        self._room.release()
        error = done.exception()
        if error is not None:
            self._not_saved(name, error)
            return
        self._count("pages_saved")
        self._count("bytes_saved", size)

    def _not_saved(self, name: str, error: BaseException) -> None:
        self._count("saves_failed")
        logger.warning("lynxq: page %s is not saved: %s", name, error)

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:  # the writer counts as well
            self.counters[what] += number
