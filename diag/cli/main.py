"""``diag``: the commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import errno
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
from diag.words.formatting import visible
from diag.words.terminal import drop_output, put, say

_OBJECTS_UNTIL_GC = 1_000_000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_WITH_WORDS_OF_OTHERS = ("run", "tune")

# All errors of the parser. Typer brings its own copy of click, or uses click, as the version may be.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="diag",
    help="Finds out why a distributed PyTorch training run is slow or stuck, and says what to do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        from diag import __version__  # reads the package's metadata: 15 ms

        say(f"diag {__version__}")
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
        try:
            _refuse_empty_words()
            code = app(standalone_mode=False)
        except DiagError as error:
            _report(error)
            code = int(error.exit_code)
        except _UsageError as error:
            if error.format_message():  # else the help has been printed
                _report(_refusal(error))
            code = int(ExitCode.USAGE)
        except PermissionError as error:  # of another user's file: nothing that a traceback would help with
            if error.filename is None:
                raise
            _report(DiagError(f"{error.strerror}", path=str(error.filename), hint="ask its owner for permission"))
            code = int(ExitCode.ERROR)
        finally:
            sys.stdout.flush()  # here, where an error is a message, and not as the interpreter ends
    except BrokenPipeError:  # `diag analyze ... | head`
        sys.stderr.close()
        drop_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        drop_output()
        say(f"diag: the output cannot be written: {error.strerror}", err=True)
        sys.exit(int(ExitCode.ERROR))
    finally:
        gc.freeze()  # or the interpreter looks for cycles among all that is left, as its last work: 15 ms
    sys.exit(code)


def _refusal(error: typer.BadParameter) -> DiagError:
    """The error of Typer's parser as one of ours, so that it is reported as they are."""
    command = error.ctx.command_path if error.ctx is not None else "diag"
    return DiagError(error.format_message(), hint=f"Try '{command} --help' for help.", exit_code=ExitCode.USAGE)


def _refuse_empty_words() -> None:
    """An empty path is a variable of the shell that is not set, and would be the current directory. What follows a
    script's name is the script's."""
    if "" in sys.argv[1:] and sys.argv[1] not in _WITH_WORDS_OF_OTHERS:
        hint = "a variable of the shell that is not set? This folder is ."
        raise DiagError("an argument is empty", hint=hint, exit_code=ExitCode.USAGE)


def _report(error: DiagError) -> None:
    if "--json" in sys.argv:
        body = {
            "message": error.message,
            "hint": error.hint,
            "path": error.path,
            "exit_code": int(error.exit_code),
        }
        put(json.dumps({"schema_version": SCHEMA_VERSION, "error": body}) + "\n")
        return
    where = f"{error.path}: " if error.path else ""
    say(visible(f"diag: {where}{error.message}"), err=True)  # one line, whatever the message quotes
    if error.hint:
        say(f"      {error.hint}", err=True)
