"""Disagreements: ranks about a collective, hosts about NCCL's version, environment and plugins."""

from __future__ import annotations

from diag.ended.ends import LEFT
from diag.hang.classes.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, LogPattern, confirms, harmless, of
from diag.hang.model import DoneByRecorder, ForStacks, Role, StacksWhileItHangs

_FINGERPRINT = (
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<{0}seq>\d+),? ?)?OpType=(?P<{0}op>\w+)"
    r"(?:, TensorShape=\[(?P<{0}shape>[^\]]*)\])?(?:, TensorDtypes=(?P<{0}dtype>[^,)]*))?"
)
_WATCHDOG = (
    r"(?:\[Rank (?P<pg_rank>\d+)\] )?(?:Watchdog caught collective operation timeout|Caught collective operation "
    r"timeout|"
    # What is left of a line into which another process printed.
    r"(?=\bWork\w*\(SeqNum=\d+, OpType=\w+, [^()\n]{0,200}Timeout\(ms\)=\d+\) ran for \d+ milliseconds before timing "
    r"out))"
    r":? ?(?:(?:Work)?\w*\((?:SeqNum=(?P<seq>\d+),? ?)?OpType="
    r"(?P<op>\w+)(?:,? ?TensorShape=\[[^\]]*\])?(?:,? ?NumelIn=(?P<numel_in>\d+),? ?NumelOut=(?P<numel_out>\d+))?"
    r"(?:,? ?Timeout\(ms\)=(?P<timeout>\d+))?(?:\) ran(?: for (?P<ran>\d+) milliseconds)?)?)?"
)
_STACKS = (
    "Take the stacks of the call that differs: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE) "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give the dumps to `diag triage`."
)

