"""What communication is called: kernels, copies and host ranges of every library, and the operation behind a name.

One vendor's prefix is never enough: NCCL renamed ``ncclKernel*`` to ``ncclDevKernel_*`` in 2.19, and DeepEP or mscclpp
never carried either. Each name was read in the source of its library (August and November 2026) unless its comment says
otherwise. A kernel that multiplies matrices and communicates at once is a class of its own, "fused": a trace does not
show how much of its time is communication.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl
from msgspec import Struct

# A kernel's own qualified name: what stands before its template arguments and its parameters.
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
    "multimem_",  # torch's symmetric memory; its one_shot_ and two_shot_ kernels say all_reduce
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
# AMD's profiler leaves some names mangled (_ZN5aiter26cross_device_reduce_...), so that a digit may come before. Words
# as general as ppl-ai/pplx-kernels' dispatchKernel count only where they are the whole name.
KERNEL_PATTERN: Final = (
    rf"(?i){_QUALIFIED}(?:(?:\b|[0-9])(?:{'|'.join(_LIBRARIES)})|{_OPERATIONS})"
    r"|^(?:void )?(?:\(anonymous namespace\)::)?(?:dispatch|combine)Kernel<"
)

# Kernels that compute and communicate at once: a matrix product, by whichever name, and an operation or its initials.
_GEMM: Final = "(?:gemm|matmul)"
_WITH: Final = "(?:all_?(?:reduce|gather|scatter|(?:to|2)_?all)|reduce_?scatter|a2a|(?:dispatch|combine)_token)"
_INITIALS: Final = "(?:ag|rs|ar|a2a)"
_BETWEEN: Final = "[0-9a-z_]{0,60}?"  # bounded: a hostile name must not take long in an engine that goes back
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
# CUTLASS and ThunderKittens launch all through one kernel, whose template arguments say what it is: flux'
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
# A matrix product that is named after the collective it waits for computes (and is fused). DeepEP: counting tokens per
# expert before a dispatch, adding up or copying what arrived, and the masks of dead ranks touch this device's memory
# only; so do mori's conversions, the sums over what arrived of mori and Triton-distributed, and what is done within a
# block of threads.
NOT_KERNEL_PATTERN: Final = (
    rf"(?i){_NEITHER}|gemm|matmul|{_QUALIFIED}(?:{'|'.join(_FUSED)})"
    r"|deep_ep::(?:\w+::)*(?:layout::|get_dispatch_layout|\w+_epilogue|\w+_mask_buffer)"
    rf"|{_QUALIFIED}(?:(?:warp|block|cluster|wave|cta|thread|local)_?all_?(?:reduce|gather)|local_?reduce"
    r"|kernel_ring_reduce|Convert(?:Dispatch|Combine))"
)
# Between devices: copy-engine collectives, DataParallel, symmetric memory (science.md 2.1, CUPTI's "PtoP" in Kineto).
PEER_COPY_PATTERN: Final = r"(?i)PtoP|PeerToPeer|^Memcpy!"
# Within one device as far as the profiler knows; ordinary work (see diag.account.gpu), unless a collective made it
# (diag.account.trace_collectives.engine_copies). D2D: Intel.
LOCAL_COPY_PATTERN: Final = r"(?i)DtoD|DeviceToDevice|\bD2D\b"
TO_DEVICE_PATTERN: Final = r"(?i)HtoD|HostToDevice|\bH2D\b"  # D2H the other way: Intel

# Titles that torch's process groups give their work: ProcessGroup{NCCL,XCCL,UCC,MPI,Gloo}.cpp. On the host, gloo and
# MPI (and UCC on CPUs) last as long as the operation; the others only as long as handing it to the device.
WIRE_PATTERN: Final = r"^(?:gloo|mpi|ucc):"
# What encloses the launch of a collective. The low-contention operators of torch's symmetric memory copy from peers.
SYMM_MEM_COPIES: Final = "symm_mem::_low_contention"
# torch's backends on a device; nccl2 and nccl-lazy of 2026, ncclx of torchcomms.
_ON_DEVICE: Final = "nccl2?|nccl-lazy|ncclx|xccl"
CALL_PATTERN: Final = rf"^(?:record_param_comms$|(?:{_ON_DEVICE}|ucc):|{SYMM_MEM_COPIES})"
PARAM_COMMS: Final = "record_param_comms"
# Operators on the host that only hand a collective over or wait for it (science.md 2.3).
CALL_OP_PATTERN: Final = (
    rf"^(?:c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms|(?:gloo|mpi|ucc|{_ON_DEVICE}):)"
)

# By the collective's name only: NCCL runs an all-to-all with its SendRecv kernel, too.
P2P_PATTERN: Final = r"(?i)^(?:send|recv|batch_isend_irecv)"
P2P_RANGE_PATTERN: Final = rf"^(?:{_ON_DEVICE}|gloo|mpi|ucc):(?:send|recv)"
# Sends and receives in one NCCL group, as dist.batch_isend_irecv makes: a SendRecv kernel launched in such a range.
COALESCED_PATTERN: Final = rf"^(?:{_ON_DEVICE}):coalesced$"
COALESCED_CALL_PATTERN: Final = rf"(?i)^(?:{_ON_DEVICE}):\w*coalesced$"  # of any operation
SEND_RECV_KERNEL_PATTERN: Final = r"(?i)^nccl\w*SendRecv"
_PEERS: Final = re.compile(r"^[\w-]+:(?:send|recv) (\d+)(->|<-)(\d+)$")

UNKNOWN_OP: Final = "unknown"
# Between two ranks; a wait is for one peer's signal.
P2P_OPS: Final = frozenset({"send", "recv", "send_recv", "wait"})
# Compiled when first asked for (re keeps them): most commands read what has been read before.
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
    # The notify kernels of DeepEP and what follows it exchange the counts of the dispatch that comes next.
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
    """The kernel's name up to its parameters, whose types can name other things than the kernel does."""
    return kernel.replace("(anonymous namespace)::", "").partition("(")[0]


