"""What the job needs beside its GPUs: a port, an adapter's calls, a file system, and a scheduler that lets it run."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Host, Job, Rank, make_job
from ..story import Story
from .dead_ranks import any_victims

_NOT_RAY = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")
_ELASTIC = ("torchrun", "torchrun", "tee", "pdsh", "kubernetes")
_AGENTS = ("torchrun", "torchrun", "accelerate", "deepspeed", "launch")
_OLDEST = (2, 4, 0)


def _warns(
    story: Story,
    rank: Rank,
    t: float,
    warning: tuple[str, str],
    codes: list[str],
    kind: str = "system",
    result: int = 2,
) -> None:
    """NCCL's warning, its return codes, and the exception that torch makes of them."""
    job = story.job
    code, text = warning
    story.say(rank, t, nccl.warn(job, rank, t, code, text))
    if job.level == "INFO":
        story.say(rank, t + 0.1, nccl.trace(job, rank, codes, result))
    error = nccl.torch_error(job, kind, text if job.nccl >= (2, 14, 0) else "")
    story.say(rank, t + 0.5, torchlog.traceback(job, rank, torchlog.frames(job), error))


def net_bind_failed(rng: random.Random, index: int) -> Story:
    """A port is in use, or an address is none of the host's: torch's store or NCCL's bootstrap cannot bind it.

    The process that wants it says so and ends; nobody listens there for the others. torch before 1.11 does not say which
    port it was.
    """
    if index % 2 == 0:
        return _store_cannot_bind(rng)
    in_use = index % 4 == 1
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, oldest=_OLDEST, nodes=(2, 4))
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    error = "Address already in use" if in_use else "Cannot assign requested address"
    t = rng.uniform(100, 3000) if in_use else 9.0
    story.start(complete=in_use, only=None if in_use else tuple(rank for rank in job.ranks if rank.host is not bad))
    sprinkle(story, 2)
    if in_use:
        story.train(t)
    telling = list(job.of(bad))[: rng.randrange(1, len(job.of(bad)) + 1)]
    for rank in telling:
        at = t + rng.random()
        if not in_use and job.level == "INFO":
            story.say(rank, at - 0.5, nccl.bootstrap(job, rank))
        own = f"Call to bind failed {'' if job.nccl >= (2, 27, 0) else ': '}{error}".replace(
            "failed Addr", "failed: Addr"
        ).replace("failed Cannot", "failed: Cannot")
        code = "misc/socket.cc:409" if job.nccl >= (2, 16, 0) else "include/socket.h:333"
        said = job.words.warning("bind nccl", job, code, own, error=error)
        _warns(story, rank, at, said, ["bootstrap.cc:176", "bootstrap.cc:201", "init.cc:96"])
    story.lose_peers(t + 2, telling, share=0.5)
    story.agents_end(t + 3, {rank.rank: 1 for rank in telling})
    story.blame_host(bad)
    return story


def _store_cannot_bind(rng: random.Random) -> Story:
    job = make_job(
        rng,
        launchers=("srun", "mpirun", "torchrun", "torchrun", "pdsh"),
        agents=("torchrun",),
        nodes=(1, 2, 4),
        layouts=("one", "rank", "host"),
    )
    story = Story(rng, job)
    first, port = job.ranks[0], rng.choice((29500, 29501, 25641, 6000))
    sprinkle(story, 2)
    t = 3 + rng.random()
    at = 464 if job.torch >= (2, 2, 0) else 426 if job.torch >= (1, 13, 0) else 401
    lines = [
        torchlog.log(job, first, t, "W", at, f"[c10d] The server socket has failed to bind to {where}:{port} (errno: 98 - Address already in use).", "socket.cpp")
        for where in ("[::]", "0.0.0.0")
    ] + [torchlog.log(job, first, t, "E", at + 36, "[c10d] The server socket has failed to listen on any local network address.", "socket.cpp")]  # fmt: skip
    name = "torch.distributed.DistNetworkError" if job.torch >= (2, 1, 0) else "RuntimeError"
    error = f"{name}: The server socket has failed to listen on any local network address. "
    if job.torch >= (2, 4, 0):
        lines = []
        error += f"port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    else:
        error += f"The server socket has failed to bind to [::]:{port} (errno: 98 - Address already in use). The server socket has failed to bind to 0.0.0.0:{port} (errno: 98 - Address already in use)."
    said = {**torchlog.fields(job, first, t, story.world), "port": port}
    told = job.words.find("bind store", job)
    story.say(first, t, *([told.template.format(**said)] if told else lines))
    raised = job.words.text("bind raised", job, error, **said)
    story.say(first, t + 0.2, torchlog.traceback(job, first, torchlog.frames(job, _INIT), raised))
    for rank in [rank for rank in job.ranks if rank.host is not first.host][:6]:
        refused = f"[c10d] The client socket has failed to connect to [{first.host.name}]:{port} (errno: 111 - Connection refused)."
        story.say(rank, t + 1 + rng.random(), torchlog.log(job, rank, t + 1, "W", 663, refused, "socket.cpp"))
    story.agents_end(t + 3, {first.rank: 1})
    story.blame_host(first.host)
    story.note("The store's port is taken on the host of rank 0, which serves it.")
    return story


