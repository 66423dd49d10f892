"""The critical path charged to modules: exact sums, planted slow modules, and what is said where no range names one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from diag.account.cached_steps import windows_of
from diag.account.critical_path import label_of
from diag.api import Result, analyze, open_run
from diag.model.breakdown import PathStat
from diag.model.steps import Detail, Evidence, Kind
from diag.show.breakdowns import print_breakdown
from diag.tables.module_charge import accounted, by_rank, charge, of_rank_steps, on_paths
from diag.tables.path_table import whole
from tests.account.kineto_builder import AUTOGRAD, BASE_NS, KinetoBuilder, nccl_args
from tests.command import analyze_json, diag
from tests.examples import examples
from tests.samples import NAMES, opened_sample
from tests.simulate import Plan, simulate

MS, US = 1_000_000, 1_000
LAYERS, STEPS = 4, 5
WORK, TRANSFER, LOSS = 10 * MS, 3 * MS, MS // 5


@dataclass(frozen=True)
class Job:
    """Ranks whose host launches every layer within its range and ends before the device; the device then runs the
    layers one after the other. ``slow``: what rank 1 takes longer, by layer; ``less_slow``: the same of rank 2."""

    slow: Mapping[int, int] = field(default_factory=dict)
    less_slow: Mapping[int, int] = field(default_factory=dict)
    ranks: int = 3
    named: bool = True
    off: int = 0  # what the clock of each host shows more than that of the one before
    steps: int = STEPS
    ppm: float = 0.0  # how much faster than the others rank 1's clock runs

    def write(self, folder: Path) -> Path:
        for rank in range(self.ranks):
            built = self._rank(rank)
            for event in built.events if rank == 1 else ():
                event["ts"] *= 1 + self.ppm / 1e6
                event["dur"] *= 1 + self.ppm / 1e6
            built.write(folder, f"rank{rank}.json")
        return folder

    def _rank(self, rank: int) -> KinetoBuilder:
        built = KinetoBuilder(rank=rank, world_size=self.ranks, base_ns=BASE_NS + rank * self.off)
        built.header["host_name"] = f"node-{rank}" if self.off else "node-a"
        slow = {1: self.slow, 2: self.less_slow}.get(rank, {})
        arrival = LAYERS * WORK + sum(self.slow.values())
        for step in range(self.steps):
            t = 10 * MS + step * (MS + arrival + TRANSFER + LOSS)
            end = t + MS + arrival + TRANSFER + LOSS
            built.step(step, t, end).range("diag.forward", t, t + MS)
            now = t + MS
            for layer in range(LAYERS):
                begin = t + layer * 100 * US
                if self.named:
                    built.range(f"layers.{layer}", begin, begin + 90 * US)
                    built.range(f"layers.{layer}.mlp", begin + 40 * US, begin + 80 * US)
                built.kernel(now, now + WORK // 2, "attention", launch=begin + 10 * US)
                built.kernel(now + WORK // 2, now + WORK + slow.get(layer, 0), "gemm", launch=begin + 50 * US)
                now += WORK + slow.get(layer, 0)
            arrived = t + MS + arrival
            for seq, (start, done, elems) in enumerate(
                ((now, arrived + TRANSFER, 25_000_000), (arrived + TRANSFER, end, 1))
            ):
                call = nccl_args("allreduce", elems, seq=2 * step + seq)
                call |= {"Process Group Ranks": str([*range(self.ranks)]), "Group size": self.ranks}
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                built.kernel(start, done, name, launch=t + 900 * US + seq, stream=20, **call)
        return built


def check_path(result: Result) -> None:
    """What must hold for any run: the rows of each step add up to its duration, and those of the table to its."""
    accounts = by_rank(result.attribution.rank_steps)
    paths = on_paths(result.attribution.steps)
    charged = [
        charge(trace, accounted(tables, trace, windows_of(trace), accounts.get(rank, {})), paths.of_rank(rank))
        for rank, tables in result.tables.ranks.items()
        for trace in tables.traces
    ]
    rows = whole(paths, charged)
    assert rows.filter(pl.col("ns") <= 0).is_empty(), "no nanosecond is charged twice"
    spent = dict(rows.group_by("step").agg(pl.col("ns").sum()).iter_rows())
    assert spent == {step.step: step.dur_ns for step in result.attribution.steps}
    table = result.breakdowns.path
    assert table.total_ns == sum(row.total_ns for row in table.rows)
    assert table.total_ns == sum(s.dur_ns for s in result.attribution.steps if s.step in table.steps)
    assert table.in_modules_ns == sum(row.total_ns for row in table.rows if row.module)
    assert sum(row.share for row in table.rows) == pytest.approx(1 if table.rows else 0)


def by_place(result: Result) -> dict[tuple[int, str, str], PathStat]:
    return {(row.rank, row.category, row.module): row for row in result.breakdowns.path.rows}


def modules_said(result: Result) -> list[Evidence]:
    straggler = next((f for f in result.examination.findings if f.id == "compute-straggler"), None)
    return [item for item in straggler.evidence if item.table == "modules"] if straggler is not None else []


def printed(result: Result) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False)
    print_breakdown(result, "path", console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in text.splitlines()) <= 110
    return str(text)


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_path_of_every_sample_adds_up(name: str) -> None:
    check_path(opened_sample(name))


spans = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150)), max_size=8)
LENGTH = 400  # microseconds


def innermost(ranges: list[tuple[int, int]], at: float) -> str:
    """The number of the range that begins last of those open at a moment; of two, the shorter one."""
    inside = [(start, -dur, number) for number, (start, dur) in enumerate(ranges) if start <= at < start + dur]
    return str(max(inside)[2]) if inside else ""


def named(built: KinetoBuilder, ranges: list[tuple[int, int]]) -> None:
    for number, (start, dur) in enumerate(ranges):
        built.range(f"{number}", start * US, (start + dur) * US)


def modules_of(result: Result, category: str) -> dict[str, int]:
    return {row.module: row.total_ns for row in result.breakdowns.path.rows if row.category == category}


def counted(places: list[str]) -> dict[str, int]:
    return {place: places.count(place) * US for place in set(places)}


@settings(max_examples=examples(10, thorough=60), deadline=None, database=None, derandomize=True)
@given(spans.map(lambda found: list(dict.fromkeys(found))), spans)
def test_on_a_host_it_is_the_innermost_range_at_each_microsecond(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], work: list[tuple[int, int]]
) -> None:
    built = KinetoBuilder(world_size=1, backend="gloo").step(0, 0, LENGTH * US)
    named(built, ranges)
    for start, dur in work:
        built.op("aten::mm", start * US, min(start + dur, LENGTH) * US)
    result = open_run(built.write(tmp_path_factory.mktemp("trace")))
    check_path(result)
    busy = [any(start <= at < start + dur for start, dur in work) for at in range(LENGTH)]
    for category, kind in (("compute", True), ("idle/other", False)):
        truth = counted([innermost(ranges, at + 0.5) for at in range(LENGTH) if busy[at] == kind])
        assert modules_of(result, category) == truth


@settings(max_examples=examples(10, thorough=60), deadline=None, database=None, derandomize=True)
@given(
    spans.map(lambda found: list(dict.fromkeys(found))), st.lists(st.tuples(st.integers(0, 399), st.integers(1, 40)))
)
def test_on_a_device_it_is_the_range_around_the_launch(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], work: list[tuple[int, int]]
) -> None:
    built, now, places = KinetoBuilder(world_size=1).step(0, 0, LENGTH * US), LENGTH, []
    named(built, ranges)
    for launch, dur in sorted(work):
        built.kernel(now * US, (now + dur) * US, launch=launch * US)
        places += [innermost(ranges, launch)] * dur
        now += dur
    result = open_run(built.write(tmp_path_factory.mktemp("trace")))
    check_path(result)
    assert modules_of(result, "compute") == counted(places)


def test_steps_of_two_files_of_one_rank_are_charged_once(tmp_path: Path) -> None:
    for first, name in ((0, "a"), (3, "b")):
        built = KinetoBuilder(world_size=1)
        for step in range(first, first + 4):  # step 3 is in both, and its kernel ends behind its host
            t = step * 10 * MS
            built.step(step, t, t + 10 * MS).range(f"block of {name}", t, t + MS)
            built.kernel(t + 2 * MS, t + 11 * MS, launch=t + US)
        built.write(tmp_path, f"rank0.window{first}.json")
    result = open_run(tmp_path)
    check_path(result)
    assert [len(tables.traces) for tables in result.tables.ranks.values()] == [2]
    assert {row.module for row in result.breakdowns.path.rows} == {"block of a", "block of b"}


# -- where time belongs ------------------------------------------------------------------------------------------------


def test_a_hook_of_fsdp_names_the_unit_that_it_works_for(tmp_path: Path) -> None:
    """The gather of layers.1 is launched early, from within layers.0, and nothing hides it."""
    built = KinetoBuilder(world_size=1).step(0, 0, 30 * MS).range("diag.forward", 0, 10 * MS)
    built.range("FSDP::pre_forward (layers.0)", 0, 2 * MS).range("FSDP::post_forward (layers.0)", 4 * MS, 5 * MS)
    built.range("FSDP::forward_prefetch for layers.1", MS, 2 * MS)
    built.range("FSDP::all_gather (layers.1)", MS + US, 2 * MS - US)
    built.kernel(10 * MS, 13 * MS, "ncclDevKernel_AllGather_RING_LL", launch=MS + 2 * US)
    built.kernel(13 * MS, 20 * MS, launch=3 * MS)
    built.range("FSDP::post_backward_reduce", 6 * MS, 7 * MS, AUTOGRAD)
    built.kernel(20 * MS, 30 * MS, "ncclDevKernel_ReduceScatter_RING_LL", launch=6 * MS + US, tid=AUTOGRAD)
    result = open_run(built.write(tmp_path))
    check_path(result)
    assert by_place(result)[0, "comm", "layers.1"].total_ns == 3 * MS
    assert by_place(result)[0, "compute/forward", "layers.0"].total_ns == 7 * MS
    assert by_place(result)[0, "comm", "(root)"].total_ns == 10 * MS


def test_a_gap_is_the_hosts_where_the_device_waits_for_it_and_the_next_kernels_where_that_is_queued(
    tmp_path: Path,
) -> None:
    built = KinetoBuilder(world_size=1).step(0, 0, 60 * MS)
    built.range("first", 0, 5 * MS).range("second", 5 * MS, 40 * MS)
    built.kernel(MS, 10 * MS, launch=US).kernel(12 * MS, 20 * MS, launch=2 * MS)  # queued, and late
    built.kernel(30 * MS, 60 * MS, launch=29 * MS)
    result = open_run(built.write(tmp_path))
    check_path(result)
    found = by_place(result)
    in_launch = 1  # ns
    assert found[0, "idle/dependency", "first"].total_ns == MS - US - in_launch + 2 * MS
    assert found[0, "idle/launch", "second"].total_ns == 9 * MS
    assert found[0, "idle/dependency", "second"].total_ns == MS - in_launch
    assert found[0, "compute", "second"].total_ns == 30 * MS


def test_of_two_kernels_at_once_the_first_has_the_time(tmp_path: Path) -> None:
    built = KinetoBuilder(world_size=1).step(0, 0, 30 * MS).range("a", 0, MS).range("b", MS, 2 * MS)
    built.kernel(10 * MS, 20 * MS, launch=US).kernel(12 * MS, 15 * MS, launch=MS + US, stream=8)
    built.kernel(15 * MS, 26 * MS, launch=MS + 2 * US, stream=8)
    result = open_run(built.write(tmp_path))
    check_path(result)
    assert modules_of(result, "compute") == {"a": 10 * MS, "b": 6 * MS}


def test_ranges_around_a_phase_name_no_module(tmp_path: Path) -> None:
    built = KinetoBuilder(world_size=1, backend="gloo").step(0, 0, 10 * MS)
    for name in ("## forward ##", "[pl][profile]run_training_batch", "DistributedDataParallel.forward"):
        built.range(name, 0, 9 * MS)
    built.op("aten::mm", MS, 8 * MS)
    result = open_run(built.write(tmp_path))
    check_path(result)
    assert result.breakdowns.path.in_modules_ns == 0


@pytest.mark.parametrize("off", [0, 50 * MS], ids=["one clock", "clocks that are off"])
def test_a_slow_module_of_one_rank(tmp_path: Path, off: int) -> None:
    result = open_run(Job({3: 30 * MS}, off=off).write(tmp_path))
    check_path(result)
    assert (result.verdict.cause, result.verdict.culprit_ranks) == ("compute-straggler", (1,))
    (said,) = modules_said(result)
    assert said.filter.startswith("layers.3.mlp: extra time of rank 1 over the median of 2 others, of +30")
    assert (said.value, said.unit) == (pytest.approx(30), "ms")
    first = result.breakdowns.path.rows[0]
    assert (first.rank, first.category, first.module) == (1, "compute/forward", "layers.3.mlp")
    assert first.ns_per_step == pytest.approx(30 * MS + WORK // 2, abs=10 * US)
    assert by_place(result)[1, "compute/forward", "layers.2"].ns_per_step == pytest.approx(WORK // 2, abs=10 * US)


@pytest.mark.parametrize("ppm", [-300, 300])
def test_modules_keep_their_time_where_clocks_drift_apart(tmp_path: Path, ppm: float) -> None:
    result = open_run(Job({3: 30 * MS}, off=50 * MS, steps=40, ppm=ppm).write(tmp_path))
    assert result.attribution.clock_drift == pytest.approx(300e-6, rel=0.1)
    check_path(result)
    (said,) = modules_said(result)
    assert said.value == pytest.approx(30, abs=0.1)
    accounts, forward = (
        by_rank(result.attribution.rank_steps),
        pl.col("label") == label_of(Kind.COMPUTE, Detail.FORWARD),
    )
    for rank, tables in result.tables.ranks.items():
        spent, (trace,) = of_rank_steps(accounts[rank].values()), tables.traces
        inside = charge(trace, accounted(tables, trace, windows_of(trace), accounts[rank]), spent)
        whole_ns, inside_ns = (int(rows.filter(forward)["ns"].sum()) for rows in (spent.totals(), inside))
        assert 0 <= whole_ns - inside_ns < US, "no kernel slips out of its place"


def test_the_verdict_does_not_depend_on_the_names_of_modules(tmp_path: Path) -> None:
    verdicts = []
    for is_named in (True, False):
        folder = tmp_path / str(is_named)
        folder.mkdir()
        result = open_run(Job({3: 30 * MS}, named=is_named).write(folder))
        assert bool(modules_said(result)) == is_named
        verdicts.append(result.verdict)
    assert verdicts[0] == verdicts[1]


def test_one_other_rank_that_is_slow_in_the_same_module_does_not_hide_it(tmp_path: Path) -> None:
    result = open_run(Job({3: 30 * MS}, {3: 4 * MS}, ranks=4).write(tmp_path))
    assert result.verdict.culprit_ranks == (1,)
    (said,) = modules_said(result)
    assert (said.filter.partition(":")[0], said.value) == ("layers.3.mlp", pytest.approx(30))


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({0: 20 * MS, 2: 10 * MS}, ["layers.0.mlp"]),
        ({0: 14 * MS, 1: 13 * MS, 2: 12 * MS}, ["layers.0.mlp", "layers.1.mlp"]),
    ],
)
def test_no_more_modules_are_named_than_explain_half(tmp_path: Path, slow: dict[int, int], said: list[str]) -> None:
    found = modules_said(open_run(Job(slow).write(tmp_path)))
    assert [item.filter.partition(":")[0] for item in found] == said


@pytest.mark.parametrize("inside", [0, 15 * MS, 25 * MS])
def test_nothing_is_said_where_most_of_the_time_is_lost_outside_of_modules(tmp_path: Path, inside: int) -> None:
    for rank in range(3):
        built = KinetoBuilder(rank=rank, world_size=3)
        for step in range(STEPS):
            t, late = 10 * MS + step * 100 * MS, 40 * MS if rank == 1 else 0
            built.step(step, t, t + 100 * MS).range("model", t, t + MS)
            until = t + 20 * MS + (inside if rank == 1 else 0)
            built.kernel(t + MS, until, launch=t + US)
            built.kernel(until, t + 40 * MS + late, "elsewhere", launch=t + 2 * MS)
            call = nccl_args("allreduce", 25_000_000, seq=step)
            call |= {"Process Group Ranks": "[0, 1, 2]", "Group size": 3}
            built.kernel(t + 40 * MS + late, t + 99 * MS, "ncclDevKernel_AllReduce", launch=t + 3 * MS, **call)
        built.write(tmp_path, f"rank{rank}.json")
    result = open_run(tmp_path)
    check_path(result)
    assert result.verdict.cause == "compute-straggler"
    assert [item.value for item in modules_said(result)] == ([25] if inside == 25 * MS else [])


def test_the_sample_of_a_rank_that_sleeps_in_its_backward() -> None:
    result = opened_sample("fsdp2-straggler-rank0")
    (said,) = modules_said(result)
    assert said.filter == "blocks.1: extra time of rank 0 over the other rank, in the profiler windows"
    assert said.value == pytest.approx(200, abs=10), "the planted sleep"


# -- traces that name no module, and runs without traces ---------------------------------------------------------------


def test_a_sample_without_ranges_of_modules() -> None:
    result = opened_sample("ddp-straggler-rank0")
    assert modules_said(result) == []
    assert result.breakdowns.path.in_modules_ns == 0
    text = printed(result)
    assert "Outside any module" in text
    assert "No module is named in the traces" in text


def test_records_alone_know_the_phase_and_no_module() -> None:
    result = analyze(simulate(Plan(extra=lambda step, rank: {"forward": 40 * MS} if rank else {})))
    check_path(result)
    table = result.breakdowns.path
    assert (table.traced, table.in_modules_ns) == (False, 0)
    assert len(table.steps) == len(result.attribution.usable)
    assert (table.rows[0].rank, table.rows[0].category) == (1, "compute/forward")
    assert "recorded steps" in printed(result)


def test_text_and_json(tmp_path: Path) -> None:
    Job({3: 30 * MS}).write(tmp_path)
    content = analyze_json(tmp_path)
    path = content["breakdowns"]["path"]
    assert path["total_ns"] == sum(row["total_ns"] for row in path["rows"])
    assert path["rows_left_out"] == 0
    assert path["rows"][0] == {
        "rank": 1,
        "category": "compute/forward",
        "module": "layers.3.mlp",
        "total_ns": 4 * 35 * MS,
        "ns_per_step": 35 * MS,
        "share": pytest.approx(35 / 74.2, abs=0.001),
    }
    ended = diag("analyze", tmp_path, "--table", "path", "--evidence")
    assert ended.returncode == 0, ended.stderr
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "1 compute/forward layers.3.mlp 35.0 47.2%" in lines
    assert any(
        "layers.3.mlp: extra time of rank 1 over the median of 2 others, of +30 ms a step = 30 ms" in line
        for line in lines
    )
