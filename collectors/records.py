"""The records that the collectors write: every field of every file, in the types into which the analyser reads them.

Times are integers in nanoseconds of the host's monotonic clock (``time.monotonic_ns``, which every process of one host
shares), unless a name says ``unix_ns``. Fields are only ever added, always with a default, so old runs keep opening.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .layout import RUN_SCHEMA

# Phases of a step. Time between them belongs to the step and to no phase.
DATA = "data"
H2D = "h2d"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
CHECKPOINT = "checkpoint"
PHASES = (DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT)
REST = "rest"  # of a step: between the phases
PHASES_AND_REST = (*PHASES, REST)

# A further phase of some trainings: without it a slow evaluation would look like a hang.
EVALUATION = "evaluation"

# Prefix of Heartbeat.phase of a training that raised: "failed: RuntimeError"
FAILED = "failed: "

# Asked.why
HANG = "hang"  # the training makes no progress
CRASH = "crash"  # a process has failed, the others are still running

# Heartbeat.trace_answer
TRACE_PENDING = "pending"
TRACE_RECORDED = "recorded"

# Names of the ranges that the collectors put into a profiler window: "diag.step#12", "diag.data", ...
STEP_RANGE = "diag.step#"
PHASE_RANGE = "diag."

# CollectiveRow of point-to-point traffic: group "p2p 2>3" is the traffic from rank 2 to rank 3, with these operations.
P2P_PREFIX = "p2p "
SEND = "send"
RECV = "recv"

# Further columns of a SummaryLine; columns named after the phases and REST hold the rank's own work in them.
BEGIN = "begin"  # time since the begin of the step before
STEP = "step"
STILL = ".still"  # suffix of a phase's name: time that the rank waited for collectives in it
TOKENS = "tokens"
DEVICE = "device."  # prefix of a column on the device's own clock
LAG = DEVICE + "lag"  # how much later the device began the step than its host
UNLAUNCHED = DEVICE + "unlaunched"  # while its host had not launched all of the next work: it may have been idle

# KeptLine.why: the watcher of the job says that its verdict changed, or that it is stuck; a rank sees a step that takes
# far longer than usual, and that it was started again.
VERDICT = "verdict"
STUCK = "stuck"
STALLED = "stalled"
RESTART = "restart"

# StepRecord.window
WINDOW_NONE = ""
WINDOW_WARMUP = "warmup"  # the profiler runs but does not record
WINDOW_ACTIVE = "active"  # recorded in a trace
WINDOW_AFTER = "after"  # the first step after a window: ranks leave the export at different times


# No rank leaves one of these collectives before all have entered it. A broadcast's root may leave at once.
ALL_TO_ALL = "all_to_all"
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", ALL_TO_ALL, "barrier"})

CALLS_OF_A_SUM = 32  # of a block in BlockSums: as many as a word has bits


class PhaseRow(NamedTuple):
    """One phase of a step on the host's clock; a phase can come several times in a step (micro-batches)."""

    phase: str
    start_ns: int
    end_ns: int


class CollectiveRow(NamedTuple):
    """One collective of one rank, or one send or receive.

    ``start_ns`` is when this rank called it, ``end_ns`` when its result was ready (None where the backend does not
    report it, as NCCL's host side). ``wait_start_ns`` to ``wait_end_ns`` is the time in which a thread of the training
    waited for it: the whole call if it is synchronous, the call of ``Work.wait`` if it is not, None if no thread
    waited. ``bytes`` is the full tensor: the output of an all-gather, the input of a reduce-scatter.
    ``seq`` counts the calls on this group in this process from 0: equal calls have equal numbers on all its ranks.

    A send ends when it is handed over, or with the wait for it if that blocked a thread. A receive, and a functional
    collective, end with the wait for them, which is later than their real end where it blocked no thread.

    Not ``whole``: several collectives launched in C++. ``bytes`` is their sum; the times are those of the last one,
    from its start on. Their durations are not known.

    ``received_bytes``: the bytes that this rank receives in an all-to-all, while ``bytes`` is what it sends; both
    include the part that stays on the rank. None for other operations, and in files of older versions.
    """

    group: str
    seq: int
    op: str
    bytes: int
    dtype: str
    start_ns: int
    end_ns: int | None
    wait_start_ns: int | None
    wait_end_ns: int | None
    whole: bool = True
    received_bytes: int | None = None


