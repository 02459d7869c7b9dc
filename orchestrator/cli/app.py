"""The command table, and the one place where an error becomes text and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from orchestrator.cli import asking, compares, logs, nodes, output, patches, results, runs, schema, tune
from orchestrator.cli.words import error_lines, error_value
from orchestrator.errors import DynspecError, Interrupted, OutputLost, UsageError
from orchestrator.version import VERSION

app = typer.Typer(
    name="dynspec",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the same on every terminal, and no rich at start
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Patch, deploy and benchmark cycles of LLM inference on a remote GPU node. "
    "The node is always given back as it was.",
    epilog="First look, without a GPU: dynspec demo. Exit codes: 0 ok, 1 failed, 2 bad input, 3 busy, 4 does not fit, "
    "5 regression, 6 nothing to claim, 70 node dirty, 129/130/143 interrupted (terminal closed, Ctrl-C, SIGTERM).",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynspec {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


runs.register(app)
nodes.register(app)
asking.register(app)
results.register(app)
compares.register(app)
tune.register(app)
patches.register(app)
logs.register(app)
schema.register(app)


def main() -> NoReturn:
    """Runs the command line; every way out goes through here, but for KeyboardInterrupt, which `cli.main` answers."""
    output.prepare()
    try:
        code = app(standalone_mode=False, prog_name="dynspec")
    except DynspecError as error:
        code = report_error(error, as_json="--json" in sys.argv[1:])
    except Interrupted as interrupted:  # before a run had begun, or in a command that only reads
        print("dynspec: interrupted; the node was not touched", file=sys.stderr)
        code = interrupted.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except BrokenPipeError:  # `dynspec ... | head`: the reader is gone, and nobody is left to tell
        code = 1
    except OutputLost:
        code = 1  # told by `_quit`
    except Exception as error:  # noqa: BLE001  the top: anything unforeseen is a bug, shown whole
        code = _unforeseen(error)
    _quit(int(code or 0))


def report_error(error: DynspecError, *, as_json: bool = False) -> int:
    """For people on standard error; to a program that asked and got no answer, the same as its answer."""
    if as_json and not error.answered:
        with suppress(OSError):  # nobody reads it
            print(json.dumps({"schema": 1, "error": error_value(error)}), flush=True)
    for line in error_lines(error):
        print(line, file=sys.stderr)
    return error.exit_code


def _unforeseen(error: Exception) -> int:
    show = getattr(error, "show", None)  # a usage error of the argument parser shows itself
    if show is not None:
        show()
        return int(getattr(error, "exit_code", UsageError.exit_code))
    traceback.print_exc()
    print("dynspec: this is a bug; please report the lines above", file=sys.stderr)
    return 1


def _quit(code: int) -> NoReturn:
    if lost := output.lost():
        with suppress(OSError):
            print(lost, file=sys.stderr)
        code = code or 1
    try:
        sys.stdout.flush()
    except OSError:  # the reader or the terminal is gone, nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
