"""Which Flight Recorders are asked, with stand-ins for what builds of torch with an accelerator have."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diag.collectors import flight_recorder
from diag.collectors.dumps import write_flight_recorders
from diag.hang.flight import read_dumps

Make = Callable[..., None]


def entry(backend: str, number: int, group: str = "0", created_ns: int = 0, retired: bool = False) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": (group, "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": f"{backend}:all_reduce",
        "time_created_ns": created_ns or 1_000 + number,
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": retired,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def content(*entries: dict[str, Any], last: int = 0, done: int = 0) -> dict[str, Any]:
    status = {"0": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": done}}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": status if last else {},
        "entries": list(entries),
    }


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Gives torch the two functions of a recorder with this content; an exception is raised."""

    def make(
        function: str, held: dict[str, Any] | Exception | dict[str, dict[str, Any]], per_backend: bool = False
    ) -> None:
        def of(backend: str | None) -> Any:
            if isinstance(held, Exception):
                raise held
            return held.get(backend or "", content()) if per_backend else held

        def pickled(includeStackTraces: bool = True, backend: str | None = None) -> bytes:  # noqa: N803
            return pickle.dumps(of(backend))

        def as_json(includeCollectives: bool = True, backend: str | None = None) -> bytes:  # noqa: N803
            return json.dumps(of(backend)).encode()

        for name, stand_in in ((function, pickled), (f"{function}_json", as_json)):
            stand_in.__doc__ = f"{name}({'backend: str | None = None' if per_backend else ''}) -> bytes\n\n..."
            monkeypatch.setattr(torch._C._distributed_c10d, name, stand_in, raising=False)

    return make


def names() -> list[str]:
    return list(flight_recorder.dumps(stacks=False)[0])


def test_nccl_s_own_recorder_is_asked_and_the_empty_generic_one_left_out(build: Make) -> None:
    build("_dump_nccl_trace", content(*(entry("nccl", number) for number in range(8)), last=8))
    build("_dump_fr_trace", content())
    dumps, problems = flight_recorder.dumps(stacks=True)
    assert [len(pickle.loads(dump)["entries"]) for dump in dumps.values()] == [8]
    assert (list(dumps), problems) == (["nccl"], [])
    assert flight_recorder.status() == {"0": (8, 0)}


def test_without_nccl_the_generic_one_is(build: Make) -> None:
    build("_dump_nccl_trace", content())
    build("_dump_fr_trace", content(entry("gloo", 0), last=1))
    assert names() == [""]
    assert flight_recorder.status() == {"0": (1, 0)}


def test_both_are_kept_nccl_s_first(build: Make) -> None:
    build("_dump_fr_trace", content(entry("gloo", 0), last=1))
    build("_dump_nccl_trace", content(entry("nccl", 0), entry("nccl", 1), last=2))
    assert names() == ["nccl", ""]
    assert flight_recorder.status() == {"0": (2, 0)}, "the counts of one group are those of the accelerator"


def test_one_that_raises_does_not_hide_the_others(build: Make) -> None:
    build("_dump_nccl_trace", RuntimeError("no CUDA driver"))
    build("_dump_fr_trace", content(entry("gloo", 0), last=1))
    dumps, problems = flight_recorder.dumps(stacks=False)
    assert (list(dumps), problems) == ([""], ["nccl: RuntimeError('no CUDA driver')"])
    assert flight_recorder.status() == {"0": (1, 0)}


def calls(*over: bool, done: int, first: int = 0) -> dict[str, Any]:
    """A recorder of gloo whose calls from number ``first`` + 1 on are over or not; ``done``: what torch says."""
    entries = (entry("gloo", first + at, retired=is_over) for at, is_over in enumerate(over))
    return content(*entries, last=first + len(over), done=done)