@dataclass(slots=True)
class CollectiveLine:
    """A line of collectives.jsonl: the collectives that one rank started during one step."""

    step: int
    rows: list[CollectiveRow]
    groups: dict[str, list[int]] = field(default_factory=dict)  # global ranks of groups not named before in this file
    dropped: int = 0  # rows beyond the cap of one step


class DurationRow(NamedTuple):
    """One collective of one rank on the device. ``duration_ns`` begins with this rank's arrival, so it includes the
    rank's waiting for the others. ``group`` and ``seq``: PyTorch's name of the group and number of the collective,
    equal on all its ranks. ``bytes``: as in CollectiveRow. ``created_ns``: when the host called it."""

    group: str
    seq: int
    op: str
    bytes: int
    dtype: str
    created_ns: int
    duration_ns: int


@dataclass(slots=True)
class DurationLine:
    """A line of durations.jsonl: the collectives that have ended since the recorder was read last.

    They have no step number, as the recorder is read later than a step ends. ``created_ns`` is on the clock of
    steps.jsonl, so a reader can find the step.
    """

    rows: list[DurationRow]
    groups: dict[str, list[int]] = field(default_factory=dict)  # global ranks of groups not named before in this file
    recorder: str = ""  # the backend that the recorder belongs to
    lost: int = 0  # entries that the recorder overwrote before they were read


@dataclass(slots=True)
class BlockSums:
    """The durations of a group's collectives (DurationRow), summed over blocks: block n has those with the numbers from
    CALLS_OF_A_SUM * n to CALLS_OF_A_SUM * (n + 1) - 1, on all ranks. Collectives that are not SYNCHRONISING are left
    out. Blocks are too where a line would hold too many: see ``block_sums``.

    ``values``: the numbers of ``count`` blocks, then the sums in microseconds, then, unless all of it is 0, a bit for
    each collective of a block whose duration is not in the sum, the lowest for its first; base64 of little-endian
    unsigned 32-bit integers. Sums with equal bits are of the same collectives.
    """

    group: str  # PyTorch's name of the group; of NCCL Inspector, the communicator's id and the operation
    ranks: int  # how many it has,
    ranks_crc: int  # and CRC-32 of their numbers as text with commas; 0: of NCCL Inspector, which knows no numbers
    count: int
    begin_ns: int  # when the host called the first collective of the first block,
    end_ns: int  # and of the last block
    values: str


@dataclass(slots=True)
class MemoryRecord:
    """Peaks over one step in bytes. ``allocated`` and ``reserved`` are the CUDA allocator's; ``rss`` the process's."""

    rss: int
    allocated: int | None = None
    reserved: int | None = None
    alloc_retries: int | None = None  # since the process began
    ooms: int | None = None
    capacity: int | None = None


class LoaderQueue(NamedTuple):
    """The queue of a DataLoader's worker processes when the training asked for a batch: ``ready`` of the ``capacity``
    (``workers`` times prefetch factor) batches were in it, the others were still to be loaded."""

    ready: int
    capacity: int
    workers: int


