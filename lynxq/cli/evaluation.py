"""``lynxq eval`` and ``lynxq demo``: methods side by side."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import lynxq
from lynxq import evaluate, naming, plots
from lynxq.calibration import Calibration
from lynxq.cli import console, params_file
from lynxq.cli.methods import Methods, of_evaluate
from lynxq.evaluate import Method
from lynxq.tensorfile import TensorFile, open_tensors

_DEFAULT = ",".join(evaluate.DEFAULT_METHODS)


def _table(rows: Sequence[evaluate.Row]) -> Table:
    table = Table("method", "tier", "tensors", box=None)
    for heading in ("bits/element", "vNMSE", "centred vNMSE", "max error"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.method,
            row.tier,
            f"{row.tensors} {row.kind}",
            f"{row.bits_per_element:.3f}",
            f"{row.vnmse:.2e}",
            f"{row.centred_vnmse:.2e}",
            f"{row.max_error:.3g}",
        )
    return table


def _evaluate(
    file: TensorFile, methods: Sequence[str | Method], token_axis: int, title: str, head_dim: int | None = None
) -> list[evaluate.Row]:
    sizes = {name: file.nbytes(name) for name in file.names}
    with console.progress(title, sum(sizes.values()) * len(methods)) as advance:
        return evaluate.evaluate(
            file.items(),
            methods,
            token_axis=token_axis,
            head_dim=head_dim,
            progress=lambda name, _: advance(sizes[name]),
        )


def _of_file(path: Path, names: Sequence[str]) -> Method:
    """What a file of parameters codes the named tensors with, as a method; raises if it has none for one of them."""
    found = params_file.read(path)
    if isinstance(found, Calibration):
        for name in names:
            found[name]
        return found.method("params")
    return Method("params", f"parameters of {console.plain(path.name)}", found, found)


def _title(source: Path, names: Sequence[str]) -> str:
    """The file and its tensors on a line or two."""
    listed = ", ".join(names) if len(names) <= 6 else f"{names[0]}, {names[1]} … {names[-1]}, {len(names)} tensors"
    return console.plain(f"{source.name}: {listed}")


def eval_(
    source: Annotated[Path, typer.Argument(help="safetensors file", exists=True, dir_okay=False)],
    methods: Methods = _DEFAULT,
    params: Annotated[
        Path | None,
        typer.Option(help="JSON of lynxq calibrate: one more method, named params", exists=True, dir_okay=False),
    ] = None,
    token_axis: Annotated[int, typer.Option(help="axis of tokens")] = 0,
    head_dim: Annotated[int | None, typer.Option(help="channels of a head, if the last axis holds several")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="draw error against bits into this file, as its suffix says")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="replace an existing picture")] = False,
) -> None:
    """Measure the error of several methods on the tensors of a file, keys and values apart.

    Bits count every byte of the streams. Example: lynxq eval kv.safetensors --methods pair,keys,int8 --plot out.png
    """
    if plot is not None:  # what stands in the way of a picture is said before the work, not after it
        plots.image_format(plot)
        console.new_file(plot, force=force, source=source)
    chosen: list[str | Method] = [*of_evaluate(methods)]
    with open_tensors(source) as file:
        if params is not None:
            chosen.append(_of_file(params, file.names))
        rows = _evaluate(file, chosen, token_axis, f"evaluating {source.name}", head_dim)
        title = _title(source, file.names)
    if as_json:
        typer.echo(json.dumps([asdict(row) | {"bits_per_element": row.bits_per_element} for row in rows], indent=2))
    else:
        console.out.print(_table(rows))
        for item in chosen:
            method = item if isinstance(item, Method) else evaluate.METHODS[item]
            console.out.print(f"{method.name}: {method.title}", soft_wrap=True)
    if plot is not None:  # last: a picture that fails loses no figures
        plots.save(plot, plots.error_against_bits(rows, title=title))
        console.err.print(f"picture: {console.plain(plot)}", soft_wrap=True)


def demo() -> None:
    """Encode a real KV cache that comes with lynxq, decode it from the anchors alone, then fully, and compare."""
    with (
        as_file(files("lynxq") / "data" / "smollm2_excerpt.safetensors") as sample,
        open_tensors(sample) as file,
        tempfile.TemporaryDirectory() as folder,
    ):
        tensors = dict(file.items())
        raw = sum(tensor.nbytes for tensor in tensors.values())
        console.out.print(f"KV cache: {file.metadata['model']}")
        console.out.print(f"text: {file.metadata['text']}")
        console.out.print(f"{len(tensors)} tensors, {console.size(raw)} in bfloat16")
        path = Path(folder, "demo.lynx")
        console.prepare("bfloat16")
        presets = {name: naming.preset_for(naming.kind_of(name)) for name in tensors}
        begin = time.perf_counter()
        encoded = {name: lynxq.encode(x, presets[name], token_axis=0) for name, x in tensors.items()}
        encoding = time.perf_counter() - begin
        lynxq.save(path, encoded, metadata=file.metadata)
        # The anchors come first in the file, so that a prefix is enough to begin with.
        prefix = path.read_bytes()[: lynxq.describe(path)["anchor_end"]]
        begin = time.perf_counter()
        lynxq.load(prefix, tier="anchor")
        anchor = time.perf_counter() - begin
        begin = time.perf_counter()
        lynxq.load(path)
        full = time.perf_counter() - begin
        rows = _evaluate(file, evaluate.DEFAULT_METHODS, 0, "measuring errors")
        total = path.stat().st_size
    console.out.print()
    console.out.print(_table(rows))
    console.out.print()
    sizes = Table("", "bytes", "of bfloat16", "seconds", "MB/s of bfloat16", box=None)
    for what, nbytes, seconds in (
        ("encode", total, encoding),
        ("decode from the anchors alone", len(prefix), anchor),
        ("decode fully", total, full),
    ):
        sizes.add_row(what, f"{nbytes}", f"{nbytes / raw:.1%}", f"{seconds:.3f}", f"{raw / seconds / 1e6:.0f}")
    console.out.print(sizes)
