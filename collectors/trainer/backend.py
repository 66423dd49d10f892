"""What the ranks of a host compute on, and what they talk through."""

from __future__ import annotations

import torch


def device_of(local_rank: int, local_world_size: int) -> torch.device:
    """A rank's own GPU, or the CPU where the host has fewer GPUs than ranks."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"
