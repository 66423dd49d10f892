"""A resource of a host runs out or is set up wrongly; NCCL says so on every rank there."""

from __future__ import annotations

import random

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Host, make_job
from ..story import Story

_LAUNCHERS = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes", "ray")
_AGENTS = ("torchrun", "torchrun", "accelerate", "deepspeed", "launch")
_OLDEST = (2, 4, 0)


def _others_wait(story: Story, bad: Host, t: float) -> None:
    """Ranks of other hosts lose their peers, or their store."""
    gone = list(story.job.of(bad))
    if len(gone) < story.job.world:
        story.lose_peers(t, gone, share=0.4)


def _which(story: Story, bad: Host) -> None:
    """The host, or with a single host nobody needs naming."""
    if len(story.job.hosts) == 1:
        story.blame_host(bad)
        story.blames = (*story.blames, type(story.blames[0])())
        story.note("There is only one host: naming nobody is right too.")
    else:
        story.blame_host(bad)


def shm_exhausted(rng: random.Random, index: int) -> Story:
    """NCCL cannot make its segment in /dev/shm on one host."""
    job = make_job(rng, launchers=_LAUNCHERS, oldest=_OLDEST, agents=_AGENTS)
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start(complete=False)
    sprinkle(story)
    for rank in job.of(bad)[: rng.randrange(1, len(job.of(bad)) + 1)]:
        t = 12 + rng.random()
        size = rng.choice((9637888, 5767524, 33030656, 10485888))
        path = f"/dev/shm/nccl-{''.join(rng.choices('abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789', k=6))}"
        said = {"path": path, "bytes": size + 20, "size": size, "hex": f"{rank.comm:x}"}
        if job.nccl < (2, 12, 0):
            extend = "include/shm.h:28", "Call to posix_fallocate failed : No space left on device"
            segment = f"nccl-shm-send-{rank.bus:x}-0-1-2"
            create = "include/shm.h:48", f"Error while creating shared memory segment {segment} (size {size})"
            codes = ["transport/shm.cc:101", "transport.cc:30", "init.cc:777"]
        else:
            told = ", error: No space left on device (28)" if job.nccl >= (2, 26, 0) else ""
            extend = "misc/shmutils.cc:72", f"Error: failed to extend {path} to {size + 20} bytes{told}"
            create = "misc/shmutils.cc:113", f"Error while creating shared memory segment {path} (size {size}){told}"
            codes = ["transport/shm.cc:114", "transport.cc:33", "transport.cc:97", "init.cc:1117"]
        story.say(rank, t, nccl.warn(job, rank, t, *job.words.warning("shm extend", job, *extend, **said)))
        if job.level == "INFO" and job.nccl >= (2, 12, 0):
            story.say(rank, t, nccl.info(job, rank, "misc/shmutils.cc:93 -> 2"))
        create = job.words.warning("shm create", job, *create, **said)
        story.say(rank, t, nccl.warn(job, rank, t, *create))
        if job.level == "INFO":
            story.say(rank, t + 0.1, nccl.trace(job, rank, codes, 2))
        story.say(
            rank,
            t + 1,
            torchlog.traceback(
                job,
                rank,
                torchlog.frames(job),
                nccl.torch_error(
                    job,
                    "system",
                    create[1] if job.words.real else f"Error while creating shared memory segment {path} (size {size})",
                ),
            ),
        )
    _others_wait(story, bad, 14)
    story.agents_end(16, {rank.rank: 1 for rank in job.of(bad)})
    _which(story, bad)
    return story


