"""Real training on gloo ranks with a planted fault, and the verdict that it must get: the first promise of this tool.

By the command line, each in processes of its own; test_every_strategy.py has every strategy with every fault in fewer
processes, so here some faults are planted once. DIAG_REPEATS=5 runs each of them five times with both strategies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.busy import contended
from tests.command import analyze_json, diag_process

pytestmark = pytest.mark.multiproc
REPEATS = int(os.environ.get("DIAG_REPEATS", "1"))
STEPS = 20


def train_and_analyze(folder: Path, strategy: str, ranks: int, *inject: str) -> dict[str, Any]:
    faults = [word for fault in inject for word in ("--inject", fault)]
    ended = diag_process(
        "run", "--strategy", strategy, "--nproc", str(ranks), "--steps", str(STEPS), *faults, "--out", folder
    )
    assert ended.returncode == 0, ended.stderr
    result = analyze_json(folder)
    check_sums(result, ranks)
    return result


def check_sums(result: dict[str, Any], ranks: int) -> None:
    assert len(result["steps"]) == STEPS
    for step in result["steps"]:
        assert [parts["rank"] for parts in step["ranks"]] == list(range(ranks))
        for parts in step["ranks"]:
            names = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "data_wait_ns", "checkpoint_ns", "idle_ns")
            assert sum(parts[name] for name in names) == parts["dur_ns"]
            assert parts["exposed_wait_ns"] + parts["exposed_transfer_ns"] == parts["exposed_comm_ns"]


def summary(result: dict[str, Any]) -> str:
    """For the message of a test that fails."""
    lines = [str(result["verdict"]), *(f"{f['id']} {f['ranks']} {f['share']}" for f in result["findings"])]
    lines += [f"{s['step']} {s['bottleneck']} {s['dur_ns'] / 1e6:.0f} ms {s['note']}" for s in result["steps"]]
    return "\n".join(lines)


def most_steps(result: dict[str, Any], bottleneck: str) -> bool:
    counted = [step for step in result["steps"] if step["usable"]]
    return sum(step["bottleneck"] == bottleneck for step in counted) > len(counted) / 2


FSDP2, DDP = ("fsdp2", 2), ("ddp", 2)  # more ranks than cores would wait for each other


def cases(*chosen: tuple[str, int]) -> pytest.MarkDecorator:
    """Strategies and numbers of ranks: these once, or where more than one repeat is asked for both."""
    ways = [(*way, n) for n in range(REPEATS) for way in (chosen if REPEATS == 1 else (FSDP2, DDP))]
    values = [pytest.param(*way, marks=pytest.mark.matrix if way[:2] == FSDP2 else ()) for way in ways]
    return pytest.mark.parametrize(("strategy", "ranks", "repeat"), values)


@cases(FSDP2)
def test_a_slow_loader_on_one_rank(tmp_path: Path, strategy: str, ranks: int, repeat: int) -> None:
    result = train_and_analyze(tmp_path / "run", strategy, ranks, "slow-loader:rank=1,ms=500")
    if contended(result, "slow-data-one-rank", [1]):
        return
    verdict = result["verdict"]
    assert verdict["bottleneck"] == "data", summary(result)
    assert verdict["culprit"]["ranks"] == [1], summary(result)
    assert most_steps(result, "data"), summary(result)


@pytest.mark.matrix
@cases(DDP)
def test_a_slow_wire(tmp_path: Path, strategy: str, ranks: int, repeat: int) -> None:
    result = train_and_analyze(tmp_path / "run", strategy, ranks, "slow-wire")
    assert result["verdict"]["bottleneck"] == "communication", summary(result)
    assert result["verdict"]["culprit"] is None, summary(result)
    assert most_steps(result, "communication"), summary(result)


def test_a_stall(tmp_path: Path) -> None:
    result = train_and_analyze(tmp_path / "run", "ddp", 2, "stall:rank=1,phase=backward")
    if contended(result, "stalled-rank", [1]):
        return
    assert result["verdict"]["bottleneck"] == "host", summary(result)
    assert result["verdict"]["cause"] == "stalled-rank", summary(result)
    assert result["verdict"]["culprit"]["ranks"] == [1], summary(result)
    assert "in backward" in result["verdict"]["headline"]


@cases(FSDP2, DDP)
def test_nothing_planted(tmp_path: Path, strategy: str, ranks: int, repeat: int) -> None:
    result = train_and_analyze(tmp_path / "run", strategy, ranks)
    if result["verdict"]["cause"] == "contended-host":
        return  # which is true: something else took the core of a rank
    assert result["verdict"]["culprit"] is None, summary(result)
    named = [f for f in result["findings"] if f["severity"] == "critical" and f["ranks"]]
    assert not [f for f in named if f["id"] != "contended-host"], summary(result)


@pytest.mark.matrix
def test_prefetch_really_overlaps_on_gloo(tmp_path: Path) -> None:
    """The wire takes 15 ms: without prefetch nobody computes meanwhile, with it the analyser sees it hidden."""
    hidden = {}
    for prefetch in ("0", "1"):
        folder = tmp_path / prefetch
        options = ["--prefetch", prefetch, "--inject", "slow-wire:ms=15,mbps=0", "--inject", "slow-device:ms=15"]
        ended = diag_process("run", *options, "--steps", "12", "--no-trace", "--out", folder)
        assert ended.returncode == 0, ended.stderr
        parts = [p for step in analyze_json(folder)["steps"] if step["usable"] for p in step["ranks"]]
        overlapped = sum(p["overlapped_comm_ns"] for p in parts)
        hidden[prefetch] = overlapped / (overlapped + sum(p["exposed_comm_ns"] for p in parts))
    assert hidden["0"] < 0.02
    assert hidden["1"] > 0.10


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process on each core that wants all of it."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("strategy", "fault", "cause"),
    [
        ("ddp", "straggler:rank=1,ms=200", "compute-straggler"),
        ("fsdp2", "straggler:rank=1,ms=200,phase=backward", "compute-straggler"),
        ("ddp", "stall:rank=1,ms=200", "stalled-rank"),
    ],
)
def test_200_ms_on_a_busy_machine_are_200_ms(tmp_path: Path, strategy: str, fault: str, cause: str) -> None:
    """Of the finding, and so in headline, card and table, whatever else the verdict finds on such a machine."""
    with busy_cores():
        result = train_and_analyze(tmp_path / "run", strategy, 2, fault)
    (finding,) = (finding for finding in result["findings"] if finding["id"] == cause)
    assert finding["ranks"] == [1], summary(result)
    assert abs(finding["cost_ns_per_step"] / 1e6 - 200) <= 40, summary(result)
    assert finding["charged_ns"]["1"] == finding["cost_ns_per_step"]
