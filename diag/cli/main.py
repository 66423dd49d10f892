"""``diag``: the commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import errno
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import DiagError, ExitCode
from diag.words.formatting import visible
from diag.words.terminal import drop_output, put, say

_OBJECTS_UNTIL_GC = 1_000_000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# All errors of the parser. Typer brings its own copy of click, or uses click, as the version may be.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

# What follows the name of a script is the script's own, and `diag tune` hands on options of `diag run`.
_OF_OTHERS: dict[str, dict[str, Any]] = {
    "run": {"allow_interspersed_args": False},
    "tune": {"ignore_unknown_options": True, "allow_extra_args": True},
}
# The function of each command, and the module of diag.cli that it is in.
COMMANDS = {
    "run": ("run", "run"),
    "attach": ("attach", "attach"),
    "analyze": ("analyze", "analyze"),
    "compare": ("compare", "compare"),
    "check": ("check", "check"),
    "report": ("report", "report"),
    "trace": ("trace", "trace"),
    "triage": ("triage", "triage"),
    "plan": ("plan", "plan"),
    "dashboard": ("dashboard", "dashboard"),
    "export": ("export", "export"),
    "metrics": ("export", "metrics"),
    "open": ("open", "open_trace"),
    "tune": ("tune", "tune"),
    "demo": ("demo", "demo"),
    "help": ("help", "show_help"),
}


def _function(name: str) -> Callable[..., None]:
    module, function = COMMANDS[name]
    found: Callable[..., None] = getattr(import_module(f"diag.cli.{module}"), function)
    return found


class _Made(Mapping[str, Any]):
    """The commands as Typer makes them, each when it is first asked for: making all takes 60 ms."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _made(name: str) -> Any:
    function = _function(name)  # KeyError where there is no such command
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name, context_settings=_OF_OTHERS.get(name))(function)
    return typer.main.get_command(one)


class _Commands(TyperGroup):
    """Lists the commands without making them, and without rich, whose import takes 70 ms."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Made()  # type: ignore[assignment]

    def list_commands(self, _context: Any) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, _context: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(_function(name))) for name in COMMANDS])


def _summary(function: Callable[..., None]) -> str:
    return " ".join((function.__doc__ or "").partition("\n\n")[0].split())


app = typer.Typer(
    name="diag",
    cls=_Commands,
    help="Finds out why a distributed PyTorch training run is slow or stuck, and what to do.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from diag import __version__  # reads the package's metadata: 15 ms

        say(f"diag {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(int(ExitCode.USAGE))


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
    if "" in sys.argv[1:] and sys.argv[1] not in _OF_OTHERS:
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