@pytest.mark.parametrize(
    ("recorded", "counts"),
    [
        pytest.param(calls(True, True, True, done=2), (3, 3), id="the third was faster than the second: none is left"),
        pytest.param(calls(True, True, False, done=2), (3, 2), id="the third is under way"),
        pytest.param(calls(True, False, True, done=3), (3, 1), id="the second is, and torch tells of the third"),
        pytest.param(calls(False, False, False, done=2), (3, 2), id="a build that marks no call as over"),
        pytest.param(calls(True, True, done=5, first=5), (7, 5), id="call 5 is no longer there: torch's word stays"),
    ],
)
def test_calls_of_gloo_that_ended_in_another_order(
    build: Make, recorded: dict[str, Any], counts: tuple[int, int]
) -> None:
    build("_dump_nccl_trace", content())
    build("_dump_fr_trace", recorded)
    assert flight_recorder.Counts().status(now_ns=10**11, still_ns=10**10) == {"0": counts}


def test_entries_are_read_when_a_rank_stands_still_and_not_again_at_once(
    build: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    build("_dump_nccl_trace", content())
    build("_dump_fr_trace", calls(True, True, True, done=2))
    looks = []
    look = flight_recorder._settled
    monkeypatch.setattr(flight_recorder, "_settled", lambda counts: looks.append(counts) or look(counts))
    counts, second = flight_recorder.Counts(), 10**9
    assert counts.status(100 * second, second) == {"0": (3, 2)}
    assert not looks, "it has just stopped"
    assert [counts.status((103 + at) * second, (4 + at) * second) for at in range(9)] == [{"0": (3, 3)}] * 9
    assert len(looks) == 1, "nothing is under way: the same counts mean the same"

    build("_dump_fr_trace", calls(True, True, True, False, done=2))
    seen = [counts.status((112 + at) * second, (4 + at) * second) for at in range(9)]
    assert seen == [{"0": (4, 3)}] * 9
    assert len(looks) == 3, "call 4 is under way: once in five seconds"


def test_the_entries_of_an_accelerator_are_not_read(build: Make) -> None:
    build("_dump_nccl_trace", calls(True, True, True, done=2))
    build("_dump_fr_trace", calls(True, True, True, done=2))
    assert flight_recorder.Counts().status(now_ns=10**11, still_ns=10**10) == {"0": (3, 2)}


def test_why_there_is_none(build: Make, tmp_path: Path) -> None:
    build("_dump_fr_trace", content())
    assert write_flight_recorders(lambda name: tmp_path / f"of{name}") == "the Flight Recorder holds nothing"
    build("_dump_nccl_trace", RuntimeError("no CUDA driver"))
    assert write_flight_recorders(lambda name: tmp_path / f"of{name}") == "nccl: RuntimeError('no CUDA driver')"
    assert not list(tmp_path.iterdir())


def test_each_backend_of_the_process_is_asked_where_each_has_a_recorder(
    build: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {object(): ("cpu:gloo,cuda:nccl2", None), object(): ("nccl2", None)}
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups))
    held = {"nccl2": content(entry("nccl2", 0), last=1), "": content(entry("gloo", 0), last=1)}
    build("_dump_fr_trace", held, per_backend=True)
    assert names() == ["nccl2", ""]


def test_the_dumps_of_one_process_are_read_as_one(build: Make, tmp_path: Path) -> None:
    """A group of both backends has two names, and pending calls come in the order in which they were called."""
    build("_dump_nccl_trace", content(entry("nccl", 0, created_ns=1_000), entry("nccl", 1, created_ns=3_000), last=2))
    build("_dump_fr_trace", content(entry("gloo", 7, created_ns=2_000), last=8))
    assert write_flight_recorders(lambda name: tmp_path / f"asked_{name}_1") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked__1", "asked_generic_1"]
    read = read_dumps([tmp_path])
    assert read.gaps == ()
    (dump,) = read.dumps.values()
    assert (dump.rank, dump.backend, dump.entries) == (1, "nccl", 3)
    assert [(op.group, op.title) for op in dump.pending] == [
        ("0", "all_reduce #1"),
        ("0 (gloo)", "all_reduce #8"),
        ("0", "all_reduce #2"),
    ]
    assert (dump.called("0"), dump.called("0 (gloo)")) == (2, 8)
