"""Lines of PyTorch and of its launcher, in the grammar of the job's version: the watchdog, tracebacks, the elastic agent."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import signal
from dataclasses import dataclass

from .job import Host, Job, Rank

_LINES = {  # file:line of what the watchdog prints, by torch version; caught, detected, timeout, failed, down, terminated
    (1, 12): (737, 0, 0, 414, 419, 0), (1, 13): (821, 0, 0, 456, 461, 0), (2, 0): (828, 0, 0, 458, 460, 0),
    (2, 1): (474, 0, 0, 488, 494, 915), (2, 3): (563, 0, 1537, 577, 583, 1414), (2, 4): (607, 1664, 1709, 621, 627, 1515),
    (2, 5): (616, 1785, 1834, 630, 636, 1595), (2, 6): (629, 2168, 0, 681, 695, 1895), (2, 7): (632, 2271, 0, 684, 698, 1899),
    (2, 8): (655, 2299, 0, 707, 721, 2057), (2, 9): (688, 2376, 0, 740, 754, 2100), (2, 13): (757, 2395, 0, 810, 824, 2210),
}  # fmt: skip
_FAILED = (
    "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
    "subsequent GPU operations might run on corrupted/incomplete data."
)
_DOWN = "To avoid data inconsistency, we are taking the entire process down."
_NOT_FOUND = (
    "Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. "
    "You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
)


def lines_of(job: Job) -> tuple[int, int, int, int, int, int]:
    """Those of the job's version of torch, or of the next older one that is known."""
    return _LINES[max([version for version in _LINES if version <= job.torch[:2]], default=min(_LINES))]


def _stamp(job: Job, rank: Rank, t: float) -> str:
    now = job.clock(rank.host, t)
    return f"{now.month}{now:%d %H:%M:%S}.{now.microsecond:06d}{rank.rank * 7 % 1000:03d}"


@dataclass(frozen=True)
class Group:
    """A process group as the logs name it. ``ranks``: global ranks, in the order of their ranks in the group."""

    id: int = 0
    desc: str = "default_pg"
    ranks: tuple[int, ...] = ()

    def rank_of(self, rank: int) -> int:
        return self.ranks.index(rank) if self.ranks else rank


@dataclass(frozen=True)
class Work:
    """A collective that waits. ``numel_out`` of None: the same as in."""

    seq: int
    op: str
    numel: int
    numel_out: int | None = None
    enqueued: int | None = None

    @property
    def last_enqueued(self) -> int:
        return self.seq if self.enqueued is None else self.enqueued


def log(job: Job, rank: Rank, t: float, level: str, line: int, text: str, file: str = "ProcessGroupNCCL.cpp") -> str:
    if job.torch < (2, 2, 0):
        return f"[{level} {file}:{line}] {text}"
    if job.torch < (2, 4, 0):
        return f"[rank{rank.rank}]:[{level} {file}:{line}] {text}"
    return f"[rank{rank.rank}]:[{level}{_stamp(job, rank, t)} {file}:{line}] {text}"


def _group_prefix(job: Job, rank: Rank, group: Group) -> str:
    inner = group.rank_of(rank.rank)
    if job.torch < (2, 4, 0):
        return f"[PG {group.id} Rank {inner}] "
    if job.torch < (2, 5, 0):
        return f"[PG {group.id} ({group.desc}) Rank {inner}] "
    desc = f"({group.desc})" if group.desc else ""
    return f"[PG ID {group.id} PG GUID {group.id}{desc} Rank {inner}] "


def fields(job: Job, rank: Rank, t: float, group: Group) -> dict[str, object]:
    """What real wordings of torch's lines are filled with. A bare group: the default one without its name."""
    full = _group_prefix(job, rank, group).rstrip()
    return {
        "r": rank.rank, "inner": group.rank_of(rank.rank), "local": rank.local, "stamp": _stamp(job, rank, t), "pg": full,
        "pg_bare": full.replace(" (default_pg)", "").replace("(default_pg)", ""), "script": job.script,
        "nccl": ".".join(map(str, job.nccl)), "host": rank.host.name, "store": job.hosts[0].name,
        "head": f"{rank.host.name}:{rank.pid}", "pid": rank.pid,
    }  # fmt: skip


def work_text(job: Job, work: Work) -> str:
    out = work.numel if work.numel_out is None else work.numel_out
    numel = f"NumelIn={work.numel}, NumelOut={out}, " if job.torch >= (2, 1, 0) else ""
    return f"WorkNCCL(SeqNum={work.seq}, OpType={work.op}, {numel}Timeout(ms)={job.timeout_ms})"


