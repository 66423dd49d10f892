"""What a name in a Kineto trace means: categories old and new, calls of the runtimes, types, ranks in file names.

Sources: the real traces of PyTorch 1.9 to 2.13 on NVIDIA and AMD, and libkineto's source (August 2026). Names of
communication are in comm_names, those of steps and phases in range_names.
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

PYTHON: Final = "python_function"

# Profilers up to torch 1.10 wrote the capitalised names; accelerators other than CUDA and ROCm write their own
# (libkineto/include/ActivityType.h). Not here, so never work: gpu_user_annotation (repeats host ranges over the kernels
# they launched), cuda_sync, cuda_event, overhead, collective_comm (repeats oneCCL's kernels), mtia_*, hpu_op.
_OTHER_CATEGORIES: Final = {
    "operator": CPU_OP,
    "runtime": RUNTIME,
    "xpu_runtime": RUNTIME,
    "xpu_driver": DRIVER,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": DRIVER,
    "memcpy": MEMCPY,
    "memset": MEMSET,
}

# Ranges that a person or a library put around work; old profilers filed them under "Operator".
RANGE_PATTERN: Final = (
    r"^(?:ProfilerStep#|diag\.|enumerate\(DataLoader\)|Optimizer\.|[A-Za-z]*DataParallel\.|(?:gloo|nccl2?|nccl-lazy|ncclx|xccl|mpi|ucc):"
    r"|\[pl\]\[|## (?:dense_)?(?:forward|backward|optimizer|zero_grad|load_batch)\b)"
)

# Operators whose recorded shapes tell their FLOPs (diag.attribution.shapes). The outer aten::linear and
# aten::convolution and the inner aten::addmm and aten::cudnn_convolution are all here: which of them a trace holds
# depends on the device.
SHAPED_OP_PATTERN: Final = (
    r"^aten::(?:mm|addmm|bmm|baddbmm|linear|_addmm_activation|_scaled_mm|"
    r"(?:_|cudnn_|miopen_|mkldnn_)?convolution(?:_overrideable)?|convolution_backward|_conv_depthwise2d|"
    r"_scaled_dot_product_(?:flash|efficient|cudnn|fused)_attention\w*)$"
)
# Events whose arguments are read: communication on the host, and those operators; kernels by comm_names.KERNEL_PATTERN.
ARGUMENT_PATTERN: Final = (
    r"^(?:(?:gloo|nccl2?|nccl-lazy|ncclx|mpi|ucc|xccl):|c10d::|_?c10d_functional::|record_param_comms$|symm_mem::|triton_)|"
    + SHAPED_OP_PATTERN
)

# Of CUDA, HIP, and Intel's Unified Runtime (ur*) and Level Zero (ze*).
SYNC_PATTERN: Final = (
    r"^(?:(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|ur(?:QueueFinish|EventWait$)"
    r"|ze(?:EventHost|FenceHost|CommandQueue|CommandListHost)Synchronize)"
)
ALLOCATOR_PATTERN: Final = (
    r"^(?:(?:cuda|hip|cu)(?:(?:Ext)?Malloc|Free|Host(?:Alloc|Malloc|Free)"
    r"|Mem(?:Create|Map|Unmap|Release|Alloc|Free|SetAccess|Address(?:Reserve|Free)|Host(?:Alloc|Register|Unregister)))"
    r"|urUSM(?:\w*Alloc|Free)|zeMem(?:Alloc|Free))"
)
# Calls that load code onto the device or prepare it, once for each module.
LOADING_PATTERN: Final = (
    r"^(?:cuModuleLoad|cuLibrary(?:Load|GetKernel)|cuKernel(?:GetFunction|SetAttribute)|cuLink|cu(?:Device)?(?:Primary)?CtxCreate"
    r"|cuDevicePrimaryCtxRetain|cuInit$|hip(?:Module|Library)Load|hipCtxCreate|hipInit$|cudaLibraryLoad|nvrtc|hiprtc"
    r"|cu(?:da)?Graph(?:Instantiate|Upload)|hipGraph(?:Instantiate|Upload))"
)
# Between these a stream is captured into a graph: nothing that is launched on it runs.
CAPTURE_BEGIN_PATTERN: Final = r"^(?:cu|cuda|hip)StreamBeginCapture"
CAPTURE_END_PATTERN: Final = r"^(?:cu|cuda|hip)StreamEndCapture"
GRAPH_LAUNCH_PATTERN: Final = r"^(?:cu|cuda|hip)GraphLaunch"
# Calls that give the device work: kernels, graphs, copies, memsets. Old CUPTI wrote INVALID for cooperative launches
# (on the V100 traces, those of NCCL).
LAUNCH_PATTERN: Final = r"(?i)launch|memcpy|memset|enqueue|^INVALID$"

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
    return _OTHER_CATEGORIES.get(lower, lower)


def dtype_bytes(dtype: str | None) -> int:
    """Bytes of one element, 0 where the type is not known. Accepts ``Float``, ``c10::BFloat16``, ``long int``."""
    return _DTYPE_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."), 0)


def rank_from_name(file_name: str) -> int | None:
    """``rank-3``, ``rank3``, ``worker3`` or ``_3.``; the process id that the TensorBoard handler writes is no rank."""
    found = _NAMED_RANK.search(file_name) or _TRAILING_RANK.search(file_name)
    return int(found.group(1)) if found and len(found.group(1)) <= 7 else None
