"""Ranks that disagree about a collective."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

_FINGERPRINT = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{0}seq>\d+),? ?)?OpType=(?P<{0}op>\w+)"
    r"(?:, TensorShape=\[(?P<{0}shape>[^\]]*)\])?(?:, TensorDtypes=(?P<{0}dtype>[^,)]*))?"
)
_WATCHDOG = (
    r"(?:\[Rank (?P<pg_rank>\d+)\] )?(?:Watchdog caught collective operation timeout|Caught collective operation "
    r"timeout)"
    r":? ?(?:(?:Work)?\w*\((?:SeqNum=(?P<seq>\d+),? ?)?OpType="
    r"(?P<op>\w+)(?:,? ?TensorShape=\[[^\]]*\])?(?:,? ?NumelIn=(?P<numel_in>\d+),? ?NumelOut=(?P<numel_out>\d+))?"
    r"(?:,? ?Timeout\(ms\)=(?P<timeout>\d+))?(?:\) ran(?: for (?P<ran>\d+) milliseconds)?)?)?"
)
_STACKS = (
    "Take the stacks of the call that differs: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE) "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the dumps to `diag triage` as well."
)

CLASSES = (
    FaultClass(
        id="mismatch_shape",
        title="ranks call a collective with different sizes",
        priority=3,
        next_steps=(
            "Compare the arguments of that call on {who} with those on the others: last incomplete batch, uneven "
            "shards, a parameter that only "
            "some "
            "have (drop_last=True, pad, or all_gather_object).",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective before it runs.",
            "Where NCCL complains and the program's sizes are equal, the hosts run with different settings: "
            "compare NCCL_* "
            "variables (NCCL_PROTO, NCCL_ALGO), network plugins and versions of both ends.",
            _STACKS,
        ),
        rule="Same call of the same group, different number of elements or data type: the minority by vote.",
        signatures=(
            Signature(
                "collective-mismatch-size",
                ("collective mismatch error",),
                r"peer (?P<peer>[^\s<>]+<\d+>) collective mismatch error,? local size (?P<local>\d+) remote size "
                r"(?P<remote>\d+)",
                "<= 2.19, InfiniBand",
                "transport/net_ib.cc:1081 (v2.18.3)",
                "{local} bytes here, {remote} at {peer}.",
                confidence=NAMES_AN_EFFECT,
            ),
            Signature(
                "ddp-same-model",
                ("expects same model across all ranks",),
                r"expects same model across all ranks(?:, but Rank (?P<rank>\d+) has (?P<count>\d+) params, while rank "
                r"(?P<other_rank>\d+) has inconsistent (?P<other_count>\d+) params)?",
                "torch 1.9+",
                "torch/csrc/distributed/c10d/reducer.cpp",
                "DDP's check of the model[: rank {rank} has {count} parameters, and it read {other_count} from rank "
                "{other_rank}].",
                confidence=NAMES_AN_EFFECT,
            ),
            Signature(
                "mismatched-collective",
                ("Mismatched collective detected",),
                r"Mismatched collective detected(?:.*?(?:at and|at or|at|and) around rank (?P<near>\d+))?",
                "2.4 to 2.6",
                "enqueue.cc",
                "NCCL's check of the calls found a mismatch[ at or around rank {near}].",
                confidence=NAMES_AN_EFFECT,
            ),
            Signature(
                "incorrect-receive",
                ("posted incorrect receive info",),
                r"peer (?P<peer>[^\s<>]+<\d+>) posted incorrect receive info: size (?P<remote>-?\d+)",
                "2.12+",
                "net_ib/p2p.cc:292",
                "{peer} posted a receive that does not fit.",
                confidence=NAMES_AN_EFFECT,
            ),
            Signature(
                "socket-truncated",
                ("message truncated",),
                r"(?:peer (?P<peer>[^\s<>]+<\d+>) )?message truncated ?: ?receiving (?P<remote>\d+) bytes instead of "
                r"(?P<local>\d+)",
                "2.9+",
                "transport/net_socket.cc:569",
                "{remote} bytes came[ from {peer}] where {local} were expected.",
                confidence=NAMES_AN_EFFECT,
            ),
            Signature(
                "gloo-length",
                ("op.preamble.length <= op.nbytes",),
                r"op\.preamble\.length <= op\.nbytes\. (?P<remote>\d+) vs (?P<local>\d+)",
                "gloo, all",
                "gloo/transport/tcp/pair.cc",
                "It got {remote} bytes for a receive of {local}.",
                confidence=NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="mismatch_op",
        title="ranks call different collectives",
        priority=3,
        next_steps=(
            "Find the branch around that collective that differs on {who} (if rank == 0, an early continue, an "
            "exception "
            "that is caught).",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls when it happens.",
            _STACKS,
        ),
        rule="Same place in the same group, different operation: the minority by vote.",
        signatures=(
            Signature(
                "detail-mismatch",
                ("Detected mismatch between collectives on ranks",),
                r"Detected mismatch between collectives on ranks(?:\. Rank (?P<rank>\d+) is running (?:inconsistent )?"
                r"collective: "
                + _FINGERPRINT.format("")
                + r"(?:.*?but Rank (?P<other_rank>\d+) is running (?:inconsistent )?collective: "
                + _FINGERPRINT.format("other_")
                + r")?)?",
                "torch 1.9+, TORCH_DISTRIBUTED_DEBUG=DETAIL",
                "ProcessGroupWrapper.cpp",
                "Rank {rank} runs {op}, rank {other_rank} runs {other_op}.",
            ),
        ),
    ),
    FaultClass(
        id="desync",
        title="ranks are at different collectives",
        priority=3,
        next_steps=(
            "Find the collective that {who} left out or made too often: a loop of unequal length, a branch.",
            _STACKS,
        ),
        rule="Watchdogs of one group stop at different sequence numbers, or torch's own desync report says so.",
        signatures=(
            Signature(
                "lagging-ranks",
                ("are the lagging ranks that caused this timeout",),
                r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1",
                "TraceUtils.h",
                "torch's report: ranks {ranks} never joined.",
            ),
            Signature(
                "finished-not-joined",
                ("but didn't join collective",),
                r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<done>\d+), but didn't join collective #(?P<next>\d+)",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1",
                "TraceUtils.h",
                "torch's report: rank {ranks} did not join collective {next}.",
            ),
            Signature(
                "joined-not-finished",
                ("joined but didn't finish collective",),
                r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d+)",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1",
                "TraceUtils.h",
                "torch's report: rank {ranks} waits in collective {seq}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="ddp_unused_parameters",
        title="DDP waits for gradients that never come",
        priority=3,
        next_steps=(
            "TORCH_DISTRIBUTED_DEBUG=INFO prints the names of the parameters without a gradient.",
            "Make every output take part in the loss, or DistributedDataParallel(..., find_unused_parameters=True).",
        ),
        signatures=(
            Signature(
                "finished-reduction",
                ("Expected to have finished reduction in the prior iteration",),
                r"Expected to have finished reduction in the prior iteration",
                "torch 1.1+",
                "reducer.cpp",
                "Parameters of the iteration before got no gradient.",
            ),
            Signature(
                "no-grad-for-rank",
                ("which did not receive grad for rank",),
                r"Parameter(?:s| indices) which did not receive grad for rank (?P<rank>\d+): (?P<names>.+)",
                "torch 1.9+",
                "reducer.cpp",
                "On rank {rank}: {names}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="missing_rank",
        title="a rank did not come to the collective",
        priority=4,
        next_steps=(
            "Take the stack of {who}: `py-spy dump --pid PID` on {there}; before the next run "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000 and faulthandler.dump_traceback_later.",
            "Look in its log for what it did last: data loader, evaluation, checkpoint, an exception that was caught.",
        ),
        rule="All others of a group of known size timed out in the same call and these ranks did not; or they never "
        "started an initialisation that the others wait in; or they lag behind in the group's own count.",
        signatures=(
            Signature(
                "watchdog",
                ("aught collective operation timeout",),
                _WATCHDOG,
                "torch 1.8+; element counts from 2.1",
                "ProcessGroupNCCL.cpp",
                "{op} number {seq} was not finished after {ran} ms.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "blocking-wait",
                ("timed out in blocking wait",),
                r"Work (?:WorkNCCL)?\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel_in>\d+), NumelOut="
                r"(?P<numel_out>\d+))?.*timed out in blocking wait",
                "torch <= 2.2",
                "ProcessGroupNCCL.cpp",
                "{op} number {seq} was not finished.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "pg-status",
                ("last enqueued work:", "last enqueued NCCL work:", "Last enqueued NCCL work:"),
                r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: "
                r"(?P<completed>-?\d+)",
                "torch 2.2+",
                "ProcessGroupNCCL.cpp",
                "Enqueued {enqueued}, completed {completed}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "monitored-barrier",
                ("failed to pass monitoredBarrier",),
                r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
                "torch 1.8+",
                "ProcessGroupGloo.cpp",
                "Rank 0 did not see ranks {ranks} at the barrier.",
            ),
            Signature(
                "horovod-stalled",
                ("issing ranks: ", "eady ranks: "),
                r"(?:Stalled ops:)?(?<!\S)(?P<tensor>\S{1,300}) \[(?:[Mm]issing ranks: (?P<ranks>[\d, ]+)|[Rr]eady "
                r"ranks: (?P<ready>"
                r"[\d, ]+))\]",
                "Horovod 0.12+",
                "horovod/common/stall_inspector.cc",
                "Horovod's coordinator waits for[ ranks {ranks}] to submit {tensor}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "lightning-member",
                ("MEMBER: ",),
                r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<size>\d+)",
                "Lightning",
                "lightning/fabric/utilities/distributed.py",
                "Rank {rank} of {size} registers.",
                Role.HARMLESS,
                SUGGESTS,
            ),
            Signature(
                "node-lost",
                ("has been marked dead", "Task launch for"),
                r"node with node id: \S+ and (?:ip|address): (?P<host>[\w.:-]+) has been marked dead|Task launch "
                r"for \S+ failed "
                r"on node (?P<node>[\w.-]+): (?P<why>.+)",
                "Ray, Slurm",
                "ray/gcs, src/srun/libsrun/launch.c",
                "[Node {host} no longer answers Ray.][The scheduler could not start its task on {node}: {why}.]",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "coordination-barrier",
                ("Barrier timed out",),
                r"Barrier timed out(?:\.|:)? ?(?:Barrier_id: |Id: )?(?P<barrier>[\w:-]+)?",
                "JAX, TensorFlow",
                "tsl/distributed_runtime/coordination",
                "Tasks did not reach the barrier[ {barrier}] of the coordination service.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "coordination-task",
                ("/task:",),
                r"^/job:\w+/replica:\d+/task:(?P<rank>\d+)\s*$",
                "JAX, TensorFlow",
                "tsl/distributed_runtime/coordination",
                "Task {rank} is in the list.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "store-barrier",
                ("store based barrier", "store_based_barrier_key"),
                r"store based barrier (?:to initialize process group for|on) rank: ?(?P<rank>\d+),? (?:for )?key: "
                r"?(?P<key>\S+) \(world_size=(?P<size>\d+), (?:num_workers_joined|worker_count)=(?P<joined>\d+)",
                "torch 1.8 to 2.3",
                "distributed_c10d.py",
                "Rank {rank} waits at the store's barrier: {joined} of {size} processes came.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "waiting-for-clients",
                ("seconds waiting for clients",),
                r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) "
                r"clients "
                r"joined",
                "torch 1.10+",
                "TCPStore.cpp",
                "Only {joined} of {wanted} processes came to the store.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
)
