"""Memory and devices that cannot be had: shared memory, GPU memory, locked memory, multicast, a GPU taken twice."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, SUGGESTS, FaultClass, Signature

CLASSES = (
    FaultClass(
        id="shm_exhausted",
        title="shared memory is used up",
        priority=2,
        next_steps=(
            "On {host}: `df -h /dev/shm; ls -la /dev/shm`; remove stale nccl-* files of ended jobs.",
            "In a container: `--shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir volume with medium Memory on "
            "/dev/shm.",
        ),
        rules_out={"rank_killed_sigbus": "a bus error is what a full /dev/shm looks like"},
        signatures=(
            Signature(
                "creating-segment",
                ("Error while creating shared memory segment", "Error while attaching to shared memory segment"),
                r"Error while (?:creating|attaching to) shared memory segment(?: (?P<path>/?\S+))?"
                r"(?: \(size (?P<size>\d+)\))?(?:, error: (?P<error>[^()\n]+))?",
                "2.12+; with errno from 2.21",
                "misc/shmutils.cc:132",
                "NCCL could not have the shared memory[ {path}][ ({size} bytes)][: {error}].",
                unless=("No such file",),
            ),
            Signature(
                "failed-to-extend",
                ("failed to extend", "/dev/shm/nccl-"),
                r"failed to extend (?P<path>/dev/shm/\S+) to (?P<size>\d+) bytes|"
                r"(?:open|posix_fallocate|write|ftruncate|mmap)[^\n]{0,200}?"
                r"(?P<other>/dev/shm/nccl-[\w.-]+)[^\n]{0,300}?No space left",
                "2.12+",
                "misc/shmutils.cc:88",
                "[{path} could not grow to {size} bytes.][There is no space left for {other}.]",
            ),
            Signature(
                "posix-fallocate",
                ("Call to posix_fallocate failed",),
                r"Call to posix_fallocate failed ?:? ?(?:No space left|.*)",
                "<= 2.10",
                "include/shm.h",
                "/dev/shm has no space left.",
            ),
            Signature(
                "worker-shared-memory",
                ("insufficient shared memory (shm)", "out of shared memory"),
                r"insufficient shared memory \(shm\)|out of shared memory\.",
                "torch 1.0+",
                "torch/utils/data/_utils/signal_handling.py",
                "torch takes a worker's bus error for a full /dev/shm.",
                Role.CONFIRMATION,  # conditional wording is advice, not evidence
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="duplicate_gpu",
        title="two ranks use one GPU",
        priority=2,
        next_steps=(
            "Choose the device from the local rank: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`, before "
            "init_process_group.",
            "Check CUDA_VISIBLE_DEVICES on {host}, and that no more ranks than GPUs are started there "
            "(--nproc-per-node).",
        ),
        signatures=(
            Signature(
                "duplicate-gpu",
                ("Duplicate GPU detected",),
                r"Duplicate GPU detected ?: ?rank (?P<group_rank>\d+) and rank (?P<other_group_rank>\d+)(?: both on "
                r"CUDA device (?P<bus_id>[0-9a-fA-F:.]+))?",
                "2.10 to 2.29 (gone in 2.30.7)",
                "init.cc:974",
                "Ranks {group_rank} and {other_group_rank} are both on one GPU[ ({bus_id})].",
            ),
        ),
    ),
    FaultClass(
        id="cuda_oom",
        title="GPU memory is used up",
        priority=2,
        next_steps=(
            "Leave head-room on {where}: a smaller batch, activation checkpointing, or a smaller share for caches "
            "(`torch.cuda.set_per_process_memory_fraction`); NCCL needs memory beside torch's.",
            "`nvidia-smi` on {host}: is another process on that GPU?",
        ),
        rules_out={"nvls_multicast": "the allocation that failed is not one of multicast memory"},
        signatures=(
            Signature(
                "nccl-out-of-memory",
                ("Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'", "Cuda failure"),
                r"Cuda failure ?(?:2 ?)?'?out of memory'?",
                "all; with the number from 2.19",
                "include/alloc.h",
                "NCCL could not allocate GPU memory.",
                unless=("Multicast memory", "transport/nvls.cc"),
            ),
            Signature(
                "cuda-calloc",
                ("Failed to CUDA calloc", "Failed to CUDA malloc"),
                r"Failed to CUDA (?:m|c)alloc(?: async)?(?: (?P<size>\d+) bytes)?",
                "all",
                "include/alloc.h:417",
                "NCCL could not allocate[ {size} bytes of] GPU memory.",
                unless=("Multicast memory",),
            ),
            Signature(
                "torch-out-of-memory",
                ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory"),
                r"(?:OutOfMemoryError: )?(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<size>[\d.]+ "
                r"[KMGT]iB)(?:[. ]+\(?GPU "
                r"(?P<gpu>\d+))?)?|"
                r"CUDA error: out of memory|\bOutOfMemoryError",
                "torch; OutOfMemoryError from 1.13",
                "c10/cuda/CUDACachingAllocator.cpp",
                "torch could not allocate[ {size} of] memory of the GPU[ {gpu}].",
            ),
        ),
    ),
    FaultClass(
        id="nvls_multicast",
        title="NVLink SHARP's multicast memory cannot be had",
        priority=2,
        next_steps=(
            "Confirm with NCCL_NVLS_ENABLE=0; if that runs, keep it until {host} is mended.",
            "CUDA error 401: `systemctl restart nvidia-fabricmanager` on {host} and look at its state "
            "(`nvidia-smi -q | grep -A2 Fabric`); 1: the container lacks /dev/nvidia-caps*; 2: the multicast slots are "
            "taken by other processes.",
        ),
        rules_out={"cuda_oom": "multicast slots, not GPU memory, are used up"},
        signatures=(
            Signature(
                "failed-to-bind",
                ("Multicast memory of size",),
                r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory of size (?P<size>\d+) : CUDA error "
                r"(?P<error>\d+)",
                "2.27+",
                "transport/nvls.cc:287",
                "Multicast memory could not be bound: CUDA error {error}.",
                unless=("Proceeding without",),
            ),
            Signature(
                "nvls-cuda-failure",
                ("transport/nvls.cc",),
                r"transport/nvls\.cc:\d+ (?:NCCL )?WARN Cuda failure(?: (?P<error>\d+))?",
                "2.18+",
                "transport/nvls.cc",
                "CUDA failed while NVLink SHARP was set up.",
            ),
        ),
    ),
    FaultClass(
        id="memlock_limit",
        title="memory cannot be locked for InfiniBand",
        priority=2,
        next_steps=(
            "`ulimit -l unlimited` for the job on {host}: /etc/security/limits.conf, LimitMEMLOCK=infinity of the "
            "scheduler's service, `--ulimit memlock=-1` for containers.",
        ),
        rules_out={"cuda_oom": "host memory that may be locked is short, not GPU memory"},
        signatures=(
            Signature(
                "cannot-allocate",
                ("Cannot allocate memory",),
                r"Call to (?P<call>ibv_\w+) failed(?: with error)?:? (?:\d+ )?Cannot allocate memory",
                "all",
                "misc/ibvwrap.cc:43",
                "{call} could not lock memory.",
            ),
            Signature(
                "create-failed",
                ("Call to ibv_",),
                r"Call to (?P<call>ibv_(?:create_qp|create_cq|reg_mr)) failed\s*$",
                "<= 2.9",
                "misc/ibvwrap.cc",
                "{call} failed; this version does not print why, and the limit of locked memory is the usual reason.",
                confidence=SUGGESTS,
            ),
        ),
    ),
)
