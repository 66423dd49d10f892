"""Durations of collectives from the Flight Recorder, with a stand-in for the recorder of an NCCL build."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import create_autospec

import pytest
import torch
import torch.distributed as dist

from diag.collectors import durations, identity, session
from diag.collectors.accelerator import CUDA, XPU, query_beside_captures
from diag.collectors.block_sums import SumsOfBlocks
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.durations import (
    TIMING_VARIABLE,
    DurationPoll,
    last_number,
    no_timing_because,
    period_of,
    poll_of,
    read_dump,
)
from diag.collectors.flight_recorder import Recorder
from diag.collectors.layout import RunLayout
from diag.collectors.policy import RECORDING
from diag.collectors.records import DurationLine
from diag.collectors.settings import SETTINGS_VARIABLE, CollectorSettings
from diag.rundir.lines import read_lines
from tests.forked import forked_python
from tests.recorders import GLOO_IS_RECORDED

TOP = str(Path(__file__).parents[2])
NS = 1_700_000_000_000_000_000


class Ring:
    """A recorder's ring and its JSON: keys in order of the alphabet, without blanks, as nlohmann::json writes it."""

    def __init__(self, size: int = 2000) -> None:
        self.size, self.count = size, 0
        self.entries: list[dict[str, Any]] = []
        self.groups = {"0": "[0, 1]", "lonely": "[0]"}
        self.blanks = False

    def call(self, title: str = "nccl:all_reduce", group: str = "0", **fields: Any) -> dict[str, Any]:
        entry = {
            "record_id": self.count,
            "pg_id": sorted(self.groups).index(group),
            "process_group": [group, "default_pg"],
            "collective_seq_id": self.count + 1,
            "profiling_name": title,
            "time_created_ns": NS + self.count,
            "input_sizes": [[8, 4], [2]],
            "input_dtypes": ["BFloat16", "BFloat16"],
            "output_sizes": [[64]],
            "output_dtypes": ["Float"],
            "state": "scheduled",
            "retired": False,
            "is_p2p": False,
            **fields,
        }
        self.count += 1
        self.entries = [*self.entries, entry][-self.size :]
        return entry

    def ended(self, *titles: str, took_ms: float = 1.5, **fields: Any) -> None:
        for title in titles or ("nccl:all_reduce",):
            self.call(title, **fields, duration_ms=took_ms, retired=True, state="completed")

    def json(self, includeCollectives: bool = True, onlyActive: bool = False) -> bytes:  # noqa: N803
        content: dict[str, Any] = {"version": "2.10", "pg_status": {}, "comm_lib_version": "2.27"}
        content["pg_config"] = {name: {"name": name, "ranks": ranks} for name, ranks in self.groups.items()}
        if self.entries:
            content["entries"] = self.entries
        return json.dumps(content, sort_keys=True, separators=None if self.blanks else (",", ":")).encode()


class Polled:
    """A poll of a ring, and what it has written."""

    def __init__(self, path: Path, ring: Ring, **more: Any) -> None:
        self.path, self.complaints = path, Complaints(0)
        self.file = LineFile(path, Budget(1 << 20), self.complaints)
        self.poll = DurationPoll(Recorder("nccl", None, ring.json), self.file, self.complaints, **more)

    def lines(self) -> list[DurationLine]:
        found, gaps = read_lines(self.path, DurationLine)
        assert gaps == []
        return found

    def numbers(self) -> list[int]:
        """Of the calls in the file, from 1."""
        return [row.seq for line in self.lines() for row in line.rows]


@pytest.fixture(autouse=True)
def _in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def polled(tmp_path: Path, ring: Ring) -> Polled:
    return Polled(tmp_path / "durations.jsonl", ring)


def test_each_collective_is_written_once(polled: Polled, ring: Ring) -> None:
    for count in (3, 0, 2):
        for _ in range(count):
            ring.ended()
        polled.poll.look()
    assert polled.numbers() == [1, 2, 3, 4, 5]
    assert [len(line.rows) for line in polled.lines()] == [3, 2], "nothing new, no line"
    assert [line.groups for line in polled.lines()] == [{"0": [0, 1]}, {}], "a group's ranks are in one line"
    assert {(line.recorder, line.lost) for line in polled.lines()} == {("nccl", 0)}


