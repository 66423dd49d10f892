"""Losses and gradients that are not finite, as a training or PyTorch says so: in a rank's output, or in the exception
that ended it. Each pattern is a message of PyTorch or of a trainer, or the form in which trainings print a step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diag.collectors.layout import RankLayout
from diag.collectors.numbers import GRADIENT, GRADIENT_NORM, LOSS, REPORTED_LOSS
from diag.collectors.reading import read_tail
from diag.collectors.records import NumberRecord

from .lines import read_heartbeat, read_record


@dataclass(frozen=True)
class _Form:
    """``value``: where the message names none. A ``step`` in it is as the training counts, which may begin at 1."""

    what: str
    pattern: re.Pattern[str]
    value: str = "nan"


_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_NUMBER = r"(?P<value>nan|-?inf)\b"
# In the exception that ends a rank, or in the lines that report it.
_RAISED = (
    # torch.autograd's anomaly mode (python_anomaly_mode.cpp, engine.cpp).
    _Form(GRADIENT, re.compile(r"Function '\w+' returned nan values in its \d+th output")),
    # Lightning's Trainer(detect_anomaly=True) (loops/utilities.py).
    _Form(LOSS, re.compile(rf"The loss returned in `training_step` is (?:tensor\()?{_NUMBER}")),
    # Megatron-LM (pretrain_gpt.py, distributed/param_and_grad_buffer.py).
    _Form(LOSS, re.compile(r"found (?P<value>nan|inf) in local forward loss", re.I)),
    _Form(GRADIENT, re.compile(r"found (?P<value>nan|inf) in local grad norm", re.I)),
    # torch.nn.utils.clip_grad_norm_(error_if_nonfinite=True): of all parameters, after the reduction.
    _Form(GRADIENT_NORM, re.compile(r"The total norm of order \S+ for gradients from `parameters` is non-finite")),
    # DeepSpeed (runtime/fp16/loss_scaler.py): gradients overflow at the smallest scale.
    _Form(GRADIENT_NORM, re.compile(r"Current loss scale already at minimum - cannot decrease"), "inf"),
)
_STEP = r"\b(?:step|iter(?:ation)?)\W{0,10}(?P<step>\d{1,12})\b"
_PRINTED = (
    # Megatron-LM's training_log, which leaves losses that are not finite out of its mean.
    _Form(REPORTED_LOSS, re.compile(_STEP + r".{0,1000}?\bnumber of nan iterations:\s+[1-9]", re.I)),
    # "step: 10  loss: nan" (torchtitan), "iter 10: loss nan" (nanoGPT). Not "best loss: inf", before the first one.
    _Form(REPORTED_LOSS, re.compile(_STEP + r".{0,200}?\bloss\W{1,4}(?P<value>nan)\b", re.I)),
)


def printed_numbers(files: RankLayout, most_bytes: int) -> list[NumberRecord]:
    """The first one in the exception that ended the rank, and in the last bytes of its output; none without any. Never
    raises."""
    error, _ = read_record(files.error, dict[str, Any], files.run)
    raised = next(_said(str(error), _RAISED, files), None) if error is not None else None
    found = [raised] if raised is not None else []
    for path in (files.stdout, files.log):
        try:
            text = read_tail(path, most_bytes, files.run)[0].decode(errors="replace")
        except OSError:
            continue
        lines = (_COLOUR.sub("", line) for line in text.splitlines() if "nan" in line.lower())
        found += [record for line in lines for record in _said(line, _PRINTED, files)][:1]
    return found


def _said(text: str, forms: tuple[_Form, ...], files: RankLayout) -> Iterator[NumberRecord]:
    for form in forms:
        match = form.pattern.search(text)
        if match is not None:
            groups = match.groupdict()
            beat = None if groups.get("step") else read_heartbeat(files)[0]  # of few ranks: most say nothing
            step = int(groups.get("step") or (max(beat.step, 0) if beat is not None else 0))
            yield NumberRecord(step, form.what, (groups.get("value") or form.value).lower())
