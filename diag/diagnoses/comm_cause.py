"""Why communication is exposed: it is slow, there is too much or too little of it at a time, or nothing overlaps it.

``cause_of`` returns one cause for all of it. Where there is none, parts of it may have causes of their own: each such
diagnosis claims collectives that no other diagnosis claims (gathers of the forward, gathers of the backward, reductions
of all micro-batches but the last, reductions of the last one). ``exposed_communication`` collects the claims and
reports the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from diag.diagnoses.policy import COMMUNICATION, FINDINGS
from diag.model.axes import PIPELINE, TENSOR, axis_words, is_data
from diag.model.breakdown import CollectiveStat, CollectiveTable
from diag.model.matched import MatchedCollectives
from diag.model.programs import Concept, Settings, written
from diag.model.query import By, Query, Value
from diag.model.states import Sharding, sharding_of
from diag.model.steps import Detail, Evidence, Kind
from diag.tables.bandwidth import bus_factor
from diag.tables.collectives import collective_table
from diag.tables.passes import GATHERS, REDUCTIONS, PhasedCall, PhasedCalls, phased_calls
from diag.traces.kineto_names import P2P_OPS
from diag.words import sentences

from .contended_host import queued
from .costs import Cost
from .culprits import Culprits, Series, find_culprits
from .ids import SLOW_LINK
from .missing_ranks import missing_ranks
from .needs import ONE_RANK
from .shares import crowd_of
from .subject import Subject, both_ends, ranks_text, settings_of_run
from .workload import workload

# -- comm axes ---------------------------------------------------------------------------------------------------------
#
# Which mesh axes the exposed communication belongs to.


def exposed_along(subject: Subject) -> dict[str, float]:
    """Fraction of the exposed communication on the critical path, by mesh axis; "" where the axis is unknown."""
    axes, met = subject.attribution.axes, subject.attribution.collectives
    names = ["", PIPELINE, *(axes.of(team) or "" for team in met.teams)]
    axis_of = np.where(met.with_op(*P2P_OPS) & bool(axes.stages()), 1, 2 + met.team)
    paths = subject.attribution.counted.paths
    chosen = paths.kind == Kind.COMM
    met_at = np.append(paths.keys.last_in(met.key_columns), -1)  # the last one for no collective
    place = met_at[paths.key_places[chosen]]
    axis = np.append(axis_of, 0)[place]
    spent: Counter[str] = Counter()
    codes, first = np.unique(axis, return_index=True)
    for at in codes[np.argsort(first)].tolist():
        spent[names[at]] += int(paths.lasted_ns[chosen][axis == at].sum())
    total = spent.total()
    return {name: ns / total for name, ns in spent.items()} if total else {}


def evidence_by_axis(subject: Subject) -> tuple[Evidence, ...]:
    """Only for a mesh of several axes."""
    if not subject.attribution.axes.several:
        return ()
    return tuple(
        Evidence(
            f"exposed communication, {axis_words(axis)} groups",
            round(part, 4),
            "share",
            Query("collectives", {"axis": axis}),
        )
        for axis, part in sorted(subject.once(exposed_along).items(), key=lambda item: -item[1])
        if axis and part >= FINDINGS.mention_share
    )


_OF_SHARDED_PARAMETERS = frozenset({"all_gather", "reduce_scatter"})
_OF_REPLICAS = frozenset({"all_reduce", "reduce", "broadcast", "barrier"})


NEEDS_PARTS = "two ranks or more, and waiting that is separated from transfer (clocks that agree)"  # of a part's claim


class _Network(Struct, frozen=True):
    """What even a slow network of the backend reaches: milliseconds, GB/s (bus bandwidth), bytes."""

    latency_ms: float
    bandwidth: float
    at_bytes: int  # a bandwidth is only judged from this size on


# Loopback and Ethernet of 1 Gbit under gloo, 10 Gbit under NCCL; far below what a healthy one reaches.
_POOR = {"gloo": _Network(5.0, 0.05, 500_000), "nccl": _Network(2.0, 0.5, 16_000_000)}


class Cause(Struct, frozen=True):
    id: str
    why: str
    action: str
    evidence: tuple[Evidence, ...] = ()
    unseen: bool = False  # ranks of the groups are missing, so that waiting cannot be separated from transfer

    @property
    def refinable(self) -> bool:
        """Whether parts of it may have causes of their own."""
        return self.id in ("communication-not-overlapped", "exposed-communication") and not self.unseen


def slow_link_of(subject: Subject) -> Culprits:
    """Ranks that get their results later than the others, if that delay is most of the exposed communication.

    Behind a planted slow link it was 68 % or more [50 simulated runs, 1 recorded]. On a healthy pair of ranks whose
    gloo threads shared two cores, one rank was 3 ms later than the other, which was 20 % [measured].
    """
    late = _late_results(subject)
    tails = {rank: float(tail_ns.mean()) for rank, tail_ns in subject.shares.tail_ns.items()}
    others = [tails.get(rank, 0.0) for rank in subject.shares.ranks if rank not in late.ranks]
    later = max((tails[rank] for rank in late.ranks), default=0.0) - (float(np.median(others)) if others else 0.0)
    if later < COMMUNICATION.half_share * float(subject.shares.cost(Cost.COMM).mean()):
        return replace(late, ranks=())
    return late


def _late_results(subject: Subject) -> Culprits:
    shares = subject.shares
    # gloo moves bytes on the host's cores. Where ranks wait for a core, gloo's threads do too, and it is chance which
    # rank is delayed. Next to another process, tails of 11 to 30 ms a step came with 5 to 10 ms of waiting; alone,
    # 1.5 ms [measured].
    waits = [] if shares.on_device else list(queued(subject).values())
    crowding = max((float(queued_ns.mean()) for queued_ns in waits), default=0.0)

    def later_by(noise_ns: int | Series) -> Culprits:
        return find_culprits(shares.tail_ns, shares.dur_ns, len(shares.ranks), noise_ns)

    # By step as well: where other work comes and goes, tails of 27 to 40 ms came in the five steps of eleven with 8 to
    # 21 ms of that waiting, and hardly any in the others [a healthy pair beside another job].
    each_ns = COMMUNICATION.tail_over_queueing * np.max(waits, axis=0) if waits else 0.0
    usual_ns = max(shares.noise.late_ns, round(COMMUNICATION.tail_over_queueing * crowding))
    late = later_by(np.maximum(usual_ns, each_ns))
    if late.ranks or not crowding:
        return late
    # A chance delay does not recur in every step. For ranks that shared their cores, with and without another process,
    # the tail of nine steps in ten was at most 0.27 of that waiting. Behind a slow link it was 0.5 (DDP) and 0.26
    # (FSDP2, which is therefore not reported) [20 runs].
    steady = max(shares.noise.late_ns, round(COMMUNICATION.steady_tail_over_queueing * crowding))
    steadily_late = later_by(steady)
    always = all(np.percentile(shares.tail_ns[rank], 10) > steady for rank in steadily_late.ranks)
    return steadily_late if steadily_late.ranks and always else late


def cause_of(subject: Subject) -> Cause:
    """The cause of all exposed communication; a ``refinable`` one if there is no single cause."""
    if subject.tables.world_size == 1:
        return Cause(
            "exposed-communication",
            f"{ONE_RANK}, so its collectives only copy",
            "On one process, train without FSDP, DDP and ZeRO, or use more ranks.",
        )
    slow_link = subject.once(slow_link_of)
    collectives = _of_usable_steps(subject)
    collectives = collectives.take(collectives.complete)
    missing = subject.once(missing_ranks)
    if missing is not None and not (subject.attribution.aligned and slow_link.ranks):
        return Cause(
            "exposed-communication",
            f"how much of it is waiting is unknown without {missing.names}",
            missing.action,
            _hidden_evidence(subject),
            unseen=True,
        )
    if not subject.attribution.aligned:
        return Cause(
            "exposed-communication",
            "how much of it is waiting for other ranks is unknown",
            "Record all ranks to separate waiting from transfer.",
            _hidden_evidence(subject),
        )
    if slow_link.ranks:
        slow_ranks = ranks_text(slow_link.ranks)
        return Cause(
            SLOW_LINK,
            sentences.RESULTS_ARRIVE_LATER(len(slow_link.ranks), ranks=slow_ranks),
            f"Check the network interface, cable and NUMA placement of {slow_ranks}; "
            f"{_faster(subject, slow_link.ranks)}.",
            _late_results_evidence(subject, slow_link),
        )
    slow = _slow_network(subject, collectives)
    if slow is not None:
        return slow
    of_one_axis = _of_one_axis(subject)
    if of_one_axis is not None:
        return of_one_axis
    of_data = np.array([is_data(subject.attribution.axes.of(team)) for team in collectives.teams], dtype=np.bool_)
    collectives = collectives.take(of_data[collectives.team] & ~collectives.with_op(*P2P_OPS))
    steps = max(1, len(np.unique(collectives.step)))
    large = collectives.bytes >= COMMUNICATION.bandwidth_from_bytes
    sharding = collectives.take(large & collectives.with_op(*_OF_SHARDED_PARAMETERS))
    _, counts = np.unique(sharding.op * (1 + len(sharding.teams)) + sharding.team, return_counts=True)
    # Where shards have replicas (HSDP) their gradients are reduced once more, among the replicas.
    moved = int(collectives.transfer_ns[large].sum())
    few = sharding.ops == _OF_SHARDED_PARAMETERS and int(counts.max()) / steps <= 2
    optimizer_only = subject.once(shards_optimizer_only)
    most = COMMUNICATION.most_of_transfer_share * int(collectives.transfer_ns.sum())
    if not optimizer_only and few and moved >= most:
        largest = int(sharding.bytes.max())
        return Cause(
            "root-only-unit",
            "the whole model is one sharding unit, so nothing can overlap",
            sentences.WITH_OPTIONS(
                action="Wrap each block: fully_shard(block) for each, then fully_shard(model).", options="--wrap block"
            ),
            (
                Evidence(
                    "largest all-gather or reduce-scatter",
                    float(largest),
                    "bytes",
                    Query(
                        "meetings",
                        {**subject.counted, "complete": True, "op": sorted(_OF_SHARDED_PARAMETERS)},
                        "bytes",
                        By.MAX,
                    ),
                ),
            ),
        )
    replicated = is_replicated(subject)
    latency = _latency_share(collectives)
    if (
        latency is not None
        and latency >= COMMUNICATION.latency_bound_share
        and len(collectives) / steps >= COMMUNICATION.many_collectives
    ):
        rows = Query("meetings", {**subject.counted, "complete": True})
        share = (Evidence("latency, share of the transfer time", round(latency, 3), "share", rows),)
        if replicated:
            return Cause(
                "ddp-buckets",
                f"{len(collectives) / steps:.0f} small buckets {subject.per}, dominated by latency",
                "Make DDP's buckets larger: bucket_cap_mb (25 by default), gradient_as_bucket_view=True.",
                share,
            )
        if optimizer_only:
            return Cause(
                "zero-buckets",
                f"{len(collectives) / steps:.0f} small collectives {subject.per}, dominated by latency",
                'DeepSpeed, zero_optimization: larger buckets, "reduce_bucket_size" and "allgather_bucket_size".',
                share,
            )
        gathers = np.count_nonzero(collectives.with_op("all_gather"))
        if strategy_of(subject) == "deepspeed-zero3" and gathers / steps >= COMMUNICATION.many_collectives:
            return Cause(
                "many-small-modules",
                f"ZeRO-3 gathers {gathers / steps:.0f} small modules {subject.per}, dominated by latency",
                "DeepSpeed gathers each module by itself, and so each expert of a block. Make the block with the "
                "experts a leaf, which is gathered at once: set_z3_leaf_modules(model, [ItsClass]), or "
                'zero_optimization: "leaf_module": {"classes": ["package.module.ItsClass"]}. It also keeps ranks from '
                "gathering different experts, which hangs.",
                share,
            )
        return Cause(
            "latency-bound-collectives",
            f"{len(collectives) / steps:.0f} small collectives {subject.per}, dominated by latency",
            sentences.WITH_OPTIONS(
                action="Wrap coarser: several layers in one unit, fully_shard([a, b]).",
                options="--wrap block or --wrap 2",
            ),
            share,
        )
    crowded = _crowded(subject)
    if crowded is not None:
        return crowded
    hidden = _hidden_share(subject)
    if hidden is None:
        return Cause(
            "exposed-communication",
            "without a profiler window its overlap with computation is unknown",
            "Record a window (`diag trace` while it trains): it shows each collective from its start.",
        )
    if hidden < COMMUNICATION.hardly_overlapped_share:
        return Cause(
            "communication-not-overlapped",
            "no computation overlaps with it",
            _overlap_action(subject),
            _hidden_evidence(subject),
        )
    return Cause(
        "exposed-communication",
        f"computation overlaps only {hidden:.0%} of it",
        _between_collectives(subject),
        _hidden_evidence(subject),
    )


def _late_results_evidence(subject: Subject, slow: Culprits) -> tuple[Evidence, ...]:
    """What ``slow_link_of`` decides by, and when each rank has its results; in a large job, both ends of the range."""
    calls, names = subject.once(phased_of), ranks_text(slow.ranks)
    ranks, place = np.unique(calls.rank, return_inverse=True)
    means_ns = np.bincount(place, weights=calls.transfer_ns) / np.maximum(1, np.bincount(place))
    by_rank = dict(zip(ranks.tolist(), means_ns.tolist(), strict=True))
    alone_ns = max(float(subject.shares.tail_ns[rank].mean()) for rank in slow.ranks)
    last, affected = slow.steps
    of_path = Query("path", {"kind": "comm", "rank": list(slow.ranks)})
    has, lacks = ("has", "lacks") if len(slow.ranks) == 1 else ("have", "lack")
    return (
        *(
            Evidence(
                f"rank {rank}, from the last rank's arrival to its result, mean of its collectives",
                round(by_rank[rank] / 1e6, 3),
                "ms",
                Query("calls", {"rank": rank}, "transfer_ns", By.MEAN),
            )
            for rank in both_ends(sorted(by_rank, key=lambda rank: -by_rank[rank]))
        ),
        Evidence(
            f"steps in which {names} {has} the results last, of {affected} with such a delay",
            float(last),
            "steps",
            of_path,
        ),
        Evidence(
            f"communication in which only {names} still {lacks} the result",
            round(alone_ns / 1e6, 3),
            f"ms {subject.per}",
            of_path,
        ),
    )


def _faster(subject: Subject, slow: tuple[int, ...]) -> str:
    others = tuple(rank for rank in subject.shares.ranks if rank not in slow)
    return f"the link of {ranks_text(others)} is faster" if len(others) == 1 else "the other links are faster"


def _of_one_axis(subject: Subject) -> Cause | None:
    """The cause where most of it is tensor or pipeline parallelism, for which the diagnoses of parts have no advice."""
    along = subject.once(exposed_along)
    axis = max((TENSOR, PIPELINE), key=lambda name: along.get(name, 0.0))
    part = along.get(axis, 0.0)
    if part < COMMUNICATION.half_share:
        return None
    if axis == PIPELINE:
        return Cause(
            "pipeline-communication",
            f"{part:.0%} of it is messages between pipeline stages",
            "Put neighbouring stages where the network between them is fastest, send activations in bf16, and give "
            "each rank one stage (an interleaved schedule sends more).",
        )
    program = subject.once(settings_of_run)
    if program is not None and program.by_megatron:
        missing = [one for one in (Concept.SEQUENCE_PARALLEL, Concept.OVERLAP_TP) if not program.on(one)]
        options = " ".join(written(program.program, one) for one in missing)
        overlap = f"{options}, which overlaps them with matrix products; or " if missing else ""
        return Cause(
            "tensor-parallel-communication",
            f"{part:.0%} of it is tensor parallelism, whose collectives block every layer",
            f"{program.program}: {overlap}a smaller {program.key(Concept.TP)}, within a host.",
        )
    return Cause(
        "tensor-parallel-communication",
        f"{part:.0%} of it is tensor parallelism, whose collectives block every layer",
        "Keep tensor-parallel groups within a host (the innermost axis of the mesh), make them smaller, or overlap "
        "matrix multiplications with their collectives (async tensor parallelism: torch.compile with "
        "torch._inductor.config._micro_pipeline_tp).",
    )


def _slow_network(subject: Subject, collectives: MatchedCollectives) -> Cause | None:
    """A network that is slow at any size: small collectives take long, or large ones reach little bandwidth."""
    poor = _POOR.get(_backend(subject))
    sized = collectives.take((collectives.bytes > 0) & (collectives.transfer_ns > 0))
    if poor is None or not sized:
        return None
    smallest, largest = int(sized.bytes.min()), int(sized.bytes.max())
    latency_ms = float(np.median(sized.transfer_ns[sized.bytes == smallest])) / 1e6
    largest_ones = sized.take(sized.bytes == largest)
    speed = float(np.median(_bus_bandwidth(largest_ones, gloo=not subject.shares.on_device)))

    def of_size(size: int) -> Query:
        where = {**subject.counted, "complete": True, "bytes": size, "transfer_ns >=": 1}
        return Query("meetings", where, "transfer_ns", By.MEDIAN)

    unhindered = 1 - _queued_part(subject, collectives)
    if smallest < poor.at_bytes and unhindered * latency_ms >= poor.latency_ms:
        why = f"even {smallest:,} bytes take {latency_ms:.0f} ms (median)"
    elif largest >= poor.at_bytes and speed < unhindered * poor.bandwidth:
        why = f"{largest:,} bytes move at {speed * 1000:.0f} MB/s (median)"
    else:
        return None
    moved_ms = float(np.median(largest_ones.transfer_ns)) / 1e6
    medians = {smallest: latency_ms, largest: moved_ms}
    return Cause(
        "slow-network",
        f"the network is slow, {why}",
        "Check which interface is used (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, NCCL_IB_HCA), its speed, and other "
        f"traffic on it. Until then send less: {_less_sent(subject)}.",
        tuple(
            Evidence(f"transfer of {size} bytes, median", round(ms, 3), "ms", of_size(size))
            for size, ms in medians.items()
        ),
    )


def _queued_part(subject: Subject, collectives: MatchedCollectives) -> float:
    """Fraction of the transfer time, 0 to 1, in which the CPU threads that move the bytes may have waited for a core,
    first at one end, then at the other. The network is not slow because of that."""
    queued_ms = list(subject.scheduling.mean_ms("communicating_ns").values())
    moved_ms = int(collectives.transfer_ns.sum()) / 1e6 / max(1, len(subject.shares.numbers))
    if subject.shares.on_device or not queued_ms or not moved_ms:
        return 0.0
    return min(1.0, 2 * float(np.mean(queued_ms)) / moved_ms)


def _less_sent(subject: Subject) -> str:
    training = subject.once(workload).training
    return (
        "sharding within a host"
        if training is False
        else "bf16 gradients, larger micro-batches, sharding within a host"
    )


def _backend(subject: Subject) -> str:
    """From the manifest, else from the profiler's header."""
    manifest = subject.tables.manifest
    traces = (trace for rank in subject.tables.ranks.values() for trace in rank.traces)
    backends = [manifest.backend if manifest is not None else "", *(trace.backend for trace in traces)]
    text = next((backend for backend in backends if backend), "") or ""
    named = [name for name in _POOR if name in text]  # both in "cpu:gloo,cuda:nccl"
    return "nccl" if "nccl" in named and subject.shares.on_device else next(iter(named), "")


