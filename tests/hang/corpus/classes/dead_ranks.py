"""A rank, or its GPU, ends first and by itself."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import random

from .. import nccl, torchlog
from ..harmless import sprinkle
from ..job import Rank, make_job
from ..story import Story
from ..torchlog import Work

_NOT_RAY = ("torchrun", "torchrun", "tee", "mpirun", "srun", "pdsh", "kubernetes")
_ELASTIC = ("torchrun", "tee", "pdsh", "kubernetes")
_AGENTS = ("torchrun", "torchrun", "accelerate", "deepspeed", "launch")
_OLDEST = (2, 4, 0)


def journal(story: Story, rank: Rank, t: float, *texts: str) -> None:
    """Lines of the kernel's log of a host, as journalctl or dmesg print them, in a file of their own or among the host's.

    dmesg does not say the host: the file's name does.
    """
    job = story.job
    host = rank.host

    def prefix(at: float) -> str:
        now = f"{job.clock(host, at):%b %d %H:%M:%S}"
        return job.words.text(
            "kernel prefix", job, f"{now} {host.name} kernel: ", journal=now, host=host.name,
            ctime=f"{job.clock(host, at):%a %b %d %H:%M:%S %Y}", up=f"{1_843_308 + at:.6f}",
        )  # fmt: skip

    lines = [prefix(t) + text for text in texts]
    if job.layout == "host" and story.rng.random() < 0.5:
        story.launcher(host, t, *lines)
    else:
        before = f"{prefix(2)}nvidia-uvm: Loaded the UVM driver, major device number 510."
        story.extra[f"journal-{host.name}.txt"] = ("\n".join([before, *lines]) + "\n").encode()


def any_victims(story: Story, gone: list[Rank], t: float) -> float:
    """What the others go through: broken connections at once, or on other hosts the watchdog's time-out later.

    Ranks of the same host do not live to see a time-out: the launcher stops them.
    """
    job, rng = story.job, story.rng
    hosts = [rank.host for rank in gone]
    far = [rank for rank in job.ranks if rank.host not in hosts]
    story.lose_some(*gone)
    if far and rng.random() < 0.5:
        seq = rng.randrange(200, 60000)
        return story.time_out(far, t + job.timeout_ms / 1e3, Work(seq, "ALLREDUCE", rng.randrange(1, 1 << 26)))
    story.lose_peers(t, gone)
    return t + 4


def gpu_hardware(rng: random.Random, index: int) -> Story:
    """Kernel or driver says which GPU broke: an Xid of the hardware, ECC, or NVLink peers without P2P."""
    kind = index % 4
    job = make_job(rng, launchers=_NOT_RAY, torch=((2, 1, 0), (9, 0, 0)) if kind == 1 else ((1, 12, 0), (9, 0, 0)),
                   layouts=("host",) if kind == 3 else ("one", "rank", "host"),
                   oldest=None if kind in (1, 2) else _OLDEST, agents=_AGENTS)  # fmt: skip
    story = Story(rng, job)
    bad = rng.choice(job.ranks)
    story.start(complete=kind != 2)
    sprinkle(story)
    t = rng.uniform(100, 4000)
    if kind == 2:
        for rank in job.of(bad.host):
            text = (
                "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, "
                "and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1."
            )
            told = job.words.warning("nvlink p2p", job, "graph/paths.cc:324", text)
            story.say(rank, 12 + rng.random(), nccl.warn(job, rank, 12, *told))
            if job.level == "INFO":
                story.say(rank, 13, nccl.trace(job, rank, ["graph/paths.cc:547", "init.cc:856", "init.cc:1358"], 1))
            story.say(rank, 14, torchlog.traceback(job, rank, torchlog.frames(job), nccl.torch_error(job, "cuda")))
        story.agents_end(15, {rank.rank: 1 for rank in job.of(bad.host)})
        story.blame_host(bad.host)
        return story
    story.train(t)
    bus = f"{bad.bus >> 12:02x}"
    if kind == 0:
        xid = rng.choice((
            f"79, pid={bad.pid}, name=python, GPU has fallen off the bus.",
            f"48, pid={bad.pid}, name=python, DBE (double bit error) ECC SRAM",
            f"74, pid={bad.pid}, name=python, NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
            f"94, pid={bad.pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No",
        ))  # fmt: skip
        own = f"NVRM: Xid (PCI:0000:{bus}:00): {xid}"
        journal(story, bad, t, job.words.text("kernel xid", job, own, bus=bus, pid=bad.pid))
        story.note("The Xid names the PCI bus and the process.")
    elif kind == 1:
        error = "torch.AcceleratorError" if job.torch >= (2, 8, 0) else "RuntimeError"
        text = (
            f"{error}: CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported at "
            "some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        )
        calls = torchlog.frames(job, (f"/workspace/{job.script}", 233, "train_step", "loss.backward()"))
        if job.words.real and (ended := job.words.find("ecc watchdog", job)) and rng.random() < 0.5:
            story.say(bad, t + 0.2, ended.template.format(**torchlog.fields(job, bad, t, story.world)))
        story.say(bad, t, torchlog.traceback(job, bad, calls, job.words.text("ecc", job, text)))
    else:
        text = f"Unable to determine the device handle for GPU0000:{bus.upper()}:00.0: GPU is lost.  Reboot the system to recover this GPU"
        story.launcher(bad.host, t + 5, text)
        own = f"NVRM: GPU 0000:{bus}:00.0: GPU has fallen off the bus."
        journal(story, bad, t, job.words.text("kernel lost", job, own, bus=bus))
    end = any_victims(story, [bad], t)
    story.agents_end(t + 1, {bad.rank: 1 if kind == 1 else -6}, victims_at=end)
    if kind == 1 and (job.python_names_rank or job.end_names_rank):
        story.blame_ranks(bad)
    elif kind == 1:
        story.blame_unscored("Neither prefix nor agent says which rank the traceback belongs to.")
    else:
        story.blame_host(bad.host)
    return story


def _killed(rng: random.Random, index: int, code: int) -> tuple[Story, Rank, float]:
    launchers = ("mpirun",) if index % 6 == 4 else ("srun",) if index % 6 == 5 else _ELASTIC
    job = make_job(rng, launchers=launchers, oldest=_OLDEST, agents=(*_AGENTS, "spawn"))
    story = Story(rng, job)
    victim = rng.choice(job.ranks)
    story.start()
    sprinkle(story)
    t = rng.uniform(60, 3000)
    story.train(t)
    root = None
    if index % 3 == 1 and len(job.of(victim.host)) > 1:
        root = rng.choice([rank.rank for rank in job.of(victim.host) if rank is not victim])
        story.note(
            "torchrun's root cause is a victim: its abort (-6) is what the watchdog does; the signal of the other is not."
        )
    end = any_victims(story, [victim], t)
    story.agents_end(t + 1, {victim.rank: code}, root=root, victims_at=end)
    _blame(story, victim)
    return story, victim, t


def _blame(story: Story, victim: Rank) -> None:
    """The rank that ended first, where anything says which it was."""
    if story.job.end_names_rank:
        story.blame_ranks(victim)
    else:
        story.blame_unscored(f"{story.job.agent} does not say which rank ended, only how.")


def rank_killed_sigkill(rng: random.Random, index: int) -> Story:
    """Exit code -9 of one rank; the others abort or are told to stop because of it."""
    story, victim, t = _killed(rng, index, -9)
    if index % 2:
        size = rng.randrange(1 << 26, 1 << 29)
        if real := story.job.words.find("kernel oom", story.job):
            said = real.template.format(pid=victim.pid, vm=size * 2, rss=size)
            journal(story, victim, t, *said.split("\v"))
            return story
        journal(
            story, victim, t,
            "python invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
            f"Out of memory: Killed process {victim.pid} (python) total-vm:{size * 2}kB, anon-rss:{size}kB, file-rss:71680kB, shmem-rss:41984kB, UID:0 pgtables:{size >> 9}kB oom_score_adj:0",
        )  # fmt: skip
    return story


def _dies_of_signal(story: Story, victim: Rank, t: float, name: str, told: str) -> None:
    job = story.job
    if story.rng.random() < 0.5:
        own = f"[{victim.host.name}:{victim.pid}:0:{victim.pid}] Caught signal {told}"
        kind = f"signal {told.split(' ')[0]}"
        said = {"host": victim.host.name, "pid": victim.pid, "tid": victim.pid + 3648}
        story.say(victim, t, job.words.text(kind, job, own, **said))
    elif story.rng.random() < 0.5:
        text = f'Fatal Python error: {name}\n\nThread 0x00007f6d2a7fc640 (most recent call first):\n  File "/workspace/{job.script}", line 171 in preprocess\n  File "/workspace/{job.script}", line 412 in <module>'
        story.say(victim, t, text)


def rank_killed_sigbus(rng: random.Random, index: int) -> Story:
    """Exit code -7 of one rank, and nothing of NCCL's shared memory beside it."""
    story, victim, t = _killed(rng, index, -7)
    _dies_of_signal(story, victim, t, "Bus error", "7 (Bus error: nonexistent physical address)")
    return story


