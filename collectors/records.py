"""What the collectors write: every field of every file, defined once, read by the analyser into the same types.

Times are integers in nanoseconds of the host's monotonic clock (``time.monotonic_ns``, which every process of one host
shares), unless a name says ``unix_ns``. Fields are only ever added, always with a default, so old runs keep opening.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .layout import SCHEMA_VERSION

# Phases of a step. Whatever lies between them belongs to the step and to no phase.
DATA = "data"
H2D = "h2d"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
CHECKPOINT = "checkpoint"
PHASES = (DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT)
REST = "rest"  # of a step: between the phases
PHASES_AND_REST = (*PHASES, REST)

# A phase of some trainings in addition to those: without it a slow evaluation would look like a hang.
EVALUATION = "evaluation"

# Heartbeat.phase of a training that raised: "failed: RuntimeError"
FAILED = "failed: "

# Asked.why
HANG = "hang"  # the training makes no progress
CRASH = "crash"  # a process has failed, the others still live

# Heartbeat.trace_answer
TRACE_PENDING = "pending"
TRACE_RECORDED = "recorded"

# Names of the ranges that the collectors put into a profiler window: "diag.step#12", "diag.data", ...
STEP_RANGE = "diag.step#"
PHASE_RANGE = "diag."

# CollectiveRow of point-to-point traffic: group "p2p 2>3" is what rank 2 sends to rank 3, and has these operations.
P2P_PREFIX = "p2p "
SEND = "send"
RECV = "recv"

# Further columns of a SummaryLine; those named after the phases and REST hold how long the rank worked in them.
BEGIN = "begin"  # since the begin of the step before
STEP = "step"
STILL = ".still"  # after a phase's name: how long the rank waited for collectives in it
TOKENS = "tokens"

# StepRecord.window
WINDOW_NONE = ""
WINDOW_WARMUP = "warmup"  # the profiler is running but not recording
WINDOW_ACTIVE = "active"  # recorded in a trace
WINDOW_AFTER = "after"  # the first step after a window: ranks leave the export at different times


class PhaseRow(NamedTuple):
    """One phase of a step on the host's clock; a phase can come several times in a step (micro-batches)."""

    phase: str
    start_ns: int
    end_ns: int


class CollectiveRow(NamedTuple):
    """One collective of one rank, or one send or receive.

    ``start_ns`` is when this rank called it, ``end_ns`` when its result was there (None where the backend does not
    report it, as NCCL's host side). ``wait_start_ns`` to ``wait_end_ns`` is the time in which a thread of the training
    waited for it: the whole call where it is synchronous, the call of ``Work.wait`` where it is not, None where nobody
    waited. ``bytes`` is the full tensor: the output of an all-gather, the input of a reduce-scatter.
    ``seq`` counts the calls on this group in this process from 0: equal calls have equal numbers on all its ranks.

    A send ends when it is handed over, or when the wait for it does where a thread was blocked by it. A receive, and a
    functional collective, end when the wait for them does, which is later than they were done where it blocked nobody.

    Not ``whole``: several in C++, of which ``bytes`` is the sum, but the rest only from the start of the last one. What
    they took is not known.

    ``received_bytes``: of an all-to-all, what this rank receives, and ``bytes`` is what it sends; both include the part
    that it keeps. None for other operations, and in files of older versions.
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
    """One collective of one rank on the device: how long it took from this rank's arrival, so that the time in which
    the rank waited for the others is part of it. ``group`` and ``seq``: PyTorch's own name of the group and number of
    the collective, equal on all its ranks. ``bytes``: as of CollectiveRow. ``created_ns``: when the host called it."""

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

    They are of no step: the recorder is read later than a step ends. ``created_ns`` is on the clock of steps.jsonl, by
    which a reader finds the step.
    """

    rows: list[DurationRow]
    groups: dict[str, list[int]] = field(default_factory=dict)  # global ranks of groups not named before in this file
    recorder: str = ""  # the backend whose recorder it is
    lost: int = 0  # entries that the recorder overwrote before they were read


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
    (``workers`` times prefetch factor) batches lay in it, the others were being loaded or still to be."""

    ready: int
    capacity: int
    workers: int


@dataclass(slots=True)
class HeldRecord:
    """Bytes that model and optimizer hold on one rank between the optimizer's step and the clearing of gradients.

    ``gathered``: whole parameters of sharding units that are gathered just then; the others are this rank's own parts.
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
    # How long the training's thread ran, and how long it was ready to run and had no core. None: the system does
    # not say. ``cpu``: both by phase; what neither they nor a known wait explain of a phase, the thread was blocked.
    # Empty in most of the steps that are shorter than 0.1 s.
    on_cpu_ns: int | None = None
    queued_ns: int | None = None
    cpu: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: HeldRecord | None = None  # in the last step of a run only
    # When the step asked for its first batch. None: see ``scheduling.queue_of``; steps below 0.2 s do not all look.
    queue: LoaderQueue | None = None


