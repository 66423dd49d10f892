"""Rules for the names of DeepSpeed's keys: unknown, deprecated, given twice, left to somebody else."""

from __future__ import annotations

from collections.abc import Iterator

from . import deepspeed_keys as keys
from .deepspeed import DeepSpeed
from .model import Notice, Severity

_FORBIDDEN = "deepspeed/runtime/config_utils.py: DeepSpeedConfigModel forbids unknown fields"
_TABLES = (
    (("zero_optimization",), keys.ZERO),
    (("zero_optimization", "offload_param"), keys.OFFLOAD_PARAM),
    (("zero_optimization", "offload_optimizer"), keys.OFFLOAD_OPTIMIZER),
    (("bf16",), keys.BF16),
    (("fp16",), keys.FP16),
)


def unknown_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that DeepSpeed does not know: refused in the tables it checks, ignored at the top."""
    for place, known in _TABLES:
        table = seen.top
        for part in place:
            table = table.within(part)
        for key, near in table.unknown(known):
            yield table.say(
                key, Severity.ERROR, "DeepSpeed does not know this key here and refuses to start.",
                f'"{near}"' if near else "remove it", _FORBIDDEN,
            )  # fmt: skip
    for key, near in seen.top.unknown(keys.TOP):
        if key in keys.ZERO:
            text, instead = (
                "It belongs into zero_optimization; here it is ignored.",
                f'"zero_optimization": {{"{key}"}}',
            )
        else:
            text = "DeepSpeed reads no such key and does not say so: it is ignored."
            instead = f'"{near}"' if near else "remove it"
        sure = key in keys.ZERO or near is not None
        yield seen.top.say(
            key, Severity.ERROR if sure else Severity.WARNING, text, instead,
            "deepspeed/runtime/config.py, constants.py",
        )  # fmt: skip


def deprecated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that DeepSpeed still takes, with a warning."""
    for key, instead in keys.DEPRECATED.items():
        if key in seen.zero:
            yield seen.zero.say(key, Severity.NOTE, "Deprecated.", instead, "deepspeed/runtime/zero/config.py")
    if isinstance(seen.top.values.get("zero_optimization"), bool):
        yield seen.top.say(
            "zero_optimization", Severity.NOTE, "A bare true or false is the form of before stages: true is stage 1.",
            '"zero_optimization": {"stage": 1}', "deepspeed/runtime/zero/config.py: read_zero_config_deprecated",
        )  # fmt: skip
    if "bfloat16" in seen.top:
        yield seen.top.say("bfloat16", Severity.NOTE, "The old name of bf16.", '"bf16"',
                           "deepspeed/runtime/precision_config.py")  # fmt: skip


def repeated_keys(seen: DeepSpeed) -> Iterator[Notice]:
    """Keys that stand twice in one object."""
    for place, _ in seen.top.document.lines.repeated:
        if not seen.top.place or place[: len(seen.top.place)] == seen.top.place:
            yield seen.top.say(
                ".".join(place[len(seen.top.place) :]), Severity.ERROR,
                "Given twice: DeepSpeed refuses the file, while Accelerate and Transformers take the last.",
                "keep one of the two", "deepspeed/runtime/config_utils.py: dict_raise_error_on_duplicate_keys",
            )  # fmt: skip


def comments(seen: DeepSpeed) -> Iterator[Notice]:
    """Hjson, which only DeepSpeed itself reads."""
    if seen.top.document.hjson:
        error = seen.reader is not None
        yield seen.top.say(
            "", Severity.ERROR if error else Severity.NOTE,
            "Comments or trailing commas: DeepSpeed reads them, as Hjson; "
            f"{seen.reader or 'Accelerate or Transformers'} cannot.", "remove them",
            "deepspeed/runtime/config.py: hjson.load; accelerate/utils/deepspeed.py: json.load",
        )  # fmt: skip


def syntax(seen: DeepSpeed) -> Iterator[Notice]:
    """A file in a syntax that is not DeepSpeed's."""
    document = seen.top.document
    if document.syntax != "json" and not seen.top.place:
        yield seen.top.say(
            "", Severity.ERROR, f"DeepSpeed reads JSON (as Hjson), not {document.syntax.upper()}.",
            "the same keys as JSON", "deepspeed/runtime/config.py: hjson.load",
        )  # fmt: skip


def auto_values(seen: DeepSpeed) -> Iterator[Notice]:
    """Values that are left to Accelerate or Transformers, in a file of which nothing says that they read it."""
    if seen.autos and seen.reader is None:
        names = ", ".join(sorted(".".join(place) for place in seen.autos)[:4])
        more = f" and {len(seen.autos) - 4} more" if len(seen.autos) > 4 else ""
        yield seen.top.say(
            ".".join(seen.autos[0]), Severity.NOTE,
            f'"auto" ({names}{more}) is filled in by Accelerate and Transformers only. DeepSpeed by itself takes its '
            "own default for it within zero_optimization, fp16 and bf16, and fails on it in batch sizes.",
            "a number, unless one of the two reads this file",
            "deepspeed/runtime/config_utils.py; transformers/integrations/deepspeed.py: fill_match",
        )  # fmt: skip


RULES = (unknown_keys, deprecated_keys, repeated_keys, comments, syntax, auto_values)
