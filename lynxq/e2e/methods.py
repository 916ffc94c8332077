"""Methods of transfer: what the prefill side sends of a cache, and how the decode side fills its own.

Each of them sends layer after layer, keys before values, and on the other side each layer can be used as soon as it
is there. Lynx is encoded while it is sent, within the measured time. What other schemes send is made before, and its
encoding costs them nothing; their decoding takes place while the next tensors arrive, as Lynx's does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from lynxq import baselines
from lynxq.arrays import Array
from lynxq.baselines import Scheme
from lynxq.calibration import Calibration
from lynxq.codec import encode
from lynxq.e2e.carrier import Carrier
from lynxq.e2e.records import Job
from lynxq.encoded import Encoded
from lynxq.errors import ParamsError
from lynxq.integrations.hf import ProgressiveCache
from lynxq.layout import Layout, Tier
from lynxq.naming import Kind, kind_of, preset_for
from lynxq.params import Params
from lynxq.stream import EncodedSource, EncodingSource, Source
from lynxq.stream.tcp import Ready, Transfer

#: Called with a tensor's name, and begin and end of its encoding in seconds of the monotonic clock.
OnEncoded = Callable[[str, float, float], None]
#: The method that needs a calibration.
CALIBRATED = "lynx-calibrated"
#: Tensors of a cache, ``[1, heads, tokens, head dim]``, by name.
Shapes = Mapping[str, tuple[int, ...]]
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

    tier: ClassVar[Tier]
    drafts: ClassVar[bool]
    name: str
    title: str

    @abstractmethod
    def source(self, tensors: Mapping[str, Array], on_encoded: OnEncoded) -> Source:
        """What is sent of tensors ``[1, heads, tokens, head dim]``, named as in `lynxq.integrations.hf`.

        `on_encoded` is told of what is encoded while it is sent.
        """

    def layouts(self, shapes: Shapes) -> dict[str, Layout]:
        """The tensors of a cache of such shapes, in BF16; with the presets where their parameters do not matter."""
        return {
            name: Layout.of(preset_for(kind_of(name)), shape, "bfloat16", token_axis=2)
            for name, shape in shapes.items()
        }

    @abstractmethod
    def sent(self, shapes: Shapes) -> Mapping[str, Layout]:
        """The tensors that are sent of such a cache."""

    @abstractmethod
    def fill(self, shapes: Shapes) -> Fill:
        """What the decode side does with what arrives of such tensors; made before the time is taken."""


@dataclass(frozen=True)
class Lynx(Method):
    """Anchor and residual, encoded while they are sent, tensor by tensor.

    Attributes
    ----------
    params : callable
        Gives the parameters of a tensor by its name.
    """

    tier: ClassVar[Tier] = "full"
    drafts: ClassVar[bool] = True
    params: Callable[[str], Params]

    def source(self, tensors: Mapping[str, Array], on_encoded: OnEncoded) -> Source:
        """Encodes on a thread of its own."""
        layouts = self.layouts({name: tuple(x.shape) for name, x in tensors.items()})

        def pieces() -> Iterator[tuple[str, Encoded]]:
            for name, x in tensors.items():
                begin = time.monotonic()
                encoded = encode(x, layouts[name].params, token_axis=2)
                on_encoded(name, begin, time.monotonic())
                yield name, encoded

        return EncodingSource(layouts, pieces())

    def layouts(self, shapes: Shapes) -> dict[str, Layout]:
        """With the parameters of this method."""
        return {name: Layout.of(self.params(name), shape, "bfloat16", token_axis=2) for name, shape in shapes.items()}

    def sent(self, shapes: Shapes) -> Mapping[str, Layout]:
        """The tensors themselves."""
        return self.layouts(shapes)

    def fill(self, shapes: Shapes) -> Fill:
        """Decode pages into their place: as an anchor first, then in full."""
        del shapes

        def write(cache: ProgressiveCache, transfer: Transfer, ready: Ready) -> None:
            tier: Tier = "anchor" if ready.stream == "anchor" else "full"
            cache.write(ready.name, transfer.encoded(ready.name, tier, (ready.start, ready.stop)))

        return write


@dataclass(frozen=True)
class EncodedLynx(Lynx):
    """The same, encoded before: what encoding costs is the difference of the two."""

    def source(self, tensors: Mapping[str, Array], on_encoded: OnEncoded) -> Source:
        """Encodes at once."""
        del on_encoded
        return EncodedSource({name: encode(x, self.params(name), token_axis=2) for name, x in tensors.items()})


@dataclass(frozen=True)
class Monolithic(Method):
    """A scheme of :mod:`lynxq.baselines`, sent in one piece for each tensor."""

    tier: ClassVar[Tier] = "anchor"
    drafts: ClassVar[bool] = False
    scheme: Scheme

    def source(self, tensors: Mapping[str, Array], on_encoded: OnEncoded) -> Source:
        """Encodes at once."""
        del on_encoded
        carriers = self._carriers({name: tuple(x.shape) for name, x in tensors.items()})
        return EncodedSource(
            {name: carriers[name].pack(carriers[name].scheme.encode(x, token_axis=2)) for name, x in tensors.items()}
        )

    def sent(self, shapes: Shapes) -> Mapping[str, Layout]:
        """Their carriers."""
        return {name: carrier.layout for name, carrier in self._carriers(shapes).items()}

    def fill(self, shapes: Shapes) -> Fill:
        """Decode a tensor, all of which is there, and put it into its place."""
        carriers = self._carriers(shapes)

        def write(cache: ProgressiveCache, transfer: Transfer, ready: Ready) -> None:
            cache.fill(ready.name, carriers[ready.name].unpack(transfer.encoded(ready.name, "anchor")))

        return write

    def _carriers(self, shapes: Shapes) -> dict[str, Carrier]:
        import torch

        made: dict[tuple[Kind | None, tuple[int, ...]], Carrier] = {}
        for name, shape in shapes.items():
            kind = kind_of(name)
            if (kind, shape) not in made:
                like = torch.zeros(shape, dtype=torch.bfloat16)
                made[kind, shape] = Carrier.of(self.scheme.for_kind(kind), like, token_axis=2)
        return {name: made[kind_of(name), shape] for name, shape in shapes.items()}


def _by_kind(keys: Params, values: Params) -> Callable[[str], Params]:
    """Parameters by a tensor's name."""
    return lambda name: values if kind_of(name) == "value" else keys


