"""Starts every process of diag, and keeps the current folder off the paths of this one.

People run ``diag`` in folders that others filled. There, a ``msgspec.py`` or a program ``py-spy`` must not run as ours.
So interpreters start with ``-P``, and relative entries, which mean the current folder or one below it, are taken out of
every variable that names places to load code from. A training that the user starts keeps its paths: it is the user's
own code.

This module is imported before the current folder is off the path, so at its top it imports what Python has already
loaded, and nothing else.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import Any

# Lists of folders that code is loaded from, and single folders.
_LISTS = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES")
_FOLDERS = ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX")
_SAFE_PATH = "PYTHONSAFEPATH"  # for interpreters that a library starts, without our -P


def leave_current_folder() -> None:
    """Takes the current folder, and relative entries of PYTHONPATH, off ``sys.path``: ``python -m diag`` puts the
    former first, and ``export PYTHONPATH=/some/where:$PYTHONPATH`` often adds an empty entry. The folder of diag itself
    stays."""
    try:
        here = os.path.realpath(os.curdir)
    except OSError:  # removed
        here = ""
    ours = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))
    given = os.environ["PYTHONPATH"].split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    # Python makes the entries of PYTHONPATH absolute, so a relative one is found by the place that it led to.
    relative = {"", *(os.path.normpath(os.path.join(here, entry)) for entry in given if not os.path.isabs(entry))}
    may_be_here = {*given, *sys.path[:1]}  # the other entries are Python's own, wherever the user is

    def is_kept(entry: str) -> bool:
        place = os.path.realpath(entry) if entry else ""
        return place == ours or not (entry in relative or (entry in may_be_here and place == here))

    sys.path[:] = filter(is_kept, sys.path)


def environment(base: "Mapping[str, str] | None" = None) -> dict[str, str]:
    """The environment of a process of ours: ``base``, by default this process's, without relative entries in the
    variables that name places to load code from."""
    cleaned = dict(os.environ if base is None else base)
    for name in _LISTS:
        if name in cleaned:
            cleaned[name] = _absolute(cleaned[name])
    cleaned["PATH"] = _path(cleaned)
    for name in _FOLDERS:
        if name in cleaned and not os.path.isabs(cleaned[name]):
            cleaned[name] = ""  # as if it were not set
    return {**cleaned, _SAFE_PATH: "1"}


def _absolute(folders: str) -> str:
    return os.pathsep.join(entry for entry in folders.split(os.pathsep) if os.path.isabs(entry))


def _path(variables: "Mapping[str, str]") -> str:
    """PATH without relative entries; an empty one would mean the current folder."""
    return _absolute(variables.get("PATH", "")) or os.defpath


def python(*arguments: str) -> list[str]:
    """The command of an interpreter that runs code of diag or of a library, not of the user."""
    return [sys.executable, "-P", *arguments]


def users_python(*arguments: str) -> list[str]:
    """The command of an interpreter that runs the user's training, whose folder is on its path as always."""
    return [sys.executable, *arguments]


def start(
    command: "Sequence[str]", base: "Mapping[str, str] | None" = None, **options: "Any"
) -> "subprocess.Popen[Any]":
    """Starts a process of ours, with ``environment(base)`` and options of ``subprocess.Popen``. OSError as there."""
    import subprocess

    return subprocess.Popen(command, env=environment(base), **options)


def run(
    command: "Sequence[str]", base: "Mapping[str, str] | None" = None, **options: "Any"
) -> "subprocess.CompletedProcess[Any]":
    """As ``start``, and waits for its end."""
    import subprocess

    return subprocess.run(command, env=environment(base), check=False, **options)


def start_detached(
    interpreter: str, module: str, *arguments: str, base: "Mapping[str, str]", log: int | None = None
) -> None:
    """Starts a module of ours that is no child of this one, which may be a training that waits for its children.
    It has no standard streams: a launcher waits until all who hold its pipes have ended. ``log``: an open regular file,
    which becomes its standard error. OSError as Popen."""
    import subprocess

    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "sh", interpreter, "-P", "-m", module, *arguments],
        check=False,
        env=environment(base),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if log is None else log,
        start_new_session=True,
    )


def start_training(
    command: "Sequence[str]", variables: "Mapping[str, str]", **options: "Any"
) -> "subprocess.Popen[bytes]":
    """Starts the user's own command, found and run as a shell would, with these variables added, and options of
    ``subprocess.Popen``. OSError as there."""
    import subprocess

    return subprocess.Popen(command, env={**os.environ, **variables}, **options)


def find_program(name: str) -> str | None:
    """The path of an installed program; None where there is none, or only in a folder that PATH names relatively."""
    import shutil

    return shutil.which(name, path=_path(os.environ))


def open_in_browser(url: str) -> bool:
    """Opens the address in the user's browser; returns whether one was found."""
    import webbrowser

    before = os.environ.get("PATH")
    os.environ["PATH"] = _path(os.environ)  # webbrowser looks for browsers itself
    try:
        return webbrowser.open(url)
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before
