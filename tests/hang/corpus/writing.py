"""A story as files: the launcher's prefixes, who writes into which file, and what terminals do to lines."""

from __future__ import annotations

import gzip
import random
from datetime import timedelta

from .real_wordings import KINDS
from .story import Event, Story

_COLOURS = ("\x1b[36m", "\x1b[33m", "\x1b[32m")


def _prefix(story: Story, event: Event) -> str:
    """What the launcher puts before each line that it passes on. Blank lines get it too, as they do in real logs."""
    job, rank = story.job, event.rank
    if job.launcher == "pdsh":
        return f"{event.host.name}: "
    real = _real_prefix(story, event)
    if real is not None:
        return real
    if job.launcher == "kubernetes":
        now, how = job.start + timedelta(seconds=event.t), job.comm_id % 3
        if how == 0:
            return f"{event.host.name}: "
        if how == 1:
            return f"{now + timedelta(hours=8):%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} +08:00 "
        return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06d}Z "
    if rank is None:
        return ""
    if job.launcher == "tee":
        return f"[default{rank.local}]:"
    if job.launcher == "mpirun":
        return f"[1,{rank.rank}]<{'stderr' if 'Traceback' in event.text else 'stdout'}>:"
    if job.launcher == "srun":
        return f"{rank.rank}: "
    if job.launcher == "ray":
        shown = f"(RayTrainWorker pid={rank.pid}, ip={rank.host.address})"
        return f"\x1b[36m{shown}\x1b[0m " if story.job.comm_id % 2 else f"{shown} "
    return ""


def _real_prefix(story: Story, event: Event) -> str | None:
    """The prefix in real words, or None for the package's own."""
    job, rank = story.job, event.rank
    kind = "prefix hydra" if job.launcher == "mpirun" and job.agent == "hydra" else f"prefix {job.launcher}"
    if kind not in KINDS or (rank is None and job.launcher not in ("kubernetes", "torchrun")):
        return None
    found, now = job.words.find(kind, job), job.start + timedelta(seconds=event.t)
    if found is None:
        return None
    named = {} if rank is None else {"rank": rank.rank, "local": rank.local, "pid": rank.pid}
    return found.template.format(
        **named, host=event.host.name, address=event.host.address, node=job.hosts.index(event.host),
        iso_ms=f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}", stamp=f"{now:%Y-%m-%d %H:%M:%S}",
        iso_us=f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06d}",
    )  # fmt: skip


def _file_of(story: Story, event: Event) -> str:
    job, rank = story.job, event.rank
    if job.layout == "one":
        return {"srun": f"slurm-{job.comm_id % 900000 + 100000}.out", "ray": "job-driver.log"}.get(
            job.launcher, "train.log"
        )
    if job.layout == "host" or rank is None:
        return f"{event.host.name}.log"
    return f"rank_{rank.rank}.log"


def write(story: Story) -> dict[str, bytes]:
    """The files of a story. Ranks in ``lost_ranks`` leave nothing."""
    rng = story.rng
    events = [e for e in story.events if e.rank is None or e.rank.rank not in story.lost_ranks]
    events.sort(key=lambda event: event.t)
    if story.no_files:
        events = []
    if story.job.layout == "one" and len(story.job.hosts) > 1 and rng.random() < 0.35:
        hosts = list(story.job.hosts)  # cat host*.log: a victim's lines come before the root's
        rng.shuffle(hosts)
        events.sort(key=lambda event: hosts.index(event.host))
    by_file: dict[str, list[tuple[Event, str]]] = {}
    for event in events:
        lines, prefix = by_file.setdefault(_file_of(story, event), []), _prefix(story, event)
        lines.extend((event, prefix + line) for line in event.text.split("\n"))
    files = {}
    colour = rng.random() < 0.06 and not story.plain
    wrap = rng.random() < 0.05 and not story.plain
    glue = rng.random() < 0.2 and story.job.launcher == "torchrun"
    for name, lines in by_file.items():
        text = _join(rng, [line for _, line in lines], glue)
        if wrap:
            text = _wrapped(text)
        if colour:
            text = _coloured(rng, text)
        if rng.random() < 0.05:
            text = text.replace("\n", "\r\n")
        content = text.encode()
        if rng.random() < 0.06:
            files[f"{name}.gz"] = gzip.compress(content, mtime=0)
        else:
            files[name] = content
    return files | story.extra


def _join(rng: random.Random, lines: list[str], glue: bool) -> str:
    """With ``glue``, a progress bar leaves the next line standing behind it, as tqdm does."""
    text = []
    for line in lines:
        ends_open = glue and ("it/s" in line or "s/it, loss" in line)
        text.append(line if ends_open else line + "\n")
    return "".join(text)


def _wrapped(text: str) -> str:
    """Lines of more than 220 characters break in two, as a terminal's capture does."""
    lines = []
    for line in text.split("\n"):
        lines += [line[:200], line[200:]] if 220 < len(line) < 420 else [line]
    return "\n".join(lines)


def _coloured(rng: random.Random, text: str) -> str:
    """Some lines wear colours from the first character to the last."""
    return "\n".join(
        f"{rng.choice(_COLOURS)}{line}\x1b[0m" if line and rng.random() < 0.3 else line for line in text.split("\n")
    )
