"""What must not change a diagnosis: the order and names of the files, the numbers that the ranks happen to have, clocks
that are off, and where one file of the profiler ends and the next begins."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from diag.api import Result, open_run
from tests.account.kineto_builder import BASE_NS, KinetoBuilder, nccl_args
from tests.copies import replace
from tests.examples import examples

MS, US = 1_000_000, 1_000
YEAR = 365 * 86_400 * 1000 * MS
LOSS = MS // 5

some = settings(
    max_examples=examples(4, thorough=20),
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking a run takes minutes, and the runs are small
    suppress_health_check=[HealthCheck.too_slow],
)


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Ranks that wait for data, compute, and meet in two collectives a step: a large one, and a small one right behind
    it. Durations in ns. ``lead``: how much earlier than the device the host ends a step; 0: it waits for the device."""

    compute: tuple[tuple[int, ...], ...]  # step, rank
    data: tuple[int, ...]  # rank
    transfer: int
    hosts: tuple[str, ...]  # rank
    numbered: bool = True  # whether collectives carry a sequence number
    lead: int = 0
    tail: tuple[int, ...] = ()  # how much later than the first each rank is done; equal ones leave open who was last
    offset: tuple[int, ...] = ()  # what each rank's clock shows more than the true one
    ppm: tuple[float, ...] = ()  # how much faster than the true one it runs

    @property
    def ranks(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Step:
    """One step of one rank on the true clock; the kernels as (name, launch, start, end)."""

    number: int
    begin: int
    end: int
    kernels: tuple[tuple[str, int, int, int], ...]


def steps_of(plan: Plan) -> list[list[Step]]:
    host, device = [10 * MS] * plan.ranks, [0] * plan.ranks
    found: list[list[Step]] = [[] for _ in range(plan.ranks)]
    for number, compute in enumerate(plan.compute, start=1):
        launch = [begin + wait + 2 * US for begin, wait in zip(host, plan.data, strict=True)]
        start = [max(at + US, free) for at, free in zip(launch, device, strict=True)]
        arrival = [begin + work for begin, work in zip(start, compute, strict=True)]
        done = [max(arrival) + plan.transfer + tail for tail in plan.tail or [0] * plan.ranks]
        for rank, met in enumerate(done):
            last = max(done) + LOSS + met - min(done)
            kernels = (
                ("gemm", launch[rank], start[rank], arrival[rank]),
                ("large", launch[rank] + 100, arrival[rank], met),
                ("small", launch[rank] + 200, met, last),
            )
            device[rank] = last
            end = max(launch[rank] + 10 * US, device[rank] - plan.lead)
            found[rank].append(Step(number, host[rank], end, kernels))
            host[rank] = end
    return found


def write(
    plan: Plan, folder: Path, number_of: Sequence[int] = (), cuts: Mapping[int, Sequence[int]] | None = None
) -> list[Path]:
    """A trace a rank, named after it; with ``cuts`` a new one begins at each of these steps. ``number_of``: under which
    number each rank goes."""
    written = []
    for rank, steps in enumerate(steps_of(plan)):
        number = number_of[rank] if number_of else rank
        edges = [1, *sorted((cuts or {}).get(rank, ())), len(steps) + 1]
        for part, (first, after) in enumerate(pairwise(edges)):
            base_ns = BASE_NS + (plan.offset[rank] if plan.offset else 0)
            built = KinetoBuilder(rank=number, world_size=plan.ranks, base_ns=base_ns)
            built.header["host_name"] = plan.hosts[rank]
            for step in steps:
                if first <= step.number < after:
                    _add(built, plan, _as_shown(step, plan.ppm[rank] if plan.ppm else 0), plan.data[rank])
            written.append(built.write(folder, f"rank{number}.{part}.json", layout="kineto"))
    return written


def _as_shown(step: Step, ppm: float) -> Step:
    """The step as a clock shows it that gains so much."""

    def at(time_ns: int) -> int:
        return time_ns + round(time_ns * ppm / 1e6)

    kernels = tuple((name, *map(at, times)) for name, *times in step.kernels)
    return Step(step.number, at(step.begin), at(step.end), kernels)  # type: ignore[arg-type]


def _add(built: KinetoBuilder, plan: Plan, step: Step, data: int) -> None:
    built.step(step.number, step.begin, step.end, prefix="ProfilerStep#")
    built.range("diag.data", step.begin, step.begin + data)
    built.op("aten::mm", step.begin + data, step.begin + data + 9 * US)
    for name, launch, start, end in step.kernels:
        if name == "gemm":
            built.kernel(start, end, launch=launch)
        else:
            seq = 2 * step.number + (name == "small") if plan.numbered else None
            args = nccl_args("allreduce", 25_000_000 if name == "large" else 1, seq)
            args |= {"Process Group Ranks": str([*range(plan.ranks)]), "Group size": plan.ranks}
            built.kernel(start, end, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", launch, 20, **args)


@st.composite
def plans(draw: st.DrawFn, spread: bool | None = None, lead: int = 0) -> Plan:
    """Ranks of one host, or each on its own; any of them slow at anything."""
    ranks = draw(st.integers(2, 4))
    usual = draw(st.integers(5, 80)) * MS
    rng = Random(draw(st.integers(0, 2**32 - 1)))
    slower = [draw(st.sampled_from([0, 0, 0, 30 * MS, 60 * MS])) for _ in range(ranks)]
    apart = draw(st.booleans()) if spread is None else spread
    return Plan(
        compute=tuple(
            tuple(usual + slower[rank] + rng.randrange(MS) for rank in range(ranks))
            for _ in range(draw(st.integers(4, 6)))
        ),
        data=tuple(draw(st.sampled_from([MS, MS, 2 * MS, 50 * MS])) + rng.randrange(US) for _ in range(ranks)),
        transfer=draw(st.sampled_from([MS, 3 * MS, 40 * MS])),
        hosts=tuple(f"node-{rank}" if apart else "node-a" for rank in range(ranks)),
        numbered=draw(st.booleans()),
        lead=lead,
        tail=tuple(rng.sample(range(3 * US), ranks)),
    )


# -- what is compared --------------------------------------------------------------------------------------------------


def numbers(result: Result, rank_of: Sequence[int] = ()) -> dict[str, Any]:
    """All that a diagnosis says, without absolute times and texts. ``rank_of``: which rank each number stands for."""
    attribution, verdict = result.attribution, result.verdict

    def rank(number: int) -> int:
        return rank_of[number] if rank_of else number

    def ranks(those: Sequence[int]) -> list[int]:
        return sorted(map(rank, those))

    return {
        "steps": {
            step.step: {
                "dur_ns": step.dur_ns,
                "note": step.note,
                "parts": {rank(parts.rank): {**to_builtins(parts), "rank": None} for parts in step.parts},
                "path": [
                    (rank(p.rank), p.dur_ns, p.kind.name, p.detail.name, p.collective) for p in step.path.pieces()
                ],
                "blames": sorted((rank(b.rank), b.kind.name, b.detail.name, b.ns) for b in step.blames),
            }
            for step in attribution.steps
        },
        "ranks": ranks(attribution.ranks),
        "untied": ranks(attribution.untied),
        "clock": (attribution.aligned, attribution.clock_uncertainty_ns),
        "verdict": {
            **{key: getattr(verdict, key) for key in ("bottleneck", "severity", "cause")},
            "share": round(verdict.share, 9),
            "confidence": round(verdict.confidence, 9),
            "culprits": ranks(verdict.culprit_ranks),
            "hosts": sorted(verdict.culprit_hosts),
        },
        "findings": [
            {
                **{key: getattr(finding, key) for key in ("id", "severity", "cost_ns_per_step", "bottleneck")},
                "share": round(finding.share, 9),
                "confidence": round(finding.confidence, 9),
                "ranks": ranks(finding.ranks),
                "evidence": [(e.table, round(e.value, 6), e.unit) for e in finding.evidence],
            }
            for finding in result.examination.findings
        ],
        "not found": sorted(result.examination.not_found),
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Piece by piece, so that a failure names the first that differs."""
    assert list(before) == list(after)
    assert before["clock"] == after["clock"]
    assert list(before["steps"]) == list(after["steps"])
    for step, account in before["steps"].items():
        for key, value in account.items():
            assert after["steps"][step][key] == value, f"step {step}: {key}"
    for key in before:
        assert before[key] == after[key], key


def diagnosed(plan: Plan, **how: Any) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        write(plan, Path(folder), **how)
        result = open_run(folder)
    assert [len(step.parts) for step in result.attribution.steps] == [plan.ranks] * len(plan.compute)
    return result


def test_what_is_compared_sees_a_planted_fault() -> None:
    """So that the properties below are about something."""
    even = Plan(((50 * MS,) * 3,) * 5, (MS,) * 3, 3 * MS, ("a", "a", "a"))
    late = replace(even, compute=((50 * MS, 50 * MS, 90 * MS),) * 5)
    found = numbers(diagnosed(late))
    assert found["verdict"]["culprits"] == [2]
    assert found["findings"][0]["ranks"] == [2]
    assert found["steps"][3]["parts"][0]["exposed_wait_ns"] == 40 * MS
    assert numbers(diagnosed(even)) != found


@some
@given(plan=plans(), rng=st.randoms(use_true_random=False))
def test_the_order_and_the_names_of_the_files(plan: Plan, rng: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = write(plan, Path(folder))
        before = numbers(open_run(folder))
        names = rng.sample(["z", "a", "rank-9", "worker0_step_2", "Rank 1", "trace_3", "0", "\u52a0"], len(paths))
        renamed = [path.rename(path.with_name(f"{name}.json")) for path, name in zip(paths, names, strict=True)]
        same(before, numbers(open_run(folder)))
        rng.shuffle(renamed)
        same(before, numbers(open_run(*renamed)))


@some
@given(plan=plans(spread=False), rng=st.randoms(use_true_random=False))
def test_the_numbers_of_ranks_of_one_host(plan: Plan, rng: Random) -> None:
    relabelled(plan, rng)


@some
@given(plan=plans(spread=True), rng=st.randoms(use_true_random=False))
def test_the_numbers_of_ranks_whose_clocks_are_aligned(plan: Plan, rng: Random) -> None:
    relabelled(plan, rng)


def relabelled(plan: Plan, rng: Random) -> None:
    number_of = rng.sample(range(plan.ranks), plan.ranks)
    rank_of = [number_of.index(number) for number in range(plan.ranks)]
    same(numbers(diagnosed(plan)), numbers(diagnosed(plan, number_of=number_of), rank_of))


@some
@given(plan=plans())
def test_sequence_numbers_that_old_profilers_do_not_write(plan: Plan) -> None:
    """The k-th all-reduce of a step is the k-th on every rank; the numbers of steps have nothing to do with it."""
    with_them, without = (diagnosed(replace(plan, numbered=numbered)) for numbered in (True, False))
    assert len(without.attribution.collectives) == len(with_them.attribution.collectives) == 2 * len(plan.compute)
    for one, other in zip(with_them.attribution.steps, without.attribution.steps, strict=True):
        assert (one.parts, one.blames) == (other.parts, other.blames)
        assert one.path.rank.tolist() == other.path.rank.tolist()


@some
@given(plan=plans(spread=True), rank=st.integers(0, 3), shift=st.integers(-10 * YEAR, 10 * YEAR))
def test_a_clock_that_is_off_by_years(plan: Plan, rank: int, shift: int) -> None:
    shifted(plan, rank % plan.ranks, shift)


@some
@given(plan=plans(spread=True), rank=st.integers(0, 3), shift=st.sampled_from([-55, -50, -30, 20, 40, 80]))
def test_a_clock_that_was_never_set(plan: Plan, rank: int, shift: int) -> None:
    """It shows 1970, or another rank's does."""
    shifted(plan, rank % plan.ranks, shift * YEAR)


@some
@given(plan=plans(spread=True), data=st.data())
def test_clocks_that_are_all_off(plan: Plan, data: st.DataObject) -> None:
    small = st.integers(-(10**12), 10**12)
    offset = tuple(data.draw(st.lists(small, min_size=plan.ranks, max_size=plan.ranks)))
    same(numbers(diagnosed(plan)), numbers(diagnosed(replace(plan, offset=offset))))


def shifted(plan: Plan, rank: int, by_ns: int) -> None:
    offset = tuple(by_ns if other == rank else 0 for other in range(plan.ranks))
    same(numbers(diagnosed(plan)), numbers(diagnosed(replace(plan, offset=offset))))


def test_clocks_that_drift_apart_during_a_long_run() -> None:
    """An hour of steps of a minute: 40 ppm are 144 ms, more than the fault that is to be found."""
    minute = 60_000 * MS
    plan = Plan(((minute, minute, minute + 60 * MS),) * 60, (MS,) * 3, 3 * MS, ("a", "b", "c"))
    straight, drifting = diagnosed(plan), diagnosed(replace(plan, ppm=(0, 40, -15), offset=(0, 50 * MS, 0)))
    assert straight.coverage.clock_drift_ppm == 0
    assert abs(drifting.coverage.clock_drift_ppm - 55) < 1
    for one, other in zip(straight.attribution.usable, drifting.attribution.usable, strict=True):
        for before, after in zip(one.parts, other.parts, strict=True):
            assert before.exposed_wait_ns is not None
            assert after.exposed_wait_ns is not None
            assert abs(before.exposed_wait_ns - after.exposed_wait_ns) <= 3 * MS
            assert abs(before.dur_ns - after.dur_ns) <= 60e-6 * before.dur_ns
    waits = [parts.exposed_wait_ns or 0 for step in drifting.attribution.usable for parts in step.parts[:2]]
    assert all(abs(wait - 60 * MS) <= 3 * MS for wait in waits)


@some
@given(plan=plans(), data=st.data())
def test_a_rank_whose_steps_lie_in_two_files(plan: Plan, data: st.DataObject) -> None:
    """The host waits for the device at the end of each step, so a file holds all that its steps did."""
    split(plan, data)


@some
@given(plan=plans(lead=12 * MS), data=st.data())
def test_a_rank_whose_steps_lie_in_two_files_while_the_host_runs_ahead(plan: Plan, data: st.DataObject) -> None:
    """The device still works on the last step of the one file when the other begins."""
    split(plan, data)


@some
@given(plan=plans())
def test_every_step_in_a_file_of_its_own(plan: Plan) -> None:
    cuts = {rank: range(2, len(plan.compute) + 1) for rank in range(plan.ranks)}
    same(numbers(diagnosed(plan)), numbers(diagnosed(plan, cuts=cuts)))


def split(plan: Plan, data: st.DataObject) -> None:
    at = st.lists(st.integers(2, len(plan.compute)), max_size=2, unique=True)
    cuts = {rank: data.draw(at) for rank in range(plan.ranks)}
    assume(any(cuts.values()))
    event(f"{sum(map(len, cuts.values()))} cuts")
    same(numbers(diagnosed(plan)), numbers(diagnosed(plan, cuts=cuts)))


@some
@given(plan=plans(), step=st.integers(1, 6))
def test_two_files_of_the_same_steps(plan: Plan, step: int) -> None:
    """A copy of a file, as `cp` leaves it, is not a second rank and no second step."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write(plan, Path(folder))
        before = numbers(open_run(folder))
        one = paths[step % plan.ranks]
        one.with_name("copy of it.json").write_bytes(one.read_bytes())
        same(before, numbers(open_run(folder)))
