"""The benchmark's long traces: a trace of three copies has three times the steps, each with the numbers it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diag.account import cpu, gpu
from diag.model.steps import Kind
from diag.traces.kineto import read_trace
from diag.traces.trace import Trace
from tests.account.kineto_builder import LAYOUTS, KinetoBuilder, Layout, nccl_args
from tests.bench._tiled import Tiles, read_bytes, relabelled, write_ranks

TRACES = Path(__file__).parents[3] / "shared" / "traces"
US = 1_000


def built() -> KinetoBuilder:
    made = KinetoBuilder(rank=1)
    for step in (7, 8):
        begin = (step - 7) * 1000 * US + 123
        made.step(step, begin, begin + 999 * US, prefix="ProfilerStep#").op("aten::mm", begin + 10, begin + 5 * US)
        made.kernel(begin + 20 * US, begin + (300 + step) * US, launch=begin + 2 * US)
        made.kernel(
            begin + 500 * US, begin + 700 * US + step, "ncclDevKernel_AllReduce", begin + 3 * US, 20,
            **nccl_args("allreduce", 1000, seq=step),
        )  # fmt: skip
        made.memory(begin + 50, step * 100, 1000)
    # What must not be taken for a time, an id or the end of the list.
    made.op('odd ], "ts": 5, "id": 3, \\" ]', 1010 * US, 1011 * US)
    made.header["traceName"] = "a]b"
    made.header["INFO"] = ["one", "two"]
    return made.flows().framed()


def numbers(trace: Trace) -> list[dict[str, Any]]:
    source = gpu if trace.has_gpu else cpu
    found = []
    for step in source.partition(trace, source.step_windows(trace), 0):
        calls = [(c.op, c.group, c.bytes, c.start_ns - step.begin_ns, c.end_ns - c.start_ns) for c in step.collectives]
        kinds = {kind.name: step.segments.total(kind) for kind in Kind}
        found.append({"step": step.step, "dur": step.dur_ns, **kinds, "calls": calls})
    return found


def without_number(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in step.items() if key != "step"} for step in steps]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_copies_have_three_times_the_same_steps(tmp_path: Path, layout: Layout) -> None:
    made = built()
    once = made.write(tmp_path, "once.json", layout=layout)
    tiles = Tiles(once.read_bytes())
    thrice = tmp_path / "thrice.json"
    thrice.write_bytes(b"".join(tiles.text(3)))
    assert tiles.events == len(made.events)
    copied = json.loads(thrice.read_bytes())
    assert len(copied.pop("traceEvents")) == 3 * tiles.events
    assert copied == made.header
    one, three = numbers(read_trace(once)), numbers(read_trace(thrice))
    assert [step["step"] for step in three] == [7, 8, 9, 10, 11, 12]
    assert without_number(three) == without_number(one) * 3
    assert one[0]["COMM"] == 200 * US + 7


def test_what_joins_events_differs_between_copies() -> None:
    events = json.loads(b"".join(Tiles(built().text("kineto").encode()).text(3)))["traceEvents"]
    for cat, ids in (
        ("kernel", [event["args"]["correlation"] for event in events if event.get("cat") == "kernel"]),
        ("flow", [event["id"] for event in events if event["ph"] == "s"]),
        ("collective", [event["args"]["Seq"] for event in events if "Seq" in event.get("args", {})]),
    ):
        assert len(set(ids)) == len(ids) > 0, cat
    launched = {event["args"]["correlation"] for event in events if event.get("cat") == "cuda_runtime"}
    assert {event["args"]["correlation"] for event in events if event.get("cat") == "kernel"} == launched
    assert sorted(event["ts"] for event in events if event["name"] == "[memory]") == [
        copy * 3000 + at for copy in range(3) for at in (0.173, 1000.173)
    ]


@pytest.mark.parametrize("name", ["ddp_v100_1rank", "odd"])
def test_real_traces_tile(tmp_path: Path, name: str) -> None:
    if not TRACES.exists():
        pytest.skip("no ../shared/traces beside this checkout")
    once = min((TRACES / name).glob("*.gz"), key=lambda path: path.name)
    tiles = Tiles(read_bytes(once))
    twice = tmp_path / "twice.json"
    twice.write_bytes(b"".join(tiles.text(2)))
    one, two = read_trace(once), read_trace(twice)
    assert len(two.events) == 2 * len(one.events)
    last = two.events.tail(len(one.events))
    assert last["ts_ns"].min() == one.begin_ns + tiles.period_us * US  # type: ignore[operator]
    assert last["dur_ns"].to_list() == one.events["dur_ns"].to_list()


def test_a_folder_of_many_ranks(tmp_path: Path) -> None:
    sources = [KinetoBuilder(rank=rank, world_size=2).step(1, 0, 5).write(tmp_path, f"{rank}.json") for rank in (0, 1)]
    folder = tmp_path / "ranks"
    folder.mkdir()
    assert write_ranks(sources, folder, 5) == 5
    traces = [read_trace(path) for path in sorted(folder.iterdir())]
    assert [(trace.rank, trace.world_size) for trace in traces] == [(rank, 5) for rank in range(5)]
    with pytest.raises(ValueError, match="says no rank"):
        relabelled(b'{"traceEvents": [', 0, 2)
