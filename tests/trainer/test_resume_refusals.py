"""From which checkpoint a run can go on, and what it is told of the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.collectors.trainer.checkpoint import folder
from diag.collectors.trainer.checkpoint.folder import DEEPSPEED
from diag.collectors.trainer.keys import OptionError
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import differences, refuse_data, validate
from tests.trainer.checkpoints import make

SAVED = TrainerOptions(batch_size=2, seq_len=32)
OF_ENGINE: dict[str, Any] = {"kind": DEEPSPEED, "strategy": "deepspeed-zero2"}


def asked(**changes: Any) -> TrainerOptions:
    return TrainerOptions(**{"batch_size": 2, "seq_len": 32, **changes})


@pytest.mark.parametrize(
    ("of_checkpoint", "options", "ranks", "message"),
    [
        ({}, asked(preset="small"), 2, "is a checkpoint of another model (dim 64, not 320, layers 2, not 8"),
        ({}, asked(seed=1), 2, "was trained with --seed 0, which determines the order of the data"),
        ({}, asked(seq_len=16), 2, "sequences of 32 tokens: its position in the data is not valid with --seq-len 16"),
        ({}, asked(steps=5), 2, "is at step 5, and --steps 5 includes the steps before it: give more"),
        ({}, asked(batch_size=3), 2, "not a multiple of the 6 that the ranks of this run read at a time (2 x 3)"),
        ({}, asked(), 3, "Give a --batch-size and number of ranks whose product divides 20"),
        ({}, asked(strategy="deepspeed"), 2, "was saved by fsdp2, and --strategy deepspeed cannot read it"),
        (OF_ENGINE, asked(), 2, "was saved by deepspeed-zero2, and --strategy fsdp2 cannot read it"),
        (OF_ENGINE, asked(strategy="deepspeed", settings=("stage=3",)), 2, "reads it with the same stage only"),
        (OF_ENGINE, asked(strategy="deepspeed"), 4, "was saved on 2 ranks, and this run has 4"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_is_refused_before_anything_starts(
    of_checkpoint: dict[str, Any], options: TrainerOptions, ranks: int, message: str, tmp_path: Path
) -> None:
    checkpoint = make(tmp_path, 5, SAVED, **of_checkpoint)
    resumed = TrainerOptions(**{**vars(options), "resume": str(checkpoint)})
    with pytest.raises(OptionError) as refused:
        validate(resumed, ranks)
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"--resume {checkpoint}")


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        (asked(), 2),
        (asked(strategy="ddp"), 2),
        (asked(batch_size=1), 4),
        (asked(batch_size=4), 1),
        (asked(tensor_parallel=2), 4),
        (asked(batch_size=5), 2),
        (asked(steps=6), None),
    ],
)
def test_other_strategies_and_ranks_go_on(options: TrainerOptions, ranks: int | None, tmp_path: Path) -> None:
    make(tmp_path, 5, SAVED)
    validate(TrainerOptions(**{**vars(options), "resume": str(tmp_path)}), ranks)


def test_other_text_is_refused(tmp_path: Path) -> None:
    was = {"fingerprint": "abc", "source": "corpus", "documents": 3, "bytes": 100}
    make(tmp_path, 5, SAVED, data=was)
    checkpoint = folder.find(tmp_path)
    refuse_data(checkpoint, was)
    with pytest.raises(OptionError, match=r"trained on corpus \(3 documents, 100 bytes\); corpus is different"):
        refuse_data(checkpoint, {**was, "fingerprint": "abd", "bytes": 101})


def said(root: Path, options: TrainerOptions, ranks: int = 2, torch: str = "2.13") -> list[str]:
    return differences(folder.find(root), options, ranks, options.strategy, {"dp": ranks}, {"torch": torch})


def test_what_differs_is_told_and_nothing_else(tmp_path: Path) -> None:
    make(tmp_path, 5, SAVED, versions={"torch": "2.13"})
    assert said(tmp_path, asked()) == []
    assert said(tmp_path, asked(steps=100, num_workers=0, checkpoint_every=3)) == []
    assert said(tmp_path, asked(strategy="ddp", batch_size=4), 1) == [
        "fsdp2 on 2 ranks before, now ddp on 1 rank: the order of floating-point sums differs",
        "batch_size was 2 and is 4",
    ]
    assert said(tmp_path, asked(learning_rate=1e-3, warmup_steps=2), torch="2.14") == [
        "learning_rate was 0.0003 and is 0.001",
        "warmup_steps was 0 and is 2",
        "torch was 2.13 and is 2.14",
    ]


def test_powersgd_begins_again(tmp_path: Path) -> None:
    options = asked(strategy="ddp", settings=("comm_hook=powersgd",))
    make(tmp_path, 5, options)
    assert said(tmp_path, options) == ["PowerSGD restarts with empty error feedback"]
