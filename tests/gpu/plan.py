"""What is trained on a machine, and what each training must show. Pure: standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

GB = 10**9


@dataclass(frozen=True)
class Machine:
    """Where the trainings run. ``gpus`` of 0: on the CPU with gloo. ``memory``: bytes of one GPU. ``multi_rank``: NCCL
    lets two ranks share a GPU; ``one_rank``: why it does not. ``inspector``: NCCL Inspector's plugin, "" if not found.
    ``gloo``: gloo's collectives take tensors of the GPU, so two ranks can share it without NCCL. ``numpy``: it exists.
    ``cpu_fsdp2``: fully_shard of this torch trains on a CPU. ``diag``: whether the command line's packages are there;
    without them torchrun starts the trainer."""

    gpus: int
    name: str = "cpu"
    vendor: str = ""
    memory: int = 0
    multi_rank: bool = False
    one_rank: str = ""
    inspector: str = ""
    torch: str = ""
    nccl: str = ""
    diag: bool = True
    gloo: bool = False
    numpy: bool = True
    cpu_fsdp2: bool = True

    @property
    def pairs_by_gloo(self) -> bool:
        """Whether trainings that need two ranks run them on the one GPU, with gloo."""
        return self.ranks == 1 and self.gloo

    @property
    def ranks(self) -> int:
        """Ranks of a training: one a GPU; two where there is one GPU that they may share, and on the CPU."""
        if self.gpus > 1:
            return self.gpus
        return 2 if self.gpus == 0 or self.multi_rank else 1

    @property
    def shared(self) -> bool:
        return self.gpus == 1 and self.ranks == 2


@dataclass(frozen=True)
class Answer:
    """What is right to say of a run: any of the classes, any of the causes ("" where none is needed), and the ranks at
    fault. Of a hang the causes are classes of the triage; of full memory one of the findings suffices."""

    classes: tuple[str, ...]
    causes: tuple[str, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Planned:
    """A training: options of ``diag run``; those in OWN run processes of ours. ``answer`` of None: the verdict
    is not checked, for the reason ``unchecked``. ``not_here``: why it cannot run on this machine. ``fills``: the run
    "ddp" says which batch nearly fills the memory. ``by_gloo``: two ranks share the GPU, and gloo connects them.
    ``alone``: one rank, where two could share the GPU."""

    name: str
    options: tuple[str, ...] = ()
    answer: Answer | None = None
    unchecked: str = ""
    not_here: str = ""
    hangs: bool = False
    alone: bool = False
    fills: bool = False
    by_gloo: bool = False
    limit_s: int = 60


RECORD = "record.json"  # what was run on what, in the folder of the runs
DONE, CUT, FAILED, LEFT_OUT = "done", "cut", "failed", "left out"  # what became of a run
ANSWERS = "device.json"  # in the folder of DEVICE: what the GPU's libraries answer
PROBED = "probe.json"  # in a rank's folder: what torch itself says of the steps of the probe
PROBE, OVERHEAD, INSPECTOR = "probe", "overhead", "ddp-inspector"
DEVICE, NCCL_HANG = "device", "nccl-hang"
OWN = (PROBE, OVERHEAD, DEVICE)
HANG_S = 20  # without progress, before diag run ends the training; gloo and NCCL wait a little longer
NCCL_HANG_S = 8  # timeout of the collective that waits behind a kernel; HANG_S where ranks wait for each other to start
STEPS, TRACED = 24, 6  # of a training, and of them in the profiler window

ALONE = Answer(("healthy", "host"), ())  # one rank that has the GPU for itself and no fault
FULL = 0.94  # of the memory, where a run is to fill it: the finding begins at 0.90, and more may not fit
_LEAST_TO_FILL = 40 * GB  # below, the contexts of CUDA and NCCL, outside of the allocator, take more than the rest


def sizes(machine: Machine) -> tuple[str, ...]:
    """Model and batch whose step takes a tenth of a second or less, in half of the GPU's memory."""
    if not machine.gpus:
        return ("--preset", "tiny")
    each = machine.memory / (machine.ranks if machine.shared else 1)
    batch = 8 if each > 35 * GB else 4 if each > 20 * GB else 1
    return ("--preset", "124m", "--precision", "bf16", "--batch-size", str(batch))


def launch_bound_sizes(machine: Machine) -> tuple[str, ...]:
    """A step that the device computes faster than the host launches it, once the host launches late."""
    return ("--preset", "124m", "--precision", "bf16", "--batch-size", "1") if machine.gpus else sizes(machine)


