"""What the server answers to the timeline's canvas: the numbers of the analysis, and no more than was asked."""

from __future__ import annotations

import io
import json
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from diag.api import Result, open_run
from diag.app.server import routes
from diag.app.timeline_data.perfetto import step_to_open
from diag.app.timeline_data.source import share, source_of
from diag.tables.tiles import CELLS, FULL
from diag.tables.zoom import WORK
from diag.timeline import timeline_of
from tests.app.runs import write_run
from tests.patience import PATIENCE_S
from tests.poisoned import POISON, is_harmless
from tests.samples import opened_sample
from tests.tables.lane_traces import FUNCTIONS, STEP_US, STEPS, US, write_gpu_traces

KERNEL = f"gemm{POISON}"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return open_run(
        write_gpu_traces(
            tmp_path_factory.mktemp("traces") / "run", names=(KERNEL, "ncclDevKernel_AllReduce"), python=True
        )
    )


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(Starlette(routes=routes())) as found:
        yield found


def asked(client: TestClient, what: str, result: Result, **query: object) -> Any:
    return client.get(f"/timeline-data/{what}", params={"source": share(result), **query})


def tile(client: TestClient, what: str, result: Result, **query: object) -> tuple[dict[str, Any], bytes]:
    """The header of a tile, and its arrays."""
    answer = asked(client, what, result, **query)
    assert answer.status_code == 200, answer.text
    (size,) = struct.unpack_from("<I", answer.content)
    return json.loads(answer.content[4 : 4 + size]), answer.content[-(-(4 + size) // 8) * 8 :]


def array(body: bytes, offset: int, kind: str, count: int) -> list[float]:
    assert offset % 8 == 0
    return np.frombuffer(body, dtype=kind, count=count, offset=offset).tolist()


def test_the_ranks_shares_are_those_of_the_account(client: TestClient, result: Result) -> None:
    level = 13  # 512 cells of 8192 ns
    header, body = tile(client, "ranks", result, level=level, tile=0, ranks="0,1")
    assert [row["rank"] for row in header["rows"]] == [0, 1]
    for row in header["rows"]:
        account = timeline_of(result).ranks[row["rank"]]
        assert {WORK[code] for code, _ in row["cells"]} == {lane.category.value for lane in account.lanes}
        for code, offset in row["cells"]:
            lane = next(lane for lane in account.lanes if lane.category == WORK[code])
            busy = lane.busy_ns(np.arange(CELLS + 1, dtype=np.int64) << level)
            assert array(body, offset, "u1", CELLS) == np.ceil(busy * FULL / (1 << level)).tolist()


def test_the_rows_of_a_rank_are_its_events(client: TestClient, result: Result) -> None:
    header, body = tile(client, "rows", result, rank=0, level=13, tile=0, find="GEMM")
    kernels = next(row for row in header["rows"] if row["title"] == "kernels")
    assert kernels["heading"] == "trace"
    assert kernels["count"] == len(STEPS)
    starts = [(i * STEP_US + 100) * US for i in range(len(STEPS))]
    assert array(body, kernels["start"], "<f8", 3) == starts
    assert array(body, kernels["end"], "<f8", 3) == [start + 300 * US for start in starts]
    assert [WORK[int(code)] for code in array(body, kernels["work"], "u1", 3)] == ["gemm"] * 3
    assert array(body, kernels["found"], "u1", 3) == [1, 1, 1]
    (name,) = {header["names"][int(place)] for place in array(body, kernels["name"], "<u4", 3)}
    assert name.startswith("gemm")
    assert is_harmless(name)


def test_an_event_has_its_launch_and_its_collective(client: TestClient, result: Result) -> None:
    titles = [row["title"] for row in tile(client, "rows", result, rank=1, level=13, tile=0)[0]["rows"]]
    begin = (STEP_US + 600) * US
    query = {"rank": 1, "row": titles.index("communication"), "from": begin, "to": begin + 1}
    event = asked(client, "event", result, **query).json()["event"]
    facts = dict(event["facts"])
    assert event["title"] == "ncclDevKernel_AllReduce"
    assert (event["start_ns"], event["dur_ns"]) == ((STEP_US + 500) * US, 200 * US)
    assert (facts["Step"], facts["Stream"], facts["Rank"]) == (str(STEPS[1]), "20", "1")
    assert facts["Launched by"] == "aten::outer > aten::mm"
    assert facts["Launch to start"] == "470\u00a0µs"
    assert facts["Collective"] == "all_reduce"
    assert facts["Bytes"].startswith("4,000 ")
    assert facts["Process group"] == "0 (ranks 0-1)"
    index = event["index"]
    before = asked(client, "event", result, rank=1, row=query["row"], index=index - 1).json()["event"]
    assert before["start_ns"] == 500 * US
    nothing = asked(client, "event", result, **{**query, "from": 800 * US, "to": 801 * US})
    assert (nothing.json()["event"], nothing.json()["gap"]) == (None, [700 * US, 1500 * US])
    after = asked(client, "event", result, **{**query, "from": 2900 * US, "to": 2901 * US})
    assert (after.json()["event"], after.json()["gap"]) == (None, [2700 * US, None])


def test_a_module_is_named(client: TestClient) -> None:
    result = open_run(Path(__file__).parents[2] / "sample_traces" / "fsdp2-straggler-rank0")
    found = asked(client, "find", result, rank=0, find="aten::_to_copy", **{"from": 3_587_000_000}).json()
    assert dict(found["event"]["facts"])["Module"] == "blocks.0"


def test_a_run_without_a_trace_has_its_steps_and_collectives(client: TestClient, tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "run"))
    header, _ = tile(client, "rows", result, rank=0, level=30, tile=0)
    assert [row["title"] for row in header["rows"]] == ["steps", "recorded collectives"]
    found = asked(client, "find", result, rank=0, find="all_reduce", **{"from": -1}).json()
    assert (found["count"], found["number"]) == (12, 1)
    assert dict(found["event"]["facts"])["Bytes"].startswith("4,000,000 ")


def test_a_search_goes_on_and_begins_again(client: TestClient, result: Result) -> None:
    at = {"rank": 0, "find": "gemm"}
    numbers = []
    now = -1
    for _ in range(4):
        found = asked(client, "find", result, **at, **{"from": now}).json()
        numbers.append(found["number"])
        now = found["event"]["start_ns"]
    assert numbers == [1, 2, 3, 1]
    assert asked(client, "find", result, **at, **{"from": now, "back": 1}).json()["number"] == 3
    assert asked(client, "find", result, **at, **{"from": now, "number": 1}).json()["number"] == 2
    assert asked(client, "find", result, **at, **{"from": now, "number": 1, "back": 1}).json()["number"] == 3
    assert asked(client, "find", result, rank=0, find="nowhere", **{"from": 0}).json()["count"] == 0


def test_a_step_for_perfetto(client: TestClient, result: Result) -> None:
    answer = asked(client, "trace", result, rank=1, step=STEPS[1])
    assert answer.headers["x-diag-title"] == f"rank1-step{STEPS[1]}.json"
    names = [event["name"] for event in answer.json()["traceEvents"] if event.get("cat") == "kernel"]
    assert names == [KERNEL, "ncclDevKernel_AllReduce"]
    assert asked(client, "trace", result, rank=1, step=STEPS[-1] + 1).status_code == 404


def test_a_step_that_was_not_profiled_is_made_from_its_records(client: TestClient, tmp_path: Path) -> None:
    recorded = open_run(write_run(tmp_path / "run"))
    answer = asked(client, "trace", recorded, rank=1, step=7)
    assert answer.headers["x-diag-title"] == "rank1-step7-recorded.json"
    events = {event["name"]: event for event in answer.json()["traceEvents"] if event["ph"] == "X"}
    assert list(events) == ["step 7", "data", "forward", "backward", "all_reduce"]
    assert (events["step 7"]["ts"], events["step 7"]["dur"]) == (0, 66_000)
    assert events["data"]["dur"] == 1000


def test_all_ranks_for_perfetto(client: TestClient, result: Result) -> None:
    answer = asked(client, "together", result, step=STEPS[1])
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert sorted(archive.namelist()) == ["perfetto_manifest.json", "rank-00000.json", "rank-00001.json"]
    assert asked(client, "together", result, step=STEPS[-1] + 1).status_code == 404


def test_the_step_to_open_is_one_of_the_window(result: Result) -> None:
    """A trace covers step 15 of the sample. No window without it opens it."""
    sample = source_of(share(opened_sample("fsdp2-straggler-rank0")))
    spans = {span.step: span for span in timeline_of(sample.result).steps}

    def opened(first: int, last: int) -> tuple[int, bool] | None:
        found = step_to_open(sample, 1, spans[first].begin_ns, spans[last].end_ns)
        return (found.step, found.profiled) if found is not None else None

    assert opened(12, 12) == (12, False)
    assert opened(14, 14) == (14, False)  # step 15 begins on another rank before this one ends
    assert opened(15, 15) == (15, True)
    assert opened(2, 20) == (15, True)
    middle = (spans[12].begin_ns + spans[12].end_ns) // 2
    found = step_to_open(sample, 1, middle, middle + 1000)
    assert found is not None
    assert found.step == 12, "a window inside a step"
    end = timeline_of(result).end_ns
    assert step_to_open(source_of(share(result)), 0, end + 1, end + 2) is None


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("ranks", {"level": 13, "tile": 0, "ranks": ""}),
        ("ranks", {"level": 13, "tile": 0, "ranks": "0,9"}),
        ("ranks", {"level": 13, "tile": 0, "ranks": "0,x"}),
        ("ranks", {"level": 13, "tile": 0, "ranks": ",".join(["0"] * 129)}),
        ("ranks", {"level": -1, "tile": 0, "ranks": "0"}),
        ("ranks", {"level": 53, "tile": 0, "ranks": "0"}),
        ("ranks", {"level": 52, "tile": 10**15, "ranks": "0"}),
        ("ranks", {"level": "1e3", "tile": 0, "ranks": "0"}),
        ("ranks", {"level": "٣", "tile": 0, "ranks": "0"}),
        ("rows", {"level": 13, "tile": 0}),
        ("rows", {"level": 13, "tile": "9" * 400, "rank": 0}),
        ("rows", {"level": 13, "tile": 0, "rank": 0, "find": "x" * 201}),
        ("event", {"rank": 0, "row": 99, "from": 0, "to": 1}),
        ("event", {"rank": 0, "row": -1, "from": 0, "to": 1}),
        ("event", {"rank": 0, "row": 0, "index": 10**9}),
        ("event", {"rank": 0, "row": 0}),
        ("find", {"rank": 0, "find": "", "from": 0}),
        ("find", {"rank": 77, "find": "x", "from": 0}),
        ("trace", {"rank": 0}),
    ],
)
def test_what_makes_no_sense_is_refused(
    client: TestClient, result: Result, what: str, query: dict[str, object]
) -> None:
    answer = asked(client, what, result, **query)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_only_what_a_page_shows_is_answered(client: TestClient, result: Result) -> None:
    query = {"level": 13, "tile": 0, "ranks": "0"}
    assert client.get("/timeline-data/ranks", params=query).status_code == 410
    assert client.get("/timeline-data/ranks", params={**query, "source": "0" * 16}).status_code == 410
    assert client.post("/timeline-data/ranks", params={**query, "source": share(result)}).status_code == 405