@dataclass(slots=True)
class HeldRecord:
    """Bytes that model and optimizer hold on one rank between the optimizer's step and the clearing of gradients.

    ``gathered``: unsharded parameters of sharding units that are gathered at that moment; the other fields count this
    rank's own part.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int = 0
    buffers: int = 0
    batch: int = 0


@dataclass(slots=True)
class StepRecord:
    """A line of steps.jsonl."""

    step: int
    begin_ns: int
    end_ns: int
    phases: list[PhaseRow]
    window: str = WINDOW_NONE
    micro_batches: int = 1
    tokens: int = 0
    loss: float | None = None
    gc: list[tuple[int, int]] = field(default_factory=list)  # pauses of Python's garbage collector: start_ns, end_ns
    memory: MemoryRecord | None = None
    # How long the training's thread ran, and how long it was ready to run and had no core. None: not reported by the
    # system. ``cpu``: both by phase; in the rest of a phase that is no known wait, the thread was blocked. Empty in
    # most of the steps that are shorter than 0.1 s.
    on_cpu_ns: int | None = None
    queued_ns: int | None = None
    cpu: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: HeldRecord | None = None  # in the last step of a run only
    # When the step asked for its first batch. None: see ``scheduling.queue_of``; not every step below 0.2 s reads it.
    queue: LoaderQueue | None = None


@dataclass(slots=True)
class SummaryLine:
    """A line of summary.jsonl: ``count`` consecutive steps of one rank, in a few kilobytes. It is self-contained, so
    that a reader of very many ranks opens one file per rank.

    ``values``: one value per step, column by column in the order of ``columns``; whole microseconds except for TOKENS;
    base64 of little-endian unsigned 32-bit integers. A column of only zeros is left out. The phases of a step (the
    phases and REST, and the same with STILL) add up to it except for rounding, one microsecond each, and for waiting
    for a peer's message. Micro-batches are summed. Columns with the prefix DEVICE are the same on the device's clock. A
    step without a record of the device has 0 in DEVICE + STEP. EVALUATION is a part of the host's REST, with its waits.
    """

    identity: RankRecord
    first: int  # number of the first step
    count: int
    begin_ns: int  # of the first step
    columns: list[str]
    values: str
    waits: int = 0  # how often a thread of the training waited for a collective; 0: not recorded, or on a device
    marked: dict[str, list[int]] = field(default_factory=dict)  # steps by StepRecord.window, or by EVALUATION
    memory: MemoryRecord | None = None  # the highest of the steps
    waits_seen: float | None = (
        None  # part of the calls whose wait was observed on the device: ``device_times.WaitsSeen``
    )
    utilization: list[int] = field(default_factory=list)  # samples of the device's utilization, per cent
    durations: list[BlockSums] = field(default_factory=list)  # of the Flight Recorder, read since the line before


@dataclass(slots=True)
class SumLine:
    """A line of sums50.jsonl, sums1000.jsonl or sums20000.jsonl: sums over ``count`` steps of one rank, from ``first``
    to ``last``, for at least that many steps except at the end. The sums of all three begin with the first step of the
    run; each stream keeps as many as fit.

    ``columns``: microseconds, and TOKENS; as in SummaryLine, without BEGIN. A column of 0 is left out.
    """

    first: int
    last: int
    count: int
    begin_ns: int  # of the first step
    end_ns: int  # of the last step
    columns: dict[str, int]
    longest_us: int = 0  # of the steps
    loss: float = 0.0  # the sum of the known ones,
    losses: int = 0  # and how many these are
    memory: int = 0  # the highest peak in bytes: reserved on a device, else the process's; 0: not known
    # The longest step with the time before it, without evaluations, profiler windows and the process's first steps: its
    # number, the end of the step before, its begin, its end, how long of it was a checkpoint, and how long it waited in
    # collectives; ns
    longest: list[int] = field(default_factory=list)


class DeviceCall(NamedTuple):
    """A collective on the device's clock.

    ``start_ns`` to ``end_ns``: the calling stream was in it, including waiting for other ranks and queueing behind
    other collectives; for an asynchronous one, until the training's stream had waited for it. ``wait_start_ns`` to
    ``wait_end_ns``: it blocked the training's stream, which is exposed communication. Both are None where it blocked
    the calling stream, and where nothing waited for this collective alone.
    """

    group: str
    seq: int
    start_ns: int
    end_ns: int
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    own_stream: bool = False  # on a stream other than the training's: without a wait nothing was exposed


@dataclass(slots=True)
class DeviceStepRecord:
    """A line of device_steps.jsonl: the same step on the device's own clock, from CUDA events.

    Written when the device has finished the step, a step or two after the host. Times are nanoseconds since the event
    that was recorded when the host began the step.
    """

    step: int
    dur_ns: int
    phases: list[PhaseRow]
    collectives: list[DeviceCall] = field(default_factory=list)


@dataclass(slots=True)
class KeptLine:
    """A line of kept.jsonl: lines of other streams as they were, of the steps from ``first`` to ``last``. ``why``:
    VERDICT, STUCK, STALLED or RESTART."""

    first: int
    last: int
    why: str
    steps: list[StepRecord] = field(default_factory=list)
    collectives: list[CollectiveLine] = field(default_factory=list)
    device_steps: list[DeviceStepRecord] = field(default_factory=list)


@dataclass(slots=True)
class CheckpointRecord:
    """A line of checkpoints.jsonl: one checkpoint, as this rank saw it.

    ``blocking_ns``: time that the training was blocked, in the phase "checkpoint" of that step; ``waited_ns``: the part
    of it spent waiting for the checkpoint before. ``background_ns``: from then until all ranks' shards and the manifest
    were on the disk; 0 for a checkpoint that was not written in the background.
    """

    step: int
    asynchronous: bool = False
    start_ns: int = 0
    blocking_ns: int = 0
    waited_ns: int = 0
    background_ns: int = 0
    bytes: int = 0  # written by this rank
    failed: str = ""  # why there is no checkpoint


@dataclass(slots=True)
class NumberRecord:
    """A line of numbers.jsonl: a loss or a gradient's norm that is not finite, or jumps; the first ten of each kind.
    ``what``: as in ``diag.collectors.numbers``; ``value``: "nan", "inf", "-inf" or a number; ``usual``: the median of
    those before, None if there were none."""

    step: int
    what: str
    value: str
    usual: float | None = None
    monotonic_ns: int = 0


@dataclass(slots=True)
class RankRecord:
    """rank.json: which process wrote the files of its folder, and how its clock maps to the wall clock."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    boot_id: str  # equal on processes that share a monotonic clock
    monotonic_ns: int  # read together with unix_ns
    unix_ns: int
    device: str  # "cpu" or the accelerator's name
    device_index: int | None = None
    cpus: int | None = None  # number of CPUs that this process may run on
    stack_signal: int | None = None  # this signal makes the process write stacks.txt; None: it would end the process
    pid_namespace: str = ""  # where ``pid`` counts: each container has one of its own; "": not known
    job: str = ""  # equal on all ranks of one job, different in two jobs of torchrun; "": the launcher names none
    device_uuid: str = ""  # of the GPU, the same in each process that uses it; "": on CPUs, or torch does not report it
    schema_version: int = RUN_SCHEMA


