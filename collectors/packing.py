"""One packer a node: a process that carries what the ranks of a node write to a store. Standard library only.

The ranks write into a folder of their own node. The packer holds a lock there while it runs. A launcher of ours starts
it; where another launcher starts the ranks, the first of them does, and any rank starts another one where it has died.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from .policy import PACKING
from .reading import is_of_kind

PACK_VARIABLE = "DIAG_PACK"  # see ``Packing``. Not on a command line, which other users can read
FOLDER_VARIABLE = "DIAG_NODE_FOLDER"  # where the folders of nodes are made, instead of the system's temporary folder
MODULE = "diag.store.packer"
HIDDEN = ".packer"  # the folder of its own files, in the folder of a node
ABOUT = "packer.json"  # in the run: the interval by which its records are late

_OURS = ("DIAG_ATTACH", "DIAG_RUN_DIR", "DIAG_COLLECTOR", "DIAG_ATTACH_OWNER")


@dataclass(frozen=True)
class Packing:
    """``to``: the address, or the shared folder. ``python``: the interpreter that has diag. ``starter``: the file of
    ``diag.processes``, which starts every process."""

    to: str
    interval_s: float = 30.0
    python: str = ""
    starter: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def packing_from(environ: Mapping[str, str] = os.environ) -> Packing | None:
    """What the launcher set; None where nothing is packed."""
    try:
        values = json.loads(environ.get(PACK_VARIABLE, ""))
    except (ValueError, RecursionError):
        return None
    kinds = {"to": "str", "interval_s": "float", "python": "str", "starter": "str"}
    if not isinstance(values, dict) or not all(is_of_kind(values.get(name), kind) for name, kind in kinds.items()):
        return None
    return Packing(**{name: values[name] for name in kinds})


def node_folder(name: str = "", environ: Mapping[str, str] = os.environ) -> Path:
    """The path of a folder on each node, in one that only this user may enter: of this name, or a new one."""
    import tempfile

    base = environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()
    user = os.geteuid() if hasattr(os, "geteuid") else 0
    return Path(base).resolve() / f"diag-{user}" / (name or uuid.uuid4().hex[:12])


def own_folder(folder: Path) -> None:
    """Makes a folder that only this user may enter. OSError where it is somebody else's, or a link."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or (hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid()):
        raise PermissionError(13, "the folder is another user's", str(folder))


def make_private(folder: Path) -> None:
    """Makes a node's folder. OSError where the one above is another user's, or a link: anybody may have made it."""
    own_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


def lock(folder: Path) -> int | None:
    """The descriptor of the lock of a node's packer; None while a packer holds it. OSError where it cannot be made."""
    hidden = folder / HIDDEN
    hidden.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Keeper:
    """Sees to it, from a thread of a rank, that a packer runs on this node."""

    def __init__(self, folder: Path, packing: Packing, say: Callable[[str], object]) -> None:
        """``say`` gets the reason where no packer can be started."""
        self._folder, self._packing, self._say = folder, packing, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="diag-packer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _keep(self) -> None:
        """Nothing is raised here: the training, and its recording on this node, go on without a packer."""
        try:
            while True:
                descriptor = lock(self._folder)
                if descriptor is not None:
                    os.close(descriptor)  # the packer takes it; of two that start, one gives up
                    start_packer(self._folder, self._packing)
                if self._stop.wait(PACKING.look_s):
                    return
        except Exception as error:
            self._say(f"what is recorded stays on this node, in {self._folder}: {error}")


def start_packer(folder: Path, packing: Packing) -> None:
    """Starts a packer that is no child of this process. OSError where a process cannot be started."""
    spec = spec_from_file_location("_diag_processes", packing.starter)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(2, "no module that starts processes", packing.starter)
    processes = module_from_spec(spec)
    spec.loader.exec_module(processes)
    site = str(Path(__file__).resolve().parent / "attach" / "site")
    variables = {name: value for name, value in os.environ.items() if name not in _OURS}
    if "PYTHONPATH" in variables:  # without what makes a process record itself
        entries = variables["PYTHONPATH"].split(os.pathsep)
        variables["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry != site)
    processes.start_detached(packing.python, MODULE, str(folder), base={**variables, PACK_VARIABLE: packing.to_json()})
