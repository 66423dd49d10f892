"""Names of communication: what is, what only looks like it, and which operation a name stands for."""

from __future__ import annotations

import polars as pl
import pytest

from diag.tables.kernel_kinds import KERNELS, kinds_of
from diag.traces import kineto_names as names


def is_communication(kernel: str) -> bool:
    """As diag.account.gpu asks, by the same engine of regular expressions."""
    one = pl.Series([kernel])
    return bool((one.str.contains(names.KERNEL_PATTERN) & ~one.str.contains(names.NOT_KERNEL_PATTERN)).item())


def is_fused(kernel: str) -> bool:
    one = pl.Series([kernel])
    return bool((one.str.contains(names.FUSED_PATTERN) & ~one.str.contains(names.FUSED_NOT_PATTERN)).item())


OPERATIONS = {
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
    # A name as AMD's profiler leaves it.
    "_ZN5aiter26cross_device_reduce_1stageI14__hip_bfloat16Li8EEEvPNS_8RankDataE": "all_reduce",
    "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvP4int4": "all_to_all",
    "void uccl::internode_ll::dispatch<true, 7168>(void*)": "all_to_all",
    "void dpsk::ep::internode::dispatch<false, 8, 7168>(int4*)": "all_to_all",
    "void dpsk::ep::internode::combine<8>(int4*)": "all_to_all",
    "void uccl::intranode::cached_notify_combine<8>(void**)": "all_to_all",
    "void hybrid_ep::dispatch_kernel<x>(y)": "all_to_all",
    "hybrid_ep::device_sync_kernel(unsigned int*)": "barrier",
    "void nccl_ep::internode_ll::combine<x>(y)": "all_to_all",
    "void rose::a2a_dispatch_send_kernel<true>(unsigned long)": "all_to_all",
    "void dispatchKernel<16, true>(int*)": "all_to_all",
    "void (anonymous namespace)::combineKernel<8, float>(float*)": "all_to_all",
    "mori::moe::EpDispatchInterNodeV1Kernel_bf16": "all_to_all",
    "EpCombineLowLatencyAsyncRecvTransfer": "all_to_all",
    "void mori::moe::EpCombineSyncBarrier<float>(x)": "barrier",
    "void mori::collective::OneShotAll2allSdmaKernel<unsigned int>(x)": "all_to_all",
    "void mori::collective::OneShotBroadcastSdmaSubGroupKernel_u32(x)": "broadcast",
    "void fcollect_on_stream_kernel<int>(int)": "all_gather",
    "void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int)": "all_reduce",
    "sync_on_stream_kernel(int)": "barrier",
    "wait_until_on_stream_and_reset(unsigned long*, unsigned long, unsigned long)": "wait",
    "void flashinfer::pcie_ipc::ipc_rsag_push_param_kernel<float>(x)": "all_reduce",
    "combine_publish_fp8_grouped_kernel(x)": "all_to_all",
    "wait_combine_kernel(unsigned int*)": "wait",
    "void aiter::ar_gfx1250_kernel<__hip_bfloat16>(x)": "all_reduce",
    "void aiter::rs_gfx1250_kernel<__hip_bfloat16>(x)": "reduce_scatter",
    "void bytedance::flux::a2a_single_kernel<8>(x)": "all_to_all",
    "bytedance::flux::CudaIpcBarrierAllKernel(int**, int)": "barrier",
    "void bytedance::flux::post_attn_all2all_transpose_kernel<x>(y)": "all_to_all",
    "void bytedance::flux::ep_topk_gather_rs_kernel_v2<x>(y)": "reduce_scatter",
    "void bytedance::flux::dis_scatter_forward_flatten_kernel<4>(x)": "all_to_all",
    "kernel_dispatch_token_intra_node": "all_to_all",
    "kernel_all2all_push_intra_node_nvl": "all_to_all",
    "kernel_pre_attn_qkv_pack_a2a": "all_to_all",
    "_forward_push_2d_ll_multimem_kernel": "all_gather",
    "kernel_inter_node_p2p_for_same_local_rank": "send_recv",
    "kernel_local_copy_and_barrier_all": "barrier",
    "persistent_all_scatter": "all_gather",
    "ubx_kernel_a2a_lamport<x>(y)": "all_to_all",
    "void comms::prims::link_ep::dispatch<8>(x)": "all_to_all",
    "hcom_allGather__321_0_1": "all_gather",
    "hcom_batchSendRecv__321_1_1": "send_recv",
    "hcom_receive__321_2_1": "recv",
}


