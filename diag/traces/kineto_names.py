"""What a name in a Kineto trace means: categories old and new, calls of the runtimes, types, ranks in file names.

Sources: the real traces of PyTorch 1.9 to 2.13 on NVIDIA and AMD, and libkineto's source (August 2026). Names of
communication are in comm_names, those of steps and phases in range_names.
"""

from __future__ import annotations

import re
from typing import Final

from diag.collectors.layout import MOST_RANKS

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

# Operators whose recorded shapes tell their FLOPs (diag.tables.kernels). The outer aten::linear and
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
LOADING_CALLS: Final = (
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

# A number in a name is a rank only next to a word for it. Seen: rank-3, rank_3, Rank3, worker0 (TensorBoard's handler),
# rank3_trace_8, capture_trace_rank_0_annotation_iteration_1 (vLLM, xDiT), mp_rank_00 (DeepSpeed: of an axis, below).
# Not: lora_rank_16, num_workers_4, batch_size_512, step_based_trace_2543932, host_1987242.1733769848.pt.trace.json.
_NAMED_RANK: Final = re.compile(
    r"(?:(?P<before>[A-Za-z]+)[-_. ]?)?(?:(?<![A-Za-z])(?:rank|RANK|worker|WORKER)|Rank|Worker)[-_= ]?(?P<number>\d+)"
)
# Of what else a number behind "rank" may be the rank: an adapter, a matrix.
_OTHER_RANKS: Final = frozenset({"lora", "low", "adapter", "r", "tensor", "matrix"})
# The ranks of one parallel axis. SGLang: 1782841132.29-TP-0-DP-1-DECODE. Without "rank" and dashes a number behind one
# is as often the axis's size (llama_tp8.json).
_AXIS_RANK: Final = re.compile(
    r"(?<![A-Za-z])(?:(?P<dashed>(?-i:TP|PP|DP|EP|CP|ETP))-(?P<n>\d{1,6})"
    r"|(?P<axis>tp|pp|dp|ep|cp|etp|mp|local)[-_]?rank[-_=]?(?P<m>\d{1,6}))(?!\d)",
    re.I,
)
_RANK_FOLDER: Final = re.compile(r"(?:global[-_]?)?rank[-_]?\d+$", re.I)
_NODE: Final = re.compile(r"(?<![A-Za-z])(?:node|host|machine)[-_]?\d", re.I)


def category(raw: str) -> str:
    """The lower-case category that today's profiler writes."""
    lower = raw.lower()
    return _OTHER_CATEGORIES.get(lower, lower)


def dtype_bytes(dtype: str | None) -> int:
    """Bytes of one element, 0 where the type is not known. Accepts ``Float``, ``c10::BFloat16``, ``long int``."""
    return _DTYPE_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."), 0)


def rank_from_path(path: str) -> int | None:
    """The global rank that the name of a file or of its folder says (``rank3/trace.json``)."""
    *_, folder, name = ["", *re.split(r"[/\\!]", path)]
    rank = rank_from_name(name)
    return rank if rank is not None or not _RANK_FOLDER.match(folder) else rank_from_name(folder)


def rank_from_name(file_name: str) -> int | None:
    """The global rank that a file's name says; None where it says none, or not surely.

    A rank on one parallel axis is the global rank where no other axis is named, where all of them are 0, or where
    expert parallelism shares tensor parallelism's ranks. A local rank is one where no node is named.
    """
    axes = {(m["dashed"] or m["axis"]).lower(): int(m["n"] or m["m"]) for m in _AXIS_RANK.finditer(file_name)}
    found = {
        int(match["number"])
        for match in _NAMED_RANK.finditer(_AXIS_RANK.sub("~", file_name))
        if (match["before"] or "").lower() not in _OTHER_RANKS and len(match["number"]) <= 7
    }
    if not found and axes:
        local = "local" in axes and _NODE.search(file_name) is not None
        alike = len(axes) == 1 or not any(axes.values()) or axes.keys() == {"tp", "ep"}
        found = set(axes.values()) if alike and not local else set()
    rank = next(iter(found)) if len(found) == 1 else None
    return rank if rank is not None and rank < MOST_RANKS else None


# -- range names -------------------------------------------------------------------------------------------------------
#
# What people and libraries call the ranges they put around a step's phases, and where each spelling was read.
#
# A name is listed only if its source was read: torch 2.13's own Python files, and pytorch-lightning, torchrec,
# Megatron-LM and DeepSpeed as of July and August 2026. Not listed because they never reach a Kineto trace: Megatron's
# timers and NVTX ranges, DeepSpeed's ``instrument_w_nvtx``. torchtitan and accelerate add no ranges: what they run
# shows by the names of torch's own loader, wrappers and optimizers.

STEP_PATTERN: Final = r"^diag\.step#(\d+)$"
PROFILER_STEP_PATTERN: Final = r"^ProfilerStep#(\d+)$"
AUTOGRAD_PREFIX: Final = "autograd::engine::evaluate_function"
# With record_python_gc_info and stacks (pytorch PR 161209, August 2025): of category python_function in torch 2.13.
GC_PATTERN: Final = r"^(?:Python GC|diag\.gc)$"

_LIGHTNING: Final = r"\[pl\]\[profile\]"  # profilers/pytorch.py, start()


def _any(*patterns: str) -> str:
    return "^(?:" + "|".join(patterns) + ")"


DATA_PATTERN: Final = _any(
    r"enumerate\(DataLoader\)",  # torch/utils/data/dataloader.py; StatefulDataLoader's iterators inherit it
    rf"{_LIGHTNING}\[\w+\]\.train_dataloader_next$",  # loops/training_epoch_loop.py, _on_before_fetch
    r"## load_batch ##$",  # torchrec/distributed/train_pipeline: around next(dataloader_iter)
)
# The same as functions of Python, in a trace with stacks: torch/utils/data/dataloader.py.
DATA_FUNCTION_PATTERN: Final = r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): __next__$"
FORWARD_PATTERN: Final = _any(
    r"[A-Za-z]*DataParallel\.forward$",  # DataParallel, DistributedDataParallel, FullyShardedDataParallel
    r"CustomFSDP\.forward$",  # Megatron-FSDP: megatron_fsdp.py
    r"## (?:dense_)?forward(?: \d+)? ##$",  # torchrec/distributed/train_pipeline
    rf"{_LIGHTNING}\[Strategy\]\w+\.training_step$",  # trainer/call.py, loops/optimization/automatic.py
    r"Forward \d+$",  # torch/distributed/pipelining/schedules.py: one stage
    r"PP:\d+F\d*$",  # the same: several stages
)
BACKWARD_PATTERN: Final = _any(
    r"## backward(?: \d+)? ##$",
    rf"{_LIGHTNING}\[Strategy\]\w+\.backward$",
    r"Backward \d+$",
    r"PP:\d+[BIW]\d*$",
    r"FullyShardedDataParallel\.(?:_pre_backward|_post_backward)",  # fsdp/_runtime_utils.py
    r"FSDP::(?:pre_backward|post_backward|root_post_backward|backward_prefetch)",  # fsdp/_fully_shard
)
# Where FSDP fetches parameters that it keeps on the host and brings gradients there. Its copies of inputs are in
# FSDP::inputs_to_device and FullyShardedDataParallel._to_kwargs, both inside a root's pre-forward.
OFFLOAD_PATTERN: Final = _any(
    r"FSDP::(?:all_gather|post_backward_reduce)",  # fsdp/_fully_shard/_fsdp_param_group.py
    r"FullyShardedDataParallel\._(?:pre_forward|pre_backward|post_backward)",  # fsdp/_runtime_utils.py
)
# Without zero_grad: most loops call it after the step, and what idles between the two is no work of the optimizer.
OPTIMIZER_PATTERN: Final = _any(
    # torch/optim/optimizer.py. With a closure, ``step`` encloses a forward and a backward; so does Lightning's hook.
    r"Optimizer\.step#",
    rf"{_LIGHTNING}\[LightningModule\]\w+\.(?:optimizer_step|configure_gradient_clipping)$",
    rf"{_LIGHTNING}optimizer_step$",  # loops/optimization/manual.py
    r"## optimizer(?: \d+)? ##$",
)
# What comes once in an iteration, at its end and near its begin.
OPTIMIZER_STEP_PATTERN: Final = r"^Optimizer\.step#"
ZERO_GRAD_PATTERN: Final = r"^(?:Optimizer\.zero_grad#|## zero_grad ##$)"
CHECKPOINT_PATTERN: Final = _any(
    rf"{_LIGHTNING}save_checkpoint$",  # trainer/trainer.py
    rf"{_LIGHTNING}\[Callback\].*\.on_save_checkpoint$",  # trainer/call.py
)
# Functions of Python in a trace with stacks: "torch/serialization.py(943): save".
CHECKPOINT_FUNCTION_PATTERN: Final = (
    r"(?:^|/)torch/(?:serialization|distributed/checkpoint/state_dict_saver)\.py\(\d+\): (?:async_)?save$"
)

