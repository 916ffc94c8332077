"""``lynxq e2e``: two processes, a slow link, and tokens that appear."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lynxq import plots
from lynxq.calibration import Calibration
from lynxq.cli import console, params_file
from lynxq.cli.methods import names

#: What there is, for the help; the module that has them takes seconds to import.
_METHODS = "bf16, int8, int8-token, int4, kivi4, lynx, lynx-4+3, lynx-5+2, lynx-encoded"
_DEFAULT = "bf16,int8,int4,kivi4,lynx,lynx-4+3"


class Display:
    """Both streams filling, and the tokens of the run that is going on."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._state: dict[str, Any] = {}
        live = console.err.is_terminal
        self._live = Live(self, console=console.err, refresh_per_second=12, transient=True) if live else None

    @property
    def context(self) -> AbstractContextManager[Any]:
        """Shows it as long as it is open; nothing where there is no terminal."""
        return self._live or nullcontext()

    def watch(self, message: dict[str, Any]) -> None:
        """Take a message of a session."""
        if message["kind"] == "progress":
            self._state = message

    def to(self, title: str) -> Self:
        """Begin anew for another run."""
        self._title, self._state = title, {}
        return self

    def __rich__(self) -> Group:
        state = self._state
        bars = Table.grid(padding=(0, 1))
        for name in ("anchor", "residual"):
            done, total = state.get(name, (0, 0))
            if total:
                bars.add_row(name, ProgressBar(total=total, completed=done, width=50), console.size(done))
        head = Text(f"{self._title}  {state.get('seconds', 0.0):.1f} s", style="bold")
        final, draft = state.get("final_text", ""), state.get("draft_text", "")
        words = Text(console.plain(final))
        if not final and draft:
            words = Text(console.plain(draft), style="dim italic")
        return Group(head, bars, words)


def e2e(
    text: Annotated[
        str, typer.Option(help="what the prompt is the beginning of: UTF-8 file, or python-reference, or python-source")
    ] = "python-reference",
    model: Annotated[
        str | None,
        typer.Option(help="folder of a Hugging Face model, or .gguf file; by default SmolLM2-135M, through pip"),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-t", min=2, help="tokens of the prompt")] = 1024,
    new: Annotated[int, typer.Option("--new", "-n", min=1, help="tokens to generate")] = 64,
    methods: Annotated[str, typer.Option(help=f"names separated by commas, of {_METHODS}")] = _DEFAULT,
    like: Annotated[
        float, typer.Option(min=0.1, help="slow the link down to what so many Gbit/s are to the paper's model")
    ] = 25.0,
    rate: Annotated[float | None, typer.Option(min=0.001, help="MB/s of the link, instead of --like")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 for greedy decoding")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="of the random numbers")] = 0,
    parameter_file: Annotated[
        Path | None,
        typer.Option(
            "--params", help="JSON of lynxq calibrate: one more method, lynx-calibrated", exists=True, dir_okay=False
        ),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--allow-approximate", help="go on from the anchor if the residual never comes")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print all that was measured as JSON")] = False,
    plot: Annotated[Path | None, typer.Option(help="draw who did what when into this file, as its suffix says")] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="replace an existing picture")] = False,
) -> None:
    """Send a real model's cache from one process to another, and compare when its tokens are there.

    Lynx drafts from the anchor while the residual is in flight, verifies when it is there, and goes on. The others wait
    for their cache. All use the same transport, and each can use a layer as soon as it is there.
    Example: lynxq e2e --tokens 2048 --plot timeline.png
    """
    from lynxq.lab import texts

    chosen = names(methods)
    if plot is not None:  # what stands in the way of a picture is said before the work, not after it
        plots.image_format(plot)
        console.new_file(plot, force=force, source=Path(text))
    words = texts.read(text)[1]
    options: dict[str, Any] = {
        "prompt_tokens": tokens,
        "new_tokens": new,
        "temperature": temperature,
        "seed": seed,
        "cap": min(64, new),
        "allow_approximate": approximate,
    }
    calibration = None if parameter_file is None else _calibration(parameter_file)
    outcomes, link = asyncio.run(_compare(words, model, chosen, calibration, (like, rate), options))
    if as_json:
        typer.echo(json.dumps([outcome.to_dict() for outcome in outcomes], indent=2))
    else:
        console.out.print(_table(outcomes, new))
        console.out.print(f"link: {link / 1e6:.2f} MB/s; the prompt has {tokens} tokens", soft_wrap=True)
    if plot is not None:  # last: a picture that fails loses no figures
        from lynxq.e2e import timeline

        timeline.draw(outcomes, plot, title=f"{tokens} tokens, {link / 1e6:.2f} MB/s")
        console.err.print(f"picture: {console.plain(plot)}", soft_wrap=True)
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def _calibration(path: Path) -> str:
    found = params_file.read(path)
    if not isinstance(found, Calibration):
        raise console.UsageError(f"{console.plain(path)} holds no calibration, but parameters for all tensors")
    return found.to_json()