def test_the_last_runs_are_kept(result: Result, tmp_path: Path) -> None:
    first = share(result)
    assert share(result) == first
    others = [open_run(write_run(tmp_path / str(i), steps=4)) for i in range(4)]
    names = [share(other) for other in others]
    assert [source_of(name).result for name in names] == others
    assert share(result) != first


def test_functions_of_python_are_drawn_when_they_are_asked_for(client: TestClient, result: Result) -> None:
    without, _ = tile(client, "rows", result, rank=0, level=13, tile=0)
    header, body = tile(client, "rows", result, rank=0, level=13, tile=0, python=1)
    assert without["python"], "the canvas offers them"
    assert [row["title"] for row in header["rows"][: len(without["rows"])]] == [row["title"] for row in without["rows"]]
    functions = header["rows"][len(without["rows"]) :]
    assert [(row["title"], row["depth"], row["count"]) for row in functions] == [
        ("Python, main thread", 0, len(STEPS)),
        ("Python, main thread", 1, len(STEPS)),
    ]
    inner = array(body, functions[1]["name"], "<u4", len(STEPS))
    assert {header["names"][int(place)] for place in inner} == {FUNCTIONS[1]}
    row = len(header["rows"]) - 1
    event = asked(client, "event", result, rank=0, row=row, index=0, python=1).json()["event"]
    assert event["title"] == FUNCTIONS[1]
    assert asked(client, "event", result, rank=0, row=row, index=0).status_code == 400
    query = {"rank": 0, "find": "model.py", "from": -1}
    assert asked(client, "find", result, **query).json()["count"] == 0
    assert asked(client, "find", result, **query, python=1).json()["count"] == len(STEPS)