@pytest.mark.parametrize(("kernel", "op"), OPERATIONS.items())
def test_kernels_of_every_library(kernel: str, op: str) -> None:
    assert is_communication(kernel)
    assert names.collective_op(names.without_parameters(kernel)) == op


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
        # Sums over what another kernel brought, indices and conversions.
        "kernel_ring_reduce_tma", "void bytedance::flux::packed_ring_reduction<x, 256>(y)",
        "void bytedance::flux::dis_scatter_forward_build_index_flatten_kernel(x)",
        "void mori::moe::ReduceScatterLocalReduceKernel<float>(x)", "mori_ConvertDispatchOutputKernel",
        "kernel_build_fused_dispatch_metadata", "kernel_skipped_token_local_dispatch_intra_node",
        # Within a block of threads, or a device.
        "void BlockAllReduceKernel<float, 256>(float*)", "softmax_warp_all_reduce_kernel",
        # dispatch, combine and scatter are words of everybody's.
        "void (anonymous namespace)::groupnorm_kernel_dispatch_down<__hip_bfloat16, 1024u>(x)",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*>::Policy>(x)", "combineKernelResults(x)",
        "_combined_routing_compute", "_finalize_matmul_scatter_bf16",
        "void ck_tile::kentry<2, ck_tile::MoeSortingKernel<x>>(y)",
        "void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<x>>(y)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(x)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)", "triton_poi_fused_all_to_all_single_view_2",
        "void recat_copy_async_kernel<float>(long const*)",
    ],
)  # fmt: skip
def test_kernels_that_only_sound_like_communication(kernel: str) -> None:
    assert not is_communication(kernel)


FUSED = [
    "kernel_fused_ag_gemm", "kernel_fused_gemm_allreduce", "persistent_gemm_all_reduce", "kernel_allgather_gemm",
    "kernel_gemm_rs_producer_persistent", "kernel_all_to_all_gemm_consumer", "persistent_gemm_all_scatter",
    "mega_kernel_dispatch_token_moe_grouped_gemm", "moe_gather_rs_grouped_gemm_kernel",
    "kernel_consumer_gemm_persistent",
    "_fused_all_gather_matmul_kernel", "kernel_persistent_gemm_notify", "MEGA_TRITON_KERNEL",
    "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<7168, 2048>(x)", "allgather_gemm_kernel(x)",
    "void cutlass::device_kernel<bytedance::flux::Sm90AGGemmUniversal<x, y>>(z)",
    "void cutlass::Kernel2<bytedance::flux::GemmV2ReduceScatter_Kernel<x>>(y)",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversalAllReduce<x>>(y)",
    "void kittens::py::global_kernel_unclustered<gemm_ar::config, gemm_ar::globals, &gemm_ar::kernel>(x)",
]  # fmt: skip


@pytest.mark.parametrize("kernel", FUSED)
def test_a_matrix_product_with_a_collective_in_it_is_fused(kernel: str) -> None:
    """It is no communication, whose time would be taken for waiting and transfer."""
    assert kinds_of([kernel], KERNELS) == {kernel: "fused"}
    assert is_fused(kernel)
    assert not is_communication(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "triton_tem_fused_all_gather_mm_0", "triton_red_fused_reduce_scatter_matmul_3", "_finalize_matmul_scatter_bf16",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(x)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<x, cutlass::epilogue::collective::Y>>(z)",
        "linear_gemm_kernel", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_AG0", "nvjet_tst_128x128",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        "void ck::kernel_moe_gemm<ck::GridwiseMoeGemm<x>>(y)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "void (anonymous namespace)::fused_rope_store_kernel<true>(x)",
        "flash_fwd_splitkv_combine_kernel", "void deep_gemm::fp8_gemm_kernel<x>(y)",
    ],
)  # fmt: skip
def test_kernels_that_only_compute_or_only_communicate_are_not_fused(kernel: str) -> None:
    assert not is_fused(kernel)
    assert kinds_of([kernel], KERNELS)[kernel] != "fused"


@pytest.mark.parametrize("prefix", ["nccl", "nccl2", "nccl-lazy", "ncclx", "xccl"])
def test_host_ranges_of_every_backend(prefix: str) -> None:
    range_names = pl.Series([f"{prefix}:all_reduce", f"{prefix}:send 0->1", f"{prefix}:coalesced"])
    assert range_names.str.contains(names.CALL_PATTERN).all()
    assert range_names.str.contains(names.CALL_OP_PATTERN).all()
    assert range_names.str.contains(names.ARGUMENT_PATTERN).all()
    assert range_names.str.contains(names.P2P_RANGE_PATTERN).to_list() == [False, True, False]
    assert range_names.str.contains(names.COALESCED_PATTERN).to_list() == [False, False, True]
    assert names.peers(f"{prefix}:send 0->1") == (0, 1)


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
    assert names.collective_op(title) == op


def test_peers_are_sender_and_receiver() -> None:
    assert names.peers("nccl:send 0->3") == names.peers("nccl:recv 3<-0") == (0, 3)
    assert names.peers("nccl:send") is names.peers("gloo:recvAnySource") is names.peers(None) is None


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
