"""One file of several ranks, several files of one rank: told by what the events and the names say."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from diag.api import find_jobs, open_run
from diag.errors import DiagError
from diag.model import Gap
from diag.rundir.tables import Tables
from diag.traces.cache import Cache
from diag.traces.policy import TRACE_READING
from diag.traces.reading import Reading, read_traces
from diag.traces.trace import Trace
from tests.account.kineto_builder import KinetoBuilder, nccl_args
from tests.traces.outcomes import rows_of, sums_exactly

MS = 1_000_000
STEPS = 3
Event = dict[str, Any]


def built(rank: int, shift: int = 0, header: int | None = None) -> KinetoBuilder:
    """Steps of a rank that computes the longer the higher its rank is. ``shift``: later by so many ns."""
    made = KinetoBuilder(rank=header)
    for step in range(STEPS):
        begin = shift + 10 * MS + step * 50 * MS
        made.step(step, begin, begin + 50 * MS).op("aten::mm", begin + 500, begin + 2_000)
        made.kernel(begin + 2 * MS, begin + (30 + 5 * rank) * MS, launch=begin + 1_000)
        made.kernel(
            begin + (30 + 5 * rank) * MS, begin + 45 * MS, "ncclDevKernel_AllReduce_Sum_f32(x)", begin + 3_000, 20,
            **nccl_args("allreduce", 1000, seq=step),
        )  # fmt: skip
    return made


def of_process(made: KinetoBuilder, pid: int, device: int, correlation: int = 0) -> list[Event]:
    """The events with the process and the device of one rank, and correlation ids from a number on."""
    found = []
    for event in made.events:
        args = dict(event["args"])
        if "correlation" in args:
            args["correlation"] += correlation
        on_device = event["cat"] in ("kernel", "gpu_memcpy")
        found.append({**event, "pid": device if on_device else pid, "args": args})
    return found


def fused(ranks: dict[int, list[Event]]) -> list[Event]:
    """As AMD's TraceLens merges ranks: the rank in each event's arguments, ids moved apart, the old ones kept."""
    merged = []
    for rank, events in ranks.items():
        for event in events:
            args = {**event["args"], "rank": rank, "pid_raw": event["pid"]}
            if "correlation" in args:
                args["correlation_raw"] = args["correlation"]
                args["correlation"] += 10_000 * rank
            merged.append({**event, "pid": event["pid"] + 1_000_000 * rank, "args": args})
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": f"RANK {pid // 1_000_000}"}}
        for pid in {event["pid"] for event in merged}
    ]
    return [*merged, *names]


def put(folder: Path, events: list[Event], name: str = "merged.json", **header: Any) -> Path:
    path = folder / name
    data = json.dumps({**header, "traceEvents": events}, indent=1).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def read(path: Path, cache: Path | None = None) -> list[Trace]:
    found = list(read_traces([str(path)], Reading(cache=Cache(cache))))
    assert not [item for item in found if isinstance(item, Gap)]
    return [item for item in found if isinstance(item, Trace)]


def truth(folder: Path, events: list[Event]) -> list[dict[str, Any]]:
    """The rows of these events as a file of their own."""
    (trace,) = read(put(folder, events, "alone.json"))
    return rows_of(trace)


def same_but_correlation(rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in row.items() if key not in ("correlation", "thread", "args_row")}

    return list(map(plain, rows)) == list(map(plain, others))


# -- several ranks in one file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_events_that_say_their_rank(tmp_path: Path, name: str) -> None:
    ranks = {rank: of_process(built(rank), 100, rank) for rank in range(4)}
    traces = read(put(tmp_path, fused(ranks), name))
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]
    for rank, trace in enumerate(traces):
        assert trace.host_pids == ("100",)
        assert trace.select("kernel")["device"].unique().to_list() == [rank]
        assert same_but_correlation(rows_of(trace), truth(tmp_path, ranks[rank]))
        assert (trace.begin_ns, trace.end_ns) == (10 * MS, (10 + 50 * STEPS) * MS)
    assert "4 ranks" in traces[0].gaps[0]
    assert not any(trace.gaps for trace in traces[1:])


def test_a_merged_file_is_analysed_like_the_ranks_own(tmp_path: Path) -> None:
    for rank in range(3):
        put(tmp_path, of_process(built(rank), 100 + rank, rank), f"rank{rank}.json")
    apart = open_run(tmp_path)
    (tmp_path / "merged").mkdir()
    together = open_run(put(tmp_path / "merged", fused({r: of_process(built(r), 100 + r, r) for r in range(3)})))
    assert list(together.tables.ranks) == [0, 1, 2]
    sums_exactly(together)
    assert [step.parts for step in together.attribution.steps] == [step.parts for step in apart.attribution.steps]
    assert [step.blames for step in together.attribution.steps] == [step.blames for step in apart.attribution.steps]


def test_samples_of_the_allocator_are_those_of_their_rank(tmp_path: Path) -> None:
    """Each says its process, as every event does."""
    made = {rank: built(rank).memory(20 * MS, (rank + 1) * 100, 1000, device=rank) for rank in range(2)}
    traces = read(put(tmp_path, fused({rank: of_process(one, 100, rank) for rank, one in made.items()})))
    assert [trace.counters["allocated"].to_list() for trace in traces] == [[100], [200]]
    assert [trace.counters["device"].to_list() for trace in traces] == [[0], [1]]


def test_what_is_derived_of_one_rank_is_not_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(TRACE_READING), "cached_from_bytes", 0)
    path = put(tmp_path, fused({rank: of_process(built(rank), 100, rank) for rank in range(3)}))
    plain = open_run(path, reading=Reading(cache=Cache(None)))
    cached = [open_run(path, reading=Reading(cache=Cache(tmp_path / "cache"))) for _ in range(2)]
    for result in cached:
        assert [step.parts for step in result.attribution.steps] == [step.parts for step in plain.attribution.steps]
    busy = [parts.compute_ns for parts in plain.attribution.steps[1].parts]
    assert busy == [28 * MS, 33 * MS, 38 * MS]


def test_ranks_named_by_their_processes_alone(tmp_path: Path) -> None:
    events = [event for rank in (5, 2) for event in of_process(built(rank), 100 + rank, rank, 1000 * rank)]
    names = [
        {"ph": "M", "name": "process_name", "pid": 100 + rank, "tid": 0, "args": {"name": f"rank {rank}: python"}}
        for rank in (5, 2)
    ]
    traces = read(put(tmp_path, [*events, *names]))
    assert [trace.rank for trace in traces] == [2, 5]
    assert [trace.select("kernel")["device"][0] for trace in traces] == [2, 5]


def test_processes_with_devices_of_their_own(tmp_path: Path) -> None:
    """In order of their devices, whatever their process ids are."""
    events = [e for rank in range(3) for e in of_process(built(rank), 300 - rank, rank, 1000 * rank)]
    random.Random(1).shuffle(events)
    traces = read(put(tmp_path, events))
    assert [(trace.rank, trace.host_pids) for trace in traces] == [(None, ("300",)), (None, ("299",)), (None, ("298",))]
    tables = open_run(tmp_path).tables
    assert list(tables.ranks) == [0, 1, 2]
    assert [tables.ranks[r].traces[0].select("kernel")["device"][0] for r in range(3)] == [0, 1, 2]
    said = [gap.reason for gap in tables.gaps]
    assert len(said) == 2
    assert "3 processes (300, 299, 298)" in said[0]
    assert said[1].endswith("treated as ranks 0-2")


def test_correlation_ids_that_are_the_same_numbers(tmp_path: Path) -> None:
    """Two processes launch with equal ids, the second 10 ms later: its launches come after the first one's kernels."""
    events = [*of_process(built(0), 10, 1), *of_process(built(1, shift=10 * MS), 11, 0)]
    traces = read(put(tmp_path, events))
    assert [(t.host_pids[0], t.select("kernel")["device"][0]) for t in traces] == [("11", 0), ("10", 1)]