def hang_s(planned: Planned, machine: Machine) -> int:
    """How long a run that hangs stands still before it is ended; 0 of any other."""
    return (nccl_hang_s(machine) if planned.name == NCCL_HANG else HANG_S) if planned.hangs else 0


def nccl_hang_s(machine: Machine) -> int:
    return NCCL_HANG_S if machine.ranks == 1 else HANG_S


def plan(machine: Machine) -> tuple[Planned, ...]:
    """The trainings, the most telling ones first: the time may not suffice for all."""
    gpu, ranks = machine.gpus > 0, machine.ranks
    steps = ("--steps", str(STEPS), "--trace-active", str(TRACED))
    common = ("--nproc", str(ranks), *steps)
    own = (*common, *sizes(machine))
    # What needs two ranks: NCCL's, or two on the one GPU that gloo connects.
    by_gloo = machine.pairs_by_gloo
    pair = ("--nproc", "2", *steps, *sizes(replace(machine, multi_rank=True))) if by_gloo else own
    last = 1 if by_gloo else ranks - 1
    # What one rank shows is shown by a rank that has the GPU for itself.
    one = replace(machine, multi_rank=False) if machine.shared else machine
    solo = ("--nproc", str(one.ranks), *steps)
    own_solo = (*solo, *sizes(one))
    launching = (*solo, *launch_bound_sizes(one))
    # 124m has one table for embedding and output, and small five heads: neither can be cut.
    cut = (*common, "--preset", "tiny", *(("--batch-size", "64") if gpu else ()))
    single = "" if ranks > 1 else f"it needs two ranks, and there is one: {machine.one_rank or 'one GPU'}"
    alone = "" if by_gloo else single
    shared = "both ranks share one GPU, which is busy for both of them" if machine.shared or by_gloo else ""
    cpu = "" if gpu else "what it costs is the device's waiting, and there is none"
    # Ranks that share a device, cores or a slow link wait for each other without any fault.
    quiet = Answer(("healthy", "communication", "host", "mixed") if gpu else ("healthy", "communication", "mixed"), ())
    if machine.shared:  # what they do on the GPU is then nothing that a rank can be judged by
        quiet = Answer((*quiet.classes, "undetermined"), ())
    slow = 600 if gpu else 300
    host = ("host-straggler", "stalled-rank")

    def faulty(name: str, strategy: str, inject: str, answer: Answer, not_here: str = "") -> Planned:
        options = ("--strategy", strategy, *pair, "--inject", inject)
        return Planned(name, options, answer, not_here=not_here, by_gloo=by_gloo)

    found = [
        Planned(DEVICE, not_here="" if gpu else "there is no GPU"),
        # NCCL Inspector records the durations where it is installed, else the Flight Recorder does.
        Planned("ddp", ("--strategy", "ddp", *own, "--collective-timing", "recorder"), quiet),
        # A kernel keeps a GPU busy for a minute: the all-reduce behind it never starts, and NCCL gives up.
        Planned(
            NCCL_HANG,
            (
                *("--strategy", "ddp", *own, "--inject", f"straggler:ms=60000,from=5,on=device,rank={ranks - 1}"),
                *("--hang-timeout", str(2 * HANG_S), "--timeout", str(nccl_hang_s(machine))),
            ),
            not_here="" if gpu else "there is no GPU, and so no NCCL",
            hangs=True,
            limit_s=75,
        ),
        Planned(OVERHEAD),
        Planned("fsdp2", ("--strategy", "fsdp2", *own), quiet),
        *([Planned("fsdp2-alone", ("--strategy", "fsdp2", *own_solo), ALONE, alone=True)] if machine.shared else []),
        Planned(PROBE, ("--strategy", "ddp", *own)),
        faulty(
            "ddp-slow-loader-one-rank",
            "ddp",
            f"slow-loader:ms={slow},rank={last}",
            Answer(("data",), ("slow-data-one-rank",), (last,)),
            not_here=alone,
        ),
        faulty(
            "ddp-host-straggler",
            "ddp",
            f"stall:ms={slow},rank={last}",
            Answer(("host",), host if gpu else ("stalled-rank",), (last,)),
            not_here=alone,
        ),
        faulty(
            "ddp-device-straggler",
            "ddp",
            f"straggler:ms={slow},rank={last}" + (",on=device" if gpu else ""),
            Answer(("compute",), ("compute-straggler",), (last,)),
            not_here=alone or shared,
        ),
        faulty(
            "fsdp2-hang-before-collective",
            "fsdp2",
            f"hang:rank={last},step=5,where=collective",
            Answer(("hang",), ("missing_rank",), (last,)),
            not_here=alone,
        ),
        Planned(
            "ddp-tiny-kernels",
            ("--strategy", "ddp", *launching, "--inject", f"tiny-kernels:count={6000 if gpu else 2000}"),
            Answer(("host",), ("launch-bound",)) if gpu else None,
            cpu,
            alone=machine.shared,
        ),
        Planned(
            "ddp-item-in-each-block",
            ("--strategy", "ddp", *launching, "--inject", "item-sync"),
            # A slow host is late with the launches of so small a step also without the calls.
            Answer(("host",), ("synchronising-calls", "launch-bound")) if gpu else None,
            cpu,
            alone=machine.shared,
        ),
        Planned(
            "ddp-memory-near-limit",
            ("--strategy", "ddp", *own_solo),
            Answer(("memory",), ("near-out-of-memory", "allocator-retries"), tuple(range(one.ranks))),
            not_here=_cannot_fill(machine),
            fills=True,
            alone=machine.shared,
        ),
        faulty(
            "fsdp2-slow-loader-all-ranks",
            "fsdp2",
            f"slow-loader:ms={slow}",
            Answer(("data",), ("slow-data-all-ranks",)),
        ),
        faulty(
            "fsdp2-host-straggler",
            "fsdp2",
            f"stall:ms={slow},rank={last}",
            Answer(("host",), host if gpu else ("stalled-rank",), (last,)),
            not_here=alone,
        ),
        Planned(
            INSPECTOR,
            ("--strategy", "ddp", *own),
            not_here="" if machine.inspector else "NCCL Inspector's plugin was not found",
        ),
        Planned("zero1", ("--strategy", "zero1", *own), quiet),
        Planned("fsdp1", ("--strategy", "fsdp1", *own), quiet),
        Planned("fsdp2-tensor-parallel", ("--strategy", "fsdp2", "--tp", "2", *cut), not_here=single or _odd(ranks)),
        Planned(
            "ddp-pipeline",
            ("--strategy", "ddp", "--pp", "2", "--micro-batches", "4", *cut),
            not_here=single or _odd(ranks) or _no_pipeline(machine),
        ),
    ]
    made = (_hanging(one) if "hang-before" in one.name else one for one in found)
    return tuple(made if gpu or machine.cpu_fsdp2 else map(_without_fsdp2, made))


