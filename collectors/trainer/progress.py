"""One line a step on standard output, without waiting for the accelerator."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor


class _Line(NamedTuple):
    step: int
    loss: Tensor
    ready: torch.cuda.Event | None  # None: the loss is on the host already
    dur_ns: int
    tokens: int

    def arrived(self) -> bool:
        return self.ready is None or bool(self.ready.query())  # type: ignore[no-untyped-call]


class Progress:
    """Prints steps on rank 0 as their losses arrive, in order."""

    def __init__(self, rank: int) -> None:
        self._silent = rank != 0
        self._waiting: deque[_Line] = deque()

    def add(self, step: int, loss: Tensor, dur_ns: int, tokens: int) -> None:
        """A finished step: its mean loss, the host's nanoseconds, and the tokens of all ranks.

        On an accelerator the loss is copied behind the work in flight, so its line can be some steps late.
        """
        if self._silent:
            return
        ready = None
        if loss.device.type == "cuda":
            on_device, loss = loss, torch.empty((), dtype=loss.dtype, pin_memory=True)
            loss.copy_(on_device, non_blocking=True)
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self._waiting.append(_Line(step, loss, ready, dur_ns, tokens))
        while self._waiting and self._waiting[0].arrived():
            self._print(self._waiting.popleft())

    def finish(self) -> None:
        """Wait for what is under way and print it."""
        for line in self._waiting:
            if line.ready is not None:
                line.ready.synchronize()
            self._print(line)
        self._waiting.clear()

    def _print(self, line: _Line) -> None:
        rate = line.tokens * 1e9 / line.dur_ns
        print(f"step {line.step}  loss {line.loss:.6f}  {line.dur_ns / 1e6:.1f} ms  {rate:.0f} tokens/s", flush=True)