def test_what_a_row_holds(polled: Polled, ring: Ring) -> None:
    ring.ended("nccl:all_reduce", "nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_reduce_barrier")
    ring.ended("nccl:ALLTOALL_BASE", "nccl:_broadcast_oop", "nccl:coalesced", took_ms=0.0123456)
    polled.poll.look()
    rows = polled.lines()[0].rows
    assert [row.op for row in rows] == [
        *("all_reduce", "all_gather", "reduce_scatter", "barrier"),
        *("all_to_all", "broadcast", "coalesced"),
    ]
    assert [(row.bytes, row.dtype) for row in rows[:3]] == [(68, "bfloat16"), (256, "float32"), (68, "bfloat16")]
    assert (rows[0].duration_ns, rows[-1].duration_ns) == (1_500_000, 12_346)
    to_monotonic = time.time_ns() - time.monotonic_ns()
    assert rows[0].created_ns + to_monotonic == pytest.approx(NS, abs=10**9), "on the clock of steps.jsonl"


def test_one_that_has_not_ended_is_written_later(polled: Polled, ring: Ring) -> None:
    ring.ended()
    open_one = ring.call()
    polled.poll.look()
    assert polled.numbers() == [1]
    open_one.update(retired=True)
    polled.poll.look()
    assert polled.numbers() == [1], "its duration comes just after it was retired"
    open_one.update(duration_ms=2.0)
    ring.ended()
    polled.poll.look()
    polled.poll.look()
    assert polled.numbers() == [1, 2, 3]


def test_what_never_gets_a_duration_does_not_stay(polled: Polled, ring: Ring) -> None:
    """The members of a coalesced launch have no events: only the launch ends."""
    ring.call("nccl:all_gather")
    ring.call("nccl:all_gather")
    ring.ended("nccl:coalesced")
    for _ in range(2):
        polled.poll.look()
    assert (polled.numbers(), polled.poll._pending) == ([3], {})


def test_sends_and_groups_of_one_rank_are_left_out(polled: Polled, ring: Ring) -> None:
    ring.ended("nccl:send 0->1", is_p2p=True)
    ring.ended(group="lonely")
    ring.ended()
    polled.poll.look()
    assert polled.numbers() == [3]


def test_a_group_whose_ranks_have_changed_is_named_again(polled: Polled, ring: Ring) -> None:
    ring.ended()
    polled.poll.look()
    ring.groups["0"] = "[2, 3]"
    ring.ended()
    polled.poll.look()
    assert [line.groups for line in polled.lines()] == [{"0": [0, 1]}, {"0": [2, 3]}]


def test_what_the_ring_overwrote_is_counted(tmp_path: Path) -> None:
    ring = Ring(size=4)
    polled = Polled(tmp_path / "durations.jsonl", ring)
    for _ in range(6):
        ring.ended()
    polled.poll.look()
    ring.call()  # will be overwritten while it is pending
    polled.poll.look()
    for _ in range(9):
        ring.ended()
    polled.poll.look()
    assert polled.numbers() == [3, 4, 5, 6, *range(13, 17)]
    assert [line.lost for line in polled.lines()] == [0, 1 + 5], "before the first reading nothing counts as lost"


def test_a_recorder_that_was_reset(polled: Polled, ring: Ring) -> None:
    for _ in range(5):
        ring.ended()
    polled.poll.look()
    ring.entries, ring.count = [], 0
    ring.ended()
    polled.poll.look()
    assert polled.numbers() == [1, 2, 3, 4, 5, 1]


def test_many_are_several_lines(polled: Polled, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(RECORDING), "rows_of_line", 2)
    for _ in range(5):
        ring.ended()
    polled.poll.look()
    assert [len(line.rows) for line in polled.lines()] == [2, 2, 1]


