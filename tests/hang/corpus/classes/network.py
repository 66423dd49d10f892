"""Sockets, interfaces, and hosts that are set up differently."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random
from dataclasses import replace

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Host, Rank, make_job
from ..story import Story
from ..torchlog import Work

_LAUNCHERS = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")
_AGENTS = ("torchrun", "torchrun", "accelerate", "deepspeed", "launch")
_OLDEST = (2, 4, 0)


def _fails(story: Story, rank: Rank, t: float, kind: str, last: str) -> None:
    job = story.job
    error = nccl.torch_error(job, kind, last)
    story.say(rank, t, torchlog.traceback(job, rank, torchlog.frames(job), error))


def _port(rng: random.Random) -> int:
    return rng.randrange(30000, 60000)


def net_no_interface(rng: random.Random, index: int) -> Story:
    """NCCL finds no interface on one host; the hosts that have one wait for it."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4), oldest=_OLDEST, agents=_AGENTS)
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    good = tuple(rank for rank in job.ranks if rank.host is not bad)
    no_id = bad is job.hosts[0]  # rank 0 never gave NCCL's id to the others: they have not begun
    story.start(complete=False, only=() if no_id else good)
    sprinkle(story, 2)
    wanted = rng.choice(("eth9", "ibs8f0", "enp12s0"))
    oob = index % 3 == 2 and job.nccl >= (2, 23, 0)
    for rank in job.of(bad):
        t = 8 + rng.random()
        if job.level == "INFO":
            story.say(rank, t, nccl.info(job, rank, f"NCCL_SOCKET_IFNAME set by environment to {wanted}"))
        if oob:
            text, code = f"no device found matching {wanted}, verify NCCL_OOB_NET_IFNAME", "bootstrap.cc:516"
        elif index % 3 == 1:
            text, code = "NET/Socket : no interface found", "transport/net_socket.cc:46"
        else:
            text, code = "Bootstrap : no socket interface found", "bootstrap.cc:45"
            code, text = job.words.warning("no interface", job, code, text)
        story.say(rank, t + 0.2, nccl.warn(job, rank, t, code, text))
        _fails(story, rank, t + 1, "usage" if job.nccl >= (2, 19, 0) else "internal", text)
    for rank in good:
        if no_id and rng.random() < 0.4:
            error = torchlog.store_get(job, rank, "Connection reset by peer")
            name = "torch.distributed.DistBackendError" if job.torch >= (2, 1, 0) else "RuntimeError"
            story.say(rank, 40 + rng.random(), torchlog.traceback(job, rank, torchlog.frames(job), f"{name}: {error}"))
    story.agents_end(12, {rank.rank: 1 for rank in job.of(bad)})
    story.blame_host(bad)
    return story


