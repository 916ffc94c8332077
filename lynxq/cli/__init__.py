"""The command line, ``lynxq``."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

import lynxq
from lynxq.cli import calibrate, console, convert, e2e, evaluation, inspect, lab

#: What is raised for wrong arguments; of click itself, or of typer's own copy of it.
_UsageError: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """The commands; what is said of wrong arguments shows no secrets of URLs among them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = console.plain(error.message)
            raise


app = typer.Typer(
    name="lynxq",
    cls=_Commands,
    help="Progressive compression of KV caches: anchors to start decoding with, residuals to refine them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lynxq {lynxq.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),  # noqa: ARG001 - acted on by its callback
) -> None:
    console.set_up()


_COMMANDS = (convert.encode, convert.decode, inspect.info, inspect.verify, calibrate.calibrate)
for _command in (*_COMMANDS, inspect.warmup, evaluation.demo):
    app.command()(_command)
app.command("eval")(evaluation.eval_)
app.add_typer(lab.app)
app.command()(e2e.e2e)


def main() -> None:
    """Run the command line; errors that users can cause end in one line and exit code 1."""
    console.set_up()
    try:
        app()
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (lynxq.LynxqError, OSError) as error:
        console.fail("; ".join([str(error), *getattr(error, "__notes__", [])]))
        sys.exit(1)