def duplicate_gpu(rng: random.Random, index: int) -> Story:
    """Two ranks of a host are on one device; both say so and name both."""
    job = make_job(rng, launchers=_LAUNCHERS, nccl=((2, 10, 0), (2, 30, 0)), oldest=(2, 7, 0), agents=_AGENTS)
    story = Story(rng, job)
    host = rng.choice(job.hosts)
    one, two = rng.sample(job.of(host), 2)
    story.start(complete=False)
    sprinkle(story)
    for rank, other in ((one, two), (two, one)):
        t = 12 + rng.random()
        text = f"Duplicate GPU detected : rank {rank.rank} and rank {other.rank} both on CUDA device {one.bus:x}"
        code = "init.cc:525" if job.nccl < (2, 18, 0) else "init.cc:943" if job.nccl < (2, 29, 0) else "init.cc:974"
        said = {"rank": rank.rank, "other": other.rank, "device": f"{one.bus:x}"}
        code, text = job.words.warning("duplicate gpu", job, code, text, **said)
        story.say(rank, t, nccl.warn(job, rank, t, code, text, device=one.local))
        if job.level == "INFO":
            story.say(rank, t + 0.1, nccl.trace(job, rank, ["init.cc:1358", "group.cc:65 "], 5, " [Async thread]"))
        error = nccl.torch_error(job, "usage", text)
        story.say(rank, t + 0.5, torchlog.traceback(job, rank, torchlog.frames(job), error))
    story.lose_peers(14, [one, two], share=0.4)
    story.agents_end(15, {one.rank: 1, two.rank: 1})
    story.blame_ranks(one, two)
    return story


def nvls_multicast(rng: random.Random, index: int) -> Story:
    """The bind of multicast memory fails in transport/nvls.cc, whatever CUDA calls the error."""
    job = make_job(rng, launchers=_LAUNCHERS, nccl=((2, 18, 0), (9, 0, 0)), per_node=(4, 8))
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start(complete=False)
    sprinkle(story)
    number, name = rng.choice(
        (
            (401, "the operation cannot be performed in the present state"),
            (1, "invalid argument"),
            (2, "out of memory"),
            (999, "unknown error"),
        )
    )
    for rank in job.of(bad):
        t = 12 + rng.random()
        if job.nccl >= (2, 27, 0):
            text = (
                f"Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error {number} '{name}'.\n"
                "This is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.\n"
                "Do not force-enable NVLS (NCCL_NVLS_ENABLE=1) if you wish to avoid this error in the future."
            )
            story.say(rank, t, nccl.warn(job, rank, t, "transport/nvls.cc:287", text))
        else:
            shown = f"{number} " if job.nccl >= (2, 19, 0) else ""
            code = {(2, 18): 165, (2, 19): 165, (2, 20): 155, (2, 21): 158, (2, 26): 256}[job.nccl[:2]]
            told = job.words.warning("nvls", job, f"transport/nvls.cc:{code}", f"Cuda failure {shown}'{name}'")
            story.say(rank, t, nccl.warn(job, rank, t, *told))
        if job.level == "INFO":
            story.say(
                rank, t + 0.1, nccl.trace(job, rank, ["transport/nvls.cc:353", "init.cc:1127", "init.cc:1358"], 1)
            )
        story.say(rank, t + 1, torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "cuda")))
    _others_wait(story, bad, 14)
    story.agents_end(16, {rank.rank: 1 for rank in job.of(bad)})
    _which(story, bad)
    return story


def memlock_limit(rng: random.Random, index: int) -> Story:
    """Verbs cannot pin memory on one host: ibv_reg_mr or ibv_create_cq ends with "Cannot allocate memory"."""
    job = make_job(rng, launchers=_LAUNCHERS, nodes=(2, 4, 8))
    story = Story(rng, job)
    bad = rng.choice(job.hosts)
    story.start()
    sprinkle(story)
    for rank in job.of(bad)[: rng.randrange(1, 5)]:
        t = 14 + rng.random()
        call = rng.choice(
            ("ibv_reg_mr_iova2" if job.nccl >= (2, 14, 0) else "ibv_reg_mr", "ibv_create_cq", "ibv_reg_mr")
        )
        text = f"Call to {call} failed with error Cannot allocate memory"
        code, text = job.words.warning("memlock", job, "misc/ibvwrap.cc:164", text)
        story.say(rank, t, nccl.warn(job, rank, t, code, text, 4))
        if job.level == "INFO":
            story.say(
                rank,
                t + 0.1,
                nccl.trace(job, rank, ["transport/net_ib.cc:1455", "transport/net.cc:688", "proxy.cc:1518"], 2),
            )
        story.say(rank, t + 0.2, nccl.proxy_failed(job, rank, t, rank, 2))
        story.say(
            rank,
            t + 1,
            torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "system", text)),
        )
    _others_wait(story, bad, 16)
    story.agents_end(18, {rank.rank: 1 for rank in job.of(bad)})
    story.blame_host(bad)
    return story
