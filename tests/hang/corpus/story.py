"""What happened in a job, told as lines with times: the builders of the classes write it, ``writing`` makes files of it."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field

from . import nccl, torchlog
from .job import Host, Job, Rank
from .model import Blame
from .torchlog import Group, Work

_SIGNALS = {-9: "Killed", -7: "Bus error", -11: "Segmentation fault", -6: "Aborted"}


@dataclass(frozen=True)
class Event:
    t: float
    host: Host
    rank: Rank | None  # None: the launcher
    text: str


@dataclass
class Story:
    """Collects events; ``t`` is in true seconds since the start, whatever the hosts' clocks show."""

    rng: random.Random
    job: Job
    events: list[Event] = field(default_factory=list)
    extra: dict[str, bytes] = field(default_factory=dict)
    lost_ranks: set[int] = field(default_factory=set)  # whose output was not collected
    no_files: bool = False  # dumps only
    blames: tuple[Blame, ...] = ()
    accept: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    plain: bool = False  # no harm done to the lines: no wrapping, no glueing

    @property
    def world(self) -> Group:
        return Group(0, "default_pg", tuple(range(self.job.world)))

    def say(self, rank: Rank, t: float, *texts: str) -> None:
        for n, text in enumerate(texts):
            self.events.append(Event(t + n * 1e-5, rank.host, rank, text))

    def launcher(self, host: Host, t: float, *texts: str) -> None:
        for n, text in enumerate(texts):
            self.events.append(Event(t + n * 1e-5, host, None, text))

    def note(self, text: str) -> None:
        self.notes.append(text)

    # Who is to blame

    def blame_ranks(self, *ranks: Rank) -> None:
        self.blames = (Blame(ranks=frozenset(rank.rank for rank in ranks)),)

    def blame_host(self, *hosts: Host) -> None:
        also = frozenset(rank.rank for host in hosts for rank in self.job.of(host))
        self.blames = (Blame(hosts=frozenset(host.name for host in hosts), also=also),)

    def blame_nobody(self, why: str) -> None:
        self.blames = (Blame(),)
        self.note(why)

    def blame_unscored(self, why: str) -> None:
        self.blames = ()
        self.note(why)

    # Scenes that many classes share

    def start(self, *, complete: bool = True, only: tuple[Rank, ...] | None = None, via: str = "") -> None:
        """Initialisation, at the level of NCCL_DEBUG, of every rank or of some."""
        job, rng = self.job, self.rng
        first = job.ranks[0]
        if job.launcher == "torchrun" and rng.random() < 0.5:
            banner = "*" * 41
            self.launcher(
                first.host, 1.0,
                f"{banner}\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your "
                "system being overloaded, please further tune the variable for optimal performance in your application as "
                f"needed. \n{banner}",
            )  # fmt: skip
        self.say(first, 9.0, nccl.version_said(job, first))
        if job.level != "INFO":
            return
        for rank in job.ranks if only is None else only:
            t = 8 + rng.random()
            self.say(rank, t, nccl.bootstrap(job, rank), nccl.no_plugin(job, rank))
            self.say(
                rank,
                t + 0.5,
                nccl.info(job, rank, "Using network IB" if len(job.hosts) > 1 else "Using network Socket"),
            )
            if nccl.prints_start(job):
                self.say(rank, t + 1, nccl.init_line(job, rank, "START"))
            if complete:
                self.say(rank, t + 2, nccl.channel(job, rank, via if job.world > 1 else ""))
                self.say(
                    rank,
                    t + 2.2,
                    nccl.info(job, rank, "Connected all rings"),
                    nccl.info(job, rank, "Connected all trees"),
                )
                self.say(rank, t + 3, nccl.init_line(job, rank, "COMPLETE"))

    def train(self, until: float, first_step: int = 1) -> int:
        """Rank 0 reports progress; returns the step that was reached."""
        rng, rank = self.rng, self.job.ranks[0]
        step, t, loss = first_step, 15.0, rng.uniform(6, 11)
        bars = rng.random() < 0.3
        while t < until:
            loss *= rng.uniform(0.97, 1.01)
            if bars:
                text = f"\r{step * 100 // 5000:3d}%|{'█' * (step // 100):<10}| {step}/5000 [{int(t) // 60:02d}:{int(t) % 60:02d}<2:10:00,  1.48s/it, loss={loss:.3f}]"
            else:
                text = f"step {step:6d} | loss {loss:.4f} | lr 2.99e-04 | grad_norm {rng.uniform(0.2, 2):.3f} | {rng.uniform(200, 900):.1f} ms"
            text = self.job.words.text(
                "step", self.job, text, step=step, loss=loss, epoch=step / 5000, percent=min(99, step * 100 // 500150),
                shape="█" * (step * 32 // 500150), elapsed=f"{int(t) // 60:02d}:{int(t) % 60:02d}",
            )  # fmt: skip
            self.say(rank, t, text)
            step += rng.randrange(5, 40)
            t += max((until - 15) / 12, 1.0)
        return step

    def time_out(
        self, ranks: list[Rank], t: float, work: Work, group: Group | None = None, *, first: Rank | None = None
    ) -> float:
        """The watchdogs of these ranks give up on the same collective; returns when the last has done so."""
        rng, job = self.rng, self.job
        last = t
        opener = first or rng.choice(ranks)
        if job.torch < (1, 8, 0):  # no watchdog yet: nobody says anything
            return last + 1
        for rank in ranks:
            at = t if rank is opener else t + rng.uniform(0.01, 2.5)
            last = max(last, at)
            ran = job.timeout_ms + rng.randrange(1, 95)
            self.say(
                rank, at,
                *torchlog.watchdog(job, rank, at, work, group or self.world, ran_ms=ran, first=rank is opener),
            )  # fmt: skip
        return last + 1

    def agents_end(
        self, t: float, dead: dict[int, int], *, root: int | None = None, victims_at: float | None = None
    ) -> None:
        """torchrun on each host reports the ranks that died, stops the rest, and prints its root cause.

        ``dead``: exit codes of ranks that matter; all others of a host are stopped by SIGTERM. On a host without such a
        rank one victim aborts, at ``victims_at``. ``root``: whom the block calls first observed, right or wrong.
        """
        job, rng = self.job, self.rng
        if job.launcher == "ray" and job.words.real:
            self._ray_workers_end(t + 1, dead)
        if job.elastic and job.agent in ("deepspeed", "launch", "spawn"):
            self._starter_ends(t, dead, victims_at)
            return
        if job.launcher == "mpirun":
            for rank, code in list(dead.items())[:1]:
                who = job.ranks[rank]
                how = {-9: "exited on signal 9 (Killed)", -7: "exited on signal 7 (Bus error)", -11: "exited on signal 11 (Segmentation fault)", -6: "exited on signal 6 (Aborted)"}  # fmt: skip
                dashes = "-" * 74
                text = f"{dashes}\nmpirun noticed that process rank {rank} with PID {who.pid} on node {who.host.name} {how[code]}.\n{dashes}" if code in how else (
                    f"{dashes}\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first process to do so was:\n\n"
                    f"  Process name: [[{who.pid % 60000},1],{rank}]\n  Exit code:    {code}\n{dashes}"
                )  # fmt: skip
                said = {"rank": rank, "pid": who.pid, "host": who.host.name, "number": -code, "plain": abs(code),
                        "name": _SIGNALS.get(code, "Exited")}  # fmt: skip
                if job.agent == "hydra" and code < 0:
                    text = job.words.text("hydra end", job, text, **said)
                elif code < 0:
                    text = job.words.text("mpirun signal", job, text, **said)
                self.launcher(job.hosts[0], t + 1, text)
            return
        if job.launcher == "srun":
            for rank, code in dead.items():
                who = job.ranks[rank]
                how = {
                    -9: "Killed",
                    -7: "Bus error",
                    -11: "Segmentation fault (core dumped)",
                    -6: "Aborted (core dumped)",
                }
                text = f"srun: error: {who.host.name}: task {rank}: {how.get(code, f'Exited with exit code {code}')}"
                if code == -9 and job.words.real:
                    text = self._srun_killed(who, t, text)
                self.launcher(job.hosts[0], t + 1, text)
            return
        if not job.elastic:
            return
        for host in job.hosts:
            local = list(job.of(host))
            failed = [(rank, dead[rank.rank], t) for rank in local if rank.rank in dead]
            stopped = [rank for rank in local if rank.rank not in dead]
            victim_at = max(t + 3, victims_at or 0) + rng.random()
            if not failed:  # victims on another host
                failed = [(stopped[0], -6, victim_at)]
                stopped = stopped[1:]
            at = failed[0][2] + 0.5
            self.launcher(host, at, *[torchlog.agent_stops(job, host, at, rank) for rank in stopped])
            shown = list(failed)
            if root is not None:
                shown.sort(key=lambda failure: failure[0].rank != root)
                extra = [rank for rank in stopped if rank.rank == root]
                shown = [(rank, -6, t - 1) for rank in extra] + shown
            self.launcher(host, at + 1, torchlog.agent_failed(job, host, at + 1, shown[0][0], shown[0][1]))
            self.launcher(host, at + 1.2, torchlog.child_failed(job, host, shown))

    def _srun_killed(self, who: Rank, t: float, own: str) -> str:
        """Killed for its memory, as Slurm says it; or in a shell of its own, whose exit code Slurm tells."""
        job = self.job
        said = {"host": who.host.name, "rank": who.rank, "pid": who.pid, "script": job.script,
                "iso": f"{job.clock(who.host, t):%Y-%m-%dT%H:%M:%S}"}  # fmt: skip
        if job.words.rng.random() < 0.5:
            return job.words.text("srun killed", job, own, **said)
        self.say(who, t, job.words.text("shell killed", job, "", **said))
        return f"srun: error: {who.host.name}: task {who.rank}: Exited with exit code 137"

    def _ray_workers_end(self, t: float, dead: dict[int, int]) -> None:
        """Ray tells of workers that ended by a signal; a task's exception is not that."""
        job = self.job
        gone = [job.ranks[rank] for rank, code in dead.items() if code < 0]
        for number, rank in enumerate(gone[:2]):
            stamp = f"{job.clock(rank.host, t):%Y-%m-%d %H:%M:%S},509"
            text = job.words.text("ray died", job, "", address=rank.host.address, pid=rank.pid, slash_stamp=stamp)
            more = f" [repeated {len(gone) - 1}x across cluster]" if number and len(gone) > 2 else ""
            self.launcher(job.hosts[0], t + number, text + more)

    def _starter_ends(self, t: float, dead: dict[int, int], victims_at: float | None) -> None:
        """Starters that stop a host's ranks when the first of them ended with an error; most do not say which."""
        job, rng = self.job, self.rng
        for host in job.hosts:
            local = list(job.of(host))
            failed = next((rank for rank in local if rank.rank in dead), None)
            code = dead[failed.rank] if failed else -6
            at = t + 0.5 if failed else max(t + 3, victims_at or 0) + rng.random()
            clock = job.clock(host, at)
            said = {
                "comma_stamp": f"{clock:%Y-%m-%d %H:%M:%S},{clock.microsecond // 1000:03d}", "script": job.script,
                "last": local[-1].local, "code": code, "died": f"died with <Signals.{signal.Signals(-code).name}: {-code}>."
                if code < 0 else f"returned non-zero exit status {code}.",
            }  # fmt: skip
            if job.agent == "deepspeed":
                for rank in local:
                    self.launcher(host, at, job.words.text("deepspeed kill", job, "", pid=rank.pid, **said))
                self.launcher(host, at + 0.1, job.words.text("deepspeed end", job, "", **said))
            elif job.agent == "launch":
                self.launcher(host, at, job.words.text("launch end", job, "", **said))
            elif failed:
                name = signal.Signals(-code).name if code < 0 else "SIGTERM"
                said |= {"local": failed.local, "signal": name}
                self.launcher(host, at, job.words.text("spawn end", job, "", **said))

    def lose_some(self, *needed: Rank) -> None:
        """Now and then some ranks' files were not collected, but never a file that the truth rests on."""
        spare = [rank.rank for rank in self.job.ranks if rank not in needed and rank.rank]
        if self.job.layout == "rank" and len(spare) > 2 and self.rng.random() < 0.3:
            self.lost_ranks |= set(self.rng.sample(spare, self.rng.randrange(1, len(spare) // 3 + 2)))
            self.note("Some victims' files are missing, which changes nothing.")

    def lose_peers(self, t: float, gone: list[Rank], share: float = 0.6) -> None:
        """Some ranks see connections to the dead break: cascade."""
        rng, job = self.rng, self.job
        alive = [rank for rank in job.ranks if rank not in gone]
        for rank in alive:
            if rng.random() > share or not alive:
                continue
            peer = rng.choice(gone)
            at = t + rng.uniform(0.2, 3)
            address = f"{peer.host.address}<{rng.randrange(30000, 60000)}>"
            self.say(rank, at, rng.choice((nccl.recv_failed, nccl.closed))(job, rank, at, address))
            self.say(
                rank, at + 0.1, nccl.trace(job, rank, ["misc/socket.cc:58", "misc/socket.cc:775", "bootstrap.cc:79"], 6)
            )
            error = f"NCCL error: remote process exited or there was a network error, NCCL version {'.'.join(map(str, job.nccl))}"
            self.say(
                rank, at + 0.5, *torchlog.terminated_by_error(job, rank, at + 0.5, self.world, error, peer.host.address)
            )