def rank_killed_sigsegv(rng: random.Random, index: int) -> Story:
    """Exit code -11 of one rank."""
    story, victim, t = _killed(rng, index, -11)
    told = "11 (Segmentation fault: address not mapped to object at address 0x18)"
    _dies_of_signal(story, victim, t, "Segmentation fault", told)
    return story


def _blame_speaker(story: Story, bad: Rank, also: bool = False) -> None:
    """The rank of a traceback, where it or what started the ranks says which."""
    if also or story.job.python_names_rank or story.job.end_names_rank:
        story.blame_ranks(bad)
    else:
        story.blame_unscored("Neither the traceback nor what started the ranks says whose it is.")


_ERRORS = (
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/shard-00412.tar'", "open_shard", "with open(path, 'rb') as file:"),
    ("ValueError: Expected more than 1 value per channel when training, got input size torch.Size([1, 256])", "forward", "x = self.norm(x)"),
    ("IndexError: index 50304 is out of bounds for axis 0 with size 50257", "__getitem__", "return self.tokens[i]"),
    ("KeyError: 'labels'", "collate", "labels = [item['labels'] for item in batch]"),
    ("AssertionError: loss is nan at step 1042", "train_step", "assert torch.isfinite(loss), f'loss is nan at step {step}'"),
    ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "read_line", "return json.loads(line)"),
    ("RuntimeError: DataLoader worker (pid 48213) exited unexpectedly with exit code 1. Details are lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace.", "_try_get_data", "raise RuntimeError(f'DataLoader worker exited unexpectedly') from e"),
)  # fmt: skip