@dataclass(slots=True)
class Attempt:
    """attempt.json: what the variables of the launcher say of the processes that record here, and who came first."""

    key: str  # job and count of its starts, torchrun's run and restarts, step of Slurm; "": they say nothing
    host: str
    unix_ns: int
    schema_version: int = RUN_SCHEMA


SHARED = frozenset({"rendezvous"})  # fields of the manifest by which other nodes find the run


@dataclass(slots=True)
class Manifest:
    """manifest.json: what was run."""

    run_id: str = ""
    created_unix_ns: int = 0
    argv: list[str] = field(default_factory=list)
    world_size: int | None = None
    nnodes: int = 1
    backend: str | None = None
    strategy: str | None = None
    device: str | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)  # preset, parameters, layers, flops_per_token, ...
    trainer: dict[str, Any] = field(default_factory=dict)  # the bundled trainer's options
    loader: dict[str, Any] = field(default_factory=dict)  # of an attached training's DataLoader: num_workers, ...
    versions: dict[str, str] = field(default_factory=dict)
    collector: dict[str, Any] = field(default_factory=dict)  # settings, and what could not be collected
    rendezvous: str = ""  # equal on all nodes of one job: its id and endpoint
    job: str = ""  # as RankRecord.job
    injected: list[str] = field(default_factory=list)  # planted faults; the analyser never reads this
    resumed_from: str = ""  # the checkpoint that the run resumed from
    resumed_step: int | None = None  # and the number of the first step after it
    training: str = ""  # the first run of the training that this one goes on with: its run_id; "": this run began it
    scheduled: str = ""  # equal in all attempts of a job of a scheduler: a digest; "": no variable names one
    exit_code: int | None = None  # None: still running, or the launcher itself was killed
    windows: list[TraceAsked] = field(default_factory=list)  # requested windows, with the reason; not the scheduled one
    hang: dict[str, Any] = field(default_factory=dict)  # of a run that hung: for how long, and which ranks diag ended
    # The signal that asked the launcher to end the run: {"signal": "SIGTERM", "unix_ns": ...}; empty without one.
    ended_by: dict[str, Any] = field(default_factory=dict)
    schema_version: int = RUN_SCHEMA


@dataclass(slots=True)
class Asked:
    """asked.json: the launcher asks where every rank is. ``number`` counts the requests of a run from 1."""

    number: int
    why: str
    unix_ns: int


