"""Bad numbers in every JSON, TOML and YAML file that is read: NaN, Infinity, what overflows, -0, huge integers, a text
where a number is expected, and the reverse. Each is an error of ours, a gap, or a value that is a number."""

# ruff: noqa: E501  (documents are one line)
from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from diag.collectors.background import TraceRequests
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.kept import KeptSteps
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    Asked,
    CheckpointRecord,
    CollectiveLine,
    DeviceRecord,
    DeviceStepRecord,
    DurationLine,
    Heartbeat,
    HostRecord,
    KeptLine,
    MachineRecord,
    Manifest,
    RankExit,
    RankRecord,
    StepRecord,
    SummaryLine,
    TraceAsked,
    Unrecorded,
)
from diag.collectors.settings import CollectorSettings
from diag.collectors.trainer.checkpoint.folder import CheckpointManifest, IncompleteError
from diag.collectors.trainer.keys import OptionError
from diag.collectors.trainer.options import TrainerOptions
from diag.errors import DiagError
from diag.gate.budgets import read_budgets
from diag.hang.flight.read import read_dumps
from diag.hang.ras.read import read_reports
from diag.linting.document import read as read_configuration
from diag.planning.measured import host_allocations
from diag.planning.shape import read_config
from diag.rundir.inspector import read_inspector
from diag.rundir.lines import read_answer, read_lines, read_record
from diag.rundir.settings import read_rules
from diag.tune.history import load
from tests.growing_inputs import DEVICE, MINUTE_NS, dump, late, one_dump, recorded, waiting
from tests.hang.ras import reports

BAD = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "-0", "-0.0", "0.5", "1e308", "-5", "9223372036854775808",
    "1" + "0" * 30, "9" * 5_000, '"12"', '"nan"', "true", "null", "[]", "{}",
)  # fmt: skip
IN_TOML = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf", "null": '""'}
IN_YAML = {"NaN": ".nan", "Infinity": ".inf", "-Infinity": "-.inf", "null": "~"}
# A value of JSON behind a key or in a list; of TOML and YAML, behind a key.
VALUE = re.compile(r'(?<=[:\[,])\s*(-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*"|true|false|null)(?=\s*[,\]}])')
SETTING = re.compile(r"(?m)(?<=[:=] )(\S[^\n]*)$")


def example(kind: type[Any]) -> dict[str, Any]:
    """A document with every field of a record, of its own defaults or of its kind's first value."""
    firsts = {
        "int": 1,
        "float": 1.0,
        "str": "a",
        "bool": False,
        "int | None": 1,
        "float | None": 1.0,
        "bool | None": True,
    }
    known: dict[str, Any] = {
        "phases": [["forward", 1, 2]], "rows": [], "groups": {"0": [0, 1]}, "gc": [[1, 2]], "queue": [1, 2, 3], "cpu": {"forward": [1, 2]},
        "memory": {"rss": 1, "allocated": 2}, "held": {"parameters": 1, "gradients": 1, "optimizer": 1}, "ranks": [0], "mesh": {"dp": 2},
        "model": {"layers": 2, "flops_per_token": 1.0}, "loader": {"num_workers": 2}, "collectives": [["0", 1, 1, 2, 1, 2]],
        "last_started": {"0": 1}, "columns": ["step"], "values": "AAAA", "marked": {"window": [1]},
    }  # fmt: skip
    document: dict[str, Any] = {}
    for field in fields(kind):
        text = str(field.type)
        if field.name in known:
            document[field.name] = known[field.name]
        elif field.name == "identity":
            document[field.name] = example(RankRecord)
        elif text in firsts:
            document[field.name] = firsts[text]
    return document


def of_record(kind: Any, document: Any) -> tuple[str, Callable[[Path], object]]:
    return json.dumps(document), lambda path: read_record(path, kind, path.parent)


def of_lines(kind: type[Any], document: Any) -> tuple[str, Callable[[Path], object]]:
    return json.dumps(document), lambda path: read_lines(path, kind, path.parent)


TUNED = {
    "arguments": ["--preset", "tiny"], "settings": {"num_workers": 2}, "schema_version": 1, "rounds": [{
        "number": 1, "verdict": "v", "advice": "a", "change": "c", "settings": {"num_workers": 2}, "predicted_gain_ns": [1, 2, 3],
        "predicted_memory_delta_bytes": 1, "outcome": "kept", "reason": "r", "baseline_ns": 100, "gain_ns": [1, 2, 3],
        "memory_delta_bytes": 5, "loss_difference": 0.5,
        "without": [{"folder": "f", "settings": {}, "step_ns": 1, "steps": 1, "reserved_bytes": 1}], "with_it": []}],
}  # fmt: skip
MODEL = {
    "model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "num_key_value_heads": 12, "head_dim": 64, "n_inner": 3072,
    "vocab_size": 50257, "n_positions": 1024,
}  # fmt: skip
ALLOCATION = {"name": "[memory]", "ph": "i", "ts": 1.0, "args": {"Bytes": 1, "Addr": 1, "Device Type": 0}}
CHECKPOINT = {
    "steps": 5, "kind": "dcp", "world_size": 2, "strategy": "ddp", "mesh": {"dp": 2}, "options": {}, "model": {}, "data": {},
    "cursor": {"epoch": 1}, "consumed": {"tokens": 5}, "optimizer": {}, "created_unix_ns": 1, "files": [{"name": "a", "bytes": 1, "sha256": sha256(b"x").hexdigest()}],
    "checkpoint_format": 1,
}  # fmt: skip
WINDOW = {"number": 1, "first_step": 5, "count": 2, "ranks": [0, 1], "memory": False}
KEPT = {
    "first": 1, "last": 2, "why": "stalled", "steps": [example(StepRecord)], "collectives": [recorded("collectives.jsonl")[0]],
    "device_steps": [example(DeviceStepRecord)],
}  # fmt: skip
KEEP = {"number": 1, "first": 5, "last": 9, "why": "stuck", "unix_ns": 4 * 10**18}
ANSWER = {
    "verdict": {
        "bottleneck": "b",
        "severity": "s",
        "cause": "c",
        "share": 0.5,
        "confidence": 0.5,
        "culprit": {"ranks": [1]},
    },
    "schema_version": 1,
}


