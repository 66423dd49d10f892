"""Rules for TrainingArguments and the DeepSpeed configuration that they name: both say some things."""

from __future__ import annotations

from collections.abc import Iterator

from .arguments import Arguments
from .deepspeed import DeepSpeed
from .model import Notice, Severity

# DeepSpeed's key, the field that has to agree with it, and the field's default.
_SAME: tuple[tuple[str, str, float], ...] = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size", 8),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    ("gradient_clipping", "max_grad_norm", 1.0),
    ("optimizer.params.lr", "learning_rate", 5e-5),
    ("optimizer.params.eps", "adam_epsilon", 1e-8),
    ("optimizer.params.weight_decay", "weight_decay", 0.0),
)
_MATCH = "transformers/integrations/deepspeed.py: fill_match"


def mismatches(top: Arguments, inner: DeepSpeed) -> Iterator[Notice]:
    """Values that differ, at which the Trainer refuses to start."""
    for key, field, default in _SAME:
        *tables, last = key.split(".")
        table = inner.top
        for name in tables:
            table = table.within(name)
        theirs = table.number(last)
        mine = top.number(field) if field in top else default
        if theirs is None or mine is None or theirs == mine:
            continue
        own = top.shown(field) if field in top else f"its default, {default:g}"
        yield table.say(
            last, Severity.ERROR,
            f"{table.shown(last)} here, while {field} is {own}: the Trainer refuses to start.", f'"{last}": "auto"',
            _MATCH,
        )  # fmt: skip


def precision_mismatch(top: Arguments, inner: DeepSpeed) -> Iterator[Notice]:
    """A number type that is on in one and off in the other."""
    for kind in ("bf16", "fp16"):
        said, mine = inner.top.within(kind).flag("enabled"), top.flag(kind) is True
        if said is not None and said != mine and not top.flag(f"{kind}_full_eval"):
            yield inner.top.say(
                f"{kind}.enabled", Severity.ERROR,
                f"{'On' if said else 'Off'} here and {'on' if mine else 'off'} in TrainingArguments: the Trainer "
                "refuses to start.", f'"{kind}": {{"enabled": "auto"}}', _MATCH,
            )  # fmt: skip


RULES = (mismatches, precision_mismatch)
