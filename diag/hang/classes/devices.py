"""Devices and memory: GPUs and adapters that fail, InfiniBand paths, CUDA calls, topologies, memory that is used up."""

from __future__ import annotations

from dataclasses import replace

from diag.ended.out_of_memory import CALL_FAILED, MESSAGES, RUNTIME_CALLS, RUNTIME_ERRORS
from diag.hang.classes import programs
from diag.hang.classes.base import (
    NAMES_AN_EFFECT,
    SUGGESTS,
    UCX,
    FaultClass,
    LogPattern,
    cascade,
    confirms,
    cut_off,
    of,
)

_HARDWARE = ("ECC error", "fallen off", "hardware stack error", "NVLink error", "nvlink error")

# What CUDA's own function says about an error: texts that mean nothing else
_ERROR_TEXTS = (
    "peer access is not supported between these two devices",
    "an illegal memory access was encountered",
    "device-side assert triggered",
    "unspecified launch failure",
    "no kernel image is available for execution on the device",
    "an illegal instruction was encountered",
    "the launch timed out and was terminated",
    "the provided PTX was compiled with an unsupported toolchain",
    "OS call failed or operation not supported on this OS",
    "mapping of buffer object failed",
    "invalid device context",
    "device kernel image is invalid",
    "too many resources requested for launch",
    "operation not supported on global/shared address space",
    "a PTX JIT compilation failed",
)


# NVIDIA's driver: statuses that say that the GPU, its memory or one of its own processors failed, by their names
_DRIVER_STATUS = {
    "GPU_IS_LOST": "f",
    "ECC_ERROR": "b",
    "MEMORY_TRAINING_FAILED": "47",
    "RESET_REQUIRED": "62",
    "FLCN_ERROR": "70",
    "FATAL_ERROR": "71",
    "MEMORY_ERROR": "72",
    "RISCV_ERROR": "79",
    "SECURE_BOOT_FAILED": "7f",
    "GPU_MEMORY_ONLINING_FAILURE": "83",
}

# How lines begin that print the number of an error of CUDA or HIP
_NUMBERED_ERRORS = (
    *("UDA error", "UDA Error", "UDA ERROR", "uda error", "uda Error", "UDA runtime error", "uda runtime error"),
    *("HIP error", "HIP Error", "hip error"),
)
_NO_FAILURES = "0|4|600|70[458]|71[23]"  # the program ends, an answer is not ready, peers or memory are known already
_OF_THE_HARDWARE = "214|220|714"  # cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorHardwareStackError


def _numbered(codes: str) -> str:
    """The regex of an error of CUDA or HIP that a program prints by its number alone, in cudaError_t."""
    return (
        r"(?i:\b(?:cuda|hip)[ _-]?(?:runtime |driver |api )?error)(?i:[ _]?code)?(?: ?[=:#(\[] ?| )"
        rf"(?P<number>{codes})\b(?![.%/,]\d| (?:errors?|times)\b)|(?i:\bcuda error) at [^\n]{{1,200}}? "
        # Jittor prints the codes of NCCL alike.
        rf"code=(?P<coded>{codes})\b(?!\s{{0,3}}\((?!\s{{0,3}}(?:cuda|CUDA|hip|<)))"
    )


# Calls of the CUDA and HIP runtimes, by the beginnings of their names


def _out_of_memory(name: str, printed_by: str, says: str) -> LogPattern:
    """The pattern of a message that the analysis of a run knows too."""
    message = MESSAGES[name]
    return LogPattern(message.anchors, message.regex, printed_by, says, unless=message.unless)