def test_work_whose_launches_were_cut_off(tmp_path: Path) -> None:
    """A launch is missing, and one of another process has its number."""
    events = []
    for rank in range(2):
        made = built(rank)
        for at in range(40):
            made.kernel(200 * MS + 1000 * at + 100, 200 * MS + 1000 * at + 600, launch=200 * MS + 1000 * at)
        own = of_process(made, 10 + rank, rank, 45 * rank)  # 1 to 46, and 46 to 91
        first = next(event for event in own if event["cat"] == "cuda_runtime")
        events += [event for event in own if event is not first]
    traces = read(put(tmp_path, events))
    assert [(t.host_pids[0], t.select("kernel")["device"][0]) for t in traces] == [("10", 0), ("11", 1)]
    assert [len(trace.select("kernel")) for trace in traces] == [2 * STEPS + 40] * 2


def test_processes_that_cannot_be_separated_are_refused(tmp_path: Path) -> None:
    same = [*of_process(built(0), 10, 0), *of_process(built(0), 11, 1)]
    shared = [*of_process(built(0), 10, 0), *of_process(built(1), 11, 0, 1000)]
    for name, events in (("same.json", same), ("shared.json", shared)):
        with pytest.raises(DiagError, match=r"2 processes \(10, 11\)") as error:
            open_run(put(tmp_path, events, name))
        assert "\n" not in error.value.message
    one_pid = [{**event, "args": {**event["args"], "rank": rank}} for rank in (0, 1) for event in built(rank).events]
    with pytest.raises(DiagError, match=r"ranks 0, 1 have the same process id"):
        open_run(put(tmp_path, one_pid, "one.json"))


def test_one_process_with_several_devices_is_one_rank(tmp_path: Path) -> None:
    """DataParallel."""
    second = [event for event in of_process(built(1), 100, 1, 1000) if event["cat"] in ("kernel", "cuda_runtime")]
    (trace,) = read(put(tmp_path, [*of_process(built(0), 100, 0), *second]))
    assert sorted(trace.select("kernel")["device"].unique()) == [0, 1]
    assert not trace.gaps


