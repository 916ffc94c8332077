"""The transfers that are compared: what the prefill side sends of a cache, and how the decode side fills its own.

Every transfer sends layer after layer, keys before values, and on the other side each layer can be used as soon as it
is there. Lynx is encoded while it is sent, within the measured time. What other schemes send is made before, and its
encoding costs them nothing; their decoding takes place while the next tensors arrive, as Lynx's does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lynxq import baselines
from lynxq.arrays import Array
from lynxq.baselines import Scheme
from lynxq.codec import encode
from lynxq.e2e.carrier import Carrier
from lynxq.encoded import Encoded
from lynxq.errors import ParamsError
from lynxq.integrations.hf import ProgressiveCache
from lynxq.layout import Layout, Tier
from lynxq.naming import Kind, kind_of, preset_for
from lynxq.stream import EncodedSource, EncodingSource, Source
from lynxq.stream.tcp import Ready, Transfer

#: Called with a tensor's name, and begin and end of its encoding in seconds of the monotonic clock.
Spans = Callable[[str, float, float], None]
#: Puts what has arrived of a transfer into a cache.
Fill = Callable[[ProgressiveCache, Transfer, Ready], None]


@dataclass(frozen=True)
class Method(ABC):
    """A way to move a cache.

    Attributes
    ----------
    name, title : str
    tier : {"anchor", "full"}
        What is asked of the transport.
    drafts : bool
        Whether there is something to draft from before all is there.
    """

    name: str
    title: str
    tier: Tier
    drafts: bool

    @abstractmethod
    def source(self, tensors: Mapping[str, Array], on_encoded: Spans) -> Source:
        """What is sent of tensors ``[1, heads, tokens, head dim]``, named as in `lynxq.integrations.hf`."""

    @abstractmethod
    def sent(self, layouts: Mapping[str, Layout]) -> Mapping[str, Layout]:
        """The tensors that are sent of such a cache."""

    @abstractmethod
    def fill(self, layouts: Mapping[str, Layout]) -> Fill:
        """What the decode side does with what arrives of such tensors; made before the time is taken."""


@dataclass(frozen=True)
class Lynx(Method):
    """Anchor and residual, encoded while they are sent, tensor by tensor; or `before` that."""

    before: bool = False

    def source(self, tensors: Mapping[str, Array], on_encoded: Spans) -> Source:
        """Encodes on a thread of its own, or at once."""
        layouts = layouts_of({name: tuple(x.shape) for name, x in tensors.items()}, next(iter(tensors.values())).dtype)

        def pieces() -> Iterator[tuple[str, Encoded]]:
            for name, x in tensors.items():
                begin = time.monotonic()
                encoded = encode(x, layouts[name].params, token_axis=2)
                on_encoded(name, begin, time.monotonic())
                yield name, encoded

        return EncodedSource(dict(pieces())) if self.before else EncodingSource(layouts, pieces())

    def sent(self, layouts: Mapping[str, Layout]) -> Mapping[str, Layout]:
        """The tensors themselves."""
        return layouts

    def fill(self, layouts: Mapping[str, Layout]) -> Fill:
        """Decode pages into their place: as an anchor first, then in full."""
        del layouts

        def write(cache: ProgressiveCache, transfer: Transfer, ready: Ready) -> None:
            tier: Tier = "anchor" if ready.stream == "anchor" else "full"
            cache.write(ready.name, transfer.encoded(ready.name, tier, (ready.start, ready.stop)))

        return write


@dataclass(frozen=True)
class Monolithic(Method):
    """A scheme of :mod:`lynxq.baselines`, sent in one piece for each tensor."""

    scheme: Scheme

    def source(self, tensors: Mapping[str, Array], on_encoded: Spans) -> Source:
        """Encoded at once."""
        carriers = self._carriers({name: tuple(x.shape) for name, x in tensors.items()})
        made = {}
        for name, x in tensors.items():
            begin = time.monotonic()
            made[name] = carriers[name].pack(carriers[name].scheme.encode(x, token_axis=2))
            on_encoded(name, begin, time.monotonic())
        return EncodedSource(made)

    def sent(self, layouts: Mapping[str, Layout]) -> Mapping[str, Layout]:
        """Their carriers."""
        carriers = self._carriers({name: layout.shape for name, layout in layouts.items()})
        return {name: carrier.layout for name, carrier in carriers.items()}

    def fill(self, layouts: Mapping[str, Layout]) -> Fill:
        """Decode a tensor, all of which is there, and put it into its place."""
        carriers = self._carriers({name: layout.shape for name, layout in layouts.items()})

        def write(cache: ProgressiveCache, transfer: Transfer, ready: Ready) -> None:
            cache.fill(ready.name, carriers[ready.name].unpack(transfer.encoded(ready.name, "anchor")))

        return write

    def _carriers(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Carrier]:
        import torch

        made: dict[tuple[Kind | None, tuple[int, ...]], Carrier] = {}
        for name, shape in shapes.items():
            kind = kind_of(name)
            if (kind, shape) not in made:
                like = torch.zeros(shape, dtype=torch.bfloat16)
                made[kind, shape] = Carrier.of(self.scheme.for_kind(kind), like, token_axis=2)
        return {name: made[kind_of(name), shape] for name, shape in shapes.items()}


def layouts_of(shapes: Mapping[str, tuple[int, ...]], dtype: object) -> dict[str, Layout]:
    """The layouts of a cache's tensors with the recommended parameters."""
    return {name: Layout.of(preset_for(kind_of(name)), shape, dtype, token_axis=2) for name, shape in shapes.items()}


def methods() -> dict[str, Method]:
    """All transfers by name."""
    schemes: dict[str, tuple[str, str]] = {
        "bf16": ("bf16", "BF16"),
        "int8": ("int8", "INT8 (one scale a tensor)"),
        "int8-token": ("int8-token", "INT8 (a scale for each token and head)"),
        "int4": ("int4-g64", "INT4 (groups of 64)"),
        "kivi4": ("kivi4", "KIVI-4"),
    }
    made: list[Method] = [
        Lynx("lynx", "Lynx", "full", drafts=True),
        Lynx("lynx-encoded", "Lynx, encoded before", "full", drafts=True, before=True),
    ]
    made += [
        Monolithic(name, title, "anchor", drafts=False, scheme=baselines.get(scheme))
        for name, (scheme, title) in schemes.items()
    ]
    return {method.name: method for method in made}


def get(name: str) -> Method:
    """The transfer of a name; raises `ParamsError` if there is none."""
    found = methods()
    if name not in found:
        raise ParamsError(f"a transfer must be one of {', '.join(found)}, got {name!r}")
    return found[name]
