"""A rank does not come, or comes too late; or all came and the first transfer never ends."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..flight import missing_dumps
from ..harmless import early, sprinkle
from ..job import Job, Rank, make_job
from ..model import Blame
from ..story import Story
from ..torchlog import Group, Work

_NOT_RAY = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")
_KINDS = (
    "watchdog", "lags", "init", "dumps", "dumps 3d", "report", "barrier", "dumps and logs", "no entries", "dumps 3d",
    "ratio", "subgroup", "empty dump",
)  # fmt: skip


def _victims_end(story: Story, t: float, ranks: list[Rank], bad: list[Rank]) -> None:
    """torchrun takes a victim for the root cause, as measured in 4 of 4 such runs."""
    story.agents_end(t, {rank.rank: -6 for rank in ranks}, root=story.rng.choice(ranks).rank)


def missing_rank(rng: random.Random, index: int) -> Story:
    """All but one or two members of a group time out in one call; the size is known, and the absent never called."""
    kind = _KINDS[index % len(_KINDS)]
    if "3d" in kind or kind == "empty dump":
        job = make_job(rng, nodes=(2, 4), per_node=(4, 8), world=(16, 16), launchers=_NOT_RAY)
    elif kind == "init":
        job = make_job(rng, launchers=_NOT_RAY, level="INFO", nccl=((2, 18, 0), (9, 0, 0)), world=(4, 64))
    elif kind == "subgroup":
        job = make_job(
            rng, launchers=_NOT_RAY, torch=((2, 4, 0), (9, 0, 0)), world=(16, 32), per_node=(8,), level="INFO"
        )
    elif kind in ("lags", "report"):
        job = make_job(
            rng, launchers=_NOT_RAY, torch=((2, 6, 0) if kind == "lags" else (2, 0, 0), (9, 0, 0)), world=(4, 32)
        )
    elif kind == "ratio":
        job = make_job(rng, launchers=_NOT_RAY, torch=((2, 2, 0), (9, 0, 0)), world=(4, 32), level="WARN")
    else:
        job = make_job(rng, launchers=_NOT_RAY, level="INFO", world=(4, 32))
    story = Story(rng, job)
    bad = rng.sample(job.ranks, 1 if kind not in ("watchdog", "init") or rng.random() < 0.7 else 2)
    there = [rank for rank in job.ranks if rank not in bad]
    seq = rng.randrange(200, 60000)
    t = rng.uniform(60, 2000)
    end = t + job.timeout_ms / 1e3
    story.blame_ranks(*bad)
    if kind == "init":
        story.start(complete=False, only=tuple(there))
        sprinkle(story)
        for rank in bad:
            story.say(rank, 8, nccl.bootstrap(job, rank))
        if rng.random() < 0.5:
            story.time_out(there, 10 + job.timeout_ms / 1e3, Work(1, "ALLREDUCE", 1))
        story.note("The absent never logged Init START, all others did.")
        return story
    if kind not in ("dumps", "dumps 3d", "no entries", "empty dump"):
        story.start()
        sprinkle(story)
        for rank in bad:  # its output was collected, whatever the layout
            story.say(rank, 6, early(story, rank)[0])
        story.train(t)
    if kind in ("watchdog", "dumps and logs"):
        work = Work(seq, "ALLREDUCE", rng.randrange(1, 1 << 25), enqueued=seq + rng.randrange(4))
        if kind == "dumps and logs":
            stuck = missing_dumps(story, bad, parallel=False, how="lags")
            op = {"all_reduce": "ALLREDUCE"}.get(stuck.call.op, stuck.call.op.upper())
            work = Work(stuck.seq, op, stuck.call.sizes[0], stuck.call.sizes[-1])
        last = story.time_out(there, end, work)
        _victims_end(story, last, there, bad)
    elif kind == "lags":
        work = Work(seq, "_ALLGATHER_BASE", 524288, 524288 * job.world, enqueued=seq + 2)
        last = story.time_out(there, end, work)
        for rank in bad:
            at = end + 0.5
            source = f" rank {there[0].rank}"
            story.say(
                rank,
                at,
                torchlog.observed_dump(job, rank, at, story.world),
                torchlog.dump_signal(job, rank, at, story.world, seq - 1, seq - 1, source),
            )
        _victims_end(story, last, there, bad)
        story.note("The absent rank dumps because it is told to; its last enqueued call is one behind.")
    elif kind == "ratio":
        last = story.time_out(there, end, Work(seq, "_ALLGATHER_BASE", 65536, 65536 * job.world))
        _victims_end(story, last, there, bad)
        story.note("The world's size follows from the all-gather: out is in times the ranks.")
    elif kind == "report":
        shown = ", ".join(str(rank.rank) for rank in there)
        absent = ", ".join(str(rank.rank) for rank in bad)
        call = f"ALLREDUCE at /workspace/{job.script}:233"
        for rank in there:
            report = (
                f"\n\t - [{rank.rank}] Timeout at collective: ALLREDUCE, #{seq}"
                "\n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
                f"\n\t     [{absent}] finished collective #{seq - 1}, but didn't join collective #{seq} (count from 1)"
                f"\n\t - Snapshot of ranks' latest states:\n\t   #{seq - 1} finished ranks:\n\t     [{absent}] finished {call}"
                f"\n\t   #{seq} started ranks:\n\t     [{shown}] started {call}"
            )
            story.say(rank, end, torchlog.log(job, rank, end, "E", 560, report))
        last = story.time_out(there, end + 0.1, Work(seq, "ALLREDUCE", 6553600))
        _victims_end(story, last, there, bad)
    elif kind == "barrier":
        bad = [rank for rank in bad if rank.rank] or [job.ranks[-1]]
        there = [rank for rank in job.ranks if rank not in bad]
        story.blame_ranks(*bad)
        named = ", ".join(str(rank.rank) for rank in bad)
        first = (
            f"RuntimeError: [Rank 0]: Ranks {named} failed to pass monitoredBarrier in 30000 ms"
            if rng.random() < 0.5
            else f"RuntimeError: Rank {bad[0].rank} failed to pass monitoredBarrier in 30000 ms\n Original exception: \n"
            "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
        )
        if len(bad) == 1:
            first = job.words.text("barrier root", job, first, first=bad[0].rank)
        story.say(job.ranks[0], t + 30, torchlog.traceback(job, job.ranks[0], torchlog.frames(job), first))
        for rank in there[1:]:
            text = (
                f"RuntimeError: Rank {rank.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0. Please check rank 0 logs for faulty rank.\n Original exception: \n"
                "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:44018"
            )
            story.say(rank, t + 30.2 + rng.random(), torchlog.traceback(job, rank, torchlog.frames(job), text))
        story.agents_end(t + 33, {rank.rank: 1 for rank in there}, root=rng.choice(there).rank)
    elif kind == "subgroup":
        size = rng.choice((4, 8))
        first = rng.randrange(job.world // size) * size
        ranks = tuple(range(first, first + size))
        group = Group(rng.randrange(1, 9), rng.choice(("mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP")), ranks)
        bad = [job.ranks[rng.choice(ranks)]]
        story.blame_ranks(*bad)
        inside = [job.ranks[rank] for rank in ranks if rank != bad[0].rank]
        outside = [rank for rank in job.ranks if rank.rank not in ranks]
        for rank in inside:
            story.say(rank, 20, f"[rank{rank.rank}]: {group.desc}: ranks {list(ranks)}")
        story.say(bad[0], 20, f"[rank{bad[0].rank}]: {group.desc}: ranks {list(ranks)}")
        story.time_out(inside, end, Work(seq, "ALLREDUCE", 4194304), group)
        story.time_out(
            outside,
            end + 1,
            Work(rng.randrange(100, 900), "ALLREDUCE", 1),
            Group(0, "default_pg", tuple(range(job.world))),
        )
        story.note(
            "Members wait in a small group, all others in the default group, which the small one holds up: only one rank waits nowhere."
        )
    elif kind == "empty dump":
        missing_dumps(story, bad, parallel=True, how=rng.choice(("empty", "none")))
        story.blames = (*story.blames, Blame())
        story.accept = ("undetermined",)
        story.no_files = True
        story.note(
            "The file of the rank that hangs is empty or absent: it is the first suspect, and may only have been lost."
        )
    else:
        missing_dumps(story, bad, parallel="3d" in kind, how="no_entries" if kind == "no entries" else "lags")
        story.no_files = True
        story.note(
            "Dumps only. With several groups, the victims of victims wait too; the rank that is behind in all its groups is the cause."
        )
    return story


def _tiny(job: Job, rng: random.Random) -> Work:
    op, numel = rng.choice((("ALLREDUCE", 1), ("BROADCAST", 1), ("BARRIER", 1)))
    return Work(rng.randrange(1, 4), "ALLREDUCE" if job.torch < (2, 5, 0) and op == "BARRIER" else op, numel)


def _bar(what: str, done: int, total: int, seconds: int, rate: str) -> str:
    left = int(seconds * (total - done) / done)
    shape = "█" * (done * 10 // total)
    return f"{what}: {done * 100 // total:3d}%|{shape:<10}| {done}/{total} [{seconds // 60:02d}:{seconds % 60:02d}<{left // 60}:{left % 60:02d}, {rate}]"


def _start(story: Story, kind: str, t: float, step: int, *own: str) -> None:
    """What the program says before it is slow."""
    job, bad = story.job, story.job.ranks[0]
    found = job.words.find(kind, job)
    if not found:
        story.say(bad, t, *own)
        return
    text = found.template.split("\f")[0] if "\f" in found.template else ""
    if text:
        story.say(bad, t, text.format(**_clocks(job, bad, t), step=step))


def _clocks(job: Job, rank: Rank, t: float) -> dict[str, str]:
    now = job.clock(rank.host, t)
    return {
        "comma_stamp": f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}",
        "mm_stamp": f"{now:%m/%d %H:%M:%S}",
        "us_stamp": f"{now:%m/%d/%Y %H:%M:%S}",
    }


def _goes_on(story: Story, kind: str, t: float, done: int, total: int, seconds: int, own: str) -> None:
    """One step of the slow work: nothing, where the program shows none."""
    job, bad = story.job, story.job.ranks[0]
    found = job.words.find(kind, job)
    if not found:
        story.say(bad, t, own)
        return
    template, left = found.template.split("\f")[-1], int(seconds * (total - done) / done)
    if template:
        story.say(bad, t, template.format(
            **_clocks(job, bad, t), done=done, total=total, percent=done * 100 // total, shape="█" * (done * 10 // total),
            blocks="█" * (done * 52 // total), elapsed=f"{seconds // 60:02d}:{seconds % 60:02d}",
            left=f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}", rate=done / max(1, seconds), pace=seconds / done,
        ))  # fmt: skip


def _slow(rng: random.Random) -> tuple[Story, Rank, list[Rank]]:
    job = make_job(rng, launchers=_NOT_RAY, torch=((2, 1, 0), (9, 0, 0)), world=(2, 32))
    story = Story(rng, job)
    bad = job.ranks[0]
    story.start()
    sprinkle(story, 2)
    return story, bad, [rank for rank in job.ranks if rank is not bad]


def slow_rank_preprocess(rng: random.Random, index: int) -> Story:
    """A first tiny collective times out on all ranks but 0, whose bar of tokenising is still running then."""
    story, bad, others = _slow(rng)
    job = story.job
    limit, what = (
        job.timeout_ms // 1000,
        rng.choice(("Map", "Running tokenizer on dataset", "Tokenizing", "Generating train split")),
    )
    total = rng.randrange(400_000, 3_000_000)
    for n in range(1, 25):
        seconds, done = n * limit // 20, min(total - 1, total * n // 40)
        own = _bar(what, done, total, seconds, f"{total * 2 // (limit * 4)} examples/s")
        _goes_on(story, "preprocess", 12 + seconds, done, total, seconds, own)
    end = story.time_out(others, 13 + limit, _tiny(job, rng))
    story.agents_end(end + limit // 5, {rank.rank: -6 for rank in others}, root=rng.choice(others).rank)
    story.blame_ranks(bad)
    return story


def slow_rank_eval(rng: random.Random, index: int) -> Story:
    """The bar of an evaluation that one rank does alone is older than the time-out, and still moving."""
    story, bad, others = _slow(rng)
    job = story.job
    t = rng.uniform(600, 4000)
    step = story.train(t)
    limit, total = job.timeout_ms // 1000, rng.randrange(500, 5000)
    own = "***** Running Evaluation *****", f"  Num examples = {total * 8}", "  Batch size = 8"
    _start(story, "evaluate", t + 1, step, *own)
    for n in range(1, 25):
        seconds, done = n * limit // 20, max(1, total * n // 40)
        what = rng.choice(("Evaluating", "Evaluation"))
        bar = _bar(what, done, total, seconds, f"{limit * 2 / total:.2f}s/it")
        _goes_on(story, "evaluate", t + 2 + seconds, done, total, seconds, bar)
    end = story.time_out(others, t + 3 + limit, Work(step * 3, "ALLREDUCE", 1))
    story.agents_end(end + limit // 5, {rank.rank: -6 for rank in others}, root=rng.choice(others).rank)
    story.blame_ranks(bad)
    return story


def slow_rank_checkpoint(rng: random.Random, index: int) -> Story:
    """One rank began to save a checkpoint and has not said that it is done when the others time out."""
    story, bad, others = _slow(rng)
    job = story.job
    t = rng.uniform(600, 4000)
    step = story.train(t)
    limit = job.timeout_ms // 1000
    folder = f"/output/checkpoint-{step}"
    own = f"Saving model checkpoint to {folder}", f"Configuration saved in {folder}/config.json"
    _start(story, "checkpoint", t + 1, step, *own)
    shards = rng.randrange(8, 40)
    for n in range(1, 20):
        seconds, done = n * limit // 16, max(1, shards * n // 24)
        bar = _bar("Saving checkpoint shards", done, shards, seconds, f"{limit * 1.5 / shards:.2f}s/it")
        _goes_on(story, "checkpoint", t + 5 + seconds, done, shards, seconds, bar)
    end = story.time_out(others, t + 2 + limit, Work(step * 3, rng.choice(("ALLREDUCE", "BROADCAST")), 1))
    story.agents_end(end + limit // 4, {rank.rank: -6 for rank in others}, root=rng.choice(others).rank)
    story.blame_ranks(bad)
    return story


def p2p_iommu_acs(rng: random.Random, index: int) -> Story:
    """On one host everybody finished its initialisation over P2P, and the first collective of all never ends."""
    job = make_job(rng, nodes=(1,), per_node=(2, 4, 8), level="INFO", launchers=_NOT_RAY)
    story = Story(rng, job)
    sprinkle(story)
    story.start(via=rng.choice(("P2P/IPC", "P2P/direct pointer", "P2P/IPC")))
    gathered = index % 3 == 1
    work = (
        Work(1, "_ALLGATHER_BASE", 524288, 524288 * job.world)
        if gathered
        else Work(1, "ALLREDUCE", rng.choice((1, 1, 25557032)))
    )
    end = story.time_out(list(job.ranks), 14 + job.timeout_ms / 1e3, work)
    if index % 3 == 2:
        for rank in job.ranks:
            op = "AllReduce"
            story.say(rank, 13.9, nccl.coll(job, rank, op, 0, work.numel))
    story.agents_end(end, {rank.rank: -6 for rank in job.ranks}, root=rng.choice(job.ranks).rank)
    story.blame_unscored("The machine's setting is to blame, no rank.")
    return story


def _heartbeat(job: Job, rank: Rank, t: float, group: Group, seconds: int) -> list[str]:
    """What the heartbeat monitor of a rank prints before it ends the process, by version; torch 2.2 and later."""
    prefix = str(torchlog.fields(job, rank, t, group)["pg"])
    advice = (
        "This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by "
        "another thread holding the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors.If you "
        "suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the timeout "
        "(TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor (TORCH_NCCL_ENABLE_MONITORING=0)."
        "If either of aforementioned helps, feel free to file an issue to PyTorch about the short timeout or false positive abort; "
        "otherwise, please attempt to debug the hang. "
    )
    stuck = f"{prefix} ProcessGroupNCCL's watchdog got stuck for {seconds} seconds without making progress in monitoring enqueued collectives. {advice}"
    if job.torch < (2, 6, 0):
        own = [
            torchlog.log(job, rank, t, "E", 1413, f"{prefix} Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=3"),
            torchlog.log(job, rank, t, "E", 1224, f"{prefix} ProcessGroupNCCL preparing to dump debug info."),
            torchlog.log(job, rank, t + seconds, "F", 1224, f"{prefix} {stuck}workMetaList_.size() = 3"),
        ]  # fmt: skip
    else:
        own = [
            torchlog.log(job, rank, t, "E", 1746, stuck),
            torchlog.log(job, rank, t, "E", 1536, f"{prefix} ProcessGroupNCCL preparing to dump debug info. Include stack trace: 1"),
            torchlog.log(job, rank, t + seconds, "F", 1557, f"{prefix} {prefix} Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang."),
        ]  # fmt: skip
    said = job.words.find("heartbeat", job)
    return [said.template.format(**torchlog.fields(job, rank, t, group), seconds=seconds)] if said else own


def watchdog_blocked(rng: random.Random, index: int) -> Story:
    """A heartbeat monitor ends its process because the watchdog stood still, and no collective has timed out.

    One rank: it is the one that a call of CUDA or Python's lock holds. Several at once: none of them is told apart. Or
    the watchdogs report a collective more than twice its timeout late.
    """
    kind = ("one", "several", "one", "late")[index % 4]
    job = make_job(
        rng, launchers=_NOT_RAY, torch=((2, 3, 0), (9, 0, 0)), world=(4, 32), level="INFO" if kind == "late" else None
    )
    story = Story(rng, job)
    story.start()
    sprinkle(story, 2)
    t = rng.uniform(60, 3000)
    story.train(t)
    seconds = rng.choice((480, 600))
    if kind == "late":
        at = t + job.timeout_ms / 1e3 * 2.5
        work = Work(rng.randrange(200, 60000), "ALLREDUCE", rng.randrange(1 << 12, 1 << 24))
        for rank in job.ranks:
            when = at + rng.uniform(0, 2)
            ran = round(job.timeout_ms * 2.4) + rng.randrange(90)
            story.say(
                rank, when, *torchlog.watchdog(job, rank, when, work, story.world, ran_ms=ran, first=rank.rank == 0)
            )
        story.agents_end(at + 4, {rank.rank: -6 for rank in job.ranks}, root=rng.choice(job.ranks).rank)
        story.accept = ("undetermined",)
        story.blame_nobody(
            "All ranks waited in the same call, and all watchdogs saw it late: that all were blocked is what can be said, and nothing of a cause."
        )
        return story
    bad = rng.sample(job.ranks, 1 if kind == "one" else rng.randrange(2, min(5, job.world)))
    for rank in bad:
        at = t + seconds + rng.uniform(0, 0.1)
        story.say(rank, at, *_heartbeat(job, rank, at, story.world, seconds))
        if rng.random() < 0.4:
            gil = "Could not acquire GIL within 300 ms on exit, possible GIL induced hang"
            story.say(rank, at + 1, torchlog.log(job, rank, at + 1, "E", 1289, gil))
    at = t + 2 * seconds
    if kind == "one":
        story.lose_peers(at, bad, share=0.3)
    story.agents_end(at + 2, {rank.rank: -6 for rank in bad}, victims_at=at + 5)
    if kind == "one":
        story.blame_ranks(*bad)
    else:
        story.blame_nobody("Several stood still at once: they wait for the same thing.")
    return story


def slow_rank_init(rng: random.Random, index: int) -> Story:
    """Rank 0 still loads a model when the others give up: on a key that it writes when it is ready, or on a first call.

    The store answers "timed out", so it lives; or rank 0's bar of loading is still running when watchdogs give up.
    """
    kind = ("key", "bar", "key and bar", "told")[index % 4]
    job = make_job(
        rng,
        launchers=_NOT_RAY,
        torch=((2, 1, 0), (9, 0, 0)) if kind != "key" else ((1, 12, 0), (9, 0, 0)),
        world=(2, 32),
    )
    story = Story(rng, job)
    bad, limit = job.ranks[0], job.timeout_ms // 1000
    others = [rank for rank in job.ranks if rank is not bad]
    sprinkle(story, 2)
    story.say(
        bad,
        4,
        f"[rank{bad.rank}]: loading the model, world_size: {job.world}"
        if job.torch >= (2, 4, 0)
        else f"loading the model, world_size: {job.world}",
    )
    shards = rng.randrange(8, 60)
    if kind != "key":
        for n in range(1, 22):
            seconds, done = n * limit // 20, max(1, min(shards - 1, shards * n // 40))
            own = _bar("Loading checkpoint shards", done, shards, seconds, f"{seconds / done:.2f}s/it")
            _goes_on(story, "loading", 6 + seconds, done, shards, seconds, own)
    end = 7.0 + limit
    if kind == "bar":
        end = story.time_out(others, end, _tiny(job, rng))
        story.agents_end(end + limit // 5, {rank.rank: -6 for rank in others}, root=rng.choice(others).rank)
        story.blame_ranks(bad)
        return story
    if kind == "told":
        text = f"ValueError: TP rank {others[-1].rank} could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."
        story.say(others[-1], end, torchlog.traceback(job, others[-1], torchlog.frames(job), text))
        story.agents_end(end + 2, {others[-1].rank: 1})
        story.blames = (Blame(), Blame(ranks=frozenset({bad.rank})))
        story.note("The rank that has loaded says that others have not, not which; only the bar shows rank 0.")
        return story
    name = "torch.distributed.DistBackendError" if job.torch >= (2, 1, 0) else "RuntimeError"
    if job.torch >= (2, 4, 0):
        error = rng.choice((f"wait timeout after {job.timeout_ms}ms, keys: /default_pg/0//cuda//0", "Socket Timeout"))
    else:
        error = (
            "Socket Timeout"
            if job.torch >= (1, 13, 0)
            else f"Timeout waiting for key: default_pg/0/0 after {job.timeout_ms} ms"
        )
    for rank in others:
        at = end + rng.random()
        if job.torch >= (2, 4, 0) and rng.random() < 0.5:
            text = f"[c10d] waitForInput: socket SocketImpl(fd=114, addr=[{rank.host.name}]:38584, remote=[{bad.host.name}]:29500) timed out after {job.timeout_ms}ms"
            story.say(rank, at, torchlog.log(job, rank, at, "W", 487, text, "socket.cpp"))
        said = torchlog.store_get(job, rank, error)
        story.say(rank, at + 0.1, torchlog.traceback(job, rank, torchlog.frames(job), f"{name}: {said}"))
    story.agents_end(end + 3, {rank.rank: 1 for rank in others}, root=rng.choice(others).rank)
    story.blame_ranks(bad)
    story.note("Rank 0 writes the key, and the store answers: it is late, not gone.")
    return story