_INIT = (
    "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py",
    189,
    "_create_c10d_store",
    "return TCPStore(",
)


def net_failure(rng: random.Random, index: int) -> Story:
    """NCCL's network code, its plugin, or the resolver of names fails with an error that no finer class has.

    The errors are those of one host (its adapter, its limits). A name that several cannot resolve is nobody's fault.
    """
    kind = ("register", "plugin", "accept", "name")[index % 4]
    job = make_job(
        rng,
        launchers=_NOT_RAY,
        agents=_AGENTS,
        nodes=(2, 4, 8),
        torch=((1, 12, 0), (9, 0, 0)),
        oldest=None if kind == "name" else _OLDEST,
    )
    story = Story(rng, job)
    if kind == "name":
        return _no_name(story)
    bad = rng.choice(job.hosts)
    story.start(complete=kind != "accept")
    sprinkle(story, 2)
    t = rng.uniform(14, 300)
    if kind != "accept":
        story.train(t)
    telling = list(job.of(bad))[: rng.randrange(1, len(job.of(bad)) + 1)]
    for rank in telling:
        at = t + rng.random()
        if kind == "register":
            own = (
                "misc/ibvwrap.cc:182",
                f"Call to {'ibv_reg_mr_iova2' if job.nccl >= (2, 12, 0) else 'ibv_reg_mr'} failed with error Invalid argument",
            )
            codes = ["transport/net_ib.cc:1455", "transport/net.cc:688", "proxy.cc:1518"]
        elif kind == "plugin":
            own = (
                "register_mr_buffers:544",
                f"NET/OFI Unable to register memory (type = 2) for device {rank.local // 2}. RC: -22, Error: Invalid argument",
            )
            codes = ["include/net.h:23", "transport/net.cc:223", "transport.cc:111"]
        else:
            own = (
                "misc/socket.cc:415",
                rng.choice(
                    (
                        "socketTryAccept: Accept failed: Bad file descriptor",
                        "socketTryAccept: Accept failed: Too many open files",
                    )
                ),
            )
            codes = ["misc/socket.cc:559", "misc/socket.cc:666", "bootstrap.cc:280", "init.cc:1388"]
        said = job.words.warning(f"net {kind}", job, *own, device=rank.local // 2) if kind != "register" else own
        _warns(story, rank, at, said, codes)
    story.lose_peers(t + 2, telling, share=0.5)
    story.agents_end(t + 3, {rank.rank: 1 for rank in telling})
    story.blame_host(bad)
    return story


def _no_name(story: Story) -> Story:
    rng, job = story.rng, story.job
    first, port = job.hosts[0], 29500
    sprinkle(story, 2)
    story.start(complete=False, only=())
    telling = [rank for rank in job.ranks if rank.host is not first]
    at = 752 if job.torch >= (2, 6, 0) else 601 if job.torch >= (1, 13, 0) else 558
    for rank in telling:
        t = 5 + rng.random()
        lines = [
            torchlog.log(job, rank, t, "W", at, f"[c10d] The {family} network addresses of ({first.name}, {port}) cannot be retrieved (gai error: -2 - Name or service not known).", "socket.cpp")
            for family in ("IPv6", "IPv4")
        ]  # fmt: skip
        real = job.words.find("no name", job)
        said = {**torchlog.fields(job, rank, t, story.world), "port": port}
        story.say(rank, t, *([real.template.format(**said)] if real else lines))
        name = "torch.distributed.DistNetworkError" if job.torch >= (2, 1, 0) else "RuntimeError"
        error = f"{name}: The client socket has failed to connect to any network address of ({first.name}, {port}). The IPv6 network addresses of ({first.name}, {port}) cannot be retrieved (gai error: -2 - Name or service not known). The IPv4 network addresses of ({first.name}, {port}) cannot be retrieved (gai error: -2 - Name or service not known)."
        story.say(rank, t + 20, torchlog.traceback(job, rank, torchlog.frames(job, _INIT), error))
    story.agents_end(27, {rank.rank: 1 for rank in telling})
    story.accept = ("net_connect_timeout",)
    story.blame_unscored(
        "The resolver does not know the name: neither host is at fault. In effect nobody answers at that name."
    )
    return story


_FULL = (
    "OSError: [Errno 28] No space left on device: '/output/checkpoint-1000/optimizer.pt'",
    "OSError: [Errno 122] Disk quota exceeded: '/output/checkpoint-1000'",
    "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/412: file write failed",
    "OSError: [Errno 5] Input/output error: '/data/shards/shard-00412.tar'",
    "OSError: [Errno 116] Stale file handle: '/data/shards/shard-00098.tar'",
    "OSError: [Errno 30] Read-only file system: '/output/checkpoint-1000'",
)


def storage(rng: random.Random, index: int) -> Story:
    """A rank's traceback ends with an error of the file system; the others lose that rank, or wait for it.

    Where a mount of one host is lost, all its ranks say so.
    """
    mount = index % 4 == 3
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, oldest=_OLDEST, nodes=(2, 4) if mount else (1, 1, 2, 4))
    story = Story(rng, job)
    bad = rng.choice(job.ranks)
    telling = list(job.of(bad.host)) if mount else [bad]
    story.start()
    sprinkle(story)
    t = rng.uniform(60, 3000)
    story.train(t)
    error = "OSError: [Errno 116] Stale file handle: '/data/shards'" if mount else rng.choice(_FULL)
    call = (
        f"/workspace/{job.script}",
        301,
        "save" if "check" in error or "Writer" in error else "read",
        "torch.save(state, path)" if "Writer" in error else "with open(path, mode) as file:",
    )
    for rank in telling:
        said = error if mount else job.words.text("storage", job, error)
        story.say(rank, t + rng.random() / 2, torchlog.traceback(job, rank, torchlog.frames(job, call), said))
    end = any_victims(story, telling, t + 1)
    story.agents_end(t + 2, {rank.rank: 1 for rank in telling}, victims_at=end)
    if mount:
        if job.python_names_rank or job.layout == "rank" or job.elastic:
            story.blame_host(bad.host)
        else:
            story.blame_unscored("Nothing ties the tracebacks to a host.")
    elif job.python_names_rank or job.end_names_rank:
        story.blame_ranks(bad)
    else:
        story.blame_unscored("Neither the traceback nor what started the ranks says whose it is.")
    return story