def net_wrong_interface(rng: random.Random, index: int) -> Story:
    """One host (or all) offers a bridge or loopback address that no other host can reach; connects to it fail."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4), level="INFO", oldest=_OLDEST, agents=_AGENTS)
    story = Story(rng, job)
    everywhere = index % 4 == 3
    bad = job.hosts if everywhere else (rng.choice(job.hosts),)
    name, address = rng.choice(
        (("docker0", "172.17.0.1"), ("veth1a2b3c", "169.254.17.9"), ("virbr0", "192.168.122.1"), ("lo", "127.0.0.1"))
    )
    story.say(job.ranks[0], 7, nccl.version_said(job, job.ranks[0]))
    sprinkle(story, 2)
    for rank in job.ranks:
        wrong = rank.host in bad
        t = 8 + rng.random()
        story.say(rank, t, nccl.bootstrap(job, rank, address if wrong else "", name if wrong else ""))
        if nccl.prints_start(job):
            story.say(rank, t + 1, nccl.init_line(job, rank, "START"))
    for rank in job.ranks:
        if (rank.host in bad and not everywhere) or rng.random() < 0.3:
            continue
        t = 20 + rng.uniform(0, 20)
        peer = f"{address}<{_port(rng)}>"
        lines = nccl.connect_refused(job, rank, t, peer, "Connection refused", 3)
        if real := job.words.find("unreachable", job):
            lines = [nccl.warn(job, rank, t, real.code, real.template.format(peer=peer), 2)]
        story.say(rank, t, *lines)
        _fails(story, rank, t + 1, "remote" if job.nccl >= (2, 14, 0) else "system", lines[-1].split("WARN ")[-1])
    story.agents_end(50, {rank.rank: 1 for rank in job.ranks if rank.host not in bad} or {0: 1})
    if everywhere:
        story.blame_unscored("Every host offers that interface: NCCL_SOCKET_IFNAME is to blame.")
    else:
        story.blame_host(*bad)
    return story


def _connect(rng: random.Random, error: str) -> Story:
    bounds = ((2, 16, 0), (9, 0, 0)) if error == "Connection timed out" else ((2, 10, 0), (9, 0, 0))
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8), world=(4, 64), level="INFO", nccl=bounds)
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start(complete=False)
    sprinkle(story, 3)
    others = [rank for rank in job.ranks if rank.host is not bad]
    for rank in rng.sample(others, min(len(others), rng.randrange(2, 6))):
        t = 20 + rng.uniform(0, 40)
        lines = nccl.connect_refused(job, rank, t, f"{bad.address}<{_port(rng)}>", error, 4)
        story.say(rank, t, *lines)
        story.say(
            rank,
            t + 0.1,
            nccl.trace(job, rank, ["misc/socket.cc:567", "misc/socket.cc:621", "bootstrap.cc:424", "init.cc:890"], 6),
        )
        _fails(story, rank, t + 1, "remote" if job.nccl >= (2, 14, 0) else "system", lines[-1].split("WARN ")[-1])
    story.agents_end(64, {others[0].rank: 1})
    if nccl.names_peer(job):
        story.blame_host(bad)
    else:
        story.blame_unscored("NCCL 2.16 to 2.26 do not print the address that they cannot connect to.")
    return story


def net_connect_timeout(rng: random.Random, index: int) -> Story:
    """Connects to one host time out from 2.16 on; where the address is printed, it is the same in all."""
    return _connect(rng, "Connection timed out")


def net_connect_refused(rng: random.Random, index: int) -> Story:
    """Connects to one host are refused, and its own log shows neither a death nor an error."""
    return _connect(rng, "Connection refused")


def net_connection_lost(rng: random.Random, index: int) -> Story:
    """Established connections to one host break for all others, and that host says nothing more: it, or its cable, went."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8), world=(4, 64), level="INFO")
    story = Story(rng, job)
    bad = rng.choice(job.hosts[1:])
    story.start()
    sprinkle(story)
    t = rng.uniform(100, 3000)
    story.train(t)
    gone = list(job.of(bad))
    others = [rank for rank in job.ranks if rank not in gone]
    error = rng.choice(("Connection timed out", "Connection reset by peer", "No route to host"))
    told = rng.sample(others, max(1, len(others) * 2 // 3))
    for rank in told:
        at = t + rng.uniform(0.1, 4)
        address = f"{bad.address}<{_port(rng)}>"
        story.say(
            rank,
            at,
            nccl.closed(job, rank, at, address)
            if rng.random() < 0.3
            else nccl.recv_failed(job, rank, at, address, error),
        )
        story.say(
            rank,
            at + 0.1,
            nccl.trace(
                job,
                rank,
                ["misc/socket.cc:58", "transport/net_socket.cc:493", "transport/net.cc:1134", "proxy.cc:694"],
                6,
                " [Progress Thread]",
            ),
        )
        text = f"NCCL error: remote process exited or there was a network error, NCCL version {'.'.join(map(str, job.nccl))}"
        story.say(rank, at + 1, *torchlog.terminated_by_error(job, rank, at + 1, story.world, text, bad.address))
    for host in job.hosts:
        dead = [rank for rank in told if rank.host is host]
        if job.elastic and host is not bad and dead:
            story.launcher(host, t + 9, torchlog.agent_failed(job, host, t + 9, dead[0], -6))
            story.launcher(host, t + 9.2, torchlog.child_failed(job, host, [(rank, -6, t + 8) for rank in dead]))
    story.blame_host(bad)
    return story


def nccl_version_mismatch(rng: random.Random, index: int) -> Story:
    """Hosts print different NCCL versions; from 2.23 on NCCL says so itself, before that it reads garbage or hangs."""
    newer = index % 2 == 0
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8) if index % 3 else (4, 8), world=(4, 64), level="INFO",
                   nccl=((2, 26, 0), (2, 29, 0)) if newer else ((2, 14, 0), (2, 22, 0)))  # fmt: skip
    story = Story(rng, job)
    bad = rng.choice(job.hosts[1:])
    other = replace(job, nccl=(2, 27, 3) if job.nccl[:2] == (2, 26) else (2, 26, 2)) if newer else replace(
        job, nccl=(2, 18, 5) if job.nccl[:2] != (2, 18) else (2, 20, 5)
    )  # fmt: skip
    sprinkle(story, 2)
    number = lambda v: v[0] * 10000 + v[1] * 100 + v[2]  # noqa: E731
    for rank in job.ranks:
        mine = other if rank.host is bad else job
        t = 8 + rng.random()
        if rank.local == 0:
            story.say(rank, t, nccl.info(mine, rank, nccl.version_line(mine)))
        story.say(rank, t + 0.1, nccl.bootstrap(mine, rank), nccl.no_plugin(mine, rank))
        if nccl.prints_start(mine):
            story.say(rank, t + 1, nccl.init_line(mine, rank, "START"))
    good = next(rank for rank in job.ranks if rank.host is not bad)
    odd = job.of(bad)[0]
    for rank in job.ranks:
        mine, seen = (other, good) if rank.host is bad else (job, odd)
        t = 14 + rng.random()
        if newer:
            theirs = job if rank.host is bad else other
            text = f"Mismatched NCCL version detected : rank {seen.rank} version {number(theirs.nccl)} rank {rank.rank} version {number(mine.nccl)}"
            story.say(rank, t, nccl.warn(mine, rank, t, "init.cc:729", text))
            _fails(story, rank, t + 1, "usage", text)
        elif rng.random() < 0.5:
            text = (
                f"Message truncated : received {rng.choice((28, 40, 64))} bytes instead of {rng.choice((36, 48, 256))}"
            )
            code, text = job.words.warning("bootstrap truncated", mine, "bootstrap.cc:77", text)
            story.say(rank, t, nccl.warn(mine, rank, t, code, text))
            _fails(story, rank, t + 1, "internal", text)
    story.agents_end(18, {good.rank: 1, odd.rank: 1})
    if len(job.hosts) > 2:
        story.blame_host(bad)
    else:
        story.blame_unscored("Two hosts, two versions: neither is the wrong one by itself.")
    return story


