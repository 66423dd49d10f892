"""Rules for torchtitan's memory, recomputation, number types and checkpoints, and for the names of its keys."""

from __future__ import annotations

from collections.abc import Iterator

from .model import Notice, Severity
from .section import nearest
from .torchtitan import Titan
from .torchtitan_keys import MOVED, TABLES

_CONFIG = "torchtitan/config/job_config.py (v0.2.2)"
_POLICIES = ("default", "always", "never")
_MODES = ("selective", "full", "memory_budget", "none")


def no_more_toml(seen: Titan) -> Iterator[Notice]:
    """The format itself."""
    yield seen.say("", Severity.NOTE, "torchtitan after v0.2.2 reads no TOML: configurations are Python functions.",
                   "a function in the model's config_registry.py", "pytorch/torchtitan#2386")  # fmt: skip


def moved_keys(seen: Titan) -> Iterator[Notice]:
    """Keys that newer versions have elsewhere."""
    for old, new in MOVED.items():
        table, _, key = old.partition(".")
        if table in seen.top.values and (not key or key in seen.table(table).values):
            yield seen.say(
                old, Severity.NOTE, "An older name, which newer versions refuse.", new or "remove it", _CONFIG
            )


def unknown_keys(seen: Titan) -> Iterator[Notice]:
    """Tables and keys that no version has, where the file names no module that adds some."""
    if seen.extended:
        return
    for name, value in seen.top.values.items():
        if name in MOVED:
            continue
        if name not in TABLES:
            near = nearest(name, TABLES)
            yield seen.say(name, Severity.ERROR, "torchtitan has no such table and refuses the file.",
                           f"[{near}]" if near else "remove it", f"{_CONFIG}, manager.py")  # fmt: skip
            continue
        known = TABLES[name]
        if not isinstance(value, dict) or known is None:
            continue
        for key, near in seen.table(name).unknown(known):
            if f"{name}.{key}" not in MOVED:
                yield seen.say(f"{name}.{key}", Severity.ERROR, "torchtitan has no such key and refuses the file.",
                               near or "remove it", f"{_CONFIG}, manager.py")  # fmt: skip


def resharding(seen: Titan) -> Iterator[Notice]:
    """Policies for parameters after forward."""
    for table in ("parallelism", "training"):
        section = seen.table(table)
        policy = section.values.get("fsdp_reshard_after_forward")
        key = f"{table}.fsdp_reshard_after_forward"
        source = "torchtitan/models/llama3/infra/parallelize.py: apply_fsdp"
        pipelined = seen.degrees["pp"] > 1
        if policy is None:
            continue
        if policy not in _POLICIES:
            yield seen.say(key, Severity.ERROR, f"There is no policy {section.shown('fsdp_reshard_after_forward')}.",
                           '"default", "always" or "never"', source)  # fmt: skip
        elif policy == "never" and not pipelined:
            yield seen.say(key, Severity.WARNING,
                           "Every unit's parameters stay gathered from forward to backward: the whole model in 16 bits "
                           "at the peak, for one all-gather less.", '"default"', source)  # fmt: skip
        elif policy == "always" and pipelined:
            yield seen.say(key, Severity.WARNING,
                           "In a pipeline this gathers every unit again for each micro-batch's backward, which the "
                           "default avoids.", '"default"', source)  # fmt: skip


def recomputation(seen: Titan) -> Iterator[Notice]:
    """Modes of activation checkpointing that there are not, or that need something else."""
    section = seen.table("activation_checkpoint")
    mode, option = section.values.get("mode"), section.values.get("selective_ac_option")
    source = "torchtitan/distributed/activation_checkpoint.py"
    if mode is not None and mode not in _MODES:
        yield seen.say("activation_checkpoint.mode", Severity.ERROR, f"There is no mode {section.shown('mode')}.",
                       " or ".join(f'"{name}"' for name in _MODES), source)  # fmt: skip
    if mode == "memory_budget" and not seen.compiles:
        yield seen.say("activation_checkpoint.mode", Severity.ERROR,
                       "memory_budget is an option of the compiler and fails without it.", "[compile] enable = true",
                       source)  # fmt: skip
    if mode in (None, "selective") and option is not None and option != "op" and not str(option).isdecimal():
        yield seen.say("activation_checkpoint.selective_ac_option", Severity.ERROR,
                       'It is "op" or a number in quotes (every nth layer).', '"op"', source)  # fmt: skip


def number_types(seen: Titan) -> Iterator[Notice]:
    """Number types that cost bandwidth, or digits."""
    training = seen.table("training")
    if training.word("mixed_precision_param") == "float32" and training.word("dtype") != "bfloat16":
        yield seen.say("training.mixed_precision_param", Severity.WARNING,
                       "All-gathers carry 32 bits and matrix units run in fp32 or TF32.", '"bfloat16"',
                       _CONFIG)  # fmt: skip
    if training.word("dtype") == "bfloat16":
        yield seen.say("training.dtype", Severity.NOTE,
                       "Parameters, gradients and moments are kept in bf16 without an fp32 copy: small updates are "
                       "lost to rounding.", '"float32", with mixed_precision_param = "bfloat16"', _CONFIG)  # fmt: skip
    if training.word("mixed_precision_reduce") not in (None, "float32"):
        yield seen.say("training.mixed_precision_reduce", Severity.ERROR, "torchtitan reduces in float32 only.",
                       '"float32"', _CONFIG)  # fmt: skip


def offload(seen: Titan) -> Iterator[Notice]:
    """What offloading to the CPU costs."""
    if seen.table("training").flag("enable_cpu_offload"):
        yield seen.say("training.enable_cpu_offload", Severity.WARNING,
                       "Shards cross PCIe in every forward and backward, and the optimizer runs on the CPU.",
                       "false, if the states fit: diag plan MODEL --gpus N",
                       "torch.distributed.fsdp.CPUOffloadPolicy")  # fmt: skip


def checkpoints(seen: Titan) -> Iterator[Notice]:
    """Checkpoints that stop training, or that are thrown away too early."""
    section = seen.table("checkpoint")
    on = section.flag("enable") is True or section.flag("enable_checkpoint") is True
    if on and section.word("async_mode") in (None, "disabled"):
        yield seen.say("checkpoint.async_mode", Severity.WARNING, "Training stands still while one is written.",
                       '"async"', f"{_CONFIG}: async_mode")  # fmt: skip
    if section.whole("keep_latest_k") == 1:
        yield seen.say("checkpoint.keep_latest_k", Severity.ERROR,
                       "With 1 the only one may be half-written, so it is refused.", "keep_latest_k = 2",
                       "torchtitan/components/checkpoint.py")  # fmt: skip


RULES = (
    no_more_toml, moved_keys, unknown_keys, resharding, recomputation, number_types, offload, checkpoints,
)  # fmt: skip