def peers(title: str | None) -> tuple[int, int] | None:
    """(sender, receiver) as ranks of the group, from ``nccl:send 0->1`` or ``nccl:recv 1<-0``; else None."""
    found = _PEERS.match(title or "")
    if not found:
        return None
    left, right = int(found.group(1)), int(found.group(3))
    return (left, right) if found.group(2) == "->" else (right, left)


# -- comm rules --------------------------------------------------------------------------------------------------------
#
# The user's own names of communication kernels: ``REGEX=operation``, for kernels that `comm_names` does not know.
#
# The expressions may come with a folder that somebody else made, so they must not be able to hang an analysis: they are
# matched by polars' engine, which takes time linear in the text and never goes back, and only against the first
# characters of each distinct name; they are short, few, and do not count repetitions, so that the automaton stays
# small.

MOST_RULES: Final = 50
MOST_CHARS: Final = 200  # of an expression
NAME_CHARS: Final = 1000  # of a kernel's name are looked at
_COUNTED: Final = re.compile(r"(?<!\\)\{\d")


class CommRule(Struct, frozen=True):
    """Kernels whose names match the regular expression communicate, by this operation of `comm_names.OPERATIONS`."""

    pattern: str
    op: str


class RuleError(ValueError):
    """Why a rule cannot be used, in words for the user."""


def parse_rule(text: str) -> CommRule:
    """The rule in ``REGEX=operation``. RuleError where it is none."""
    pattern, equals, op = text.rpartition("=")
    if not equals or not pattern:
        raise RuleError(f"{text!r}: give REGEX=operation, for example 'my_all_gather.*=all_gather'")
    return rule(pattern, op)


def rule(pattern: str, op: str) -> CommRule:
    """The rule of an expression and an operation, ``all_reduce`` or ``all-reduce``. RuleError where either is none."""
    known = op.strip().lower().replace("-", "_")
    if known not in OPERATIONS:
        raise RuleError(f"{op!r} is no operation; there are {', '.join(OPERATIONS)}")
    if len(pattern) > MOST_CHARS:
        raise RuleError(f"the regular expression has {len(pattern)} characters; {MOST_CHARS} is the most")
    if _COUNTED.search(pattern):
        raise RuleError(f"{pattern!r} counts repetitions, {{n}}: use * or +")
    try:
        matches_empty = pl.Series([""]).str.contains(pattern).item()
    except pl.exceptions.PolarsError as error:
        raise RuleError(f"{pattern!r} is no regular expression of Rust's regex: {_reason(error)}") from error
    if matches_empty:
        raise RuleError(f"{pattern!r} matches every name")
    return CommRule(pattern, known)


def operations(names: pl.Series, rules: Sequence[CommRule]) -> dict[str, str]:
    """The operation of each of these names that a rule matches; the first rule that does."""
    if not rules:
        return {}
    heads = names.str.head(NAME_CHARS)
    found: dict[str, str] = {}
    for each in rules:
        for name in names.filter(heads.str.contains(each.pattern)):
            found.setdefault(name, each.op)
    return found


def _reason(error: Exception) -> str:
    """The last line of the engine's message, which says what is wrong; those before it draw where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error:")), lines[0] if lines else ""
    )
