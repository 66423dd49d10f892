"""Ranks that are late or silent, answers where no cause is known, and lines that are never a cause."""

from __future__ import annotations

from diag.hang.classes import endings
from diag.hang.classes.base import SUGGESTS, FaultClass, LogPattern, cascade, confirms, harmless, of
from diag.hang.classes.endings import ENDED_WELL, RECORDED
from diag.hang.model import Role, StacksWhileItHangs, WhileItHangs

_LONGER = (
    "Raise the group's timeout for that phase: init_process_group(timeout=timedelta(hours=2)), or "
    "`torch.distributed.distributed_c10d._set_pg_timeout`."
)

CLASSES = (
    FaultClass(
        id="slow_rank_preprocess",
        title="the others wait while a rank prepares data",
        priority=4,
        busy="was still preparing data",
        next_steps=(
            "Prepare the data before the job, or on every rank; a barrier around rank 0's work is bound by the "
            "timeout.",
            _LONGER,
        ),
        rule="A tiny collective among the first ones timed out while a rank was still preparing data.",
        patterns={
            "preprocessing": confirms(
                (
                    "okeniz",
                    "Map:",
                    "Map (",
                    "Filter:",
                    "Filter (",
                    "Generating ",
                    "reprocess",
                    "Downloading",
                    "Loading dataset",
                    "Packing",
                ),
                r"[Tt]okeniz(?:ing|ation|e\b|ed\b)|[Rr]unning tokenizer|\b(?:Map|Filter)(?: \([^)]*\))?:|Generating "
                r"\w+ split|[Pp]reprocess|Downloading\b|Loading dataset|Packing",
                "datasets, transformers; progress bars and messages of data preparation",
                "A rank prepares data.",
                SUGGESTS,
            )
        },
    ),
    FaultClass(
        **of("slow_rank_eval"),
        busy="was still evaluating",
        context=("]  eta: ", "]\teta: "),  # of MetricLogger
        next_steps=(
            "Evaluate on all ranks (a DistributedSampler for the evaluation set), or raise the timeout: the "
            "evaluation on {rank_words} alone takes longer than it.",
            _LONGER,
        ),
        rule="A collective timed out while a rank was still evaluating for longer than the timeout.",
        patterns={
            "evaluating": confirms(
                (
                    "eval",
                    "Eval",
                    "EVAL",
                    "alidati",
                    "alidating",
                    "Testing",
                    "redict",
                    "Class ",
                    "classes ",
                    "val ",
                    "val:",
                    "Val ",
                    "Val:",
                    "Sanity Checking",
                ),
                r"\b[Ee]val(?:uat\w+)?\b|\bEVAL|\b[Vv]alid(?:ation|ating)\b|\bTesting\b|\b[Pp]redict(?:ing|ions?)\b|"
                # The head of a table of results by class, which a bar follows; a bar of this name
                r"^\s*Class\s+Images\s+(?:Labels|Targets|Instances)\b|^\s*classes\s+top1_acc\b|"
                r"^[^|%\n]{0,40}\b[Vv]al[ :][^|%\n]{0,60}\d{1,3}%\||\bSanity Checking\b",
                "any; progress bars and messages of evaluation; Ultralytics YOLOv3+, val.py; Lightning, "
                "callbacks/progress/tqdm_progress.py",
                "A rank evaluates.",
                SUGGESTS,
            )
        },
    ),
    FaultClass(
        **of("slow_rank_checkpoint"),
        busy="was still saving a checkpoint",
        next_steps=(
            "Save sharded or asynchronously (torch.distributed.checkpoint.async_save) or to a faster file system; "
            "look at the load of the file system that holds the checkpoints of {rank_words}.",
            _LONGER,
        ),
        rule="A collective timed out while a rank was still saving.",
        patterns={
            "saving": confirms(
                ("Saving", "saving", "riting checkpoint", "checkpoint:"),
                r"\b[Ss]aving\b|\b[Ww]riting checkpoint|\bcheckpoint:.*%",
                "any; messages of trainers",
                "A rank saves.",
                SUGGESTS,
            )
        },
    ),
    FaultClass(
        id="slow_rank_init",
        title="the others wait for a rank that is slow to start",
        priority=4,
        busy="was still loading",
        by_line=True,
        speaker_is_culprit=False,
        next_steps=(
            "Look at the work of {rank_words} before init_process_group or before its first collective: loading "
            "checkpoints, importing, compiling, building data sets, waiting for a file system.",
            _LONGER,
        ),
        rule="A rank was still loading when the others timed out, or a store key that it sets at start-up was not set "
        "in time although the store answered.",
        patterns={
            "loading": confirms(
                ("Loading checkpoint", "Loading pipeline", "Loading safetensors", "Loading weights", "Loading model"),
                r"Loading (?:checkpoint shards|pipeline components|safetensors checkpoint shards|weights|model)\b",
                "transformers, diffusers, vLLM; progress bars of loading",
                "A rank loads a model.",
                SUGGESTS,
            ),
            "others-still-load": LogPattern(
                ("other ranks that didn't finish loading",),
                r"rank (?P<done>\d+) could finish the model loading, but there are other ranks that didn't finish "
                r"loading",
                "SGLang; sglang/srt/model_executor/model_runner.py",
                "Rank {done} has loaded its part of the model, and others have not.",
                support=SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="watchdog_blocked",
        title="the watchdog of a rank was blocked",
        priority=5,
        ends_processes=True,
        next_steps=(
            StacksWhileItHangs("While it hangs, take the stacks of {rank_words}: {py_spy_native}."),
            "CUDA calls that do not return, a thread that holds the GIL, or a slow file system for the dump block the "
            "watchdog: native stacks (py-spy dump --native) show which, before the heartbeat monitor ends the process.",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC raises the limit; TORCH_NCCL_ENABLE_MONITORING=0 ends the check.",
        ),
        rule="The heartbeat monitor ended the process, or a collective ran for more than twice its timeout, and no "
        "collective that timed out shows which ranks were missing.",
        patterns={
            "heartbeat": confirms(
                ("watchdog got stuck for", "Heartbeat monitor timed out", "due to ProcessGroupNCCL watchdog hang"),
                r"watchdog got stuck for (?P<seconds>\d+) seconds|Heartbeat monitor timed out|"
                r"due to ProcessGroupNCCL watchdog hang",
                "torch 2.2+; ProcessGroupNCCL.cpp",
                "The watchdog itself made no progress[ for {seconds} s]: it is blocked in CUDA or on the GIL.",
            ),
            "gil": confirms(
                ("Could not acquire GIL within",),
                r"Could not acquire GIL within (?P<ms>\d+) ms on exit",
                "torch 2.3+; ProcessGroupNCCL.cpp",
                "The GIL was not acquired within {ms} ms: another thread of this process holds it.",
            ),
        },
    ),
    FaultClass(
        id="p2p_iommu_acs",
        title="GPUs cannot reach each other over PCIe",
        priority=5,
        next_steps=(
            "Test with NCCL_P2P_DISABLE=1; if that runs, set iommu=pt on the kernel's command line or disable ACS on "
            "the PCI bridges (`lspci -vvv | grep ACSCtl`), and run CUDA's p2pBandwidthLatencyTest.",
        ),
        rule="Initialisation is complete everywhere, the first collective never ends on any rank, the channels use "
        "P2P, and no rank prints an error.",
        patterns={
            "rccl-iommu": confirms(
                ("from kernel command line which can lead to",),
                r"Missing \"(?P<setting>[^\"]+)\" from kernel command line which can lead to",
                "RCCL 2.13+; src/init.cc",
                "RCCL warns that {setting} is missing from the kernel's command line: GPUs can hang without it.",
                SUGGESTS,
            ),
            "via-p2p": LogPattern(
                ("via P2P/",),
                r"(?:(?P<rank>\d+)\[(?P<dev>\w+)\] -> (?P<other_rank>\d+)\[(?P<other_dev>\w+)\].*)?"
                r"via P2P/(?P<transport>IPC|CUMEM|direct pointer)",
                "2.3+; transport/p2p.cc",
                "A channel uses P2P between GPUs.",
                Role.HARMLESS,
            ),
        },
    ),
    FaultClass(
        id="cascade_store_lost",
        title="the store of the job is gone",
        priority=6,
        next_steps=(
            "The store lives in rank 0's process (or the launcher's): look for the first error there, and for what "
            "ended that process; these lines are a consequence.",
        ),
        rule="Only if nothing else is found.",
        patterns={
            "store-get": cascade(
                ("store->get(",),
                r"(?:\[(?P<reader>\d+)\] is setting up NCCL communicator and )?"
                r"(?:retr(?:ie|ei)ving ncclUniqueId from \[(?P<writer>\d+)\].*)?store->get\('(?P<key>[^']*)'\) got "
                r"error",
                "torch 1.9+; ProcessGroupNCCL.cpp",
                "The store did not answer.",
            ),
            "should-dump": cascade(
                ('Failed to check the "should dump" flag',),
                r'Failed to check the "should dump" flag on TCPStore',
                "torch 2.3+; ProcessGroupNCCL.cpp",
                "The store's server is gone.",
            ),
            "recv-value": cascade(
                ("recvValue failed", "recvBytes failed", "recvVector failed", "sendBytes failed"),
                r"(?:recv(?:Value|Bytes|Vector)\w*|sendBytes) failed on SocketImpl\("
                r"(?:.*?remote=\[?(?P<remote>[^)\]]*)\]?(?::(?P<port>\d+))?)?",
                "torch 2.1+; TCPStoreLibUvBackend.cpp, TCPStore.cpp",
                "The connection to the store[ at port {port}] ended.",
            ),
            "jax-leader": cascade(
                ("Failed to send RPC to coordination service", "leader task was preempted/died/restarted"),
                printed_by="JAX, TensorFlow; xla/tsl/distributed_runtime/coordination/coordination_service_agent.cc",
                says="The coordination service of JAX, which process 0 serves, does not answer.",
            ),
            "agent-lost-store": cascade(
                ("rdzv_handler.num_nodes_waiting()", "has failed to send a keep-alive heartbeat to the rendezvous"),
                printed_by="torch 1.9+; torch/distributed/elastic/agent/server/api.py, "
                "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
                says="The launcher lost the rendezvous store while its processes ran.",
            ),
            "store-input": cascade(
                ("waitForInput",),
                r"waitForInput: .*timed out after (?P<ms>\d+)ms",
                "torch 2.4+; socket.cpp",
                "The store did not answer a wait within {ms} ms.",
            ),
            "store-wait": cascade(
                ("wait timeout after",),
                r"wait timeout after \d+ms, keys: (?P<keys>.+)",
                "torch 2.1+; TCPStore.cpp",
                "A key that another process sets was not set: {keys}.",
            ),
        },
    ),
    FaultClass(
        id="healthy",
        title="no problem was found in the available data",
        priority=9,
        next_steps=("If the job does hang: give the logs of all ranks, and the stack of each process (py-spy dump).",),
        rule="The run ended in order, or its last step was just written, and no log line contradicts this.",
        patterns={
            "bus-bandwidth": harmless(
                ("# Avg bus bandwidth",),
                r"# Avg bus bandwidth\s*: (?P<speed>\d+(?:\.\d+)?)",
                "nccl-tests 2.0+; src/common.cu",
                "nccl-tests reached {speed} GB/s on average.",
                SUGGESTS,
            ),
            "ended-well": harmless(
                endings.anchors(ENDED_WELL),
                endings.regex(ENDED_WELL),
                endings.sources(ENDED_WELL),
                "The training printed that it reached its end.",
                SUGGESTS,
            ),
            "recorded-state": harmless(
                endings.anchors(RECORDED),
                endings.regex(RECORDED),
                endings.sources(RECORDED),
                "What became of it is recorded.",
                SUGGESTS,
            ),
            "training-done": harmless(
                (
                    "raining complete",
                    "raining finished",
                    "raining done",
                    "raining is done",
                    "xperiment is done",
                    "inished training",
                    "est complete",
                    "est passed",
                ),
                r"(?i:\btraining (?:of experiment )?(?:is |has )?(?:completed?|finished|done)\b|\bfinished "
                r"training\b)|\b[Tt]est (?:complete|passed)",
                "any; transformers, Megatron-LM, YOLOX, torchtitan",
                "The training printed that it reached its end.",
                SUGGESTS,
            ),
            "last-step-done": harmless(
                ("train_runtime", "`Trainer.fit` stopped", "epochs completed in", "stopping_early: "),
                r"'train_runtime':|`Trainer\.fit` stopped: `max_|^\d+ epochs completed in \d[\d.]* hours|"
                r"^stopping_early: \w",
                "any; transformers, src/transformers/trainer_utils.py; Lightning, loops/fit_loop.py; YOLOv5, train.py; "
                "parameter-golf, train_gpt.py",
                "The last step of the training is done.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        id="undetermined",
        title="the cause cannot be determined from the available data",
        priority=9,
        next_steps=(),
        rule="No rule applies; the report lists what is missing.",
        if_read={
            ("atchdog timeout (self",): (
                WhileItHangs(
                    "While it hangs: py-spy dump of every scheduler (`pgrep -f sglang::scheduler`), on all nodes: the "
                    "one that is not in the same call as the others is the one that they wait for."
                ),
                "SGLang runs py-spy itself where it is installed: `pip install py-spy` in the image.",
            ),
            ("initialization failed",): (
                "Give the log from its beginning: the worker's own traceback comes before this line.",
            ),
            ("Orted process exited",): (
                "Give the log of the first host (algo-1), which runs mpirun and all ranks' output.",
            ),
            ("No available",): (
                WhileItHangs(
                    "While it hangs: py-spy dump of every worker (`pgrep -f VLLM::Worker`, `pgrep -f multiproc`): the "
                    "one that is not in the same call as the others is the one that the engine waits for."
                ),
                "Give the logs of the workers (VLLM_LOGGING_LEVEL=DEBUG), from before the first of these lines.",
            ),
            ("The TPU is already in use",): (
                "End that process on the TPU's host, or wait until it has ended: `sudo lsof -w /dev/accel* "
                "/dev/vfio/*` lists who holds the TPU.",
            ),
            ("blocked for more than",): (
                "The kernel prints the process's stack below that line: nfs, lustre, fuse and xfs in it are storage, "
                "nvidia, amdgpu and mlx5 a driver. While it hangs, the file `stack` of the process in /proc shows it.",
            ),
            ("kernel appears to have died", "Kernel crashed while executing", "DeadKernelError"): (
                "Run the same code as a script (`python train.py`): the shell prints the signal, and a traceback is "
                "not lost.",
                "`dmesg -T | grep -i 'killed process'` on the notebook's host shows whether memory was used up.",
            ),
            ("ack-off restarting failed container", "CrashLoopBackOff"): (
                "`kubectl logs --previous` of that pod is what the container printed before it failed; `kubectl "
                "describe pod` has its exit code and reason.",
            ),
            ("synStatus",): (
                "`hl-smi` on that host: is a device held by another process, or in reset? The SynapseAI logs "
                "(~/.habana_logs, LOG_LEVEL_ALL=3) say more.",
            ),
            ("|CCL_ERROR|",): (
                "Run again with CCL_LOG_LEVEL=info; where no MPI launcher started the job, CCL_PROCESS_LAUNCHER=none "
                "with CCL_LOCAL_RANK and CCL_LOCAL_SIZE, and FI_PROVIDER=tcp to rule out the fabric.",
            ),
            ("Maybe the last training process is running",): (
                "End the processes of the training before on that device (`npu-smi info` lists them), wait ten "
                "seconds, and start again.",
            ),
            ("hccl", "EI0002", "HCCL", "EI0006", "NPU ", "507046", "507048", "107020"): (
                "Give the logs of the other ranks (plog, ~/ascend/log/debug): the rank that did not join the "
                "collective, or raised before it, is among them.",
                "HCCL_EXEC_TIMEOUT and HCCL_CONNECT_TIMEOUT set how long a device waits.",
            ),
            ("Aborted", "zsh: abort", "SIGABRT"): (
                "Give what the process printed before it aborted: an assertion, a C++ exception, or the watchdog.",
                "`python -X faulthandler` (or PYTHONFAULTHANDLER=1) prints its Python stack the next time.",
            ),
        },
        patterns={
            "no-progress": confirms(
                ("atchdog timeout (self.watchdog_timeout=",),
                r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<seconds>\d+)",
                "SGLang 0.3+; sglang/srt/managers/scheduler.py, sglang/srt/utils/watchdog.py",
                "The scheduler of a worker made no progress for {seconds} s and gave up.",
                SUGGESTS,
            ),
            "pod-not-started": confirms(
                (
                    "ImagePullBackOff",
                    "ErrImagePull",
                    "Failed to pull image",
                    "FailedCreatePodSandBox",
                    "UnexpectedAdmissionError",
                    "specified backoff limit",
                ),
                r"(?P<image>ImagePullBackOff|ErrImagePull|Failed to pull image \"[^\"\n]{1,200}\")|"
                r"(?P<sandbox>Failed to create pod sandbox)|UnexpectedAdmissionError "
                r"+[^\n]{0,60}?(?P<denied>Allocate failed "
                r"due to [^\n]{1,120})|(?P<limit>Job has reached the specified backoff limit)",
                "Kubernetes 1.6+; pkg/kubelet/events/event.go, pkg/kubelet/images/types.go, pkg/controller/job",
                "Kubernetes cannot start a pod[: {image}][: {sandbox}][: {denied}][: {limit}].",
                SUGGESTS,
            ),
            "cpu-stall": confirms(
                ("soft lockup - CPU#", "self-detected stall on CPU"),
                r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s! \[(?P<name>[^\]\n]{1,60})\]|"
                r"rcu_\w+ (?P<stall>self-detected stall) on CPU",
                "any kernel; kernel/watchdog.c, kernel/rcu/tree_stall.h",
                "The kernel saw a CPU stand still[ for {seconds} s, in {name}][: {stall}].",
                SUGGESTS,
            ),
            "task-restarted": confirms(
                (" current incarnation doesn't match", " with a different incarnation"),
                r"/job:\w+/replica:\d+/task:(?P<rank>\d+)[\w:/]{0,40} (?:current incarnation doesn't match|"
                r"unexpectedly tried to connect with a different incarnation)",
                "TensorFlow 2.4+, JAX; tensorflow/core/common_runtime/collective_param_resolver_local.cc, "
                "tsl/distributed_runtime/coordination/coordination_service.cc",
                "Task {rank} has restarted, and the others still wait for its earlier process: why that ended is in "
                "its own log.",
                SUGGESTS,
            ),
            "collective-waited": confirms(
                ("Collective has timed out ",),
                r"Collective has timed out (?:waiting for other workers|during execution)",
                "TensorFlow 2.4+; tensorflow/core/common_runtime/base_collective_executor.cc",
                "TensorFlow waited too long for other workers in a collective; which did not come is not printed.",
                SUGGESTS,
            ),
            "lightgbm-waits": confirms(
                ("[LightGBM] [Warning] Connecting to rank ",),
                r"\[LightGBM\] \[Warning\] Connecting to rank (?P<rank>\d+) failed, waiting",
                "LightGBM 2+; src/network/linkers_socket.cpp",
                "LightGBM tries to connect to rank {rank}, which does not answer yet.",
                SUGGESTS,
            ),
            "worker-failed": confirms(
                ("WorkerProc initialization failed", "Engine core initialization failed"),
                r"(?:WorkerProc|Engine core) initialization failed",
                "vLLM 0.8+; vllm/v1/executor/multiproc_executor.py, vllm/v1/engine/utils.py",
                "A worker raised while it started, and its own exception is not in these lines.",
                SUGGESTS,
            ),
            "daemon-ended": confirms(
                ("Orted process exited",),
                printed_by="SageMaker; sagemaker_training/mpi.py",
                says="The job ended, and this host only ran the daemon of mpirun.",
                support=SUGGESTS,
            ),
            "npu-error": confirms(
                ("RankID:",),
                r"\(PID:(?P<pid>\d+), Device:-?\d+, RankID:(?P<rank>\d+)\) ERR\d+",
                "torch_npu 2.1+; torch_npu/csrc/core/npu/NPUException.cpp",
                "torch_npu names the process that failed: rank {rank}.",
                SUGGESTS,
            ),
            "hccp-in-use": confirms(
                ("Failed to initialize the HCCP process",),
                printed_by="CANN 6+; the error code EJ0001",
                says="HCCL could not start on a device: perhaps a process of the training before still runs.",
                support=SUGGESTS,
            ),
            "hccl-no-socket": confirms(
                ("Getting socket times out",),
                r"Getting socket times out(?:[^\n]*?interval is (?P<limit>\d+ ?s)\b)?",
                "CANN 6+; the error code EI0006",
                "A device got no connection from another one[ within {limit}] (HCCL).",
                SUGGESTS,
            ),
            "tpu-in-use": confirms(
                ("The TPU is already in use by process",),
                r"The TPU is already in use by process with pid (?P<pid>\d+)",
                "libtpu, JAX 0.4+; jax/_src/xla_bridge.py",
                "The TPU is in use: process {pid} holds it.",
                SUGGESTS,
            ),
            "blocked-in-kernel": confirms(
                ("blocked for more than ",),
                r"INFO: task (?P<name>[^\n:]{1,40}):(?P<pid>\d+) blocked for more than (?P<seconds>\d+) seconds",
                "any kernel; kernel/hung_task.c",
                "Process {pid} ({name}) waits inside the kernel for more than {seconds} s: for storage, a driver or a "
                "lock.",
                SUGGESTS,
            ),
            "notebook-died": confirms(
                ("kernel appears to have died", "Kernel crashed while executing", "DeadKernelError"),
                r"kernel appears to have died|Kernel crashed while executing|DeadKernelError",
                "Jupyter; nbclient/exceptions.py, notebook/static/notebook/js/notificationarea.js",
                "The notebook's process died, and which signal ended it is not printed.",
                SUGGESTS,
            ),
            "pod-restarts": confirms(
                ("Back-off restarting failed container", "CrashLoopBackOff"),
                r"[Bb]ack-?[Oo]ff (?:\w+ )?restarting failed container[ =]?(?:[\w.-]+)?(?: in pod (?P<pod>[\w.-]+)|"
                r"[ =]+pod=(?P<named>[\w.-]+))?|(?:^(?P<row>[a-z0-9][a-z0-9.-]{0,252}) +\d+/\d+ +(?:Init:)?)?"
                r"CrashLoopBackOff",
                "Kubernetes; pkg/kubelet/kuberuntime/kuberuntime_manager.go",
                "A container[ of pod {pod}][ of pod {named}][ of pod {row}] fails each time that it is started.",
                SUGGESTS,
            ),
            "gaudi-failed": confirms(
                ("synStatus",),
                r"\bsynStatus[ =]*(?P<status>\d+) ?\[(?P<error>[^\]\n]{1,80})\]\.? ?(?P<what>[\w ]{0,60})",
                "Gaudi; the SynapseAI runtime, synapse_common_types.h",
                "The runtime of Gaudi reports {error} (synStatus {status}): {what}.",
                SUGGESTS,
            ),
            "oneccl-error": confirms(
                ("|CCL_ERROR|",),
                r"\|CCL_ERROR\| (?P<code>[\w./]+:\d+) (?P<error>[^\n]{1,160})",
                "oneCCL 2021+; src/common/log/log.hpp",
                "oneCCL reports at {code}: {error}.",
                SUGGESTS,
            ),
            "engine-waits": confirms(
                ("No available shared memory broadcast block found", "No available block found in"),
                r"No available (?:shared memory broadcast )?block found in (?P<seconds>\d+) ?seconds?",
                "vLLM 0.6+; vllm/distributed/device_communicators/shm_broadcast.py",
                "The engine waits for a worker, and which one is not printed.",
                SUGGESTS,
            ),
            "hccl-timeout": confirms(
                ("hccl", "EI0002", "HCCL"),
                r"(?:chipId: ?(?P<device>\d+).{0,200}?)?\b(?:hccl|HCCL)\b[^\n]{0,80}?\btimeout\b"
                r"(?:[^\n]*?timeout[:=] ?(?P<limit>\d+ ?(?:min|s)\b))?|\bEI0002\b",
                "CANN 6+ (EI9999, EI0002); the runtime's device_error_proc.cc: `timeout:`, later `timeout=`",
                "A device[ ({device})] waited[ {limit}] for other devices in a collective of HCCL.",
                SUGGESTS,
            ),
            "npu-timeout": confirms(
                (
                    "error code is 5070",
                    "error code is 1070",
                    "runtime result = ",
                    "timeout waiting event",
                    "internal task times out",
                ),
                r"\b(?:error code is|runtime result =) (?:507046|507048|107020)\b|"
                r"In the specified timeout waiting event|execution of the internal task times out",
                "CANN 6+; acl/error_codes/rt_error_codes.h, torch_npu",
                "A device waited too long for a task, as it does in a collective that another device did not join.",
                SUGGESTS,
            ),
            "aborted": confirms(
                (
                    "Aborted",
                    "zsh: abort",
                    "terminated by signal SIGABRT",
                    "Signal 6 (SIGABRT)",
                    "Fatal Python error: Aborted",
                    "*** SIGABRT ",
                ),
                r"^(?:\S+: line \d+: *)?(?:\d+ +)?Aborted\s*(?:$|\(core dumped\)|[\w./]*(?:python|torchrun|deepspeed|"
                r"accelerate))|^zsh: abort\b|^fish: Job .{0,400} terminated by signal SIGABRT|"
                r"Fatal Python error: Aborted|\*\*\* SIGABRT (?:\(@\S+ )?received by PID \d+",
                "any shell; bash, sh, zsh, fish; Python faulthandler; glog and Abseil, failure_signal_handler.cc",
                "A process aborted (SIGABRT).",
                SUGGESTS,
            ),
        },
    ),
)
WAITED_FOR_OTHERS = ("hccl-timeout", "hccl-no-socket", "npu-timeout")

CASCADE = FaultClass(
    id="cascade",
    title="a consequence of another failure",
    priority=7,
    next_steps=(),
    rule="Never an answer.",
    patterns={
        "sigterm": cascade(
            ("closing signal SIG",),
            r"Sending process (?P<pid>\d+) closing signal SIG\w+",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The launcher ends process {pid} because another one failed.",
        ),
        "sigkill-after-sigterm": cascade(
            ("forcefully exiting via",),
            r"Unable to shutdown process (?P<pid>\d+) via \S+, forcefully exiting via",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The launcher kills process {pid}, which did not stop when asked to.",
        ),
        "exit-told": cascade(
            ("exitcode: -15)", "exitcode: -6)", "Signal 6 (", "Signal 15 ("),
            r"failed \(exitcode: -(?:15|6)\)|Signal (?:6|15) \(\w+\) received by PID",
            "torch/distributed/elastic/multiprocessing/api.py",
            "The process was asked to stop, or its watchdog ended it.",
        ),
        "proxy-poll": cascade(
            ("Socket recv failed while polling for opId",),
            printed_by="proxy.cc",
            says="The proxy thread of this process is gone.",
        ),
        "proxy-retcode": cascade(
            ("[Proxy Service",),
            r"\[Proxy Service[^\]]*\].*(?:retcode|Failed)",
            "proxy.cc",
            "The proxy thread passes an error on.",
        ),
        "remote-exited": cascade(
            ("remote process exited or there was a network error",),
            printed_by="nccl.h (ncclRemoteError)",
            says="NCCL's message for an error of another process.",
        ),
        "watchdog-terminated": cascade(
            ("watchdog thread terminated",),
            printed_by="ProcessGroupNCCL.cpp",
            says="The watchdog ends its process.",
        ),
        "avoid-inconsistency": cascade(
            ("To avoid data inconsistency",),
            printed_by="ProcessGroupNCCL.cpp",
            says="The watchdog ends its process.",
        ),
        "dump-signal": cascade(
            ("Received a dump signal due to", "Observed flight recorder dump signal", "preparing to dump debug info"),
            printed_by="ProcessGroupNCCL.cpp",
            says="A rank saw that another one timed out.",
        ),
        "group-destroyed": cascade(
            ("Process Group destroyed on rank",),
            r"^Process Group destroyed on rank (?P<rank>\d+)",
            "torch 1.7+; ProcessGroupNCCL.cpp",
            "The process of rank {rank} aborted its communicators as it ended.",
        ),
        "remote-error": cascade(
            ("remote error detected from rank:",),
            r"remote error detected from rank:? ?(?P<rank>\d+)",
            "ProcessGroupNCCL.cpp",
            "Rank {rank} reported an error to the others.",
        ),
        "barrier-victim": cascade(
            ("successfully reached monitoredBarrier, but received errors",),
            r"Rank (?P<rank>\d+) successfully reached monitoredBarrier, but received errors",
            "ProcessGroupGloo.cpp",
            "Rank {rank} reached the barrier; rank 0's log lists the ranks that did not.",
        ),
        "gloo-peer": cascade(
            ("Connection closed by peer", "Connection reset by peer", "Application timeout caused pair closure"),
            printed_by="gloo/transport/tcp/pair.cc",
            says="The peer of a gloo connection is gone.",
        ),
    },
)

HARMLESS = FaultClass(
    id="harmless",
    title="looks alarming in healthy runs",
    priority=9,
    next_steps=(),
    rule="Never an answer.",
    patterns={
        "no-libibverbs": harmless(
            ("Failed to open libibverbs",),
            printed_by="misc/ibvwrap.cc",
            says="No InfiniBand here: NCCL takes sockets.",
        ),
        "simple-order": harmless(
            ("falling back to simple order",),
            r"Could not find a path for pattern \d+, falling back to simple order",
            "graph/search.cc:960 (v2.18.3)",
            "A search for a topology ended without a good path.",
        ),
        "barrier-device": harmless(
            ("to perform barrier", "used by this process"),
            r"using (?:best-guess )?GPU \d+ (?:to perform barrier|as devices? used by this process)",
            "ProcessGroupNCCL.cpp",
            "Advice about device_ids.",
        ),
        "all-peers": harmless(
            ("Expected number of connected peer ranks is",),
            r"Rank \d+ is connected to (?P<peers>\d+) peer ranks\. Expected number of connected peer ranks is : "
            r"(?P=peers)(?!\d)",
            "gloo of torch 2.4+",
            "gloo is connected to all peers.",
        ),
        "uneven-inputs": harmless(
            ("Detected uneven input skew",),
            printed_by="torch/distributed/algorithms/join.py",
            says="A rank has fewer inputs than the others: the Join context makes up for it.",
        ),
        "no-net-plugin": harmless(
            ("NET/Plugin: Could not find", "NET/Plugin : No plugin found"),
            r"NET/Plugin ?: (?:Could not find|No plugin found)",
            "plugin/plugin_open.cc:108",
            "No plugin is installed, none is needed.",
        ),
        "p2p-not-there": harmless(
            ("P2P is disabled between connected GPUs",),
            printed_by="graph/paths.cc",
            says="These GPUs have no direct path: NCCL takes another.",
        ),
        "no-nvls": harmless(
            ("Proceeding without NVLS",),
            r"Proceeding without NVLS support",
            "transport/nvls.cc",
            "NVLink SHARP is not available: NCCL continues without it.",
        ),
        "ras-port": harmless(
            ("ras/client_support.cc", "RAS failed to establish"),
            r"ras/client_support\.cc:\d+.*bind failed|RAS failed to establish a client listening socket",
            "ras/client_support.cc",
            "Another job on this host uses the port of NCCL RAS: only RAS reports are unavailable.",
        ),
        "windows-name-of-host": harmless(
            ("system error: 10049",),
            r"\[W .*failed to connect to \[?[^\]\s]+\]?:\d+ \(system error: 10049|"
            r"^\[c10d\] The client socket has failed to connect to .*\(system error: 10049",
            "socket.cpp on Windows",
            "The host's name resolves to an address that it cannot connect to: the next one is tried.",
        ),
        "rccl-environment": harmless(
            ("from environment which can lead to low RCCL",),
            r"Missing \"[^\"]+\" from environment which can lead to",
            "RCCL 2.13+; src/init.cc",
            "RCCL recommends a setting of the environment.",
        ),
        "strides": harmless(
            ("Grad strides do not match bucket view strides",),
            printed_by="reducer.cpp",
            says="DDP copies some gradients, which costs a little time.",
        ),
        "hostname-of-client": harmless(
            ("hostname of the client socket cannot be retrieved",),
            printed_by="socket.cpp",
            says="A peer's name cannot be resolved: its address is used.",
        ),
        "no-ipv6-of-localhost": harmless(
            ("IPv6 network addresses of (localhost,",),
            printed_by="socket.cpp",
            says="localhost has no IPv6 address here: its IPv4 address is used.",
        ),
        "unused-not-found": harmless(
            ("did not find any unused parameters",),
            printed_by="reducer.cpp",
            says="DDP looked for unused parameters and found none.",
        ),
        "no-destroy": harmless(
            ("destroy_process_group() was not called", "process group has NOT been destroyed"),
            printed_by="ProcessGroupNCCL.cpp",
            says="The program ended without destroy_process_group().",
        ),
    },
)
