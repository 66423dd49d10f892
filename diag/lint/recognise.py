"""Whose configuration a file is, by what it holds and not by its name."""

from __future__ import annotations

from typing import Any

from diag.errors import DiagError

from .arguments_keys import TELLING
from .document import Document
from .fsdp import KNOWN
from .model import Format
from .torchtitan_keys import MOVED, TABLES

_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_ACCELERATE = ("distributed_type", "compute_environment")
_ENGINES = ("fsdp", "fsdp_config", "deepspeed")
_HINT = "diag plan reads DeepSpeed JSON, Accelerate YAML, TrainingArguments, fsdp_config and torchtitan TOML"


def recognise(document: Document) -> Format:
    """The format. DiagError for a model's config.json and for what is none of them."""
    if is_model(document.values):
        raise DiagError(
            "a model's config.json, not a configuration of training",
            path=document.path,
            hint="give it alone, with --gpus, to plan memory and strategy",
        )
    found = _format(document)
    if found is None:
        raise DiagError("no configuration that is known here", path=document.path, hint=_HINT)
    return found


def is_model(values: dict[str, Any]) -> bool:
    """Whether these are the keys of a Hugging Face config.json."""
    return isinstance(values.get("model_type"), str) and not any(key in values for key in (*_ACCELERATE, *_ENGINES))


def _format(document: Document) -> Format | None:
    values = document.values
    tables = [key for key, value in values.items() if isinstance(value, dict) and (key in TABLES or key in MOVED)]
    if document.syntax == "toml" and ("parallelism" in tables or len(tables) > 1):
        return Format.TORCHTITAN
    if any(key in values for key in _ACCELERATE):
        return Format.ACCELERATE
    if any(key in values for key in _ENGINES):
        return Format.TRAINING_ARGUMENTS
    if any(key in values for key in _DEEPSPEED) or any(isinstance(values.get(key), dict) for key in ("fp16", "bf16")):
        return Format.DEEPSPEED
    if sum(key in TELLING for key in values) > 1:
        return Format.TRAINING_ARGUMENTS
    if any(key.removeprefix("fsdp_") in KNOWN["Transformers"] - {"version"} for key in values):
        return Format.FSDP_CONFIG
    return None