def _crowded(subject: Subject) -> Cause | None:
    """More CPU ranks on a host than it has cores: a transfer then waits for a core on every rank."""
    crowd = crowd_of(subject.tables)
    if crowd is None:
        return None
    return Cause(
        "crowded-host",
        f"{crowd.ranks} ranks share {crowd.cores} cores, so each transfer waits for a core",
        f"Run no more ranks on {crowd.host} than it has cores, or spread them over more hosts.",
        (
            Evidence(
                f"host {crowd.host}, ranks per core",
                round(crowd.ranks / crowd.cores, 2),
                "ranks",
                Query("ranks", {"host": crowd.host}),
            ),
        ),
    )


def _overlap_action(subject: Subject) -> str:
    manifest = subject.tables.manifest
    backend = manifest.backend if manifest is not None else None
    strategy = manifest.strategy if manifest is not None else None
    if strategy == "fsdp2" and backend == "gloo":
        return sentences.WITH_OPTIONS(
            action="FSDP2 on gloo gathers synchronously unless prefetch is set: set_modules_to_forward_prefetch with "
            "asynchronous unshard.",
            options="--prefetch 1",
        )
    program = subject.once(settings_of_run)
    if program is not None and program.by_megatron:
        return _overlap_options(program)
    if strategy == "fsdp2":
        return "Prefetch the next unit: set_modules_to_forward_prefetch([next]); remove synchronising calls."
    if subject.once(workload).training is False:
        return _between_collectives(subject)
    if strategy == "none" and _reduces_only(subject):
        return (
            "The script calls the reductions itself, after backward. DistributedDataParallel reduces gradients while "
            "backward still computes. Or compute more between the reductions (larger micro-batches)."
        )
    return "Start the reductions earlier (smaller buckets), or compute more between them (larger micro-batches)."


