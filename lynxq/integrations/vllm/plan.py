"""What the scheduler's side tells the workers' side to do in one step of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """Fill blocks with a stored page, or a range of it."""

    key: str
    #: Blocks at the page's beginning that are not wanted: they are there already.
    skip: int
    #: Blocks of the cache, for the page's blocks from `skip` on.
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Save:
    """Store the page that is complete in some blocks when the step is done."""

    key: str
    first_token: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """One step."""

    loads: tuple[tuple[Load, ...], ...] = ()  # the loads of a request, in the order of its tokens, lie together
    saves: tuple[Save, ...] = ()
    #: Steps with failed loads that the scheduler has learnt of since the last plan: this one no longer builds on them.
    acknowledged: int = 0
