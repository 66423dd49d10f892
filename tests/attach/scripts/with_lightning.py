"""Lightning's Trainer with DDP, as its users write it; started once by hand, or once a rank by torchrun."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from planted import BATCH, STEPS, WIDTH, Samples, parser, seconds_a_sample, slow_down
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(WIDTH, WIDTH), *[nn.Linear(WIDTH, WIDTH) for _ in range(4)])

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch).flatten(0, 1), batch.flatten())

    def validation_step(self, batch: Tensor, number: int) -> None:
        self.log("validation", self.training_step(batch, number), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    given = parser().parse_args()
    pl.seed_everything(0, verbose=False)
    model = Net()
    slow_down(model.net, given)
    count = STEPS * BATCH * given.accumulate * 2
    validation = DataLoader(Samples(4 * BATCH * 2, 0.002), batch_size=BATCH)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=given.accumulate,
        val_check_interval=given.evaluate_every * given.accumulate or None,
        limit_val_batches=1.0 if given.evaluate_every else 0,
        default_root_dir=given.folder or None,
        callbacks=[pl.callbacks.ModelCheckpoint(every_n_train_steps=given.save_every)] if given.save_every else [],
        enable_checkpointing=bool(given.save_every),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Samples(count, seconds_a_sample(given)), batch_size=BATCH), validation)


if __name__ == "__main__":
    main()
