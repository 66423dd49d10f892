"""Devices that fail: GPUs and InfiniBand adapters."""

from __future__ import annotations

from diag.hang.model import Role
from diag.hang.signatures.base import NAMES_AN_EFFECT, FaultClass, Signature

CLASSES = (
    FaultClass(
        id="gpu_hardware",
        title="a GPU failed",
        priority=1,
        next_steps=(
            "Drain {where} and rerun the job on other hosts.",
            "On {host}: `nvidia-smi -q` (ECC errors, retired pages, remapped rows), `dmesg -T | grep -i xid`, "
            "`nvidia-smi nvlink -s`; then `dcgmi diag -r 3`.",
        ),
        signatures=(
            Signature(
                "xid",
                ("NVRM: Xid",),
                r"NVRM: Xid \(PCI:(?P<bus_id>[0-9a-fA-F:.]+)\): (?P<xid>\d+)",
                "any driver",
                "kernel log of the NVIDIA driver",
                "The kernel reports Xid {xid} of the GPU at {bus_id}.",
            ),
            Signature(
                "fallen-off-the-bus",
                ("fallen off the bus",),
                r"fallen off the bus",
                "any driver; newer ones without an Xid",
                "kernel log of the NVIDIA driver",
                "The GPU no longer answers on the PCI bus.",
            ),
            Signature(
                "uncorrectable-ecc",
                ("uncorrectable ECC error", "Uncorrectable ECC error"),
                r"[Uu]ncorrectable ECC error(?!s?\s*(?:count\s*)?:\s*0\b)",
                "any",
                "CUDA error text, NVML",
                "The GPU's memory returned an uncorrectable error.",
            ),
            Signature(
                "no-device-handle",
                ("Unable to determine the device handle",),
                r"Unable to determine the device handle(?: for GPU ?(?P<bus_id>[0-9a-fA-F:.]+))?",
                "any driver",
                "nvidia-smi",
                "The driver lost the GPU.",
            ),
            Signature(
                "p2p-disabled-on-nvlink",
                ("P2P is disabled between NVLINK connected GPUs",),
                r"P2P is disabled between NVLINK connected GPUs (?P<gpu>\d+) and (?P<other_gpu>\d+)",
                "2.12+",
                "graph/paths.cc:360",
                "GPUs {gpu} and {other_gpu} are connected by NVLink and cannot reach each other.",
            ),
        ),
    ),
    FaultClass(
        id="ib_device_fatal",
        title="an InfiniBand adapter failed",
        priority=1,
        next_steps=(
            "Drain {host}: peers that report status 12 are its victims.",
            "On {host}: `ibstat`, `dmesg -T | grep -i mlx5`, `mlxlink -d DEVICE -m`; restart or replace the adapter.",
        ),
        rules_out={"ib_completion_error": "retries that run out on the peers are what a dead adapter looks like"},
        signatures=(
            Signature(
                "local-catastrophic-error",
                ("Got async event : local catastrophic error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : local catastrophic error",
                "<= 2.22",
                "transport/net_ib.cc:95 (v2.18.3)",
                "The adapter reports a catastrophic error.",
            ),
            Signature(
                "async-fatal-event",
                ("async fatal event",),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) async fatal event(?: on \w+[^:]*)?: (?P<event>.+)",
                "2.23+",
                "transport/net_ib/common.cc:100",
                "Adapter {hca}, port {port}, reports: {event}.",
            ),
        ),
    ),
    FaultClass(
        id="ib_link_down",
        title="an InfiniBand link went down",
        priority=1,
        next_steps=(
            "On {host}: `ibstat` (state, physical state), `ibqueryerrors`, `mlxlink -d DEVICE`; then cable, "
            "transceiver "
            "and switch port.",
            "Peers that report status 12 are victims of that link; a flap shorter than the retries can be ridden out "
            "with NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7.",
        ),
        rules_out={"ib_completion_error": "retries that run out on the peers are what a lost link looks like"},
        signatures=(
            Signature(
                "port-error",
                ("Got async event : port error",),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got async event : port error",
                "<= 2.22",
                "transport/net_ib.cc:95 (v2.18.3)",
                "A port of the adapter lost its link.",
            ),
            Signature(
                "non-fatal-port-error",
                ("Got non-fatal async event", "Got async error event"),
                r"NET/IB : (?P<hca>\w+):(?P<port>\d+) Got (?:non-fatal async|async error) event: "
                r"(?:port error|port down)",
                "2.23+ (error), 2.28+ (non-fatal)",
                "transport/net_ib.cc:199 (v2.27.5), transport/net_ib/common.cc:134",
                "Adapter {hca}, port {port}, lost its link.",
            ),
            Signature(
                "non-fatal-other",
                ("Got non-fatal async event", "Got async event", "Got async error event"),
                r"NET/IB : (?:(?P<hca>\w+):(?P<port>\d+) )?Got (?:non-fatal )?async (?:error )?event ?: "
                r"(?P<event>(?!port error|port down|local catastrophic).+)",
                "all",
                "transport/net_ib/common.cc:134",
                "An event that the adapter survives: {event}.",
                Role.CONFIRMATION,
                NAMES_AN_EFFECT,
            ),
        ),
    ),
)