def stale_store(rng: random.Random, index: int) -> Story:
    """The store of the job still counts the workers of an earlier attempt: more than the world has are at its barrier.

    All ranks wait there until it times out; nobody is missing.
    """
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, torch=((1, 12, 0), (2, 1, 0)))
    story = Story(rng, job)
    sprinkle(story, 2)
    counted = job.world * rng.randrange(2, 5) - (rng.randrange(job.world) if index % 3 == 0 else 0)
    key = "store_based_barrier_key:1"
    counts = f"(world_size={job.world}, worker_count={counted}, timeout=0:30:00)"
    for rank in job.ranks:
        for at in range(20, 60, 10) if index % 2 else (20,):
            waits = "Waiting in store based barrier to initialize process group for rank"
            story.say(
                rank,
                at + rng.random(),
                f"INFO:torch.distributed.distributed_c10d:{waits}: {rank.rank}, key: {key} {counts}",
            )
        error = f"RuntimeError: Timed out initializing process group in store based barrier on rank {rank.rank}, for key: {key} {counts}"
        story.say(
            rank,
            1820 + rng.random(),
            torchlog.traceback(job, rank, torchlog.frames(job), error.replace("rank ", "rank: ", 1)),
        )
    story.agents_end(1823, {rank.rank: 1 for rank in job.ranks})
    story.blame_nobody("The earlier attempt is not in these logs; all ranks of this one wait.")
    return story