# FSDP2 has no range around a forward: it begins with the root's hook and ends with the last hook after a module.
FSDP2_FORWARD_BEGIN: Final = "FSDP::root_pre_forward"
FSDP2_FORWARD_END: Final = r"^FSDP::post_forward"
FSDP2_BACKWARD_BEGIN: Final = r"^FSDP::pre_backward"

# torch/_dynamo/utils.py, dynamo_timed: only while something compiles or is tuned, never when compiled code runs.
COMPILING_PATTERN: Final = r" \(dynamo_timed\)$"
# Functions of Python that compile, tune or record a graph, once: Triton's JIT, Inductor's autotuning, C++ extensions,
# graphs. Not Triton's ``run``, which launches as well.
LOADING_PATTERN: Final = (
    r"(?:^|/)(?:"
    + "|".join(
        (
            r"triton/compiler/compiler\.py\(\d+\): compile$",
            r"triton/runtime/autotuner\.py\(\d+\): (?:benchmark|_bench)$",
            r"triton/runtime/build\.py\(\d+\): _build$",
            r"torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (?:autotune_to_one|benchmark_all)_configs?$",
            r"torch/utils/cpp_extension\.py\(\d+\): load",
            r"torch/cuda/graphs\.py\(\d+\): (?:capture_begin|capture_end|__enter__|make_graphed_callables)$",
            r"torch/_inductor/cudagraph_trees\.py\(\d+\): _?record",
        )
    )
    + ")"
)

# torch/_inductor/output_code.py: the compiled code runs. Its own C++ kernels leave no event of their own.
COMPILED_CODE_PREFIX: Final = "## Call CompiledFxGraph"

# What wrappers add to the names of a model's own modules, each read in its wrapper's source. As parts of a path: FSDP1
# (fsdp/_common_utils.py), checkpoint_wrapper (algorithms/_checkpoint/checkpoint_wrapper.py), torch.compile
# (_dynamo/eval_frame.py, OptimizedModule), Lightning (fabric/wrappers.py, _FabricModule).
WRAPPER_PARTS: Final = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module"})
# DistributedDataParallel and DeepSpeedEngine hold the model under this name.
WRAPPER_ROOT: Final = "module"
# As classes, which the profiler's "nn.Module: Class_3" shows. What checkpoint_wrapper makes is a CheckpointWrapper.
WRAPPER_CLASSES: Final = frozenset(
    {
        "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule",
        "CheckpointWrapper", "OffloadWrapper", "_FabricModule",
    }
)  # fmt: skip
# fully_shard makes of a module's class one of this prefix (fsdp/_fully_shard/_fully_shard.py).
FSDP_CLASS_PREFIX: Final = "FSDP"