@dataclass(slots=True)
class TraceAsked:
    """trace_asked.json: a request for a profiler window of a running job, also an entry of ``Manifest.windows``; or for
    a memory snapshot, at once. ``number`` counts the requests of a run from 1."""

    number: int
    first_step: int  # the first recorded step; the profiler warms up in the step before
    count: int
    ranks: list[int] | None = None  # None: all
    why: str = ""
    unix_ns: int = 0
    memory: bool = False  # a snapshot instead of a window: ``count`` is 0, ``first_step`` the step of the request


@dataclass(slots=True)
class KeepAsked:
    """An entry of keep_asked.json: the ranks keep the full detail of the steps from ``first`` to ``last``. ``number``
    counts the requests of a run from 1; ``why``: VERDICT or STUCK. A rank that began after ``unix_ns`` has other steps
    of these numbers."""

    number: int
    first: int
    last: int
    why: str
    unix_ns: int


@dataclass(slots=True)
class RankExit:
    """An entry of exits.json. ``exit_code`` is -N for a process ended by signal N."""

    rank: int
    exit_code: int
    first: bool = False  # it failed before the launcher ended the others
    by_launcher: bool = False  # the launcher ended it


@dataclass(slots=True)
class Unrecorded:
    """A line of unrecorded.jsonl: a process that trained and was not recorded, and why."""

    rank: int  # the rank that the process takes itself for
    host: str
    pid: int
    unix_ns: int
    why: str


@dataclass(slots=True)
class Heartbeat:
    """heartbeat.json: replaced about once a second."""

    unix_ns: int
    monotonic_ns: int
    step: int
    phase: str
    last_started: dict[str, int] = field(default_factory=dict)  # group: sequence number of the last collective called
    last_finished: dict[str, int] = field(default_factory=dict)
    last_op: str = ""
    done: bool = False
    errors: list[str] = field(default_factory=list)  # collectors that switched themselves off, and why
    steps: int = 0  # number of steps that this process has finished
    phase_since_ns: int = 0  # when the phase began; 0: not known
    trace_number: int = 0  # number of the last request for a profiler window that was addressed to this rank
    trace_answer: str = ""  # TRACE_PENDING, TRACE_RECORDED, or why there is no such window
    backwards: int = 0  # calls of backward so far, while no step has ended: steps end with an optimizer's step
    failed_in: str = ""  # the phase in which the training raised; ``phase`` then names the exception
    # By PyTorch's number of the process group: the last collective enqueued and the last completed, as the Flight
    # Recorder counts them, including those called in C++. Only while the process makes no progress.
    recorder: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Since when steps, phases and collectives of this process are the same as now, on its monotonic clock; 0: unknown.
    unmoved_since_ns: int = 0
    compiles: bool = False  # the training's thread is in torch.compile; only while the process makes no progress
    # Also only then. ``line``: "train.py:57 in load", the training's own innermost line. ``call``: "flock /data/lock",
    # the call to the system that its thread is blocked in, as far as the system says it. ``idle_since_ns``: since when
    # this thread has hardly run, on the monotonic clock; 0: it runs, or it is not known. ``missing``: the call waits
    # for something outside of the job: a lock, the other end of a pipe with a name.
    line: str = ""
    call: str = ""
    idle_since_ns: int = 0
    missing: bool = False
    numbers: int = 0  # losses and gradient norms that were looked at so far; 0: none was on the host
    # The three below only in the last heartbeat of a process that failed, and in a requested one:
    answered: int = 0  # the number of the request
    groups: dict[str, list[int]] = field(default_factory=dict)  # global ranks of every group used so far
    calls: list[CollectiveRow] = field(default_factory=list)  # of the step under way


