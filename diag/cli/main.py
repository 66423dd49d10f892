"""``diag``: the commands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from diag.cli.environment import has_little_memory, has_standard_streams, not_enough_memory, prepare, watched
from diag.collectors.layout import SCHEMA_VERSION
from diag.errors import DiagError, ExitCode
from diag.words.formatting import visible
from diag.words.places import shown
from diag.words.terminal import drop_output, put, say

_OBJECTS_UNTIL_GC = 1_000_000
# Errors of standard output: a full disk, a stream that is closed.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO, errno.EFBIG)
# What the system has no more of.
_OF_SYSTEM = (*_OF_OUTPUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS)
_FOLDERS = ("TMPDIR", "XDG_CACHE_HOME")  # besides those that DIAG_... names
# Commands whose work is not what they print: a training goes on without it.
_OUTPUT_ASIDE = ("run", "tune", "demo", "dashboard")
_NEED_NO_WATCH = (
    *_OUTPUT_ASIDE,
    "attach",
    "help",
    "metrics",
    "open",
    "watch",
)  # they end by signals, or need no library
_LONGEST_PATH = 300
_LOOP = "Symlink loop"  # how pathlib, before Python 3.13, reports links that lead to themselves

# All errors of the parser. Typer has its own copy of click or uses click, depending on its version.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]

# Arguments after a script's name belong to the script, and `diag tune` passes options of `diag run` on.
_OF_OTHERS: dict[str, dict[str, Any]] = {
    "run": {"allow_interspersed_args": False},
    "tune": {"ignore_unknown_options": True, "allow_extra_args": True},
    "help": {"ignore_unknown_options": True},  # it explains them
}
# The function of each command, and the module of diag.cli that it is in.
COMMANDS = {
    "run": ("run", "run"),
    "attach": ("attach", "attach"),
    "analyze": ("analyze", "analyze"),
    "history": ("history", "history"),
    "compare": ("compare", "compare"),
    "check": ("check", "check"),
    "report": ("report", "report"),
    "trace": ("trace", "trace"),
    "watch": ("watch", "watch"),
    "triage": ("triage", "triage"),
    "plan": ("plan", "plan"),
    "dashboard": ("dashboard", "dashboard"),
    "export": ("export", "export"),
    "metrics": ("export", "metrics"),
    "open": ("open", "open_trace"),
    "tune": ("tune", "tune"),
    "demo": ("demo", "demo"),
    "doctor": ("doctor", "doctor"),
    "help": ("help", "show_help"),
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


class _NotForTyperError(Exception):
    """Carries an exception that Typer, click or rich would end the process for in a way of its own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


@contextmanager
def _past_typer() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, KeyboardInterrupt) as error:
        raise _NotForTyperError(error) from error
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich's way
            raise _NotForTyperError(end.__context__) from end
        raise


