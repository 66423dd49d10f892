"""What a name in a Kineto trace means: categories old and new, device work, collectives, ranks in file names.

Sources: the real traces of PyTorch 1.9 to 2.13 on NVIDIA and AMD, and science.md 2.1. One vendor's prefix is never
enough: NCCL renamed ``ncclKernel*`` to ``ncclDevKernel_*`` in 2.19, and DeepEP or mscclpp never carried either.
"""

from __future__ import annotations

import re
from typing import Final

CPU_OP: Final = "cpu_op"
ANNOTATION: Final = "user_annotation"
KERNEL: Final = "kernel"
MEMCPY: Final = "gpu_memcpy"
MEMSET: Final = "gpu_memset"
RUNTIME: Final = "cuda_runtime"
DRIVER: Final = "cuda_driver"
DEVICE_CATEGORIES: Final = (KERNEL, MEMCPY, MEMSET)
LAUNCH_CATEGORIES: Final = (RUNTIME, DRIVER)

# Profilers up to torch 1.10 wrote the left-hand names.
_OLD_CATEGORIES: Final = {
    "operator": CPU_OP,
    "runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": DRIVER,
    "memcpy": MEMCPY,
    "memset": MEMSET,
}

# Ranges that a person or a library put around work; old profilers filed them under "Operator".
RANGE_PATTERN: Final = r"^(?:ProfilerStep#|diag\.|enumerate\(DataLoader\)|Optimizer\.|[A-Za-z]*DataParallel\.forward)"

# Operators whose recorded shapes tell how much they compute.
SHAPED_OP_PATTERN: Final = (
    r"^aten::(?:mm|addmm|bmm|baddbmm|linear|matmul|_scaled_mm|_grouped_mm|(?:cudnn_|miopen_|mkldnn_)?convolution(?:_backward)?"
    r"|_scaled_dot_product_\w+|_flash_attention_\w+|_efficient_attention_\w+)$"
)
# Events whose arguments are read: communication on the host, and those operators. A kernel says so by its arguments.
ARGUMENT_PATTERN: Final = (
    rf"^(?:gloo:|nccl:|mpi:|ucc:|xccl:|c10d::|_?c10d_functional::|record_param_comms$)|{SHAPED_OP_PATTERN}"
)

STEP_PATTERN: Final = r"^diag\.step#(\d+)$"
PROFILER_STEP_PATTERN: Final = r"^ProfilerStep#(\d+)$"
DATALOADER_PATTERN: Final = r"^enumerate\(DataLoader\)"
AUTOGRAD_PREFIX: Final = "autograd::engine::evaluate_function"
GC_PATTERN: Final = r"^(?:Python GC|diag\.gc)$"
OPTIMIZER_PATTERN: Final = r"^Optimizer\.step#"
FORWARD_PATTERN: Final = r"^[A-Za-z]*DataParallel\.forward$"

# Triton names a fused kernel after the ops around it, so `triton_poi_fused_all_gather_...` computes.
COMM_KERNEL_PATTERN: Final = (
    r"(?i)^(?:[^(]*\b)?(?:nccl|rccl|msccl|deep_ep|nvshmem|symm_mem|symmetric_memory|multimem_|cross_device_reduce|"
    r"(?:one|two)_?shot_?all_?reduce)"
)
NOT_COMM_PATTERN: Final = r"^triton_"
# Copy-engine collectives and peer copies move data between ranks without a kernel (science.md 2.1).
COMM_COPY_PATTERN: Final = r"(?i)PtoP|PeerToPeer|^Memcpy!"
# Within one device: ordinary device work, see diag.attribution.gpu.
LOCAL_COPY_PATTERN: Final = r"(?i)DtoD|DeviceToDevice"

# Operators on the host that only hand a collective over or wait for it (science.md 2.3).
COMM_OP_PATTERN: Final = r"^(?:c10d::|_?c10d_functional::|record_param_comms|gloo:|nccl:)"

SYNC_PATTERN: Final = r"^(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize"
ALLOCATOR_PATTERN: Final = (
    r"^(?:cuda|hip|cu)(?:(?:Ext)?Malloc|Free|HostAlloc|HostMalloc|HostFree|Mem(?:Create|Map|Unmap|Release|Alloc))"
)

_OPS: Final = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("all_reduce", re.compile(r"all_?reduce", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all", re.I)),
    ("broadcast", re.compile(r"broadcast", re.I)),
    ("barrier", re.compile(r"barrier", re.I)),
    ("send_recv", re.compile(r"send_?recv|batch_isend_irecv", re.I)),
    ("send", re.compile(r"send", re.I)),
    ("recv", re.compile(r"recv", re.I)),
    ("scatter", re.compile(r"scatter", re.I)),
    ("gather", re.compile(r"gather", re.I)),
    ("reduce", re.compile(r"reduce", re.I)),
)
UNKNOWN_OP: Final = "unknown"
# By the collective's name only: NCCL runs an all-to-all with its SendRecv kernel, too.
P2P_PATTERN: Final = r"(?i)^(?:send|recv|batch_isend_irecv)"

_DTYPE_BYTES: Final = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "double": 8, "float64": 8, "long": 8, "int64": 8, "long int": 8, "uint64": 8, "complexfloat": 8,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "byte": 1, "char": 1, "int8": 1, "uint8": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip

_NAMED_RANK: Final = re.compile(r"(?:rank|worker)[-_ ]?(\d+)", re.I)
_TRAILING_RANK: Final = re.compile(r"_(\d+)\.(?!\d{10,}\.)")


def category(raw: str) -> str:
    """The lower-case category that today's profiler writes."""
    lower = raw.lower()
    return _OLD_CATEGORIES.get(lower, lower)


def collective_op(name: str) -> str:
    """One of a dozen operations from any spelling: ``allreduce``, ``c10d::_allgather_base_``, a kernel's name."""
    return next((op for op, pattern in _OPS if pattern.search(name)), UNKNOWN_OP)


def dtype_bytes(dtype: str | None) -> int:
    """Bytes of one element, 0 where the type is not known. Accepts ``Float``, ``c10::BFloat16``, ``long int``."""
    return _DTYPE_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."), 0)


def rank_from_name(file_name: str) -> int | None:
    """``rank-3``, ``rank3``, ``worker3`` or ``_3.``; the process id that the TensorBoard handler writes is no rank."""
    found = _NAMED_RANK.search(file_name) or _TRAILING_RANK.search(file_name)
    return int(found.group(1)) if found and len(found.group(1)) <= 7 else None
