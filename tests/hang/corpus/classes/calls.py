"""Ranks that do not call the same thing: another size, another operation, another position."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..flight import mismatch_dumps
from ..harmless import sprinkle
from ..job import Job, Rank, make_job
from ..story import Story
from ..torchlog import Work

_LAUNCHERS = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes", "ray")
_NUMELS = (6553600, 4194304, 16777216, 1259621, 25557032)


def _minority(story: Story, bad: Rank) -> None:
    if story.job.world == 2:
        story.blame_ranks(*story.job.ranks)
        story.note("Two ranks: neither vote wins, so both are named.")
    else:
        story.blame_ranks(bad)


def _print(op: str, seq: int, shape: str, job: Job) -> str:
    number = f"SequenceNumber={seq}, " if job.torch >= (2, 0, 0) else ""
    device = (
        "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false (default), "
        "pinned_memory=false (default), memory_format=(nullopt))"
    )
    return f"CollectiveFingerPrint({number}OpType={op}, TensorShape=[{shape}], TensorDtypes=Float, TensorDeviceTypes={device})"


def _detail(story: Story, bad: Rank, t: float, usual: tuple[str, int, str], odd: tuple[str, int, str]) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank reports the first rank that differs from itself."""
    job = story.job
    for rank in job.ranks:
        mine, theirs = (odd, usual) if rank is bad else (usual, odd)
        other = (0 if bad.rank else 1) if rank is bad else bad.rank
        aspects = ""
        if job.torch >= (2, 0, 0):
            aspects = "Collectives differ in the following aspects: "
            aspects += f"\t Sequence number: {mine[1]}vs {theirs[1]}" if mine[1] != theirs[1] else ""
            aspects += f"  Op type: {mine[0]}vs {theirs[0]}" if mine[0] != theirs[0] else ""
            aspects += f"  Tensor Tensor shapes: {mine[2]}vs {theirs[2]}" if mine[2] != theirs[2] else ""
        text = (
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {rank.rank} is running collective: {_print(*mine, job)}, "
            f"but Rank {other} is running collective: {_print(*theirs, job)}.{aspects}"
        )
        kind = "detail op" if mine[0] != theirs[0] else "detail sequence" if mine[1] != theirs[1] else "detail shape"
        text = job.words.text(
            kind, job, text, r=rank.rank, other=other, mine=_print(*mine, job), theirs=_print(*theirs, job), op=mine[0],
            seq=mine[1], shape=mine[2], other_op=theirs[0], other_seq=theirs[1], other_shape=theirs[2],
        )  # fmt: skip
        story.say(rank, t + story.rng.random(), torchlog.traceback(job, rank, torchlog.frames(job), text))
    story.agents_end(t + 3, {rank.rank: 1 for rank in job.ranks}, root=story.rng.choice(job.ranks).rank)


def _job(rng: random.Random, index: int, **more: object) -> Story:
    small = (2, 2) if index % 8 == 7 else (3, 32)
    job = make_job(rng, launchers=_LAUNCHERS, world=small, **more)  # type: ignore[arg-type]
    return Story(rng, job)


def _coll_lines(story: Story, bad: Rank, usual: tuple[str, int], odd: tuple[str, int], at: int) -> None:
    """The last calls of NCCL_DEBUG_SUBSYS=INIT,COLL: equal up to opCount ``at``."""
    job = story.job
    for rank in job.ranks:
        for count in range(max(0, at - 3), at):
            story.say(
                rank, 100 + count - at + rank.rank * 1e-3, nccl.coll(job, rank, "AllReduce", count, 6553600 + count)
            )
        op, elements = odd if rank is bad else usual
        story.say(rank, 100 + rank.rank * 1e-3, nccl.coll(job, rank, op, at, elements))


def _cancelled(story: Story) -> None:
    """The user gave up before the watchdog did."""
    for host in story.job.hosts:
        if story.job.elastic:
            text = "Received 15 death signal, shutting down workers"
            story.launcher(host, 300, torchlog.agent(story.job, host, 300, "W", 741, text))
            story.launcher(
                host, 300.1, *[torchlog.agent_stops(story.job, host, 300.1, rank) for rank in story.job.of(host)]
            )


