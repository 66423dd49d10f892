"""Ranks that are late or silent, and what can be said where nothing is wrong or nothing is known."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

_LONGER = (
    "Raise the group's timeout for that phase: init_process_group(timeout=timedelta(hours=2)), or "
    "`torch.distributed.distributed_c10d._set_pg_timeout`."
)

CLASSES = (
    FaultClass(
        id="slow_rank_preprocess",
        title="the others wait while a rank prepares data",
        priority=4,
        next_steps=(
            "Prepare the data before the job, or on every rank; a barrier around rank 0's work is bound by the "
            "timeout.",
            _LONGER,
        ),
        rule="A tiny collective among the first ones timed out while a rank was still preparing data.",
        signatures=(
            Signature(
                "preprocessing",
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
                r"[Tt]okeniz(?:ing|ation|e\b|ed\b)|[Rr]unning tokenizer|\b(?:Map|Filter)(?: "
                r"\([^)]*\))?:|Generating \w+ split|[Pp]reprocess|"
                r"Downloading\b|Loading dataset|Packing",
                "datasets, transformers",
                "progress bars and messages of data preparation",
                "A rank prepares data.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="slow_rank_eval",
        title="the others wait while a rank evaluates",
        priority=4,
        next_steps=(
            "Evaluate on all ranks (a DistributedSampler for the evaluation set), or raise the timeout: the "
            "evaluation on "
            "{rank_words} alone takes longer than it.",
            _LONGER,
        ),
        rule="A collective timed out while a rank was still evaluating for longer than the timeout.",
        signatures=(
            Signature(
                "evaluating",
                ("eval", "Eval", "EVAL", "alidati", "alidating", "Testing", "redict"),
                r"\b[Ee]val(?:uat\w+)?\b|\bEVAL|\b[Vv]alid(?:ation|ating)\b|\bTesting\b|\b[Pp]redict(?:ing|ions?)\b",
                "any",
                "progress bars and messages of evaluation",
                "A rank evaluates.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="slow_rank_checkpoint",
        title="the others wait while a rank saves a checkpoint",
        priority=4,
        next_steps=(
            "Save sharded or asynchronously (torch.distributed.checkpoint.async_save) or to a faster file system; "
            "look at the load of the file system that holds the checkpoints of {rank_words}.",
            _LONGER,
        ),
        rule="A collective timed out while a rank was still saving.",
        signatures=(
            Signature(
                "saving",
                ("Saving", "saving", "riting checkpoint", "checkpoint:"),
                r"\b[Ss]aving\b|\b[Ww]riting checkpoint|\bcheckpoint:.*%",
                "any",
                "messages of trainers",
                "A rank saves.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="slow_rank_init",
        title="the others wait for a rank that is slow to start",
        priority=4,
        next_steps=(
            "Look at the work of {rank_words} before init_process_group or before its first collective: loading "
            "checkpoints, importing, compiling, building data sets, waiting for a file system.",
            _LONGER,
        ),
        rule="A rank was still loading when the others timed out, or a key that it writes at its start did not come in "
        "time although the store answered.",
        signatures=(
            Signature(
                "loading",
                ("Loading checkpoint", "Loading pipeline", "Loading safetensors", "Loading weights", "Loading model"),
                r"Loading (?:checkpoint shards|pipeline components|safetensors checkpoint shards|weights|model)\b",
                "transformers, diffusers, vLLM",
                "progress bars of loading",
                "A rank loads a model.",
                Role.CONFIRMATION,
                SUGGESTS,
            ),
            Signature(
                "others-still-load",
                ("other ranks that didn't finish loading",),
                r"rank (?P<done>\d+) could finish the model loading, but there are other ranks that didn't finish "
                r"loading",
                "SGLang",
                "sglang/srt/model_executor",
                "Rank {done} has loaded its part of the model, and others have not.",
                confidence=SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="watchdog_blocked",
        title="the watchdog of a rank was blocked",
        priority=5,
        next_steps=(
            "Take the stacks of {rank_words}: `py-spy dump --native --pid PID`. CUDA calls that do not return, a "
            "thread "
            "that holds Python's lock (GIL), or a slow file system for the dump hold the watchdog up.",
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC raises the limit; TORCH_NCCL_ENABLE_MONITORING=0 ends the check.",
        ),
        rule="The heartbeat monitor ended the process, or a collective ran for more than twice its timeout, and no "
        "collective that timed out says who was missing.",
        signatures=(
            Signature(
                "heartbeat",
                ("watchdog got stuck for", "Heartbeat monitor timed out"),
                r"watchdog got stuck for (?P<seconds>\d+) seconds|Heartbeat monitor timed out",
                "torch 2.2+",
                "ProcessGroupNCCL.cpp",
                "The watchdog itself made no progress[ for {seconds} s]: CUDA or Python's lock holds it.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "gil",
                ("Could not acquire GIL within",),
                r"Could not acquire GIL within (?P<ms>\d+) ms on exit",
                "torch 2.3+",
                "ProcessGroupNCCL.cpp",
                "Python's lock (GIL) could not be had within {ms} ms: another thread of this process holds it.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="p2p_iommu_acs",
        title="GPUs cannot reach each other over PCIe",
        priority=5,
        next_steps=(
            "Test with NCCL_P2P_DISABLE=1; if that runs, set iommu=pt on the kernel's command line or disable ACS on "
            "the "
            "PCI bridges (`lspci -vvv | grep ACSCtl`), and run CUDA's p2pBandwidthLatencyTest.",
        ),
        rule="Initialisation is complete everywhere, the first collective never ends on any rank, the channels go by "
        "P2P, and nobody prints an error.",
        signatures=(
            Signature(
                "via-p2p",
                ("via P2P/",),
                r"(?:(?P<rank>\d+)\[(?P<dev>\w+)\] -> (?P<other_rank>\d+)\[(?P<other_dev>\w+)\].*)?"
                r"via P2P/(?P<transport>IPC|CUMEM|direct pointer)",
                "2.3+",
                "transport/p2p.cc",
                "A channel goes from GPU to GPU.",
                Role.HARMLESS,
            ),
        ),
    ),
    FaultClass(
        id="cascade_store_lost",
        title="the store of the job is gone",
        priority=6,
        next_steps=(
            "The store lives in rank 0's process (or the launcher's): look for the first error there, and for who "
            "ended "
            "it; what these lines say happened after it.",
        ),
        rule="Only if nothing else is found.",
        signatures=(
            Signature(
                "store-get",
                ("store->get(",),
                r"(?:retr(?:ie|ei)ving ncclUniqueId from \[(?P<writer>\d+)\].*)?store->get\('(?P<key>[^']*)'\) got "
                r"error",
                "torch 1.9+",
                "ProcessGroupNCCL.cpp",
                "The store did not answer.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "should-dump",
                ('Failed to check the "should dump" flag',),
                r'Failed to check the "should dump" flag on TCPStore',
                "torch 2.3+",
                "ProcessGroupNCCL.cpp",
                "The store's server is gone.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "recv-value",
                ("recvValue failed", "recvBytes failed", "recvVector failed", "sendBytes failed"),
                r"recv(?:Value|Bytes|Vector)\w* failed on SocketImpl\((?:.*?remote=\[?(?P<remote>[^)\]]*)\]?)?",
                "torch 2.1+",
                "TCPStoreLibUvBackend.cpp, TCPStore.cpp",
                "The connection to the store ended.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "store-input",
                ("waitForInput",),
                r"waitForInput: .*timed out after (?P<ms>\d+)ms",
                "torch 2.4+",
                "socket.cpp",
                "The store did not answer a wait within {ms} ms.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "store-wait",
                ("wait timeout after",),
                r"wait timeout after \d+ms, keys: (?P<keys>.+)",
                "torch 2.1+",
                "TCPStore.cpp",
                "A key that somebody else writes did not come: {keys}.",
                Role.CASCADE,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="healthy",
        title="nothing is wrong in what was read",
        priority=9,
        next_steps=("If the job does stand still: give the logs of all ranks, and stacks (`py-spy dump --pid PID`).",),
        rule="The initialisation is complete, or the run ended in order, and no line says otherwise.",
        signatures=(
            Signature(
                "ended-well",
                (
                    "raining complete",
                    "raining finished",
                    "raining done",
                    "raining is done",
                    "xperiment is done",
                    "inished training",
                    "train_runtime",
                    "`Trainer.fit` stopped",
                    "Next: diag analyze",
                    "Out of bounds values",
                    "est complete",
                    "est passed",
                ),
                r"(?i:\btraining (?:of experiment )?(?:is |has )?(?:completed?|finished|done)\b|\bfinished "
                r"training\b)|'train_runtime':|"
                r"`Trainer\.fit` stopped: `max_|^Recorded in .+\. Next: diag analyze|"
                r"Out of bounds values *: 0 OK|\b[Tt]est (?:complete|passed)",
                "any",
                "transformers, Megatron-LM, Lightning, torchtitan, diag run",
                "The training says that it reached its end.",
                Role.HARMLESS,
                SUGGESTS,
            ),
        ),
    ),
    FaultClass(
        id="undetermined",
        title="the cause cannot be told from what was read",
        priority=9,
        next_steps=(),
        rule="No rule holds. What is missing is said.",
    ),
)
