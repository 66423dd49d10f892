"""What looks alarming in healthy runs: spread over every case, and alone in the healthy ones."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

from . import nccl, torchlog
from .job import Job, Rank
from .story import Story
from .torchlog import Group


def _or_real(job: Job, rank: Rank, own: list[str], kind: str, t: float = 12.0) -> list[str]:
    """The same list, or in the case's words; the first line stays, for who reads it counts on the rank in it."""
    found = job.words.all(kind, job)
    if kind == "harmless" and job.launcher == "mpirun":
        found += job.words.all("harmless mpi", job)
    said = []
    for wording in found:
        text = wording.template.format(**torchlog.fields(job, rank, t, Group(0, "default_pg")))
        if wording.code.startswith("warn "):
            said.append(nccl.warn(job, rank, t, wording.code.removeprefix("warn "), text))
        elif wording.code != "info":
            said.append(text)
        elif job.level == "INFO":
            said.append(nccl.info(job, rank, text))
    return [*own[: kind == "harmless"], *said] if said else own


def early(story: Story, rank: Rank) -> list[str]:
    """Lines of the start that mean nothing."""
    job = story.job
    lines = [
        torchlog.log(
            job, rank, 5.0, "W", 663,
            f"[c10d] The client socket has failed to connect to [{job.hosts[0].name}]:29500 (errno: 97 - Address family not supported by protocol).",
            "socket.cpp",
        ),
        torchlog.log(
            job, rank, 12.0, "W", 4115,
            f" using GPU {rank.local} to perform barrier as devices used by this process are currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect. "
            "Specify device_ids in barrier() to force use of a particular device, or call init_process_group() with a device_id.",
        ),
        "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 16 worker processes in total. "
        "Our suggested max number of worker in current system is 12, which is smaller than what this DataLoader is going to create. "
        "Please be aware that excessive worker creation might get DataLoader running slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary.",
        "WARNING: a hang here is most likely caused by a firewall; see the wiki before you open a ticket",
    ]  # fmt: skip
    if job.level == "INFO":
        lines += [
            nccl.info(job, rank, "Failed to open libibverbs.so[.1]"),
            nccl.info(job, rank, "P2P is disabled between connected GPUs 0 and 1. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1."),
            nccl.no_plugin(job, rank),
        ]  # fmt: skip
    if job.nccl < (2, 27, 0):
        lines.append(
            nccl.warn(
                job,
                rank,
                10.0,
                "graph/search.cc:1036",
                "Could not find a path for pattern 4, falling back to simple order",
            )
        )
    return _or_real(job, rank, lines, "harmless")


def sprinkle(story: Story, most: int = 4) -> None:
    """A few harmless lines at the start of random ranks."""
    rng = story.rng
    for _ in range(rng.randrange(most + 1)):
        rank = rng.choice(story.job.ranks)
        story.say(rank, rng.uniform(5, 14), rng.choice(early(story, rank)))


def late(story: Story, rank: Rank, t: float) -> list[str]:
    """Lines of a good end."""
    job = story.job
    lines = []
    if job.torch >= (2, 4, 0):
        lines.append(torchlog.log(
            job, rank, t, "W", 1250,
            "Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to ensure that any pending NCCL operations have finished in this process. "
            "In rare cases this process can exit before this point and block the progress of another member of the process group. This constraint has always been present,  but this warning has only been added since PyTorch 2.4 (function operator())",
        ))  # fmt: skip
    if job.torch >= (2, 6, 0):
        lines.append(torchlog.should_dump(job, rank, t, story.world, "failed to recv, got 0 bytes"))
    return _or_real(job, rank, lines, "harmless end", t)