def test_runtime_calls_under_another_process_id_are_of_the_same_rank(tmp_path: Path) -> None:
    """In a container CUPTI may write the id that the process has outside of it."""
    events = [{**e, "pid": 4711} if e["cat"] == "cuda_runtime" else e for e in built(0).events]
    (trace,) = read(put(tmp_path, events))
    assert len(trace.select("cuda_runtime")) == len(trace.select("kernel")) == 2 * STEPS


def test_a_stray_event_of_another_process_makes_no_rank(tmp_path: Path) -> None:
    made = built(0)
    for at in range(200):
        made.op("aten::add", 1000 * at, 1000 * at + 10)
    stray = {**made.events[-1], "pid": 7}
    (trace,) = read(put(tmp_path, [*made.events, stray]))
    assert len(trace.events) == len(made.events) + 1


def test_processes_without_device_work_are_no_ranks_beside_those_with(tmp_path: Path) -> None:
    loader = KinetoBuilder(rank=None)
    for at in range(20):
        loader.op("aten::stack", MS * at, MS * at + 1000)
    events = [*of_process(built(0), 10, 0), *of_process(loader, 11, 0)]
    (trace,) = read(put(tmp_path, events, "rank3.json"))
    assert (trace.rank, trace.host_pids) == (3, ("10",))
    assert "only 10 launched work" in trace.gaps[0]


def test_processes_of_a_cpu_run(tmp_path: Path) -> None:
    events = []
    for rank in range(12):
        made = KinetoBuilder(rank=None)
        for step in range(STEPS):
            made.step(step, step * MS, (step + 1) * MS).op("aten::mm", step * MS + 10, (step + 1) * MS - 10 - rank)
        events += of_process(made, 90 + rank, 0)
    assert [trace.host_pids for trace in read(put(tmp_path, events))] == [(str(90 + rank),) for rank in range(12)]


def test_arguments_called_rank_in_one_ranks_trace(tmp_path: Path) -> None:
    events = [{**event, "args": {**event["args"], "rank": 6}} for event in built(0).events]
    (trace,) = read(put(tmp_path, events))
    assert trace.rank == 6


# -- several files of one rank -----------------------------------------------------------------------------------------


def tables_of(folder: Path) -> Tables:
    return open_run(folder).tables


def test_windows_of_one_process_are_one_rank(tmp_path: Path) -> None:
    for number, shift in enumerate((900 * MS, 0, 300 * MS)):
        made = of_process(built(0, shift), 4711, 0)
        put(tmp_path, made, f"node-a_4711.173376984851407{number}.pt.trace.json")
    tables = tables_of(tmp_path)
    assert list(tables.ranks) == [0]
    assert [trace.begin_ns for trace in tables.ranks[0].traces] == [10 * MS, 310 * MS, 910 * MS]
    assert any("3 windows of this rank" in gap.reason for gap in tables.gaps)


@pytest.mark.parametrize(
    ("pid", "shift", "name", "host"),
    [
        (11, 300 * MS, "b.json", "a"),
        (10, 10 * MS, "b.json", "a"),
        (10, 300 * MS, "b.json", "other"),
        (10, 48 * 3600 * 1000 * MS, "b.json", "a"),
        (10, 300 * MS, "node-a_10.1733769848514071.pt.trace.json", "a"),
    ],
    ids=["another process", "at the same time", "another host", "another day", "another name"],
)
def test_what_is_no_window_of_the_same_process(tmp_path: Path, pid: int, shift: int, name: str, host: str) -> None:
    """At the same time it is another rank, at another time another job."""
    put(tmp_path, of_process(built(0), 10, 0), "a.json", host_name="a")
    put(tmp_path, of_process(built(1, shift), pid, 0), name, host_name=host)
    jobs = [job.tables for job in find_jobs([tmp_path]).jobs if job.tables is not None]
    assert [list(tables.ranks) for tables in jobs] == ([[0], [0]] if shift > 200 * MS else [[0, 1]])
    assert {len(rank.traces) for tables in jobs for rank in tables.ranks.values()} == {1}


def test_a_copy_of_a_window_is_left_out(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        put(tmp_path, of_process(built(0), 10, 0), name)
    tables = tables_of(tmp_path)
    assert [len(rank.traces) for rank in tables.ranks.values()] == [1]
    assert any("left out" in gap.reason for gap in tables.gaps)


def test_files_without_a_rank_are_numbered_as_people_count(tmp_path: Path) -> None:
    for number in range(11):
        put(tmp_path, of_process(built(0), 100 + number, 0), f"trace_{number}.json")
    paths = [tables.traces[0].path for tables in tables_of(tmp_path).ranks.values()]
    assert [Path(path).name for path in paths] == [f"trace_{number}.json" for number in range(11)]
