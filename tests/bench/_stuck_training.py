"""The trainings that ``stuck.py`` watches, each as its users write it, with a fault in one step, or with none.

``python -m tests.bench._stuck_training bundled|plain|transformers|lightning FOLDER KIND CULPRIT STEP_S``, once a rank.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

FAULT_STEP = 25
MANY = 10**6
EVALUATE_EVERY, SAVE_EVERY = 60, 100


class Planted:
    """What happens in each step of a rank, besides training."""

    def __init__(self, folder: Path, kind: str, culprit: int, step_s: float) -> None:
        self.folder, self.kind, self.culprit, self.step_s = folder, kind, culprit, step_s
        self.rank = int(os.environ["RANK"])
        self.groups: list[Any] = []

    def begin(self) -> None:
        """After the process group was made."""
        import torch.distributed as dist

        timeout = timedelta(minutes=30)
        self.groups = [dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)]

    def step(self, step: int) -> None:
        """Called by every rank in every step, before its forward."""
        import torch
        import torch.distributed as dist

        time.sleep(self.step_s)
        faulty = step == FAULT_STEP and (self.rank == self.culprit or self.culprit < 0) and self.kind != "none"
        if faulty:
            (self.folder / f"fault-{self.rank}").write_text(str(time.time()))
            self._fail()
        order = list(self.groups)
        if faulty and self.kind == "deadlock of two groups":
            order.reverse()
        for number, group in enumerate(order):
            if not (faulty and number == 0 and self.kind == "collective skipped"):
                dist.all_reduce(torch.ones(1), group=group)

    def _fail(self) -> None:
        if self.kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "endless loop":
            while True:
                pass
        elif self.kind == "blocked in I/O":
            (self.folder / "pipe").read_text()
        elif self.kind == "all wait for a lock":
            with (self.folder / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        elif self.kind == "store away":
            import torch.distributed as dist

            os.kill(int((self.folder / "store.pid").read_text()), signal.SIGSTOP)
            dist.new_group(timeout=timedelta(minutes=30))


def torch_of_one_thread() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch


def plain(planted: Planted) -> None:
    torch = torch_of_one_thread()
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    planted.begin()
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Noise(64), batch_size=8)
    for step, batch in enumerate(loader):
        planted.step(step)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if planted.kind == "none" and step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            evaluate(model, step)
        if planted.kind == "none" and step % SAVE_EVERY == 0 and planted.rank == 0:
            time.sleep(4)  # a slow disk; nothing announces it
            torch.save(model.state_dict(), planted.folder / "model.pt")


class Noise:
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.randn(self.width)


def evaluate(model: Any, step: int) -> None:
    """Batches from memory, which take 2 to 20 seconds together; the first evaluation is as long as any."""
    import torch

    model.eval()
    with torch.no_grad():
        for _ in range(10):
            time.sleep(2 if step < EVALUATE_EVERY else 0.2 + (step % 7) * 0.3)
            model.module(torch.randn(8, 64))
    model.train()


def bundled(planted: Planted) -> None:
    from diag.collectors.trainer import __main__ as trainer
    from diag.collectors.trainer.loop import Trainer

    torch_of_one_thread()
    run, step = Trainer.run, Trainer.step

    def run_all(self: Any) -> None:
        planted.begin()
        run(self)

    def one_step(self: Any, number: int, record: Any) -> Any:
        with self.collector.phase("forward"):
            planted.step(number)
        return step(self, number, record)

    Trainer.run, Trainer.step = run_all, one_step  # type: ignore[method-assign]
    options: dict[str, Any] = {"strategy": "ddp", "steps": MANY, "timeout_s": 1800}
    if planted.kind == "none":
        options |= {"checkpoint_every": SAVE_EVERY, "checkpoint_dir": str(planted.folder / "saved")}
    os.environ["DIAG_TRAINER_OPTIONS"] = json.dumps(options)
    sys.argv[1:] = []
    trainer.leave(trainer.main())


def transformers(planted: Planted) -> None:
    torch_of_one_thread()
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    class Texts(Noise):
        def __getitem__(self, index: int) -> Any:
            import torch

            tokens = (torch.arange(16) + index) % 64
            return {"input_ids": tokens, "labels": tokens}

    class Faults(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_args: Any, **_more: Any) -> None:
            planted.begin()

        def on_step_begin(self, _args: Any, state: Any, *_rest: Any, **_more: Any) -> None:
            planted.step(state.global_step)

    healthy = planted.kind == "none"
    arguments = TrainingArguments(
        output_dir=str(planted.folder / "saved"), use_cpu=True, per_device_train_batch_size=4, max_steps=MANY,
        eval_strategy="steps" if healthy else "no", eval_steps=EVALUATE_EVERY, save_steps=SAVE_EVERY,
        save_strategy="steps" if healthy else "no", save_total_limit=1, logging_steps=8, report_to="none",
        disable_tqdm=True, seed=0, ddp_timeout=1800,
    )  # fmt: skip
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    short = Texts(64)
    short.__class__ = type("Few", (Texts,), {"__len__": lambda _self: 400})
    Trainer(
        LlamaForCausalLM(config), arguments, train_dataset=Texts(64), eval_dataset=short, callbacks=[Faults()]
    ).train()


def lightning(planted: Planted) -> None:
    torch = torch_of_one_thread()
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    class Net(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(64, 64)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(batch).square().mean()

        def validation_step(self, batch: Any, number: int) -> None:
            time.sleep(0.5)
            self.net(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Faults(pl.Callback):  # type: ignore[misc]
        def on_train_start(self, *_args: Any) -> None:
            planted.begin()

        def on_train_batch_start(self, trainer: Any, *_args: Any) -> None:
            planted.step(trainer.global_step)

    healthy = planted.kind == "none"
    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_steps=MANY, callbacks=[Faults()],
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timedelta(minutes=30)),
        val_check_interval=EVALUATE_EVERY if healthy else None, limit_val_batches=12 if healthy else 0,
        num_sanity_val_steps=0, default_root_dir=str(planted.folder / "saved"), enable_checkpointing=False,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(Noise(64), batch_size=8), DataLoader(Noise(64), batch_size=8))


def serve_store(folder: Path, port: int, ranks: int) -> Iterator[None]:
    """The store of the process group, in a process of its own: on another host, in a real job."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=True, wait_for_workers=False)
    (folder / "store.pid").write_text(str(os.getpid()))
    while store is not None:
        time.sleep(600)
        yield


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    if what == "store":
        list(serve_store(Path(folder), int(rest[0]), int(rest[1])))
        return
    kind, culprit, step_s = rest
    trainings = {"bundled": bundled, "plain": plain, "transformers": transformers, "lightning": lightning}
    trainings[what](Planted(Path(folder), kind, int(culprit), float(step_s)))


if __name__ == "__main__":
    main()