def _overlap_options(program: Settings) -> str:
    """In the program's own names: what is not on yet."""
    needed = [Concept.OVERLAP_REDUCE]
    if program.on(Concept.SHARDED_OPTIMIZER):
        needed.append(Concept.OVERLAP_GATHER)
    missing = [written(program.program, one) for one in needed if not program.on(one)]
    if missing:
        return f"{program.program}: {' '.join(missing)}, which overlaps it with the passes."
    larger = program.key(Concept.MICRO_BATCH)
    return f"{program.program}: its overlap is on already; compute more between the collectives (larger {larger})."


def strategy_of(subject: Subject) -> str:
    manifest = subject.tables.manifest
    return (manifest.strategy if manifest is not None else None) or ""


def _reduces_only(subject: Subject) -> bool:
    """Whether the ranks hold the whole model and exchange gradients alone."""
    collectives = _of_usable_steps(subject)
    small = (collectives.bytes > 0) & (collectives.bytes < COMMUNICATION.bandwidth_from_bytes)  # 0: size unknown
    ops = collectives.take(~small).ops
    return "all_reduce" in ops and ops <= _OF_REPLICAS


def _between_collectives(subject: Subject) -> str:
    if subject.once(workload).training is False:
        return (
            "Compute one half of the batch while the other communicates, fuse collectives with the matrix "
            "multiplications around them, send less (bf16, fp8), or compute more between collectives (larger batches)."
        )
    if _reduces_only(subject):
        return (
            "Send less (bf16 gradients: a communication hook of DDP), or compute more between the reductions (larger "
            "micro-batches; no_sync() where gradients are accumulated)."
        )
    return "Prefetch all-gathers, send less (bf16), or compute more between collectives (larger micro-batches)."