def test_what_is_drawn_over_the_lanes(client: TestClient, result: Result) -> None:
    window = {"from": STEP_US * US, "to": 2 * STEP_US * US}
    path = asked(client, "path", result, **window).json()
    assert path["left_out"] == 0
    assert {rank for rank, _, _ in path["pieces"]} == {1}, "rank 1 arrives last"
    over = asked(client, "overlays", result, rank=0, **window).json()
    assert over["launched"] == len(over["launches"]) == 3
    rows = source_of(share(result)).rows(0, False)
    assert {rows[arrow[3]].title for arrow in over["launches"]} == {"kernels", "communication", "copies"}
    assert [call for call, *_ in over["launches"]] == [STEP_US * US + at * US for at in (15, 20, 30)]
    of_event = asked(client, "event", result, rank=0, row=over["launches"][1][3], index=1).json()["event"]
    assert of_event["launches"] == [over["launches"][1]]


def test_why_nothing_ran(client: TestClient, result: Result) -> None:
    rows = source_of(share(result)).rows(0, False)
    kernels = next(at for at, row in enumerate(rows) if row.title == "kernels")
    answer = asked(client, "event", result, rank=0, row=kernels, **{"from": 900 * US, "to": 901 * US}).json()
    facts = dict(answer["facts"])
    assert answer["gap"] == [400 * US, (STEP_US + 100) * US]
    assert facts["During it"]
    assert facts["Next work"].startswith("launched")
    waiting = asked(client, "event", result, rank=0, row=0, **{"from": 450 * US, "to": 451 * US}).json()["event"]
    assert dict(waiting["facts"])["Waited for"].startswith("rank 1, which called all-reduce 100\u00a0µs later")


