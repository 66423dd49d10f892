"""The random numbers of one rank as plain JSON: nothing in it is ever executed."""

from __future__ import annotations

import base64
import random
import sys
from typing import Any

import torch
from torch import Tensor


def seed(number: int) -> None:
    """Sets every generator that ``capture`` would save: what nobody sets begins at random in each process."""
    random.seed(number)
    torch.manual_seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number % 2**32)


def capture(device: torch.device) -> dict[str, Any]:
    """The state of every generator that a training may draw from: Python's, NumPy's if it is there, torch's."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": _text(torch.get_rng_state())}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = [kind, keys.tolist(), *rest]
    if device.type == "cuda":
        state["cuda"] = _text(torch.cuda.get_rng_state(device))
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Puts the generators where they were. What one of the two processes does not have is left alone."""
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(_tensor(state["cuda"]), device)


def _text(state: Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
