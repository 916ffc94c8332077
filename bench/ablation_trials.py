"""What the ablation measures: one factor at a time from the presets, a grid for the fronts, ideas, and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import ideas

from lynxq import baselines
from lynxq.arrays import Array
from lynxq.baselines import Scheme, WithSinks
from lynxq.evaluate import Method
from lynxq.params import SPLITS, Params

Kind = Literal["key", "value"]
Coder = Params | Scheme

ALPHAS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 255, 500, 2000)
#: Splits of 8 bits: what fewer bits of the residual cost is seen in the full decode only (see quality_lm).
WHOLE_BYTES = tuple(split for split in SPLITS if sum(split) == 8)
PRESETS: Mapping[Kind, Params] = {"key": Params.keys(), "value": Params.values()}
#: Baselines of 3 to 5 bits, with as many exact tokens as lynxq keeps.
BASELINES = ("kivi4-w0", "kvquant4", "turboquant4", "turboquant3", "nf4", "int4-g32", "int4-g64")


@dataclass
class Trial:
    """Something that codes all keys or all values, and what it is measured for: (factor, setting)."""

    kind: Kind
    coder: Coder
    uses: list[tuple[str, str]] = field(default_factory=list)


def _split(params: Params, anchor: int) -> Params:
    return replace(params, anchor_bits=anchor, residual_bits=8 - anchor)


def _key_groupings() -> Iterator[tuple[str, str, Params]]:
    for chunk in (16, 32, 64, 128, 256):
        yield "chunk", str(chunk), Params.keys(chunk=chunk)
    for page in (128, 256, 512):
        yield "page", str(page), Params.keys(page=page, range_size=page)


def _value_groupings() -> Iterator[tuple[str, str, Params]]:
    for chunk in (16, 32, 64):
        yield "chunk", f"{chunk} in runs of 64", Params.values(chunk=chunk)
    for run in (16, 32, 64):
        yield "chunk", f"runs of {run}", Params.values(range_size=run, chunk=run)


def _factors(kind: Kind) -> Iterator[tuple[str, str, Params]]:
    """One factor at a time."""
    preset = PRESETS[kind]
    yield "axis", "token", Params.keys()
    yield "axis", "channel", Params.values()
    for alpha in ALPHAS:
        yield "alpha", f"{alpha:g}", replace(preset, alpha=float(alpha))
    yield from _key_groupings() if kind == "key" else _value_groupings()
    for anchor, residual in WHOLE_BYTES:
        yield "split", f"{anchor}+{residual}", _split(preset, anchor)
    for center in ("midrange", "mean"):
        yield "centre", center, replace(preset, center=center)
    for width in ("u8", "u16", "f32"):
        chunked = preset if kind == "key" else replace(preset, chunk=32)
        yield "metadata", width, replace(chunked, metadata=width)
    for sinks in (0, 1, 4, 16):
        yield "sinks", str(sinks), replace(preset, sink_tokens=sinks)


def _grid(kind: Kind) -> Iterator[Params]:
    """Groupings with every split, for the fronts of error against bits."""
    along_tokens = [Params.keys(chunk=chunk) for chunk in (16, 32, 64, 128)]
    along_tokens += [Params.keys(range_size=run, chunk=run) for run in (64, 128)]
    along_channels = [Params.values(range_size=run, chunk=run) for run in (16, 32, 64)]
    along_channels += [Params.values(chunk=chunk) for chunk in (16, 32)]
    # Along the other axis only what is nearest to the preset.
    groupings = [*along_tokens, Params.values()] if kind == "key" else [*along_channels, *along_tokens[1:3]]
    for grouping in groupings:
        for anchor, _ in WHOLE_BYTES[: 3 if kind == "key" and grouping.axis == "channel" else 4]:
            yield _split(grouping, anchor)


def _ideas(kind: Kind, tensors: Mapping[str, Array]) -> Iterator[tuple[str, str, Coder]]:
    """Ideas, each beside what it is to be compared with; points are fitted on a text of their own."""
    preset = PRESETS[kind]
    sample = ideas.samples(tensors, kind)
    yield "points", "default", preset
    yield "points", "least squares", ideas.fitted(preset, sample)
    yield "points", "unbiased", ideas.unbiased(preset, sample)
    yield "points", "least squares, top point too", ideas.fitted(preset, sample, top=True)
    groupings = (
        [preset, replace(preset, chunk=64)] if kind == "key" else [preset, replace(preset, range_size=32, chunk=32)]
    )
    for grouping in groupings:
        yield "two scales", f"one, chunks of {grouping.chunk}", grouping
        for alpha in (0.5, 2.0):
            two = WithSinks(ideas.TwoScales(replace(grouping, alpha=alpha)))
            yield "two scales", f"two, chunks of {grouping.chunk}, α = {alpha:g}", two


def _baselines(kind: Kind) -> Iterator[tuple[str, str, Scheme]]:
    for name in BASELINES:
        scheme = baselines.get(name).for_kind(kind)
        if name == "kivi4-w0":  # what sinks are worth to a scheme without them; the others have them throughout
            yield "baselines", name, scheme
        yield "baselines", f"{name}-sinks", WithSinks(scheme)


def trials(tensors: Mapping[str, Array]) -> list[Trial]:
    """Everything to measure, each coder once; keys and values in turn, so that an interrupted run has both.

    Parameters
    ----------
    tensors : mapping of str to array
        A cache to fit anchor points on.
    """
    found: dict[Kind, dict[Coder, Trial]] = {"key": {}, "value": {}}
    for kind, own in found.items():
        for factor, setting, coder in [*_factors(kind), *_ideas(kind, tensors), *_baselines(kind)]:
            own.setdefault(coder, Trial(kind, coder)).uses.append((factor, setting))
        for params in _grid(kind):
            own.setdefault(params, Trial(kind, params)).uses.append(("grid", "grid"))
    queues = [list(own.values()) for own in found.values()]
    longest = max(map(len, queues))
    return [queue[i] for i in range(longest) for queue in queues if i < len(queue)]


def method(trial: Trial) -> Method:
    """Codes one kind and leaves the other exact, so that the effect is that of one kind alone."""
    exact = baselines.get("bf16")
    sides = (trial.coder, exact) if trial.kind == "key" else (exact, trial.coder)
    return Method("trial", "trial", *sides)
