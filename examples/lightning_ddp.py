"""Lightning's Trainer with DDP, which starts its own ranks.

    python examples/lightning_ddp.py
    diag run --out runs/lightning -- python examples/lightning_ddp.py

The second line trains the same, and records where the time of each step goes.
"""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, WIDTH, RANKS = 30, 32, 256, 2


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self.net = nn.Sequential(*layers, nn.Linear(WIDTH, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _number: int) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    pl.seed_everything(0)
    samples = STEPS * BATCH * RANKS
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,)))  # your own data goes here
    trainer = pl.Trainer(
        accelerator="auto",
        devices=RANKS,
        strategy="ddp",
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), DataLoader(data, BATCH, num_workers=1, persistent_workers=True))


if __name__ == "__main__":
    main()
