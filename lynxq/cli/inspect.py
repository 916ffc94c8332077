"""``lynxq info``, ``lynxq verify`` and ``lynxq warmup``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Column, Table

import lynxq
from lynxq import Params, backends
from lynxq.cli import console
from lynxq.cli.places import Container, Residual

AllowTrailing = Annotated[bool, typer.Option("--allow-trailing", help="ignore what follows the last segment")]


def warmup(
    dtype: Annotated[list[str] | None, typer.Option(help="element type to prepare for; may be repeated")] = None,
) -> None:
    """Compile the kernels of this machine ahead, and show which backends there are.

    Example: lynxq warmup --dtype bfloat16
    """
    console.prepare(*(dtype or ()))
    for name, reason in backends.available().items():
        console.out.print(f"{name}: {'ready' if reason is None else console.plain(reason)}", soft_wrap=True)


def _preset(params: Params) -> str:
    """The preset that parameters are, or what differs from the nearest one."""
    presets = {"keys": Params.keys(), "values": Params.values(), "paper": Params.paper()}

    def differences(preset: Params) -> list[str]:
        mine, other = params.to_dict(), preset.to_dict()
        return [f"{name}={mine[name]}" for name in mine if mine[name] != other[name]]

    name = min(presets, key=lambda name: len(differences(presets[name])))
    return " ".join([name, *(text if len(text) < 30 else text.split("=")[0] for text in differences(presets[name]))])


def info(
    source: Container,
    residual: Residual = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    allow_trailing: AllowTrailing = False,
) -> None:
    """Show what a container holds, without reading its data.

    Example: lynxq info kv.lynx --json
    """
    found = lynxq.describe(source, residual=residual, allow_trailing=allow_trailing)
    if as_json:
        typer.echo(json.dumps(found, indent=2, sort_keys=True, ensure_ascii=True))
        return
    state = "" if found["complete"] else ", cut off behind the anchors"
    console.out.print(
        f"{console.plain(source)}: format {found['format']}, {console.size(found['bytes'])}, "
        f"{found['segments']} segment{'s' if found['segments'] != 1 else ''}{state}",
        soft_wrap=True,
    )
    for key, value in found["metadata"].items():
        console.out.print(f"  {console.plain(key)}: {console.plain(value)}", soft_wrap=True)
    table = Table(
        Column("tensor", overflow="fold", min_width=12),
        *("shape", "dtype", "tokens from", "parameters", "anchor bits", "residual bits"),
        box=None,
    )
    for name, tensor in found["tensors"].items():
        bits = tensor["bits_per_element"]
        table.add_row(
            console.plain(name),
            "×".join(map(str, tensor["shape"])),
            tensor["dtype"],
            str(tensor["first_token"]),
            _preset(Params.from_dict(tensor["params"])),
            f"{bits['anchor']:.2f}",
            f"{bits['residual']:.2f}" if "residual" in bits else "–",
        )
    console.out.print(table)


def verify(source: Container, residual: Residual = None, allow_trailing: AllowTrailing = False) -> None:
    """Compare the headers and pages of a container with their checksums; exit code 1 if anything is damaged.

    Example: lynxq verify kv.lynx && cp kv.lynx backup/
    """
    with (
        lynxq.open(source, residual=residual, allow_trailing=allow_trailing) as reader,
        console.progress(f"verifying {source}", reader.checked_size) as advance,
    ):
        found = reader.verify(advance)
    for error in found:
        console.fail(f"{type(error).__name__}: {error}")
    if found:
        raise typer.Exit(1)
    console.out.print(f"{console.plain(source)}: all checksums match", soft_wrap=True)
