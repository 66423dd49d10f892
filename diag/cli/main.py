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

# All errors of the parser. Typer has its own copy of click or uses click, depending on its version.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

# Arguments after a script's name belong to the script, and `diag tune` passes options of `diag run` on.
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
}


def _function(name: str) -> Callable[..., None]:
    module, function = COMMANDS[name]
    command: Callable[..., None] = getattr(import_module(f"diag.cli.{module}"), function)
    return command


class _Made(Mapping[str, Any]):
    """The commands as Typer makes them, each on first use: making all takes 60 ms."""

    def __getitem__(self, name: str) -> Any:
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _made(name: str) -> Any:
    function = _function(name)  # KeyError where there is no such command
    typer_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    typer_app.command(name, context_settings=_OF_OTHERS.get(name))(function)
    return typer.main.get_command(typer_app)


class _Commands(TyperGroup):
    """Lists the commands without making them, and without rich, whose import takes 70 ms."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
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
    # Most objects are small and without cycles: a collection after every 700 of them took 5 % of an analysis.
    gc.set_threshold(_OBJECTS_UNTIL_GC)
    if isinstance(sys.stdout, TextIOWrapper):  # the name of a file may not be encodable
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
        except PermissionError as error:  # another user's file: a traceback would not help
            if error.filename is None:
                raise
            _report(DiagError(f"{error.strerror}", path=str(error.filename), hint="ask its owner for permission"))
            code = int(ExitCode.ERROR)
        finally:
            sys.stdout.flush()  # here, where an error becomes a message, and not when the interpreter ends
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
        gc.freeze()  # else the interpreter searches all objects for cycles when it ends: 15 ms
    sys.exit(code)


def _refusal(error: typer.BadParameter) -> DiagError:
    """The error of Typer's parser as a ``DiagError``, so that it is reported like one."""
    command = error.ctx.command_path if error.ctx is not None else "diag"
    return DiagError(error.format_message(), hint=f"Try '{command} --help' for help.", exit_code=ExitCode.USAGE)


def _refuse_empty_words() -> None:
    """DiagError for an empty argument: usually a shell variable that is not set, and as a path the current directory.
    Arguments after a script's name belong to the script."""
    if "" in sys.argv[1:] and sys.argv[1] not in _OF_OTHERS:
        hint = "is a shell variable not set? The current folder is ."
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
