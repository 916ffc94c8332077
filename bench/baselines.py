"""Write the table of docs/baselines.md: python bench/baselines.py [--check]. Nothing in it is measured in time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib.resources import as_file, files

from sections import update

from lynxq import evaluate, naming, synthetic
from lynxq.arrays import Array
from lynxq.baselines import SCHEMES, CodedBaseline, Scheme
from lynxq.tensorfile import open_tensors

LAYER = 15
TOKENS, HEADS, HEAD_DIM = 2048, 8, 128


def stored(coded: Mapping[str, CodedBaseline]) -> str:
    """What a scheme stores, with its bits per value of keys and of values."""
    cells = []
    for name in coded["key"].parts:
        bits = [8 * one.parts[name].nbytes / one.elements for one in coded.values()]
        if max(bits) < 0.0005:
            cells.append(f"{name} ~0")
        elif f"{bits[0]:.3f}" == f"{bits[1]:.3f}":
            cells.append(f"{name} {bits[0]:.3f}")
        else:
            cells.append(f"{name} {bits[0]:.3f} / {bits[1]:.3f}")
    return ", ".join(cells)


def line(scheme: Scheme, cache: Mapping[str, Array], sample: Mapping[str, Array]) -> str:
    coded = {
        kind: scheme.for_kind(kind).encode(cache[f"layer.0.{kind}"], token_axis=0, layer=LAYER)
        for kind in ("key", "value")
    }
    rows = {row.kind: row for row in evaluate.evaluate(sample, [scheme.name], token_axis=0)}
    bits = " / ".join(f"{one.bits_per_element:.2f}" for one in coded.values())
    errors = " / ".join(f"{rows[kind].vnmse:.1e}" for kind in ("key", "value"))
    return f"| `{scheme.name}` | {scheme.title} | {scheme.paper} | {stored(coded)} | {bits} | {errors} |"


def table() -> str:
    cache = synthetic.cache(TOKENS, HEADS, HEAD_DIM, pathologies=("bias", "rope"))
    with as_file(files("lynxq") / "data" / "smollm2_excerpt.safetensors") as path, open_tensors(path) as file:
        sample = {name: x for name, x in file.items() if naming.kind_of(name)}
        lines = [line(scheme, cache, sample) for scheme in SCHEMES.values()]
    heading = "| name | scheme | paper | stored, bits per value K / V | bits K / V | vNMSE K / V |"
    return "\n".join([heading, "|---|---|---|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if docs/baselines.md is not up to date")
    options = parser.parse_args()
    update("docs/baselines.md", {"schemes": table()}, check=options.check)


if __name__ == "__main__":
    main()