@dataclass(slots=True)
class SummaryLine:
    """A line of summary.jsonl: ``count`` steps of one rank, one after the other, in kilobytes. It stands by itself, so
    that a reader of very many ranks opens one file of each.

    ``values``: of each of the ``columns``, one after the other, one value a step, in whole microseconds but for TOKENS:
    base64 of unsigned 32-bit integers, the lowest byte first. A column of nothing but zeros is left out. The phases of
    a step (the phases and REST, and the same with STILL) add up to it but for the microsecond that each is rounded by,
    and for waiting for a peer's message. Micro-batches are added up.
    """

    identity: RankRecord
    first: int  # number of the first step
    count: int
    begin_ns: int  # of the first step
    columns: list[str]
    values: str
    waits: int = 0  # how often a thread of the training waited for a collective; 0: not recorded, or on a device
    marked: dict[str, list[int]] = field(default_factory=dict)  # StepRecord.window, or EVALUATION: steps
    memory: MemoryRecord | None = None  # the highest of the steps


class DeviceCall(NamedTuple):
    """A collective on the device's clock.

    ``start_ns`` to ``end_ns``: the calling stream was in it, waiting for other ranks and queueing behind other
    collectives included; of an asynchronous one until the training's stream had waited for it. ``wait_start_ns`` to
    ``wait_end_ns``: the training's stream stood still for it, which is exposed communication. Both are None where it is
    the calling stream that stood still, and where nothing waited for it by itself.
    """

    group: str
    seq: int
    start_ns: int
    end_ns: int
    wait_start_ns: int | None = None
    wait_end_ns: int | None = None
    own_stream: bool = False  # not the training's: where nothing waited, nothing was exposed


@dataclass(slots=True)
class DeviceStepRecord:
    """A line of device_steps.jsonl: the same step on the device's own clock, from CUDA events.

    Written when the device has got there, a step or two after the host. Times are nanoseconds since the event that was
    recorded when the host began the step.
    """

    step: int
    dur_ns: int
    phases: list[PhaseRow]
    collectives: list[DeviceCall] = field(default_factory=list)


@dataclass(slots=True)
class CheckpointRecord:
    """A line of checkpoints.jsonl: one checkpoint, as this rank saw it.

    ``blocking_ns``: the training was blocked, in the phase "checkpoint" of that step; ``waited_ns`` of that for the
    checkpoint before. ``background_ns``: from then until all ranks' shards and the manifest were on the disk; 0 of one
    that was not written in the background.
    """

    step: int
    asynchronous: bool = False
    start_ns: int = 0
    blocking_ns: int = 0
    waited_ns: int = 0
    background_ns: int = 0
    bytes: int = 0  # that this rank wrote
    failed: str = ""  # why there is none


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
    cpus: int | None = None  # that this process may run on
    stack_signal: int | None = None  # this signal makes the process write stacks.txt; None: it would end the process
    schema_version: int = SCHEMA_VERSION


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
    injected: list[str] = field(default_factory=list)  # planted faults; the analyser never reads this
    resumed_from: str = ""  # the checkpoint that the run went on from
    exit_code: int | None = None  # None: still running, or the launcher itself was killed
    windows: list[TraceAsked] = field(
        default_factory=list
    )  # that were asked for, by whom and why; not the scheduled one
    hang: dict[str, Any] = field(default_factory=dict)  # of a run that was ended as hung: since when, and its verdict
    schema_version: int = SCHEMA_VERSION


