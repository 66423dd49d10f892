"""The user's own names of communication: what is accepted, which rule counts, and that no expression takes long."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest

from diag.api import Reading, open_run
from diag.errors import DiagError, ExitCode
from diag.rundir.run import with_settings
from diag.traces.cache import Cache
from diag.traces.kineto_names import CommRule, RuleError, operations, parse_rule
from diag.traces.policy import TRACE_LIMITS, TRACE_READING
from tests.account.kineto_builder import KinetoBuilder
from tests.command import diag

MS = 1_000_000
RING = CommRule("ring_exchange", "send_recv")


@pytest.mark.parametrize(
    ("text", "pattern", "op"),
    [
        ("my_gather.*=all_gather", "my_gather.*", "all_gather"),
        ("my_gather=All-Gather", "my_gather", "all_gather"),
        ("a=b=all_to_all", "a=b", "all_to_all"),
        (r"ring\{2\}=unknown", r"ring\{2\}", "unknown"),
    ],
)
def test_rules(text: str, pattern: str, op: str) -> None:
    assert parse_rule(text) == CommRule(pattern, op)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("my_gather", "expected REGEX=operation"),
        ("=all_gather", "expected REGEX=operation"),
        ("my_gather=gathering", "'gathering' is not an operation; the operations are barrier, reduce_scatter"),
        ("my_(gather=all_gather", "is not a valid regular expression (Rust regex syntax): unclosed group"),
        (r"(?=x)y=all_gather", "look-around"),
        (r"(a)\1=all_gather", "backreferences are not supported"),
        (".*=all_gather", "matches every name"),
        ("(x{900}){900}=all_gather", "has a counted repetition"),
        ("x" * 201 + "=all_gather", "has 201 characters; the maximum is 200"),
    ],
)
def test_what_is_no_rule(text: str, why: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_rule(text)
    assert why in str(error.value)


def test_the_first_rule_that_matches_counts() -> None:
    names = pl.Series(["ring_exchange_add", "ring_add", "add"])
    assert operations(names, [RING, CommRule("ring", "all_reduce")]) == {
        "ring_exchange_add": "send_recv",
        "ring_add": "all_reduce",
    }


@pytest.mark.parametrize("pattern", [r"(a*)*b(a*)*c", r"(a|aa)+$", r"\w*a" + r"\w" * 80 + "x", r"(\w+\s?)+!"])
def test_no_expression_goes_back(pattern: str) -> None:
    """Of the name only the first characters are looked at: 2,000 names of a hostile trace take a fraction of a second,
    where an engine that backtracks would take years."""
    names = pl.Series([f"{'a' * 4000}{number}" for number in range(2000)])
    begin = time.process_time()
    operations(names, [parse_rule(f"{pattern}=all_gather")])
    assert time.process_time() - begin < 60  # of CPU
    assert (
        operations(pl.Series(["a" * TRACE_LIMITS.matched_name_chars + "ring"]), [CommRule("ring", "all_gather")]) == {}
    )


def test_the_folder_of_the_traces_comes_before_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = tmp_path / "traces", tmp_path / "here"
    for place, rule in ((folder, "ring=all_reduce"), (here, "ring=barrier")):
        place.mkdir()
        (place / "diag.toml").write_text(f'comm_kernels = ["{rule}", "step_{place.name}=send"]')
    monkeypatch.chdir(here)
    given = Reading(comm_kernels=(RING,))
    rules = [(rule.pattern, rule.op) for rule in with_settings(given, [str(folder)]).comm_kernels]
    assert rules == [
        ("ring_exchange", "send_recv"),
        ("ring", "all_reduce"), ("step_traces", "send"),
        ("ring", "barrier"), ("step_here", "send"),
    ]  # fmt: skip
    beside_a_file = with_settings(Reading(), [str(folder / "rank0.json")]).comm_kernels
    assert beside_a_file == with_settings(Reading(), [str(folder)]).comm_kernels
    assert with_settings(Reading(), [str(here)]).comm_kernels == beside_a_file[2:], "one file is read once"
    assert with_settings(Reading(), ["s3://bucket/traces"]).comm_kernels == beside_a_file[2:]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("comm_kernels = [", "is not TOML"),
        ("comm_kernel = []", "has an unknown key 'comm_kernel'"),
        ('comm_kernels = "ring=all_reduce"', "must be a list of strings"),
        ("comm_kernels = [1]", "must be a list of strings"),
        ('comm_kernels = ["ring=x"]', "'x' is not an operation"),
        (f"comm_kernels = {['ring=send'] * 51}", "has 51 entries; the maximum is 50"),
        ("\n" * 100_001, "too large (more than 100,000 bytes)"),
        ("\udcff", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_understood_is_a_message(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "diag.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    trace_of(0).write(tmp_path, "rank0.json")
    with pytest.raises(DiagError) as error:
        open_run(tmp_path)
    assert why in error.value.message
    assert error.value.path == str(tmp_path / "diag.toml")
    assert error.value.exit_code == ExitCode.USAGE


def trace_of(rank: int) -> KinetoBuilder:
    """Three steps of 10 ms: 6 of a matrix product, 3 of a kernel that nobody knows."""
    build = KinetoBuilder(rank=rank)
    for step in range(3):
        at = step * 10 * MS
        build.step(step, at, at + 10 * MS).kernel(at, at + 6 * MS, launch=at)
        build.kernel(at + 6 * MS, at + 9 * MS, "ring_exchange_add(float*)", launch=at + 10)
    return build


def exposed_ns(tmp_path: Path, *rules: CommRule, cache: Cache | None = None) -> set[int]:
    reading = Reading(cache=cache or Cache(None), comm_kernels=rules)
    result = open_run(tmp_path, reading=reading)
    return {part.exposed_comm_ns for step in result.attribution.steps for part in step.parts}


def test_kernels_that_the_user_names_communicate_everywhere(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace_of(rank).write(tmp_path, f"rank{rank}.json")
    assert exposed_ns(tmp_path) == {0}
    result = open_run(tmp_path, reading=Reading(comm_kernels=(CommRule("^ring_", "all_reduce"),)))
    assert {part.exposed_comm_ns for step in result.attribution.steps for part in step.parts} == {3 * MS}
    (row,) = result.breakdowns.collectives.rows
    assert (row.op, row.duration_mean_ns) == ("all_reduce", 3 * MS)
    kinds = {row.name: str(row.kind) for row in result.breakdowns.kernels.rows}
    assert kinds["ring_exchange_add(float*)"] == "communication"
    assert result.coverage.notes == (
        "kernels that match ^ring_ count as all_reduce (set by --comm-kernels or diag.toml)",
    )


def test_accounts_that_were_kept_with_other_rules_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(TRACE_READING), "cached_from_bytes", 0)
    traces, cache = tmp_path / "traces", Cache(tmp_path / "cache")
    traces.mkdir()
    trace_of(0).write(traces, "rank0.json")
    for _ in range(2):
        assert exposed_ns(traces, cache=cache) == {0}
        assert exposed_ns(traces, RING, cache=cache) == {3 * MS}
        assert exposed_ns(traces, CommRule("gemm", "send"), cache=cache) == {6 * MS}
    assert len(list((tmp_path / "cache").rglob("steps-*.bin"))) == 3


def test_at_the_command_line(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace_of(rank).write(tmp_path, f"rank{rank}.json")
    done = diag("analyze", tmp_path, "--json", "--comm-kernels", "ring_exchange=send_recv")
    assert done.returncode == ExitCode.OK
    assert '"exposed_comm_ns":3000000' in done.stdout.replace(" ", "")
    for wrong in ("ring_exchange", "ring(=all_reduce", "ring=sum"):
        done = diag("analyze", tmp_path, "--comm-kernels", wrong)
        assert done.returncode == ExitCode.USAGE
        assert "--comm-kernels" in done.stderr