@pytest.mark.parametrize(
    ("group", "blanks", "cut"),
    [("0", False, True), ('{"record_id":7,"', False, False), ("}],{", False, False), ("0", True, False)],
    ids=["as torch writes it", "the name of a group looks like an entry", "and like an end", "another format"],
)
def test_the_text_from_an_entry_on_is_read_as_the_whole_text(
    group: str, blanks: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(size=30)
    ring.groups[group], ring.blanks = "[0, 1]", blanks
    for _ in range(50):
        ring.ended(group=group)
    text, parsed = ring.json(), []
    whole = json.loads(text)
    monkeypatch.setattr(durations.json, "loads", lambda text, loads=json.loads: parsed.append(len(text)) or loads(text))
    assert last_number(text) == 49
    for first in (0, 20, 21, 37, 49, 50):
        found: list[dict[str, Any]] = []
        rest = read_dump(text, first, found.append)
        assert found == [entry for entry in whole["entries"] if entry["record_id"] >= first]
        assert rest["pg_config"] == whole["pg_config"]
        assert (parsed.pop() < len(text) / 10) == (cut and 20 <= first < 50)


def test_an_empty_dump(ring: Ring, polled: Polled) -> None:
    assert last_number(ring.json()) == -1
    assert read_dump(ring.json(), 0, pytest.fail)["version"] == "2.10"
    polled.poll.look()
    assert polled.lines() == []


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        lambda **_: (_ for _ in ()).throw(RuntimeError("CUDA error: unspecified launch failure")),
        lambda **_: b'{"entries":[{"record_id":0,',
        lambda **_: b'{"entries":[{"record_id":0,"duration_ms":1.0}]}',
        lambda **_: b'"record_id":0,',
        lambda **_: b'["record_id":0]',
    ],
    ids=["raises", "cut", "lacks fields", "no JSON", "no object"],
)
def test_an_exception_ends_the_polling_and_nothing_else(tmp_path: Path, broken: Callable[..., bytes]) -> None:
    asked = []

    def dump(**arguments: bool) -> bytes:
        asked.append(arguments)
        return broken(**arguments)

    complaints = Complaints(0)
    poll = DurationPoll(Recorder("nccl", None, dump), LineFile(tmp_path / "d", Budget(1), complaints), complaints)
    for second in range(100):
        poll.poll(second)
    poll.look()
    assert asked == [{"includeCollectives": True, "onlyActive": False}]
    assert [m.partition(":")[0] for m in complaints.messages] == ["durations of collectives are not recorded"]


@pytest.mark.parametrize("took", [None, "1.5", -1.0, float("nan"), 1e300, [1]])
def test_a_duration_that_is_none(polled: Polled, ring: Ring, took: Any) -> None:
    ring.ended(took_ms=took)
    ring.ended()
    polled.poll.look()
    polled.poll.look()
    assert polled.numbers() == [2]
    assert polled.complaints.messages == []


def test_a_recorder_without_durations_is_left_alone(polled: Polled, ring: Ring) -> None:
    for _ in range(20):
        ring.call(retired=True)
        polled.poll.look()
    assert polled.complaints.messages == [
        "durations of collectives are not recorded: the Flight Recorder of nccl has no durations"
    ]


def test_a_ring_that_takes_too_long_is_no_longer_read(
    polled: Polled, ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(RECORDING), "longest_still_s", 0.0)
    for _ in range(3):
        ring.ended()
        polled.poll.look()
    assert polled.numbers() == [1], "what was read is written"
    assert "the recorder's buffer is so large" in polled.complaints.messages[0]