def _differs(story: Story, bad: Host) -> None:
    if len(story.job.hosts) > 2:
        story.blame_host(bad)
    else:
        story.blame_unscored("Two hosts that differ: neither is the wrong one by itself.")


def env_mismatch(rng: random.Random, index: int) -> Story:
    """The hosts print different plugins or NCCL_* settings, or the root counts other ranks than it was told."""
    kind = index % 3
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8) if kind == 1 else (4, 8), world=(4, 64), level="INFO",
                   nccl=((2, 14, 0), (9, 0, 0)))  # fmt: skip
    story = Story(rng, job)
    bad = rng.choice(job.hosts[1:])
    sprinkle(story, 2)
    story.say(job.ranks[0], 7, nccl.version_said(job, job.ranks[0]))
    root = job.ranks[0]
    if kind == 1:
        for rank in job.ranks:
            story.say(rank, 8 + rng.random(), nccl.bootstrap(job, rank))
        wrong = job.world // 2
        if job.nccl < (2, 23, 0):
            text = f"Bootstrap Root : mismatch in rank count from procs {job.world} : {wrong}"
            _, text = job.words.warning("root counts", job, "", text, world=job.world, other=wrong)
        else:
            tail = ", offset 0 vs 0" if job.nccl >= (2, 29, 0) else ""
            text = f"Bootstrap Root : mismatch in info from procs, nranks {job.world} vs {wrong}, nroots 1 vs 1, iroot 0 vs 0{tail}"
        if index % 6 == 1:
            text = f"Bootstrap Root : rank {job.of(bad)[0].rank} of {job.world} ranks has already checked in"
        story.say(root, 12, nccl.warn(job, root, 12, "bootstrap.cc:312", text))
        for rank in job.ranks[1:4]:
            _fails(
                story,
                rank,
                14,
                "remote",
                f"socketProgress: Connection closed by remote peer {root.host.name}<{_port(rng)}>",
            )
        story.agents_end(16, {rank.rank: 1 for rank in job.ranks[1:4]})
        story.blame_unscored("The root does not say which process gave the other number.")
        return story
    for rank in job.ranks:
        t = 8 + rng.random()
        odd = rank.host is bad
        story.say(rank, t, nccl.bootstrap(job, rank))
        if kind == 0:  # a network plugin on all hosts but one
            if odd:
                story.say(rank, t + 0.1, nccl.no_plugin(job, rank), nccl.info(job, rank, "Using network Socket"))
            else:
                text = "Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so"
                story.say(rank, t + 0.1, nccl.info(job, rank, text), nccl.info(job, rank, "Using network IBext"))
        else:
            for name, usual, other in (("NCCL_PROTO", "Simple", "LL128"), ("NCCL_ALGO", "Ring", "Tree")):
                story.say(
                    rank, t + 0.1, nccl.info(job, rank, f"{name} set by environment to {other if odd else usual}")
                )
            story.say(rank, t + 0.2, nccl.info(job, rank, "Using network Socket"))
        if nccl.prints_start(job):
            story.say(rank, t + 1, nccl.init_line(job, rank, "START"))
        if kind == 2:
            story.say(rank, t + 3, nccl.init_line(job, rank, "COMPLETE"))
    if kind == 2:
        for rank in job.of(bad)[:1]:
            peer = rng.choice([r for r in job.ranks if r.host is not bad])
            state = "a healthy" if job.nccl >= (2, 27, 0) else "healthy"
            text = (
                f"NET/Socket : peer {peer.host.address}<{_port(rng)}> message truncated : receiving 524288 bytes instead of 65536. "
                f"If you believe your socket network is in {state} state, there may be a mismatch in collective sizes or environment settings (e.g. NCCL_PROTO, NCCL_ALGO) between ranks"
            )
            code = "transport/net_socket.cc:486"
            code, text = job.words.warning(
                "socket truncated", job, code, text, peer=f"{peer.host.address}<{_port(rng)}>"
            ) if job.words.real else (code, text)  # fmt: skip
            story.say(rank, 20, nccl.warn(job, rank, 20, code, text, 4))
            _fails(story, rank, 21, "usage", text)
        story.agents_end(22, {job.of(bad)[0].rank: 1})
    else:
        story.time_out(list(job.ranks), 20 + job.timeout_ms / 1e3, Work(1, "ALLREDUCE", 1))
    _differs(story, bad)
    return story
