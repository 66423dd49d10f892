"""How soon a stuck training is noticed, how often the right rank is named, and how often a healthy one is called stuck.

``python -m tests.bench.stuck live`` trains and plants faults; ``healthy`` simulates hours without any; ``busy`` trains
without any, beside busy loops; ``cost`` measures a watcher.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import cycle, product
from pathlib import Path

from diag.collectors.layout import RunLayout
from diag.collectors.records import CHECKPOINT, EVALUATION, Heartbeat, Manifest, RankRecord
from diag.rundir.runs import state_of
from diag.rundir.state_words import behind_ranks
from diag.rundir.states import State, judge

# -- Real trainings with a fault ---------------------------------------------------------------------------------------

TRAININGS = ("bundled", "plain", "transformers", "lightning")
# Kinds of faults, and whether one rank is at fault.
KINDS = {
    "stopped": True, "endless loop": True, "blocked in I/O": True, "collective skipped": True,
    "deadlock of two groups": False, "store away": False, "all wait for a lock": False,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    training: str
    kind: str
    ranks: int
    culprit: int  # -1: all
    step_s: float


def cases() -> list[Case]:
    """Each kind in each training, with 2 and with 3 ranks, and once more with another culprit or length of a step."""
    made = []
    for (kind, one), training, (ranks, culprit, step_s) in product(
        KINDS.items(), TRAININGS, ((2, 1, 0.05), (3, 0, 0.3), (2, 0, 0.3))
    ):
        everybody = kind in ("store away", "all wait for a lock")
        if one or ranks == 3 or step_s == 0.05:
            made.append(Case(training, kind, ranks, -1 if everybody else culprit, step_s))
    return made


class Training:
    """Processes of one training, which record themselves as under ``diag attach``; the bundled one, as under
    ``diag run``."""

    def __init__(self, folder: Path, case: Case) -> None:
        from diag.collectors.settings import CollectorSettings, attached, python_path
        from tests.ports import free_port

        self.run, port = folder / "run", free_port()
        self.run.mkdir()
        RunLayout(self.run).manifest.write_text(json.dumps({"world_size": case.ranks}))
        os.mkfifo(folder / "pipe")
        here = str(Path(__file__).parents[2])
        variables = attached(self.run, CollectorSettings())
        if case.training == "bundled":
            variables.pop("DIAG_ATTACH")
        base = {
            **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(case.ranks),
            "LOCAL_WORLD_SIZE": str(case.ranks), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "bench", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        module = [sys.executable, "-m", "tests.bench._stuck_training"]
        self.log = (folder / "log").open("w")

        def start(*arguments: str, **more: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*module, *arguments], cwd=here, env=base | more, stdout=self.log, stderr=subprocess.STDOUT
            )

        self.store = start("store", str(folder), str(port), str(case.ranks))
        self.processes = [
            start(
                case.training, str(folder), case.kind, str(case.culprit), str(case.step_s),
                RANK=str(rank), LOCAL_RANK=str(rank), PYTHONPATH=python_path(), **variables,
            )
            for rank in range(case.ranks)
        ]  # fmt: skip

    def end(self) -> None:
        for process in (*self.processes, self.store):
            process.kill()
            process.wait()
        self.log.close()


@dataclass(frozen=True)
class Answer:
    """``after_s``: from the last step's end until it was noticed; None: not within the time. ``limit_s``: what it has
    to be at least. ``named``: by the state. ``stacks``: whether the ranks at fault have written their stacks for
    ``--stacks``. ``by_triage``: the ranks that ``diag triage R --stacks`` blames."""

    case: Case
    after_s: float | None
    named: tuple[int, ...] = ()
    text: str = ""
    stacks: bool = False
    by_triage: tuple[int, ...] = ()
    why: str = ""
    limit_s: float = 10.0  # 20 usual steps of this training, on this machine, or 10 s

    @property
    def right(self) -> bool:
        """Whether the state names the rank at fault."""
        return self.named in self._expected

    @property
    def blamed_right(self) -> bool:
        """Whether ``diag triage`` does."""
        return self.by_triage in self._expected

    @property
    def _expected(self) -> tuple[tuple[int, ...], ...]:
        """One rank of a deadlock calls the groups in turn: naming it is right, as is naming none or all."""
        case = self.case
        return ((case.culprit,),) if KINDS[case.kind] else ((), tuple(range(case.ranks)), (case.culprit,))


def run_case(case: Case) -> Answer:
    folder = Path(tempfile.mkdtemp(prefix="stuck-"))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        training = Training(folder, case)
        try:
            return _watched(case, folder, training)
        finally:
            training.end()
            shutil.rmtree(folder, ignore_errors=True)


def _watched(case: Case, folder: Path, training: Training) -> Answer:
    deadline = time.monotonic() + 600  # a busy machine takes minutes to import a framework
    while time.monotonic() < deadline:
        time.sleep(0.5)
        if not (training.run / "ranks").is_dir():
            continue
        state = state_of(training.run, with_answer=False)
        if state.stuck and list(folder.glob("fault-*")) and state.standstill is not None:
            after_s = time.time() - state.standstill.since_unix_ns / 1e9
            named = tuple(rank.rank for rank in behind_ranks(state.judged))
            limit_s = max(10.0, 20 * (state.step_ns or 0) / NS)
            return _with_stacks(Answer(case, after_s, named, state.headline, limit_s=limit_s), training.run)
        if all(process.poll() is not None for process in training.processes):
            return Answer(case, None, why=f"ended: {(folder / 'log').read_text()[-300:]}")
    return Answer(case, None, why=state.state.value)


def _with_stacks(answer: Answer, run: Path) -> Answer:
    case = answer.case
    done = subprocess.run(
        [sys.executable, "-m", "diag", "triage", str(run), "--stacks", "--json"], capture_output=True, text=True
    )
    try:
        triage = json.loads(done.stdout)
        blamed = tuple(culprit["rank"] for culprit in triage.get("culprits", []) if culprit.get("rank") is not None)
    except ValueError:
        blamed = (-1,)
    at_fault = [case.culprit] if KINDS[case.kind] else range(case.ranks)
    layout = RunLayout(run)
    stacks = all(
        any(path.exists() and "_stuck_training" in path.read_text() for path in (files.stacks, files.pyspy))
        for files in map(layout.rank, at_fault)
    )
    return replace(answer, stacks=stacks, by_triage=blamed)


def live(at_once: int, every: int, first: int, out: Path | None, kinds: tuple[str, ...]) -> None:
    """Runs the cases of these kinds whose answers are not in ``out`` yet; the table is of all that are there."""
    answers = _answers_in(out) if out is not None and out.exists() else []
    known = {answer.case for answer in answers}
    left = [case for case in cases()[first::every] if case.kind in kinds and case not in known]
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(run_case, case) for case in left]):
            answers.append(answer := done.result())
            print(answer, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(asdict(answer) | {"right": answer.right}) + "\n")
    table(answers)


def _answers_in(out: Path) -> list[Answer]:
    answers = []
    for line in out.read_text().splitlines():
        fields = json.loads(line)
        fields.pop("right")
        fields |= {"case": Case(**fields["case"]), "named": tuple(fields["named"])}
        answers.append(Answer(**fields | {"by_triage": tuple(fields["by_triage"])}))
    return answers


def table(answers: list[Answer]) -> None:
    for of, names in (("kind", (*KINDS, "all")), ("training", TRAININGS)):
        head = (
            "cases",
            "noticed",
            "within 5 s of the limit",
            "rank right",
            "by triage",
            "with stacks",
            "after the last step",
        )
        print(f"\n| {of} | {' | '.join(head)}: median, most |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for name in names:
            some = [answer for answer in answers if name in (getattr(answer.case, of), "all")]
            after = [answer.after_s for answer in some if answer.after_s is not None]
            times = f"{statistics.median(after):.1f} s, {max(after):.1f} s" if after else ""
            soon = sum(answer.after_s is not None and answer.after_s <= answer.limit_s + 5 for answer in some)
            right, blamed = sum(answer.right for answer in some), sum(answer.blamed_right for answer in some)
            stacks = sum(answer.stacks for answer in some)
            print(f"| {name} | {len(some)} | {len(after)} | {soon} | {right} | {blamed} | {stacks} | {times} |")


# -- Real trainings beside busy loops ----------------------------------------------------------------------------------


def beside_busy_loops(minutes: float, each_minutes: float) -> None:
    """Healthy trainings, one after the other, while loops without an end take the cores for half of each minute. Prints
    each look that calls one stuck."""
    looks, alarms, trained = 0, 0, Counter[str]()
    until = time.monotonic() + 60 * minutes
    turns = cycle(TRAININGS)
    while time.monotonic() < until:
        case = Case(next(turns), "none", 2, 0, random.choice((0.05, 0.3, 1.0)))
        folder = Path(tempfile.mkdtemp(prefix="healthy-"))
        training, loops = Training(folder, case), list[subprocess.Popen[bytes]]()
        ends, steps = min(until, time.monotonic() + 60 * each_minutes), 0
        try:
            while time.monotonic() < ends:
                time.sleep(1)
                if int(time.monotonic()) // 30 % 2 and not loops:
                    count = (os.cpu_count() or 1) + 1
                    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
                elif not int(time.monotonic()) // 30 % 2:
                    _end(loops)
                if not (training.run / "ranks").is_dir():
                    continue
                state = state_of(training.run, with_answer=False)
                looks, steps = looks + 1, state.last_step or steps
                if state.stuck:
                    alarms += 1
                    print(f"ALARM {case}: {state.headline}", flush=True)
                if any(process.poll() is not None for process in training.processes):
                    print(f"ended {case}: {(folder / 'log').read_text()[-2000:]}", flush=True)
                    break
        finally:
            _end(loops)
            training.end()
            shutil.rmtree(folder, ignore_errors=True)
        trained[case.training] += steps
        print(f"{case}: {steps} steps; so far {looks} looks, {alarms} alarms", flush=True)
    print(f"{minutes:.0f} minutes, {looks} looks, steps {dict(trained)}; looks with an alarm: {alarms}")


def _end(loops: list[subprocess.Popen[bytes]]) -> None:
    while loops:
        loop = loops.pop()
        loop.kill()
        loop.wait()


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
            elif self.random.random() < 0.0001:  # one rank, while the others wait for its lock, as Datasets' caches do
                what, length = "prepares data", length + self.random.uniform(1, 80)
            elif self.random.random() < 0.0001:  # held by another job, for a moment
                what, length = "waits for a lock", length + self.random.uniform(0.5, 8)
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
        first = self.layout.rank(0).steps
        first.write_text(lines)
        blocked = self.random.random() < 0.5  # in an evaluation or a save: by a loader or a disk
        for rank in range(self.ranks):
            files = self.layout.rank(rank)
            if rank and not files.steps.exists():
                os.link(first, files.steps)
            age = self.random.uniform(0, 1.2) if self.random.random() < 0.98 else self.random.uniform(1, 6)
            sent = now - min(age, after_s)
            phase, waits, moved = "backward", False, self.at
            if what == "evaluation":
                phase = EVALUATION if self.announced else "between steps"
                moved = sent - self.random.uniform(0, 2)  # batches, or collectives, go on
            elif what == "checkpoint":
                phase, waits = (CHECKPOINT, False) if rank == alone else ("between steps", True)
            call, missing, idle = "", False, 0.0
            if what in ("evaluation", "checkpoint"):
                call, idle = ("write /checkpoints/1", self.at + 1) if blocked else ("", 0.0)
            elif what in ("prepares data", "waits for a lock"):
                phase, busy = "between steps", what == "prepares data" and rank == alone
                call, missing, idle = ("", False, 0.0) if busy else ("flock /cache/lock", True, self.at + 1)
            beat = Heartbeat(
                round(sent * NS), round(sent * NS), self.step, phase, steps=self.step,
                phase_since_ns=round(self.at * NS),
                last_started={"0": self.step + waits}, last_finished={"0": self.step}, compiles=what == "compilation",
                unmoved_since_ns=round(moved * NS), call=call, missing=missing, idle_since_ns=round(idle * NS),
            )  # fmt: skip
            files.heartbeat.write_text(json.dumps(asdict(beat)))
            os.utime(files.heartbeat, ns=(round(sent * NS), round(sent * NS)))
        ranks = {rank: self.layout.rank(rank) for rank in range(self.ranks)}
        judged = judge(ranks, Manifest(world_size=self.ranks), lambda: round(self.at * NS), round(now * NS))
        if judged.state is State.STUCK:
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


# -- What a watcher costs ----------------------------------------------------------------------------------------------


def watcher_cost(ranks: int, minutes: float) -> None:
    """CPU time of the watcher of an attached training: of records that grow by two steps a second for each rank."""
    import psutil

    from tests.many_ranks import Job, write_summaries

    with tempfile.TemporaryDirectory(prefix="watched-") as at:
        began = time.monotonic()
        layout = RunLayout(Path(at) / "run")

        def summarize(steps: int) -> None:
            drafts = write_summaries(Job(ranks, steps=steps), Path(at) / str(steps))
            for rank, files in drafts.ranks().items():
                shutil.copyfile(files.summary, layout.rank(rank).summary)

        for rank in range(ranks):
            layout.rank(rank).folder.mkdir(parents=True)
            here = RankRecord(rank, rank, ranks, socket.gethostname(), os.getpid(), "", 0, time.time_ns(), "cpu")
            layout.rank(rank).identity.write_text(json.dumps(asdict(here)))
        layout.manifest.write_text(json.dumps({"world_size": ranks}))
        summarize(100)
        watcher = psutil.Popen([sys.executable, "-P", "-m", "diag.watch.attached", str(layout.root)])
        step, told, written = 0, 0.0, 100
        while (passed := time.monotonic() - began) < 60 * minutes:
            now, unix = time.monotonic_ns(), time.time_ns()
            if 2 * passed > written:  # a line of a summary has 50 steps
                written += 50
                summarize(written)
            while step < 2 * passed:
                line = {"step": step, "begin_ns": now - NS // 2, "end_ns": now, "phases": []}
                for files in layout.ranks().values():
                    with files.steps.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                step += 1
            for files in layout.ranks().values():
                beat = Heartbeat(unix, now, step, "forward", {"0": step}, {"0": step}, steps=step, phase_since_ns=now)
                files.heartbeat.write_text(json.dumps(asdict(beat)))
            if passed - told >= 60:
                told = passed
                times, memory = watcher.cpu_times(), watcher.memory_info().rss >> 20
                print(
                    f"{ranks} ranks: {times.user + times.system:.2f} s of CPU in {passed:.0f} s, {memory} MB",
                    flush=True,
                )
            time.sleep(1)
        watcher.kill()
        watcher.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("live", "healthy", "busy", "cost"))
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="of the cases, every n-th")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--out", type=Path, help="a file to which each answer is added; those in it are not run again")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of faults; all without it")
    parser.add_argument("--hours", type=float, default=1000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--each", type=float, default=5, help="minutes of one training")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "live":
        live(given.at_once, given.every, given.first, given.out, tuple(given.kind or KINDS))
    elif given.what == "busy":
        beside_busy_loops(given.minutes, given.each)
    elif given.what == "cost":
        watcher_cost(given.ranks, given.minutes)
    else:
        healthy(given.hours, given.seed)


if __name__ == "__main__":
    sys.exit(main())