@dataclass(slots=True)
class HostRecord:
    """A line of host.jsonl: CPU time and run queue time in the ``interval_ns`` before ``monotonic_ns``, of the
    process's ``threads`` other than the training's (at most 16, those that run most) and of the ``workers`` that it
    started (a DataLoader's processes; the first thread of each). ``on_cpu``: they ran; ``queued``: they were ready to
    run and had no core. ``slowest``: the thread that was queued longest. ``runnable``: threads of the whole host that
    ran or were queued at that moment. ``pauses``: (start_ns, end_ns) in which no thread of the process ran although one
    was due to wake up, as in a stopped process; checked every 50 ms, so the real pause is up to that much longer."""

    monotonic_ns: int
    interval_ns: int
    threads: int = 0
    threads_on_cpu_ns: int = 0
    threads_queued_ns: int = 0
    slowest_on_cpu_ns: int = 0
    slowest_queued_ns: int = 0
    workers: int = 0
    workers_on_cpu_ns: int = 0
    workers_queued_ns: int = 0
    runnable: int | None = None
    pauses: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class MachineRecord:
    """A line of machine.jsonl, which one rank of each node writes: what the machine knew at that moment, by the names
    of ``diag.collectors.machine``. ``whole``: these are all values; else only those that are new or differ from the
    line before, and None stands for one that can no longer be read."""

    monotonic_ns: int
    values: dict[str, int | None] = field(default_factory=dict)
    whole: bool = True


def machine_values(before: Mapping[str, int | None], record: MachineRecord) -> dict[str, int | None]:
    """All values that are known with a line of machine.jsonl, after those that were known before it."""
    return record.values if record.whole else {**before, **record.values}


# What a GPU does, as DCGM measures it: averages over the exporter's interval, by how their names end.
GPU_ACTIVITY = (
    "sm_active_ppm", "tensor_active_ppm", "dram_active_ppm", "power_mw", "nvlink_bytes_a_second",
    "nvlink_tx_bytes_a_second", "nvlink_rx_bytes_a_second", "pcie_tx_bytes_a_second", "pcie_rx_bytes_a_second",
)  # fmt: skip
# Values of a machine that go up and down, by how their names end. All others are counters.
MACHINE_GAUGES = frozenset({
    "active", "rate_mbit", "speed_mbit", "up", "link_width", "max_link_width", "link_speed_mt", "max_link_speed_mt",
    "available", "used", "limit", "memory_used", "memory_total", "memory_of_processes", "processes",
    "clock_event_reasons", "xid", *GPU_ACTIVITY,
})  # fmt: skip
_OF_DEVICES = frozenset({"rdma", "net", "pcie", "gpu", "dcgm"})


def split_machine_name(name: str) -> tuple[str, str]:
    """The device that a reading is of, "" for the whole machine, and the name without it: ("mlx5_0:1",
    "rdma.port_xmit_wait")."""
    kind, _, rest = name.partition(".")
    if kind not in _OF_DEVICES:
        return "", name
    device, _, counter = rest.rpartition(".")
    return device, f"{kind}.{counter}"


@dataclass(slots=True)
class DeviceHealth:
    """Values of a device that change seldom: read every half minute, and twice at the end. None: the device or its
    driver does not report it. Counters run since the driver was loaded, or longer: only their growth belongs to the
    run."""

    source: str = ""  # the library: "NVML" or "amdsmi"
    power_limit_mw: int | None = None
    # Rows of the memory that were replaced by spare ones, because of corrected or uncorrected errors. ``pending``: at
    # the next reset of the GPU; ``failed``: no spare row was left, or replacing one did not work.
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None  # on GPUs that retire pages instead
    retire_pending: bool | None = None
    pcie_width: int | None = None  # lanes
    pcie_max_width: int | None = None
    pcie_generation: int | None = None  # an idle GPU may lower it
    pcie_max_generation: int | None = None
    pcie_replays: int | None = None
    active_links: int | None = None  # NVLinks, or XGMI links
    link_errors: dict[str, list[int | None]] = field(default_factory=dict)  # by counter: values of links 0, 1, ...


@dataclass(slots=True)
class DeviceRecord:
    """A line of device.jsonl: one sample of the device, or the reason why there is none."""

    monotonic_ns: int
    unavailable: str | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_mw: int | None = None
    temperature_c: int | None = None
    utilization_percent: int | None = None
    memory_used: int | None = None  # no longer sampled, like the four PCIe and NVLink fields: nothing reads them
    throttle_reasons: list[str] = field(default_factory=list)
    ecc_corrected: int | None = None  # since the driver was loaded; read with ``health``
    ecc_uncorrected: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    nvlink_tx_kib: int | None = None
    nvlink_rx_kib: int | None = None
    health: DeviceHealth | None = None
