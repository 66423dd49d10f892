"""What communication is called: kernels, copies and host ranges of every library, and the operation behind a name.

One vendor's prefix is never enough: NCCL renamed ``ncclKernel*`` to ``ncclDevKernel_*`` in 2.19, and DeepEP or mscclpp
never carried either. Each name was read in the source of its library (August 2026) unless its comment says otherwise.
"""

from __future__ import annotations

import re
from typing import Final

# A kernel's own qualified name: what stands before its template arguments and its parameters.
_QUALIFIED: Final = r"(?i)^(?:[^(<]|\(anonymous namespace\))*?"
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
)
# An operation in the name, in any library. Not after an m: "small_gather" gathers from memory.
_OPERATIONS: Final = r"(?:^|[^m(<])all_?(?:reduce|gather|to_?all)|reduce_?scatter"
KERNEL_PATTERN: Final = rf"{_QUALIFIED}(?:\b(?:{'|'.join(_LIBRARIES)})|{_OPERATIONS})"
# Inductor names a fused Triton kernel after the operators around it, so `triton_poi_fused_all_gather_...` computes, as
# does a matrix product that is named after the collective it waits for. DeepEP: counting tokens per expert before a
# dispatch, adding up or copying what arrived, and the masks of dead ranks touch this device's memory only.
NOT_KERNEL_PATTERN: Final = (
    r"(?i)^triton_|^(?:void )?at::native::|gemm|matmul"
    r"|deep_ep::(?:\w+::)*(?:layout::|get_dispatch_layout|\w+_epilogue|\w+_mask_buffer)"
)
# Between devices: copy-engine collectives, DataParallel, symmetric memory (science.md 2.1, CUPTI's "PtoP" in Kineto).
PEER_COPY_PATTERN: Final = r"(?i)PtoP|PeerToPeer|^Memcpy!"
# Within one device as far as the profiler knows; ordinary work (see diag.attribution.gpu), unless a collective made it
# (diag.attribution.trace_callers.engine_copies). D2D: Intel.
LOCAL_COPY_PATTERN: Final = r"(?i)DtoD|DeviceToDevice|\bD2D\b"
TO_DEVICE_PATTERN: Final = r"(?i)HtoD|HostToDevice|\bH2D\b"  # D2H the other way: Intel

# Titles that torch's process groups give their work: ProcessGroup{NCCL,XCCL,UCC,MPI,Gloo}.cpp. On the host, gloo and
# MPI (and UCC on CPUs) last as long as the operation; the others only as long as handing it to the device.
WIRE_PATTERN: Final = r"^(?:gloo|mpi|ucc):"
# What encloses the launch of a collective. The low-contention operators of torch's symmetric memory copy from peers.
SYMM_MEM_COPIES: Final = "symm_mem::_low_contention"
CALL_PATTERN: Final = rf"^(?:record_param_comms$|(?:nccl|xccl|ucc):|{SYMM_MEM_COPIES})"
PARAM_COMMS: Final = "record_param_comms"
# Operators on the host that only hand a collective over or wait for it (science.md 2.3).
CALL_OP_PATTERN: Final = r"^(?:c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms|(?:gloo|nccl|mpi|ucc|xccl):)"

# By the collective's name only: NCCL runs an all-to-all with its SendRecv kernel, too.
P2P_PATTERN: Final = r"(?i)^(?:send|recv|batch_isend_irecv)"
P2P_RANGE_PATTERN: Final = r"^(?:nccl|xccl|gloo|mpi|ucc):(?:send|recv)"
# Sends and receives in one NCCL group, as dist.batch_isend_irecv makes: a SendRecv kernel launched in such a range.
COALESCED_PATTERN: Final = r"^(?:nccl|xccl):coalesced$"
SEND_RECV_KERNEL_PATTERN: Final = r"(?i)^nccl\w*SendRecv"
_PEERS: Final = re.compile(r"^\w+:(?:send|recv) (\d+)(->|<-)(\d+)$")

UNKNOWN_OP: Final = "unknown"
P2P_OPS: Final = frozenset({"send", "recv", "send_recv"})
_OPS: Final = tuple(
    (op, re.compile(pattern, re.I))
    for op, pattern in (
        ("barrier", r"all_?reduce_barrier"),  # how NCCL does a barrier
        ("reduce_scatter", r"reduce_?scatter|userbuffers_\w+_rs(?:_|\b)"),
        ("all_gather", r"all_?gather|userbuffers_\w+_ag\b"),
        ("all_reduce", r"all_?reduce|cross_device_reduce|userbuffers_fp16_sum"),
        # DeepEP's notify kernels exchange the counts of the dispatch that follows.
        ("all_to_all", r"all_?to_?all|a2a|exchangeSplit|deep_ep::.*(?:dispatch|combine|notify)"),
        ("broadcast", r"broadcast"),
        ("barrier", r"barrier|clean_low_latency_buffer"),
        ("send_recv", r"send_?recv|batch_isend_irecv"),
        ("send", r"send"),
        ("recv", r"recv"),
        ("scatter", r"scatter"),
        ("gather", r"gather"),
        ("reduce", r"reduce"),
    )
)


def collective_op(name: str) -> str:
    """One of a dozen operations from any spelling: ``allreduce``, ``c10d::_allgather_base_``, a kernel's name."""
    return next((op for op, pattern in _OPS if pattern.search(name)), UNKNOWN_OP)


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