def is_replicated(subject: Subject) -> bool:
    """Whether every rank holds the whole model (DDP), from the manifest, else from the collectives."""
    manifest = subject.tables.manifest
    if manifest is not None and manifest.strategy:
        return sharding_of(manifest.strategy) == Sharding.NONE
    collectives = subject.attribution.collectives
    ops = collectives.take(collectives.bytes >= COMMUNICATION.bandwidth_from_bytes).ops
    return "all_reduce" in ops and not ops & _OF_SHARDED_PARAMETERS


def shards_optimizer_only(subject: Subject) -> bool:
    """Whether parameters are whole on every rank and only the optimizer is sharded (ZeRO-1, ZeRO-2): gradients are
    reduced in the backward, and parameters are gathered after it."""
    if is_replicated(subject):
        return False
    rows = subject.once(phased_of)
    large = (rows.bytes >= COMMUNICATION.bandwidth_from_bytes) & rows.of_data
    gathered = large & rows.with_op(GATHERS)
    if not (large & rows.with_op(REDUCTIONS) & rows.in_pass(Detail.BACKWARD)).any() or not gathered.any():
        return False
    return not (gathered & (rows.in_pass(Detail.FORWARD) | rows.in_pass(Detail.BACKWARD))).any()


def phased_of(subject: Subject) -> PhasedCalls:
    """The collectives of the steps that count, each with its pass."""
    return phased_calls(subject.attribution, subject.shares.numbers)


