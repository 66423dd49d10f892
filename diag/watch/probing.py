"""Whether the recorder would start where a launcher starts the training: in its container, on its nodes.

A short program runs there in the training's place. It needs Python alone, so it also answers where the recorder cannot
be found.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from diag import processes
from diag.collectors.files import create_file
from diag.collectors.layout import RUN_DIR_VARIABLE
from diag.decoding import json_decoder
from diag.errors import DiagError, ExitCode
from diag.store.stores import Store, is_remote
from diag.watch.policy import WATCHING
from diag.words.formatting import counted, size

_ANSWER = "diag-check: "  # what the line of an answer begins with
_TOKEN = ".diag-check"

# Runs in any Python from 3.8 on. It must not import the recorder itself: that is what is looked at.
_PROGRAM = """
import json, os, shutil, socket, sys
def version(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:
        return None
site, folder, token, packer = sys.argv[1:5]
about = {"host": socket.gethostname(), "python": sys.version.split()[0], "executable": sys.executable}
about["site"] = os.path.isfile(os.path.join(site, "sitecustomize.py"))
about["on_path"] = site in os.environ.get("PYTHONPATH", "").split(os.pathsep)
about["ignored"] = bool(sys.flags.ignore_environment or sys.flags.no_site)
about["torch"] = version("torch")
about["told"] = bool(os.environ.get("DIAG_ATTACH") and os.environ.get("DIAG_RUN_DIR"))
about["loaded"] = "_diag_collectors.attach.boot" in sys.modules
if about["loaded"] and about["torch"]:
    try:
        import torch
        life = sys.modules.get("_diag_collectors.attach.life")
        about["armed"] = getattr(life, "armed", None) is not None
    except Exception as error:
        about["error"] = "import torch: %r" % (error,)
    try:
        import importlib, pkgutil
        for found in pkgutil.iter_modules(sys.modules["_diag_collectors"].__path__):
            if not found.ispkg:
                importlib.import_module("_diag_collectors." + found.name)
    except Exception as error:
        about["error"] = about.get("error") or "the recorder: %r" % (error,)
about["packer"] = os.access(packer, os.X_OK) if packer else None
about["seen"] = os.path.isfile(os.path.join(folder, token)) if token else None
try:
    os.makedirs(folder, exist_ok=True)
    mine = os.path.join(folder, "%s-%s-%d" % (".diag-probe", about["host"], os.getpid()))
    with open(mine, "x") as file:
        file.write("diag")
    os.remove(mine)
    about["free"] = shutil.disk_usage(folder).free
except OSError as error:
    about["unwritable"] = error.strerror or str(error)
print("diag-check: " + json.dumps(about), flush=True)
"""


class Answer(Struct, frozen=True):
    """What a process in the training's place found. ``seen``: whether it sees the file that this command made in the
    run directory; None where none was made. ``free``: bytes of room there, None if it cannot be written. ``packer``:
    whether there is the Python of the packer; None where nothing is packed."""

    host: str
    python: str
    executable: str
    site: bool
    on_path: bool
    ignored: bool
    told: bool
    loaded: bool
    torch: str | None = None
    armed: bool = False
    error: str = ""
    seen: bool | None = None
    free: int | None = None
    unwritable: str = ""
    packer: bool | None = None

    def problems(self, site: str, folder: str, least_bytes: int) -> list[str]:
        """Why this process would not be recorded, or not completely; empty if it would."""
        found = [*self._of_recorder(site)]
        if self.unwritable:
            found.append(f"{folder} cannot be written: {self.unwritable}")
        elif self.seen is False:
            found.append(f"{folder} is another folder here than where this command runs: nodes do not share it")
        if self.packer is False:
            found.append("the Python of the packer, which has diag and writes to --out, is not there")
        if self.free is not None and self.free < least_bytes:
            found.append(f"{size(self.free)} are free in {folder}; a rank may write {size(least_bytes)}")
        return found

    def _of_recorder(self, site: str) -> list[str]:
        if not self.told or not self.on_path:
            return ["the launcher does not hand on DIAG_ATTACH, DIAG_RUN_DIR and PYTHONPATH"]
        if not self.site:
            return [
                f"{site}, which is on PYTHONPATH, is not there or cannot be read: mount it, or copy it into the image"
            ]
        if self.ignored:
            return ["this Python ignores PYTHONPATH (-I, -E or -S)"]
        if not self.loaded:
            return ["the recorder was not loaded; what this Python printed on standard error may say why"]
        if self.torch is None:
            return ["torch is not installed for this Python"]
        if self.error or not self.armed:
            return [self.error or "the recorder did not start after `import torch`"]
        return []


class Checked(Struct, frozen=True):
    """``problems``: by what they are about, a host or the run directory."""

    answers: list[Answer]
    problems: list[tuple[str, str]]

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.ERROR if self.problems else ExitCode.OK

    def lines(self) -> list[str]:
        hosts = sorted({answer.host for answer in self.answers})
        processes, on = counted(len(self.answers), "process", "processes"), counted(len(hosts), "host")
        said = [f"{processes} on {on} answered: {', '.join(hosts)}"] if hosts else []
        about = {(answer.host, answer.python, answer.executable, answer.torch) for answer in self.answers}
        for host, python, executable, torch in sorted(about, key=str):
            said.append(f"  {host}: Python {python} ({executable}), " + (f"torch {torch}" if torch else "no torch"))
        if self.answers and all(answer.seen for answer in self.answers):
            said.append("  the run directory is the same on all of them")
        room = [answer.free for answer in self.answers if answer.free is not None]
        if room:
            said.append(f"  room for records: {size(min(room))}")
        said += [f"NOT RECORDED: {where}: {what}" for where, what in dict.fromkeys(self.problems)]
        return [*said, *(["The recorder would start."] if not self.problems else [])]


def check(
    command: Sequence[str],
    variables: Mapping[str, str],
    site: str,
    out: str,
    packer: str,
    least_bytes: int,
) -> Checked:
    """Runs the program by ``command``, which ends with a Python, in the environment of a training. ``variables``: those
    of `diag attach`, with PYTHONPATH. ``packer``: the Python of the packer, "" without one. DiagError where the command
    cannot be started or does not end in time."""
    folder = Path(variables[RUN_DIR_VARIABLE])
    problems: list[tuple[str, str]] = []
    token = "" if packer else f"{_TOKEN}-{uuid.uuid4().hex[:12]}"
    before = folder.is_dir()
    if token:
        try:
            create_file(folder / token, b"diag")
        except OSError as error:
            problems.append((socket.gethostname(), f"{folder} cannot be written: {error.strerror or error}"))
            token = ""
    if is_remote(out):
        problems += _of_store(out)
    try:
        printed = _run([*command, "-c", _PROGRAM, site, str(folder), token, packer], variables)
    finally:
        with contextlib.suppress(OSError):
            if token:
                (folder / token).unlink()
            if packer or not before:
                folder.rmdir()
    answers = _answers(printed)
    if not answers:
        problems.append((command[0], "no Python answered: does the command end with the training's Python?"))
    for answer in answers:
        problems += [(answer.host, problem) for problem in answer.problems(site, str(folder), least_bytes)]
    return Checked(answers, problems)


def path_python() -> str:
    """The Python that a script would find."""
    found = (processes.find_program(name) for name in ("python", "python3"))
    return next(filter(None, found), "python3")


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    try:
        process = processes.start_training(command, variables, stdout=subprocess.PIPE)
    except OSError as error:
        raise DiagError(f"cannot start {command[0]}: {error.strerror}", exit_code=ExitCode.USAGE) from error
    try:
        return process.communicate(timeout=WATCHING.check_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise DiagError(f"{command[0]} has not ended after {WATCHING.check_s:.0f} s") from error


def _answers(printed: str) -> list[Answer]:
    """The answers among what the command printed; launchers put a prefix before a line."""
    import msgspec

    found = []
    for line in printed.splitlines():
        _, begin, text = line.partition(_ANSWER)
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            if begin:
                found.append(json_decoder(Answer).decode(text))
    return found


def _of_store(out: str) -> list[tuple[str, str]]:
    """Why a packer could not write to this address; empty if it could."""
    store, name = Store(out), f"{_TOKEN}-{uuid.uuid4().hex[:12]}"
    try:
        store.write(name, b"diag")
        store.remove([name])
    except DiagError as error:
        return [(socket.gethostname(), error.message)]
    return []