@dataclass(slots=True)
class Asked:
    """asked.json: the launcher wants to know where every rank is. ``number`` counts the requests of a run from 1."""

    number: int
    why: str
    unix_ns: int


@dataclass(slots=True)
class TraceAsked:
    """trace_asked.json: a profiler window that somebody wants of a running job, and an entry of ``Manifest.windows``;
    or a memory snapshot, at once. ``number`` counts the requests of a run from 1."""

    number: int
    first_step: int  # recorded; the profiler warms up in the step before
    count: int
    ranks: list[int] | None = None  # None: all
    why: str = ""
    unix_ns: int = 0
    memory: bool = False  # a snapshot, and no window: ``count`` is 0, ``first_step`` the step when it was asked for


@dataclass(slots=True)
class RankExit:
    """An entry of exits.json. ``exit_code`` is -N for a process that signal N ended."""

    rank: int
    exit_code: int
    first: bool = False  # it had failed before the launcher ended the others
    by_launcher: bool = False  # the launcher ended it


@dataclass(slots=True)
class Unrecorded:
    """A line of unrecorded.jsonl: a process that trained and was not recorded, and why."""

    rank: int  # as it takes itself for
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
    steps: int = 0  # that this process has finished
    phase_since_ns: int = 0  # when the phase began; 0: not known
    trace_number: int = 0  # of the request for a profiler window that this rank read last, if it was asked
    trace_answer: str = ""  # TRACE_PENDING, TRACE_RECORDED, or why there is no such window
    failed_in: str = ""  # the phase in which the training raised; ``phase`` then names the exception
    # Of process groups, by PyTorch's own number: the last collective enqueued and the last completed, as the Flight
    # Recorder counts them, those included that are called in C++. Only while the process makes no progress.
    recorder: dict[str, tuple[int, int]] = field(default_factory=dict)
    # The three below only in the last heartbeat of a process that failed, and in one that was asked for:
    answered: int = 0  # the number of the request
    groups: dict[str, list[int]] = field(default_factory=dict)  # global ranks of every group used so far
    calls: list[CollectiveRow] = field(default_factory=list)  # of the step under way


@dataclass(slots=True)
class HostRecord:
    """A line of host.jsonl: what the CPU scheduler gave, in ``interval_ns`` until ``monotonic_ns``, to the process's
    ``threads`` other than the training's (at most 16, those that run most) and to the ``workers`` that it has started
    (the first thread of each: a DataLoader's processes). ``on_cpu``: they ran; ``queued``: they were ready to run and
    had no core. ``slowest``: the thread that was queued longest. ``runnable``: threads of the whole host that ran or
    were queued at that moment. ``pauses``: (start_ns, end_ns) in which no thread of the process ran although one was to
    wake up, as of a process that is stopped; seen every 50 ms, so that each is up to that much longer."""

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
class DeviceHealth:
    """What changes seldom on a device: read every half minute, and twice at the end. None: the device or its driver
    does not report it. Counters run since the driver was loaded, or longer: only their growth is of the run."""

    source: str = ""  # the library: "NVML" or "amdsmi"
    power_limit_mw: int | None = None
    # Rows of the memory that were replaced by spare ones, because of corrected or uncorrected errors. ``pending``: at
    # the next reset of the GPU; ``failed``: no spare row was left, or replacing one did not work.
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None  # of a GPU that retires pages instead
    retire_pending: bool | None = None
    pcie_width: int | None = None  # lanes
    pcie_max_width: int | None = None
    pcie_generation: int | None = None  # an idle GPU may lower it
    pcie_max_generation: int | None = None
    pcie_replays: int | None = None
    active_links: int | None = None  # NVLinks, or XGMI links
    link_errors: dict[str, list[int | None]] = field(default_factory=dict)  # by counter: of link 0, 1, ...


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
    memory_used: int | None = None  # no longer sampled, as the four at the end: nothing reads them
    throttle_reasons: list[str] = field(default_factory=list)
    ecc_corrected: int | None = None  # since the driver was loaded; read with ``health``
    ecc_uncorrected: int | None = None
    pcie_tx_kb_s: int | None = None
    pcie_rx_kb_s: int | None = None
    nvlink_tx_kib: int | None = None
    nvlink_rx_kib: int | None = None
    health: DeviceHealth | None = None
