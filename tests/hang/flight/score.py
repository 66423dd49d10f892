"""How often the culprits are right, over many simulated hangs. ``python -m tests.hang.flight.score [number]`` prints a
table."""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from diag.hang.flight import clues_of, read_dumps
from tests.hang.flight import programs
from tests.hang.flight.simulator import Fault, Job, State, run, write

LAYOUTS = ("ddp", "fsdp", "tp x dp", "pp", "pp batch", "tp x dp x pp", "tp x dp x pp batch", "gloo")
KINDS = ("python", "device", "killed", "empty", "skip", "shape", "op")


@dataclass(frozen=True)
class Case:
    layout: str
    kind: str
    culprits: tuple[int, ...]
    seed: int
    state: State
    ring: int
    only_active: bool
    lost: tuple[int, ...] = ()  # ranks whose dumps were not collected, though they are no culprits


def job_of(layout: str, rng: random.Random) -> Job:
    few = [2, 4, 8]
    if layout in ("ddp", "gloo"):
        return programs.ddp(rng, rng.choice([3, 4, 8, 16, 32]), "gloo" if layout == "gloo" else "nccl")
    if layout == "fsdp":
        return programs.fsdp(rng, rng.choice([3, 4, 8, 16, 32]))
    batch = layout.endswith("batch")
    if layout == "tp x dp":
        return programs.mesh(rng, rng.choice(few), rng.choice(few), 1)
    if layout.startswith("pp"):
        return programs.mesh(rng, 1, 1, rng.choice([4, 8]), batch)
    return programs.mesh(rng, rng.choice([2, 4]), rng.choice([2, 4]), rng.choice([2, 4]), batch)


def case_of(layout: str, kind: str, seed: int) -> Case | None:
    """A hang with one or two culprits, or None where this draw does not hang."""
    rng = random.Random(f"{layout} {kind} {seed}")
    job = job_of(layout, rng)
    number = rng.choice([1, 1, 2]) if kind in ("python", "device", "killed", "empty") and len(job.programs) > 3 else 1
    culprits = tuple(sorted(rng.sample(sorted(job.programs), number)))
    at = rng.random() * 0.9
    faults = {}
    for rank in culprits:
        program = job.programs[rank]
        index = int(at * len(program))
        if kind in ("shape", "op", "skip"):
            # A collective of three members at least: of two, nobody can tell who is wrong.
            several = [
                i
                for i, call in enumerate(program)
                if i >= index and call.peer < 0 and not call.batch and len(job.groups[call.group][1]) > 2
            ]
            if not several:
                return None
            index = several[0]
        faults[rank] = Fault(kind, index)
    state = run(job, faults, rng, run_ahead=rng.choice([20, 200]))
    if not state.hangs:
        return None
    ring = rng.choice([20, 50, 200, 2000])
    only_active = rng.random() < 0.3
    others = sorted(job.programs.keys() - set(culprits))
    lost = tuple(rng.sample(others, min(len(others) // 4, rng.randrange(1, 3)))) if rng.random() < 0.2 else ()
    return Case(layout, kind, culprits, seed, state, ring, only_active, lost)


def answer(case: Case, folder: Path) -> tuple[tuple[int, ...], str]:
    """Culprits and class of the first clue."""
    rng = random.Random(case.seed)
    write(folder, case.state, rng, case.ring, case.only_active)
    for path in list(folder.iterdir()):
        if int(path.name.removesuffix(".gz").rpartition("_")[2]) in case.lost:
            path.unlink()
    found = clues_of(read_dumps([folder]), len(case.state.called))
    if not found.clues:
        return (), ""
    first = found.clues[0]
    return tuple(c.rank for c in first.culprits if c.rank is not None), first.fault_class


def score(seeds: range, show: int = 0) -> dict[tuple[str, str], Counter[str]]:
    """By layout and kind: how many are right, miss one, name others too, are wrong, or have no answer."""
    table: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for layout in LAYOUTS:
        for kind in KINDS:
            if layout == "gloo" and kind == "device":
                continue
            shown = 0
            for seed in seeds:
                case = case_of(layout, kind, seed)
                if case is None:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    said, fault_class = answer(case, Path(folder))
                verdict = judge(case.culprits, said)
                table[layout, kind][verdict] += 1
                table[layout, kind][f"class {fault_class}"] += 1
                if verdict != "right" and shown < show:
                    shown += 1
                    print(f"{layout}, {kind}, seed {seed}: truth {case.culprits}, said {said} ({fault_class})")
    return table


def judge(truth: tuple[int, ...], said: tuple[int, ...]) -> str:
    if said == truth:
        return "right"
    if not said:
        return "no answer"
    if set(said) < set(truth):
        return "misses one"
    return "names others too" if set(said) > set(truth) else "wrong"


def main() -> None:
    given = [int(text) for text in sys.argv[1:4]]
    number, first, show = (*given, *(20, 0, 0)[len(given) :])
    table = score(range(first, first + number), show)
    verdicts = ("right", "misses one", "names others too", "wrong", "no answer")
    total: Counter[str] = Counter()
    print(f"{'layout':20} {'fault':8} {'hangs':>6}  " + "  ".join(verdicts))
    for (layout, kind), counts in table.items():
        total.update({verdict: counts[verdict] for verdict in verdicts})
        line = "  ".join(f"{counts[v]:{len(v)}}" for v in verdicts)
        classes = ", ".join(f"{k[6:]} {n}" for k, n in counts.items() if k.startswith("class "))
        print(f"{layout:20} {kind:8} {sum(counts[v] for v in verdicts):6}  {line}  ({classes})")
    print(f"{'all':29} {total.total():6}  " + "  ".join(f"{total[v]:{len(v)}}" for v in verdicts))


if __name__ == "__main__":
    main()