_DEVICES = (
    FaultClass(
        id="gpu_hardware",
        title="a GPU failed",
        priority=1,
        by_line=True,
        next_steps=(
            "Drain {where} and rerun the job on other hosts.",
            "On {host}: `nvidia-smi -q` (ECC errors, retired pages, remapped rows), `dmesg -T | grep -i xid`, "
            "`nvidia-smi nvlink -s`; then `dcgmi diag -r 3`.",
        ),
        patterns={
            "xid": LogPattern(
                ("NVRM: Xid",),
                # NVIDIA's catalogue: 13, 31 and 43 are of the program, 45 is what another one leaves behind
                r"NVRM: Xid \((?:PCI:)?(?:(?P<bus_id>[0-9a-fA-F]{2,}[0-9a-fA-F:.]*)|[^)]*)\): (?!(?:13|31|43)\b)"
                r"(?!45\b(?!.*caused by previous Xid))(?P<xid>\d+)(?:.*caused by previous Xid (?P<cause>\d+))?"
                r"(?:.*\bon GPU(?P<gpu>\d+)\b)?",
                "any driver; kernel log of the NVIDIA driver",
                "The kernel reports Xid {xid}[, caused by Xid {cause},][ of the GPU at {bus_id}].",
            ),
            "dcgm-diag-failed": LogPattern(
                ("Fail - GPU",),
                r"\| Fail - GPUs?: (?P<gpu>\d{1,3})(?:, (?P<other_gpu>\d{1,3}))?\b",
                "DCGM 2+; dcgmi diag, dcgmi/Diag.cpp",
                "The diagnosis of DCGM fails on GPU {gpu}.",
                support=NAMES_AN_EFFECT,
            ),
            "fallen-off-the-bus": LogPattern(
                ("fallen off the bus", "GPU is lost", "GPU has fallen off"),
                r"(?:GPU(?: at)? ?(?P<bus_id>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]*[0-9a-fA-F]):? .*?)?(?:fallen off the "
                r"bus|GPU is lost)",
                "any driver; newer ones without an Xid; kernel log of the NVIDIA driver; nvidia-smi, NVML",
                "The GPU[ at {bus_id}] no longer answers on the PCI bus.",
            ),
            "uncorrectable-ecc": LogPattern(
                (
                    "uncorrectable ECC error",
                    "Uncorrectable ECC error",
                    "CUDA_ERROR_ECC_UNCORRECTABLE",
                    "cudaErrorECCUncorrectable",
                ),
                r"(?:(?:\[Rank (?P<pg_rank>\d+)\]|\b(?:device ordinal|CUDA device|[Dd]evice|GPU|CUDA:) ?#?"
                r"(?P<gpu>\d{1,3})\b(?!:[0-9a-fA-F]{2})).*?)?"
                r"(?:[Uu]ncorrectable ECC error(?!s?\s*(?:count\s*)?:\s*0\b)|CUDA_ERROR_ECC_UNCORRECTABLE|"
                r"cudaErrorECCUncorrectable)",
                "any; CUDA error text, NVML; with the device's number: XLA, TensorFlow, stream_executor",
                "The GPU's memory returned an uncorrectable error.",
            ),
            "nvlink-error": LogPattern(
                ("NVLink error", "nvlink error", "hardware stack error"),
                r"(?i:Cuda failure|CUDA error)[^\n]*(?i:NVLink error|uncorrectable NVLink|hardware stack error)",
                "CUDA 11+; driver_types.h, cudaErrorNvlinkUncorrectable and cudaErrorHardwareStackError",
                "CUDA reports an error of the hardware.",
            ),
            "numbered-hardware-error": LogPattern(
                _NUMBERED_ERRORS,
                _numbered(_OF_THE_HARDWARE),
                "any program; CUDA 12.8, driver_types.h (cudaError_t)",
                "CUDA reports an error of the hardware, number [{number}][{coded}].",
                support=NAMES_AN_EFFECT,
            ),
            "driver-status": LogPattern(
                ("NVRM: ",),
                # A number counts where the line says that it is the status, and not that of an inner call's parameters
                r"NVRM: (?:GPU(?P<gpu>\d{1,2}) )?(?!Xid)[^\n]{0,300}?(?:\b[Ss]tatus[ =:]{1,3}0x0*(?i:"
                + "|".join(_DRIVER_STATUS.values())
                + r")\b|\[NV_ERR_(?P<status>"
                + "|".join(_DRIVER_STATUS)
                + r")\]|"
                r"waiting for RPC response from (?:GPU\d+ )?GSP\b|(?:GSP RM|LibOS) heartbeat timed out|"
                r"_kgspIsHeartbeatTimedOut: Heartbeat timed out|\bGSP Timeout\b|rpcRecvPoll failed with status "
                r"0x0*65\b)",
                "NVIDIA's open kernel modules 595.45; src/common/sdk/nvidia/inc/nvstatuscodes.h, "
                "src/nvidia/src/kernel/vgpu/rpc.c, gpu/gsp/kernel_gsp.c",
                "The driver reports that the GPU failed or no longer answers[ ({status})].",
                support=NAMES_AN_EFFECT,
            ),
            "npu-memory-error": LogPattern(
                ("Multi-bit ECC", "multi-bit ECC", "MULTI BIT ECC", "multi bit ecc", "UCE ERROR"),
                r"(?i:\b(?:hbm|ddr|device mem\w*)\b[^\n]{0,20}multi.bit ECC)|(?<![\w.])UCE ERROR\b",
                "CANN 6+, of Ascend; rt_error_codes.h, torch_npu/csrc/core/npu/NPUException.h",
                "The NPU's memory returned an uncorrectable error.",
            ),
            "rocm-exception": LogPattern(
                ("HW Exception by GPU",),
                r"HW Exception by GPU (?P<bus_id>\S+)(?:.*?reason ?: ?(?P<reason>[^\n]*[^\n.]))?",
                "ROCm 5+; ROCr, core/runtime/runtime.cpp",
                "ROCm reports an exception of GPU {bus_id}[: {reason}].",
            ),
            "amdgpu-timeout": LogPattern(
                (
                    "*ERROR* ring ",
                    "*ERROR* amdgpu: ring ",
                    " timeout, signaled seq=",
                    "GPU reset",
                    "VRAM is lost",
                    "uncorrectable hardware errors detected",
                ),
                # The other GPUs of a hive are reset as well, and each of them reports that it succeeded.
                r"(?:amdgpu (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7])|^drmn(?P<gpu>\d+)): (?:amdgpu: )?(?:GPU reset(?: begin|"
                r" failed|\s*$)|(?:\{\d+\} )?(?:socket: \d+,? )?(?:die: \d+,? )?[1-9]\d* (?:new )?"
                r"uncorrectable hardware errors detected|ring (?P<late>\S+) timeout, signaled "
                r"seq=)|amdgpu[^\n]*\*ERROR\* (?:amdgpu: )?ring (?:(?P<ring>\S+) timeout|(?P<tested>\S+) test "
                r"failed)|amdgpu[^\n]*VRAM is (?P<memory>lost)",
                "kernel log of amdgpu, Linux 4.15+, FreeBSD's drm-kmod; drivers/gpu/drm/amd/amdgpu/amdgpu_job.c, "
                "amdgpu_device.c, amdgpu_ring.c, soc15.c, amdgpu_ras.c",
                "The driver reports that the GPU[ at {bus_id}] does not answer[: ring {ring} timed out][: ring {late} "
                "timed out][: ring {tested} failed its test][: its memory was {memory} in a reset].",
            ),
            **programs.GPU_RESET,
            "nvswitch-fatal": LogPattern(
                ("SXid (PCI:",),
                r"SXid \(PCI:(?P<bus_id>[0-9a-fA-F:.]+)\): (?P<xid>\d+), Fatal, (?P<message>[^\n]{1,120})",
                "any driver; kernel log of the NVSwitch driver, src/common/nvswitch/kernel/inc/common_nvswitch.h",
                "The kernel reports SXid {xid} of the NVSwitch at {bus_id}: {message}.",
            ),
            "nvswitch-error": LogPattern(
                ("SXid (PCI:",),
                r"SXid \(PCI:(?P<bus_id>[0-9a-fA-F:.]+)\): (?P<xid>\d+), Non-fatal, (?P<message>[^\n]{1,120})",
                "any driver; kernel log of the NVSwitch driver, src/common/nvswitch/kernel/inc/common_nvswitch.h",
                "The kernel reports SXid {xid} of the NVSwitch at {bus_id}: {message}.",
                support=SUGGESTS,
            ),
            "gaudi-lost": LogPattern(
                ("habanalabs ",),
                r"\bhabanalabs (?:(?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7])|hl\d+): [^\n]{0,80}?(?:Device heartbeat "
                r"failed|PCI link is lost|[Dd]evice is lost)",
                "kernel log of habanalabs, Linux 5.1+; drivers/accel/habanalabs/common/device.c",
                "The driver no longer reaches the accelerator[ at {bus_id}].",
            ),
            "gaudi-unusable": LogPattern(
                ("habanalabs ",),
                r"\bhabanalabs (?:(?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7])|(?:accel )?(?:hl|accel)\d+): (?:Failed to "
                r"initialize (?:hl|accel)\d+\. Device (?:[0-9a-fA-F:.]+ )?is NOT usable|"
                + cut_off("Failed to initialize hl", len("Failed t"))
                + r"|Failed to reset! Device is NOT usable|Failed to communicate with Device CPU|failed to initialize "
                r"the H/W)",
                "kernel log of habanalabs, Linux 5.1+; drivers/accel/habanalabs/common/device.c, firmware_if.c, "
                "gaudi/gaudi.c, gaudi2/gaudi2.c",
                "The driver cannot use the accelerator[ at {bus_id}].",
            ),
            "amdgpu-init-failed": LogPattern(
                ("amdgpu",),
                # -517: the driver tries again later
                r"\bamdgpu(?:: probe of)? (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7]):? (?:amdgpu: )?(?:Fatal error during GPU "
                r"init|GPU posting error|(?:probe with driver amdgpu )?failed with error -(?!517\b)\d+)",
                "kernel log of amdgpu, Linux 4.15+; drivers/gpu/drm/amd/amdgpu/amdgpu_kms.c, amdgpu_device.c; "
                "drivers/base/dd.c",
                "The driver cannot initialise the GPU at {bus_id}.",
            ),
            "intel-gpu-hang": LogPattern(
                ("GPU HANG: ", "Timedout job: ", "Engine memory CAT error", ": Resetting "),
                r"\b(?:i915|xe) (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7]): (?:\[drm\] )?(?:\*ERROR\* )?(?:(?:Tile\d+: "
                r")?GT\d+: )?"
                r"(?P<error>GPU HANG: ecode [\w:]+|Timedout job|Engine memory CAT error|"
                r"Resetting \w+ (?:after gpu hang|for (?:stopped heartbeat|preemption time ?out|\w+ reset)))",
                "kernel logs of i915 and xe, Linux 4+; drivers/gpu/drm/i915/i915_gpu_error.c, i915_irq.c, "
                "gt/intel_reset.c, drivers/gpu/drm/xe/xe_guc_submit.c",
                "The driver reports that the GPU at {bus_id} does not answer: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "driver-init-failed": LogPattern(
                ("RmInitAdapter failed", "rm_init_adapter failed"),
                r"NVRM: GPU (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7]): (?:RmInitAdapter|rm_init_adapter) failed",
                "any driver; kernel log of the NVIDIA driver, kernel-open/nvidia/nv.c",
                "The driver cannot initialise the GPU at {bus_id}.",
            ),
            "no-device-handle": LogPattern(
                ("Unable to determine the device handle",),
                r"Unable to determine the device handle(?: for (?:GPU|gpu) ?(?:(?P<gpu>\d{1,2}): )?"
                r"(?P<bus_id>[0-9a-fA-F:.]*[0-9a-fA-F]))?",
                "any driver, with the GPU's number in newer ones; nvidia-smi",
                "The driver lost the GPU[ at {bus_id}].",
            ),
            "gpu-burn-faulty": LogPattern(
                (": FAULTY",),
                r"^\s*GPU (?P<gpu>\d{1,2}): FAULTY\b",
                "gpu-burn; gpu_burn-drv.cpp",
                "gpu-burn found that GPU {gpu} computes wrong results.",
            ),
            "pcie-uncorrected": LogPattern(
                ("PCIe Bus Error: severity=", "AER: Uncorrect"),
                r"\b(?:nvidia|nvgpu|amdgpu|habanalabs|xe|i915) (?P<bus_id>[0-9a-fA-F:]{7,}\.[0-7]): (?:AER: )?PCIe Bus "
                r"Error: severity=Uncorrect(?:ed|able)\b",
                "any kernel; drivers/pci/pcie/aer.c (Uncorrected, in newer ones Uncorrectable)",
                "The kernel reports an error on the PCIe link of the GPU at {bus_id} that it could not correct.",
                support=NAMES_AN_EFFECT,
            ),
            "p2p-disabled-on-nvlink": LogPattern(
                ("P2P is disabled between NVLINK connected GPUs",),
                r"P2P is disabled between NVLINK connected GPUs (?P<gpu>\d+) and (?P<other_gpu>\d+)",
                "2.12+; graph/paths.cc:360",
                "GPUs {gpu} and {other_gpu} are connected by NVLink and cannot reach each other.",
            ),
        },
    ),
    FaultClass(
        id="cuda_failure",
        title="a CUDA call failed",
        priority=2,
        by_line=True,
        next_steps=(
            "Initialisation (no device, driver too old, no permission): `nvidia-smi` and `python -c 'import torch; "
            "print(torch.cuda.is_available(), torch.version.cuda)'` in the same container on {host}; compare the "
            "driver's version with the one that this build of CUDA needs.",
            "A kernel (illegal memory access, device-side assert, launch failure): rerun {where} with "
            "CUDA_LAUNCH_BLOCKING=1, which shows the call; without a bug in the program look at `dmesg -T | grep -i "
            "xid`.",
        ),
        if_read={
            ("Ipc",): (
                "The ranks of {there} cannot open each other's GPU memory: run them in one container (or with "
                "--ipc=host), and with all GPUs of the job visible to each. NCCL_P2P_DISABLE=1 confirms it.",
                "If it is confirmed: compare driver and runtime, and look for an IOMMU in the way (iommu=pt).",
            ),
            ("peer access is not supported", "PeerAccessUnsupported", "PEER_ACCESS_UNSUPPORTED"): (
                "These GPUs have no direct path: `nvidia-smi topo -p2p r` on {host} shows which pairs have one. Turn "
                "the program's own peer access off, or NCCL's with NCCL_P2P_DISABLE=1.",
                "Where they should have one: an IOMMU or ACS is in the way (iommu=pt), or a virtual machine hides it.",
            ),
            ("system not yet initialized", "ystemNotReady", "SYSTEM_NOT_READY"): (
                "GPUs behind NVSwitch need the fabric manager: `systemctl status nvidia-fabricmanager` on {host}, and "
                "`nvidia-smi -q | grep -A4 Fabric`; its version has to be the driver's.",
                "In a virtual machine or a container the host has to run it, for all GPUs of the fabric.",
            ),
        },
        rules_out={
            "net_connection_lost": "connections close when the process that met the error ends",
            "rank_killed_exception": "the exception is the CUDA error",
        },
        patterns={
            "nccl-cuda-failure": LogPattern(
                ("Cuda failure", "Test CUDA failure"),
                r"(?:(?:^|(?<=\s))(?P<host>[^\s:]{1,255}): Test CUDA failure \S+|Cuda failure) ?(?:(?P<number>\d+) "
                r"?)?'?(?P<error>[^'\n]*)'?",
                "all; with the number from 2.19; include/checks.h",
                "A CUDA call of NCCL failed[ with error {number}]: {error}.",
                unless=("out of memory", "transport/nvls.cc", "Multicast memory", *_HARDWARE),
            ),
            "torch-cuda-error": LogPattern(
                ("CUDA error: ", "HIP error: ", "CUDA driver error: "),
                r"(?:\[Rank (?P<pg_rank>\d+)\].*?)?(?:CUDA|HIP)(?: driver)? error: (?P<error>[^\n\\\"]+)",
                "all; c10/cuda/CUDAException.cpp",
                "CUDA reports: {error}.",
                # The last: a thread that outlives CUDA as a program ends, in order or not
                unless=("out of memory", "_ALLOC_FAILED", *_HARDWARE, "driver shutting down"),
            ),
            "runtime-error-text": LogPattern(
                _ERROR_TEXTS,
                # Each piece is bounded: a line may hold many devices and names, and no text.
                r"(?:\b(?:CUDA device ordinal|device ordinal|CUDA:) ?(?P<gpu>\d{1,3})\b[^\n]{0,160}?)?"
                r"(?:(?:\b(?P<name>cudaError(?!_t)[A-Z]\w+|CUDA_ERROR_[A-Z_]+)\b(?!\()|"
                r"\bC(?:uda|UDA) (?:failure|error)\b|Error\(['\"])[^\n]{0,60}?)?(?P<error>"
                + "|".join(_ERROR_TEXTS)
                + ")",
                "CUDA 10+; the texts of cudaGetErrorString, driver_types.h, as any program prints them",
                "CUDA reports[ {name}]: {error}.",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", "arning", "WARN", *_HARDWARE),
            ),
            "synapse-status": LogPattern(
                ("synStatus", "Device acquire failed", "synDeviceAcquire"),
                r"\bsynStatus(?:=synStatus)?[ =]{1,3}(?P<number>\d+) \[(?P<error>[^\]\n]{1,80})\]|"
                r"(?P<call>synDeviceAcquire)\([^\n]{0,80}failed|Device acquire failed",
                "SynapseAI 1.5+, of Gaudi; habana_frameworks, HCCL's demo",
                "A call of Synapse, the runtime of Gaudi, failed[ with status {number} ({error})][: {call}].",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", "Out of memory"),
            ),
            "neuron-runtime": LogPattern(
                (
                    "ERROR   NRT:",
                    "ERROR  NRT:",
                    "nrt_load status=",
                    "nrt_execute status=",
                    "ERROR  TDRV:",
                    "ERROR   TDRV:",
                    "Inference completed with err: ",
                ),
                r"\bERROR +TDRV:(?P<driver>(?!dmem_alloc|nrt_infodump)\w+) +(?P<fault>\(?(?:FATAL|Failed|Unable|"
                r"Could|Missing|"
                r"missing)[^\n]{0,160})|Inference completed with err: (?P<err>[1-9]\d*)|\bERROR "
                r"+NRT:(?P<call>nrt_(?!infodump)\w+) +(?P<error>(?:Failed|Unable|Invalid|.{0,80}not available)"
                r"[^\n]{0,160})|\b(?P<status>nrt_\w+) status=(?!0\b)(?P<number>\d+)(?:, error message="
                r"\"(?P<message>[^\"\n]{1,120}))?",
                "Neuron runtime 2+, of Trainium; libnrt, nrt/nrt_status.h",
                "A call of the Neuron runtime failed[ ({call}): {error}][ ({status}) with status {number}][: "
                "{message}][ ({driver}): {fault}][ with error {err}].",
                support=NAMES_AN_EFFECT,
            ),
            "npu-kernel": LogPattern(
                ("there is an a", "error code is 5070", "error code:5070"),
                r"(?:device\((?:chipId|serial):(?P<gpu>\d{1,3})[^\n]{0,120}?)?there is an (?P<core>aicore|aivec|"
                r"aivector|"
                r"fftsplus (?:aicore|aivector|mix\w*)) (?:core )?(?:error|exception)|"
                r"error code(?: is |:)(?P<number>507011|507014|507015|507018|507034|507035)\b",
                "CANN 6+, of Ascend; runtime, device_error_proc.cc, acl/error_codes/rt_error_codes.h",
                "A kernel failed on the NPU[ (an error of its {core} unit)][ with error {number}].",
                support=NAMES_AN_EFFECT,
            ),
            "library-status": LogPattern(
                ("cuDNN error: ", "MIOpen Error: ", "miopenStatus", "rocBLAS error: ", "Check failed: cu"),
                r"rocBLAS error: (?P<rocblas>[^\n]{1,120})|Check failed: (?P<call>cu(?:dnn|blas|fft|solver|"
                r"sparse)\w*)\("
                r"[^\n]{0,300}STATUS_SUCCESS|cuDNN error: (?P<error>CUDNN_STATUS_\w+)|"
                r"\b(?P<status>miopenStatus(?!Success)\w+)",
                "all; ATen/cudnn/Exceptions.h, ATen/miopen/Exceptions.h; rocBLAS, tensile_host.cpp; TensorFlow, "
                "cuda_dnn.cc",
                "A library of the GPU reports[ {error}][ {status}][ {rocblas}][ that {call} failed].",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", "_ALLOC_FAILED"),
            ),
            "device-assert": LogPattern(
                (" Assertion `", " Assertion ", "Device-side assertion"),
                r"\.(?:cuh?|hip|cpp|h|hpp|py):\d+:[^\n]{0,300}?(?:block|global id): \[-?\d+,-?\d+,-?\d+\], "
                r"(?:thread|local id): \[-?\d+,-?\d+,-?\d+\] Assertion [`']?(?P<assertion>[^`'\n]{1,120})|"
                r"\.cu:\d+ Assertion [`'](?P<of_paddle>[^`'\n]{1,120})[`'] failed|"
                r"\bblock: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion|Device-side assertion [`']",
                "CUDA, HIP and SYCL, assert() of a kernel; Paddle, paddle/phi/core/enforce.h",
                "An assertion of a kernel failed[: {assertion}][: {of_paddle}].",
                support=NAMES_AN_EFFECT,
            ),
            "driver-call": LogPattern(
                ("call to cu", "Call to cu"),
                r"\b[cC]all to (?P<call>cu[A-Z]\w+) (?:returned error (?!2\b)(?P<number>\d+)(?: \(\w+\))?: "
                r"(?P<error>[^\n]+)|results in (?P<name>(?!CUDA_ERROR_OUT_OF_MEMORY)\w+))",
                "NVHPC's OpenACC runtime; Numba, numba/cuda/cudadrv/driver.py",
                "A call of the driver failed ({call})[: {error}][: {name}].",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", *_HARDWARE),
            ),
            "named-error": LogPattern(
                (
                    "CUDA_ERROR_ILLEGAL_",
                    "CUDA_ERROR_LAUNCH_",
                    "CUDA_ERROR_ASSERT",
                    "CUDA_ERROR_MISALIGNED_",
                    "cudaErrorIllegal",
                    "cudaErrorLaunch",
                    "cudaErrorAssert",
                    "cudaErrorMisaligned",
                    "hipErrorIllegal",
                    "hipErrorLaunch",
                    "hipErrorAssert",
                    "hipErrorNoBinaryForGpu",
                    "cudaErrorNoKernelImageForDevice",
                    "Triton Error [",
                    "PI_ERROR_DEVICE_",
                ),
                r"\b(?P<error>CUDA_ERROR_(?:ILLEGAL_(?:ADDRESS|INSTRUCTION)|LAUNCH_(?:FAILED|TIMEOUT)|ASSERT|"
                r"MISALIGNED_ADDRESS)|(?:cuda|hip)Error(?:Illegal(?:Address|Instruction)|Launch(?:Failure|TimeOut)|Assert|"
                r"MisalignedAddress)|hipErrorNoBinaryForGpu|cudaErrorNoKernelImageForDevice|PI_ERROR_DEVICE_\w+)\b|"
                r"(?P<triton>Triton Error \[\w+\]: [^\n]{1,120})",
                "CUDA and HIP, cuda.h, driver_types.h, hip_runtime_api.h; SYCL; Triton, driver.c",
                "The device's runtime reports {error}.[ {triton}]",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", "arning", *_HARDWARE),
            ),
            "numbered-error": LogPattern(
                _NUMBERED_ERRORS,
                _numbered(rf"(?!(?:2|{_NO_FAILURES}|{_OF_THE_HARDWARE})\b)[1-9]\d{{0,2}}"),
                "any program, as spconv's cumm; CUDA 12.8, driver_types.h (cudaError_t)",
                "CUDA reports error [{number}][{coded}].",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", "arning", "ignor", "Multicast memory"),
            ),
            "driver-mismatch": LogPattern(
                ("Driver/library version mismatch",),
                r"Driver/library version mismatch",
                "any driver; NVML, nvml.h; nvidia-smi",
                "The driver's kernel module and its library have different versions: the host needs a restart, or the "
                "driver to be loaded again.",
            ),
            "driver-modules-differ": LogPattern(
                ("NVRM: API mismatch",),
                r"NVRM: API mismatch: the client ",
                "any driver; kernel log of the NVIDIA driver, src/nvidia/arch/nvalloc/unix/src/osapi.c",
                "The driver's kernel module and its library have different versions: the host needs a restart, or the "
                "driver to be loaded again.",
                support=NAMES_AN_EFFECT,
            ),
            "no-nvml": LogPattern(
                ("ailed to initialize NVML: ", "No devices were found"),
                r"^Failed to initialize NVML: (?P<error>Unknown Error|Insufficient Permissions|GPU access blocked by "
                r"the operating system|Driver Not Loaded)|^No devices were (?P<none>found)\s*$",
                "any driver; nvidia-smi, nvml.h",
                "nvidia-smi [cannot use the driver: {error}][lists no device: none was {none}].",
                support=NAMES_AN_EFFECT,
            ),
            "nccl-unhandled": LogPattern(
                ("unhandled cuda error", "nhandledCudaError", "UNHANDLED_CUDA_ERROR"),
                r"(?i:nccl)[^\n]{0,300}?(?:unhandled cuda error|UnhandledCudaError|UNHANDLED_CUDA_ERROR)",
                "all, by ncclGetErrorString; torch/csrc/distributed/c10d/NCCLUtils.hpp, torch/csrc/cuda/nccl.cpp, "
                "Paddle's NCCLTools.h, vLLM's pynccl_wrapper.py, cupy_backends/cuda/libs/nccl.pyx",
                "A CUDA call of NCCL failed, and which one is not printed.",
                support=SUGGESTS,
            ),
            "ipc-handle": LogPattern(
                ("failed to open CUDA IPC handle",),
                r"failed to open CUDA IPC handle ?:? ?(?:(?P<number>\d+) )?(?P<error>[^\n]*)",
                "<= 2.13; transport/p2p.cc:238, transport/p2p.cu",
                "CUDA could not open the memory of another rank's GPU[ ({number})]: {error}.",
                support=NAMES_AN_EFFECT,
            ),
            "runtime-call": LogPattern(
                (*RUNTIME_CALLS, *RUNTIME_ERRORS),
                CALL_FAILED + r"(?P<error>[^'\n]*[^'\n.])",
                "any program that names the call of the runtime, as RCCL, vLLM, SGLang and TensorRT-LLM do",
                "A call of the runtime failed[ ({call})][ ({function})]: {error}.",
                support=NAMES_AN_EFFECT,
                unless=("out of memory", *_HARDWARE),
            ),
            "xid-of-a-program": LogPattern(
                ("NVRM: Xid",),
                r"NVRM: Xid \((?:PCI:)?(?:(?P<bus_id>[0-9a-fA-F]{2,}[0-9a-fA-F:.]*)|[^)]*)\): (?P<xid>13|31|43)\b"
                r"(?:,? pid='?(?P<pid>\d+))?",
                "any driver; NVIDIA's catalogue of Xids; open-gpu-kernel-modules, nverror.h",
                "The kernel reports Xid {xid}[ of the GPU at {bus_id}][ for process {pid}]: usually a fault of the "
                "program, as an access to memory that is not its own.",
                support=NAMES_AN_EFFECT,
            ),
            "level-zero": LogPattern(
                ("ZE_RESULT_ERROR_", "UR_RESULT_ERROR_"),
                r"\b(?P<error>(?:ZE|UR)_RESULT_ERROR_[A-Z_]+)\b",
                "oneAPI 2022+; Level Zero, ze_api.h; unified-runtime, ur_api.h",
                "A call of Level Zero, the runtime of Intel's GPUs, failed: {error}.",
                support=NAMES_AN_EFFECT,
                unless=("OUT_OF_DEVICE_MEMORY", "OUT_OF_RESOURCES"),
            ),
            "rocm-memory-fault": LogPattern(
                ("Memory access fault by GPU", "HSA_STATUS_ERROR"),
                r"Memory access fault by GPU (?P<bus_id>\S+)(?:.*Reason: "
                r"(?P<reason>[^.]+))?|(?P<error>HSA_STATUS_ERROR_\w+)",
                "ROCm; ROCr, core/runtime/runtime.cpp",
                "ROCm reports[ a memory access fault of GPU {bus_id}][: {reason}][ {error}].",
            ),
            "cuda-not-there": LogPattern(
                (
                    "cudaGetDeviceCount",
                    "NVIDIA driver on your system is too old",
                    "Found no NVIDIA driver",
                    "CUDA driver version is insufficient",
                    "no CUDA-capable device",
                    "CUDA driver initialization failed",
                    "GPUs are available",
                    "nvidia-container-cli: ",
                    "communicate with the NVIDIA driver",
                    "CUDA unknown error - ",
                    "could not select device driver",
                    "Failed to CUDA host alloc",
                    "invalid device ordinal",
                    "no GPUs found",
                    "system not yet initialized",
                    "ystemNotReady",
                    "SYSTEM_NOT_READY",
                    "unsupported display driver / cuda driver combination",
                    "forward compatibility was attempted on non supported HW",
                    "device(s) is/are busy or unavailable",
                    "all CUDA-capable devices are busy or unavailable",
                ),
                r"(?P<error>Unexpected error from cudaGetDeviceCount\(\)|The NVIDIA driver on your system is too old|"
                r"Found no NVIDIA driver on your system|CUDA driver version is insufficient for CUDA runtime version|"
                r"no CUDA-capable device is detected|No (?:CUDA|HIP) GPUs are available|"
                r"nvidia-container-cli: (?:initialization error|device error|mount error|ldcache error)[^\n]{0,120}|"
                r"couldn't communicate with the NVIDIA driver|CUDA unknown error - this may be due to an "
                r"incorrectly set up environment|"
                r"could not select device driver \S* ?with capabilities: \[\[[^\n]{0,20}?gpu|"
                r"CUDA driver initialization failed|Failed to CUDA host alloc|"
                r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|"
                r"system has unsupported display driver / cuda driver combination|"
                r"forward compatibility was attempted on non supported HW|"
                r"(?:all )?CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable|"
                r"invalid device ordinal|ProcessGroupNCCL is only supported with GPUs, no GPUs found)",
                "all; torch/csrc/cuda, CUDA error texts",
                "CUDA cannot start: {error}.",
            ),
        },
    ),
    FaultClass(
        id="topology_error",
        title="NCCL cannot use the topology that it found",
        priority=2,
        by_line=True,
        optional=True,
        next_steps=(
            "Compare `nvidia-smi topo -m` and NCCL_TOPO_FILE of {host} with the other hosts; all must show the same "
            "GPUs, NICs and links. Write NCCL's own view with NCCL_TOPO_DUMP_FILE.",
            "Rule out a stale graph or topology file (unset NCCL_GRAPH_FILE, NCCL_TOPO_FILE), /sys that the container "
            "hides, and a version of NCCL that is older than the hardware.",
        ),
        rules_out={"net_connection_lost": "connections close when the initialisation is given up"},
        patterns={
            "ring-error": LogPattern(
                ("does not loop back to start", "does not contain rank"),
                r"ring (?P<ring>\d+) does not (?:loop back to start|contain rank (?P<absent>\d+))",
                "all; graph/rings.cc",
                "NCCL's ring {ring} is not closed[: rank {absent} is not in it].",
            ),
            "topology-attribute": LogPattern(
                ("Attribute ",),
                r"\bAttribute (?P<attribute>\w+) of node (?P<node>\w+) not found",
                "all; graph/xml.h",
                "The topology has no attribute {attribute} of node {node}.",
            ),
            "reverse-path": LogPattern(
                ("Failed to find reverse path",),
                r"Failed to find reverse path from remNode (?:\d+/)?(?P<bus_id>\w+) nlinks \d+ to node "
                r"(?:\d+/)?(?P<other_bus_id>\w+)",
                "all; graph/paths.cc",
                "A link between {bus_id} and {other_bus_id} was found in one direction only.",
            ),
            "neuron-channels": LogPattern(
                ("has less channels than this replica group",),
                r"global comm \((?P<here>\d+)\) has less channels than this replica group \((?P<wanted>\d+)\)",
                "Neuron's runtime 2.20+; tdrv/encd.c",
                "The devices have {here} channels for a group that needs {wanted}: adapters (EFA) are missing, or the "
                "group is not one that they can form.",
            ),
            "topology-warning": LogPattern(
                ("graph/", "misc/topo", "misc/rings", "misc/trees"),
                r"(?:graph/\w+|misc/(?:topo|rings|trees))\.(?:cc|cu|h):\d+(?: \(\w+\))? (?:\[\d+\] )?(?:R?NCCL )?WARN "
                r"(?P<message>.+)",
                "all; graph/*.cc, before 2.5 misc/topo.cc, misc/rings.cc, misc/trees.cc",
                "While NCCL searched the topology: {message}",
                support=NAMES_AN_EFFECT,
                unless=(
                    "falling back",
                    "P2P is disabled",
                    "does not loop back",
                    "does not contain rank",
                    "could not be",
                ),
            ),
        },
    ),
    FaultClass(
        id="ib_device_fatal",
        title="a network adapter failed",
        priority=1,
        by_line=True,
        next_steps=(
            "Drain {host}: peers that report status 12 are its victims.",
            "On {host}: `ibstat`, `dmesg -T | grep -i mlx5`, {mlxlink}; restart or replace the adapter.",
        ),
        rules_out={"ib_completion_error": "retry-exceeded errors on the peers are a consequence of a failed adapter"},
        patterns={
            "local-catastrophic-error": LogPattern(
                ("Got async event : local catastrophic error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : local catastrophic error",
                "<= 2.22; transport/net_ib.cc:95 (v2.18.3)",
                "The adapter reports a catastrophic error.",
            ),
            "async-fatal-event": LogPattern(
                ("async fatal event",),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) async fatal event(?! on (?:QP|CQ|SRQ))(?: on \w+[^:]*)?: "
                r"(?!.*(?:work queue|CQ error|SRQ))(?P<event>.+)",
                "2.23+; transport/net_ib/common.cc:100",
                "Adapter {hca}, port {port}, reports: {event}.",
            ),
            "mlx5-health": LogPattern(
                ("device's health compromised", "firmware internal error", "mlx5_core "),
                r"mlx5_core (?P<hca>[0-9a-fA-F:]{7,}\.[0-7])[: ].*?(?:device's health compromised|firmware internal "
                r"error|fatal firmware error|Health issue observed|handling bad device|"
                r"mlx5_\w+_one failed with error code|Firmware over \d+ MS in (?:pre-)?initializing state, aborting|"
                r"timeout\. Will cause a leak of a command resource|failed, status internal error\(0x1\)|"
                r"mlx5_error_sw_reset|poll_health:\d+:\(pid \d+\): Fatal error \d+ detected)",
                "kernel log of mlx5, Linux 4+; drivers/net/ethernet/mellanox/mlx5/core/health.c, main.c",
                "The driver reports that the adapter at {hca} failed.",
            ),
            "mlx5-syndrome": LogPattern(
                ("mlx5_core ",),
                r"mlx5_core (?P<hca>[0-9a-fA-F:]{7,}\.[0-7]): .{0,80}?\bsynd(?:rome)? (?P<code>0x[1-9a-f]\w*): "
                r"(?P<error>[^\n]+)",
                "kernel log of mlx5, Linux 4+; drivers/net/ethernet/mellanox/mlx5/core/health.c",
                "The firmware of the adapter at {hca} reports {error} ({code}).",
            ),
            "transmit-timeout": LogPattern(
                ("NETDEV WATCHDOG: ",),
                r"NETDEV WATCHDOG: (?P<hca>[\w.-]{1,15}) \((?P<driver>[\w-]{1,40})\):(?: CPU: \d+:)? transmit queue "
                r"\d+ timed out",
                "any kernel; net/sched/sch_generic.c",
                "The kernel reports that {hca} (driver {driver}) no longer sends.",
                support=NAMES_AN_EFFECT,
            ),
            "pcie-link-lost": LogPattern(
                ("PCIe link lost",),
                r"\b(?:igb|igc) [0-9a-fA-F:]{7,}\.[0-7] (?P<hca>[\w.-]{1,15}): PCIe link lost",
                "kernel logs of igb and igc, Linux 4.11+; drivers/net/ethernet/intel/igb/igb_main.c, igc/igc_main.c",
                "The driver lost the PCIe link to {hca}.",
            ),
            "queue-event": confirms(
                ("async fatal event", "Got async event", "Got async error event"),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?(?:async fatal event|Got async (?:error )?event)[^\n]*?"
                r"(?P<event>(?:local |invalid request local |local access violation )?work queue[\w ]* error|CQ error|"
                r"SRQ[\w ]*error|QP[\w ]*error|[\w ]*work queue[\w ]*error)",
                "all; transport/net_ib.cc, transport/net_ib/common.cc",
                "A queue[ of {hca}] failed ({event}): an error of one connection, not of the adapter.",
            ),
        },
    ),
    FaultClass(
        id="ib_link_down",
        title="a network link went down",
        priority=1,
        by_line=True,
        next_steps=(
            "On {host}: `ibstat` (state, physical state), `ibqueryerrors`, {mlxlink}; then cable, "
            "transceiver and switch port.",
            "Peers that report status 12 are victims of that link; a flap shorter than the retries can be ridden out "
            "with NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7.",
        ),
        rules_out={"ib_completion_error": "retry-exceeded errors on the peers are a consequence of a lost link"},
        patterns={
            "port-error": LogPattern(
                ("Got async event : port error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : port error",
                "<= 2.22; transport/net_ib.cc:95 (v2.18.3)",
                "A port of the adapter lost its link.",
            ),
            "mlx5-link-down": LogPattern(
                (": Link down",),
                r"mlx5_core (?P<bus>[0-9a-fA-F:]{7,}\.[0-7]) (?P<hca>[\w.-]+): Link down",
                "kernel log of mlx5, Linux 4+; drivers/net/ethernet/mellanox/mlx5/core/en_main.c",
                "The kernel saw {hca} lose its link.",
            ),
            "mlx5-cable": LogPattern(
                ("Port module event",),
                r"mlx5_core (?P<hca>[0-9a-fA-F:]{7,}\.[0-7]): [^\n]{0,80}?Port module event(?:\[error\])?: module \d+, "
                r"(?P<state>Cable (?:unplugged|error|disabled)[^\n]{0,80})",
                "kernel log of mlx5, Linux 4.12+; drivers/net/ethernet/mellanox/mlx5/core/events.c",
                "The adapter at {hca} reports of its port: {state}.",
            ),
            "ethernet-link-down": LogPattern(
                ("Link is Down", "Link is down"),
                r"\b(?:bnxt_en|i40e|ice|ixgbe|igb|e1000e|mlx4_en|be2net|qede|ena|tg3)\b[^\n]{0,60}? "
                r"(?P<hca>[\w.-]+): (?:NIC )?Link is [Dd]own",
                "kernel logs, Linux 3+; drivers/net/ethernet/broadcom/bnxt/bnxt.c, intel/i40e/i40e_main.c and others",
                "The kernel saw {hca} lose its link.",
                support=NAMES_AN_EFFECT,
            ),
            "non-fatal-port-error": LogPattern(
                ("Got non-fatal async event", "Got async error event"),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) Got (?:non-fatal async|async error) event: "
                r"(?:port error|port down)",
                "2.23+ (error), 2.28+ (non-fatal); transport/net_ib.cc:199 (v2.27.5), transport/net_ib/common.cc:134",
                "Adapter {hca}, port {port}, lost its link.",
            ),
            "port-down": confirms(
                (" state DOWN physical_state ", " (Down)"),
                r"^\s*(?:\d+/\d+: |link )?(?P<hca>\w+)(?:/| port )(?P<port>\d+)(?::? [^\n]{0,300}?\bstate DOWN "
                r"physical_state (?P<state>\w+)| ==> (?P<netdev>\S+) \(Down\))",
                "iproute2, rdma/link.c; MLNX_OFED, ibdev2netdev",
                "Port {port} of {hca} is down[ ({state})][, as {netdev}].",
                SUGGESTS,
            ),
            "port-row-down": confirms(
                ("State: Down", "1: DOWN", "PORT_DOWN (1)"),
                r"^\s*(?:State: Down|state:\s+1: DOWN|state:\s+PORT_DOWN \(1\))\s*$",
                "rdma-core, infiniband-diags/ibstat.c, scripts/ibstatus, libibverbs/examples/devinfo.c",
                "A port of an adapter is down.",
                SUGGESTS,
            ),
            "adapter-row": confirms(
                ("CA '", "Infiniband device '", "hca_id:"),
                r"^\s*(?:CA |Infiniband device |hca_id:\s+)'?(?P<hca>\w{1,40})'?(?: port (?P<port>\d+) status:)?\s*$",
                "rdma-core, infiniband-diags/ibstat.c, scripts/ibstatus, libibverbs/examples/devinfo.c",
                "The state of adapter {hca} follows.",
                SUGGESTS,
            ),
            "non-fatal-other": confirms(
                ("Got non-fatal async event", "Got async event", "Got async error event"),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got (?:non-fatal )?async (?:error )?event ?: "
                r"(?P<event>(?!port error|port down|local catastrophic).+)",
                "all; transport/net_ib/common.cc:134",
                "Non-fatal event of the adapter: {event}.",
            ),
        },
    ),
)