def rank_killed_exception(rng: random.Random, index: int) -> Story:
    """One rank's traceback is not about communication; the tracebacks and aborts of the others are."""
    launchers = _ELASTIC if index % 4 < 3 else ("mpirun", "srun")
    job = make_job(rng, launchers=launchers, torch=((2, 4, 0), (9, 0, 0)) if index % 2 else ((1, 12, 0), (9, 0, 0)),
                   oldest=None if index % 2 else _OLDEST, agents=_AGENTS)  # fmt: skip
    story = Story(rng, job)
    bad = rng.choice(job.ranks)
    story.start()
    sprinkle(story)
    t = rng.uniform(60, 3000)
    story.train(t)
    error, function, source = rng.choice(_ERRORS)
    if real := job.words.find("exception", job):
        error, function, source = real.template, "train", "for batch in loader:"
    calls = torchlog.frames(job, (f"/workspace/{job.script}", rng.randrange(40, 400), function, source))
    story.say(bad, t, torchlog.traceback(job, bad, calls, error))
    end = any_victims(story, [bad], t)
    root = None
    if index % 3 == 2 and len(job.of(bad.host)) > 1:
        root = rng.choice([rank.rank for rank in job.of(bad.host) if rank is not bad])
    story.agents_end(t + 1, {bad.rank: 1}, root=root, victims_at=end)
    _blame_speaker(story, bad)
    return story


