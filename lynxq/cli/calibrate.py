"""``lynxq calibrate``: parameters chosen for a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from lynxq import calibration
from lynxq.arrays import Array
from lynxq.calibration import Calibration
from lynxq.cli import console
from lynxq.container.atomic import replacing
from lynxq.tensorfile import open_tensors


class Granularity(StrEnum):
    """For what a choice of its own is made."""

    kind = "kind"
    layer = "layer"


_OBJECTIVES = {"centred_vnmse": "centred vNMSE", "attention": "attention-output error"}


def _table(found: Calibration) -> Table:
    table = Table("tensors", box=None)
    for heading in ("anchor bits", "axis", "page", "run", "chunk", "split", "α", "metadata"):
        table.add_column(heading, justify="right")
    for entry in found.entries:
        params = entry.params
        table.add_row(
            entry.kind if entry.layer is None else f"{entry.kind} of layer {entry.layer}",
            f"{entry.bits_per_element:.3f}",
            params.axis,
            str(params.page),
            str(params.range_size),
            str(params.chunk),
            f"{params.anchor_bits}+{params.residual_bits}",
            f"{params.alpha:g}",
            "-" if params.range_implies_chunk else params.metadata,
        )
    return table


def calibrate(
    source: Annotated[Path, typer.Argument(help="safetensors file of a cache", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON to write")],
    budget: Annotated[
        float | None, typer.Option(help="most bits per element of the anchors; by default those of the presets")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="safetensors file of queries: minimise the error of attention", exists=True, dir_okay=False),
    ] = None,
    per: Annotated[Granularity, typer.Option(help="one choice for a kind, or for every layer")] = Granularity.kind,
    page: Annotated[list[int] | None, typer.Option(help="page size to try; may be repeated; 256 by default")] = None,
    sink_tokens: Annotated[int, typer.Option(help="first tokens of the sequence kept verbatim")] = 4,
    code_bits: Annotated[int, typer.Option(help="bits of anchor and residual codes together, 6 to 8")] = 8,
    token_axis: Annotated[int, typer.Option(help="axis of tokens")] = 0,
    head_dim: Annotated[int | None, typer.Option(help="channels of a head, if the last axis holds several")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="replace an existing output")] = False,
) -> None:
    """Choose parameters for keys and values of a model, from a cache of typical text.

    Example: lynxq calibrate kv.safetensors -o params.json --budget 4.65
    """
    for path in (source, queries):
        if path is not None:
            console.new_file(output, force=force, source=path)
    with ExitStack() as stack:
        file = stack.enter_context(open_tensors(source))
        asked: Mapping[str, Array] | None = None
        if queries is not None:
            asked = dict(stack.enter_context(open_tensors(queries)).items())
        with console.progress(f"calibrating on {source.name}", sum(map(file.nbytes, file.names))):
            found = calibration.calibrate(
                file.items(),
                asked,
                budget,
                token_axis=token_axis,
                head_dim=head_dim,
                per=per.value,
                pages=tuple(page or (256,)),
                sink_tokens=sink_tokens,
                code_bits=code_bits,
            )
    with replacing(output) as target:
        target.write(found.to_json().encode())
    console.out.print(_table(found))
    console.out.print(
        f"{_OBJECTIVES[found.objective]}: {found.error:.3g} at {found.bits_per_element:.3f} bits; "
        f"presets {found.preset_error:.3g} at {found.preset_bits:.3f}",
        soft_wrap=True,
    )
