"""InfiniBand and RoCE: a device, a port, a path."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Host, Rank, make_job
from ..story import Story

_LAUNCHERS = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes", "ray")
_OLDEST = (2, 4, 0)  # for classes whose truth needs no peer: older NCCL does not name it


def _ends(story: Story, t: float, told: list[Rank]) -> None:
    """Ranks with a failed completion go down by the watchdog."""
    job = story.job
    for rank in told:
        error = f"NCCL error: remote process exited or there was a network error, NCCL version {'.'.join(map(str, job.nccl))}"
        story.say(rank, t, *torchlog.terminated_by_error(job, rank, t, story.world, error))
    story.agents_end(t + 2, {rank.rank: -6 for rank in told})


def _completions(story: Story, t: float, pairs: list[tuple[Rank, Rank]], status: int, vendor: int) -> None:
    job, rng = story.job, story.rng
    for rank, peer in pairs:
        at = t + rng.uniform(0.1, 5)
        story.say(rank, at, nccl.ib_completion(rng, job, rank, at, peer, status, vendor, f"mlx5_{rank.local // 2}"))
        if job.level == "INFO":
            story.say(rank, at + 0.1, nccl.remote_error_trace(job, rank))
        if rng.random() < 0.3 and status != 5:
            story.say(rank, at + 0.2, nccl.ib_completion(rng, job, rank, at, peer, 5, 249, f"mlx5_{rank.local // 2}"))


def _pairs_with(story: Story, bad: Host, most: int = 5) -> list[tuple[Rank, Rank]]:
    """Pairs of ranks between the bad host and each of some others, same device number on both sides."""
    job, rng = story.job, story.rng
    others = [host for host in job.hosts if host is not bad]
    rng.shuffle(others)
    found = []
    for other in others[:most]:
        local = rng.randrange(len(job.of(other)))
        ends = job.of(other)[local], job.of(bad)[local]
        found.append(ends if rng.random() < 0.7 else ends[::-1])
    return found


def _event(rng: random.Random, fatal: bool) -> Story:
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8), world=(4, 64), oldest=_OLDEST)
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start()
    sprinkle(story)
    t = rng.uniform(100, 3000)
    story.train(t)
    event = "local catastrophic error" if fatal else "port error"
    hca = f"mlx5_{rng.randrange(4)}:1"
    for rank in job.of(bad)[: rng.randrange(1, 4)]:
        if job.nccl < (2, 20, 0):
            text, code = f"NET/IB : Got async event : {event}", "transport/net_ib.cc:95"
        elif job.nccl < (2, 23, 0):
            text, code = f"NET/IB : {hca} Got async event : {event}", "transport/net_ib.cc:101"
        elif fatal:
            text, code = f"NET/IB : {hca} async fatal event: {event}", "transport/net_ib.cc:168"
        elif job.nccl < (2, 28, 0):
            text, code = f"NET/IB : {hca} Got async error event: {event}", "transport/net_ib.cc:199"
        else:
            text, code = f"NET/IB : {hca} Got non-fatal async event: {event}(10)", "transport/net_ib/common.cc:134"
        told = job.words.warning("async event", job, code, text, event=event, hca=hca.removesuffix(":1"))
        story.say(rank, t + rng.random() / 9, nccl.warn(job, rank, t, *told, 6, 0))
    pairs = _pairs_with(story, bad)
    _completions(story, t + 1, pairs, 12, 129)
    _ends(story, t + 8, [rank for rank, _ in pairs])
    story.blame_host(bad)
    return story


def ib_device_fatal(rng: random.Random, index: int) -> Story:
    """A host's adapter reports a fatal event; its peers see completions that ran out of retries."""
    return _event(rng, fatal=True)


def ib_link_down(rng: random.Random, index: int) -> Story:
    """A host's adapter reports a port error; its peers see completions that ran out of retries."""
    return _event(rng, fatal=False)