def cuda_oom(rng: random.Random, index: int) -> Story:
    """One rank runs out of GPU memory, told by torch or by NCCL's allocation."""
    by_nccl = index % 2 == 0
    job = make_job(rng, launchers=("torchrun", "tee", "mpirun", "srun", "pdsh"), oldest=_OLDEST, agents=_AGENTS)
    story = Story(rng, job)
    bad = rng.choice(job.ranks)
    story.start(complete=not by_nccl)
    sprinkle(story)
    if by_nccl:
        t = 12.0
        size = rng.choice((6291456, 10485760, 4194304))
        number = "2 " if job.nccl >= (2, 21, 0) else ""
        if rng.random() < 0.5:
            number = ""  # cudaMalloc's macro prints no number, cuMem's does
        told = job.words.warning("cuda oom", job, "include/alloc.h:178", f"Cuda failure {number}'out of memory'")
        story.say(bad, t, nccl.warn(job, bad, t, *told))
        if job.level == "INFO":
            story.say(bad, t + 0.1, nccl.trace(job, bad, ["include/alloc.h:185"], 1))
        story.say(bad, t + 0.2, nccl.warn(job, bad, t, "include/alloc.h:185", f"Failed to CUDA calloc {size} bytes"))
        error = nccl.torch_error(job, "cuda", f"Failed to CUDA calloc {size} bytes")
        story.say(bad, t + 1, torchlog.traceback(job, bad, torchlog.frames(job), error))
    else:
        t = rng.uniform(60, 600)
        story.train(t)
        name = (
            "torch.OutOfMemoryError"
            if job.torch >= (2, 5, 0)
            else "torch.cuda.OutOfMemoryError"
            if job.torch >= (2, 0, 0)
            else "RuntimeError"
        )
        spelled = "capacity" if job.torch >= (2, 2, 0) else "capacty"
        if job.torch >= (2, 1, 0):
            text = (
                f"{name}: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {bad.local} has a total {spelled} of 79.15 GiB of which 842.32 MiB is free. "
                "Including non-PyTorch memory, this process has 78.32 GiB memory in use. Of the allocated memory 75.10 GiB is allocated by PyTorch, and 1.61 GiB is reserved by PyTorch but unallocated."
            )
        else:
            text = f"{name}: CUDA out of memory. Tried to allocate 2.00 GiB (GPU {bad.local}; 79.15 GiB total capacity; 75.10 GiB already allocated; 842.31 MiB free; 76.71 GiB reserved in total by PyTorch)"
        calls = torchlog.frames(job, (f"/workspace/{job.script}", 233, "train_step", "loss.backward()"))
        text = job.words.text("torch oom", job, text, local=bad.local)
        story.say(bad, t, torchlog.traceback(job, bad, calls, text))
    end = any_victims(story, [bad], t + 2)
    story.agents_end(t + 3, {bad.rank: 1}, victims_at=end)
    _blame_speaker(story, bad, also=by_nccl and job.nccl_names_rank)
    return story


def ddp_unused_parameters(rng: random.Random, index: int) -> Story:
    """DDP's own error names parameters without gradient; on every rank, or on the one that took another branch."""
    job = make_job(rng, world=(2, 16), launchers=("torchrun", "tee", "mpirun", "srun"), oldest=_OLDEST, agents=_AGENTS)
    story = Story(rng, job)
    story.start()
    sprinkle(story)
    alone = index % 2 == 1
    ranks = [rng.choice(job.ranks)] if alone else list(job.ranks)
    t = rng.uniform(20, 40)
    story.train(t)
    for rank in ranks:
        parameters = " ".join(str(n) for n in sorted(rng.sample(range(200), rng.randrange(1, 5))))
        names = (
            f"Parameters which did not receive grad for rank {rank.rank}: head.adapter.weight, head.adapter.bias\n"
            if rng.random() < 0.4
            else ""
        )
        hint = (
            ""
            if names
            else "\n In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL to print out information about which particular parameters did not receive gradient on this rank as part of this error"
        )
        text = (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss. "
            "You can enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by \n"
            "making sure all `forward` function outputs participate in calculating loss. \n"
            "If you already have done the above, then the distributed data parallel module wasn't able to locate the output tensors in the return value of your module's `forward` function. "
            "Please include the loss function and the structure of the return value of `forward` of your module when reporting this issue (e.g. list, dict, iterable).\n"
            f"{names}Parameter indices which did not receive grad for rank {rank.rank}: {parameters}{hint}"
        )
        text = job.words.text("unused", job, text, r=rank.rank, parameters=parameters)
        story.say(rank, t + rng.random(), torchlog.traceback(job, rank, torchlog.frames(job), text))
    if alone:
        far = [rank for rank in job.ranks if rank.host is not ranks[0].host]
        end = t + 2
        if far and rng.random() < 0.6:
            work = Work(rng.randrange(3, 60), "ALLREDUCE", 6553600)
            end = story.time_out(far, t + job.timeout_ms / 1e3, work)
        story.agents_end(t + 2, {ranks[0].rank: 1}, victims_at=end)
        _blame_speaker(story, ranks[0], also=job.torch >= (1, 9, 0))
    else:
        story.agents_end(t + 2, {rank.rank: 1 for rank in ranks})
        story.blame_unscored("Every rank says so: the program is to blame, no rank.")
    return story