def watchdog(
    job: Job, rank: Rank, t: float, work: Work, group: Group, *, ran_ms: int, first: bool = False, stack: str = ""
) -> list[str]:
    """What a rank prints when its collective has timed out, to the end of the process."""
    caught_at, detected, timeout, failed, down, terminated = lines_of(job)
    inner = group.rank_of(rank.rank)
    real = job.words.find("watchdog", job)
    if real:
        opens = ""
        if first and job.torch >= (2, 6, 0):
            at, last = 2103 if job.torch >= (2, 7, 0) else 2106, work.last_enqueued
            opened = log(
                job, rank, t, "E", at, f"{_group_prefix(job, rank, group)}First PG on this rank to signal dumping."
            )
            opens = f"{opened}\n{dump_signal(job, rank, t + 0.3, group, last, work.seq - 1, 'this local rank')}\n"
        text = real.template.format(
            **fields(job, rank, t, group), seq=work.seq, op=work.op, numel_in=work.numel, timeout=job.timeout_ms,
            numel_out=work.numel if work.numel_out is None else work.numel_out, ran=ran_ms, done=work.seq - 1,
            enqueued=work.last_enqueued, first=opens,
        )  # fmt: skip
        return text.split("\n")
    caught = (
        f"[Rank {inner}] Watchdog caught collective operation timeout: {work_text(job, work)} "
        f"ran for {ran_ms} milliseconds before timing out."
    )
    prefix, rank_prefix = _group_prefix(job, rank, group), f"[Rank {inner}] "
    done, enqueued = work.seq - 1, work.last_enqueued
    lines = [log(job, rank, t, "E", caught_at, caught)]
    error = "c10::DistBackendError" if job.torch >= (2, 1, 0) else "std::runtime_error"
    if job.torch >= (2, 6, 0):
        text = f"{prefix} failure detected by watchdog at work sequence id: {work.seq} PG status: last enqueued work: {enqueued}, last completed work: {done}"
        lines.append(log(job, rank, t, "E", detected, text))
        shown = f"Stack trace of the failed collective: \n{stack}" if stack else _NOT_FOUND
        lines.append(log(job, rank, t, "E", 670, shown))
        if first:
            lines.append(log(job, rank, t, "E", 2106, f"{prefix}First PG on this rank to signal dumping."))
            lines.append(dump_signal(job, rank, t + 0.3, group, enqueued, done, "this local rank"))
    elif job.torch >= (2, 3, 0):
        what = f"at NCCL work: {work.seq}, last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}."
        if detected:
            text = f"Exception (either an error or timeout) detected by watchdog {what.replace('NCCL ', '', 1)}"
            lines.append(log(job, rank, t, "E", detected, prefix + text))
        lines.append(log(job, rank, t, "E", timeout, f"{prefix}Timeout {what}"))
    if job.torch < (2, 3, 0):
        rank_prefix = ""
    lines.append(log(job, rank, t + 0.5, "E", failed, rank_prefix + _FAILED))
    lines.append(log(job, rank, t + 0.5, "E", down, rank_prefix + _DOWN))
    whose = prefix if job.torch >= (2, 3, 0) else rank_prefix
    if terminated:
        name = "Process group" if job.torch >= (2, 3, 0) else f"[Rank {inner}] NCCL"
        ended = f"{whose}{name} watchdog thread terminated with exception: {caught}"
        lines.append(log(job, rank, t + 0.6, "E", terminated, ended))
    lines.append(f"terminate called after throwing an instance of '{error}'")
    lines.append(
        f"  what():  {whose if terminated else ''}{'Process group watchdog thread terminated with exception: ' if job.torch >= (2, 3, 0) else ''}{caught}"
    )
    if job.torch >= (2, 4, 0):
        root = "/pytorch" if job.torch >= (2, 6, 0) else ".."
        lines.append(
            f"Exception raised from checkTimeout at {root}/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:{caught_at + 3} (most recent call first):"
        )
        lines.append(
            "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7b99599e31b6 in /opt/venv/lib/python3.11/site-packages/torch/lib/libc10.so)"
        )
    return lines


def dump_signal(job: Job, rank: Rank, t: float, group: Group, enqueued: int, done: int, source: str) -> str:
    """A rank dumps because of a time-out; its own last work tells whether it lagged behind. torch 2.5 and later."""
    text = (
        f"{_group_prefix(job, rank, group)}Received a dump signal due to a collective timeout from {source} and we will "
        f"try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {done}."
        "This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order "
        "of collectives is not same for all ranks or the scheduled collective, for some reason, didn't run. "
        "Additionally, this can be caused by GIL deadlock or other reasons such as network errors or bugs in the "
        "communications library (e.g. NCCL), etc. "
    )
    return log(job, rank, t, "E", 1746, text)


def observed_dump(job: Job, rank: Rank, t: float, group: Group) -> str:
    prefix = _group_prefix(job, rank, group)
    return log(job, rank, t, "E", 1682, f"{prefix}Observed flight recorder dump signal from another rank via TCPStore.")


def should_dump(job: Job, rank: Rank, t: float, group: Group, error: str = "Broken pipe") -> str:
    text = (
        f'{_group_prefix(job, rank, group)}Failed to check the "should dump" flag on TCPStore, '
        f"(maybe TCPStore server has shut down too early), with error: {error}"
    )
    own = log(job, rank, t, "W", 1662, text)
    return job.words.text("should dump", job, own, **fields(job, rank, t, group), error=error)


def store_get(job: Job, rank: Rank, error: str) -> str:
    """A victim whose store host is gone while it set up a communicator."""
    own = (
        f"[{rank.rank}] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
        f"by key '0', but store->get('0') got error: {error}. "
        "This may indicate a possible application crash on rank 0 or a network set up issue."
    )
    return job.words.text("store get", job, own, r=rank.rank, error=error)


