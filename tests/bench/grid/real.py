"""Real training on CPU ranks with a planted fault, through the command line: slow, so a case at a time.

How much of a fault makes a given part of the step depends on the machine: a run without any comes first for each recipe
and world, and its median step is the measure. A real run without a fault is not free of costs: gloo's transfers take a
part of it, more where ranks share cores. What the planted fault has to beat is what that first run showed: where it
costs more by `_CLEARLY`, its class is the only right answer; within that, "mixed" and the other class are right, too;
where it costs less, only they are. In each case it has to be among the findings, with its rank.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.grid.report import wilson
from tests.command import analyze_json, diag_process

_STEPS = 20
_SHARES = (0.25, 0.45)
_CLEARLY = 0.08  # of the step: what two classes are apart from "mixed" by, and what equal runs differ by here
# Computes for a tenth of a second a step, so that a transfer of some milliseconds is no bottleneck by itself.
_TRAINING = ("--batch-size", "64")
_RECIPES = {
    "ddp": ("--strategy", "ddp"),
    "fsdp2": ("--strategy", "fsdp2"),
    "fsdp2-keep": ("--strategy", "fsdp2", "--reshard-after-forward", "no"),
}
_PAGE = """The bundled trainer (DDP, FSDP2, FSDP2 with parameters kept after forward) on 2 and 4 CPU ranks with gloo, on
two cores, through the command line, 20 steps each; the fault takes 25 or 45 % of the step. By
`python -m tests.bench.grid --real FILE --markdown PAGE`. A real run is not free of costs without a fault: gloo's
transfers take a part of it, the more where four ranks share two cores. What the fault has to beat is what the run
without one showed; where both are about as large, "mixed" and the other class are right, too. The runs of N2 were made
again after the first pass, in which no link was named where four ranks share two cores, and the rule was mended."""
_PLANTED = {
    "H0": "nothing",
    "D1": "slow loader on all ranks",
    "D2": "slow loader on one",
    "N1": "slow network",
    "N2": "slow link of one rank",
    "S1": "straggler in forward",
    "S3": "straggler in backward",
    "S2": "stragglers in turn",
    "K1": "checkpoints",
    "C1": "garbage collection on one rank",
}
_ANY_COMMUNICATION = ("communication-not-overlapped", "exposed-communication", "slow-network")
_ROWS = ("H0", "D1", "D2", "N1", "N2", "S1", "S3", "S2", "K1", "C1")


@dataclass(frozen=True)
class RealRow:
    """What to plant, its class, the ranks at fault, and the findings that name it."""

    inject: str
    bottleneck: str
    culprits: tuple[int, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class RealCase:
    recipe: str
    world: int
    row: str
    share: float

    @property
    def id(self) -> str:
        return f"{self.recipe}-{self.world}/{self.row}/{self.share:.2f}"


def cases(rows: tuple[str, ...]) -> Iterator[RealCase]:
    for share in _SHARES:
        for world in (2, 4):
            for recipe in _RECIPES:
                for row in _ROWS:
                    if (not rows or row in rows or row == "H0") and not (row == "H0" and share != _SHARES[0]):
                        yield RealCase(recipe, world, row, share)


def planted(case: RealCase, step_ms: float, collectives: float) -> RealRow:
    """The fault of a case, where a healthy step takes so long and has so many collectives."""
    more = step_ms * case.share / (1 - case.share)
    last = case.world - 1
    return {
        "H0": RealRow("", "healthy", (), ()),
        # The loader works beside the training: only what it takes longer than a step is waited for.
        "D1": RealRow(f"slow-loader:ms={step_ms + more:.0f}", "data", (), ("slow-data-all-ranks",)),
        "D2": RealRow(f"slow-loader:ms={step_ms + more:.0f},rank={last}", "data", (last,), ("slow-data-one-rank",)),
        "N1": RealRow(f"slow-wire:ms={more / collectives:.2f},mbps=0", "communication", (), _ANY_COMMUNICATION),
        "N2": RealRow(
            f"slow-wire:ms={more / collectives:.2f},mbps=0,rank={last}", "communication", (last,), ("slow-link",)
        ),
        "S1": RealRow(f"straggler:rank={last},ms={more:.0f}", "compute", (last,), ("compute-straggler",)),
        "S3": RealRow(
            f"straggler:rank={last},ms={more:.0f},phase=backward", "compute", (last,), ("compute-straggler",)
        ),
        "S2": RealRow(f"straggler:rank=0,ms={more:.0f},rotate=yes", "compute", (), ("compute-imbalance",)),
        "K1": RealRow(f"checkpoint-stall:ms={5 * more:.0f},every=5", "compute", (), ("checkpoint-stall",)),
        "C1": RealRow(f"gc-pause:rank={last},objects={round(more * 20_000)}", "compute", (last,), ("gc-pause",)),
    }[case.row]


def run_real(file: Path, rows: tuple[str, ...], limit: int | None, page: Path | None = None) -> None:
    """Runs what the file does not hold yet, appends it, and prints the table of the whole file; into ``page``, too."""
    done = {line["id"]: line for line in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    left = [case for case in cases(rows) if case.id not in done][:limit]
    for case in left:
        base = done.get(f"{case.recipe}-{case.world}/H0/{_SHARES[0]:.2f}", {})
        row = planted(case, base.get("step_ms", 0.0), base.get("collectives", 1.0))
        line = _run(case, row, _right_answers(case, row, base.get("shares", {})))
        done[case.id] = line
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        print(f"{case.id:<28}{_told(line)}  {line['headline']}", flush=True)
    text = document(list(done.values()))
    print(text)
    if page is not None:
        page.write_text(text)


def document(lines: Sequence[dict[str, Any]]) -> str:
    """How many answers were right, by what was planted and by the number of ranks, and every one that was not."""
    rows = [f"| {name} | {_PLANTED[name]} |{_cells(lines, name, 2)}{_cells(lines, name, 4)}" for name in _ROWS]
    wrong = [line for line in lines if not (line["right"] and line["found"])]
    listed = [f"- `{line['id']}` ({line['planted']['inject']}): {line['headline']}" for line in wrong]
    right, found = (sum(line[key] for line in lines) for key in ("right", "found"))
    low, high = wilson(right, len(lines))
    return "\n".join(
        [
            "# Real trainings with a planted fault",
            "",
            *_PAGE.splitlines(),
            "",
            f"{len(lines)} trainings: first answer right in {right} ({low:.1%} to {high:.1%}), the fault among the "
            f"findings, with its rank, in {found}.",
            "",
            "| row | planted | 2 ranks: right | found | 4 ranks: right | found |",
            "|---|---|---:|---:|---:|---:|",
            *rows,
            "",
            "## Not right, or not found",
            "",
            *(listed or ["Nothing."]),
            "",
        ]
    )


def _cells(lines: Sequence[dict[str, Any]], row: str, world: int) -> str:
    own = [line for line in lines if line["id"].split("/")[1] == row and f"-{world}/" in line["id"]]
    return f" {sum(line['right'] for line in own)} of {len(own)} | {sum(line['found'] for line in own)} |"


def _told(line: dict[str, Any]) -> str:
    return ("right" if line["right"] else "WRONG") + ("" if line["found"] else ", not found")


def _right_answers(case: RealCase, row: RealRow, base: dict[str, float]) -> dict[str, tuple[int, ...] | None]:
    """The classes that are right, each with the ranks at fault; None where any may be. ``base``: share of each class in
    the run without a fault, of which the planted one leaves ``1 - share``."""
    if not row.inject:
        crowded = {"compute": ()} if case.world > (os.cpu_count() or 1) else {}  # ranks that wait for a core
        return {"healthy": (), "communication": (), **crowded}
    beside = {name: value * (1 - case.share) for name, value in base.items()}
    # What a class costs without the fault comes on top of it, or is hidden by it.
    least, most = case.share, case.share + beside.pop(row.bottleneck, 0.0)
    other = max(beside, key=lambda name: beside[name], default="")
    right: dict[str, tuple[int, ...] | None] = {}
    if most + _CLEARLY >= beside.get(other, 0.0):
        right[row.bottleneck] = row.culprits
    if other and beside[other] >= least - _CLEARLY:
        right |= {"mixed": None, other: None}
    return right


def _run(case: RealCase, row: RealRow, right: dict[str, tuple[int, ...] | None]) -> dict[str, Any]:
    inject = ("--inject", row.inject) if row.inject else ()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        ended = diag_process(
            "run", *_RECIPES[case.recipe], *_TRAINING, "--nproc", str(case.world), "--steps", str(_STEPS), *inject,
            "--out", folder,
        )  # fmt: skip
        if ended.returncode:
            raise RuntimeError(f"{case.id}: the training ended with {ended.returncode}: {ended.stderr[-2000:]}")
        result = analyze_json(folder)
        lines = (folder / "ranks" / "00000" / "collectives.jsonl").read_text().splitlines()
    verdict = result["verdict"]
    said = "healthy" if verdict["severity"] == "healthy" else verdict["bottleneck"]
    culprits = tuple(verdict["culprit"]["ranks"]) if verdict["culprit"] else ()
    return {
        "id": case.id,
        "planted": asdict(row),
        "said": said,
        "cause": verdict["cause"],
        "culprits": culprits,
        "confidence": verdict["confidence"],
        "headline": verdict["headline"],
        "right": said in right and right[said] in (None, culprits),
        "found": not row.inject or any(_names(finding, row) for finding in result["findings"]),
        "shares": _shares(result),
        "step_ms": median(step["dur_ns"] for step in result["steps"] if step["usable"]) / 1e6,
        "collectives": sum(len(json.loads(line).get("rows", ())) for line in lines) / _STEPS,
    }


def _names(finding: dict[str, Any], row: RealRow) -> bool:
    return finding["id"] in row.findings and tuple(finding["ranks"]) == row.culprits


def _shares(result: dict[str, Any]) -> dict[str, float]:
    """Part of the step that each class costs, by the findings."""
    found: dict[str, float] = defaultdict(float)
    for finding in result["findings"]:
        if finding["bottleneck"] is not None:
            found[finding["bottleneck"]] += finding["share"]
    return dict(found)