def test_without_a_group_the_recorder_is_not_asked(polled: Polled, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    ring.ended()
    polled.poll.look()
    assert polled.lines() == []


def test_where_a_captured_graph_would_fail_it_is_not_asked(tmp_path: Path, ring: Ring) -> None:
    polled = Polled(tmp_path / "durations.jsonl", ring, safe=lambda: False)
    ring.ended()
    polled.poll.poll(1)
    polled.poll.look()
    assert polled.lines() == []
    assert "capture mode" in polled.complaints.messages[0]


def test_the_capture_mode_of_a_thread() -> None:
    assert query_beside_captures(XPU), "nothing to set"
    assert not torch.cuda.is_available() or query_beside_captures(CUDA)
    lost = CUDA.__class__("cuda", "nccl", "CUDA", "cuda", capture_mode=("libnowhere.so.1", "none"))
    assert not query_beside_captures(lost)


GLOO = """
import json, sys
import torch, torch.distributed as dist
from pathlib import Path
from diag.collectors.durations import DurationPoll, last_number, read_dump
from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.flight_recorder import recorders

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
(gloo,) = [one for one in recorders() if one.name == ""]
path, complaints = Path(sys.argv[1]), Complaints(0)
poll = DurationPoll(gloo, LineFile(path, Budget(1 << 20), complaints), complaints)
for _ in range(20):
    for _ in range(10):
        dist.all_reduce(torch.ones(4))
    poll.look()
text, found = gloo.json(), []
rest = read_dump(text, 170, found.append)
whole = json.loads(text)
assert found == [entry for entry in whole.pop("entries") if entry["record_id"] >= 170] and len(found) == 30
assert rest["pg_config"] == whole["pg_config"] and last_number(text) == 199
print(path.exists(), complaints.messages)
"""


@GLOO_IS_RECORDED
def test_gloo_s_recorder_has_no_durations_and_the_format_that_is_cut(tmp_path: Path) -> None:
    """The real recorder, in a process of its own: it is one for the whole process."""
    command = [*forked_python(), "-c", GLOO, str(tmp_path / "durations.jsonl")]
    environment = {**os.environ, "PYTHONPATH": TOP, "TORCH_FR_BUFFER_SIZE": "2000"}  # with torch 2.8 it is off without
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    reason = "durations of collectives are not recorded: the Flight Recorder of this backend has no durations"
    assert ended.stdout.endswith(f"False {[reason]}\n"), ended.stderr  # torch 2.8 prints a line about gloo before


# -- when --------------------------------------------------------------------------------------------------------------


def test_how_often_the_recorder_is_read() -> None:
    assert [period_of(ms / 1e3) for ms in (0, 1, 2, 5, 10, 20, 30, 40, 400)] == [1, 1, 2, 3, 6, 12, 24, 24, 256]


def test_ranks_read_at_the_same_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin at different times, and their threads wake at different ones."""
    monkeypatch.setattr(durations, "period_of", lambda _cpu_s: 16)
    moments = []
    for began in (1000.0, 1003.7, 1015.2):
        ring = Ring()
        polled = Polled(tmp_path / str(began), ring)
        read: list[int] = []
        monkeypatch.setattr(polled.poll, "look", lambda read=read: read.append(0))
        seen = []
        for second in range(200):
            before = len(read)
            polled.poll.poll(began + second)
            if len(read) > before:
                seen.append(int(began + second) // 16)
        moments.append(seen[1:])
    common = set.intersection(*map(set, moments))
    assert len(common) >= 10
    assert all(len(seen) <= 12 for seen in moments)


def test_a_clock_that_was_set_back_does_not_stop_the_reading(tmp_path: Path, ring: Ring) -> None:
    polled = Polled(tmp_path / "durations.jsonl", ring)
    for now in (1e9, 5e8, 5e8 + 2):
        ring.ended()
        polled.poll.poll(now)
    assert polled.numbers() == [1, 2, 3]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("NCCL_", "TORCH_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)
    monkeypatch.setattr(identity, "inspector_plugin", lambda: None)
    monkeypatch.setattr(durations, "TORCH", (2, 13))
    yield monkeypatch
    os.environ.clear()
    os.environ.update(before)


def test_why_collectives_are_not_timed(clean: pytest.MonkeyPatch) -> None:
    assert no_timing_because(True, {}) == ""
    assert no_timing_because(False, {}) == "switched off"
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in no_timing_because(True, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert no_timing_because(True, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}) == ""
    inspector = {"NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so", "NCCL_INSPECTOR_ENABLE": "1"}
    assert "Inspector" in no_timing_because(True, inspector)
    assert no_timing_because(True, {"NCCL_PROFILER_PLUGIN": "libmine.so"}) == ""
    assert TIMING_VARIABLE in no_timing_because(True, {TIMING_VARIABLE: "false"})
    assert "EVENT_CACHE" in no_timing_because(True, {"TORCH_NCCL_CUDA_EVENT_CACHE": "0"})
    clean.setattr(durations, "TORCH", (2, 6))
    assert "older than 2.7" in no_timing_because(True, {})


def prepared(tmp_path: Path) -> str | None:
    identity.prepare_environment(RunLayout(tmp_path).rank(0))
    return os.environ.pop(TIMING_VARIABLE, None)


def test_the_timing_is_enabled_before_groups_are_made(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert prepared(tmp_path) is None, "nobody has asked for it"
    clean.setenv(SETTINGS_VARIABLE, CollectorSettings(collective_timing="recorder").to_json())
    assert prepared(tmp_path) == "1"
    clean.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert prepared(tmp_path) is None
    clean.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    clean.setenv(SETTINGS_VARIABLE, CollectorSettings(collective_timing="off").to_json())
    assert prepared(tmp_path) is None
    clean.setenv(SETTINGS_VARIABLE, CollectorSettings(collective_timing="recorder").to_json())
    clean.setattr(identity, "inspector_plugin", lambda: tmp_path / "libnccl-profiler-inspector.so")
    assert prepared(tmp_path) is None


def test_all_groups_are_timed_also_those_that_are_made_later(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    enabled: list[object] = []

    def group(fails: bool = False) -> Any:
        """With the methods that a group has in this torch, and no others."""
        made = create_autospec(dist.ProcessGroup, instance=True)
        refuses = RuntimeError("Backend gloo is missing implementation of enableCollectivesTiming.")
        made._enable_collectives_timing.side_effect = refuses if fails else lambda: enabled.append(made)
        return made

    backend_and_store = "nccl", None
    groups = {group(): backend_and_store, group(fails=True): backend_and_store}
    names = {one: str(at) for at, one in enumerate(groups)}
    clean.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=groups, pg_names=names))
    ring = Ring()
    clean.setattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", ring.json, raising=False)
    complaints = Complaints(0)
    file = LineFile(tmp_path / "durations.jsonl", Budget(1 << 20), complaints)
    on_gpu: Any = SimpleNamespace(device=torch.device("cuda", 0), kind=XPU)  # nothing to set for captures
    poll, why = poll_of(on_gpu, True, file, complaints)
    assert (poll is not None, why, len(enabled)) == (True, "", 1)
    later = group()
    groups[later], names[later] = backend_and_store, "later"
    ring.ended()
    assert poll is not None
    poll.poll()
    poll.look()
    assert (len(enabled), complaints.messages) == (2, [])
    assert read_lines(tmp_path / "durations.jsonl", DurationLine)[0][0].rows[0].seq == 1
    assert poll_of(None, True, file, complaints) == (None, "this rank uses no GPU")
    assert poll_of(on_gpu, False, file, complaints) == (None, "switched off")
    clean.delattr(torch._C._distributed_c10d, "_dump_nccl_trace_json")
    without, why = poll_of(on_gpu, True, file, complaints)
    assert without is not None or "no Flight Recorder of an accelerator" in why


def train(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    ring: Ring,
    fails: bool = False,
    timing: Literal["auto", "recorder", "off"] = "recorder",
) -> RunLayout:
    def stand_in(_accelerator: object, wanted: bool, file: LineFile, complaints: Complaints, sums: SumsOfBlocks) -> Any:
        if not wanted:
            return None, "switched off"
        return DurationPoll(Recorder("nccl", None, ring.json), file, complaints, sums=sums), ""

    monkeypatch.setattr(session, "poll_of", stand_in)
    settings = CollectorSettings(trace=False, collectives=False, interval_s=0.02, collective_timing=timing)
    monkeypatch.setattr(session, "rank_and_world", lambda: (0, 0, 1))
    monkeypatch.setattr(identity, "rank_and_world", lambda: (0, 0, 1))
    try:
        with session.Collector(run, settings, torch.device("cpu")) as collector:
            for number in range(5):
                with collector.step(number):
                    ring.ended()
                    time.sleep(0.03)
            if fails:
                raise ArithmeticError
    except ArithmeticError:
        pass
    return RunLayout(run)


def test_a_training_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    run = train(tmp_path, monkeypatch, ring)
    lines, gaps = read_lines(run.rank(0).durations, DurationLine)
    assert gaps == []
    assert [row.seq for line in lines for row in line.rows] == [1, 2, 3, 4, 5], "the last ones when it ends"


def test_nothing_is_read_that_nobody_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path, monkeypatch, Ring(), timing="auto")
    assert not run.rank(0).durations.exists()


def test_a_poll_that_raises_costs_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    monkeypatch.setattr(ring, "json", lambda **_: (_ for _ in ()).throw(MemoryError()))
    run = train(tmp_path, monkeypatch, ring)
    assert len(run.rank(0).steps.read_bytes().splitlines()) == 5
    heartbeat = json.loads(run.rank(0).heartbeat.read_bytes())
    assert heartbeat["done"]
    assert heartbeat["errors"] == ["durations of collectives are not recorded: MemoryError()"]


def test_a_device_that_failed_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    looks: list[bool] = []
    monkeypatch.setattr(DurationPoll, "look", lambda self: looks.append(True))
    monkeypatch.setattr(DurationPoll, "poll", lambda self: None)
    train(tmp_path / "failed", monkeypatch, ring, fails=True)
    assert looks == []
    train(tmp_path / "ended", monkeypatch, ring)
    assert looks == [True]


@pytest.mark.parametrize(
    ("version", "known", "unknown"),
    [
        ((2, 6), identity._OLD_NAMES, identity._NEW_NAMES),
        ((2, 8), identity._NEW_NAMES, identity._OLD_NAMES),
    ],
)
def test_a_variable_is_set_by_the_name_that_torch_does_not_warn_of(
    version: tuple[int, int],
    known: tuple[str, ...],
    unknown: tuple[str, ...],
    clean: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    clean.setattr(identity, "TORCH", version)
    prepared(tmp_path)
    assert [name in os.environ for name in known] == [True, True]
    assert [name in os.environ for name in unknown] == [False, False]
    for name in known:
        del os.environ[name]  # not by ``clean``, which would set it again afterwards
    os.environ[unknown[0]] = "30"
    prepared(tmp_path)
    assert known[0] not in os.environ, "the user has said how many calls are kept"
    assert os.environ[unknown[0]] == "30"