def _hanging(planned: Planned) -> Planned:
    more = ("--hang-timeout", str(HANG_S), "--timeout", str(2 * HANG_S))
    return replace(planned, options=(*planned.options, *more), hangs=True, limit_s=180)


def _without_fsdp2(planned: Planned) -> Planned:
    shards = "fsdp2" in planned.options and "--tp" not in planned.options
    why = "fully_shard of this torch trains on accelerators only" if shards else ""
    return replace(planned, not_here=planned.not_here or why)


def _cannot_fill(machine: Machine) -> str:
    if not machine.gpus:
        return "there is no device memory"
    small = machine.memory < _LEAST_TO_FILL
    return f"{machine.memory / GB:.0f} GB are too few: contexts outside of the allocator take too much" if small else ""


def filling_batch(reserved: int, held: int, batch: int, capacity: int) -> int:
    """Sequences that fill the memory, from the bytes of a run with fewer: what is not held by model and optimizer grows
    with the batch. Of a run that has reserved no more than it holds, the same batch."""
    grows = (reserved - held) / batch
    return max(batch, int((FULL * capacity - held) / grows)) if grows > 0 else batch


def with_longer_faults(options: tuple[str, ...], step_ms: float) -> tuple[str, ...]:
    """The same, with delays of three steps or more: a loader works beside the training, which waits for the rest."""
    return tuple(re.sub(r"\bms=(\d+)", lambda at: f"ms={max(int(at[1]), round(3 * step_ms))}", one) for one in options)


def _no_pipeline(machine: Machine) -> str:
    return "" if machine.numpy else "torch's pipelines exchange shapes as objects, which needs NumPy"


def _odd(ranks: int) -> str:
    return f"{ranks} ranks are not a multiple of two" if ranks % 2 else ""
