"""``diag``: the commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import gc
import json
import sys
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from diag.cli.analyze import analyze
from diag.cli.attach import attach
from diag.cli.check import check
from diag.cli.compare import compare
from diag.cli.dashboard import dashboard
from diag.cli.export import export, metrics
from diag.cli.open import open_trace
from diag.cli.plan import plan
from diag.cli.report import report
from diag.cli.run import run
from diag.cli.trace import trace
from diag.cli.triage import triage
from diag.cli.tune import tune
from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import DiagError, ExitCode

_OBJECTS_UNTIL_GC = 1_000_000

app = typer.Typer(
    name="diag",
    help="Finds out why a distributed PyTorch training run is slow or stuck, and says what to do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from diag import __version__  # reads the package's metadata: 15 ms

        typer.echo(f"diag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


# Whatever follows a script's or a command's name is its own.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(attach)
app.command()(analyze)
app.command()(compare)
app.command()(check)
app.command()(report)
app.command()(trace)
app.command()(triage)
app.command()(plan)
app.command()(dashboard)
app.command()(export)
app.command()(metrics)
app.command("open")(open_trace)
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(tune)


def main() -> NoReturn:
    """Runs the command line; never shows a traceback for a mistake of the user."""
    # Tables of small objects, hardly a cycle among them: looking for some after every 700 took 5 % of an analysis.
    gc.set_threshold(_OBJECTS_UNTIL_GC)
    if isinstance(sys.stdout, TextIOWrapper):  # a file's name may be no text in the terminal's encoding, or in any
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=True)
    except DiagError as error:
        _report(error)
        sys.exit(int(error.exit_code))
    except PermissionError as error:  # of another user's file: nothing that a traceback would help with
        if error.filename is None:
            raise
        _report(DiagError(f"{error.strerror}", path=str(error.filename), hint="ask its owner for permission"))
        sys.exit(int(ExitCode.ERROR))
    except BrokenPipeError:  # `diag analyze ... | head`
        sys.stderr.close()
        sys.exit(0)
    finally:
        gc.freeze()  # or the interpreter looks for cycles among all that is left, as its last work: 15 ms
    sys.exit(code)


def _report(error: DiagError) -> None:
    if "--json" in sys.argv:
        body = {
            "message": error.message,
            "hint": error.hint,
            "path": error.path,
            "exit_code": int(error.exit_code),
        }
        print(json.dumps({"schema_version": SCHEMA_VERSION, "error": body}))
        return
    where = f"{error.path}: " if error.path else ""
    print(f"diag: {where}{error.message}", file=sys.stderr)
    if error.hint:
        print(f"      {error.hint}", file=sys.stderr)