def _by_watchdog(story: Story, bad: Rank, usual: Work, odd: Work) -> None:
    job = story.job
    t = 120 + job.timeout_ms / 1e3
    story.train(100)
    story.time_out([rank for rank in job.ranks if rank is not bad], t, usual)
    story.time_out([bad], t + story.rng.uniform(0, 2), odd)
    story.agents_end(t + 5, {rank.rank: -6 for rank in job.ranks}, root=story.rng.choice(job.ranks).rank)


def mismatch_shape(rng: random.Random, index: int) -> Story:
    """One rank calls the same operation at the same position with another size."""
    kind = ("watchdog", "detail", "coll", "dumps")[index % 4]
    story = _job(rng, index, level="INFO" if kind == "coll" else None, torch=((2, 1, 0), (9, 0, 0)))
    job = story.job
    bad = rng.choice(job.ranks)
    seq, size = rng.randrange(20, 60000), rng.choice(_NUMELS)
    odd = size // 2 if rng.random() < 0.5 else size - rng.randrange(1, 5000)
    story.start()
    sprinkle(story)
    if kind == "watchdog":
        _by_watchdog(story, bad, Work(seq, "ALLREDUCE", size), Work(seq, "ALLREDUCE", odd))
    elif kind == "detail":
        _detail(story, bad, 60, ("ALLREDUCE", seq, str(size)), ("ALLREDUCE", seq, str(odd)))
    elif kind == "coll":
        _coll_lines(story, bad, ("AllReduce", size), ("AllReduce", odd), seq % 5000)
        _cancelled(story)
    else:
        mismatch_dumps(story, bad, "shape")
    _minority(story, bad)
    return story


def mismatch_op(rng: random.Random, index: int) -> Story:
    """One rank calls another operation at the same position."""
    kind = ("watchdog", "detail", "coll", "dumps")[index % 4]
    story = _job(rng, index, level="INFO" if kind == "coll" else None)
    job = story.job
    bad = rng.choice(job.ranks)
    seq = rng.randrange(20, 60000)
    story.start()
    sprinkle(story)
    if kind == "watchdog":
        _by_watchdog(
            story,
            bad,
            Work(seq, "ALLREDUCE", 6553600),
            Work(seq, rng.choice(("BROADCAST", "_ALLGATHER_BASE")), 4096, 4096 * job.world),
        )
    elif kind == "detail":
        _detail(story, bad, 60, ("ALLREDUCE", seq, "6553600"), ("BROADCAST", seq, "1"))
    elif kind == "coll":
        _coll_lines(story, bad, ("AllReduce", 6553600), ("Broadcast", 1024), seq % 5000)
        _cancelled(story)
    else:
        mismatch_dumps(story, bad, "op")
    _minority(story, bad)
    return story


def desync(rng: random.Random, index: int) -> Story:
    """One rank is at another position of the same group, and waits there: it left out a call, or made one too many."""
    kind = ("watchdog", "detail", "dumps")[index % 3]
    story = _job(rng, index, torch=((2, 3, 0), (9, 0, 0)) if kind == "watchdog" else ((2, 0, 0), (9, 0, 0)))
    job = story.job
    bad = rng.choice(job.ranks)
    seq = rng.randrange(200, 60000)
    off = seq + rng.choice((-32, -3, -1, 1, 2, 32))
    story.start()
    sprinkle(story)
    if kind == "watchdog":
        _by_watchdog(
            story, bad, Work(seq, "_REDUCE_SCATTER_BASE", 46797824, 46797824 // job.world), Work(off, "ALLREDUCE", 1)
        )
        story.note(
            "Both wait in the same group, at different sequence numbers (group and number are printed since 2.3)."
        )
    elif kind == "detail":
        _detail(story, bad, 60, ("ALLREDUCE", seq, "6553600"), ("ALLREDUCE", off, "6553600"))
        story.note("Operation and shape agree, the sequence number does not.")
    else:
        mismatch_dumps(story, bad, "desync")
    _minority(story, bad)
    return story
