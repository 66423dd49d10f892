"""A number with one name has one value in every front end: text, JSON, check, compare, metrics, report, notebook and
the dashboard's pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from diag.api import Result, compare_runs, open_run, state_of
from diag.app.run_view import Part, view_of
from diag.app.views.runs import row_of
from diag.collectors.layout import RunLayout
from diag.collectors.records import (
    BACKWARD,
    DATA,
    EVALUATION,
    FORWARD,
    H2D,
    WINDOW_ACTIVE,
    WINDOW_AFTER,
    WINDOW_NONE,
    WINDOW_WARMUP,
    StepRecord,
)
from diag.diagnoses.costs import Cost
from diag.diagnoses.ids import DANGERS
from diag.diagnoses.shares import PART_NAMES, step_parts
from diag.export.definitions import ANALYSED_PART, VERDICT_INFO, VERDICT_SHARE
from diag.export.run_metrics import RunMetrics
from diag.gate import budgets
from diag.gate.check import Interval, measure
from diag.model.steps import Bottleneck, Kind, Severity
from diag.show.json import save, to_dict
from diag.show.page import DATA_WAIT, EXPOSED_COMM, HOST_WAIT, STEP_TIME, numbers_of, page_of
from tests.app.runs import write_stalled_trace
from tests.copies import replace
from tests.samples import NAMES, opened_sample
from tests.simulate import MS, Plan, simulate, write_run

CONSTRUCTED = "constructed"


def _constructed(folder: Path) -> Path:
    """Four ranks with copies, evaluations, profiler windows, queueing and one rank that sleeps."""
    windows = {10: WINDOW_WARMUP, 11: WINDOW_ACTIVE, 12: WINDOW_ACTIVE, 13: WINDOW_AFTER}

    def extra(step: int, rank: int) -> dict[str, int]:
        late = 60 * MS if rank == 2 else 0
        return {DATA: 12 * MS, H2D: 9 * MS, FORWARD: 8 * MS + late, EVALUATION: 15 * MS if step % 5 == 0 else 0}

    plan = Plan(
        ranks=4,
        steps=30,
        transfer_ns=4 * MS,
        extra=extra,
        scheduled=lambda step, rank: {FORWARD: (8 * MS, 60 * MS if rank == 2 else 0), BACKWARD: (3 * MS, 0)},
    )
    tables = simulate(plan)

    def marked(step: StepRecord) -> StepRecord:
        return replace(step, window=windows.get(step.step, WINDOW_NONE))

    ranks = {rank: replace(own, steps=tuple(map(marked, own.steps))) for rank, own in tables.ranks.items()}
    write_run(replace(tables, ranks=ranks), folder)
    return folder


@pytest.fixture(scope="module")
def constructed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return open_run(_constructed(tmp_path_factory.mktemp("runs") / CONSTRUCTED))


@pytest.fixture(params=[CONSTRUCTED, *NAMES])
def result(request: pytest.FixtureRequest, constructed: Result) -> Result:
    return constructed if request.param == CONSTRUCTED else opened_sample(request.param)


def _of_the_step(result: Result) -> Mapping[str, Mapping[str, float]]:
    """Nanoseconds of the mean step by name, and for each name by front end."""
    page, comparison = page_of(result), compare_runs(result, result)
    steps, path = result.examination.shares.dur_ns.mean(), to_dict(result)["critical_path"]
    numbers = numbers_of(result)
    by_name: dict[str, dict[str, float]] = {"step": {"tile": numbers[STEP_TIME] or 0.0}}
    by_name["step"] |= {"json": path["step_ns"], "compare": comparison.before_ns, "runs": _row(result).step_ns or 0.0}
    for part in comparison.parts:
        front = by_name.setdefault(PART_NAMES[part.kind], {})
        front |= {"compare": part.before_ns, "json": path["parts_ns"][part.kind.name.lower()]}
        told = re.search(rf"([\d,.]+) ms of {PART_NAMES[part.kind]}\b", page.verdict.why)
        front |= {"sentence": float(told[1].replace(",", "")) * MS} if told else {}
    for name, cost, label, budget in (
        (PART_NAMES[Kind.COMM], Cost.COMM, EXPOSED_COMM, budgets.EXPOSED_COMM),
        (PART_NAMES[Kind.DATA], Cost.DATA, DATA_WAIT, budgets.DATA_WAIT),
        (PART_NAMES[Kind.COPY], Cost.COPY, "", budgets.EXPOSED_COPIES),
        (PART_NAMES[Cost.HOST], Cost.HOST, HOST_WAIT, budgets.HOST_WAIT),
    ):
        measured, tile = measure(budget, result), numbers.get(label)
        front = by_name.setdefault(name, {})
        front |= {"check": measured.likely * steps} if isinstance(measured, Interval) else {}
        front |= {"tile": tile * steps} if tile is not None else {}
        whole = [f for f in result.examination.findings if f"costs: {cost.words}" in map(_row_of, f.evidence)]
        front |= {finding.id: finding.cost_ns_per_step for finding in whole if not finding.ranks}
    return by_name


def _row(result: Result):  # type: ignore[no-untyped-def]
    return row_of(state_of(result.tables.root), result)


def _row_of(evidence):  # type: ignore[no-untyped-def]
    return f"{evidence.table}: {evidence.filter}".split(",")[0]


def test_the_step_and_its_parts_have_one_value(result: Result) -> None:
    for name, by_front_end in _of_the_step(result).items():
        values = list(by_front_end.values()) or [0.0]
        assert values == pytest.approx([values[0]] * len(values), abs=0.051 * MS), (name, by_front_end)


def test_host_wait_has_one_value(tmp_path: Path) -> None:
    result = open_run(write_stalled_trace(tmp_path / "traces"))
    by_front_end = _of_the_step(result)[PART_NAMES[Cost.HOST]]
    assert {"tile", "json", "compare", "sentence", "host-stall"} <= by_front_end.keys()
    assert list(by_front_end.values()) == pytest.approx([4.4 * MS] * len(by_front_end), abs=0.051 * MS)


def test_the_parts_add_up_to_the_step(result: Result) -> None:
    shares = result.examination.shares
    assert sum(step_parts(shares).values()) == pytest.approx(shares.dur_ns, abs=2)
    path = to_dict(result)["critical_path"]
    assert sum(path["parts_ns"].values()) == pytest.approx(path["step_ns"], abs=len(path["parts_ns"]))


def test_the_share_of_the_headline_is_that_of_its_class_and_of_its_cause(result: Result) -> None:
    verdict, cause = result.verdict, result.cause
    if verdict.severity == Severity.HEALTHY or cause is None or verdict.bottleneck == Bottleneck.MIXED:
        return
    if cause.id in DANGERS:  # it costs no time
        assert verdict.headline.startswith(cause.title)
        return
    of_class, of_cause = f"{verdict.share:.0%}", f"{cause.share:.0%}"
    told = re.search(r"\((\d+%) of [^,()]*(?:, the largest cause (\d+%))?\)", verdict.headline)
    assert told is not None, verdict.headline
    assert told.groups() == (of_class, of_cause if of_cause != of_class else None)
    assert page_of(result).findings[0].cost.startswith(f"{of_cause} of ")


def test_a_change_is_predicted_for_the_step_that_the_pages_show(result: Result) -> None:
    if result.what_if.changes:
        assert result.what_if.predict(()).step_ns == round(float(result.examination.shares.dur_ns.mean()))


def test_a_ranks_own_step_has_one_value(result: Result, tmp_path: Path) -> None:
    frame, view, page = result.ranks, view_of(result), page_of(result, most_ranks=64)
    recorded = _exported(result, tmp_path)
    column = {name: at for at, name in enumerate(page.ranks.headings)}
    for row in frame.to_dicts():
        rank, at = row["rank"], view.ranks.index(row["rank"])
        (cells,) = (cells for cells in page.ranks.texts() if cells[0] == str(rank))
        bars = {part: view.per_rank(grid)[at] for part, grid in view.parts.items()}
        talking = sum(bars.get(part, 0.0) for part in (Part.TRANSFER, Part.WAITING, Part.COMMUNICATION))
        idle = sum(bars.get(part, 0.0) for part in (Part.HOST, Part.QUEUED, Part.IDLE))
        for name, field, bar, exported in (
            ("compute", "compute_ns", bars.get(Part.COMPUTE, 0.0), ("compute",)),
            ("communication", "exposed_comm_ns", talking, ("exposed_comm", "exposed_wait", "exposed_transfer")),
            ("data wait", "data_wait_ns", bars.get(Part.DATA, 0.0), ("data_wait",)),
            ("idle", "idle_ns", idle, ("idle",)),
        ):
            assert bar == pytest.approx(row[field], abs=1), (rank, name)
            seconds = sum(recorded[rank].get(part, 0.0) for part in exported)
            assert seconds * 1e9 == pytest.approx(row[field], abs=1), (rank, name)
            if name in column:
                assert cells[column[name]] == f"{row[field] / 1e6:,.1f}", (rank, name)


def _exported(result: Result, folder: Path) -> dict[int, dict[str, float]]:
    """The parts of each rank's step that ``diag metrics`` exports after this analysis."""
    recorded: dict[int, dict[str, float]] = {}
    for sample in _samples(result, folder):
        if sample.metric is ANALYSED_PART:
            recorded.setdefault(int(sample.labels["rank"]), {})[sample.labels["part"]] = sample.value
    return recorded


