"""Hugging Face's Trainer with a small Llama from its configuration: nothing is downloaded.

    torchrun --nproc-per-node 2 examples/hf_trainer.py
    diag run --nproc 2 --out runs/hf-trainer examples/hf_trainer.py

The second line trains the same, and records where the time of each step goes. `accelerate launch` works behind
`diag run --out runs/hf-trainer --` as well.
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS, BATCH, TOKENS, WORDS = 30, 4, 64, 512


class Texts(Dataset):
    """Your own tokens go here."""

    def __len__(self) -> int:
        return STEPS * BATCH * 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, WORDS, (TOKENS,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=10,
        save_strategy="no",
        report_to="none",
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=Texts()).train()


if __name__ == "__main__":
    main()
