"""The frameworks' callbacks, in trainings of one process; and that the collectors do without the frameworks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import read_fields
from diag.collectors.settings import CollectorSettings

PLAIN = CollectorSettings(trace=False, nvml=False)


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in RunLayout(run).rank(0).steps.read_text().splitlines()]


def phases_of(step: dict[str, Any]) -> list[str]:
    return [name for name, _, _ in step["phases"]]


def heartbeat_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RunLayout(run).rank(0).heartbeat.read_text())
    return content


def test_the_collectors_need_no_framework() -> None:
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('transformers', 'lightning', 'accelerate', 'deepspeed'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import diag.collectors\n"
        "assert 'torch' not in sys.modules\n"
        "from diag.collectors import record\n"
        "import diag.collectors.callbacks\n"
        "try:\n"
        "    import diag.collectors.callbacks.lightning\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "lightning\n"), done.stderr


class Net(nn.Module):
    """As Hugging Face's Trainer wants it: gives the loss."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.layer, self.calls, self.fails = nn.Linear(4, 4), 0, fails

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        if self.fails and self.calls == 3:
            raise ValueError("planted")
        return {"loss": self.layer(x).square().mean()}


def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import Trainer, TrainingArguments

    from diag.collectors.callbacks.huggingface import DiagCallback

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=3,
        report_to="none",
        disable_tqdm=True,
    )
    data = [{"x": torch.ones(4)} for _ in range(40)]
    callback = DiagCallback(tmp_path / "run", PLAIN)
    trainer = Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[callback])  # type: ignore[arg-type]
    trainer.train()
    steps = steps_of(tmp_path / "run")
    assert [step["micro_batches"] for step in steps] == [2] * 6
    assert [step["step"] for step in steps if "evaluation" in phases_of(step)] == [4]
    assert [step["step"] for step in steps if "checkpoint" in phases_of(step)] == [3]
    assert phases_of(steps[5]) == ["data", "data", *["forward", "backward"] * 2, "optimizer"]
    assert heartbeat_of(tmp_path / "run")["done"]


def test_transformers_where_the_recording_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import Trainer, TrainingArguments

    from diag.collectors.callbacks.huggingface import DiagCallback

    (tmp_path / "file").write_text("")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, max_steps=3, save_strategy="no", report_to="none", disable_tqdm=True
    )
    data = [{"x": torch.ones(4)} for _ in range(40)]
    callback = DiagCallback(tmp_path / "file", PLAIN)
    trainer = Trainer(Net(), arguments, train_dataset=data, callbacks=[callback])  # type: ignore[arg-type]
    assert trainer.train().global_step == 3
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("diag")]
    assert len(lines) == 1
    assert lines[0].startswith("diag: rank 0: nothing more is recorded")


@pytest.mark.parametrize("fails", [False, True])
def test_lightning(tmp_path: Path, fails: bool) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    from diag.collectors.callbacks.lightning import DiagCallback

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(fails)

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return self.net(batch)["loss"]

        def validation_step(self, batch: Tensor, number: int) -> None:
            self.net.layer(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters())

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=6,
        accumulate_grad_batches=2,
        val_check_interval=8,
        callbacks=[DiagCallback(tmp_path / "run", PLAIN)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train, validation = DataLoader(torch.ones(32, 4), batch_size=2), DataLoader(torch.ones(4, 4))  # type: ignore[arg-type]
    if fails:
        with pytest.raises(ValueError, match="planted"):
            trainer.fit(Module(), train, validation)
        assert len(steps_of(tmp_path / "run")) == 1
        assert heartbeat_of(tmp_path / "run")["phase"] == "failed: ValueError"
        return
    trainer.fit(Module(), train, validation)
    steps = steps_of(tmp_path / "run")
    assert [step["micro_batches"] for step in steps] == [2] * 6
    assert [step["step"] for step in steps if "evaluation" in phases_of(step)] == [4]  # none in the sanity check
    assert phases_of(steps[3]) == [*["data", "forward", "backward"] * 2, "optimizer"]
    assert heartbeat_of(tmp_path / "run")["done"]
    assert read_fields(RunLayout(tmp_path / "run"))["strategy"] == "none"