def _of_usable_steps(subject: Subject) -> MatchedCollectives:
    return subject.attribution.collectives.of_steps(subject.shares.numbers)


def _hidden_share(subject: Subject) -> float | None:
    """Overlapped fraction of the communication, over the counted steps in which it is known, else over the steps in
    profiler windows; None where it is known in neither."""
    parts = subject.parts
    if not parts.hidden_known.any():
        parts = subject.attribution.traced.parts
    if not (known := parts.hidden_known).any():
        return None
    hidden = int(parts.overlapped_comm_ns[known].sum())
    total = hidden + int(parts.exposed_comm_ns[known].sum())
    return hidden / total if total else 0.0


def _hidden_evidence(subject: Subject) -> tuple[Evidence, ...]:
    if (share := _hidden_share(subject)) is None:
        return ()
    rows = Query("steps", subject.counted, "overlapped_comm_ns")
    return (Evidence("communication overlapped with computation", round(share, 4), "share", rows),)


def _latency_share(collectives: MatchedCollectives) -> float | None:
    """Fraction of all transfer time that is latency, judged by the smallest collectives; None with fewer than three
    sizes, or where the largest is less than 8 times the smallest."""
    sized = collectives.take(collectives.bytes > 0)
    sizes = np.unique(sized.bytes).tolist()
    if len(sizes) < 3 or sizes[-1] < 8 * sizes[0]:
        return None
    latency = float(np.median(sized.transfer_ns[sized.bytes == sizes[0]]))
    total = int(sized.transfer_ns.sum())
    return min(1.0, latency * len(sized) / total) if total else None


