"""Names in Kineto traces: categories old and new, runtime calls, types, ranks in file names, and communication.

Sources: real traces of PyTorch 1.9 to 2.13 on NVIDIA and AMD, and libkineto's source (August 2026).

Names of communication (kernels, copies and host ranges) come from the source of each library (August and November 2026)
unless a comment gives another source. One vendor's prefix is not enough: NCCL renamed ``ncclKernel*`` to
``ncclDevKernel_*`` in 2.19, and DeepEP or mscclpp never had either. A kernel that multiplies matrices and communicates
at once is in a separate class, "fused": a trace does not show how much of its time is communication.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from diag.collectors.layout import MOST_RANKS
from diag.deferred import pl
from diag.traces.policy import TRACE_LIMITS

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
    "mlu_runtime": RUNTIME,  # Cambricon's kineto_mlu, as are the next two; its kernels are of the category "kernel"
    "mlu_memcpy": MEMCPY,
    "mlu_memset": MEMSET,
    "memcpy": MEMCPY,
    "memset": MEMSET,
}

# Accelerators whose device events have categories of their own, by the start of these: libkineto's own
# (ActivityType.h), and those of Ascend's and AWS's plugins. Their work is not read, and the answer says so. Host calls
# of the same backends end in _runtime or _driver.
OTHER_ACCELERATORS: Final = {
    "mtia": "an MTIA accelerator",
    "hpu": "a Gaudi accelerator (HPU)",
    "privateuse1": "an out-of-tree accelerator",
    "neuron": "a Neuron accelerator",
    "npu": "an Ascend NPU",
    "glow": "a Glow accelerator",
}
OTHER_ACCELERATOR_PATTERN: Final = rf"(?:{'|'.join(OTHER_ACCELERATORS)})_\w+"
# Process names of Ascend's msprof, whose events have no category.
ASCEND_PROCESS_PATTERN: Final = r"Ascend Hardware|(?:CANN|NPU|HCCL)\b"

NVIDIA: Final = "nvidia"
AMD: Final = "amd"
INTEL: Final = "intel"
# By vendor: the names of its devices, and of its runtime's calls and libraries' kernels. The first that matches counts.
VENDORS: Final = {
    AMD: (r"(?i)\bamd\b|radeon|instinct|\bgfx[0-9]", r"^hip[A-Z]|^Cijk_"),
    NVIDIA: (r"(?i)nvidia|tesla|geforce|quadro", r"^(?:cuda|cu)[A-Z]"),
    INTEL: (r"(?i)intel|data center gpu", r"^(?:ze|ur)[A-Z]"),
}
# Operators that exist only on CUDA, ROCm or Apple's MPS (linear_backward), NCCL's collectives, and calls that leave
# work to a stream.
GPU_OP_PATTERN: Final = (
    r"^(?:nccl:|aten::(?:cudnn_|_cudnn|miopen_|record_stream$|_flash_attention_|_efficient_attention_|_thnn_fused_"
    r"|_fused_rms_norm_cuda|_cslt_|linear_backward$|_mps_|\w+_mps$)|triton_(?:poi|red|per|tem|mm)_)"
)

# Ranges that a user or a library put around work; old profilers filed them under "Operator".
RANGE_PATTERN: Final = (
    r"^(?:ProfilerStep#|diag\.|enumerate\(DataLoader\)|Optimizer\.|[A-Za-z]*DataParallel\.|(?:gloo|nccl2?|nccl-lazy|ncclx|xccl|mpi|ucc):"
    r"|\[pl\]\[|## (?:dense_)?(?:forward|backward|optimizer|zero_grad|load_batch)\b)"
)

# Operators whose recorded shapes determine their FLOPs (diag.tables.shapes). The list has the outer aten::linear and
# aten::convolution and the inner aten::addmm and aten::cudnn_convolution: which of them a trace holds depends on the
# device.
SHAPED_OP_PATTERN: Final = (
    r"^aten::(?:mm|addmm|bmm|baddbmm|linear|_addmm_activation|_scaled_mm|"
    r"(?:_|cudnn_|miopen_|mkldnn_)?convolution(?:_overrideable)?|convolution_backward|_conv_depthwise2d|"
    r"_scaled_dot_product_(?:flash|efficient|cudnn|fused)_attention\w*)$"
)
# Events whose arguments are read: communication on the host, and these operators; kernels by names.KERNEL_PATTERN.
ARGUMENT_PATTERN: Final = (
    r"^(?:(?:gloo|nccl2?|nccl-lazy|ncclx|mpi|ucc|xccl):|c10d::|_?c10d_functional::|record_param_comms$|symm_mem::|triton_)|"
    + SHAPED_OP_PATTERN
)

# Synchronising and allocating calls of CUDA, HIP, Intel's Unified Runtime (ur*) and Level Zero (ze*), and Cambricon's
# runtime (cnrt*).
SYNC_PATTERN: Final = (
    r"^(?:(?:cuda|hip|cu)(?:Device|Stream|Event|Ctx)Synchronize|ur(?:QueueFinish|EventWait$)"
    r"|ze(?:EventHost|FenceHost|CommandQueue|CommandListHost)Synchronize|cnrt(?:QueueSync|SyncDevice|NotifierWait|WaitNotifier))"
)
ALLOCATOR_PATTERN: Final = (
    r"^(?:(?:cuda|hip|cu)(?:(?:Ext)?Malloc|Free|Host(?:Alloc|Malloc|Free)"
    r"|Mem(?:Create|Map|Unmap|Release|Alloc|Free|SetAccess|Address(?:Reserve|Free)|Host(?:Alloc|Register|Unregister)))"
    r"|urUSM(?:\w*Alloc|Free)|zeMem(?:Alloc|Free)|cnrt(?:Malloc|Free|Host(?:Malloc|Free)))"
)
# Calls that load code onto the device or prepare it, once for each module.
LOADING_CALLS: Final = (
    r"^(?:cuModuleLoad|cuLibrary(?:Load|GetKernel)|cuKernel(?:GetFunction|SetAttribute)|cuLink|cu(?:Device)?(?:Primary)?CtxCreate"
    r"|cuDevicePrimaryCtxRetain|cuInit$|hip(?:Module|Library)Load|hipCtxCreate|hipInit$|cudaLibraryLoad|nvrtc|hiprtc"
    r"|cu(?:da)?Graph(?:Instantiate|Upload)|hipGraph(?:Instantiate|Upload))"
)
# Between these calls a stream is captured into a graph: nothing that is launched on it runs.
CAPTURE_BEGIN_PATTERN: Final = r"^(?:cu|cuda|hip)StreamBeginCapture"
CAPTURE_END_PATTERN: Final = r"^(?:cu|cuda|hip)StreamEndCapture"
GRAPH_LAUNCH_PATTERN: Final = r"^(?:cu|cuda|hip)GraphLaunch"
# Calls that give the device work: kernels, graphs, copies, memsets. Old CUPTI wrote INVALID for cooperative launches
# (on the V100 traces, those of NCCL).
LAUNCH_PATTERN: Final = r"(?i)launch|memcpy|memset|enqueue|^cnInvokeKernel|^INVALID$"

_MOST_ELEMENTS: Final = 1 << 48
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
# Words before "rank" with which the number is the rank of an adapter or a matrix.
_OTHER_RANKS: Final = frozenset({"lora", "low", "adapter", "r", "tensor", "matrix"})
# The ranks of one parallel axis. SGLang: 1782841132.29-TP-0-DP-1-DECODE. Without "rank" and dashes, the number after an
# axis is as often its size (llama_tp8.json).
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


def shape(lengths: object) -> tuple[int, ...]:
    """The lengths of a tensor in "Input Dims"; () for anything else, and for what no memory holds."""
    if not isinstance(lengths, list):
        return ()
    if not all(type(length) is int and 0 <= length < _MOST_ELEMENTS for length in lengths):
        return ()
    return tuple(lengths) if math.prod(lengths) < _MOST_ELEMENTS else ()


def dtype_bytes(dtype: str | None) -> int:
    """Bytes of one element, 0 for an unknown type. Accepts ``Float``, ``c10::BFloat16``, ``long int``."""
    return _DTYPE_BYTES.get((dtype or "").lower().removeprefix("c10::").removeprefix("torch."), 0)


def rank_from_path(path: str) -> int | None:
    """The global rank in the name of a file or of its folder (``rank3/trace.json``)."""
    *_, folder, name = ["", *re.split(r"[/\\!]", path)]
    rank = rank_from_name(name)
    return rank if rank is not None or not _RANK_FOLDER.match(folder) else rank_from_name(folder)


def rank_from_name(file_name: str) -> int | None:
    """The global rank in a file's name; None if there is none, or it is ambiguous.

    A rank on one parallel axis is the global rank if no other axis is named, if all of them are 0, or if expert
    parallelism shares tensor parallelism's ranks. A local rank is the global rank if no node is named.
    """
    axes = {(m["dashed"] or m["axis"]).lower(): int(m["n"] or m["m"]) for m in _AXIS_RANK.finditer(file_name)}
    ranks = {
        int(match["number"])
        for match in _NAMED_RANK.finditer(_AXIS_RANK.sub("~", file_name))
        if (match["before"] or "").lower() not in _OTHER_RANKS and len(match["number"]) <= 7
    }
    if not ranks and axes:
        local = "local" in axes and _NODE.search(file_name) is not None
        alike = len(axes) == 1 or not any(axes.values()) or axes.keys() == {"tp", "ep"}
        ranks = set(axes.values()) if alike and not local else set()
    rank = next(iter(ranks)) if len(ranks) == 1 else None
    return rank if rank is not None and rank < MOST_RANKS else None


# -- range names -------------------------------------------------------------------------------------------------------
#
# Names that users and libraries give to the ranges around a step's phases, and the source of each spelling.
#
# A name is listed only if its source was read: torch 2.13's own Python files, and pytorch-lightning, torchrec,
# Megatron-LM and DeepSpeed as of July and August 2026. Not listed because they never reach a Kineto trace: Megatron's
# timers and NVTX ranges, DeepSpeed's ``instrument_w_nvtx``. torchtitan and accelerate add no ranges: their steps show
# by the names of torch's own loader, wrappers and optimizers.

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
# The same as Python functions, in a trace with stacks: torch/utils/data/dataloader.py.
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
# Where FSDP fetches parameters that it keeps on the host, and where it moves gradients there. Its copies of inputs are
# in FSDP::inputs_to_device and FullyShardedDataParallel._to_kwargs, both inside a root's pre-forward. The other way
# round means nothing: before each reduce-scatter, fsdp::chunk_cat copies a list of addresses to the device.
FETCH_PATTERN: Final = _any(
    r"FSDP::all_gather",  # fsdp/_fully_shard/_fsdp_param_group.py
    r"FullyShardedDataParallel\._(?:pre_forward|pre_backward)",  # fsdp/_runtime_utils.py
)
GRADIENTS_OUT_PATTERN: Final = _any(r"FSDP::post_backward_reduce", r"FullyShardedDataParallel\._post_backward")
# Without zero_grad: most loops call it after the step, and idle time between the two is not the optimizer's.
OPTIMIZER_PATTERN: Final = _any(
    # torch/optim/optimizer.py. With a closure, ``step`` encloses a forward and a backward; so does Lightning's hook.
    r"Optimizer\.step#",
    rf"{_LIGHTNING}\[LightningModule\]\w+\.(?:optimizer_step|configure_gradient_clipping)$",
    rf"{_LIGHTNING}optimizer_step$",  # loops/optimization/manual.py
    r"## optimizer(?: \d+)? ##$",
)
# Ranges that occur once in an iteration: at its end, and near its begin.
OPTIMIZER_STEP_PATTERN: Final = r"^Optimizer\.step#"
ZERO_GRAD_PATTERN: Final = r"^(?:Optimizer\.zero_grad#|## zero_grad ##$)"
CHECKPOINT_PATTERN: Final = _any(
    rf"{_LIGHTNING}save_checkpoint$",  # trainer/trainer.py
    rf"{_LIGHTNING}\[Callback\].*\.on_save_checkpoint$",  # trainer/call.py
)
# Python functions in a trace with stacks: "torch/serialization.py(943): save".
CHECKPOINT_FUNCTION_PATTERN: Final = (
    r"(?:^|/)torch/(?:serialization|distributed/checkpoint/state_dict_saver)\.py\(\d+\): (?:async_)?save$"
)

# FSDP2 has no range around a forward: it begins with the root's hook and ends with the last hook after a module.
FSDP2_FORWARD_BEGIN: Final = "FSDP::root_pre_forward"
FSDP2_FORWARD_END: Final = r"^FSDP::post_forward"
FSDP2_BACKWARD_BEGIN: Final = r"^FSDP::pre_backward"

# torch/_dynamo/utils.py, dynamo_timed: only while something compiles or is tuned, never when compiled code runs.
COMPILING_PATTERN: Final = r" \(dynamo_timed\)$"
# Python functions that compile, tune or record a graph, once: Triton's JIT, Inductor's autotuning, C++ extensions,
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

# Parts that wrappers add to the paths of a model's own modules, each read in its wrapper's source: FSDP1
# (fsdp/_common_utils.py), checkpoint_wrapper (algorithms/_checkpoint/checkpoint_wrapper.py), torch.compile
# (_dynamo/eval_frame.py, OptimizedModule), Lightning (fabric/wrappers.py, _FabricModule).
WRAPPER_PARTS: Final = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module"})
# DistributedDataParallel and DeepSpeedEngine hold the model under this name.
WRAPPER_ROOT: Final = "module"
# Their classes, which the profiler's "nn.Module: Class_3" shows. checkpoint_wrapper makes a CheckpointWrapper.
WRAPPER_CLASSES: Final = frozenset(
    {
        "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule",
        "CheckpointWrapper", "OffloadWrapper", "_FabricModule",
    }
)  # fmt: skip
# fully_shard replaces a module's class by one with this prefix (fsdp/_fully_shard/_fully_shard.py).
FSDP_CLASS_PREFIX: Final = "FSDP"


# -- communication -----------------------------------------------------------------------------------------------------


# A kernel's qualified name: the text before its template arguments and its parameters.
_QUALIFIED: Final = r"^(?:[^(<]|\(anonymous namespace\))*?"
_LIBRARIES: Final = (
    # NCCL: ncclKernel_*, ncclDevKernel_* and ncclDevKernelDebug_* (RCCL, too), ncclDevFunc_*, and the symmetric kernels
    # ncclSymkDevKernel_* (src/device/symmetric/generate.py); torch's c10d::nccl_extension.
    "nccl",
    "rccl",  # rcclGenericKernel, before RCCL took NCCL's names
    "msccl",  # mscclKernel_* of RCCL, mscclpp:: and mscclpp::collective::
    "deep_ep",
    "(?:nv|roc)shmem",  # nvshmemi_* and torch's c10d::nvshmem_extension
    "symm(?:etric)?_mem",  # c10d::symmetric_memory::barrier_kernel, put_signal_kernel, wait_signal_kernel
    "multimem_",  # torch's symmetric memory; its one_shot_ and two_shot_ kernels contain all_reduce
    "k?userbuffers_",  # TransformerEngine: comm_gemm_overlap/userbuffers/userbuffers.cu
    "cross_device_reduce",  # vLLM, SGLang, FlashInfer and AMD's aiter
    "quickreduce::",  # vLLM on AMD
    "moeA2A(?:Dispatch|Combine)Kernel",  # TensorRT-LLM and FlashInfer; their Prepare and Sanitize only set counters
    "ulysses_a2a",  # FlashInfer
    "oneccl_",  # Intel; seen in test data of other tools only
    # DeepEP's layout in any namespace (UCCL's ep/src, forks), DeepEP's hybrid-ep branch and NVIDIA/nccl's
    # contrib/nccl_ep. Their other kernels (layouts, counts, permutations) stay on the device.
    "(?:internode(?:_ll)?|intranode)::(?:dispatch|combine|(?:cached_)?notify)",
    "hybrid_ep::(?:dispatch_kernel|combine_kernel|device_sync|rdma_sync|ag_nvl)",
    "a2a_(?:dispatch|combine)_(?:send|recv)_kernel",  # perplexityai/pplx-garden
    # ROCm/mori: src/ops/dispatch_combine and include/mori/collective, with and without its namespace.
    "mori::|mori_shmem_|Ep(?:Dispatch|Combine)(?:InterNode|IntraNode|LowLatency|All|Sync)|OneShotBroadcast",
    "(?:broadcast|fcollect|rdxn|barrier|sync)_on_stream_kernel|wait_until_on_stream",  # nvshmem, TransformerEngine
    "pcie_ipc::(?:ipc_|push_oneshot)",  # FlashInfer: comm/pcie_ipc_all_reduce.cuh
    "(?:combine|store)_publish_|wait_combine_kernel",  # FlashInfer's moe_ep: pushes between devices
    "(?:ar|ag|rs)_gfx1250_",  # AMD's aiter: csrc/include/custom_all_reduce_gfx1250.cuh
    # ByteDance's flux; building indices and adding up what arrived (packed_ring_reduction) stay on the device.
    "flux::(?:a2a_|ag_a2a|CudaIpcBarrier|pre_attn_qkv_pack_a2a|(?:ep_)?topk_gather_rs)",
    "flux::dis_scatter_(?:forward|backward)_(?:flatten_|single_node_)?kernel",
    # Triton-distributed.
    "(?:tile_)?kernel_(?:dispatch|combine)_token|kernel_inter_node_p2p|kernel_ag_intra_node|exchange_split_offset",
    "_forward_pu(?:sh|ll)_(?:kernel|numa|[23]d)|p2p_(?:put|copy)_(?:kernel|remote)|p2p_(?:set|wait)_signal",
    "ubx_kernel_(?:a2a|barrier)|(?:direct)?ReshardKernelUserWindow",  # NVIDIA/nccl: contrib
    "comms::prims::(?:ib|link_ep)::",  # meta-pytorch/torchcomms
    # Huawei's HCCL, as msprof-analyze names its tasks; hcom_allReduce_ and the like are found by their operation.
    "hcom_(?:send|receive|batchsendrecv|broadcast|reduce)|Notify_Wait",
)
# An operation in the name, in any library. Not after an m: "small_gather" gathers from memory.
_OPERATIONS: Final = (
    r"(?:^|[^m(<])all_?(?:reduce|gather|scatter|(?:to|2)_?all)|reduce_?scatter"
    r"|[a-z]_a2a(?:_kernel)?\b|barrier_all(?:_|\b)"
)
# AMD's profiler leaves some names mangled (_ZN5aiter26cross_device_reduce_...), so a digit may come before. Words as
# general as ppl-ai/pplx-kernels' dispatchKernel count only if they are the whole name.
KERNEL_PATTERN: Final = (
    rf"(?i){_QUALIFIED}(?:(?:\b|[0-9])(?:{'|'.join(_LIBRARIES)})|{_OPERATIONS})"
    r"|^(?:void )?(?:\(anonymous namespace\)::)?(?:dispatch|combine)Kernel<"
)

# Kernels that compute and communicate at once: a matrix product, by any of its names, and an operation or its initials.
_GEMM: Final = "(?:gemm|matmul)"
_WITH: Final = "(?:all_?(?:reduce|gather|scatter|(?:to|2)_?all)|reduce_?scatter|a2a|(?:dispatch|combine)_token)"
_INITIALS: Final = "(?:ag|rs|ar|a2a)"
_BETWEEN: Final = "[0-9a-z_]{0,60}?"  # bounded: a hostile name must not take long in an engine with backtracking
_FUSED: Final = (
    # kernel_fused_gemm_allreduce and mega_kernel_dispatch_token_moe_grouped_gemm (Triton-distributed),
    # persistent_gemm_all_reduce and _fused_all_gather_matmul_kernel (ROCm/iris)
    rf"{_GEMM}{_BETWEEN}{_WITH}|{_WITH}{_BETWEEN}{_GEMM}",
    # kernel_fused_ag_gemm, kernel_gemm_rs_producer_persistent, moe_gather_rs_grouped_gemm_kernel
    rf"(?:\b|_){_INITIALS}_(?:{_BETWEEN}_)?{_GEMM}|{_GEMM}_{_INITIALS}(?:_|\b)",
    # Triton-distributed's halves, which wait for another device's tiles or signal their own, and its megakernel
    rf"kernel_consumer_(?:{_GEMM}|flash_attn)|\bconsumer_gemm_|{_GEMM}_notify|MEGA_TRITON_KERNEL",
    "dispatch_group_gemm|mega_?moe",  # HazyResearch/ThunderKittens; DeepGEMM's sm100_fp8_fp4_mega_moe
)
# CUTLASS and ThunderKittens launch everything through one kernel, whose template arguments contain the operation: flux'
# Sm90AGGemmUniversal and GemmV2ReduceScatter_Kernel, TensorRT-LLM's sm100_gemm_allreduce, gemm_ar::globals.
_WRAPPED: Final = (
    r"^(?:void )?(?:cutlass|kittens)\w*::(?:\w+::)*\w+<.*(?:Sm[0-9]+(?:AG|RS)Gemm|AGScatter|GatherRS"
    rf"|Gemm(?:Grouped)?V[23]{_BETWEEN}(?:AGKernel|ReduceScatter|AllToAll)|{_GEMM}{_BETWEEN}{_WITH}|\b{_INITIALS}_{_GEMM}"
    rf"|{_GEMM}_{_INITIALS}\b)"
)
# Inductor names a fused Triton kernel after the operators around it, so `triton_poi_fused_all_gather_...` computes.
_NEITHER: Final = r"^triton_|^(?:void )?at::native::"
FUSED_PATTERN: Final = rf"(?i){_QUALIFIED}(?:{'|'.join(_FUSED)})|{_WRAPPED}"
FUSED_NOT_PATTERN: Final = rf"(?i){_NEITHER}"
# A matrix product that is named after the collective it waits for computes (and is fused). These touch this device's
# memory only: DeepEP's counting of tokens per expert before a dispatch, its sums and copies of what arrived, and its
# masks of dead ranks; mori's conversions; the sums over what arrived of mori and Triton-distributed; and operations
# within a block of threads.
NOT_KERNEL_PATTERN: Final = (
    rf"(?i){_NEITHER}|gemm|matmul|{_QUALIFIED}(?:{'|'.join(_FUSED)})"
    r"|deep_ep::(?:\w+::)*(?:layout::|get_dispatch_layout|\w+_epilogue|\w+_mask_buffer)"
    rf"|{_QUALIFIED}(?:(?:warp|block|cluster|wave|cta|thread|local)_?all_?(?:reduce|gather)|local_?reduce"
    r"|kernel_ring_reduce|Convert(?:Dispatch|Combine))"
)
# Between devices: copy-engine collectives, DataParallel, symmetric memory (CUPTI's "PtoP" in Kineto).
PEER_COPY_PATTERN: Final = r"(?i)PtoP|PeerToPeer|^Memcpy!"
# Within one device as far as the profiler knows; ordinary work (see diag.account.gpu), unless it belongs to a
# collective (diag.account.trace_collectives.engine_copies). CUPTI's arrays (A) are on the device. Intel's S is memory
# that host and device share.
_WORD_BEGINS: Final = "(?:^|[^a-z0-9])"  # polars' patterns have no look-around
_WORD_ENDS: Final = "(?:[^a-z0-9]|$)"
LOCAL_COPY_PATTERN: Final = rf"(?i)[AD]to[AD]|Device_?To_?Device|{_WORD_BEGINS}[DS]2[DS]{_WORD_ENDS}"
# CUPTI and Kineto on ROCm: HtoD, DtoH; roctracer: CopyHostToDevice; Intel's PTI: H2D from pinned, M2D from pageable
# memory, and the other way D2H, D2M.
TO_DEVICE_PATTERN: Final = rf"(?i)Hto[DA]|Host_?To_?Device|{_WORD_BEGINS}[HM]2[DS]{_WORD_ENDS}"
TO_HOST_PATTERN: Final = rf"(?i)[DA]toH|Device_?To_?Host|{_WORD_BEGINS}[DS]2[HM]{_WORD_ENDS}"
PINNED_PATTERN: Final = rf"(?i)Pinned|{_WORD_BEGINS}(?:H2[DS]|[DS]2H){_WORD_ENDS}"
PAGEABLE_PATTERN: Final = rf"(?i)Pageable|{_WORD_BEGINS}(?:M2[DS]|[DS]2M){_WORD_ENDS}"

# Titles that torch's process groups give their work: ProcessGroup{NCCL,XCCL,UCC,MPI,Gloo}.cpp. On the host, ranges of
# gloo and MPI (and UCC on CPUs) last as long as the operation; the others only as long as the enqueue.
WIRE_PATTERN: Final = r"^(?:gloo|mpi|ucc):"
# Ranges that enclose the launch of a collective. torch's low-contention symmetric-memory operators copy from peers.
SYMM_MEM_COPIES: Final = "symm_mem::_low_contention"
# torch's backends on a device; nccl2 and nccl-lazy of 2026, ncclx of torchcomms.
_ON_DEVICE: Final = "nccl2?|nccl-lazy|ncclx|xccl"
CALL_PATTERN: Final = rf"^(?:record_param_comms$|(?:{_ON_DEVICE}|ucc):|{SYMM_MEM_COPIES})"
PARAM_COMMS: Final = "record_param_comms"
# Operators on the host that only issue a collective or wait for it (docs/concepts/partition.md).
CALL_OP_PATTERN: Final = (
    rf"^(?:c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms|(?:gloo|mpi|ucc|{_ON_DEVICE}):)"
)

# By the collective's name only: NCCL runs an all-to-all with its SendRecv kernel, too.
P2P_PATTERN: Final = r"(?i)^(?:send|recv|batch_isend_irecv)"
P2P_RANGE_PATTERN: Final = rf"^(?:{_ON_DEVICE}|gloo|mpi|ucc):(?:send|recv)"
# Sends and receives in one NCCL group, as dist.batch_isend_irecv makes: a SendRecv kernel launched in such a range.
COALESCED_PATTERN: Final = rf"^(?:{_ON_DEVICE}):coalesced$"
COALESCED_CALL_PATTERN: Final = rf"(?i)^(?:{_ON_DEVICE}):\w*coalesced$"  # any operation
SEND_RECV_KERNEL_PATTERN: Final = r"(?i)^nccl\w*SendRecv"
_PEERS: Final = re.compile(r"^[\w-]+:(?:send|recv) (\d+)(->|<-)(\d+)$")

UNKNOWN_OP: Final = "unknown"
# Between two ranks; a wait is for one peer's signal.
P2P_OPS: Final = frozenset({"send", "recv", "send_recv", "wait"})
# Compiled on first use (re caches them): most commands read cached traces.
_OPS: Final = (
    (
        "barrier",
        r"all_?reduce_barrier|barrier_all|SyncBarrier|(?:device|rdma)_sync",
    ),  # NCCL's first; mori, hybrid_ep
    ("reduce_scatter", r"reduce_?scatter|userbuffers_\w+_rs(?:_|\b)|\brs_gfx1250_|gather_rs"),
    (
        "all_gather",
        r"all_?(?:gather|scatter)|userbuffers_\w+_ag\b|\bag_gfx1250_|kernel_ag_intra|_forward_pu(?:sh|ll)_|fcollect|ag_nvl",
    ),
    ("all_reduce", r"all_?reduce|cross_device_reduce|userbuffers_fp16_sum|\bar_gfx1250_|pcie_ipc::|rdxn_on_stream"),
    # The notify kernels of DeepEP and its successors exchange the counts for the dispatch that comes next.
    (
        "all_to_all",
        r"all_?(?:to|2)_?all|a2a|exchange_?Split|Reshard|dis_scatter_|(?:combine|store)_publish"
        r"|(?:deep_ep|uccl|hybrid_ep|nccl_ep|link_ep|inter_?node|intra_?node).{0,300}?(?:dispatch|combine|notify)|\bEp(?:Dispatch|Combine)"
        r"|kernel_(?:dispatch|combine)_token|^(?:void )?(?:dispatch|combine)Kernel<",
    ),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier|clean_low_latency_buffer|\bsync_on_stream"),
    ("wait", r"wait_until_on_stream|wait_combine|notify_wait|wait_signal"),
    ("send_recv", r"send_?recv|batch_isend_irecv|kernel_inter_node_p2p|\bp2p_(?:put|copy)|prims::ib::"),
    ("send", r"send"),
    ("recv", r"recv|receive"),
    ("scatter", r"scatter"),
    ("gather", r"gather"),
    ("reduce", r"reduce"),
)

OPERATIONS: Final = tuple(dict.fromkeys([*(op for op, _ in _OPS), UNKNOWN_OP]))


def collective_op(name: str) -> str:
    """One of a dozen operations from any spelling: ``allreduce``, ``c10d::_allgather_base_``, a kernel's name."""
    return next((op for op, pattern in _OPS if re.search(pattern, name, re.I)), UNKNOWN_OP)