_COMPLETION = (
    r"Got completion (?:from peer (?P<peer>[^\s<>]+<\d+>) )?with (?:error (?P<error>{0})\b|"
    r"status=(?:\w+\((?P<named_status>{0})\)|(?P<status>{0})\b))"
)
_REST = (
    r"(?:.*?vendor[_ ]err[= ](?P<vendor>\d+))?(?:.*?localGid (?P<local_gid>\S+))?(?:.*?remoteGids? ?(?P<remote_gid>"
    r"[0-9a-fA-F:.]+))?(?:.*? hca (?P<hca>\w+))?"
)
_WHERE = "net_ib/p2p.cc:651; transport/net_ib.cc:1295 (v2.18.3)"
_VERSIONS = '"error N" <= 2.19, "status=N" 2.20 to 2.27, "status=NAME(N)" 2.28+'

_INFINIBAND = (
    FaultClass(
        id="ib_completion_error",
        title="an InfiniBand or RoCE path loses packets",
        priority=2,
        lost_with_process=True,
        next_steps=(
            "At the start of a job: wrong GID or RoCE set-up: NCCL_IB_GID_INDEX (often 3), NCCL_IB_TC, `show_gids`, "
            "`ib_write_bw` between the two hosts.",
            "In the middle: a link: `ibqueryerrors`, {mlxlink} and the switch port of {where}; "
            "NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 ride out short flaps. NCCL_IB_HCA leaves an adapter out.",
        ),
        rules_out={"net_connection_lost": "sockets close because the InfiniBand error ends the process"},
        patterns={
            "completion-with-error": LogPattern(
                ("Got completion ",),
                _COMPLETION.format(r"(?!5\b|4\b)\d+") + _REST,
                f"{_VERSIONS}; {_WHERE}",
                "A transfer[ with {peer}] failed.",
                support=NAMES_AN_EFFECT,
            ),
            "ucx-retries": LogPattern(
                (
                    "ransport retry count exceeded",
                    "emote access error on ",
                    "emote operation error on ",
                    "NR retry count",
                ),
                UCX + r"(?:[Tt]ransport retry count exceeded|"
                r"[Rr]emote (?:access|operation) error(?= on)|(?:RNR|[Rr]eceive-no-ready) retry count exceeded)"
                r"(?: on (?P<hca>\w+):(?P<port>\d+)/| \(synd)",
                "UCX 1.3+, with the adapter from 1.5; src/uct/ib/mlx5/ib_mlx5_log.c",
                "UCX got no answer[ over adapter {hca}, port {port}].",
                support=NAMES_AN_EFFECT,
            ),
            "ucx-completion": LogPattern(
                (" (synd 0x",),
                UCX + r"(?:\S+:\d+ +(?:UCX +\w+ +)?)?(?P<error>Local (?:length|QP operation|protection|access)|Memory "
                r"window bind|"
                r"Bad response|Remote (?:invalid request|access|side aborted))(?: error)? on "
                r"(?P<hca>\w+):(?P<port>\d+)/",
                "UCX 1.3+; src/uct/ib/mlx5/ib_mlx5_log.c",
                "UCX reports a transfer over adapter {hca}, port {port}, that failed: {error}.",
                support=SUGGESTS,
            ),
            "verbs-retries": LogPattern(
                (
                    "retry counter exceeded",
                    "WC_RETRY_EXC_ERR",
                    "WC_RNR_RETRY_EXC_ERR",
                    "InfiniBand retry count between two MPI processes",
                    "Failed status 12",
                    "RETRY EXCEEDED ERROR",
                    "a work item failed: status 1",
                ),
                r"(?:local_nic: ?(?P<hca>\w{1,64}), ?peer_nic: ?(?P<peer>[^\s,]{1,255}),[^)]{0,80}\): )?"
                r"(?:transport retry counter "
                r"exceeded|RNR retry counter exceeded|WC_(?:RNR_)?RETRY_EXC_ERR|InfiniBand retry count between two MPI "
                r"processes has been exceeded|\bFailed status 12: wr_id|error polling \w+ CQ with status (?:RECEIVER "
                r"NOT READY )?RETRY EXCEEDED ERROR|\ba work item failed: status 1[23]\b)",
                "rdma-core, libibverbs/verbs.c (ibv_wc_status_str), as Mooncake, mscclpp, SPDK, MVAPICH and perftest "
                "print it; Open MPI's openib until 4, btl_openib_component.c, help-mpi-btl-openib.txt",
                "A transfer[ over {hca}][ to {peer}] failed after all of its retries.",
                support=NAMES_AN_EFFECT,
                unless=("NCCL WARN", "Got completion from peer"),
            ),
            "completion-flushed": cascade(
                ("Got completion ",),
                _COMPLETION.format("5") + _REST,
                f"{_VERSIONS}; {_WHERE}",
                "Status 5 (flushed): a work request of a connection that had already failed.",
            ),
        },
    ),
    FaultClass(
        id="gdr_acs",
        title="GPUDirect RDMA is blocked",
        priority=2,
        by_line=True,
        next_steps=(
            "Confirm with NCCL_NET_GDR_LEVEL=0 (no GPUDirect RDMA); if that runs, disable ACS on the PCI bridges "
            "(setpci sets ECAP_ACS+0x6.w to 0 on each of them; or in the BIOS), in a virtual machine turn ATS on.",
        ),
        rules_out={"ib_completion_error": "status 4 is a fault of access to local memory, not of the link"},
        patterns={
            "local-protection": LogPattern(
                ("Got completion ",),
                _COMPLETION.format("4") + _REST,
                f"{_VERSIONS}; {_WHERE}",
                "Status 4: the adapter[ {hca}] may not access the local memory[ (peer {peer})].",
            ),
            **programs.GPU_MEMORY,
        },
    ),
    FaultClass(
        id="ib_unreachable_rail",
        title="an adapter cannot reach its peer",
        priority=2,
        by_line=True,
        next_steps=(
            "Check route and subnet of each rail (`ip route get` with the address of the other end, `show_gids`) "
            "between the hosts named; "
            "NCCL_CROSS_NIC=0 keeps traffic on one rail; NCCL_IB_GID_INDEX chooses the right GID; NCCL_IB_HCA leaves "
            "an adapter out.",
        ),
        rules_out={"ib_completion_error": "the connection was never established"},
        patterns={
            "modify-qp": LogPattern(
                ("Call to ibv_modify_qp failed",),
                r"Call to ibv_modify_qp failed with (?:error )?(?P<error>(?:110 )?Connection timed out|(?:101 "
                r")?Network is unreachable|(?:113 )?No route to host|110\b|\d+ [A-Z][\w ]+|[A-Z][\w ]+?)(?: errno "
                r"\d+)?(?:,|$|\s*$)(?:.*?on dev (?P<hca>[^\s:,]+))?(?:.*?local GID (?:index \d+, local GID "
                r")?(?P<local_gid>[0-9a-fA-F:.]+))?(?:.*?remote GID (?P<remote_gid>[0-9a-fA-F:.]+))?",
                "all; with device and GIDs from 2.24; misc/ibvwrap.cc:309",
                "A queue pair[ of {hca}][ with local GID {local_gid}] could not be connected[ to {remote_gid}]: "
                "{error}.",
            ),
            "qp-not-connected": LogPattern(
                ("ailed to modify QP", "ailed to modify RC QP"),
                r"[Ff]ailed to modify (?:RC )?QP(?: \w+)? to (?:RTR|RTS)(?: state)?(?::? ?(?P<error>Connection timed "
                r"out|Network is unreachable|No route to host|Invalid argument))?",
                "rdma-core, libibverbs/examples/rc_pingpong.c, and Mooncake, rdma_endpoint.cpp",
                "A queue pair could not be connected to its peer[: {error}].",
                support=SUGGESTS,
            ),
        },
    ),
)