def _bus_bandwidth(collectives: MatchedCollectives, gloo: bool) -> npt.NDArray[np.float64]:
    """GB/s of each."""
    alike = zip(collectives.op.tolist(), collectives.sizes.tolist(), strict=True)
    factor = [bus_factor(collectives.names[op], ranks, gloo) or 1.0 for op, ranks in alike]
    speed: npt.NDArray[np.float64] = np.array(factor) * collectives.bytes / collectives.transfer_ns
    return speed


def bandwidth(subject: Subject) -> tuple[Evidence, ...]:
    """Bus bandwidth of the largest collectives of each kind, as in the table of collectives."""
    largest: dict[str, CollectiveStat] = {}
    for row in sorted(subject.once(table_of_collectives).rows, key=lambda row: (row.op, -row.bytes_mean)):
        if row.bytes_mean >= COMMUNICATION.bandwidth_from_bytes and row.busbw_gb_s is not None:
            largest.setdefault(row.op, row)
    return tuple(bandwidth_of(row) for row in largest.values())


def bandwidth_of(row: CollectiveStat) -> Evidence:
    at_least = " at least" if row.bandwidth_is_bound else ""
    quantity = f"{row.op} of {row.bytes_mean} bytes, bus bandwidth{at_least}"
    return Evidence(quantity, round(row.busbw_gb_s or 0.0, 4), "GB/s", rows_of(row, "busbw_gb_s"))


