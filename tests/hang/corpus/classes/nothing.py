"""Where the honest answer is that nothing is wrong, or that nobody can tell from these files."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..flight import same_call_dumps
from ..harmless import early, late, sprinkle
from ..job import make_job
from ..model import Blame
from ..story import Story
from ..torchlog import Group, Work

_NOT_RAY = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")


def cascade_store_lost(rng: random.Random, index: int) -> Story:
    """Only victims of a lost store are left: what ended its host was not collected."""
    job = make_job(rng, launchers=_NOT_RAY, nodes=(2, 4), torch=((2, 1, 0), (9, 0, 0)))
    story = Story(rng, job)
    first = job.hosts[0]
    story.lost_ranks = {rank.rank for rank in job.of(first)}
    at_start = index % 2 == 0
    if not at_start:
        story.start()
    sprinkle(story, 2)
    others = [rank for rank in job.ranks if rank.host is not first]
    t = 40.0 if at_start else rng.uniform(200, 3000)
    for rank in others:
        at = t + rng.random()
        if at_start:
            error = rng.choice(("Connection reset by peer", "Broken pipe", "failed to recv, got 0 bytes"))
            name = "torch.distributed.DistBackendError"
            story.say(
                rank,
                at,
                torchlog.traceback(job, rank, torchlog.frames(job), f"{name}: {torchlog.store_get(job, rank, error)}"),
            )
        else:
            fd = rng.randrange(40, 90)
            text = (
                f"[c10d] recvValue failed on SocketImpl(fd={fd}, addr=[{rank.host.name}]:{rng.randrange(30000, 60000)}, remote=[{first.name}]:29500): "
                + rng.choice(
                    (
                        "Connection reset by peer",
                        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
                    )
                )
            )
            own = torchlog.log(job, rank, at, "W", 125, text, "TCPStore.cpp")
            told = torchlog.fields(job, rank, at, story.world) | {"store": first.name}
            error = text.rsplit("): ", 1)[1]
            story.say(rank, at, job.words.text("store recv", job, own, **told, error=error))
            story.say(rank, at + 0.1, torchlog.should_dump(job, rank, at, story.world))
    story.launcher(
        others[0].host,
        t + 3,
        *(
            [torchlog.agent_stops(job, others[0].host, t + 3, rank) for rank in job.of(others[0].host)]
            if job.elastic
            else []
        ),
    )
    also = frozenset(rank.rank for rank in job.of(first))
    story.blames = (Blame(), Blame(ranks=frozenset({0})), Blame(hosts=frozenset({first.name}), also=also))
    story.note(
        "The store's host, rank 0's, ended first; its output is missing. Naming it as the place to look is right, and so is naming nobody."
    )
    return story


def healthy(rng: random.Random, index: int) -> Story:
    """The run ends well; what sounds alarming is followed by progress."""
    job = make_job(rng, launchers=_NOT_RAY)
    story = Story(rng, job)
    story.start()
    sprinkle(story, 12)
    for rank in job.ranks:
        if rng.random() < 0.3:
            story.say(rank, 13 + rng.random(), *rng.sample(early(story, rank), 3))
    if job.level == "INFO":
        for rank in rng.sample(job.ranks, min(3, job.world)):
            if job.nccl >= (2, 27, 0):
                text = "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'. Proceeding without NVLS support."
                story.say(rank, 9.5, nccl.info(job, rank, text))
                peer = rng.choice(job.ranks)
                story.say(
                    rank,
                    9.6,
                    nccl.info(
                        job,
                        rank,
                        f"socketPollConnect: connect to {peer.host.address}<41873> returned Connection refused, retrying (1/34) after sleep for 100 msec",
                        2,
                    ),
                )
            elif job.nccl < (2, 24, 0):
                story.say(rank, 9.6, nccl.info(job, rank, "Call to connect returned Connection refused, retrying", 2))
            story.say(
                rank,
                9.7,
                nccl.info(
                    job,
                    rank,
                    "NET/Plugin: Most recent plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory. All attempts to load 'libnccl-net.so' also failed.",
                ),
            )
    if job.torch >= (2, 4, 0) and rng.random() < 0.5:
        rank = rng.choice(job.ranks)
        text = f"[c10d] recvValue failed on SocketImpl(fd=61, addr=[{rank.host.name}]:51234, remote=[{job.hosts[0].name}]:29500): Connection reset by peer"
        story.say(rank, 30, torchlog.log(job, rank, 30, "W", 125, text, "TCPStore.cpp"))
    end = rng.uniform(300, 3000)
    story.train(end)
    if rng.random() < 0.6:
        rank = rng.choice(job.ranks)
        story.say(
            rank,
            end / 2,
            "Retry 1/5 after: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)",
        )
        story.say(
            rank, end / 2 + 1, "UserWarning: gradient overflow detected, skipping step, loss scale reduced to 32768.0"
        )
    if index % 4 == 2:
        story.say(
            job.ranks[0],
            end / 2,
            'Traceback (most recent call last):\n  File "/workspace/data.py", line 91, in fetch\n    return load(url)\nTimeoutError: timed out\nsample 88213 skipped, going on',
        )
    story.say(
        job.ranks[0],
        end + 1,
        "Training completed. Do not forget to share your model on huggingface.co/models =)",
        "eval loss 2.8841 | timeout 1800 s | errors: 0",
    )
    for rank in job.ranks:
        if rng.random() < 0.7:
            story.say(rank, end + 2 + rng.random(), *late(story, rank, end + 2))
        if job.level == "INFO" and job.nccl >= (2, 12, 0):
            story.say(
                rank,
                end + 2,
                nccl.info(
                    job,
                    rank,
                    f"comm 0x{rank.comm:x} rank {rank.rank} nranks {job.world} cudaDev {rank.local} busId {rank.bus:x} - Destroy COMPLETE",
                ),
            )
    story.blame_nobody("All steps ran, and the end was reached.")
    return story


_OPEN = ("one rank", "same call", "no group", "ray", "only victims", "lost file", "same dumps", "same call")


def undetermined(rng: random.Random, index: int) -> Story:
    """A careful reader would ask for more: too few logs, all in the same call, no group, or lines left out."""
    kind = _OPEN[index % len(_OPEN)]
    if kind == "ray":
        job = make_job(
            rng,
            launchers=("ray",),
            nodes=(1, 2),
            world=(8, 16),
            torch=((2, 4, 0), (9, 0, 0)),
            level="WARN",
            layouts=("one",),
        )
    elif kind == "no group":
        job = make_job(rng, launchers=_NOT_RAY, torch=((1, 12, 0), (2, 2, 0)), world=(4, 16))
    elif kind == "lost file":
        job = make_job(
            rng,
            launchers=("torchrun", "kubernetes", "pdsh"),
            layouts=("rank",),
            torch=((2, 1, 0), (9, 0, 0)),
            world=(4, 16),
        )
    elif kind == "same dumps":
        job = make_job(rng, launchers=_NOT_RAY, world=(4, 16))
    elif kind == "same call":
        job = make_job(rng, launchers=_NOT_RAY, torch=((2, 1, 0), (9, 0, 0)), world=(2, 32))
    else:
        job = make_job(rng, launchers=("torchrun", "tee", "pdsh", "kubernetes"), world=(2, 32))
    story = Story(rng, job)
    story.plain = kind == "ray"
    t = rng.uniform(200, 3000)
    end = t + job.timeout_ms / 1e3
    seq = rng.randrange(500, 60000)
    work = Work(
        seq, rng.choice(("ALLREDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")), rng.randrange(1 << 12, 1 << 24)
    )
    if kind == "same dumps":
        kept = sorted(rng.sample(range(job.world), rng.randrange(2, job.world)))
        same_call_dumps(story, kept)
        story.no_files = True
        story.note(
            f"Dumps of {len(kept)} of {job.world} ranks, all in the same call: the others may be behind, or not."
        )
        story.blame_nobody("Nobody is told apart.")
        lacking = set(range(job.world)) - set(kept)
        if len(lacking) == 1:  # as with a lost file: ranks without a dump are the first suspects
            story.accept = ("missing_rank",)
            story.blames = (Blame(), Blame(ranks=frozenset(lacking)))
        return story
    story.start()
    sprinkle(story, 3)
    story.train(t)
    if kind == "one rank":
        only = rng.choice(job.ranks)
        story.lost_ranks = {rank.rank for rank in job.ranks if rank is not only}
        story.time_out([only], end, work)
        story.events = [event for event in story.events if event.rank is not None]
        story.blame_nobody("One rank's log says that it waited, not for whom.")
    elif kind == "same call":
        story.time_out(list(job.ranks), end, work)
        story.blame_nobody(
            "Every rank waited in the same call in the middle of the run: the network or a GPU, but whose?"
        )
    elif kind == "no group":
        half = job.world // 2
        story.time_out(list(job.ranks[:half]), end, Work(seq, "ALLREDUCE", 4096))
        story.time_out(list(job.ranks[half:]), end + 1, Work(seq // 7, "ALLREDUCE", 4096 * 7))
        story.say(job.ranks[0], 16, "initialized tensor model parallel size 2, pipeline model parallel size 2")
        story.blame_nobody(
            "Two halves wait in different calls; before torch 2.2 no group is printed, and these may be two groups."
        )
    elif kind == "ray":
        first = rng.choice(job.ranks)
        lines = torchlog.watchdog(job, first, end, work, Group(0, "default_pg"), ran_ms=job.timeout_ms + 41)
        story.events = [event for event in story.events if event.rank in (None, first, job.ranks[0])]
        for line in lines:
            story.say(first, end, line)
            other = rng.choice([rank for rank in job.ranks if rank is not first])
            repeated = line.replace(f"[rank{first.rank}]", f"[rank{other.rank}]").replace(
                f"Rank {first.rank}]", f"Rank {other.rank}]"
            )
            story.say(other, end + 5, f"{repeated} [repeated {rng.randrange(2, job.world - 1)}x across cluster]")
        story.blame_nobody("Ray leaves repeated lines out: that a rank says nothing means nothing.")
    elif kind == "only victims":
        story.events = [event for event in story.events if event.rank is not None]
        for host in job.hosts[:1]:
            story.launcher(
                host,
                t + 5,
                torchlog.agent(job, host, t + 5, "W", 741, "Received 15 death signal, shutting down workers"),
            )
            story.launcher(host, t + 5.1, *[torchlog.agent_stops(job, host, t + 5.1, rank) for rank in job.of(host)])
        story.blame_nobody("The job was told to stop; by whom and why is not in these files.")
    else:  # lost file
        bad = rng.choice(job.ranks)
        story.lost_ranks = {bad.rank}
        story.time_out([rank for rank in job.ranks if rank is not bad], end, work)
        story.events = [event for event in story.events if event.rank is not None]
        story.accept = ("missing_rank",)
        story.blames = (Blame(), Blame(ranks=frozenset({bad.rank})))
        story.note(
            f"Rank {bad.rank}'s file is not there: it may have hung, or timed out like all others. Rule 4: absence counts only in complete logs."
        )
    return story