def without_parameters(kernel: str) -> str:
    """The kernel's name without its parameters, whose types may contain the names of other operations."""
    return kernel.replace("(anonymous namespace)::", "").partition("(")[0]


def peers(title: str | None) -> tuple[int, int] | None:
    """(sender, receiver) as ranks of the group, from ``nccl:send 0->1`` or ``nccl:recv 1<-0``; else None."""
    match = _PEERS.match(title or "")
    if not match:
        return None
    left, right = int(match.group(1)), int(match.group(3))
    return (left, right) if match.group(2) == "->" else (right, left)


# -- comm rules --------------------------------------------------------------------------------------------------------
#
# The user's own names of communication kernels: ``REGEX=operation``, for kernels that the rules above do not know.
#
# The expressions may come with a folder from another user, so they must not be able to hang an analysis. polars'
# engine matches them, which takes time linear in the text and never backtracks, and only against the first characters
# of each distinct name. They are short, few, and without counted repetitions, so that the automaton stays small.

_COUNTED: Final = re.compile(r"(?<!\\)\{\d")


class CommRule(Struct, frozen=True):
    """Kernels whose names match the regular expression communicate, by this operation of `names.OPERATIONS`."""

    pattern: str
    op: str


class RuleError(ValueError):
    """Why a rule cannot be used; the message is for the user."""


