"""The history of a tuning, stored in ``tune.json``: every run and every change, predicted and measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import SCHEMA_VERSION, is_regular
from diag.collectors.masking import masked_arguments
from diag.collectors.policy import RECORDED_FILES
from diag.errors import DiagError
from diag.rundir.lines import must_be_known, read_record

FILE_NAME = "tune.json"


class Interval(NamedTuple):
    """Nanoseconds per step: 95 % of the probability lies between ``low`` and ``high``."""

    low: int
    likely: int
    high: int


class Outcome(StrEnum):
    KEPT = "kept"
    REVERTED = "reverted"  # measured, and not a significant gain
    FAILED = "failed"  # did not run to its end, or did not fit


@dataclass(frozen=True)
class Run:
    """One training. ``folder``: name of the run directory in the tuning's folder. ``step_ns``: mean of the counted
    steps; ``reserved_bytes``: peak of the device's allocator, None without a device."""

    folder: str
    settings: dict[str, str | int]
    step_ns: int
    steps: int
    reserved_bytes: int | None = None


@dataclass(frozen=True)
class Round:
    """One change that was tried. ``settings``: the options that it sets. ``predicted_gain_ns``: before it was applied.
    ``gain_share``: the measured gain as a fraction of the step without the change. ``memory_delta_bytes``: measured on
    the device. ``reason``: the reason for the outcome, a sentence."""

    number: int
    verdict: str
    advice: str
    change: str
    settings: dict[str, str | int]
    predicted_gain_ns: Interval
    predicted_memory_delta_bytes: int | None
    outcome: Outcome
    reason: str
    baseline_ns: int
    gain_ns: Interval | None = None
    memory_delta_bytes: int | None = None
    loss_difference: float | None = None
    without: tuple[Run, ...] = ()
    with_it: tuple[Run, ...] = ()

    @property
    def gain_share(self) -> float | None:
        return self.gain_ns.likely / self.baseline_ns if self.gain_ns is not None and self.baseline_ns else None

    @property
    def prediction_error(self) -> float | None:
        """The difference between predicted and measured likely gain, as a fraction of the step."""
        if self.gain_ns is None or not self.baseline_ns:
            return None
        return abs(self.predicted_gain_ns.likely - self.gain_ns.likely) / self.baseline_ns


@dataclass(frozen=True)
class History:
    """A tuning. ``arguments``: those of ``diag run`` before tuning; in the file secrets are masked. ``settings``: the
    kept changes. ``command``: the command that trains with these, secrets masked. ``stopped``: why no further change
    was tried; "" while tuning."""

    arguments: tuple[str, ...]
    rounds: tuple[Round, ...] = ()
    settings: dict[str, str | int] = field(default_factory=dict)
    command: str = ""
    stopped: str = ""
    remaining: tuple[str, ...] = ()  # further advice of the last diagnosis without an option of ``diag run``
    schema_version: int = SCHEMA_VERSION

    @property
    def kept(self) -> tuple[Round, ...]:
        return tuple(r for r in self.rounds if r.outcome == Outcome.KEPT)

    @property
    def step_ns_now(self) -> int | None:
        """The step with all kept changes, as measured in the last kept round; None if no change was kept."""
        last = self.kept[-1] if self.kept else None
        return last.baseline_ns - last.gain_ns.likely if last is not None and last.gain_ns is not None else None


def save(history: History, folder: Path) -> None:
    """Replaces the file atomically: readers see all of a round or nothing of it. Raises OSError."""
    replace_file(folder / FILE_NAME, encode(_plain(history)), private=True)


def is_tuned(folder: Path) -> bool:
    """Whether this folder holds a tuning."""
    return is_regular(folder / FILE_NAME)


def load(folder: Path) -> History | None:
    """The tuning in this folder; None if there is none; DiagError if the file is invalid."""
    path = folder / FILE_NAME
    history, gap = read_record(path, History, folder, RECORDED_FILES.answer_bytes)
    if gap is not None:
        raise DiagError(gap.reason.removesuffix("; left out"), path=path)
    if history is not None:
        must_be_known(history.schema_version, path, known=SCHEMA_VERSION)
    return history


def _plain(history: History) -> dict[str, Any]:
    content = asdict(history)
    content["arguments"] = masked_arguments(history.arguments)
    for plain, original in zip(content["rounds"], history.rounds, strict=True):
        plain["gain_share"] = original.gain_share
        plain["prediction_error"] = original.prediction_error
    return content