def rows_of(row: CollectiveStat, column: str) -> Query:
    """A row of the table of collectives."""
    names = ("op", "group", "dtype", "bytes_mean")
    return Query("collectives", {name: getattr(row, name) for name in names}, column, By.MEAN)


def table_of_collectives(subject: Subject) -> CollectiveTable:
    steps = frozenset(subject.shares.numbers)
    return collective_table(subject.attribution, steps, subject.tables.world_size, gloo=not subject.shares.on_device)


# -- parts of the communication ----------------------------------------------------------------------------------------


PER_RANK_AND_STEP = ("rank", "step")


def reductions(**where: Value) -> Query:
    """The calls that ``is_reduction`` holds for."""
    of_gradients: dict[str, Value] = {
        "op": sorted(REDUCTIONS),
        "phase": "backward",
        "of_data": True,
        "bytes >=": COMMUNICATION.tensors_from_bytes,
    }
    return Query("calls", {**of_gradients, **where})


def gathers_in(phase: str, **where: Value) -> Query:
    """The all-gathers of data parallelism in a pass."""
    return Query("calls", {"op": sorted(GATHERS), "phase": phase, "of_data": True, **where})


def exposed_of(calls: Query) -> Query:
    """The exposed time of these calls: the mean over ranks and steps."""
    return replace(calls, column="exposed_ns", by=By.SUM, per=PER_RANK_AND_STEP)


