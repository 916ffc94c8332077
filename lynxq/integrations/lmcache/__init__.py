"""lynxq as a serde of LMCache's L2 adapters (multi-process mode): KV caches in files and object stores, compressed.

LMCache is not imported before it is needed. Where it is loaded already, as in its server, importing this module
registers the serde under the name ``lynxq``; elsewhere :func:`register` does.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from lynxq.arguments import shown
from lynxq.errors import ParamsError
from lynxq.integrations.lmcache.adapter import L2Adapter, parse_adapters
from lynxq.integrations.lmcache.options import Options
from lynxq.integrations.lmcache.serde import LynxqDeserializer, LynxqSerializer, create_processor
from lynxq.libraries import need

__all__ = [
    "NAME",
    "L2Adapter",
    "LynxqDeserializer",
    "LynxqSerializer",
    "Options",
    "build_server_modules",
    "create_processor",
    "register",
]

#: The serde's ``type`` in LMCache's configuration.
NAME = "lynxq"


def register() -> None:
    """Make the serde known to LMCache in this process; a further call does nothing.

    Raises
    ------
    MissingLibraryError
        If LMCache is not installed.
    """
    serde = need("lmcache.v1.distributed.serde", "lynxq[lmcache]")
    adapters = need("lmcache.v1.distributed.l2_adapters", "lynxq[lmcache]")
    serde.Serializer.register(LynxqSerializer)
    serde.Deserializer.register(LynxqDeserializer)
    adapters.L2AdapterInterface.register(L2Adapter)
    with suppress(ValueError):  # it is registered: asking first would be a race between threads
        serde.register_serde_factory(NAME, create_processor)


def build_server_modules(context: Any) -> None:
    """For LMCache's ``--server-module``: registers the serde, and adds the L2 adapters of its configuration.

    LMCache creates the adapters of its command line before it loads server modules, so those cannot use a serde that is
    registered here. Adapters that shall use it are listed in the module's configuration, under ``l2_adapters``, or
    named inside an :class:`L2Adapter` on the command line.

    Parameters
    ----------
    context : ExtServerModuleBuildContext
        What LMCache passes.

    Raises
    ------
    ParamsError
        If the configuration has anything but a list of adapters.
    """
    register()
    adapters = context.config.get("l2_adapters", [])
    if set(context.config) - {"l2_adapters"} or not isinstance(adapters, list):
        raise ParamsError(f"config must hold a list of adapters as l2_adapters, got {shown(context.config)}")
    for config in parse_adapters(adapters):
        context.server_context.storage_manager.add_l2_adapter(config)


if "lmcache" in sys.modules:  # LMCache's loaders import this module, and look for the serde afterwards
    register()
