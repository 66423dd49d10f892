"""The patterns of the classes, and lines that they know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diag.hang.classes import CLASSES, NEVER_ROOTS, PATTERNS, anchors, hits_of
from diag.hang.model import Role
from diag.hang.reason import reason
from tests.hang.reason.builders import Job


def test_multicast_memory_is_not_gpu_memory() -> None:
    job = Job()
    job.warn(0, "Cuda failure 2 'out of memory'", "transport/nvls.cc:251")
    assert reason(job.logs()).fault_class == "nvls_multicast"


def test_every_signature_is_found_by_its_anchors() -> None:
    """Each signature's own pattern must need one of its anchors: the evidence is that it names what it anchors."""
    wanted = anchors()
    assert len(wanted) == len(set(wanted))
    for fault_class, name, pattern in PATTERNS:
        assert set(pattern.anchors) <= set(wanted), (fault_class.id, name)
        assert pattern.printed_by
    names = [name for _, name, _ in PATTERNS]
    assert len(names) == len(set(names))


def test_what_never_is_a_root_has_no_root_signature() -> None:
    for fault_class in NEVER_ROOTS:
        assert {pattern.role for pattern in fault_class.patterns.values()} <= {Role.CASCADE, Role.HARMLESS}
    assert all(name in CLASSES for found in CLASSES.values() for name in found.rules_out)


def test_a_line_without_meaning_has_no_hits() -> None:
    job = Job()
    job.say("step 12 loss 2.31 time 0.4", 0)
    assert hits_of([job.lines[0]]) == []
    assert hits_of([replace(job.lines[0], text="", raw="")]) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: write(): fd 29 failed with Input/output error", "storage"),
        ("slurmstepd: error: *** JOB 1 ON a CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***", "job_cancelled"),
        (
            "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. "
            "Unable to find address for: ib0",
            "net_no_interface",
        ),
        ("Failed: Cuda error /w/custom_all_reduce.cuh:307 'peer access is not supported'", "cuda_failure"),
        ("hipIpcGetMemHandle failed : invalid argument", "cuda_failure"),
        ("cudaEventCreate(&start) failed with error: driver shutting down", "cuda_failure"),
        ("CUDA runtime error in cudaDeviceSynchronize(): an illegal memory access was encountered", "cuda_failure"),
        ("Test CUDA failure common.cu:730 'unknown error'", "cuda_failure"),
        ("cudaMalloc failed: out of memory", "cuda_oom"),
        ("CUDA runtime error in cudaMallocAsync(&p, n, s): out of memory", "cuda_oom"),
        ("warning: Cuda API error detected: cudaDeviceEnablePeerAccess returned (0x2c0)", "undetermined"),
        ("HW Exception by GPU node-9 (Agent handle: 0x621351bb5a20) reason :GPU Hang", "gpu_hardware"),
        ("double free or corruption (!prev)", "rank_killed_sigsegv"),
        ("*** Error in `python': free(): invalid pointer: 0x00007f ***", "rank_killed_sigsegv"),
        ("realloc(): invalid next size", "rank_killed_sigsegv"),
        ("*** stack smashing detected ***: terminated", "rank_killed_sigsegv"),
        ("the allocator prints free(): invalid pointer when it aborts", "undetermined"),
        (
            "Memory on the node (IP: 10.0.0.7, ID: 7f) where the task was running was 27.3GB / 28.8GB (0.95), which "
            "exceeds the memory usage threshold of 0.95. Ray killed this worker because it was the newest.",
            "rank_killed_sigkill",
        ),
        ("node_manager.cc:3277: 0 Workers (tasks / actors) killed due to memory pressure (OOM)", "undetermined"),
    ],
)
def test_texts_of_real_threads(text: str, name: str) -> None:
    """pytorch 10577, submitit 1708, YOLOX 139, sglang 1509, rccl 2188, rocm 4021, nccl 258, training 770, wmpo 3."""
    job = Job()
    job.say("Traceback (most recent call last):", 1, source="python")
    job.say(text, 1, source="python")
    assert reason(job.logs()).fault_class == name
