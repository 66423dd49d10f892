"""torchtitan's Trainer and its Llama, sharded as FSDP2, with a loader of our own: as its users add one.

torchtitan trains on accelerators only: here the CPU passes for one, FSDP2 sums up without a factor, which gloo does
not know, and kernels for experts, which need triton, may be missing. What it does then is its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from planted import BATCH, LENGTH, STEPS, WIDTH, Samples, parser, seconds_a_sample, slow_down
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Dataset


class Accelerator:
    """torch.cpu with what torchtitan asks of an accelerator's module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0

    def get_device_name(self, _device: object) -> str:
        return "CPU"

    def get_device_properties(self, _device: object) -> SimpleNamespace:
        return SimpleNamespace(total_memory=1 << 33)

    def memory_stats(self, _device: object) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass


if find_spec("triton") is None:
    sys.modules["torchtitan.models.moe.kernels"] = MagicMock()

with (
    patch("torch._utils._get_available_device_type", lambda: "cpu"),
    patch("torch._utils._get_device_module", lambda _kind: Accelerator()),
):
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.config import JobConfig
    from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec, parallelize_llama
    from torchtitan.protocols.train_spec import register_train_spec
    from torchtitan.train import Trainer


class Texts(Dataset[tuple[dict[str, Tensor], Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        tokens = self.samples[index]
        return {"input": tokens}, tokens


def main() -> None:
    options = parser()
    options.add_argument("--workers", type=int, default=0, help="of the loader")
    given = options.parse_args()

    def loader(*, dp_rank: int, dp_world_size: int, **_: Any) -> ParallelAwareDataloader:
        texts = Texts(Samples(STEPS * BATCH * given.accumulate, seconds_a_sample(given)))
        return ParallelAwareDataloader(texts, dp_rank, dp_world_size, batch_size=BATCH, num_workers=given.workers)

    def parallelize(*args: Any) -> nn.Module:
        model = parallelize_llama(*args)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        slow_down(model, given)
        return model

    spec = replace(
        get_train_spec(),
        model_args={"small": TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=WIDTH)},
        parallelize_fn=parallelize,
        build_dataloader_fn=loader,
        build_tokenizer_fn=None,
        state_dict_adapter=None,
    )
    register_train_spec("planted", spec)
    config = JobConfig()
    config.model.name, config.model.flavor = "planted", "small"
    config.job.dump_folder = given.folder or tempfile.gettempdir()
    config.training.steps, config.training.seq_len, config.training.local_batch_size = STEPS, LENGTH, BATCH
    config.training.global_batch_size = BATCH * given.accumulate * int(os.environ["WORLD_SIZE"])
    config.checkpoint.enable, config.checkpoint.interval = bool(given.save_every), given.save_every or STEPS
    trainer = Trainer(config)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
