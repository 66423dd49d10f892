"""Real training on CPU ranks with a planted fault, through the command line: slow, so a case at a time.

How much of a fault makes a given part of the step depends on the machine: a run without any comes first for each recipe
and world, and its median step is the measure. Nothing else is known of such a run, so only strong faults are asked for
and only the class and the rank are held against the plan.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.grid.report import wilson
from tests.command import analyze_json, diag

_STEPS = 20
_SHARES = (0.25, 0.45)
_RECIPES = {
    "ddp": ("--strategy", "ddp"),
    "fsdp2": ("--strategy", "fsdp2"),
    "fsdp2-keep": ("--strategy", "fsdp2", "--reshard-after-forward", "no"),
}
_ROWS = ("H0", "D1", "D2", "N1", "N2", "S1", "S3", "S2", "K1", "C1")


@dataclass(frozen=True)
class RealRow:
    """What to plant, and which answers are right: classes, and the ranks at fault."""

    inject: str
    bottlenecks: tuple[str, ...]
    culprits: tuple[int, ...]


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
        "H0": RealRow("", ("healthy", "communication"), ()),
        # The loader works beside the training: only what it takes longer than a step is waited for.
        "D1": RealRow(f"slow-loader:ms={step_ms + more:.0f}", ("data",), ()),
        "D2": RealRow(f"slow-loader:ms={step_ms + more:.0f},rank={last}", ("data",), (last,)),
        "N1": RealRow(f"slow-wire:ms={more / collectives:.2f},mbps=0", ("communication",), ()),
        "N2": RealRow(f"slow-wire:ms={more / collectives:.2f},mbps=0,rank={last}", ("communication",), (last,)),
        "S1": RealRow(f"straggler:rank={last},ms={more:.0f}", ("compute",), (last,)),
        "S3": RealRow(f"straggler:rank={last},ms={more:.0f},phase=backward", ("compute",), (last,)),
        "S2": RealRow(f"straggler:rank=0,ms={more:.0f},rotate=yes", ("compute",), ()),
        "K1": RealRow(f"checkpoint-stall:ms={5 * more:.0f},every=5", ("compute",), ()),
        "C1": RealRow(f"gc-pause:rank={last},objects={round(more * 20_000)}", ("compute",), (last,)),
    }[case.row]


def run_real(file: Path, rows: tuple[str, ...], limit: int | None) -> None:
    """Runs what the file does not hold yet, appends it, and prints the table of the whole file."""
    done = {line["id"]: line for line in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    left = [case for case in cases(rows) if case.id not in done][:limit]
    for case in left:
        base = done.get(f"{case.recipe}-{case.world}/H0/{_SHARES[0]:.2f}", {})
        row = planted(case, base.get("step_ms", 0.0), base.get("collectives", 1.0))
        line = _run(case, row)
        done[case.id] = line
        with file.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        print(f"{case.id:<28}{'right' if line['right'] else 'WRONG'}  {line['headline']}", flush=True)
    for name in _ROWS:
        own = [line for line in done.values() if line["id"].split("/")[1] == name]
        if own:
            right = sum(line["right"] for line in own)
            low, high = wilson(right, len(own))
            print(f"{name:<6}{right} of {len(own)} ({low:.2f} to {high:.2f})")
    print(json.dumps({"cases": len(done), "right": sum(line["right"] for line in done.values())}))


def _run(case: RealCase, row: RealRow) -> dict[str, Any]:
    inject = ("--inject", row.inject) if row.inject else ()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        ended = diag(
            "run", *_RECIPES[case.recipe], "--nproc", str(case.world), "--steps", str(_STEPS), *inject, "--out", folder
        )
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
        "right": said in row.bottlenecks and culprits == row.culprits,
        "step_ms": median(step["dur_ns"] for step in result["steps"] if step["usable"]) / 1e6,
        "collectives": sum(len(json.loads(line).get("rows", ())) for line in lines) / _STEPS,
    }