def parse_rule(text: str) -> CommRule:
    """The rule in ``REGEX=operation``. RuleError if it is not one."""
    pattern, equals, op = text.rpartition("=")
    if not equals or not pattern:
        raise RuleError(f"{text!r}: expected REGEX=operation, for example 'my_all_gather.*=all_gather'")
    return rule(pattern, op)


def rule(pattern: str, op: str) -> CommRule:
    """The rule of an expression and an operation, ``all_reduce`` or ``all-reduce``. RuleError if either is invalid."""
    operation = op.strip().lower().replace("-", "_")
    if operation not in OPERATIONS:
        raise RuleError(f"{op!r} is not an operation; the operations are {', '.join(OPERATIONS)}")
    if len(pattern) > TRACE_LIMITS.most_comm_rule_chars:
        raise RuleError(
            f"the regular expression has {len(pattern)} characters; the maximum is {TRACE_LIMITS.most_comm_rule_chars}"
        )
    if _COUNTED.search(pattern):
        raise RuleError(f"{pattern!r} has a counted repetition {{n}}: use * or +")
    try:
        matches_empty = pl.Series([""]).str.contains(pattern).item()
    except pl.exceptions.PolarsError as error:
        raise RuleError(
            f"{pattern!r} is not a valid regular expression (Rust regex syntax): {_reason(error)}"
        ) from error
    if matches_empty:
        raise RuleError(f"{pattern!r} matches every name")
    return CommRule(pattern, operation)


