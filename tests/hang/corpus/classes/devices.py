"""CUDA fails, the topology cannot be used, or two hosts look like one: the GPUs and links as NCCL finds them."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random
from dataclasses import replace

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Host, Job, Rank, make_job
from ..story import Story
from .dead_ranks import any_victims

_NOT_RAY = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")
_AGENTS = ("torchrun", "torchrun", "accelerate", "deepspeed", "launch")
_OLDEST = (2, 4, 0)
_KERNEL = (
    (700, "an illegal memory access was encountered"), (710, "device-side assert triggered"),
    (719, "unspecified launch failure"), (716, "misaligned address"),
)  # fmt: skip
_HINT = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def _raises(story: Story, rank: Rank, t: float, error: str, call: str = "loss.backward()") -> None:
    job = story.job
    frames = torchlog.frames(job, (f"/workspace/{job.script}", 233, "train_step", call))
    story.say(rank, t, torchlog.traceback(job, rank, frames, error))


def _number(job: Job, number: int) -> str:
    return f"{number} " if job.nccl >= (2, 19, 0) else ""


def cuda_failure(rng: random.Random, index: int) -> Story:
    """A call of CUDA fails on one rank in the middle of the run, or on all ranks of one host before the first step.

    NCCL, torch or the watchdog of that rank prints CUDA's own words; it is neither out of memory nor a broken GPU.
    """
    kind = ("kernel", "driver", "kernel", "fabric", "kernel", "ordinal")[index % 6]
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, oldest=_OLDEST, nodes=(1, 2, 4) if kind == "kernel" else (2, 4),
                   torch=((2, 1, 0), (9, 0, 0)) if kind == "kernel" and index % 4 == 0 else ((1, 12, 0), (9, 0, 0)))  # fmt: skip
    story = Story(rng, job)
    if kind == "kernel":
        return _kernel_fails(story, rng.choice(job.ranks))
    bad = rng.choice(job.hosts)
    story.start(complete=False, only=tuple(rank for rank in job.ranks if rank.host is not bad))
    sprinkle(story, 2)
    if kind == "ordinal":
        return _no_such_device(story, job.of(bad)[-1])
    number, error = (
        (35, "CUDA driver version is insufficient for CUDA runtime version")
        if kind == "driver"
        else (802, "system not yet initialized")
    )
    for rank in job.of(bad):
        t = 8 + rng.random()
        if rng.random() < 0.6 or rank.local == 0:
            code, text = job.words.warning(
                "cuda start", job, "misc/cudawrap.cc:182", f"Cuda failure {_number(job, number)}'{error}'", error=error
            )
            story.say(rank, t, nccl.warn(job, rank, t, code, text))
            said = nccl.torch_error(job, "cuda", text if job.nccl >= (2, 14, 0) else "")
        else:
            said = (
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
                f"NumCudaDevices() that might have already set an error? Error {number}: {error}"
            )
        _raises(story, rank, t + 1, said, "dist.barrier()")
    others = [rank for rank in job.ranks if rank.host is not bad]
    story.lose_peers(14, list(job.of(bad)), share=0.4 if others else 0)
    story.agents_end(12, {rank.rank: 1 for rank in job.of(bad)})
    story.blame_host(bad)
    return story


def _kernel_fails(story: Story, bad: Rank) -> Story:
    rng, job = story.rng, story.job
    story.start()
    sprinkle(story)
    t = rng.uniform(60, 3000)
    story.train(t)
    number, error = rng.choice(_KERNEL)
    if rng.random() < 0.6:
        code, text = job.words.warning(
            "cuda warn",
            job,
            "enqueue.cc:1556",
            f"Cuda failure {_number(job, number)}'{error}'",
            error=error,
            number=_number(job, number),
        )
        story.say(bad, t, nccl.warn(job, bad, t, code, text))
        if job.level == "INFO":
            story.say(bad, t, nccl.trace(job, bad, ["enqueue.cc:1597", "group.cc:241", "group.cc:478"], 1))
    name = "torch.AcceleratorError" if job.torch >= (2, 8, 0) else "RuntimeError"
    _raises(
        story,
        bad,
        t + 0.1,
        job.words.text("cuda error", job, f"{name}: CUDA error: {error}\n{_HINT}", error=error, name=name),
    )
    if job.torch >= (2, 1, 0) and rng.random() < 0.7:
        group = torchlog.fields(job, bad, t, story.world)["pg"] if job.torch >= (2, 3, 0) else f"[Rank {bad.rank}]"
        whose = "Process group" if job.torch >= (2, 3, 0) else "NCCL"
        own = torchlog.log(
            job,
            bad,
            t + 1,
            "E",
            torchlog.lines_of(job)[5],
            f"{group} {whose} watchdog thread terminated with exception: CUDA error: {error}\n{_HINT}",
        )
        story.say(
            bad,
            t + 1,
            job.words.text("cuda watchdog", job, own, **torchlog.fields(job, bad, t + 1, story.world), error=error),
        )
    end = any_victims(story, [bad], t + 1)
    aborts = rng.random() < 0.5 and job.python_names_rank  # else only the exit code tells whose traceback it is
    story.agents_end(t + 2, {bad.rank: -6 if aborts else 1}, victims_at=end)
    known = job.level == "INFO" and any("NCCL WARN" in event.text and event.rank is bad for event in story.events)
    if known or job.python_names_rank or job.end_names_rank:
        story.blame_ranks(bad)
    else:
        story.blame_unscored("Neither prefix nor agent says which rank the error belongs to.")
    return story


def _no_such_device(story: Story, bad: Rank) -> Story:
    """More ranks than GPUs on one host: the last one finds none."""
    job = story.job
    text = f"RuntimeError: CUDA error: invalid device ordinal\n{_HINT}"
    _raises(story, bad, 7, text, "torch.cuda.set_device(local_rank)")
    story.lose_peers(14, [bad], share=0.4)
    story.agents_end(12, {bad.rank: 1})
    if job.python_names_rank or job.end_names_rank:
        story.blame_ranks(bad)
    else:
        story.blame_unscored("Neither the traceback nor what started the ranks says whose it is.")
    return story


def topology_error(rng: random.Random, index: int) -> Story:
    """NCCL's search over GPUs and links warns and gives up before the first communicator is ready.

    A file or a link of one host is wrong: that host says so. Or the ranks do not agree on a ring: all say so.
    """
    kind = ("attribute", "ring", "reverse", "net")[index % 4]
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, oldest=_OLDEST, nodes=(2, 4), nccl=((2, 20, 0), (9, 0, 0)) if kind == "reverse" else ((2, 10, 0), (9, 0, 0)))  # fmt: skip
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start(complete=False)
    sprinkle(story, 2)
    telling = list(job.ranks if kind == "ring" else job.of(bad))
    ring, bus, other = rng.randrange(4), rng.choice((0x200000, 0x1B000)), rng.choice((0x700000, 0x3D000))
    for rank in telling:
        t = 10 + rng.random()
        if kind == "attribute":
            own = "graph/xml.h:101", "Attribute arch of node cpu not found"
            codes = ["graph/topo.cc:493", "graph/topo.cc:623", "graph/topo.cc:773", "init.cc:889"]
        elif kind == "ring":
            own = (
                "graph/rings.cc:38",
                f"Error : ring {ring} does not loop back to start ({(rank.rank + 5) % job.world} != {rank.rank})",
            )
            codes = ["graph/connect.cc:281", "init.cc:771", "init.cc:878"]
        elif kind == "reverse":
            own = (
                "graph/paths.cc:82",
                f"Failed to find reverse path from remNode 0/{bus:x} nlinks 3 to node 0/{other:x}",
            )
            codes = ["graph/paths.cc:608", "init.cc:1248", "init.cc:1902"]
        else:
            own = "graph/search.cc:664", "XML Import Channel : dev 2 not found."
            codes = ["graph/search.cc:703", "graph/search.cc:760", "graph/search.cc:900", "init.cc:1005"]
        said = {
            "rank": rank.rank,
            "to": (rank.rank + 5) % job.world,
            "ring": ring,
            "bus": f"{bus:x}",
            "other": f"{other:x}",
        }
        code, text = job.words.warning(f"topology {kind}", job, *own, **said) if kind != "net" else own
        story.say(rank, t, nccl.warn(job, rank, t, code, text))
        if job.level == "INFO":
            story.say(rank, t, nccl.trace(job, rank, codes, 3))
        story.say(
            rank, t + 0.5, torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "internal", text))
        )
    if kind != "ring":
        story.lose_peers(12, telling, share=0.5)
    story.agents_end(13, {rank.rank: 1 for rank in telling})
    if kind == "ring":
        story.blame_unscored("All ranks say so: the hosts see different rings, and none is the wrong one by itself.")
    else:
        story.blame_host(bad)
    return story


def same_host_identity(rng: random.Random, index: int) -> Story:
    """Two hosts give NCCL the same identity, by one host name or one NCCL_HOSTID.

    NCCL then finds one GPU twice although the two ranks are on different hosts, or it joins ranks of one host name by
    P2P/IPC of which two have the same GPU.
    """
    if index % 2:
        return _one_name(rng)
    job = make_job(rng, launchers=_NOT_RAY, agents=_AGENTS, nodes=(2,), level="INFO", nccl=((2, 10, 0), (2, 30, 0)))
    story = Story(rng, job)
    story.start(complete=False)
    sprinkle(story, 2)
    each = len(job.of(job.hosts[0]))
    for rank in job.ranks:
        if rng.random() < 0.7:
            story.say(rank, 7.5, nccl.info(job, rank, "NCCL_HOSTID set by environment to train-pool"))
        t, other = 12 + rng.random(), job.ranks[(rank.rank + each) % job.world]
        text = f"Duplicate GPU detected : rank {rank.rank} and rank {other.rank} both on CUDA device {rank.bus:x}"
        code = "init.cc:525" if job.nccl < (2, 18, 0) else "init.cc:943" if job.nccl < (2, 29, 0) else "init.cc:974"
        said = {"rank": rank.rank, "other": other.rank, "device": f"{rank.bus:x}"}
        code, text = job.words.warning("duplicate gpu", job, code, text, **said)
        story.say(rank, t, nccl.warn(job, rank, t, code, text))
        story.say(rank, t + 0.1, nccl.trace(job, rank, ["init.cc:1358", "group.cc:65 "], 5, " [Async thread]"))
        story.say(
            rank, t + 0.5, torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "usage", text))
        )
    story.agents_end(15, {rank.rank: 1 for rank in job.ranks})
    story.blame_host(*job.hosts)
    story.note(
        "The two ranks of each pair are on hosts of different names and addresses, with GPUs at one PCI address."
    )
    return story


def _one_name(rng: random.Random) -> Story:
    job = make_job(
        rng,
        launchers=_NOT_RAY,
        agents=("torchrun",),
        nodes=(2,),
        level="INFO",
        layouts=("one", "rank"),
        oldest=_OLDEST,
    )
    name = job.hosts[0].name
    hosts = {host: replace(host, name=name) for host in job.hosts}
    ranks = tuple(
        replace(rank, host=hosts[rank.host], pid=rank.pid + 700 * (rank.host is not job.hosts[0])) for rank in job.ranks
    )
    job = replace(job, hosts=tuple(hosts.values()), ranks=ranks)
    story = Story(rng, job)
    sprinkle(story, 2)
    story.say(job.ranks[0], 7, nccl.version_said(job, job.ranks[0]))
    for rank in job.ranks:
        t = 8 + rng.random()
        story.say(rank, t, nccl.bootstrap(job, rank), nccl.no_plugin(job, rank))
        if nccl.prints_start(job):
            story.say(rank, t + 1, nccl.init_line(job, rank, "START"))
    for rank in job.ranks:
        peer = job.ranks[(rank.rank + 1) % job.world]
        index = (lambda r: f"{r.rank}[{r.bus:x}]") if job.nccl < (2, 18, 0) else (lambda r: f"{r.rank}[{r.local}]")
        story.say(
            rank, 11 + rng.random(), nccl.info(job, rank, f"Channel 00/0 : {index(rank)} -> {index(peer)} via P2P/IPC")
        )
    across = [rank for rank in job.ranks if job.ranks[(rank.rank + 1) % job.world].host is not rank.host]
    for rank in across:
        t = 13 + rng.random()
        own = "transport/p2p.cc:238", "failed to open CUDA IPC handle : 30 unknown error"
        if job.nccl >= (2, 14, 0):
            own = "transport/p2p.cc:275", f"Cuda failure {_number(job, 400)}'invalid resource handle'"
        code, text = job.words.warning("ipc handle", job, *own)
        story.say(rank, t, nccl.warn(job, rank, t, code, text))
        story.say(rank, t + 0.1, nccl.trace(job, rank, ["transport.cc:68", "init.cc:766", "init.cc:840"], 1))
        story.say(rank, t + 0.5, torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "cuda")))
    story.agents_end(15, {rank.rank: 1 for rank in across})
    story.blame_host(_named(job, name))
    story.note("Both hosts bear one name, and NCCL opens the memory of GPUs of the other one as if they were its own.")
    return story


def _named(job: Job, name: str) -> Host:
    return next(host for host in job.hosts if host.name == name)
