"""The quantities that can have a budget, and the syntax of limits: `20%`, `350ms`, `70GB`.

The command line needs these definitions for its help, so they import only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from math import isinf
from pathlib import Path

from diag.collectors.reading import read_given
from diag.errors import DiagError, ExitCode
from diag.toml import NotTomlError, toml_values
from diag.words.formatting import duration, number, size, spaced


class LimitUnit(StrEnum):
    """The unit of a limit; the values are its names in the help."""

    SHARE = "SHARE"
    DURATION = "TIME"
    SIZE = "BYTES"
    RATE = "RATE"


@dataclass(frozen=True)
class Quantity:
    """A quantity. ``name``: its option, and its key in the file. ``what``: what is measured, in the words of the
    reports. ``cost``: the member of ``diag.diagnoses.costs.Cost`` whose share it is, "" if it is none."""

    name: str
    unit: LimitUnit
    what: str
    cost: str = ""

    @property
    def is_floor(self) -> bool:
        """Whether the budget is a minimum, not a maximum."""
        return self.name.startswith("min-")

    @property
    def help(self) -> str:
        return f"At {'least' if self.is_floor else 'most'}: {self.what}. F{EXAMPLE[self.unit][1:]}."


EXAMPLE = {
    LimitUnit.SHARE: "for example 5%",
    LimitUnit.DURATION: "for example 350ms or 1.2s",
    LimitUnit.SIZE: "for example 70GB (1e9 bytes) or 64GiB",
    LimitUnit.RATE: "for example 12000",
}

EXPOSED_COMM = Quantity(
    "max-exposed-comm", LimitUnit.SHARE, "exposed communication as a share of the critical path", "COMM"
)
DATA_WAIT = Quantity("max-data-wait", LimitUnit.SHARE, "data wait as a share of the critical path", "DATA")
EXPOSED_COPIES = Quantity(
    "max-exposed-copies", LimitUnit.SHARE, "exposed host-device copies as a share of the critical path", "COPY"
)
CHECKPOINTS = Quantity(
    "max-checkpoint", LimitUnit.SHARE, "stalls for checkpoints as a share of the critical path", "CHECKPOINT"
)
HOST_WAIT = Quantity(
    "max-host-wait",
    LimitUnit.SHARE,
    "host wait, a device's idle time before its host launches work, as a share of the critical path",
    "HOST",
)
STRAGGLER = Quantity(
    "max-straggler", LimitUnit.SHARE, "waiting for ranks that compute longer than the others", "STRAGGLER"
)
STEP = Quantity("max-step", LimitUnit.DURATION, "the mean step")
MFU = Quantity("min-mfu", LimitUnit.SHARE, "model FLOPs utilisation")
TOKENS = Quantity("min-tokens-per-second", LimitUnit.RATE, "tokens per second of all ranks, within steps")
PEAK_MEMORY = Quantity(
    "max-peak-memory",
    LimitUnit.SIZE,
    "the peak of any rank: reserved on its device, on a CPU the process's resident memory",
)
REGRESSION = Quantity("max-regression", LimitUnit.SHARE, "how much longer the mean step is than the baseline's")

QUANTITIES = (
    EXPOSED_COMM, DATA_WAIT, EXPOSED_COPIES, CHECKPOINTS, HOST_WAIT, STRAGGLER, STEP, MFU, TOKENS, PEAK_MEMORY,
    REGRESSION,
)  # fmt: skip
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


@dataclass(frozen=True)
class Budget:
    """``limit``: a fraction of 1, nanoseconds, bytes, or a rate per second; ``written``: the limit as the user wrote
    it."""

    quantity: Quantity
    limit: float
    written: str

    @property
    def text(self) -> str:
        """``at most 20%``"""
        return f"{'at least' if self.quantity.is_floor else 'at most'} {self.written}"


_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-zµ%]*)\s*")
_FACTORS: dict[LimitUnit, dict[str, float]] = {
    LimitUnit.SHARE: {"%": 0.01},
    LimitUnit.DURATION: {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9},
    LimitUnit.SIZE: {
        **{f"{prefix}B": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
        **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
    },
    LimitUnit.RATE: {"": 1, "k": 1e3, "M": 1e6},
}


def parse_limit(quantity: Quantity, written: object, path: str | None = None, line: int | None = None) -> Budget:
    """The budget written in a file (``path``, ``line``) or on the command line. DiagError for an invalid limit: a bare
    5 could be five per cent or five hundred, so units are required."""
    match = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
    if isinstance(written, int | float) and not isinstance(written, bool) and quantity.unit is LimitUnit.RATE:
        match = _WRITTEN.fullmatch(str(written))
    factor = _FACTORS[quantity.unit].get(match[2]) if match else None
    if match is None or factor is None or isinf(float(match[1]) * factor):
        where = f"line {line}: " if line is not None else ""
        raise DiagError(
            f"{where}{quantity.name} = {written!r} is not a limit",
            hint=f"a number and its unit, {EXAMPLE[quantity.unit]}",
            path=path,
            exit_code=ExitCode.USAGE,
        )
    return Budget(quantity, float(match[1]) * factor, match[0].strip())


def shown(value: float, unit: LimitUnit) -> str:
    """A measured value as text."""
    if unit is LimitUnit.SHARE:
        return f"{value:.1%}"
    if unit is LimitUnit.DURATION:
        return spaced(duration(value))
    if unit is LimitUnit.SIZE:
        return spaced(size(value))
    return f"{number(value)}/s"


# -- a file of budgets: TOML, with the options of ``diag check`` as its keys -------------------------------------------

_MOST_BYTES = 1 << 20
BASELINE = "baseline"
_EXPECTED = 'one budget a line, for example max-exposed-comm = "20%"'


@dataclass(frozen=True)
class BudgetFile:
    """``baseline``: the run to compare with; None if the file names none."""

    budgets: tuple[Budget, ...]
    baseline: Path | None


def read_budgets(path: Path) -> BudgetFile:
    """The file's budgets. DiagError with the line that is invalid; an unknown key is an error, since its budget would
    never be checked."""
    try:
        text = read_given(path, _MOST_BYTES).decode("utf-8")
        values = toml_values(text)
    except OSError as error:
        raise DiagError(f"cannot be read: {error.strerror or error}", path=path, hint=_EXPECTED) from error
    except (NotTomlError, UnicodeDecodeError) as error:
        raise DiagError(f"not TOML: {error}", path=path, hint=_EXPECTED, exit_code=ExitCode.USAGE) from error
    budgets, baseline = [], None
    for key, value in values.items():
        line = _line(text, key)
        if key == BASELINE:
            if not isinstance(value, str) or not value:
                raise _refusal(path, line, f"{key} = {value!r} is not a run", 'give a path, baseline = "runs/before"')
            baseline = path.parent / value
        elif key in BY_NAME:
            budgets.append(parse_limit(BY_NAME[key], value, str(path), line))
        else:
            near = get_close_matches(key.replace("_", "-"), [*BY_NAME, BASELINE], n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(BY_NAME)}, {BASELINE}"
            raise _refusal(path, line, f"{key} is not a budget", hint)
    return BudgetFile(tuple(budgets), baseline)


def _refusal(path: Path, line: int, message: str, hint: str) -> DiagError:
    return DiagError(f"line {line}: {message}", path=path, hint=hint, exit_code=ExitCode.USAGE)


def _line(text: str, key: str) -> int:
    """The line, from 1, of a top-level key or of a table with this name."""
    pattern = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}(?![\w-])")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)
