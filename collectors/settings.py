"""The environment variables with which a launcher sets what to collect, and where. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from .layout import RUN_DIR_VARIABLE, RunLayout
from .reading import is_of_kind

SETTINGS_VARIABLE = "DIAG_COLLECTOR"
COLLECT_VARIABLE = "DIAG_COLLECT"  # "off" trains without any collector
RESTARTS_VARIABLE = "TORCHELASTIC_RESTART_COUNT"  # torchrun's: how often it has restarted the training


@dataclass(frozen=True)
class CollectorSettings:
    """The collectors' knobs. Counts are in steps, sizes in bytes, intervals in seconds."""

    trace: bool = True  # record torch.profiler windows
    trace_skip: int = 10  # steps before the first window: warm-up, compilation, allocator
    trace_warmup: int = 1  # steps with the profiler on and nothing recorded
    trace_active: int = 3  # steps recorded in one window
    trace_every: int = 0  # distance between the starts of two windows; 0: one window
    trace_stacks: bool = False  # Python stacks: the one option whose cost clearly exceeds the noise
    trace_memory: bool = False
    memory_snapshots: bool = False  # record the allocator's history; write it near out-of-memory and at an error
    memory_history: int = 100_000  # events of the allocator that torch keeps
    auto_traces: int = 3  # most windows that the launcher requests because the verdict became worse
    collectives: bool = True
    max_collectives_per_step: int = 4096
    # What records durations of collectives on GPUs: NCCL Inspector where it is installed ("auto"), else PyTorch's
    # Flight Recorder ("recorder"); or nothing ("off").
    collective_timing: Literal["auto", "recorder", "off"] = "auto"
    nvml: bool = True  # sample the device: NVML, or amdsmi of an AMD GPU
    summary_steps: int = 50  # steps in one line of summary.jsonl; 0: none
    machine_interval_s: float = 60.0  # between readings of what the node knows; 0: none
    interval_s: float = 1.0  # between heartbeats and samples of the device
    byte_budget: int = 1 << 30  # of all streams and windows of one rank together: see ``streams``

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CollectorSettings:
        """Ignores settings that this version does not know, so that launcher and workers may differ in version, and
        those whose value is of another kind."""
        kinds = {f.name: str(f.type) for f in fields(cls)}
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            return cls()
        known = values.items() if isinstance(values, dict) else ()
        return cls(**{key: value for key, value in known if key in kinds and is_of_kind(value, kinds[key])})


def run_dir_from(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The run directory that the launcher set, or the one inside it for a restart by torchrun; None outside
    ``diag run``. Where attempts share it, ``attempts`` finds the one inside."""
    value = environ.get(RUN_DIR_VARIABLE)
    if not value:
        return None
    shared = environ.get(ATTACH_VARIABLE, "").partition(":")[0] == JOIN
    return RunLayout(Path(value)).restart(0 if shared else restarts(environ)).root


def restarts(environ: Mapping[str, str] = os.environ) -> int:
    """How often torchrun has restarted this process's training."""
    counted = environ.get(RESTARTS_VARIABLE, "")
    return int(counted) if counted.isdecimal() else 0


def settings_from(environ: Mapping[str, str] = os.environ) -> CollectorSettings:
    text = environ.get(SETTINGS_VARIABLE)
    return CollectorSettings.from_json(text) if text else CollectorSettings()


def collecting(environ: Mapping[str, str] = os.environ) -> bool:
    return environ.get(COLLECT_VARIABLE, "on").lower() not in {"off", "0", "no", "false"}


# -- attached ----------------------------------------------------------------------------------------------------------
#
# The environment variables that make a process and its children record themselves.

ATTACH_VARIABLE = "DIAG_ATTACH"  # anything but empty: processes that train are recorded
JOIN = "join"  # its value, or the begin of it, where attempts of a job share the run directory: see ``launchers``
OWNER_VARIABLE = "DIAG_ATTACH_OWNER"  # the process that records; its children do not

SITE = Path(__file__).resolve().parent / "attach" / "site"


def attached(run_dir: Path, settings: CollectorSettings) -> dict[str, str]:
    """The variables to add to the environment, except PYTHONPATH: see ``python_path``."""
    return {
        ATTACH_VARIABLE: "1",
        RUN_DIR_VARIABLE: str(run_dir.resolve()),
        SETTINGS_VARIABLE: settings.to_json(),
    }


def python_path(environ: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH with our folder first and the user's behind it."""
    inherited = environ.get("PYTHONPATH", "")
    return f"{SITE}{os.pathsep}{inherited}" if inherited else str(SITE)


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process, if it trains, is to be recorded: not one that a recorded process has started."""
    if not (environ.get(ATTACH_VARIABLE) and environ.get(RUN_DIR_VARIABLE)):
        return False
    return environ.get(OWNER_VARIABLE, str(os.getpid())) == str(os.getpid()) and collecting(environ)
