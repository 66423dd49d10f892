"""The recorded sample runs get the verdict of what was planted in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.model.steps import Bottleneck, Kind, Severity
from diag.show.json import to_json
from tests.samples import opened_sample

SAMPLES = Path(__file__).parents[2] / "sample_traces"

EXPECTED: dict[str, tuple[Bottleneck, str, tuple[int, ...]]] = {
    "ddp-healthy": (Bottleneck.COMPUTE, "", ()),
    "ddp-slow-loader-all": (Bottleneck.DATA, "slow-data-all-ranks", ()),
    "ddp-straggler-rank0": (Bottleneck.COMPUTE, "compute-straggler", (0,)),
    "fsdp2-not-overlapped": (Bottleneck.COMMUNICATION, "communication-not-overlapped", ()),
    "fsdp2-root-only": (Bottleneck.COMMUNICATION, "root-only-unit", ()),
    "fsdp2-slow-link-rank1": (Bottleneck.COMMUNICATION, "slow-link", (1,)),
    "fsdp2-slow-loader-rank1": (Bottleneck.DATA, "slow-data-one-rank", (1,)),
    "fsdp2-slow-wire": (Bottleneck.COMMUNICATION, "slow-network", ()),
    "fsdp2-straggler-rank0": (Bottleneck.COMPUTE, "compute-straggler", (0,)),
    "gpu-hf-trainer": (Bottleneck.HOST, "launch-bound", ()),
    "gpu-memory-nearly-full": (Bottleneck.COMPUTE, "near-out-of-memory", ()),
}
# The CPU samples have a traced step among others. On the GPU only traced steps are counted if there are any, as the
# profiler changes the rest of the step too much; the other
# recording has no trace, and its steps are those of events on the device.
SOURCES = {"gpu-hf-trainer": {"trace"}, "gpu-memory-nearly-full": {"events"}}
HOSTS = (b"sample", b"gpu-node")
LARGEST = {"gpu-hf-trainer": 1_300_000}  # bytes: three traced steps of 12 layers; the others have one of a small model


def test_every_sample_has_an_expectation() -> None:
    assert {p.parent.name for p in SAMPLES.glob("*/manifest.json")} == set(EXPECTED)
    described = (SAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in described for name in EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_verdict_on_a_sample(name: str) -> None:
    result = opened_sample(name)
    bottleneck, cause, culprits = EXPECTED[name]
    verdict = result.verdict
    if cause:
        assert (verdict.bottleneck, verdict.cause, verdict.culprit_ranks) == (bottleneck, cause, culprits)
    else:
        assert verdict.culprit_ranks == ()
        assert verdict.severity == Severity.HEALTHY
    assert not result.coverage.incomplete
    sources = {parts.source for step in result.attribution.steps for parts in step.parts}
    assert sources == SOURCES.get(name, {"trace", "records"})


def test_the_analyser_does_not_know_what_was_planted() -> None:
    planted = "slow-loader:rank=1,ms=300"
    assert planted in (SAMPLES / "fsdp2-slow-loader-rank1" / "manifest.json").read_text()
    assert planted not in to_json(opened_sample("fsdp2-slow-loader-rank1"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_small_and_names_no_machine(name: str) -> None:
    folder = SAMPLES / name
    left = {RunLayout(folder).verdict, *RunLayout(folder).tables.rglob("*")}  # by an analysis; they are not committed
    files = [p for p in folder.rglob("*") if p.is_file() and p not in left]
    assert sum(p.stat().st_size for p in files) < LARGEST.get(name, 1_000_000)
    contents = [gzip.decompress(p.read_bytes()) if p.name.endswith(".gz") else p.read_bytes() for p in files]
    assert not [c for c in contents if re.search(rb"/tmp/|/home/|/work/", c)]
    named = [c for c in contents if (found := re.search(rb'"host(?:_name)?": ?"([^"]*)"', c)) and found[1] not in HOSTS]
    assert not named


def test_the_host_is_said_to_be_faster_without_the_profiler() -> None:
    """The device is busy for 45 ms a step: of 89 ms with the profiler, and of 67 ms without it."""
    (note,) = [note for note in opened_sample("gpu-hf-trainer").coverage.notes if "profiler makes" in note]
    assert "89.0\u00a0ms with it, 66.9\u00a0ms in 53\u00a0steps without it" in note
    assert "the device waits for its host in about 28% of a step" in note


def test_the_gpu_with_nearly_full_memory_is_told() -> None:
    """96.6 % of the GPU's memory is reserved, and NVML's figures say what CUDA and NCCL hold beside it."""
    result = opened_sample("gpu-memory-nearly-full")
    findings = result.findings
    (found,) = findings.filter(findings["id"] == "near-out-of-memory").rows(named=True)
    assert found["ranks"] == [0]
    assert found["severity"] == "warn"
    assert result.verdict.severity == Severity.WARN, "a run that may end at any step is not healthy"
    assert result.verdict.headline.startswith("Device memory is nearly full on rank 0. The speed is healthy:")


def test_the_path_goes_to_the_late_rank_through_a_wait_in_pieces() -> None:
    """Rank 0 stops for 200 ms in each step. In the traced ones gloo's copies cut rank 1's waiting for it in pieces."""
    result = opened_sample("fsdp2-straggler-rank0")
    traced = [step for step in result.attribution.traced if any(parts.source == "trace" for parts in step.parts)]
    assert traced
    for step in traced:
        assert sum(blame.ns for blame in step.blames if blame.rank == 0) > 180_000_000
        assert step.path.total(Kind.COMM) < 0.2 * step.dur_ns