def by_name(calibration: str | None = None) -> dict[str, Method]:
    """All methods; one more with a calibration, which is given as JSON."""
    schemes = {
        "bf16": ("bf16", "BF16"),
        "int8": ("int8", "INT8 (one scale a tensor)"),
        "int8-token": ("int8-token", "INT8 (a scale for each token and head)"),
        "int4": ("int4-g64", "INT4 (groups of 64)"),
        "kivi4": ("kivi4", "KIVI-4"),
    }
    presets = _by_kind(Params.keys(), Params.values())
    # Less than INT8 in all; the second one has better drafts, too, for a ninth of the anchor more.
    short = _by_kind(Params.keys(residual_bits=3), Params.values(residual_bits=3))
    fine = _by_kind(Params.keys(anchor_bits=5, residual_bits=2, chunk=128), Params.values(residual_bits=3))
    made: list[Method] = [
        Lynx("lynx", "Lynx", params=presets),
        Lynx("lynx-4+3", "Lynx, 4+3 bits", params=short),
        Lynx("lynx-5+2", "Lynx, keys 5+2 and values 4+3 bits", params=fine),
        EncodedLynx("lynx-encoded", "Lynx, encoded before", params=presets),
    ]
    if calibration is not None:
        found = Calibration.from_json(calibration)
        for kind in ("key", "value"):  # a kind that it lacks is said here, before any work
            found[f"layer.0.{kind}"]
        made.append(Lynx(CALIBRATED, "Lynx, calibrated", params=found.__getitem__))
    made += [Monolithic(name, title, scheme=baselines.get(scheme)) for name, (scheme, title) in schemes.items()]
    return {method.name: method for method in made}


def of(job: Job) -> Method:
    """The method of a job; raises `ParamsError` if there is none of that name."""
    found = by_name(job.calibration)
    if job.method == CALIBRATED and job.calibration is None:
        raise ParamsError(f"the transfer {CALIBRATED} needs a calibration, got none")
    if job.method not in found:
        raise ParamsError(f"a transfer must be one of {', '.join(found)}, got {job.method!r}")
    return found[job.method]
