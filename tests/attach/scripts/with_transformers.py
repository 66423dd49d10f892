"""Hugging Face's Trainer, as its users write it: under Accelerate's DDP, FSDP or DeepSpeed, or with a model that
transformers shards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from planted import BATCH, STEPS, TORCH_OPTIMIZER, WIDTH, Samples, compile_nothing, parser, seconds_a_sample, slow_down
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

CONFIG = LlamaConfig(
    vocab_size=WIDTH,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


ZERO_3 = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
    **TORCH_OPTIMIZER,
}


class Texts(Dataset[dict[str, Tensor]]):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.samples[index]
        return {"input_ids": tokens, "labels": tokens}


def sharded(folder: Path, ranks: int) -> LlamaForCausalLM:
    """What rank 0 has saved, loaded as FSDP2 over all ranks: one unit a layer."""
    LlamaForCausalLM(CONFIG).save_pretrained(folder)
    torch.distributed.barrier()
    layers = {"model.layers.*": "free_full_weight"}
    config = DistributedConfig(fsdp_size=ranks, fsdp_plan=layers)
    return LlamaForCausalLM.from_pretrained(folder, distributed_config=config)


def take_the_cpu_for_an_accelerator() -> None:
    """Accelerate shards on accelerators only: on a CPU it trains with DDP, whatever is asked for. What it does then is
    its own, and runs on any device."""
    make = AcceleratorState.__init__

    def init(state: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        make(state, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = init


def main() -> None:
    options = parser()
    options.add_argument("--fsdp2", action="store_true", help="by transformers")
    options.add_argument("--accelerate-fsdp2", action="store_true", help="by Accelerate")
    options.add_argument("--accelerate-zero3", action="store_true", help="DeepSpeed's, by Accelerate")
    given = options.parse_args()
    if given.accelerate_zero3:
        import deepspeed

        compile_nothing(deepspeed)
    if given.accelerate_fsdp2:
        take_the_cpu_for_an_accelerator()
    arguments = TrainingArguments(
        output_dir=given.folder or tempfile.gettempdir(),
        use_cpu=True,
        fsdp=given.accelerate_fsdp2,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
        deepspeed=ZERO_3 if given.accelerate_zero3 else None,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=given.accumulate,
        max_steps=STEPS,
        eval_strategy="steps" if given.evaluate_every else "no",
        eval_steps=given.evaluate_every or None,
        save_strategy="steps" if given.save_every else "no",
        save_steps=given.save_every or STEPS,
        logging_steps=8,
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    torch.manual_seed(0)
    model = sharded(Path(given.folder, "model"), arguments.world_size) if given.fsdp2 else LlamaForCausalLM(CONFIG)
    slow_down(model, given)
    count = STEPS * BATCH * given.accumulate * arguments.world_size
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Texts(Samples(count, seconds_a_sample(given))),
        eval_dataset=Texts(Samples(4 * BATCH * arguments.world_size, 0.002)),
    )
    trainer.train()
    if given.save_every and trainer.is_world_process_zero():
        print("saved", len(list(Path(given.folder).glob("checkpoint-*"))))


if __name__ == "__main__":
    main()
