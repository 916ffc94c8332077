"""``lynxq encode`` and ``lynxq decode``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

import lynxq
from lynxq import Params, naming
from lynxq.calibration import Calibration
from lynxq.cli import console, params_file
from lynxq.cli.places import Container, Residual
from lynxq.layout import Tier
from lynxq.params import CODE_BITS
from lynxq.tensorfile import open_tensors, save_tensors


class Preset(StrEnum):
    """Which parameters to start from."""

    auto = "auto"
    keys = "keys"
    values = "values"
    paper = "paper"


class TierName(StrEnum):
    """Which decode."""

    full = "full"
    anchor = "anchor"


def _params(
    name: str, preset: Preset, changes: dict[str, Any], given: Calibration | Params | None
) -> tuple[str, Params]:
    """Name of the preset used for a tensor, or where its parameters are from, and the parameters."""
    if isinstance(given, Params):
        return "file", given
    if given is not None:
        return "calibrated", given[name]
    if preset is Preset.auto:
        params = naming.preset_for(naming.kind_of(name))
        chosen = "values" if params == Params.values() else "keys"
    else:
        chosen = preset.value
    return chosen, getattr(Params, chosen)(**changes)


def encode(
    source: Annotated[Path, typer.Argument(help="safetensors file", exists=True, dir_okay=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="container to write (.lynx)")],
    split: Annotated[
        bool, typer.Option("--split", help="two files: OUTPUT has the anchors, OUTPUT with .residual.lynx the rest")
    ] = False,
    preset: Annotated[Preset, typer.Option(help="auto chooses by tensor name: keys or values")] = Preset.auto,
    parameter_file: Annotated[
        Path | None,
        typer.Option("--params", help="JSON of lynxq calibrate, or of Params.to_json()", exists=True, dir_okay=False),
    ] = None,
    token_axis: Annotated[int, typer.Option(help="axis of tokens")] = 0,
    first_token: Annotated[int, typer.Option(help="position of the first token in its sequence")] = 0,
    head_dim: Annotated[int | None, typer.Option(help="channels of a head, if the last axis holds several")] = None,
    alpha: Annotated[float | None, typer.Option(help="strength of the companding; 0 is linear")] = None,
    anchor_bits: Annotated[int | None, typer.Option(help="bits of the anchor, 3 to 6")] = None,
    residual_bits: Annotated[
        int | None, typer.Option(help="bits of the residual, 2 to 5; by default 8 less those of the anchor")
    ] = None,
    chunk: Annotated[int | None, typer.Option(help="values that share a centre and a scale")] = None,
    center: Annotated[str | None, typer.Option(help="midrange or mean")] = None,
    scale_width: Annotated[str | None, typer.Option(help="how centre and scale are stored: u8, u16 or f32")] = None,
    sink_tokens: Annotated[int | None, typer.Option(help="first tokens of the sequence kept verbatim")] = None,
    meta: Annotated[list[str] | None, typer.Option(help="KEY=VALUE to store; may be repeated")] = None,
    backend: Annotated[str | None, typer.Option(help="backend; changes speed, never bytes")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="replace an existing output")] = False,
) -> None:
    """Encode every tensor of a safetensors file into a container.

    Example: lynxq encode kv.safetensors -o kv.lynx --meta model=smollm2
    """
    given = {"alpha": alpha, "chunk": chunk, "center": center, "metadata": scale_width, "sink_tokens": sink_tokens}
    rest = None if anchor_bits is None else CODE_BITS - anchor_bits
    given |= {"anchor_bits": anchor_bits, "residual_bits": rest if residual_bits is None else residual_bits}
    changes = {name: value for name, value in given.items() if value is not None}
    parameters = None if parameter_file is None else params_file.read(parameter_file)
    if parameters is not None and (changes or preset is not Preset.auto):
        raise console.UsageError("--params has all parameters: leave out --preset and options for single ones")
    residual = output.with_suffix(".residual.lynx") if split else None
    for path in (output, residual):
        for read in (source, parameter_file):
            if path is not None:
                console.new_file(path, force=force, source=read)
    table = Table(
        Column("tensor", overflow="fold"), "shape", "tokens", "dtype", "preset", "anchor bits", "full bits", box=None
    )
    with open_tensors(source) as file:
        metadata = {**file.metadata, **console.pairs(meta or [])}
        total = sum(file.nbytes(name) for name in file.names)
        with (
            console.progress(f"encoding {source.name}", total) as advance,
            lynxq.Writer(output, metadata=metadata, residual=residual) as writer,
        ):
            for name, tensor in file.items():
                try:
                    chosen, params = _params(name, preset, changes, parameters)
                    encoded = lynxq.encode(
                        tensor,
                        params,
                        token_axis=token_axis,
                        first_token=first_token,
                        head_dim=head_dim,
                        backend=backend,
                    )
                except lynxq.LynxqError as error:
                    error.add_note(f"tensor {name!r}")
                    raise
                writer.add(name, encoded)
                table.add_row(
                    console.plain(name),
                    "×".join(map(str, encoded.shape)),
                    str(encoded.layout.tokens),
                    encoded.dtype,
                    chosen,
                    f"{encoded.anchor_only().bits_per_element:.2f}",
                    f"{encoded.bits_per_element:.2f}",
                )
                advance(file.nbytes(name))
    console.out.print(table)
    for path in (output, residual):
        if path is not None:
            console.out.print(f"{console.plain(path)}: {console.size(path.stat().st_size)}", soft_wrap=True)


def decode(
    source: Container,
    output: Annotated[Path, typer.Option("--output", "-o", help="safetensors file to write")],
    tier: Annotated[TierName, typer.Option(help="full needs the residual, anchor does not read it")] = TierName.full,
    residual: Residual = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float16 or bfloat16; the stored one by default")] = None,
    backend: Annotated[str | None, typer.Option(help="backend; changes speed, never bits")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="replace an existing output")] = False,
) -> None:
    """Decode a container into a safetensors file.

    Example: lynxq decode kv.lynx -o kv.safetensors --tier anchor
    """
    console.new_file(output, force=force, source=source if isinstance(source, Path) else None)
    name: Tier = tier.value
    with lynxq.open(source, residual=residual) as reader:
        tensors = {}
        total = sum(tensor.tier_size(name) for tensor in reader.values())
        with console.progress(f"decoding {source} ({name})", total) as advance:
            for batch in reader.batches(reader, name):
                with reader.fetched(batch, name):
                    for key in batch:
                        tensors[key] = reader[key].decode(name, dtype=dtype, backend=backend)
                        advance(reader[key].tier_size(name))
        save_tensors(output, tensors, reader.metadata)
    size = console.size(output.stat().st_size)
    console.out.print(f"{console.plain(output)}: {len(tensors)} tensors, {size}", soft_wrap=True)