class _Commands(TyperGroup):
    """Lists the commands without making them, and without rich, whose import takes 70 ms."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        with _past_typer():  # prints the help
            return super().make_context(*arguments, **settings)

    def invoke(self, context: Any) -> Any:
        with _past_typer():
            return super().invoke(context)

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
    """Runs the command line; never shows a traceback for a mistake of the user, or for what diag is started in."""
    # Most objects are small and without cycles: a collection after every 700 of them took 5 % of an analysis.
    gc.set_threshold(_OBJECTS_UNTIL_GC)
    name = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    prepare(output_is_result=name not in _OUTPUT_ASIDE)
    if isinstance(sys.stdout, TextIOWrapper):  # the name of a file may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")
    if has_little_memory() and name not in _NEED_NO_WATCH:
        with suppress(OSError):  # without a temporary file or another process it is not watched
            watched(_run, lambda reason: _report(DiagError(reason)))
    _run()


def _run() -> NoReturn:
    try:
        try:
            _refuse_empty_words()
            code = app(standalone_mode=False)
        except _NotForTyperError as passed:
            raise passed.error from None
        except DiagError as error:
            code = _report(error)
        except _UsageError as error:
            code = _report(_refusal(error))
        finally:
            sys.stdout.flush()  # here, where an error becomes a message, and not when the interpreter ends
    except BrokenPipeError:  # `diag analyze ... | head`
        drop_output()
        sys.exit(0)
    except KeyboardInterrupt:
        drop_output()
        sys.exit(_report(DiagError("interrupted", exit_code=ExitCode.INTERRUPTED), as_text=True))
    except OSError as error:
        if not _is_of_user(error):
            raise  # a mistake of ours, which only its traceback explains
        if error.errno in _OF_OUTPUT:
            drop_output()
        sys.exit(_report(_of_system(error), as_text=error.errno in _OF_OUTPUT))
    except BaseException as error:
        if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
            sys.exit(_report(DiagError(str(error))))
        if isinstance(error, SystemExit) or not (isinstance(error, MemoryError) or has_little_memory()):
            raise
        # Libraries that get no memory raise anything: an ImportError, a NameError, a panic.
        seen = "" if isinstance(error, MemoryError) else f", and {type(error).__name__} was raised"
        sys.exit(_report(DiagError(f"{not_enough_memory()}{seen}")))
    finally:
        gc.freeze()  # else the interpreter searches all objects for cycles when it ends: 15 ms
    sys.exit(code)


def _is_of_user(error: OSError) -> bool:
    """Whether the user can do something about it: the system has no more of something, the current folder is gone, or
    the path is at or below one that was named, on the command line or by the environment."""
    if error.errno == errno.EBADF:
        return not has_standard_streams()
    if error.errno in _OF_SYSTEM or not _current_folder():
        return True
    if error.filename is None:
        return False
    path = os.path.abspath(os.fsdecode(error.filename))  # noqa: PTH100  (a link to itself cannot be resolved)
    words = [part for word in sys.argv[1:] for part in (word, word.partition("=")[2]) if part]
    folders = [value for name, value in os.environ.items() if value and (name.startswith("DIAG_") or name in _FOLDERS)]
    named = map(os.path.abspath, (*words, *folders))
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in named)


def _current_folder() -> str:
    """ "" if it was removed."""
    try:
        return os.getcwd()  # noqa: PTH109  (what Path.cwd does)
    except OSError:
        return ""


def _of_system(error: OSError) -> DiagError:
    """What the system refused: a name that is too long, a full disk, a folder that is gone."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        hint = "ask its owner for permission" if isinstance(error, PermissionError) else ""
        return DiagError(reason, path=os.fsdecode(error.filename), hint=hint)
    if error.errno in _OF_OUTPUT:
        is_closed = error.errno == errno.EBADF
        return DiagError(f"the output cannot be written: {'standard output is closed' if is_closed else reason}")
    if not _current_folder():
        return DiagError("the current folder was removed", hint="change into another one, and name paths in full")
    return DiagError(reason)


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


def _report(error: DiagError, as_text: bool = False) -> int:
    """Prints the error, where that is still possible; returns its exit code. ``as_text``: standard output takes
    nothing any more."""
    with suppress(OSError, ValueError):
        _print_error(error, as_text or "--json" not in sys.argv)
    return int(error.exit_code)


def _print_error(error: DiagError, as_text: bool) -> None:
    if not as_text:
        body = {
            "message": error.message,
            "hint": error.hint,
            "path": error.path and shown(error.path),
            "exit_code": int(error.exit_code),
        }
        put(json.dumps({"schema_version": SCHEMA_VERSION, "error": body}) + "\n")
        return
    path = shown(error.path or "")
    where = f"{path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + '…'}: " if path else ""
    say(visible(f"diag: {where}{error.message}"), err=True)  # one line, whatever the message quotes
    if error.hint:
        say(f"      {error.hint}", err=True)
