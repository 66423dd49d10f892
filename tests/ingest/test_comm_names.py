"""Names of communication: what is, what only looks like it, and which operation a name stands for."""

from __future__ import annotations

import polars as pl
import pytest

from diag.ingest import comm_names
from diag.ingest import kineto_names as names


def is_communication(kernel: str) -> bool:
    """As diag.attribution.gpu asks, by the same engine of regular expressions."""
    one = pl.Series([kernel])
    return bool((one.str.contains(comm_names.KERNEL_PATTERN) & ~one.str.contains(comm_names.NOT_KERNEL_PATTERN)).item())


KERNELS = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_Broadcast_RING_LL(x)": "broadcast",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "unknown",
    "ncclDevKernelDebug_Generic(ncclDevComm*, channelMasks, ncclWork*)": "unknown",
    "ncclDevFunc_AllGather_RING_LL()": "all_gather",
    "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)": "all_gather",
    "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)": "all_reduce",
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_f32(ncclSymkDevWorkArgs4K)": "reduce_scatter",
    "rcclGenericKernel(x)": "unknown",
    "mscclKernel_Sum_half_Simple_0(ncclDevComm*, mscclAlgo*, mscclWork*)": "unknown",
    "void mscclpp::collective::allreduceRsAgZeroCopy<(mscclpp::ReduceOp)0, float>(x)": "all_reduce",
    "mscclpp::collective::allgatherFullmesh2(void*, unsigned long)": "all_gather",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "all_to_all",
    "void deep_ep::legacy::internode_ll::combine<true, 7168>(void*)": "all_to_all",
    "void deep_ep::internode::cached_notify<false>(int)": "all_to_all",
    "void deep_ep::elastic::dispatch_impl<true, 8>(void*)": "all_to_all",
    "deep_ep::legacy::intranode::barrier<8>(int**, int)": "barrier",
    "c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)": "all_to_all",
    "void c10d::nvshmem_extension::exchangeSplitAndOffset_2d<true>(long*)": "all_to_all",
    "nvshmemi_barrier_all_kernel(int)": "barrier",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)": "all_reduce",
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)": "all_gather",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)": "barrier",
    "c10d::symmetric_memory::(anonymous namespace)::put_signal_kernel(unsigned int**)": "unknown",
    "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)": "all_reduce",
    "void aiter::cross_device_reduce_1stage_naive<__half, 8>(x)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>(y)": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<float, 8>(x)": "all_reduce",
    "void tensorrt_llm::kernels::moeA2ADispatchKernel<x>(y)": "all_to_all",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>(x)": "all_reduce",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, float>(x)": "reduce_scatter",
    "void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(x)": "all_gather",
    "void userbuffers_fp16_sum_inplace_gpu_rw<8>(x)": "all_reduce",
    "kuserbuffers_pushsend(int*, int*)": "send",
    "kuserbuffers_pullrecv(int, int)": "recv",
    "oneccl_allreduce_kernel": "all_reduce",
}


@pytest.mark.parametrize(("kernel", "op"), KERNELS.items())
def test_kernels_of_every_library(kernel: str, op: str) -> None:
    assert is_communication(kernel)
    assert comm_names.collective_op(comm_names.without_parameters(kernel)) == op


@pytest.mark.parametrize(
    "kernel",
    [
        "triton_poi_fused_all_gather_nccl_0", "triton_red_fused_all_reduce_add_3", "triton_mm",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4>(int)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(x)",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "void at_cuda_detail::cub::DeviceReduceKernel<x>(y)", "void cub::DeviceScanKernel<nccl::x>(y)",
        "indexSelectSmallIndex", "small_gather_kernel(float*)", "embedding_gather_kernel", "nvjet_tst_128x128",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long*)",
        "void deep_ep::legacy::layout::get_dispatch_layout<256, 32, 8>(long*)",
        "void deep_ep::elastic::combine_reduce_epilogue_impl<8>(x)",
        "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(x)",
        "void deep_ep::legacy::internode_ll::clean_mask_buffer<32>(int*)",
        "void deep_gemm::fp8_gemm_kernel<x>(y)", "allgather_gemm_kernel(x)",
        "void tensorrt_llm::kernels::moeA2APrepareDispatchKernel(x)", "oneRankReduce(void*)",
        "void c10d::checkForNaN<float>(float*, unsigned long)", "permute_pooled_embs_kernel(x)",
    ],
)  # fmt: skip
def test_kernels_that_only_sound_like_communication(kernel: str) -> None:
    assert not is_communication(kernel)


@pytest.mark.parametrize(
    ("title", "op"),
    [
        ("nccl:_all_gather_base", "all_gather"), ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:reduce_scatter_tensor_coalesced", "reduce_scatter"), ("nccl:coalesced", "unknown"),
        ("xccl:all_reduce_barrier", "barrier"), ("_reduce_oop", "reduce"), ("mpi:all_to_all", "all_to_all"),
        ("ucc:allgather_base", "all_gather"), ("recvAnySource", "recv"), ("alltoallv", "all_to_all"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"), ("batch_isend_irecv", "send_recv"),
        ("symm_mem::_low_contention_reduce_scatter", "reduce_scatter"), ("sparse_all_reduce", "all_reduce"),
    ],
)  # fmt: skip
def test_titles_of_torch(title: str, op: str) -> None:
    assert comm_names.collective_op(title) == op


def test_peers_are_sender_and_receiver() -> None:
    assert comm_names.peers("nccl:send 0->3") == comm_names.peers("nccl:recv 3<-0") == (0, 3)
    assert comm_names.peers("nccl:send") is comm_names.peers("gloo:recvAnySource") is comm_names.peers(None) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (
            names.SYNC_PATTERN,
            ["hipStreamSynchronize", "hipEventSynchronize", "cudaDeviceSynchronize", "cuCtxSynchronize",
             "urQueueFinish", "zeEventHostSynchronize"],
            ["cudaStreamWaitEvent", "hipEventRecord", "urEnqueueKernelLaunch", "urEventWaitInfo"],
        ),
        (
            names.ALLOCATOR_PATTERN,
            ["cudaMalloc", "cudaMallocHost", "cudaFreeHost", "hipMalloc", "hipFree", "hipExtMallocWithFlags",
             "hipHostMalloc", "cuMemSetAccess", "cuMemAddressReserve", "cuMemUnmap", "urUSMDeviceAlloc"],
            ["cudaMemcpyAsync", "cudaMemsetAsync", "cuMemcpyHtoDAsync_v2", "cudaFuncGetAttributes", "cuMemGetInfo"],
        ),
        (
            names.LAUNCH_PATTERN,
            ["cudaLaunchKernelExC", "cuLaunchKernelEx", "hipExtModuleLaunchKernel", "cudaGraphLaunch",
             "hipGraphLaunch", "hipMemcpyWithStream", "urEnqueueUSMMemcpy"],
            ["cudaEventQuery", "cudaDeviceSynchronize", "hipStreamIsCapturing", "hipGetDevicePropertiesR0600"],
        ),
    ],
)  # fmt: skip
def test_calls_of_the_runtimes(pattern: str, matching: list[str], other: list[str]) -> None:
    found = pl.Series(matching + other).str.contains(pattern).to_list()
    assert found == [True] * len(matching) + [False] * len(other)