_MEMORY = (
    FaultClass(
        id="shm_exhausted",
        title="shared memory is used up",
        priority=2,
        by_line=True,
        next_steps=(
            "On {host}: `df -h /dev/shm; ls -la /dev/shm`; remove stale nccl-* files of ended jobs.",
            "In a container: `--shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir volume with medium Memory on "
            "/dev/shm.",
        ),
        rules_out={"rank_killed_sigbus": "a full /dev/shm causes bus errors"},
        patterns={
            "creating-segment": LogPattern(
                ("Error while creating shared memory segment", "Error while attaching to shared memory segment"),
                r"Error while (?:creating|attaching to) shared memory segment(?: (?P<path>/?\S+))?"
                r"(?: \(size (?P<size>\d+)\))?(?:, error: (?P<error>[^()\n]+))?",
                "2.12+; with errno from 2.21; misc/shmutils.cc:132",
                "NCCL could not get the shared memory[ {path}][ ({size} bytes)][: {error}].",
                unless=("No such file",),
            ),
            "failed-to-extend": LogPattern(
                ("failed to extend", "/dev/shm/nccl-"),
                r"failed to extend (?P<path>/dev/shm/\S+) to (?P<size>\d+) bytes|(?:open|posix_fallocate|write|"
                r"ftruncate|mmap)[^\n]{0,200}?(?P<other>/dev/shm/nccl-[\w.-]+)[^\n]{0,300}?No space left",
                "2.12+; misc/shmutils.cc:88",
                "[{path} could not grow to {size} bytes.][There is no space left for {other}.]",
            ),
            "posix-fallocate": LogPattern(
                ("Call to posix_fallocate failed",),
                r"Call to posix_fallocate failed ?:? ?(?:No space left|.*)",
                "<= 2.10; include/shm.h",
                "/dev/shm has no space left.",
            ),
            "torch-file": LogPattern(
                (" file </torch_",),
                r"unable to (?:mmap \d+ bytes from|write to|resize|allocate shared memory\(shm\) for) file "
                r"</torch_\w+>[^\n]{0,80}?: (?P<error>Cannot allocate memory|No space left on device|"
                r"Input/output error)",
                "torch 0.4+; aten/src/ATen/MapAllocator.cpp",
                "PyTorch could not make a file of shared memory, which DataLoader workers pass tensors in: {error}.",
            ),
            "torch-object": LogPattern(
                ("/torch_",),
                # With "Too many open files" it is the limit of open files, with "No such file" a file that is gone.
                r"unable to (?:(?P<opened>open) shared memory object|(?P<call>mmap \d+ bytes from|write to|resize|"
                r"allocate shared memory\(shm\) for) file) </torch_\w+>(?: in read-write mode)?(?!: ?\w)(?!\w)",
                "torch 0.4+, which may leave out why; aten/src/ATen/MapAllocator.cpp, aten/src/TH/THAllocator.c",
                "PyTorch could not make or open a file of shared memory, which DataLoader workers pass tensors in; "
                "this version does not print why.",
                support=NAMES_AN_EFFECT,
                unless=("Too many open files", "No such file"),
            ),
            "ucx-shared-memory": LogPattern(
                (
                    "has more available memory",
                    "please check shared memory limits",
                    "not enough space for ",
                    " bytes with mm for ",
                ),
                UCX + r"UCX +ERROR +[^\n]{0,200}?(?:has more available memory|please check shared memory limits|"
                r"failed to allocate \d+ bytes with mm for)|"
                r"not enough space for (?P<path>/\S+)",
                "UCX 1.3+, src/uct/sm/mm/posix/mm_posix.c, src/ucs/sys/sys.c; Open MPI 1.7+, "
                "opal/mca/shmem/mmap/help-opal-shmem-mmap.txt",
                "MPI's shared memory has no room[: {path}].",
                support=NAMES_AN_EFFECT,
            ),
            "pod-memory-volume": LogPattern(
                ("Usage of EmptyDir volume",),
                r"Usage of EmptyDir volume \"(?P<path>[^\"\n]*shm[^\"\n]*)\" exceeds the limit \"(?P<size>[^\"\n]+)\"",
                "Kubernetes 1.13+; pkg/kubelet/eviction/eviction_manager.go",
                "Kubernetes evicted the pod: its volume {path} holds more than {size}.",
            ),
            "python-segment": LogPattern(
                ("'/psm_", "'/dev/shm/"),
                r"No space left on device: '(?P<path>/psm_\w+|/dev/shm/[^'\n]{1,255})'",
                "Python 3.8+; Lib/multiprocessing/shared_memory.py",
                "Python could not make its shared memory {path}.",
            ),
            "worker-shared-memory": LogPattern(
                ("insufficient shared memory (shm)", "out of shared memory"),
                r"insufficient shared memory \(shm\)|out of shared memory\.",
                "torch 0.4+; torch/csrc/DataLoader.cpp, torch/utils/data/_utils/signal_handling.py",
                "PyTorch attributes a DataLoader worker's bus error to insufficient shared memory.",
                support=NAMES_AN_EFFECT,  # "might be caused by", "it is possible that"
            ),
        },
    ),
    FaultClass(
        id="duplicate_gpu",
        title="two ranks use one GPU",
        priority=2,
        next_steps=(
            "Choose the device from the local rank: `torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`, before "
            "init_process_group.",
            "Check CUDA_VISIBLE_DEVICES on {host}, and that no more ranks than GPUs are started there "
            "(--nproc-per-node).",
        ),
        patterns={
            "duplicate-gpu": LogPattern(
                ("Duplicate GPU detected",),
                r"Duplicate GPU detected ?: ?rank (?P<group_rank>\d+) and rank (?P<other_group_rank>\d+)(?: both on "
                r"CUDA device (?P<bus_id>[0-9a-fA-F:.]+))?",
                "2.10 to 2.29 (gone in 2.30.7); init.cc:974",
                "Ranks {group_rank} and {other_group_rank} are both on one GPU[ ({bus_id})].",
            ),
            "xgboost-one-gpu": LogPattern(
                ("within communication group running on same CUDA device",),
                r"(?:\((?P<devices>\d{1,6}) vs\. (?P<world>\d{1,6})\) ?:? )?Multiple processes within communication "
                r"group running on same CUDA device",
                "XGBoost 1.0+; src/collective/comm.cu, src/common/device_helpers.cu; all processes check it",
                "Processes of XGBoost are on one GPU[: {world} of them have {devices}].",
            ),
            "accelerate-rank": confirms(
                ("rocess index: ",),
                r"^(?P<local>Local p|P)rocess index: (?P<index>\d{1,6})\s*$",
                "Accelerate 0.2+; accelerate/state.py",
                "Accelerate says which process it is.",
                SUGGESTS,
            ),
            "accelerate-device": confirms(
                ("Device: ",),
                r"^Device: (?P<device>(?:cuda|npu|xpu|mlu|musa|hpu):\d{1,4})\s*$",
                "Accelerate 0.2+; accelerate/state.py",
                "Its device is {device}.",
                SUGGESTS,
            ),
        },
    ),
    FaultClass(
        **of("cuda_oom"),
        by_line=True,
        next_steps=(
            "Leave head-room on {where}: a smaller batch, activation checkpointing, or a smaller share for caches "
            "(`torch.cuda.set_per_process_memory_fraction`); NCCL needs memory in addition to torch's.",
            "`nvidia-smi` on {host}: is another process on that GPU?",
        ),
        rules_out={"nvls_multicast": "the allocation that failed is not one of multicast memory"},
        patterns={
            "nccl-out-of-memory": _out_of_memory(
                "nccl-out-of-memory",
                "all; with the number from 2.19; include/alloc.h",
                "NCCL could not allocate GPU memory.",
            ),
            "cuda-calloc": _out_of_memory(
                "cuda-calloc",
                "all; include/alloc.h:417",
                "NCCL could not allocate[ {size} of] GPU memory.",
            ),
            "runtime-out-of-memory": _out_of_memory(
                "runtime-out-of-memory",
                "TensorRT-LLM 0.5+, common/cudaUtils.h; llama.cpp, ggml-cuda.cu",
                "A call of the runtime failed[ ({call})][ ({function})]: out of memory.",
            ),
            "xla-out-of-memory": _out_of_memory(
                "xla-out-of-memory",
                "JAX, TensorFlow; xla/stream_executor, tsl/framework/bfc_allocator.cc",
                "XLA could not allocate[ {size} of][ {asked} of] memory of the device.",
            ),
            "tensorflow-out-of-memory": _out_of_memory(
                "tensorflow-out-of-memory",
                "TensorFlow 1+; tensorflow/core/common_runtime/bfc_allocator.cc",
                "TensorFlow could not allocate[ {size} of] memory of the device.",
            ),
            "other-out-of-memory": _out_of_memory(
                "other-out-of-memory",
                "torch_npu, Intel XPU, MPS, Gaudi; NPUCachingAllocator.cpp, XPUCachingAllocator.cpp, MPSAllocator.mm",
                "The device's allocator could not allocate[ {size} of] memory.",
            ),
            "julia-out-of-memory": _out_of_memory(
                "julia-out-of-memory",
                "CUDA.jl 1+, src/pool.jl; AMDGPU.jl; OpenCL.jl, src/memory.jl",
                "Julia could not allocate[ {size} of] memory of the GPU.",
            ),
            "rmm-out-of-memory": _out_of_memory(
                "rmm-out-of-memory",
                "RAPIDS Memory Manager 0.19+, in cuDF, cuML and XGBoost; rmm/detail/error.hpp, "
                "rmm/mr/device/pool_memory_resource.hpp",
                "RMM could not allocate[ {size} of] memory of the GPU.",
            ),
            "opencl-out-of-memory": _out_of_memory(
                "opencl-out-of-memory",
                "OpenCL 1.0+, CL/cl.h; PyOpenCL, src/wrap_cl.hpp",
                "OpenCL could not allocate memory of the device.",
            ),
            "paddle-out-of-memory": _out_of_memory(
                "paddle-out-of-memory",
                "Paddle 1.6+; paddle/fluid/memory/allocation/cuda_allocator.cc",
                "Paddle could not allocate {size} of memory of GPU {gpu}.",
            ),
            "torch-out-of-memory": _out_of_memory(
                "torch-out-of-memory",
                "torch; OutOfMemoryError from 1.13; c10/cuda/CUDACachingAllocator.cpp",
                "torch could not allocate[ {size} of] memory of the GPU[ {gpu}].",
            ),
            "engine-out-of-memory": _out_of_memory(
                "engine-out-of-memory",
                "vLLM 0.2+, worker/worker.py, v1/worker/gpu_worker.py; SGLang 0.2+, model_executor/model_runner.py",
                "The engine has no memory of the GPU[ {gpu}] left for its cache, or too little at its start.",
            ),
            "numbered-out-of-memory": LogPattern(
                _NUMBERED_ERRORS,
                _numbered("2"),
                "any program; CUDA 12.8, driver_types.h (cudaError_t)",
                "CUDA reports error [{number}][{coded}], which is that the memory is used up.",
                support=NAMES_AN_EFFECT,
                unless=("arning", "Multicast memory", "nvls.cc"),
            ),
            "named-out-of-memory": _out_of_memory(
                "named-out-of-memory",
                "CUDA and HIP, cuda.h, driver_types.h, hip_runtime_api.h; cuBLAS, cuDNN and their like, as Numba, "
                "CuPy, RMM and TensorFlow print them",
                "A call of the device's runtime found no memory left.",
            ),
            "device-out-of-memory": replace(
                _out_of_memory(
                    "device-out-of-memory",
                    "any; NVHPC's OpenACC, PyCUDA, CuPy, MXNet's pooled_storage_manager.h, Caffe's syncedmem.cpp, and "
                    "programs that check each call",
                    "The program reports that the memory of its device is used up.",
                ),
                support=NAMES_AN_EFFECT,
            ),
        },
    ),
    FaultClass(
        id="nvls_multicast",
        title="NVLink SHARP's multicast memory is not available",
        priority=2,
        by_line=True,
        optional=True,
        next_steps=(
            "Confirm with NCCL_NVLS_ENABLE=0; if that runs, keep it until {host} is fixed.",
            "CUDA error 401: `systemctl restart nvidia-fabricmanager` on {host} and look at its state "
            "(`nvidia-smi -q | grep -A2 Fabric`); 1: the container lacks /dev/nvidia-caps*; 2: the multicast slots are "
            "taken by other processes.",
        ),
        rules_out={"cuda_oom": "multicast slots, not GPU memory, are used up"},
        patterns={
            "failed-to-bind": LogPattern(
                ("NVLink SHARP (NVLS) Multicast memory",),
                r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory(?:\s+of size (?P<size>\d+) : CUDA error "
                r"(?P<error>\d+))?",
                "2.27+; transport/nvls.cc:287",
                "Multicast memory could not be bound[: CUDA error {error}].",
                unless=("Proceeding without",),
            ),
            "nvls-cuda-failure": LogPattern(
                ("transport/nvls.cc",),
                r"transport/nvls\.cc:\d+ (?:NCCL )?WARN Cuda failure(?: (?P<error>\d+))?",
                "2.18+; transport/nvls.cc",
                "CUDA failed while NVLink SHARP was set up.",
            ),
        },
    ),
    FaultClass(
        id="memlock_limit",
        title="memory cannot be locked for InfiniBand",
        priority=2,
        by_line=True,
        next_steps=(
            "`ulimit -l unlimited` for the job on {host}: /etc/security/limits.conf, LimitMEMLOCK=infinity of the "
            "scheduler's service, `--ulimit memlock=-1` for containers.",
        ),
        rules_out={"cuda_oom": "host memory that may be locked is short, not GPU memory"},
        patterns={
            "cannot-allocate": LogPattern(
                ("Cannot allocate memory",),
                r"Call to (?P<call>ibv_\w+) failed(?: with error)?:? (?:\d+ )?Cannot allocate memory",
                "all; misc/ibvwrap.cc:43",
                "{call} could not lock memory.",
            ),
            "create-failed": LogPattern(
                ("Call to ibv_",),
                r"Call to (?P<call>ibv_(?:create_qp|create_cq|reg_mr)) failed\s*$",
                "<= 2.9; misc/ibvwrap.cc",
                "{call} failed; this version does not print why, and the limit of locked memory is the usual reason.",
                support=SUGGESTS,
            ),
            "ofi-register": LogPattern(
                ("egister memory",),
                r"NET/OFI [^\n]{0,80}?register memory[^\n]{0,120}?(?:RC: -12\b|Cannot allocate memory)",
                "aws-ofi-nccl 1+; src/nccl_ofi_sendrecv.cpp, nccl_ofi_rdma.cpp",
                "The network plugin could not register memory with the adapter: too little may be locked.",
            ),
            "verbs-memory": confirms(
                ("ibv_", "fi_mr_reg", "egister memory", "max locked memory", "allocate some locked memory"),
                UCX + r"\b(?P<call>ibv_(?:exp_)?(?:create_(?:cq|qp|srq)|reg_\w*mr|alloc_pd|open_device)\w*|fi_mr_reg)\b"
                r"[^\n]{0,160}?(?:Cannot allocate memory|errno[ :=]{1,3}12\b|ENOMEM)|"
                r"[Ff]ailed to register memory[^\n]{0,160}?Cannot allocate memory|[Pp]lease set max locked memory|"
                r"trying to\s+allocate some locked memory",
                "UCX 1.3+, src/uct/ib/base/ib_iface.c, ib_md.c; Mooncake, rdma_context.cpp; mscclpp, ib.cc; libfabric; "
                "Open MPI, help-mpi-btl-openib.txt",
                "The adapter's memory could not be registered or its queues made[ ({call})]: too little memory may be "
                "locked.",
            ),
        },
    ),
)

# With equal confidence the first is the cause: memory before the CUDA call that failed for lack of it.
CLASSES = (*_MEMORY, *_INFINIBAND, *_DEVICES)