def test_a_span_is_measured(client: TestClient, result: Result) -> None:
    answer = asked(client, "span", result, ranks="0,1", **{"from": 0, "to": STEP_US * US}).json()
    assert [each["rank"] for each in answer["ranks"]] == [0, 1]
    assert dict(answer["ranks"][0]["parts"])["compute"] == "300\u00a0µs, 30%"
    assert asked(client, "span", result, ranks="0", **{"from": 5, "to": 5}).status_code == 400


def tallied(client: TestClient, result: Result, **query: object) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := asked(client, "tally", result, **query).json())["ended"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return dict(found)


def test_a_search_counts_what_every_rank_has(client: TestClient, result: Result) -> None:
    found = tallied(client, result, find="gemm", first=1)
    assert found == {"ranks": 2, "searched": 2, "ended": True, "counts": [[0, len(STEPS)], [1, len(STEPS)]]}
    assert tallied(client, result, find="model.py")["counts"] == []
    assert tallied(client, result, find="model.py", python=1)["counts"] == [[0, len(STEPS)], [1, len(STEPS)]]
    for rank, count in found["counts"]:
        assert asked(client, "find", result, rank=rank, find="gemm", **{"from": -1}).json()["count"] == count


@pytest.mark.parametrize("query", [{"find": ""}, {"find": "x", "first": "7"}, {"find": "x", "first": "a"}])
def test_a_search_that_cannot_be_counted(client: TestClient, result: Result, query: dict[str, str]) -> None:
    assert asked(client, "tally", result, **query).status_code == 400
