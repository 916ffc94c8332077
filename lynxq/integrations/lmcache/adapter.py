"""L2 adapters by their configuration, for the two ways in which LMCache loads code of others."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lynxq.arguments import shown
from lynxq.errors import ParamsError

#: What LMCache takes from a plugin itself, and not from the adapter inside.
_OUTSIDE = ("affinity_tag", "eviction", "serde", "shared")


def parse_adapters(specs: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
    """The configurations of adapters that are described as for LMCache's ``--l2-adapter``, by LMCache's own parser."""
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    texts = [json.dumps(spec) for spec in specs]
    adapters: Sequence[Any] = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=texts)).adapters
    return adapters


class L2Adapter:
    """Creates the L2 adapter that its parameters describe, and is that adapter.

    LMCache has no entry points for serdes, but it imports the module of a plugin adapter before it looks up the
    adapter's serde. Whatever adapter is wanted, ``fs`` say, is therefore named inside a plugin.

    Parameters
    ----------
    params : mapping
        An adapter as LMCache's ``--l2-adapter`` takes it. ``serde``, ``eviction``, ``shared`` and ``affinity_tag``
        belong to the plugin around it.
    l1_memory_desc : object, optional
        Passed on.

    Raises
    ------
    ParamsError
        If `params` names no adapter, or holds what belongs outside.
    """

    def __new__(cls, params: Mapping[str, Any], l1_memory_desc: Any = None) -> Any:
        """Create the adapter."""
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter

        for name in _OUTSIDE:
            if name in params:
                raise ParamsError(
                    f"{name!r} must be given beside adapter_params, not inside, got {shown(dict(params))}"
                )
        if not isinstance(params.get("type"), str):
            raise ParamsError(f"adapter_params must name the type of an L2 adapter, got {shown(dict(params))}")
        (config,) = parse_adapters([params])
        return create_l2_adapter(config, l1_memory_desc)