_CALLS = (
    FaultClass(
        **of("mismatch_shape"),
        next_steps=(
            "Compare the arguments of that call on {who} with those on the others: last incomplete batch, uneven "
            "shards, a parameter that only some have (drop_last=True, pad, or all_gather_object).",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective before it runs.",
            "Where NCCL complains and the program's sizes are equal, the hosts run with different settings: compare "
            "NCCL_* variables (NCCL_PROTO, NCCL_ALGO), network plugins and versions of both ends.",
            _STACKS,
        ),
        rule="Same call of the same group, different number of elements or data type: the ranks in the minority are "
        "the culprits.",
        patterns={
            "collective-mismatch-size": LogPattern(
                ("collective mismatch error",),
                r"(?:peer (?P<peer>[^\s<>]+<\d+>) )?collective mismatch error,? local size (?P<local>\d+) "
                r"remote (?:size )?(?P<remote>-?\d+)",
                "2.5 to 2.30, InfiniBand; with the peer from 2.12; transport/net_ib.cc:1081 (v2.18.3)",
                "{local} bytes here, {remote} at the other end[, {peer}].",
                support=NAMES_AN_EFFECT,
            ),
            "ddp-same-model": LogPattern(
                ("expects same model across all ranks",),
                r"expects same model across all ranks(?:, but Rank (?P<rank>\d+) has (?P<count>\d+) params, while rank "
                r"(?P<other_rank>\d+) has inconsistent (?P<other_count>\d+) params)?",
                "torch 1.9+; torch/csrc/distributed/c10d/reducer.cpp",
                "DDP's check of the model[: rank {rank} has {count} parameters, and it read {other_count} from rank "
                "{other_rank}].",
                support=NAMES_AN_EFFECT,
            ),
            "ddp-parameter": LogPattern(
                ("in this process with ",),
                r"(?:\[(?P<group_rank>\d+)\]: ?)?(?P<name>\w+(?:\[\d+\])+) in this process with "
                r"(?P<own>(?:sizes|strides|dtype)[^\n]{0,200}?) (?:appears not to match|did not match) ",
                "torch 1.1+; torch/csrc/distributed/c10d/reducer.cpp",
                "DDP's check of the model: {name} of[ rank {group_rank} of] this process is not as on the first rank.",
                support=NAMES_AN_EFFECT,
            ),
            "mismatched-collective": LogPattern(
                ("Mismatched collective detected",),
                r"Mismatched collective detected(?:.*?(?:at and|at or|at|and) around rank (?P<near>\d+))?",
                "2.4 to 2.6; enqueue.cc",
                "NCCL's check of the calls found a mismatch[ at or around rank {near}].",
                support=NAMES_AN_EFFECT,
            ),
            "incorrect-receive": LogPattern(
                ("posted incorrect receive info",),
                r"peer (?P<peer>[^\s<>]+<\d+>) posted incorrect receive info: size (?P<remote>-?\d+)",
                "2.12+; net_ib/p2p.cc:292",
                "{peer} posted a receive that does not fit.",
                support=NAMES_AN_EFFECT,
            ),
            "socket-truncated": LogPattern(
                ("message truncated",),
                r"(?:peer (?P<peer>[^\s<>]+<\d+>) )?message truncated ?: ?receiving (?P<remote>\d+) bytes instead of "
                r"(?P<local>\d+)",
                "2.9+; transport/net_socket.cc:569",
                "{remote} bytes arrived[ from {peer}], {local} were expected.",
                support=NAMES_AN_EFFECT,
            ),
            "mpi-reporter": confirms(
                ("*** reported by process [",),
                r"\*\*\* reported by process \[\d+,(?P<rank>\d+)\]",
                "Open MPI 1.3+; ompi/errhandler/errhandler_predefined.c",
                "Rank {rank} reports an error of MPI.",
                SUGGESTS,
            ),
            "mpi-truncated": LogPattern(
                ("MPI_ERR_TRUNCATE", "Message truncated, error stack", "bytes received but buffer size is"),
                r"MPI_ERR_TRUNCATE: message truncated|Fatal error in (?P<call>\w+): Message truncated|Message "
                r"(?:from rank \d+ and tag -?\d+ )?truncated;? (?P<remote>\d+) bytes received but buffer size is "
                r"(?P<local>\d+)",
                "Open MPI 1.3+, MPICH 3+; ompi/errhandler/errcode.c, src/mpi/errhan/errnames.txt",
                "MPI received a longer message than the call asked for[ ({remote} bytes, {local} were expected)].",
                support=NAMES_AN_EFFECT,
            ),
            "hccl-inconsistent": LogPattern(
                ("inconsistent between ranks",),
                r"arguments for collective communication are inconsistent between ranks(?:[^\n]*?parameter:? ?\[?"
                r"(?P<parameter>\w+))?",
                "CANN 6+; the error code EI0005",
                "HCCL compared the calls of two devices, and they differ[ in {parameter}].",
                support=NAMES_AN_EFFECT,
            ),
            "horovod-shape": LogPattern(
                ("One rank sent a tensor of ", "One rank had type ", "One rank specified "),
                r"Mismatched (?P<what>[\w ]{1,60}?)(?: \(?\w+\)?)?: One rank (?:sent a tensor of|had type|specified) "
                r"(?P<one>[^,\n]{1,80}?), but another rank (?:sent a tensor of|had type|specified) "
                r"(?P<other>[^\n]{1,80}?)\.",
                "Horovod 0.12+; horovod/common/controller.cc",
                "Horovod compared the calls of a tensor: {one} against {other}.",
                support=NAMES_AN_EFFECT,
            ),
            "tf-shape": LogPattern(
                ("hape mismatch in the collective instance",),
                r"hape mismatch in the collective instance (?P<instance>\d+)\. Op at device (?:/job:\w+/replica:"
                r"\d+/task:(?P<task>\d+)/)?(?:device:)?(?P<device>[\w:]{1,40}) expected shape (?P<one>\[[\d,?]{0,80}"
                r"\]) but another member in the group expected shape (?P<other>\[[\d,?]{0,80}\])",
                "TensorFlow 2.2+; tensorflow/core/common_runtime/collective_param_resolver_local.cc",
                "In TensorFlow's collective {instance}, {device}[ of task {task}] has shape {one}, another member "
                "{other}.",
                support=NAMES_AN_EFFECT,
            ),
            "accelerate-shapes": LogPattern(
                ("due to shape mismatches. All shapes across devices must be valid",),
                printed_by="Accelerate 0.20+; accelerate/utils/operations.py, with ACCELERATE_DEBUG_MODE",
                says="Accelerate compared the tensors of all processes before a collective, and they differ.",
                support=NAMES_AN_EFFECT,
            ),
            "accelerate-shape": confirms(
                ("- Process ",),
                r"^\s*- Process (?P<process>\d+): (?P<shape>[\[({].{0,500})",
                "Accelerate 0.20+; accelerate/utils/operations.py",
                "Process {process} passes {shape}.",
                SUGGESTS,
            ),
            "gloo-length": LogPattern(
                ("op.preamble.length <= op.nbytes",),
                r"op\.preamble\.length <= op\.nbytes\. (?P<remote>\d+) vs (?P<local>\d+)",
                "gloo, all; gloo/transport/tcp/pair.cc",
                "It received {remote} bytes, {local} were expected.",
                support=NAMES_AN_EFFECT,
            ),
        },
    ),
    FaultClass(
        **of("mismatch_op"),
        next_steps=(
            "Find the branch around that collective that differs on {who} (if rank == 0, an early continue, an "
            "exception that is caught).",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL names both calls when it happens.",
            _STACKS,
        ),
        rule="Same position in the same group, different operation: the ranks in the minority are the culprits.",
        patterns={
            "horovod-operation": LogPattern(
                ("Mismatched MPI operations", "Mismatched collective operations"),
                r"Mismatched (?:MPI|collective) operations: One rank did an? (?P<one>\w+), but another rank did an? "
                r"(?P<other>\w+)",
                "Horovod 0.12+; horovod/common/controller.cc",
                "Horovod compared the calls of a tensor: {one} against {other}.",
                support=NAMES_AN_EFFECT,
            ),
            "detail-mismatch": LogPattern(
                ("Detected mismatch between collectives on ranks",),
                r"Detected mismatch between collectives on ranks(?:\. Rank (?P<rank>\d+) is running (?:inconsistent )?"
                r"collective: "
                + _FINGERPRINT.format("")
                + r"(?:.*?but Rank (?P<other_rank>\d+) is running (?:inconsistent )?collective: "
                + _FINGERPRINT.format("other_")
                + r")?)?",
                "torch 1.9+, TORCH_DISTRIBUTED_DEBUG=DETAIL; ProcessGroupWrapper.cpp",
                "Rank {rank} runs {op}, rank {other_rank} runs {other_op}.",
            ),
        },
    ),
    FaultClass(
        **of("desync"),
        next_steps=(
            "Find the collective that {who} left out or made too often: a loop of unequal length, a branch.",
            _STACKS,
        ),
        rule="Watchdogs of one group stop at different sequence numbers, or torch's desync report shows it.",
        patterns={
            "lagging-ranks": LogPattern(
                ("are the lagging ranks that caused this timeout",),
                r"ranks \[(?P<ranks>[\d, ]+)\] are the lagging ranks that caused this timeout",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1; TraceUtils.h",
                "torch's report: ranks {ranks} never joined.",
            ),
            "finished-not-joined": LogPattern(
                ("but didn't join collective",),
                r"\[(?P<ranks>[\d, ]+)\] finished collective #(?P<done>\d+), but didn't join collective #(?P<next>\d+)",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1; TraceUtils.h",
                "torch's report: rank {ranks} did not join collective {next}.",
            ),
            "joined-not-finished": confirms(
                ("joined but didn't finish collective",),
                r"\[(?P<ranks>[\d, ]+)\] joined but didn't finish collective #(?P<seq>\d+)",
                "torch 2.0+, TORCH_NCCL_DESYNC_DEBUG=1; TraceUtils.h",
                "torch's report: rank {ranks} waits in collective {seq}.",
            ),
        },
    ),
    FaultClass(
        id="ddp_unused_parameters",
        title="DDP waits for gradients that never come",
        priority=3,
        next_steps=(
            "TORCH_DISTRIBUTED_DEBUG=INFO prints the names of the parameters without a gradient.",
            "Make every output take part in the loss, or DistributedDataParallel(..., find_unused_parameters=True).",
        ),
        patterns={
            "finished-reduction": LogPattern(
                (
                    "Expected to have finished reduction in the prior iteration",
                    "not used in producing the loss returned",
                ),
                printed_by="torch 1.1+; reducer.cpp; Lightning 2+, strategies/ddp.py",
                says="Parameters of the previous iteration got no gradient.",
            ),
            "no-grad-for-rank": confirms(
                ("which did not receive grad for rank",),
                r"Parameter(?:s| indices) which did not receive grad for rank (?P<rank>\d+): (?P<names>.+)",
                "torch 1.9+; reducer.cpp",
                "On rank {rank}: {names}.",
            ),
        },
    ),
    FaultClass(
        id="stale_store",
        title="the store still holds keys of an earlier run",
        priority=4,
        next_steps=(
            'Start with an empty store: delete the file of init_method="file://...", or take another MASTER_PORT or '
            "--rdzv-id; end processes of the earlier run that still listen on the port.",
            "After a restart, look for the error that ended the attempt before: this barrier counts both.",
        ),
        rule="More workers are counted at the store's barrier than the world has; or etcd's rendezvous is closed and "
        "no launcher in these logs had joined it.",
        patterns={
            "etcd-closed": confirms(
                ("was observed to be closed",),
                r"Rendezvous for run_id=(?P<run>\S{1,255}) was observed to be closed",
                "torch 1.9+; torch/distributed/elastic/rendezvous/etcd_rendezvous.py",
                "The rendezvous of run {run} is closed.",
                SUGGESTS,
            ),
            "etcd-joined": confirms(
                ("oined rendezvous version ",),
                r"\b[Jj]oined rendezvous version \d+ as rank \d+",
                "torch 1.9+; torch/distributed/elastic/rendezvous/etcd_rendezvous.py",
                "A launcher joined the rendezvous.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        **of("missing_rank"),
        context=("Init START", "Init COMPLETE", "Destroy COMPLETE", "Abort COMPLETE"),
        next_steps=(
            StacksWhileItHangs("While it hangs, take the stack of {who}: {py_spy}."),
            ForStacks("Before the next run: faulthandler.dump_traceback_later in the program."),
            DoneByRecorder("Before the next run: TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000."),
            "Look in its log for what it did last: data loader, evaluation, checkpoint, an exception that was caught.",
        ),
        if_read={
            (LEFT,): (
                "Find why {who} left the loop before the others: fewer batches (uneven shards, drop_last), a decision "
                "to stop that only some take, or sys.exit(0).",
            ),
            ("RendezvousTimeoutError",): (
                "Start the launcher on all --nnodes hosts, with the same --rdzv-id and --rdzv-endpoint; `nc -vz` to "
                "that endpoint's host and port from each of them while the first one waits.",
                "Where nodes start late: --rdzv-conf join_timeout=1800 (default 600 s).",
            ),
            ("MEMBER: ",): (
                "Check that {who} are started at all: Slurm needs --ntasks-per-node equal to the devices of a node, "
                "--nodes equal to num_nodes, and `srun` before the program; without Slurm, start the program on every "
                "node, with its NODE_RANK and the same MASTER_ADDR.",
                "Give the logs of the other nodes: the first error there is the reason.",
            ),
        },
        rule="All others of a group of known size timed out in the same call and these ranks did not; or they never "
        "started an initialisation that the others wait in; or they lag behind in the group's own count.",
        patterns={
            "watchdog": confirms(
                ("aught collective operation timeout", " milliseconds before timing out"),
                _WATCHDOG,
                "torch 1.8+; element counts from 2.1; ProcessGroupNCCL.cpp",
                "{op} number {seq} was not finished after {ran} ms.",
            ),
            "blocking-wait": confirms(
                ("timed out in blocking wait",),
                r"Work (?:WorkNCCL)?\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel_in>\d+), NumelOut="
                r"(?P<numel_out>\d+))?.*timed out in blocking wait",
                "torch <= 2.2; ProcessGroupNCCL.cpp",
                "{op} number {seq} was not finished.",
            ),
            "pg-status": confirms(
                ("last enqueued work:", "last enqueued NCCL work:", "Last enqueued NCCL work:"),
                r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: "
                r"(?P<completed>-?\d+)",
                "torch 2.2+; ProcessGroupNCCL.cpp",
                "Enqueued {enqueued}, completed {completed}.",
            ),
            "monitored-barrier": LogPattern(
                ("failed to pass monitoredBarrier",),
                r"Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
                "torch 1.8+; ProcessGroupGloo.cpp",
                "Rank 0 did not see ranks {ranks} at the barrier.",
            ),
            "ctran-wait": confirms(
                ("omm aborted due to timeout, rank: ",),
                r"comm aborted due to timeout, rank: (?P<rank>\d+), commHash: (?P<communicator>[0-9a-f]{1,16}), desc: "
                r"wait(?:Request|Notify) for peer (?P<awaited>\d+)\b",
                "torchcomms; comms/ctran/mapper/CtranMapper.h, comms/ctran/utils/Exception.h",
                "Rank {rank} of communicator {communicator} waited for rank {awaited} until its timeout.",
                SUGGESTS,
            ),
            "horovod-stalled": confirms(
                ("issing ranks: ", "eady ranks: "),
                r"(?:Stalled ops:)?(?<!\S)(?P<tensor>\S{1,300}) \[(?:[Mm]issing ranks: (?P<ranks>[\d, ]+)|[Rr]eady "
                r"ranks: (?P<ready>[\d, ]+))\]",
                "Horovod 0.12+; horovod/common/stall_inspector.cc",
                "Horovod's coordinator waits for[ ranks {ranks}] to submit {tensor}.",
            ),
            "fr-trace-error": confirms(
                ("; Error type: ",),
                r"Culprit rank (?P<rank>\d+); Error type: (?P<error>\w+)(?:, (?P<words>.{1,300}?))?"
                r"(?=, Culprit rank|$)",
                "torchfrtrace of torch 2.5+; torch/distributed/flight_recorder/components/types.py",
                "torchfrtrace lists rank {rank}[: {words}].",
            ),
            "fr-trace-missing": confirms(
                ("issing ranks: {",),
                r"^\s*missing ranks: \{(?P<ranks>[\d, ]+)\}",
                "torchfrtrace of torch 2.5+; torch/distributed/flight_recorder/components/types.py",
                "torchfrtrace finds no entry of ranks {ranks} for this collective.",
            ),
            "fr-trace-members": confirms(
                ("xpected ranks: {",),
                r"^\s*expected ranks: \{(?P<ranks>[\d, ]+)\}",
                "torchfrtrace of torch 2.5+; torch/distributed/flight_recorder/components/types.py",
                "torchfrtrace lists the members of the group.",
                SUGGESTS,
            ),
            "rendezvous-timeout": confirms(
                ("RendezvousTimeoutError",),
                r"(?:^|\.)RendezvousTimeoutError\b(?!\()",
                "torch 1.9+; torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
                "The rendezvous timed out: fewer launchers came than it needs (--nnodes).",
                SUGGESTS,
            ),
            "lightning-registered": harmless(
                ("distributed processes registered", "DDP processes registered"),
                r"All (?:distributed|DDP) processes registered\.",
                "Lightning; pytorch_lightning/utilities/distributed.py, lightning/fabric/utilities/distributed.py",
                "All ranks are registered.",
                SUGGESTS,
            ),
            "lightning-member": harmless(
                ("MEMBER: ",),
                r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<size>\d+)",
                "Lightning; lightning/fabric/utilities/distributed.py",
                "Rank {rank} of {size} registers.",
                SUGGESTS,
            ),
            "node-lost": confirms(
                (
                    "has been marked dead",
                    "Task launch for",
                    "Node failure on ",
                    "marked as not ready",
                    "NodeNotReady ",
                    "its node has died. Node Id",
                    " is timed out. It may exit with exception",
                    "Lost executor ",
                ),
                r"dead because its node has (?P<ended>died)\. Node Id: |node with node id: \S+ and (?:ip|address): "
                r"(?P<host>[\w.:-]+)(?: and node name: \S+)? has been marked dead|Task launch for \S+ failed on "
                r"node (?P<node>[\w.-]+): "
                r"(?P<why>.+)|srun: error: Node failure on (?P<failed>[\w.-]+)|"
                r"[Nn]ode (?P<not_ready>[\w.-]+) (?:is|has been|was) marked as not ready|\bNodeNotReady +\S.*Node "
                r"(?:(?P<named>[\w.-]+) )?(?:is not ready|status is now: NodeNotReady)|"
                r"The node: (?P<rank>\d{1,6}) is timed out\. It may exit with exception|"
                r"Lost executor \S+ on (?P<spark>[\w.-]+): (?:Executor heartbeat timed out|Remote RPC client "
                r"disassociated|worker lost|Slave lost)",
                "Ray, Slurm, Kubernetes, MindSpore, Spark; ray/gcs, src/srun/libsrun/launch.c, src/api/step_launch.c, "
                "pkg/controller/nodelifecycle, cluster/topology/meta_server_node.cc, TaskSchedulerImpl.scala",
                "[Node {host} no longer answers Ray.][Ray lost the node of an actor: it has {ended}.]"
                "[The scheduler could not start its task on {node}: {why}.]"
                "[The scheduler lost node {failed}.][Kubernetes lost node {not_ready}.][Kubernetes lost node {named}.]"
                "[MindSpore's scheduler no longer hears of process {rank}.][Spark lost its executor on {spark}.]",
            ),
            "hccl-abnormal": confirms(
                ("Cluster Exception Location[IP/ID]", "crimer rank"),
                r"(?:Cluster Exception Location\[IP/ID\]: ?|\bcrimer rank ?)"
                r"\[(?P<host>[\w.:%-]{1,80})/(?P<gpu>\d{1,3})\]"
                r"(?:[^\n]{0,120}?Discoverer: ?\[(?P<by>[^\]\s]{1,90})\])?[^\n]{0,120}?"
                r"(?:ExceptionType: ?|\bstatus ?)\[(?:(?P<lost>Heartbeat Lost|LOST)|(?P<stuck>Stuck|STUCK))\b"
                r"(?:[^\n]{0,40}?\bby informer rank ?\[(?P<informer>[^\]\s]{1,90})\])?",
                "CANN 7+; HCCL, heartbeat.cc, task_exception_handler.cc",
                "[HCCL missed the heartbeat of device {gpu} on {host} ({lost}).][HCCL says that the process of device "
                "{gpu} on {host} makes no progress ({stuck}).]",
            ),
            "coordination-barrier": confirms(
                ("Barrier timed out", "stopped sending heartbeats", "Barrier failed because"),
                r"Barrier timed out(?:\.|:)? ?(?:Barrier_id: |Id: )?(?P<barrier>[\w:/\[\]-]+)?|"
                r"tasks are unhealthy \(stopped sending heartbeats\)",
                "JAX, TensorFlow; tsl/distributed_runtime/coordination/coordination_service.cc",
                "Tasks did not reach the barrier[ {barrier}] of the coordination service.",
            ),
            "coordination-task": confirms(
                ("/task:",),
                r"^/job:\w+/replica:\d+/task:(?P<rank>\d+)\s*$",
                "JAX, TensorFlow; tsl/distributed_runtime/coordination",
                "Task {rank} is in the list.",
                SUGGESTS,
            ),
            "heartbeat-lost": confirms(
                (
                    " heartbeat timeout",
                    " seems down, retrying",
                    " is down, aborting collectives",
                    "check alive failed, ",
                ),
                r"/job:\w+/replica:\d+/task:(?P<rank>\d+) (?:heartbeat timeout|seems down, retrying|is down\b)",
                "JAX, TensorFlow; tsl/distributed_runtime/coordination/coordination_service.cc, "
                "tensorflow/python/distribute/collective_all_reduce_strategy.py",
                "Task {rank} sends no heartbeats any more: it ended, was preempted, or lost the network.",
            ),
            "session-waits": confirms(
                ("still waiting for response from worker",),
                r"CreateSession still waiting for response from worker: /job:(?P<job>\w+)/replica:\d+/"
                r"task:(?P<rank>\d+)",
                "TensorFlow 1.0+; tensorflow/core/distributed_runtime/master.cc",
                "TensorFlow waits for task {rank} of its {job}s, which does not answer.",
            ),
            "xla-rendezvous": confirms(
                ("threads to join the rendezvous",),
                r"Expected (?P<wanted>\d+) threads to join the rendezvous, but (?:only (?P<joined>\d+) of them|not all "
                r"of them) arrived",
                "XLA, JAX 0.4+; xla/service/rendezvous.cc",
                "A collective of XLA waits for {wanted} devices[, and {joined} came].",
            ),
            "pod-not-scheduled": confirms(
                ("FailedScheduling", " nodes are available: "),
                r"(?:\bFailedScheduling\b.{0,200}?|^)(?P<free>\d+)/(?P<nodes>\d+) nodes are available",
                "Kubernetes 1.8+; pkg/scheduler/scheduler.go, pkg/scheduler/framework/types.go",
                "Kubernetes finds no node for a pod of the job: {free} of {nodes} nodes can take it.",
            ),
            "ray-no-node": confirms(
                ("No available node types can fulfill",),
                r"No available node types can fulfill resource request",
                "Ray 1.2+; python/ray/autoscaler/_private/event_summarizer.py",
                "Ray's cluster has no node for a part of the job.",
                SUGGESTS,
            ),
            "store-barrier": confirms(
                ("store based barrier", "store_based_barrier_key"),
                r"store based barrier (?:to initialize process group for|on) rank:? ?(?P<rank>\d+),? (?:for )?key: "
                r"?(?P<key>\S+) \(world_size=(?P<size>\d+), (?:num_workers_joined|worker_count)=(?P<joined>\d+)",
                "torch 1.8 to 2.3; distributed_c10d.py",
                "Rank {rank} waits at the store's barrier: {joined} of {size} processes have arrived.",
            ),
            "store-barrier-done": confirms(
                ("ompleted store-based barrier",),
                r"Completed store-based barrier for key:(?P<key>\S+) with \d+ nodes",
                "torch 1.11 to 2.3; distributed_c10d.py",
                "All processes came to the store's barrier.",
                SUGGESTS,
            ),
            "waiting-for-clients": confirms(
                ("seconds waiting for clients",),
                r"Timed out after (?P<seconds>\d+) seconds waiting for clients\. (?P<joined>\d+)/(?P<wanted>\d+) "
                r"clients joined",
                "torch 1.10+; TCPStore.cpp",
                "Only {joined} of {wanted} processes connected to the store.",
            ),
            "fewer-joined": confirms(
                (" joined", " connected", " registered", " arrived"),
                # A count alone shows how far a start is; of a start that ended it is what was raised, or timed out.
                r"(?:^(?:\w{1,40}\.){0,6}\w{0,60}(?:Error|Exception): |\bwhat\(\): +|"
                r"\b[Tt]ime(?:d )?-?out\b[^\n]{0,120}?)"
                r"(?:[Oo]nly )?(?P<joined>\d{1,6})(?:/| of )(?P<wanted>\d{1,6}) "
                r"(?:clients?|workers?|nodes?|ranks?|processes|peers?|members?|participants?) "
                r"(?:have |had |were )?(?:joined|connected|registered|arrived)\b",
                "torch_npu 2.1+, TCPStore of torch with another backend; any rendezvous that counts who came",
                "Only {joined} of {wanted} processes came.",
            ),
            "etcd-barrier": confirms(
                ("Error in barrier wait",),
                # Who complains has come itself: with nobody, the store was lost.
                r"\bError in barrier wait\b[^\n]{0,255}? rank (?P<rank>\d+) completed (?P<joined>[1-9]\d*)/"
                r"(?P<wanted>\d+) ranks\)",
                "NIXL's benchmark; benchmark/nixlbench/src/runtime/etcd/etcd_rt.cpp",
                "Rank {rank} waited at a barrier to which {joined} of {wanted} processes came.",
            ),
        },
    ),
)

_HOSTS = (
    FaultClass(
        id="nccl_version_mismatch",
        title="the processes use different versions of NCCL",
        priority=2,
        next_steps=(
            "Align NCCL: on every host `python -c 'import torch; print(torch.__version__, "
            "torch.cuda.nccl.version())'`; look for another libnccl.so.2 in LD_LIBRARY_PATH and LD_PRELOAD.",
            "NCCL_DEBUG=VERSION prints the one that is loaded.",
        ),
        rule="The processes of one job print different NCCL versions; the minority is named.",
        rules_out={"env_mismatch": "the versions themselves differ"},
        patterns={
            "mismatched-version": LogPattern(
                ("Mismatched NCCL version detected",),
                r"Mismatched NCCL version detected ?: ?rank (?P<group_rank>\d+) version (?P<version>\d+) rank "
                r"(?P<other_group_rank>\d+) version (?P<other_version>\d+)",
                "2.23+; init.cc:966",
                "Rank {group_rank} has version {version}, rank {other_group_rank} has {other_version}.",
            ),
            "wrong-type": LogPattern(
                ("socketFinalizeAccept",),
                r"socketFinalizeAccept(?: from \S+)?: wrong type",
                "2.12+; misc/socket.cc:337",
                "A process that uses another protocol connected.",
                support=SUGGESTS,
            ),
            "family-0": LogPattern(
                ("with family 0 is neither",),
                r"with family 0 is neither AF_INET",
                "2.12+; misc/socket.cc:538",
                "The address that a peer sent is empty.",
                support=SUGGESTS,
            ),
            "bootstrap-truncated": LogPattern(
                ("Message truncated : received",),
                r"Message truncated : received [\d,]+ bytes instead of [\d,]+",
                "all; bootstrap.cc:225",
                "A peer's bootstrap message has another size.",
                support=SUGGESTS,
            ),
            "version-line": LogPattern(
                ("NCCL version ",),
                r"NCCL version (?P<version>\d+(?:\.\d+)+)",
                "all; init.cc",
                "NCCL {version}.",
                Role.HARMLESS,
            ),
        },
    ),
    FaultClass(
        id="same_host_identity",
        title="two hosts look like one to NCCL",
        priority=2,
        by_line=True,
        next_steps=(
            "NCCL treats processes with the same hostname and boot id as one host: give every host (or container) its "
            "own name, or set NCCL_HOSTID to a different value on each.",
            "Containers on one host that should be one: give them the same /dev/shm (--ipc=host) and PID namespace.",
        ),
        rule="NCCL reports a GPU that two ranks share, or a shared memory segment that is not there, and the lines "
        "show that the ranks are on different hosts.",
        rules_out={
            "duplicate_gpu": "the two ranks use different addresses: their GPUs have one PCI address on two hosts",
            "shm_exhausted": "the segment is not full but absent: another host or container made it",
            "cuda_failure": "the memory that CUDA cannot open is on another host",
        },
        patterns={
            "segment-absent": LogPattern(
                ("Error while attaching to shared memory segment",),
                r"Error while attaching to shared memory segment(?: (?P<path>/?\S+))?(?: \(size (?P<size>\d+)\))?, "
                r"error: No such file",
                "2.21+; misc/shmutils.cc:132",
                "The shared memory[ {path}] that a peer made is not there: the peer ended and removed it, or it runs "
                "in another container or on another host with the same name.",
                support=SUGGESTS,
            )
        },
    ),
    FaultClass(
        id="env_mismatch",
        title="the hosts run with different settings",
        priority=2,
        by_line=True,
        context=("set by environment to",),
        next_steps=(
            "Align the NCCL_* variables and network plugins of all hosts: pass them through the launcher (mpirun -x, "
            "srun --export), and look at /etc/nccl.conf and ~/.nccl.conf of each host.",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET prints what each process took.",
        ),
        rule="Variables or plugins that must be the same everywhere differ between hosts, and the job fails or hangs.",
        rules_out={"nccl_version_mismatch": "all processes that print an NCCL version print the same one"},
        patterns={
            "rank-count": LogPattern(
                ("Bootstrap Root : mismatch in",),
                r"Bootstrap Root : mismatch in (?:rank count|info) from procs",
                "rank count <= 2.22, info 2.23+; bootstrap.cc:346",
                "The processes disagree on how many they are.",
                support=NAMES_AN_EFFECT,
            ),
            "rank-out-of-range": LogPattern(
                ("Invalid rank requested",),
                r"Invalid rank requested ?: ?(?P<rank>\d+)/(?P<size>\d+)",
                "all; init.cc",
                "It requested rank {rank} of {size}: its RANK or the world size is wrong.",
            ),
            "checked-in": LogPattern(
                ("has already checked in",),
                r"Bootstrap Root : rank (?P<group_rank>\d+) of (?P<size>\d+) ranks has already checked in",
                "all; bootstrap.cc:358",
                "Two processes claim to be rank {group_rank} of {size}.",
                support=NAMES_AN_EFFECT,
            ),
            "plugin": LogPattern(
                ("Plugin Path", "Could not find: libnccl-net", "Loaded net plugin", "No plugin found", "Plugin load "),
                r"(?P<plugin>(?:P2P plugin|Plugin Path|NET/Plugin ?: (?:Could not find: libnccl-net|Loaded net "
                r"plugin|Plugin load (?:\(libnccl-net\.so\) )?returned 2|.*No plugin found)).*)",
                "all; plugin/plugin_open.cc:108",
                "{plugin}",
                Role.HARMLESS,
            ),
        },
    ),
)

CLASSES = (*_CALLS, *_HOSTS)
