"""What pipelines, tensor and expert parallelism send is recorded, always: two gloo ranks, against the profiler's own
events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functions
from torch.distributed import irecv, isend  # as a training may: before the collector replaces anything
from torch.distributed.device_mesh import init_device_mesh

from diag.collectors.collectives import _bytes_of, _received
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import BACKWARD, FORWARD, CollectiveLine, CollectiveRow
from diag.collectors.session import Collector
from diag.collectors.settings import CollectorSettings
from diag.rundir.lines import read_lines
from diag.traces.kineto import read_trace
from tests.forked import call_ranks
from tests.ports import rendezvous

STEPS, TRACED, BATCHES, WIDTH = 6, 4, 4, 64
MESSAGE = 2 * WIDTH * 4  # bytes: two samples a micro-batch
SETTINGS = CollectorSettings(trace_skip=3, trace_warmup=1, trace_active=1, interval_s=0.2)


def run_ranks(work: Callable[..., None], folder: Path, *args: object) -> RunLayout:
    call_ranks(_start, work, rendezvous(folder), str(folder), *args)
    return RunLayout(folder)


def _start(rank: int, work: Callable[..., None], rendezvous: str, folder: str, *args: object) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    work(rank, Path(folder), *args)
    dist.destroy_process_group()


def rows_of(files: RankLayout) -> list[tuple[int, CollectiveRow]]:
    lines, gaps = read_lines(files.collectives, CollectiveLine)
    assert gaps == []
    return [(line.step, row) for line in lines for row in line.rows]


def groups_of(files: RankLayout) -> dict[str, list[int]]:
    lines, _ = read_lines(files.collectives, CollectiveLine)
    return {name: ranks for line in lines for name, ranks in line.groups.items()}


def traced(files: RankLayout, pattern: str) -> list[tuple[int, int]]:
    """Begin and end of the profiler's own events of the traced step, in nanoseconds of the trace's clock."""
    trace = read_trace(files.trace(TRACED))
    found = trace.events.filter(pl.col("name").cast(pl.String).str.contains(pattern)).sort("ts_ns")
    return [(begin, begin + duration) for begin, duration in found.select("ts_ns", "dur_ns").iter_rows()]


def enclosed(rows: list[CollectiveRow], events: list[tuple[int, int]]) -> bool:
    """Whether one offset between the two clocks puts the begin of each event into its row.

    The clocks are not compared by a mark that both have: a process may lose its core between the two readings.
    """
    assert len(rows) == len(events)
    ends = [row.end_ns for row in rows if row.end_ns is not None]
    assert len(ends) == len(rows)
    least = max(row.start_ns - begin for row, (begin, _) in zip(rows, events, strict=True))
    most = min(end - begin for end, (begin, _) in zip(ends, events, strict=True))
    return least <= most


def pipeline(rank: int, folder: Path, schedule: str) -> None:
    from torch.distributed import pipelining
    from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
    stage = pipelining.PipelineStage(layers, rank, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
    plan = kind(stage, BATCHES, loss_fn=lambda output, target: (output - target).square().mean())
    with Collector(folder, SETTINGS) as collector:
        collector.describe(strategy="pp", backend="gloo", world_size=2, mesh={"pp": 2, "dp": 1})
        for number in range(STEPS):
            with collector.step(number):
                batch = torch.ones(2 * BATCHES, WIDTH)
                plan.step(batch) if rank == 0 else plan.step(target=batch)


# With torch 2.6 rank 1 got stuck in step 0 over gloo, also without a recorder.
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
OLD = TORCH < (2, 7)
NO_ALL_TO_ALL = TORCH < (2, 13)  # seen with 2.6, 2.8 and 2.11


@pytest.mark.parametrize(
    "schedule", ["gpipe", pytest.param("1f1b", marks=pytest.mark.skipif(OLD, reason="this torch's 1F1B gets stuck"))]
)
def test_what_stages_send_is_recorded_on_both(tmp_path: Path, schedule: str) -> None:
    ranks = run_ranks(pipeline, tmp_path, schedule).ranks()
    first, second = (rows_of(ranks[rank]) for rank in (0, 1))
    names = {row.group for _, row in first if row.group.startswith("p2p ")}
    assert len(names) == 2
    assert names == {row.group for _, row in second if row.group.startswith("p2p ")}
    for name in names:
        sender = 0 if name.startswith("p2p 0>1") else 1
        ends = [[(step, row) for step, row in own if row.group == name] for own in (first, second)]
        sent, received = ends[sender], ends[1 - sender]
        assert {row.op for _, row in sent} == {"send"}
        assert {row.op for _, row in received} == {"recv"}
        assert [(s, r.seq, r.bytes) for s, r in sent] == [(s, r.seq, r.bytes) for s, r in received]
        counted = [row for step, row in sent if step == TRACED]
        assert [row.bytes for row in counted] == [MESSAGE] * BATCHES
        for (_, out), (_, into) in zip(sent, received, strict=True):
            assert out.end_ns is not None
            assert into.end_ns is not None
            assert out.start_ns <= into.end_ns, "nothing is received before it was sent"
            assert into.wait_start_ns is not None
            assert into.wait_end_ns == into.end_ns
        assert groups_of(ranks[sender])[name] == [sender, 1 - sender]


def test_messages_are_those_of_the_profiler(tmp_path: Path) -> None:
    ranks = run_ranks(pipeline, tmp_path, "gpipe").ranks()
    for files in ranks.values():
        own = [row for step, row in rows_of(files) if step == TRACED and row.group.startswith("p2p ")]
        for op in ("send", "recv"):
            rows = sorted((row for row in own if row.op == op), key=lambda row: row.start_ns)
            assert len(rows) == BATCHES
            assert enclosed(rows, traced(files, f"^gloo:{op}"))


def by_hand(rank: int, folder: Path) -> None:
    made_before = dist.P2POp(isend if rank == 0 else irecv, torch.zeros(8), 1 - rank)
    methods = dict(vars(dist.ProcessGroup))
    work_methods = dict(vars(dist.Work))
    side = dist.new_group([0, 1])
    with Collector(folder, CollectorSettings(trace=False, nvml=False)) as collector:
        with collector.step(0):
            for work in dist.batch_isend_irecv([made_before]):
                work.wait()
            operation = dist.P2POp(isend if rank == 0 else irecv, torch.zeros(16), 1 - rank)
            for work in dist.batch_isend_irecv([operation]):
                work.wait()
            if rank == 0:
                dist.send(torch.zeros(4), 1)
                isend(torch.zeros(2), 1, side).wait()
                dist.send(torch.zeros(1), 1, tag=7)
            else:
                dist.recv(torch.zeros(4), 0)
                irecv(torch.zeros(2), 0, side).wait()
                dist.recv(torch.zeros(1), 0, tag=7)
        with collector.step(1):
            if rank == 0:
                dist.send(torch.zeros(4), 1)
                dist.send(torch.zeros(4), 1)
            else:
                assert dist.recv(torch.zeros(4)) == 0
                dist.recv(torch.zeros(4), 0)
    assert dict(vars(dist.ProcessGroup)) == methods, "the methods are put back"
    assert dict(vars(dist.Work)) == work_methods
    if rank == 0:
        dist.send(torch.zeros(4), 1)
    else:
        dist.recv(torch.zeros(4), 0)
    work = dist.all_reduce(torch.zeros(2), async_op=True)
    work.wait()


def test_every_way_to_send(tmp_path: Path) -> None:
    ranks = run_ranks(by_hand, tmp_path).ranks()
    first, second = (rows_of(ranks[rank]) for rank in (0, 1))
    to_one = [(row.group, row.seq, row.bytes) for step, row in first if step == 0]
    assert [(seq, size) for group, seq, size in to_one if group == "p2p 0>1"] == [(0, 32), (1, 64), (2, 16)]
    (aside,) = [group for group, _, size in to_one if size == 8]
    assert aside.startswith("p2p 0>1 of ")
    assert ("p2p 0>1 tag 7", 0, 4) in to_one
    assert sorted(to_one) == sorted((row.group, row.seq, row.bytes) for step, row in second if step == 0)
    assert [row.op for step, row in second if step == 1] == [], "who sent is not known when it is received"
    assert [row.seq for step, row in first if step == 1] == [3, 4]


def tensor_parallel(rank: int, folder: Path) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    model = parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Collector(folder, SETTINGS) as collector:
        collector.describe(strategy="tp", backend="gloo", world_size=2, mesh={"dp": 1, "tp": 2})
        for number in range(STEPS):
            with collector.step(number):
                batch = torch.ones(2, WIDTH, requires_grad=True)
                with collector.phase(FORWARD):
                    loss = model(batch).square().mean()
                with collector.phase(BACKWARD):
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
                optimizer.step()
                optimizer.zero_grad()


def test_functional_collectives_are_those_of_the_profiler(tmp_path: Path) -> None:
    ranks = run_ranks(tensor_parallel, tmp_path).ranks()
    seen = []
    for files in ranks.values():
        own = [row for step, row in rows_of(files) if step == TRACED]
        groups = {row.group for row in own}
        assert all(groups_of(files)[group] == [0, 1] for group in groups)
        seen.append([(row.group, row.seq, row.op, row.bytes) for row in own])
        events = traced(files, "^gloo:")
        assert len(own) == len(events)
        assert {row.op for row in own} == {"all_reduce"}
        assert [row.bytes for row in own][:1] == [MESSAGE], "the output of the second layer"
        assert len(own) >= 3
        assert enclosed(own, events)
        for row in own:
            assert row.wait_start_ns is not None
            assert row.wait_end_ns == row.end_ns
    assert seen[0] == seen[1]


def functional(rank: int, folder: Path) -> None:
    before = dict(vars(functions))
    world = dist.group.WORLD
    assert world is not None
    with Collector(folder, CollectorSettings(trace=False, nvml=False)) as collector, collector.step(0):
        one = functions.all_reduce(torch.ones(4), "sum", world)
        two = functions.all_reduce(one, "sum", world)  # waits for its input first
        assert two.tolist() == [4.0] * 4
        assert functions.all_reduce(torch.ones(1), "sum", world.group_name).item() == 2.0
        gathered = functions.all_gather_single if hasattr(functions, "all_gather_single") else None
        gathered = gathered or functions.all_gather_tensor
        assert gathered(torch.ones(3, 5), 1, world).shape == (3, 10)
        compiled = torch.compile(lambda x: functions.all_reduce(x, "sum", world) + 1, backend="eager", fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
        functions.all_reduce(torch.empty(2, device="meta"), "sum", world)
    assert dict(vars(functions)) == before, "the functions are put back"


def test_which_wait_is_for_what(tmp_path: Path) -> None:
    for files in run_ranks(functional, tmp_path).ranks().values():
        one, two, named, gather = (row for _, row in rows_of(files))
        assert [row.op for row in (one, two, named, gather)] == ["all_reduce"] * 3 + ["all_gather"]
        assert [row.seq for row in (one, two, named, gather)] == [0, 1, 2, 3]
        assert (one.bytes, gather.bytes) == (16, 2 * 3 * 5 * 4)
        assert one.end_ns is not None
        assert one.end_ns <= two.start_ns, "the second is called when its input is there"
        assert all(row.wait_end_ns is not None for row in (one, two, gather))


# -- expert parallelism ------------------------------------------------------------------------------------------------

ROWS = ((1, 2), (5, 3))  # that each rank sends to each rank


def exchange(rank: int, folder: Path, way: str) -> None:
    sent, received = list(ROWS[rank]), [ROWS[0][rank], ROWS[1][rank]]
    tokens = torch.ones(sum(sent), WIDTH)
    with Collector(folder, SETTINGS) as collector:
        for number in range(2):
            with collector.step(number):
                if way == "single":
                    dist.all_to_all_single(torch.empty(sum(received), WIDTH), tokens, received, sent)
                elif way == "list":
                    even = torch.ones(4, WIDTH)  # gloo takes no others in lists
                    dist.all_to_all(list(torch.empty_like(even).chunk(2)), list(even.chunk(2)))
                elif way == "functional":
                    out = functions.all_to_all_single(tokens, received, sent, dist.group.WORLD)
                    functions.wait_tensor(out)
                elif way == "autograd":
                    tokens.requires_grad_()
                    out = functions.all_to_all_single_autograd(tokens, received, sent, group=dist.group.WORLD)
                    functions.wait_tensor(out).sum().backward()
                else:
                    even = torch.ones(4, WIDTH)
                    functions.wait_tensor(functions.all_to_all_single(even, None, None, dist.group.WORLD))


@pytest.mark.parametrize(
    "way",
    [
        "single",
        pytest.param(
            "list", marks=pytest.mark.skipif(NO_ALL_TO_ALL, reason="this torch's gloo has no all-to-all of lists")
        ),
        "functional",
        pytest.param(
            "autograd", marks=pytest.mark.skipif(NO_ALL_TO_ALL, reason="this torch does not differentiate wait_tensor")
        ),
        "even",
    ],
)
def test_what_an_all_to_all_sends_and_receives(tmp_path: Path, way: str) -> None:
    ranks = run_ranks(exchange, tmp_path, way).ranks()
    for rank in (0, 1):
        rows = [row for _, row in rows_of(ranks[rank]) if row.op == "all_to_all"]
        sent, received = (4, 4) if way in ("even", "list") else (sum(ROWS[rank]), ROWS[0][rank] + ROWS[1][rank])
        parts = (sent * WIDTH * 4, received * WIDTH * 4)
        backward = [parts[::-1]] if way == "autograd" else []
        assert [(row.bytes, row.received_bytes) for row in rows] == [parts, *backward] * 2
        assert all(row.wait_end_ns is not None for row in rows)


def test_sizes_that_are_no_integers_are_not_waited_for() -> None:
    """Sizes on a device would have to be copied to the host."""
    tokens = torch.ones(4, WIDTH)
    assert _received(tokens, [torch.tensor(1), torch.tensor(2)]) is None
    assert _received(tokens, torch.tensor([1, 2])) is None
    assert _received(tokens, [1, 2]) == 3 * WIDTH * 4
    assert _received(tokens[:0], [0, 2]) == 2 * WIDTH * 4
    assert _bytes_of([tokens, tokens[:1]]) == 5 * WIDTH * 4