def operations(names: pl.Series, rules: Sequence[CommRule]) -> dict[str, str]:
    """The operation of each name that a rule matches; the first such rule counts."""
    if not rules:
        return {}
    heads = names.str.head(TRACE_LIMITS.matched_name_chars)
    op_of_name: dict[str, str] = {}
    for comm_rule in rules:
        for name in names.filter(heads.str.contains(comm_rule.pattern)):
            op_of_name.setdefault(name, comm_rule.op)
    return op_of_name


def _reason(error: Exception) -> str:
    """The last line of the engine's message, which has the reason; the lines before it show the place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error:")), lines[0] if lines else ""
    )


# Categories that libkineto and PyTorch write (ActivityType.cpp, August 2026), spelled as by `kineto_names.category`,
# without those that other tools' traces have as well.
_OURS = re.compile(
    r"^(?:cpu_op|user_annotation|gpu_user_annotation|cpu_instant_event|python_function|kernel|gpu_memcpy|gpu_memset"
    r"|concurrent_kernel|cuda_(?:runtime|driver|sync|event|profiler_range)|external_correlation|overhead"
    rf"|collective_comm|xpu_\w+|{OTHER_ACCELERATOR_PATTERN})$"
)


def is_known(category: str) -> bool:
    return _OURS.match(category) is not None


FAR_NS = (1 << 62) - 1  # the year 2116: a later time is damage, and a start plus a duration must fit int64


def whole(value: object) -> int | None:
    """An integer that fits int64, from a number or its text."""
    if isinstance(value, str) and len(value) < 20 and value.strip().removeprefix("-").isdecimal():
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= FAR_NS else None


def parse_ranks(value: object) -> tuple[int, ...]:
    """Global ranks from a list, ``"[0, 1]"`` or ``"0,1"``; () if the list was shortened ("[0, ..., 127]")."""
    if isinstance(value, str):
        return _parse_ranks(value)
    if not isinstance(value, list | tuple):
        return ()
    ranks = [index_of(item) for item in value]
    return tuple(rank for rank in ranks if rank is not None) if None not in ranks else ()


@lru_cache(maxsize=1024)
def _parse_ranks(text: str) -> tuple[int, ...]:
    return () if "..." in text else parse_ranks([part for part in text.strip("[]() ").split(",") if part.strip()])


def index_of(value: object) -> int | None:
    """A rank, a size: a non-negative integer."""
    number = whole(value)
    return number if number is not None and number >= 0 else None