def terminated_by_error(job: Job, rank: Rank, t: float, group: Group, error: str, address: str = "") -> list[str]:
    """The watchdog of a rank whose communicator broke; ``address``: whose connection it was, if it was a socket's."""
    real = job.words.find("broken", job)
    if real:
        text = real.template.format(**fields(job, rank, t, group), address=address)
        return [text if address or "Last error" not in text else text[: text.index("\nLast error")]]
    if job.torch < (2, 1, 0):
        return ["terminate called after throwing an instance of 'std::runtime_error'", f"  what():  {error}"]
    prefix = _group_prefix(job, rank, group) if job.torch >= (2, 3, 0) else f"[Rank {rank.rank}] "
    name = "Process group" if job.torch >= (2, 3, 0) else "NCCL"
    line = lines_of(job)[5]
    text = f"{prefix}{name} watchdog thread terminated with exception: {error}"
    return [
        log(job, rank, t, "E", line, text),
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {text}",
    ]


def traceback(job: Job, rank: Rank, frames: list[tuple[str, int, str, str]], error: str) -> str:
    """A Python traceback. ``frames``: file, line, function, source."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {source}"]
    lines += error.split("\n")
    if job.torch >= (2, 4, 0):
        lines = [f"[rank{rank.rank}]: {line}" for line in lines]
    return "\n".join(lines)


def frames(job: Job, *calls: tuple[str, int, str, str]) -> list[tuple[str, int, str, str]]:
    return [(f"/workspace/{job.script}", 412, "<module>", "main()"), *calls]


def agent(job: Job, host: Host, t: float, level: str, line: int, text: str) -> str:
    """A line of torchrun's agent on a host."""
    now, module = job.clock(host, t), "torch.distributed.elastic.multiprocessing.api"
    if text.startswith("Received 15 death signal") and (death := job.words.find("agent death", job)):
        return death.template
    if job.agent == "accelerate" and (rich := job.words.find("agent line rich", job)):
        words = text.split(" ")  # wrapped as a terminal of 80 columns has it
        head = text if len(text) <= 56 else " ".join(words[:-3])
        tail = "" if head == text else "\n " + " ".join(words[-3:])
        return rich.template.format(
            clock=f"{now:%H:%M:%S}", name="ERROR" if level == "E" else "WARNING", text=text, head=head, tail=tail
        )
    if real := job.words.find("agent line", job):
        shown = f"{now:%m%d %H:%M:%S}.{now.microsecond // 1000:03d}000"
        return real.template.format(
            level=level, agent_stamp=shown, agent_pid=job.of(host)[0].pid - 40, line=line, text=text
        )
    if job.torch < (2, 1, 0):
        return f"{'ERROR' if level == 'E' else 'WARNING'}:{module}:{text}"
    if job.torch < (2, 3, 0):
        name = "ERROR" if level == "E" else "WARNING"
        return f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] {module}: [{name}] {text}"
    stamp = f"{level}{now:%m%d %H:%M:%S}.{now.microsecond // 1000:03d}000"
    return f"{stamp} {job.of(host)[0].pid - 40} torch/distributed/elastic/multiprocessing/api.py:{line}] {text}"


def agent_failed(job: Job, host: Host, t: float, rank: Rank, code: int) -> str:
    text = f"failed (exitcode: {code}) local_rank: {rank.local} (pid: {rank.pid}) of binary: /opt/venv/bin/python"
    return agent(job, host, t, "E", 826, text)


def agent_stops(job: Job, host: Host, t: float, rank: Rank) -> str:
    return agent(job, host, t, "W", 858, f"Sending process {rank.pid} closing signal SIGTERM")


def child_failed(job: Job, host: Host, failures: list[tuple[Rank, int, float]]) -> str:
    """ChildFailedError's block; the first of ``failures`` is what torchrun takes for the root cause, right or not."""

    def block(index: int, rank: Rank, code: int, t: float) -> str:
        message = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        name = ""
        if code < 0:
            name = f" ({signal.Signals(-code).name})"
            message = f"Signal {-code} ({signal.Signals(-code).name}) received by PID {rank.pid}"
        return (
            f"[{index}]:\n  time      : {job.clock(host, t):%Y-%m-%d_%H:%M:%S}\n  host      : {host.name}\n"
            f"  rank      : {rank.rank} (local_rank: {rank.local})\n  exitcode  : {code} (pid: {rank.pid}){name}\n"
            f"  error_file: <N/A>\n  traceback : {message}"
        )

    others = "\n".join(block(i + 1, *failure) for i, failure in enumerate(failures[1:])) or "  <NO_OTHER_FAILURES>"
    edge, section = "=" * 60, "-" * 60
    raised = job.words.find("agent traceback", job)
    return (f"{raised.template}\n" if raised else "") + (
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{edge}\n{job.script} FAILED\n{section}\n"
        f"Failures:\n{others}\n{section}\nRoot Cause (first observed failure):\n{block(0, *failures[0])}\n{edge}"
    )