def _samples(result: Result, folder: Path):  # type: ignore[no-untyped-def]
    run = folder / "run"
    if not run.exists():
        shutil.copytree(result.tables.root, run)
        save(replace(result, tables=replace(result.tables, root=run)))
        assert RunLayout(run).verdict.exists()
    return RunMetrics(run, per_rank=True).read()


def test_every_front_end_names_the_culprit_of_the_leading_finding(result: Result, tmp_path: Path) -> None:
    leading = result.examination.findings[:1] if result.verdict.severity != Severity.HEALTHY else ()
    culprits = leading[0].ranks if leading and leading[0].id not in DANGERS else ()
    page, document = page_of(result), to_dict(result)
    (info,) = (sample for sample in _samples(result, tmp_path) if sample.metric is VERDICT_INFO)
    (exported,) = (sample for sample in _samples(result, tmp_path) if sample.metric is VERDICT_SHARE)
    assert result.verdict.culprit_ranks == culprits
    assert (document["verdict"]["culprit"] or {"ranks": []})["ranks"] == list(culprits)
    assert tuple(page.ranks.values("rank")[place] for place in sorted(page.ranks.at_fault)) == culprits
    assert tuple(result.ranks.filter(result.ranks["culprit"])["rank"].to_list()) == culprits
    assert info.labels["culprit_ranks"] == ",".join(map(str, culprits))
    assert exported.value == result.verdict.share
    assert any(fact.startswith("At fault") for fact in page.verdict.facts) == bool(culprits)
    assert bool(_row(result).culprit) == bool(culprits)
    assert view_of(result).culprits == culprits


@pytest.mark.parametrize("name", ["fsdp2-slow-link-rank1", "fsdp2-slow-wire", "fsdp2-not-overlapped"])
def test_a_bandwidth_in_evidence_is_that_of_the_table_of_collectives(name: str) -> None:
    result = opened_sample(name)
    table = {
        f"{row.op} of {row.bytes_mean} bytes, bus bandwidth": row.busbw_gb_s
        for row in result.breakdowns.collectives.rows
    }
    shown = {
        item.filter: item.value
        for finding in result.examination.findings
        for item in finding.evidence
        if item.unit == "GB/s"
    }
    assert len(shown) >= 2, "of the all-gathers and of the reduce-scatters"
    assert shown == {quantity: pytest.approx(table[quantity], abs=0.00006) for quantity in shown}