def look(path: Path) -> object:
    taken: list[TraceAsked] = []
    TraceRequests(path, 0, taken.append, taken.append).look()
    return taken


def keep(path: Path) -> object:
    nothing = RunLayout(path.parent).rank(0)
    asked = KeptSteps(nothing, LineFile(nothing.kept, Budget(0), Complaints(0)), 0, path, False, False)
    return asked.requested()


def trainer(path: Path) -> object:
    return TrainerOptions.from_json(path.read_text())


def settings(path: Path) -> object:
    return CollectorSettings.from_json(path.read_text())


def saved(path: Path) -> object:
    (path.parent / "a").write_bytes(b"x")
    return CheckpointManifest.read(path.parent)


# By the name of the file: its content, and what reads it.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "manifest.json": of_record(Manifest, example(Manifest)),
    "rank.json": of_record(RankRecord, example(RankRecord)),
    "heartbeat.json": of_record(Heartbeat, example(Heartbeat)),
    "asked.json": of_record(Asked, example(Asked)),
    "exits.json": of_record(list[RankExit], [example(RankExit)]),
    "steps.jsonl": of_lines(StepRecord, example(StepRecord)),
    "summary.jsonl": of_lines(SummaryLine, example(SummaryLine)),
    "device_steps.jsonl": of_lines(DeviceStepRecord, example(DeviceStepRecord)),
    "collectives.jsonl": of_lines(CollectiveLine, recorded("collectives.jsonl")[0]),
    "durations.jsonl": of_lines(DurationLine, {**example(DurationLine), "rows": [["0", 1, "all_reduce", 1000, "float32", 5, 500]]}),
    "kept.jsonl": of_lines(KeptLine, KEPT),
    "checkpoints.jsonl": of_lines(CheckpointRecord, example(CheckpointRecord)),
    "device.jsonl": of_lines(DeviceRecord, {**DEVICE, "monotonic_ns": MINUTE_NS}),
    "host.jsonl": of_lines(HostRecord, {"monotonic_ns": 1, "interval_ns": 5, "pauses": [[1, 2]]}),
    "machine.jsonl": of_lines(MachineRecord, {"monotonic_ns": 1, "values": {"net.eth0.rx_errors": 5}, "whole": True}),
    "unrecorded.jsonl": of_lines(Unrecorded, example(Unrecorded)),
    "trace_asked.json": (json.dumps(WINDOW), look),
    "keep_asked.json": (json.dumps({"spans": [KEEP]}), keep),
    "settings": (CollectorSettings().to_json(), settings),
    "options": (TrainerOptions().to_json(), trainer),
    "verdict.json": (json.dumps(ANSWER), read_answer),
    "tune.json": (json.dumps(TUNED), lambda path: load(path.parent)),
    "checkpoint/manifest.json": (json.dumps(CHECKPOINT), saved),
    "config.json": (json.dumps(MODEL), read_config),
    "memory/rank0.json": (json.dumps({"traceEvents": [ALLOCATION]}), lambda path: host_allocations(str(path))),
    "budgets.toml": ('max-step = "350ms"\nmin-tokens-per-second = 5000\nmax-exposed-comm = "20%"\n', read_budgets),
    "diag.toml": ('comm_kernels = ["a=all_reduce"]\n', read_rules),
    "nccl_trace_rank_0.json": (str(next(iter(dump(0, [waiting(1)], {"0": range(2)}, "json").values()))), lambda path: read_dumps([path])),
    "ras.json": (reports.as_json(late(2)), lambda path: read_reports([path])),
    "inspector.log": (one_dump(), lambda path: read_inspector([path])),
    "ds.json": ('{"train_batch_size": 8, "zero_optimization": {"stage": 3}}', read_configuration),
    "accelerate.yaml": ("distributed_type: FSDP\nnum_processes: 8\n", read_configuration),
    "titan.toml": ("[training]\nseq_len = 2048\n", read_configuration),
}  # fmt: skip
GENERIC = ("ds.json", "accelerate.yaml", "titan.toml")  # what their values mean is checked by the linter


def changed(name: str, text: str) -> Iterator[tuple[str, str]]:
    """The text with each of its values, one at a time, replaced by each bad one."""
    is_json = not name.endswith((".toml", ".yaml"))
    written: Mapping[str, str] = {} if is_json else IN_TOML if name.endswith(".toml") else IN_YAML
    for match in (VALUE if is_json else SETTING).finditer(text):
        for bad in BAD:
            value = written.get(bad, bad)
            yield f"{text[: match.start(1)][-40:]} {value[:20]}", text[: match.start(1)] + value + text[match.end(1) :]


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize("name", READERS)
def test_a_bad_number_is_an_error_of_ours_or_a_gap(tmp_path: Path, name: str) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert read(path), "the input that is changed must be good"
    assert all(map(math.isfinite, numbers(read(path))))
    for what, content in changed(name, text):
        path.write_text(content)
        try:
            result = read(path)
        except (DiagError, IncompleteError, OptionError):
            continue
        except Exception as error:
            raise AssertionError(what) from error
        if name not in GENERIC:
            assert all(-(2**63) <= number < 2**64 for number in numbers(result)), what
