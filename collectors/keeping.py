"""Processes of diag that run next to a training and are none of its children: started, and started again when they end,
from a thread of a rank. Standard library only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from .policy import KEEPING

# What makes a process record itself, or start further processes of ours.
_OURS = ("DIAG_ATTACH", "DIAG_RUN_DIR", "DIAG_COLLECTOR", "DIAG_ATTACH_OWNER", "DIAG_PACK", "DIAG_WATCH")


class Keeper:
    """``runs``: whether the process runs; ``start`` starts it; of two that start, one gives up. ``say`` gets the reason
    where it cannot be started. The training, and its recording, go on without it."""

    def __init__(
        self, name: str, runs: Callable[[], bool], start: Callable[[], None], say: Callable[[Exception], object]
    ) -> None:
        self._runs, self._start, self._say = runs, start, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _keep(self) -> None:
        pause_s = KEEPING.look_s
        try:
            while True:
                if self._runs():
                    pause_s = KEEPING.look_s
                else:
                    self._start()
                    # One that cannot live must not be started every few seconds for days.
                    pause_s = min(2 * pause_s, KEEPING.longest_pause_s)
                if self._stop.wait(pause_s):
                    return
        except Exception as error:
            self._say(error)


def start(
    python: str, starter: str, module: str, *arguments: str, variables: Mapping[str, str], log: int | None = None
) -> None:
    """Starts a module of ours that is no child of this process, and has none of its open files but ``log``.
    ``starter``: the file of ``diag.processes``, which starts every process; ``python``: the interpreter that has diag.
    OSError where one cannot be started."""
    spec = spec_from_file_location("_diag_processes", starter)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(2, "no module that starts processes", starter)
    processes = module_from_spec(spec)
    spec.loader.exec_module(processes)
    site = str(Path(__file__).resolve().parent / "attach" / "site")
    base = {name: value for name, value in os.environ.items() if name not in _OURS}
    if "PYTHONPATH" in base:  # without what makes a process record itself
        entries = base["PYTHONPATH"].split(os.pathsep)
        base["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry != site)
    processes.start_detached(python, module, *arguments, base={**base, **variables}, log=log)
