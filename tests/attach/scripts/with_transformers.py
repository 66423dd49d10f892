"""Hugging Face's Trainer, as its users write it: under Accelerate's DDP, or with a model that transformers shards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from planted import BATCH, STEPS, WIDTH, Samples, parser, seconds_a_sample, slow_down
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


def main() -> None:
    options = parser()
    options.add_argument("--fsdp2", action="store_true")
    given = options.parse_args()
    arguments = TrainingArguments(
        output_dir=given.folder or tempfile.gettempdir(),
        use_cpu=True,
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