class Claim(Struct, frozen=True):
    """``part``: fraction of the exposed communication, 0 to 1. ``ms``: milliseconds a step, as in the title."""

    id: str
    part: float
    ms: float
    title: str
    action: str
    evidence: tuple[Evidence, ...]


class Calls(Struct, frozen=True):
    """The collectives of the counted steps, and the sum of their exposed time."""

    rows: PhasedCalls
    exposed_ns: int
    rank_steps: int

    def part(self, ns: int) -> float:
        return min(1.0, ns / self.exposed_ns) if self.exposed_ns else 0.0

    def ms_per_step(self, ns: int) -> float:
        """The mean over ranks and steps."""
        return round(ns / max(1, self.rank_steps) / 1e6, 3)


def calls_of(subject: Subject) -> Calls:
    rows = subject.once(phased_of)
    steps = 1 + rows.step.max(initial=0) - rows.step.min(initial=0)
    return Calls(rows, int(rows.exposed_ns.sum()), len(np.unique(rows.rank * steps + rows.step)))


def reductions_of(rows: PhasedCalls, ops: Collection[str] = REDUCTIONS) -> PhasedCalls:
    """The reductions of gradients, by one of these operations."""
    large = rows.bytes >= COMMUNICATION.tensors_from_bytes
    return rows.take(rows.of_data & rows.with_op(REDUCTIONS & set(ops)) & rows.in_pass(Detail.BACKWARD) & large)


def last_reductions(subject: Subject, *ops: str) -> PhasedCalls:
    """Gradient reductions of the last micro-batch that has any; only those of these operations, if given."""
    rows = reductions_of(subject.once(calls_of).rows, ops or REDUCTIONS)
    return rows.take(rows.micro == rows.micro.max(initial=0))


def worth_asking(subject: Subject) -> bool:
    if (
        subject.shares.share(Cost.COMM) < FINDINGS.mention_share
        or not subject.attribution.aligned
        or subject.phases_alone
    ):
        return False
    if subject.tables.world_size == 1:
        return False
    return subject.once(cause_of).refinable


Queued = dict[tuple[int, int, int], int]  # exposed nanoseconds by (rank, step, start)


def queued_behind(subject: Subject) -> Queued:
    """Reductions that delay a gather, with the part of their exposed time that the unit after the gather would overlap.

    On one communicator, a late gather queues behind the reduction of the previous unit, and the computation waits for
    both. Without resharding after forward there is no gather, so the computation goes on during the reduction.
    """
    every = subject.once(calls_of).rows
    gathers = {(c.rank, c.step, c.start_ns): c for c in backward_gathers(every)}
    if not gathers:
        return {}
    rows = every.take(every.in_pass(Detail.BACKWARD))
    following = {
        (a.rank, a.step, a.start_ns): b
        for a, b in pairwise(gathers.values())
        if (a.rank, a.step, a.micro) == (b.rank, b.step, b.micro)
    }
    rows = rows.take(np.lexsort((rows.start_ns, rows.step, rows.rank)))
    exposed, together = rows.exposed_ns > 0, (rows.rank[1:] == rows.rank[:-1]) & (rows.step[1:] == rows.step[:-1])
    at_once = rows.start_ns[1:] - rows.end_ns[:-1] <= COMMUNICATION.queued_collective_ns
    first = np.flatnonzero(rows.with_op(("reduce_scatter",))[:-1] & together & exposed[:-1] & exposed[1:] & at_once)
    delays: Queued = {}
    for before, call in zip(rows.take(first), rows.take(first + 1), strict=True):
        key = (call.rank, call.step, call.start_ns)
        if key in gathers:
            after = following.get(key)
            hidden = before.exposed_ns if after is None else min(before.exposed_ns, after.room_ns)
            delays[before.rank, before.step, before.start_ns] = hidden
    return delays


def backward_gathers(rows: PhasedCalls) -> list[PhasedCall]:
    large = rows.bytes >= COMMUNICATION.tensors_from_bytes
    return list(rows.take(rows.with_op(GATHERS) & rows.in_pass(Detail.BACKWARD) & rows.of_data & large))
