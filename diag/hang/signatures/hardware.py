"""Devices: GPUs and InfiniBand adapters that fail, calls of CUDA that fail, a topology that NCCL cannot use."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, FaultClass, Signature

_HARDWARE = ("ECC error", "fallen off", "hardware stack error", "NVLink error", "nvlink error")

CLASSES = (
    FaultClass(
        id="gpu_hardware",
        title="a GPU failed",
        priority=1,
        next_steps=(
            "Drain {where} and rerun the job on other hosts.",
            "On {host}: `nvidia-smi -q` (ECC errors, retired pages, remapped rows), `dmesg -T | grep -i xid`, "
            "`nvidia-smi nvlink -s`; then `dcgmi diag -r 3`.",
        ),
        signatures=(
            Signature(
                "xid",
                ("NVRM: Xid",),
                r"NVRM: Xid \((?:PCI:)?(?:(?P<bus_id>[0-9a-fA-F]{2,}[0-9a-fA-F:.]*)|[^)]*)\): "
                r"(?P<xid>\d+)(?:.*caused by previous Xid "
                r"(?P<cause>\d+))?(?:.*\bon GPU(?P<gpu>\d+)\b)?",
                "any driver",
                "kernel log of the NVIDIA driver",
                "The kernel reports Xid {xid}[, caused by Xid {cause},][ of the GPU at {bus_id}].",
            ),
            Signature(
                "fallen-off-the-bus",
                ("fallen off the bus", "GPU is lost", "GPU has fallen off"),
                r"(?:GPU ?(?P<bus_id>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+):? .*?)?(?:fallen off the bus|GPU is lost)",
                "any driver; newer ones without an Xid",
                "kernel log of the NVIDIA driver; nvidia-smi, NVML",
                "The GPU[ at {bus_id}] no longer answers on the PCI bus.",
            ),
            Signature(
                "uncorrectable-ecc",
                ("uncorrectable ECC error", "Uncorrectable ECC error"),
                r"(?:\[Rank (?P<pg_rank>\d+)\].*?)?[Uu]ncorrectable ECC error(?!s?\s*(?:count\s*)?:\s*0\b)",
                "any",
                "CUDA error text, NVML",
                "The GPU's memory returned an uncorrectable error.",
            ),
            Signature(
                "nvlink-error",
                ("NVLink error", "nvlink error", "hardware stack error"),
                r"(?i:Cuda failure|CUDA error)[^\n]*(?i:NVLink error|uncorrectable NVLink|hardware stack error)",
                "CUDA 11+",
                "CUDA error text",
                "CUDA reports an error of the hardware.",
            ),
            Signature(
                "no-device-handle",
                ("Unable to determine the device handle",),
                r"Unable to determine the device handle(?: for GPU ?(?P<bus_id>[0-9a-fA-F:.]*[0-9a-fA-F]))?",
                "any driver",
                "nvidia-smi",
                "The driver lost the GPU[ at {bus_id}].",
            ),
            Signature(
                "p2p-disabled-on-nvlink",
                ("P2P is disabled between NVLINK connected GPUs",),
                r"P2P is disabled between NVLINK connected GPUs (?P<gpu>\d+) and (?P<other_gpu>\d+)",
                "2.12+",
                "graph/paths.cc:360",
                "GPUs {gpu} and {other_gpu} are connected by NVLink and cannot reach each other.",
            ),
        ),
    ),
    FaultClass(
        id="cuda_failure",
        title="a call of CUDA failed",
        priority=2,
        next_steps=(
            "Initialisation (no device, driver too old, no permission): `nvidia-smi` and `python -c 'import torch; "
            "print(torch.cuda.is_available(), torch.version.cuda)'` in the same container on {host}; compare the "
            "driver's version with the one that this build of CUDA needs.",
            "A kernel (illegal memory access, device-side assert, launch failure): rerun {where} with "
            "CUDA_LAUNCH_BLOCKING=1, which shows the call; without a bug in the program look at `dmesg -T | grep -i "
            "xid`.",
        ),
        rules_out={
            "net_connection_lost": "connections close when the process that met the error ends",
            "rank_killed_exception": "the exception is the error of CUDA",
        },
        signatures=(
            Signature(
                "nccl-cuda-failure",
                ("Cuda failure", "Test CUDA failure"),
                r"(?:(?:^|(?<=\s))(?P<host>[^\s:]{1,255}): Test CUDA failure \S+|Cuda failure) ?(?:(?P<number>\d+) "
                r"?)?'?(?P<error>[^'\n]*)'?",
                "all; with the number from 2.19",
                "include/checks.h",
                "CUDA answered NCCL[ with {number}]: {error}.",
                unless=("out of memory", "transport/nvls.cc", "Multicast memory", *_HARDWARE),
            ),
            Signature(
                "torch-cuda-error",
                ("CUDA error: ", "HIP error: ", "CUDA driver error: "),
                r"(?:\[Rank (?P<pg_rank>\d+)\].*?)?(?:CUDA|HIP)(?: driver)? error: (?P<error>[^\n\\\"]+)",
                "all",
                "c10/cuda/CUDAException.cpp",
                "CUDA reports: {error}.",
                unless=("out of memory", *_HARDWARE),
            ),
            Signature(
                "ipc-handle",
                ("failed to open CUDA IPC handle",),
                r"failed to open CUDA IPC handle ?:? ?(?:(?P<number>\d+) )?(?P<error>[^\n]*)",
                "<= 2.13",
                "transport/p2p.cc:238, transport/p2p.cu",
                "CUDA could not open the memory of another rank's GPU[ ({number})]: {error}.",
                Role.ROOT,
                NAMES_AN_EFFECT,
            ),
            Signature(
                "rocm-memory-fault",
                ("Memory access fault by GPU", "HSA_STATUS_ERROR"),
                r"Memory access fault by GPU (?P<bus_id>\S+)(?:.*Reason: "
                r"(?P<reason>[^.]+))?|(?P<error>HSA_STATUS_ERROR_\w+)",
                "ROCm",
                "ROCr (HSA runtime)",
                "ROCm reports[ a memory access fault of GPU {bus_id}][: {reason}][ {error}].",
            ),
            Signature(
                "cuda-not-there",
                (
                    "cudaGetDeviceCount",
                    "NVIDIA driver on your system is too old",
                    "Found no NVIDIA driver",
                    "CUDA driver version is insufficient",
                    "no CUDA-capable device",
                    "CUDA driver initialization failed",
                    "Failed to CUDA host alloc",
                    "invalid device ordinal",
                    "no GPUs found",
                ),
                r"(?P<error>Unexpected error from cudaGetDeviceCount\(\)|The NVIDIA driver on your system is too old|"
                r"Found no NVIDIA driver on your system|CUDA driver version is insufficient for CUDA runtime version|"
                r"no CUDA-capable device is detected|CUDA driver initialization failed|Failed to CUDA host alloc|"
                r"invalid device ordinal|ProcessGroupNCCL is only supported with GPUs, no GPUs found)",
                "all",
                "torch/csrc/cuda, CUDA error texts",
                "{error}.",
            ),
        ),
    ),
    FaultClass(
        id="topology_error",
        title="NCCL cannot use the topology that it found",
        priority=2,
        next_steps=(
            "Compare `nvidia-smi topo -m` and NCCL_TOPO_FILE of {host} with the other hosts; all must show the same "
            "GPUs, NICs and links. Write NCCL's own view with NCCL_TOPO_DUMP_FILE.",
            "Rule out a stale graph or topology file (unset NCCL_GRAPH_FILE, NCCL_TOPO_FILE), /sys that the container "
            "hides, and a version of NCCL that is older than the hardware.",
        ),
        rules_out={"net_connection_lost": "connections close when the initialisation is given up"},
        signatures=(
            Signature(
                "ring-error",
                ("does not loop back to start", "does not contain rank"),
                r"ring (?P<ring>\d+) does not (?:loop back to start|contain rank (?P<absent>\d+))",
                "all",
                "graph/rings.cc",
                "Ring {ring} of the search does not close[: rank {absent} is not in it].",
            ),
            Signature(
                "topology-attribute",
                ("Attribute ",),
                r"\bAttribute (?P<attribute>\w+) of node (?P<node>\w+) not found",
                "all",
                "graph/xml.h",
                "The topology has no attribute {attribute} of node {node}.",
            ),
            Signature(
                "reverse-path",
                ("Failed to find reverse path",),
                r"Failed to find reverse path from remNode (?:\d+/)?(?P<bus_id>\w+) nlinks \d+ to node "
                r"(?:\d+/)?(?P<other_bus_id>"
                r"\w+)",
                "all",
                "graph/paths.cc",
                "A link between {bus_id} and {other_bus_id} was found in one direction only.",
            ),
            Signature(
                "topology-warning",
                ("graph/",),
                r"graph/\w+\.(?:cc|h):\d+(?: \(\w+\))? (?:R?NCCL )?WARN (?P<message>.+)",
                "all",
                "graph/*.cc",
                "While NCCL searched the topology: {message}",
                Role.ROOT,
                NAMES_AN_EFFECT,
                unless=(
                    "falling back",
                    "P2P is disabled",
                    "does not loop back",
                    "does not contain rank",
                    "could not be",
                ),
            ),
        ),
    ),
    FaultClass(
        id="ib_device_fatal",
        title="an InfiniBand adapter failed",
        priority=1,
        next_steps=(
            "Drain {host}: peers that report status 12 are its victims.",
            "On {host}: `ibstat`, `dmesg -T | grep -i mlx5`, `mlxlink -d DEVICE -m`; restart or replace the adapter.",
        ),
        rules_out={"ib_completion_error": "retries that run out on the peers are what a dead adapter looks like"},
        signatures=(
            Signature(
                "local-catastrophic-error",
                ("Got async event : local catastrophic error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : local catastrophic error",
                "<= 2.22",
                "transport/net_ib.cc:95 (v2.18.3)",
                "The adapter reports a catastrophic error.",
            ),
            Signature(
                "async-fatal-event",
                ("async fatal event",),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) async fatal event(?! on (?:QP|CQ|SRQ))(?: on \w+[^:]*)?: "
                r"(?!.*(?:work queue|CQ error|SRQ))(?P<event>.+)",
                "2.23+",
                "transport/net_ib/common.cc:100",
                "Adapter {hca}, port {port}, reports: {event}.",
            ),
            Signature(
                "queue-event",
                ("async fatal event", "Got async event", "Got async error event"),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?(?:async fatal event|Got async (?:error )?event)[^\n]*?"
                r"(?P<event>(?:local |invalid request local |local access violation )?work queue[\w ]* error|CQ error|"
                r"SRQ[\w ]*error|QP[\w ]*error|[\w ]*work queue[\w ]*error)",
                "all",
                "transport/net_ib.cc, transport/net_ib/common.cc",
                "A queue[ of {hca}] failed ({event}): an error of one connection, not of the adapter.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
    FaultClass(
        id="ib_link_down",
        title="an InfiniBand link went down",
        priority=1,
        next_steps=(
            "On {host}: `ibstat` (state, physical state), `ibqueryerrors`, `mlxlink -d DEVICE`; then cable, "
            "transceiver "
            "and switch port.",
            "Peers that report status 12 are victims of that link; a flap shorter than the retries can be ridden out "
            "with NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7.",
        ),
        rules_out={"ib_completion_error": "retries that run out on the peers are what a lost link looks like"},
        signatures=(
            Signature(
                "port-error",
                ("Got async event : port error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : port error",
                "<= 2.22",
                "transport/net_ib.cc:95 (v2.18.3)",
                "A port of the adapter lost its link.",
            ),
            Signature(
                "non-fatal-port-error",
                ("Got non-fatal async event", "Got async error event"),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) Got (?:non-fatal async|async error) event: "
                r"(?:port error|port down)",
                "2.23+ (error), 2.28+ (non-fatal)",
                "transport/net_ib.cc:199 (v2.27.5), transport/net_ib/common.cc:134",
                "Adapter {hca}, port {port}, lost its link.",
            ),
            Signature(
                "non-fatal-other",
                ("Got non-fatal async event", "Got async event", "Got async error event"),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got (?:non-fatal )?async (?:error )?event ?: "
                r"(?P<event>(?!port error|port down|local catastrophic).+)",
                "all",
                "transport/net_ib/common.cc:134",
                "An event that the adapter survives: {event}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
)
