"""Where a training computes, without choosing for it: asking CUDA begins to use it."""

from __future__ import annotations

import os

import torch


def device() -> torch.device:
    """Where the training computes, as far as it has begun to."""
    if torch.cuda.is_available() and _cuda_used():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def device_known() -> bool:
    """Whether ``device`` will not tell another one later."""
    if not torch.cuda.is_available():
        return True
    if not _cuda_used():
        return False
    return torch.cuda.device_count() == 1 or str(torch.cuda.current_device()) == os.environ.get("LOCAL_RANK", "")


def _cuda_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