async def _compare(
    words: str,
    model: str | None,
    names: list[str],
    calibration: str | None,
    speed: tuple[float, float | None],
    options: dict[str, Any],
) -> tuple[list[Any], float]:
    from lynxq.e2e import Job, Session, links, methods

    like, rate = speed
    tokens = options["prompt_tokens"]
    jobs = {name: Job(method=name, **options) for name in names}
    if calibration is not None:
        jobs[methods.CALIBRATED] = Job(method=methods.CALIBRATED, calibration=calibration, **options)
    titles = {name: methods.of(job).title for name, job in jobs.items()}  # refused before any work
    display = Display("loading the model in two processes")
    outcomes = []
    with display.context:
        async with Session(model, watcher=display.watch) as session:
            session.check_length(tokens, options["new_tokens"])
            ids = await session.tokens(words)
            if len(ids) < tokens:
                raise console.UsageError(f"the text has {len(ids)} tokens, the prompt needs {tokens}")
            display.to(f"computing the cache of {tokens} tokens")
            await session.prefill(ids[:tokens])
            step = (await session.costs(tokens - 1))["step"]
            link = rate * 1e6 if rate else links.rate(like, await session.cache_bytes(tokens - 1), step)
            for name, job in jobs.items():
                display.to(titles[name])
                outcome = await session.run(job.at(link))
                outcomes.append(outcome)
                if outcome.error:
                    console.fail(f"{titles[name]}: {outcome.error}")
    return outcomes, link


def _table(outcomes: list[Any], new: int) -> Table:
    from lynxq.e2e import methods

    table = Table(box=None, pad_edge=False)
    table.add_column("transfer")
    counts = [32, new] if new > 32 else [new]
    for heading in (
        "MB",
        "first token",
        "first final",
        *(f"{n} final" for n in counts),
        "kept",
        "looked up",
        "as full",
        "as BF16",
    ):
        table.add_column(heading, justify="right")
    exact = next((o.tokens for o in outcomes if o.job.method == "bf16" and not o.error), None)
    for outcome in outcomes:
        marks = {True: "yes", False: "no", None: "-"}
        same = None if exact is None or outcome.error else outcome.tokens == exact
        table.add_row(
            methods.of(outcome.job).title + (" (approximate)" if outcome.approximate else ""),
            f"{(outcome.anchor_bytes + outcome.residual_bytes) / 1e6:.1f}",
            *(_seconds(at) for at in (outcome.first_drafted, outcome.first_final)),
            *(_seconds(outcome.until(count)) for count in counts),
            f"{outcome.accepted}/{outcome.drafted}" if outcome.drafted else "-",
            f"{outcome.kept}/{outcome.proposed}" if outcome.proposed else "-",
            marks[outcome.same_as_full],
            marks[same],
        )
    return table


def _seconds(at: float | None) -> str:
    return "-" if at is None else f"{at:.2f} s"
