"""The cases: folders of logs and dumps whose failure is known."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hang.capture import CAPTURED
from tests.hang.flight.score import KINDS, LAYOUTS, case_of
from tests.hang.flight.simulator import write
from tests.hang.real import Case, cases_of, write_logs
from tests.hang.real.first_runs import is_blind

# What a simulated hang may be called: a rank that leaves out a collective makes the next ones mismatch.
_SIMULATED = {
    "skip": ("desync", "missing_rank", "mismatch_op", "mismatch_shape"),
    "shape": ("mismatch_shape",),
    "op": ("mismatch_op",),
}
_STOPPED = ("missing_rank", "desync")  # a rank that stands still, or whose process is gone


@dataclass(frozen=True)
class BenchCase:
    case: Case  # the truth
    fill: Callable[[Path], None]  # writes what a tool gets into an empty folder


def real() -> Iterator[BenchCase]:
    """Logs of failures that people posted, of the sets that the published table is about."""
    for case in cases_of():
        if not case.file.startswith("seen"):
            yield BenchCase(case, lambda folder, case=case: write_logs(case, folder))  # type: ignore[misc]


def captured() -> Iterator[BenchCase]:
    """The dumps that ranks of the bundled trainer left (gloo, on a CPU) when a fault that was planted stopped them."""
    for path in sorted(CAPTURED.glob("*/dumps")):
        truth = json.loads((path.parent / "truth.json").read_text())
        culprits = tuple({"rank": rank} for rank in truth["culprits"])
        case = _case(truth["name"], (truth["fault_class"], *truth["accept"]), culprits, "planted")
        yield BenchCase(case, lambda folder, path=path: _copied(path, folder))  # type: ignore[misc]


def simulated(seeds: Sequence[int] = range(3)) -> Iterator[BenchCase]:
    """Flight Recorder dumps as torch writes them for NCCL, of simulated jobs with one or two faulty ranks."""
    for layout in LAYOUTS[:-1]:  # the last one is gloo
        for kind in KINDS:
            for seed in seeds:
                made = case_of(layout, kind, seed)
                if made is None:
                    continue
                name = f"{layout}, {kind}, {seed}".replace(" ", "-").replace(",", "")
                case = _case(
                    name, _SIMULATED.get(kind, _STOPPED), tuple({"rank": rank} for rank in made.culprits), "planted"
                )
                yield BenchCase(
                    case,
                    lambda folder, made=made: write(folder, made.state, _TorchAlone(made.seed)),  # type: ignore[misc]
                )


def blind() -> Iterator[BenchCase]:
    """Those of ``real`` whose authors gave the truth before diag had seen the text."""
    return (found for found in real() if is_blind(found.case))


SETS: dict[str, Callable[[], Iterator[BenchCase]]] = {
    "real": real,
    "blind": blind,
    "captured": captured,
    "simulated": simulated,
}


class _TorchAlone(random.Random):
    """Chooses torch's own pickle among the formats: neither JSON nor gzip, which not every tool reads."""

    def choice(self, seq: Any) -> Any:
        return "torch" if "torch" in seq else super().choice(seq)


def _case(name: str, classes: tuple[str, ...], culprits: tuple[dict[str, Any], ...], decided_by: str) -> Case:
    return Case(name, "", classes[0], classes[1:], culprits, (), (), decided_by, (), "")


def _copied(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True)
