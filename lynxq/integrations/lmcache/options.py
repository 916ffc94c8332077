"""What a user may say of the serde in LMCache's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lynxq.arguments import choice, instance, integer, shown
from lynxq.errors import ParamsError
from lynxq.layout import MAX_LENGTH, Tier
from lynxq.params import Params

#: Order of the axes of a memory object: names of LMCache's `MemoryFormat`, and the fused one, which has no name there.
MemoryLayout = Literal["KV_2LTD", "KV_2TD", "KV_T2D", "KV_MLA_FMT", "KV_FUSED"]

MAX_WORKERS = 64


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the serde; immutable.

    Parameters
    ----------
    layout : {"KV_2LTD", "KV_2TD", "KV_T2D", "KV_MLA_FMT", "KV_FUSED"}
        Order of the axes of the memory objects. It cannot be told from a shape: MLA and fused objects look alike.

        ``KV_2LTD``
            (2, layers, tokens, heads · head_dim): keys, then values. What most models have.
        ``KV_2TD``, ``KV_T2D``
            (2, tokens, heads · head_dim) and (tokens, 2, heads · head_dim): one layer.
        ``KV_MLA_FMT``
            (1, layers, tokens, latent) or (layers, tokens, latent): one vector for keys and values.
        ``KV_FUSED``
            (1, layers, tokens, heads · 2 · head_dim) or without the first axis: in every head its key, then its value.
    head_dim : int or sequence of int
        Channels of a head; a sequence has one for each group of an object whose layers differ. It must be given unless
        the layout is ``KV_MLA_FMT``, where it is the whole last axis by default.
    tier : {"full", "anchor"}
        What is stored, and what a load decodes. "anchor" takes about half the bytes and loses the residual for good.
    keys, values : Params
        Parameters of the codec. MLA objects are coded with those of keys.
    threads : int, optional
        Threads of one object, as for :func:`lynxq.encode`.
    max_workers : int
        Objects that are coded at the same time.

    Raises
    ------
    ParamsError
        If an option is missing, out of its range, or not one of its choices.

    Examples
    --------
    >>> Options.of({"layout": "KV_2LTD", "head_dim": 128, "keys": {"anchor_bits": 5, "residual_bits": 3}}).tier
    'full'
    """

    layout: MemoryLayout
    head_dim: int | tuple[int, ...] | None = None
    tier: Tier = "full"
    keys: Params = field(default_factory=Params.keys)
    values: Params = field(default_factory=Params.values)
    threads: int | None = None
    max_workers: int = 1

    def __post_init__(self) -> None:
        choice("layout", self.layout, MemoryLayout)
        choice("tier", self.tier, Tier)
        instance("keys", self.keys, Params, ParamsError)
        instance("values", self.values, Params, ParamsError)
        if self.head_dim is None and self.layout != "KV_MLA_FMT":
            raise ParamsError(f"head_dim must be given for layout {self.layout!r}")
        if isinstance(self.head_dim, list | tuple):
            heads = tuple(integer("head_dim", each, 1, MAX_LENGTH, ParamsError) for each in self.head_dim)
            object.__setattr__(self, "head_dim", heads)
        elif self.head_dim is not None:
            integer("head_dim", self.head_dim, 1, MAX_LENGTH, ParamsError)
        if self.threads is not None:
            integer("threads", self.threads, 1, 1 << 20, ParamsError)
        integer("max_workers", self.max_workers, 1, MAX_WORKERS, ParamsError)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Options:
        """The options of a parsed JSON object; `keys` and `values` are objects of what differs from the presets."""
        known = [each.name for each in fields(cls)]
        for name in config:
            if name not in known:
                raise ParamsError(f"option must be one of {', '.join(known)}, got {shown(name)}")
        if "layout" not in config:
            raise ParamsError("layout must be given: it cannot be told from the shape of an object")
        given = dict(config)
        for name, preset in (("keys", Params.keys), ("values", Params.values)):
            if isinstance(given.get(name), Mapping):
                given[name] = Params.from_dict({**preset().to_dict(), **given[name]})
        return cls(**given)

    def head_dim_of(self, group: int, groups: int) -> int | None:
        """Channels of a head in one of the groups of an object."""
        if not isinstance(self.head_dim, tuple):
            return self.head_dim
        if len(self.head_dim) != groups:
            raise ParamsError(f"head_dim must have one entry for each of {groups} groups, got {shown(self.head_dim)}")
        return self.head_dim[group]
