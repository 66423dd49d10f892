"""Device memory that is used up and calls of devices that failed, in the words of many programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

USED_UP = (
    "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory",
    "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory",
    "Out of memory allocating 8589934592 bytes of device memory",
    "call to cuMemAlloc returned error 2: Out of memory",
    "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/pool.hpp:70: cudaErrorMemoryAllocation",
    "E tensorflow/stream_executor/cuda/cuda_driver.cc:802] failed to allocate 5.63G (6047858688 bytes) from device: "
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "mxnet.base.MXNetError: [09:11:06] src/storage/./pool.h:157: cudaMalloc retry failed: out of memory",
    "F0101 10:00:00.123456 12345 syncedmem.cpp:71] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
    "memory space hbm. Used 17.51G of 15.48G hbm. Exceeded hbm capacity by 2.03G.",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 12.11G at the bottom of memory. "
    "That was not possible. There are 6.93G free, 0B reserved, and 6.93G reservable.",
    "RuntimeError: Device(id:3) memory isn't enough and alloc failed, kernel name: MatMul-op0, alloc size: 42B.",
    "hipErrorOutOfMemory: out of memory",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "GPUassert: out of memory solver.cu 211",
    'CUDA error at solver.cu:31 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"',
    "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "CUDA error !!!!! <out of memory> !!!!!",
    "CUDA error 2 at pool.cu:77",
    "ERROR: LoadError: Out of GPU memory trying to allocate 9.313 GiB",
    "Out of GPU memory",
    "ERROR: Out of GPU memory trying to allocate 72 bytes on device NVIDIA A40",
    "RuntimeError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 4096 bytes) at: /rmm/mr/cuda.hpp",
    "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/rmm/mr/pool.hpp:276: Maximum pool size exceeded",
    "RMM failure at: /rmm/mr/pool.hpp:276: Not enough room to grow, current/max/try size = 1.0 GiB, 2.0 GiB, 3.0 GiB",
    "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 3.00GiB (3221225472B) on device ordinal 0",
    "pyopencl._cl.MemoryError: create_buffer failed: MEM_OBJECT_ALLOCATION_FAILURE",
    "clCreateBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)",
)
FAILED = (
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: "
    "[4,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    "C:\\cb\\work\\aten\\src\\ATen\\native\\cuda\\IndexKernel.cu:94: block: [0,0,0], thread: [64,0,0] Assertion "
    '`-sizes[i] <= index && "index out of bounds"` failed.',
    "Indexing.cpp:42: operator(): global id: [64,0,0], local id: [64,0,0] Assertion `index < size` failed.",
    "Error: /paddle/phi/kernels/gpu/embedding_kernel.cu:53 Assertion `id >= 0` failed. expected >= 0, but got -1.",
    "numba.cuda.cudadrv.driver.CudaAPIError: [719] Call to cuCtxSynchronize results in CUDA_ERROR_LAUNCH_FAILED",
    "call to cuStreamSynchronize returned error 700: Illegal address during kernel execution",
    "RuntimeError: Triton Error [HIP]:  Code: 1, Messsage: invalid argument",
    "RuntimeError: XPU error: Native API returns: -1 (PI_ERROR_DEVICE_NOT_FOUND)",
    "Failed to initialize NVML: Driver/library version mismatch",
    "cuda error 719",
    "HIP error code: 98",
    "CUDA error = 716 at solver.cu:88 'sync()'",
    "[FATAL] CUDA runtime error (710)",
    'CUDA error at fft.cu:210 code=700(cudaErrorIllegalAddress) "cudaDeviceSynchronize()"',
    'CUDA error at fft.cu:210 code=999(<unknown>) "cudaGetLastError()"',
    'Traceback (most recent call last):\n  File "fit.py", line 8, in <module>\n    plan.run()\n'
    "RuntimeError: /io/build/plan.cc(20)\ncuda error 700\n",
    "> **terminate called after throwing an instance of 'c10::AcceleratorError'**\n"
    ">   **what():  CUDA error: an illegal instruction was encountered**",
    "terminate called after throwing an instance of 'thrust::THRUST_200302_700_750_NS::system::system_error'\n"
    "  what():  reduce failed on 2nd step",
    "terminate called after throwing an instance of 'rmm::cuda_error'",
)
# An allocator that tries a smaller size, advice, and other memory than the device's
OTHER = (
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.3GiB. The caller indicates that this is not a failure"
    ", but this may mean that there could be performance gains if more memory were available.",
    "INFO: If you run into CUDA out of memory errors, lower the batch size.",
    "INFO: gradient checkpointing helps to avoid GPU out of memory errors",
    "WARNING: skipping batch due to CUDA out of memory",
    "INFO expandable_segments:True is set to avoid CUDA out of memory",
    "The kernel may be slow when the GPU is out of memory",
    "gpu04: the cupboard is out of memory sticks",
    "@warn: Out of GPU memory may follow from a grid of this size",
    "RMM failure at: /rmm/mr/pool.hpp:40: Error, Initial pool size required to be a multiple of 256 bytes",
)


BROKEN = (
    "CUDA error 214",
    "cuda runtime error (220) in step 8",
    'CUDA error at fft.cu:210 code=714(cudaErrorHardwareStackError) "cudaDeviceSynchronize()"',
    "[ 77.1] NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) "
    "returned from rmapiControl @ mem.c:120",
    "[ 77.1] NVRM: GPU3 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
    "[ 77.1] NVRM: GPU1 kfspProcess: boot failed, status: 0x7f",
    "[ 77.1] NVRM: GPU1 memmgrInit: status 0x00000072, no memory",
)
NO_FAILURES = (  # a wait that is not over, a peer that is known, a number of other things
    "CUDA error 600",
    "cuda error 704",
    "0 times CUDA error, 12 steps",
    "warning: CUDA error 1 is not fatal",
    "CUDA error 12 times in a row is too many for this test",
    "[ 77.1] NVRM: GPU1 rpcRmApiFree_GSP: GspRmFree failed: paramsStatus=0x0000000f; status=0x00000000",
    "[ 77.1] NVRM: GPU1 kbifCache: status 0x00000056",
    "[ 77.1] NVRM: GPU1 nvCheck: Check failed: (status == NV_OK) || (status == NV_ERR_GPU_IS_LOST) @ rs.c:12",
    'CUDA error at nccl_wrap.cc:43  code=2( ncclSystemError ) "ncclCommInitRank(a, b, c, d)"',
)


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


@pytest.mark.parametrize("line", USED_UP)
def test_memory_of_a_device_is_used_up(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, f"{line}\n").fault_class == "cuda_oom"


@pytest.mark.parametrize("line", FAILED)
def test_a_call_of_a_device_failed(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, f"{line}\n").fault_class == "cuda_failure"


@pytest.mark.parametrize("line", OTHER)
def test_other_words_about_memory_accuse_nobody(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"step 1 loss 3.2\n{line}\nstep 2 loss 3.1\nstep 3 loss 3.0\n")
    assert answer.fault_class in ("healthy", "undetermined")


@pytest.mark.parametrize("line", BROKEN)
def test_a_device_is_broken_by_the_number_or_the_status_that_is_printed(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"{line}\n")
    assert answer.fault_class == "gpu_hardware"
    gpu = re.search(r"NVRM: GPU(\d)", line)
    assert [culprit.gpu for culprit in answer.culprits if culprit.gpu is not None] == ([int(gpu[1])] if gpu else [])


@pytest.mark.parametrize("line", NO_FAILURES)
def test_numbers_that_tell_of_no_broken_device(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"{line}\n")
    by_words_alone = answer.fault_class == "cuda_failure" and answer.confidence < 0.6
    assert answer.fault_class in ("healthy", "undetermined") or by_words_alone


def test_what_did_not_fit_is_told(tmp_path: Path) -> None:
    answer = of(tmp_path, "ERROR: LoadError: Out of GPU memory trying to allocate 9.313 GiB\n")
    assert "10.0 GB" in answer.headline, "in the unit of all pages"
    answer = of(
        tmp_path, "RESOURCE_EXHAUSTED: Failed to allocate request for 3.00GiB (3221225472B) on device ordinal 2\n"
    )
    assert "3.22 GB" in answer.headline
    assert [culprit.gpu for culprit in answer.culprits] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 41) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
    ],
)
def test_what_torch_puts_a_bus_error_of_a_worker_down_to(tmp_path: Path, line: str) -> None:
    answer = of(tmp_path, f"{line}\n")
    assert answer.fault_class == "shm_exhausted"
    assert answer.confidence < 0.9
    bare = of(tmp_path, line.partition(". ")[0] + ".\n")
    assert bare.fault_class == "rank_killed_sigbus", "the words about shared memory decide"


ABORT = "Abort(1) on node {0} (rank {0} in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process {0}\n"


def test_a_cause_of_nobody_is_of_those_who_ended_after_it(tmp_path: Path) -> None:
    answer = of(tmp_path, "CUDA error !!!!! <out of memory> !!!!!\n" + ABORT.format(2) + ABORT.format(5))
    assert answer.fault_class == "cuda_oom"
    assert [culprit.rank for culprit in answer.culprits] == [2, 5]


def test_an_end_before_the_cause_is_not_its_end(tmp_path: Path) -> None:
    answer = of(tmp_path, ABORT.format(2) + "CUDA error !!!!! <out of memory> !!!!!\n")
    assert not [culprit.rank for culprit in answer.culprits if culprit.rank is not None]


WARNS = "lab7:{}:2649 [{}] include/alloc.h:65 NCCL WARN Cuda failure 2 'out of memory'\n"
RAISES = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "/srv/go.py", line 28, in <module>\n'


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        (WARNS.format(2375, 1) + RAISES.format(1), 1),
        (WARNS.format(2375, 1) + RAISES.format(0), None),  # another rank than the device's number
        (WARNS.format(2375, 1) + RAISES.format(1) + RAISES.format(0), None),  # each rank may see one device of its own
        (WARNS.format(2375, 1) + WARNS.format(2399, 1) + RAISES.format(1), None),
        (WARNS.format(2375, 1) + "lab8:7:7 [0] socket.cc:3 NCCL WARN Call failed\n" + RAISES.format(1), None),
        ("WORLD_SIZE=16\n" + WARNS.format(2375, 1) + RAISES.format(1), None),  # the device has this number on each host
        (WARNS.format(2375, 1), None),
    ],
)
def test_the_rank_of_a_device_where_one_rank_marks_its_traceback(tmp_path: Path, text: str, rank: int | None) -> None:
    answer = of(tmp_path, text)
    assert answer.fault_class == "cuda_oom"
    assert {culprit.rank for culprit in answer.culprits} == {rank}
    assert 1 in {culprit.gpu for culprit in answer.culprits}