def job_cancelled(rng: random.Random, index: int) -> Story:
    """The scheduler prints why it ended the job, or the launcher got a person's signal, in the middle of the training.

    No rank failed before; what ranks and launchers print afterwards is about being ended.
    """
    kind = ("limit", "signal", "preempted", "signal", "evicted")[index % 5]
    launchers = {"signal": _ELASTIC, "evicted": ("kubernetes",)}.get(kind, ("srun",))
    agents = ("torchrun", "accelerate") if kind == "signal" else _AGENTS
    job = make_job(rng, launchers=launchers, agents=agents, oldest=_OLDEST)
    story = Story(rng, job)
    story.start()
    sprinkle(story)
    t = rng.uniform(300, 4000)
    story.train(t)
    first = job.hosts[0]
    if kind == "signal":
        _interrupted(story, t, rng.choice((1, 2)))
    elif kind == "evicted":
        story.accept = ("storage",)  # the kubelet names what ran out
        pod = first.name
        story.launcher(
            first,
            t,
            f"Name:             {pod}\nStatus:           Failed\nReason:           Evicted\nMessage:          The node was low on resource: ephemeral-storage.",
        )
        for host in job.hosts:
            text = torchlog.agent(job, host, t + 1, "W", 741, "Received 15 death signal, shutting down workers")
            story.launcher(
                host, t + 1, text, *[torchlog.agent_stops(job, host, t + 1.1, rank) for rank in job.of(host)]
            )
    else:
        number, stamp = rng.randrange(1000, 90000), f"{job.clock(first, t):%Y-%m-%dT%H:%M:%S}"
        why = "DUE TO TIME LIMIT" if kind == "limit" else "DUE TO PREEMPTION"
        own = f"slurmstepd: error: *** JOB {number} ON {first.name} CANCELLED AT {stamp} {why} ***\nslurmstepd: error: *** STEP {number}.0 ON {first.name} CANCELLED AT {stamp} {why} ***\nsrun: Job step aborted: Waiting up to 32 seconds for job step to finish."
        story.launcher(first, t, job.words.text(f"slurm {kind}", job, own, job=number, host=first.name, iso=stamp))
        for rank in job.ranks:
            if rng.random() < 0.3:
                story.launcher(first, t + 2, f"srun: error: {rank.host.name}: task {rank.rank}: Terminated")
    if rng.random() < 0.5 and job.torch >= (2, 4, 0):
        rank = rng.choice(job.ranks)
        story.say(rank, t + 3, torchlog.should_dump(job, rank, t + 3, story.world))
    story.blame_nobody("It was ended from outside; no rank is at fault.")
    return story


def _interrupted(story: Story, t: float, number: int) -> None:
    """Ctrl-C, or a terminal that went away: the agents pass it on."""
    job = story.job
    name = {1: "SIGHUP", 2: "SIGINT"}[number]
    for host in job.hosts:
        at = t + story.rng.random()
        story.launcher(host, at, _death(job, host, at, number))
        for rank in job.of(host):
            text = f"Sending process {rank.pid} closing signal {name}"
            story.launcher(host, at + 0.1, torchlog.agent(job, host, at + 0.1, "W", 900, text))
        raised = f"torch.distributed.elastic.multiprocessing.api.SignalException: Process {job.of(host)[0].pid - 40} got signal: {number}"
        trace = job.words.find("agent traceback", job)
        before = (
            trace.template.rsplit("\n", 1)[0]
            if trace
            else 'Traceback (most recent call last):\n  File "/opt/venv/bin/torchrun", line 8, in <module>\n    sys.exit(main())'
        )
        story.launcher(host, at + 2, f"{before}\n{raised}")


def _death(job: Job, host: Host, t: float, number: int) -> str:
    now, text = job.clock(host, t), f"Received {number} death signal, shutting down workers"
    stamp = f"{now:%m%d %H:%M:%S}.{now.microsecond // 1000:03d}000"
    pid = job.of(host)[0].pid - 40
    if job.torch < (2, 1, 0):
        own = f"WARNING:torch.distributed.elastic.agent.server.api:{text}"
    elif job.torch < (2, 3, 0):
        own = f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] torch.distributed.elastic.agent.server.api: [WARNING] {text}"
    else:
        own = f"W{stamp} {pid} torch/distributed/elastic/agent/server/api.py:719] {text}"
    return job.words.text("agent signal", job, own, number=number, agent_stamp=stamp, agent_pid=pid)
