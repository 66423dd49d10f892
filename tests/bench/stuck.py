"""How soon a stuck training is noticed, how often the right rank is named, and how often a healthy one is called stuck.

``python -m tests.bench.stuck live`` trains and plants faults; ``healthy`` simulates hours without any.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.collectors.records import CHECKPOINT, EVALUATION, Heartbeat, Manifest
from diag.rundir.runs import state_of
from diag.rundir.state_words import behind_ranks
from diag.rundir.states import State, judge

# -- Real trainings with a fault ---------------------------------------------------------------------------------------

FAULT_STEP = 25
KINDS = ("stopped", "endless loop", "blocked in a read", "waits for a lock", "sleeps in the loader", "keeps the GIL")


@dataclass(frozen=True)
class Case:
    kind: str
    ranks: int
    culprit: int
    step_s: float


def cases() -> list[Case]:
    who = [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    return [Case(kind, *of, step_s) for kind, of, step_s in product(KINDS, who, (0.05, 0.3))]


def _train(case: Case, rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    from diag.collectors import record

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.ranks), TORCH_FR_BUFFER_SIZE="2000")
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), case.ranks), rank=rank,
                            world_size=case.ranks)  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loader() -> Iterator[torch.Tensor]:
        for step in range(100_000):
            if step == FAULT_STEP and rank == case.culprit and case.kind == "sleeps in the loader":
                (folder / "fault").write_text(str(time.time()))
                time.sleep(600)
            yield torch.randn(8, 32)

    with record(str(folder / "run")) as recording:
        for step, batch in enumerate(recording.steps(loader())):
            if step == FAULT_STEP and rank == case.culprit:
                (folder / "fault").write_text(str(time.time()))
                _fail(case.kind, folder)
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(case.step_s)


def _fail(kind: str, folder: Path) -> None:
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "endless loop":
        while True:
            pass
    elif kind == "blocked in a read":
        os.read(os.pipe()[0], 1)
    elif kind == "waits for a lock":
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    elif kind == "keeps the GIL":
        ctypes.PyDLL(None).sleep(600)


@dataclass(frozen=True)
class Answer:
    case: Case
    after_s: float | None  # since the fault; None: not within the time
    named: tuple[int, ...] = ()

    @property
    def right(self) -> bool:
        return self.named == (self.case.culprit,)


def run_case(case: Case) -> Answer:
    folder = Path(tempfile.mkdtemp(prefix="stuck-"))
    context = get_context("fork")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ranks = [context.Process(target=_train, args=(case, rank, folder), daemon=True) for rank in range(case.ranks)]
        for process in ranks:
            process.start()
        try:
            return _watched(case, folder)
        finally:
            for process in ranks:
                process.kill()
                process.join()
            shutil.rmtree(folder, ignore_errors=True)


def _watched(case: Case, folder: Path) -> Answer:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if not (folder / "run" / "ranks").is_dir():
            continue
        state = state_of(folder / "run", with_answer=False)
        if state.stuck and (folder / "fault").exists():
            after_s = time.time() - float((folder / "fault").read_text())
            return Answer(case, after_s, tuple(rank.rank for rank in behind_ranks(state.judged)))
    return Answer(case, None)


def live(at_once: int, every: int) -> None:
    import torch.distributed  # noqa: F401  # once, before the ranks are forked

    answers = []
    with ThreadPoolExecutor(at_once) as pool:
        for answer in pool.map(run_case, cases()[::every]):
            answers.append(answer)
            print(answer, flush=True)
    print("| fault | cases | noticed | rank right | after the fault, median and most |\n|---|--:|--:|--:|--:|")
    for kind in (*KINDS, "all"):
        of_kind = [answer for answer in answers if kind in (answer.case.kind, "all")]
        after = [answer.after_s for answer in of_kind if answer.after_s is not None]
        times = f"{statistics.median(after):.1f} s, {max(after):.1f} s" if after else ""
        right = sum(answer.right for answer in of_kind)
        print(f"| {kind} | {len(of_kind)} | {len(after)} | {right} | {times} |")


# -- Simulated healthy hours -------------------------------------------------------------------------------------------

NS = 10**9
KEPT = 40  # newest steps in a simulated file, besides those with pauses


class Healthy:
    """One training: steps of some length, with pauses. ``at``: its clock in seconds."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.layout = RunLayout(folder)
        self.ranks = self.random.choice((1, 2, 4, 8))
        self.step_s = self.random.choice((0.05, 0.2, 1.0, 3.0, 10.0))
        self.evaluates_s = self.random.uniform(5, 300)
        self.saves_s = self.random.uniform(2, 120)
        self.compiles_s = self.random.uniform(0, 300)
        self.announced = self.random.random() < 0.7  # whether its evaluations are recognized
        self.at, self.step = 1_000.0, 0
        self.long: list[tuple[int, float, float]] = []
        self.newest: list[tuple[int, float, float]] = []
        self.alarms: Counter[str] = Counter()
        self.looks = 0
        for rank in range(self.ranks):
            self.layout.rank(rank).folder.mkdir(parents=True)

    def hours(self, hours: float) -> None:
        until = self.at + 3600 * hours
        every_evaluation, every_save = (max(20, round(s / self.step_s)) for s in (900, 1800))
        slow_until = 0.0
        while self.at < until:
            if self.random.random() < 0.0005:  # another job on the host
                slow_until = self.at + self.random.uniform(10, 300)
            length = self.step_s * self.random.uniform(0.9, 1.2)
            if self.at < slow_until:
                length *= self.random.uniform(1.5, 6)
            what = "step"
            if self.step == 0 or self.random.random() < 0.00002:
                what, length = "compilation", length + self.compiles_s * self.random.uniform(0.8, 1.2)
            elif self.step % every_evaluation == 0:
                what, length = "evaluation", length + self.evaluates_s * self.random.uniform(0.8, 1.2)
            elif self.step % every_save == 0:
                what, length = "checkpoint", length + self.saves_s * self.random.uniform(0.8, 1.2)
            elif self.random.random() < 0.001:
                what, length = "garbage collection", length + self.random.uniform(0.1, 2)
            if length > 8:
                for part in (0.5, 0.999):
                    self.look(what, length * part)
            elif self.random.random() < 0.003:
                self.look(what, length * self.random.random())
            self._ended(length)

    def _ended(self, length: float) -> None:
        row = (self.step, self.at, self.at + length)
        if length > 3 * self.step_s:
            self.long.append(row)
        self.newest = [*self.newest[-KEPT:], row]
        self.at, self.step = self.at + length, self.step + 1

    def look(self, what: str, after_s: float) -> None:
        """Judges the run after this time in a step."""
        self.looks += 1
        now = self.at + after_s
        rows = sorted({*self.long[-60:], *self.newest})
        lines = "".join(
            json.dumps({"step": step, "begin_ns": round(a * NS), "end_ns": round(b * NS), "phases": []}) + "\n"
            for step, a, b in rows
        )
        alone = self.random.randrange(self.ranks)  # a checkpoint is saved by one rank, for which the others wait
        for rank in range(self.ranks):
            files = self.layout.rank(rank)
            files.steps.write_text(lines)
            age = self.random.uniform(0, 1.2) if self.random.random() < 0.98 else self.random.uniform(1, 6)
            sent = now - min(age, after_s)
            phase, waits, moved = "backward", False, self.at
            if what == "evaluation":
                phase = EVALUATION if self.announced else "between steps"
                moved = sent - self.random.uniform(0, 2)  # batches, or collectives, go on
            elif what == "checkpoint":
                phase, waits = (CHECKPOINT, False) if rank == alone else ("between steps", True)
            beat = Heartbeat(
                round(sent * NS), round(sent * NS), self.step, phase, steps=self.step,
                phase_since_ns=round(self.at * NS),
                last_started={"0": self.step + waits}, last_finished={"0": self.step}, compiles=what == "compilation",
                unmoved_since_ns=round(moved * NS),
            )  # fmt: skip
            files.heartbeat.write_text(json.dumps(asdict(beat)))
            os.utime(files.heartbeat, ns=(round(sent * NS), round(sent * NS)))
        ranks = {rank: self.layout.rank(rank) for rank in range(self.ranks)}
        if judge(ranks, Manifest(world_size=self.ranks), round(self.at * NS), round(now * NS)).state is State.STUCK:
            self.alarms[what] += 1


def healthy(hours: float, seed: int) -> None:
    alarms: Counter[str] = Counter()
    looks, trainings, each = 0, 0, 4.0
    while trainings * each < hours:
        with tempfile.TemporaryDirectory(
            prefix="healthy-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        ) as at:
            training = Healthy(Path(at), seed + trainings)
            training.hours(each)
            alarms += training.alarms
            looks += training.looks
            trainings += 1
    print(f"{trainings} trainings, {trainings * each:.0f} hours, {looks} looks; alarms: {dict(alarms) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("live", "healthy"))
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--every", type=int, default=1, help="of the 60 cases, every n-th")
    parser.add_argument("--hours", type=float, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    live(given.at_once, given.every) if given.what == "live" else healthy(given.hours, given.seed)


if __name__ == "__main__":
    sys.exit(main())