def ib_completion_error(rng: random.Random, index: int) -> Story:
    """Retries ran out between pairs that have one host in common; with two hosts, neither can be told from the other."""
    two = index % 4 == 3
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2,) if two else (4, 8), world=(4, 64))
    story = Story(rng, job)
    story.start()
    sprinkle(story)
    t = rng.uniform(20, 3000)
    story.train(t)
    bad = rng.choice(job.hosts)
    pairs = _pairs_with(story, bad)
    if two:
        pairs.append(pairs[0][::-1])
        story.blame_host(*job.hosts)
        story.blames = (*story.blames, type(story.blames[0])())
        story.note("Two hosts blame each other: the link between them, so both or nobody.")
    else:
        pairs = (pairs * 2)[: max(3, len(pairs))]
        story.blame_host(bad)
        story.note("Every pair has this host at one end; no two other hosts have trouble with each other.")
    _completions(story, t, pairs, 12, 129)
    _ends(story, t + 8, list(dict.fromkeys(rank for rank, _ in pairs)))
    return story


def gdr_acs(rng: random.Random, index: int) -> Story:
    """Local protection errors, vendor error 81, on both sides: the GPU's memory cannot be reached by the adapter."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4), oldest=_OLDEST)
    story = Story(rng, job)
    story.start()
    sprinkle(story)
    pairs = []
    for one, two in zip(job.hosts, job.hosts[1:], strict=False):
        local = rng.randrange(len(job.of(one)))
        pairs += [(job.of(one)[local], job.of(two)[local]), (job.of(two)[local], job.of(one)[local])]
    _completions(story, 15, pairs, 4, 81)
    _ends(story, 22, list(dict.fromkeys(rank for rank, _ in pairs)))
    story.blame_unscored("Both sides report it: how all hosts are set up is to blame.")
    return story


def ib_unreachable_rail(rng: random.Random, index: int) -> Story:
    """A queue pair cannot be connected: ibv_modify_qp ends with a time-out or an unreachable network."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4))
    story = Story(rng, job)
    story.start()
    sprinkle(story)
    number, name = rng.choice(((110, "Connection timed out"), (101, "Network is unreachable")))
    told = []
    for one, two in zip(job.hosts, job.hosts[1:], strict=False):
        local = rng.randrange(len(job.of(one)))
        for rank, peer in ((job.of(one)[local], job.of(two)[local]), (job.of(two)[local], job.of(one)[local])):
            t = 14 + rng.random()
            if job.nccl >= (2, 24, 0):
                where = (
                    f"on dev mlx5_{local}:1, curr state INIT, next state RTR, local GID index 3, "
                    f"local GID ::ffff:{rank.host.address}, remote GID ::ffff:{peer.host.address}"
                )
                text = f"Call to ibv_modify_qp failed with {number} {name}, {where}"
            else:
                errno = f" errno {number}" if job.nccl >= (2, 20, 0) else ""
                text = f"Call to ibv_modify_qp failed with error {name}{errno}"
            code, text = job.words.warning(
                "modify qp", job, "misc/ibvwrap.cc:291", text, error=name, errno=number, hca=f"mlx5_{local}",
                local_gid=rank.host.address, remote_gid=peer.host.address,
            )  # fmt: skip
            story.say(rank, t, nccl.warn(job, rank, t, code, text, 4))
            if job.level == "INFO":
                codes = [
                    "transport/net_ib.cc:710",
                    "transport/net_ib.cc:838",
                    "transport/net.cc:683",
                    "transport.cc:33",
                ]
                story.say(rank, t + 0.1, nccl.trace(job, rank, codes, 2))
            error = nccl.torch_error(job, "system", text)
            story.say(rank, t + 1, torchlog.traceback(job, rank, torchlog.frames(job), error))
            told.append(rank)
    story.agents_end(17, {rank.rank: 1 for rank in told})
    story.blame_unscored("Both ends of the path report it: the route between them is to blame.")
    return story
