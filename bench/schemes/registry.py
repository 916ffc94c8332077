"""All peers by name, in the order of tables, each with what it stores and what must be installed for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from lynxq.naming import Kind
from schemes.base import Peer, Values


@dataclass(frozen=True)
class Candidate:
    """A peer that may not run here.

    Parameters
    ----------
    name, title, label : str
        For results, for tables, and for figures, there the title by default.
    stores : str
        What it stores.
    place : str
        "module:class" under `schemes`, imported when it is needed.
    settings : dict
        Keyword arguments of the class.
    package : str
        What pip installs for it; nothing for our own.
    instead : Candidate, optional
        What is measured if this does not run.
    """

    name: str
    title: str
    stores: str
    place: str
    settings: dict[str, Any] = field(default_factory=dict)
    package: str = ""
    instead: Candidate | None = None
    label: str = ""

    @property
    def ours(self) -> bool:
        return not self.package

    def make(self, x: Values, kind: Kind) -> Peer:
        """The peer at work on a tensor; raises what its library raises."""
        module, _, name = self.place.partition(":")
        peer: Peer = getattr(import_module(f"schemes.{module}"), name)(x, kind, **self.settings)
        return peer


_SCALES = "fp16 scale for 32 values"


def _ggml(form: str, stores: str) -> Candidate:
    """The compiled library, or numpy's code of the same format."""
    title, package = f"ggml {form}", "libggml-python"
    instead = Candidate(f"gguf-{form}", f"{title} (gguf, numpy)", stores, "ggml:Gguf", {"form": form}, "gguf")
    return Candidate(f"ggml-{form}", title, stores, "ggml:Ggml", {"form": form}, package, instead)


def _ours(name: str, title: str, **settings: Any) -> list[Candidate]:
    stores = {"anchor": "anchor stream", "full": "both streams"}
    return [
        Candidate(
            f"{name}-{tier}",
            f"lynxq {title}, {tier}",
            stored,
            "ours:Ours",
            settings | {"tier": tier},
            label=f"lynxq, {tier}",
        )
        for tier, stored in stores.items()
    ]


CANDIDATES = (
    *_ours("pair", "keys/values presets"),
    *_ours("keys", "keys preset for both", keys_only=True),
    _ggml("q4_0", f"4-bit codes, {_SCALES}"),
    _ggml("q8_0", f"8-bit codes, {_SCALES}"),
    *(
        Candidate(
            f"kivi-{bits}",
            f"KIVI-{bits}, torch",
            f"{bits}-bit codes, fp16 scale and minimum for 32 values",
            "in_torch:Kivi",
            {"bits": bits},
            "torch",
            label=f"KIVI-{bits}",
        )
        for bits in (4, 8)
    ),
    Candidate("fp8", "fp8 e4m3, torch", "8-bit floats, one scale", "in_torch:Fp8", package="torch", label="fp8 e4m3"),
    *(
        Candidate(f"zfp-{rate}", f"zfp, rate {rate}", "zfp stream", "in_zfp:Zfp", {"rate": rate}, "zfpy")
        for rate in (4, 8)
    ),
    Candidate(
        "bitround",
        "numcodecs BitRound 3 + Blosc zstd 1",
        "Blosc stream",
        "lossless:NumcodecsBitRound",
        package="numcodecs",
        label="BitRound + Blosc",
    ),
    Candidate("blosc2", "blosc2 zstd 1, shuffle", "blosc2 stream", "lossless:Blosc2", package="blosc2", label="blosc2"),
    Candidate(
        "numcodecs",
        "numcodecs Blosc zstd 1, shuffle",
        "Blosc stream",
        "lossless:NumcodecsBlosc",
        package="numcodecs",
        label="Blosc",
    ),
    Candidate("zstd", "zstd 1", "zstd frame", "lossless:Zstd", package="zstandard", label="zstd"),
    Candidate("pcodec", "pcodec", "pcodec stream", "lossless:Pcodec", package="pcodec"),
)
