"""Device memory over time comes out of a trace as it was planted: the peak, its place, and what was allocated there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diag.api import open_run
from diag.show.curves import curve_sentence, curves_to_dict
from diag.show.json import to_dict
from diag.tables.memory_curves import BEFORE_BACKWARD, HOST_MEMORY, MemoryCurve, Share
from diag.tables.policy import MEMORY_GROWTH
from tests.account.kineto_builder import AUTOGRAD, LAYOUTS, KinetoBuilder, Layout

MS, MB = 1_000_000, 1_000_000
STEP = 10 * MS
BEFORE, RESERVED = 100 * MB, 400 * MB


def trained(steps: int = 3, forward: bool = True) -> KinetoBuilder:
    """Each step allocates 40 MB in a linear of block.0, 30 MB in its backward and 5 MB in the optimizer, then releases
    all. The optimizer of step 1 takes 20 MB instead: there is the peak, 190 MB. 100 MB were there before."""
    built = KinetoBuilder(world_size=1)
    for step in range(steps):
        t = step * STEP
        last = 20 * MB if step == 1 else 5 * MB
        built.step(step, t, t + STEP).kernel(t + MS, t + 9 * MS, launch=t + MS // 2)
        if forward:
            built.range("diag.forward", t, t + 3 * MS)
        built.range("block.0", t + MS // 10, t + 2 * MS)
        built.op("aten::linear", t + MS, t + 2 * MS - 10).op("aten::mm", t + MS + 10, t + 2 * MS - 20)
        built.op("aten::empty", t + MS + 20, t + MS + 200)
        built.memory(t + MS + 100, BEFORE + 40 * MB, RESERVED, size=40 * MB, addr=1000)
        built.op("autograd::engine::evaluate_function: MmBackward0", t + 3 * MS, t + 6 * MS, tid=AUTOGRAD)
        built.op("aten::mm", t + 3 * MS + 10, t + 5 * MS, tid=AUTOGRAD)
        built.memory(t + 4 * MS, BEFORE + 70 * MB, RESERVED, size=30 * MB, addr=2000, tid=AUTOGRAD)
        built.range("diag.optimizer", t + 7 * MS, t + 9 * MS)
        built.memory(t + 8 * MS, BEFORE + 70 * MB + last, RESERVED + step, size=last, addr=3000)
        built.memory(t + 9 * MS + 100, BEFORE + 30 * MB + last, RESERVED, size=-40 * MB, addr=1000)
        built.memory(t + 9 * MS + 200, BEFORE + last, RESERVED, size=-30 * MB, addr=2000, tid=AUTOGRAD)
        built.memory(t + 9 * MS + 300, BEFORE, RESERVED, size=-last, addr=3000)
    return built


def curves(folder: Path, built: KinetoBuilder, layout: Layout = "compact") -> tuple[MemoryCurve, ...]:
    built.write(folder, "rank0.json", layout=layout)
    return open_run(folder).memory_curves


def by_name(shares: tuple[Share, ...]) -> dict[str, tuple[int, int]]:
    return {one.name: (one.bytes, one.count) for one in shares}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_peak_and_what_was_allocated_there(tmp_path: Path, layout: Layout) -> None:
    (curve,) = curves(tmp_path, trained(), layout)
    assert (curve.rank, curve.device, curve.totals, curve.samples) == (0, 0, True, 18)
    assert (curve.peak_allocated, curve.peak_reserved) == (190 * MB, RESERVED + 2)
    assert (curve.step, curve.phase, curve.peak_ns) == (1, "optimizer", STEP + 8 * MS)
    live = curve.live
    assert live.before == BEFORE
    assert by_name(live.operators) == {"aten::mm": (70 * MB, 2), "outside of operators": (20 * MB, 1)}
    assert by_name(live.modules) == {"block.0": (40 * MB, 1), "outside of modules": (50 * MB, 2)}
    assert by_name(live.phases) == {"forward": (40 * MB, 1), "backward": (30 * MB, 1), "optimizer": (20 * MB, 1)}
    assert [one.share for one in live.phases] == pytest.approx([40 / 190, 30 / 190, 20 / 190])
    assert sum(one.bytes for one in live.operators) + BEFORE == curve.peak_allocated
    assert {band.phase for band in curve.bands} == {"forward", "backward", "optimizer"}
    sentence = curve_sentence(curve).replace("\u00a0", " ")
    assert "190 MB allocated" in sentence
    assert "(step 1, optimizer)" in sentence
    assert "100 MB of it (53%) was allocated before the window" in sentence


def test_every_page_has_the_same_peak(tmp_path: Path) -> None:
    (curve,) = curves(tmp_path, trained())
    result = open_run(tmp_path)
    (row,) = result.memory_table.rows
    (peak,) = result.breakdowns.memory_peaks
    told = to_dict(result)["memory"]
    assert (row.allocated, row.reserved) == (curve.peak_allocated, curve.peak_reserved)
    assert (peak.allocated, peak.reserved) == (row.allocated, row.reserved)
    assert (told["peak_bytes"], told["rank"]) == (row.reserved, 0)
    assert "profiled windows" in told["definition"]
    assert curves_to_dict(result.memory_curves)[0]["peak_allocated_bytes"] == row.allocated


def test_without_a_mark_of_the_forward_it_is_what_comes_before_the_backward(tmp_path: Path) -> None:
    (curve,) = curves(tmp_path, trained(forward=False))
    assert by_name(curve.live.phases)[BEFORE_BACKWARD] == (40 * MB, 1)
    assert {band.phase for band in curve.bands} == {BEFORE_BACKWARD, "backward", "optimizer"}


def change(of: Callable[[dict[str, object]], None]) -> KinetoBuilder:
    built = trained()
    for event in built.events:
        if event["name"] == "[memory]":
            of(event["args"])
    return built


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_totals_bytes_count_from_the_begin(tmp_path: Path, layout: Layout) -> None:
    """As torch 1.8 wrote it: neither totals nor addresses."""
    older = change(lambda args: [args.pop(key) for key in ("Total Allocated", "Total Reserved", "Addr")] and None)
    (curve,) = curves(tmp_path, older, layout)
    assert (curve.totals, curve.peak_allocated, curve.peak_reserved) == (False, 90 * MB, None)
    assert (curve.step, curve.phase) == (1, "optimizer")
    assert "addresses" in curve.live.reason
    assert "count from the start of the window" in curve_sentence(curve)
    assert open_run(tmp_path).memory_table.rows == (), "no peak of the device is known"
    assert to_dict(open_run(tmp_path))["memory"] is None


def test_memory_of_the_host_is_no_curve_and_that_of_rocm_is(tmp_path: Path) -> None:
    def on_rocm(args: dict[str, object]) -> None:
        args["Device Type"] = 6

    built = change(on_rocm).memory(MS, 10**12, 10**12, device=-1, size=10**12, addr=5, kind=0)
    (curve,) = curves(tmp_path, built)
    assert curve.peak_allocated == 190 * MB


def test_of_totals_alone_the_curve_is_known_and_nothing_more(tmp_path: Path) -> None:
    only = change(lambda args: [args.pop(key) for key in ("Bytes", "Addr")] and None)
    (curve,) = curves(tmp_path, only)
    assert (curve.totals, curve.peak_allocated, curve.live.before) == (True, 190 * MB, None)
    assert "addresses and sizes" in curve.live.reason


def test_a_sample_without_totals_among_others_with_them(tmp_path: Path) -> None:
    built = trained().memory(STEP + 8 * MS + 10, None, None, size=MB, addr=77)
    (curve,) = curves(tmp_path, built)
    assert (curve.totals, curve.peak_allocated) == (True, 190 * MB)


def test_on_a_cpu_it_is_what_was_allocated_on_the_host(tmp_path: Path) -> None:
    built = KinetoBuilder(world_size=1, backend="gloo")
    for step in range(2):
        t = step * STEP
        built.step(step, t, t + STEP).range("diag.forward", t, t + 5 * MS).op("aten::mm", t + MS, t + 4 * MS)
        for at, size in ((2 * MS, 3 * MB), (6 * MS, -3 * MB)):
            built.memory(t + at, max(size, 0), 0, device=-1, size=size, addr=1, kind=0)
    (curve,) = curves(tmp_path, built)
    assert (curve.device, curve.totals, curve.reserved, curve.peak_allocated) == (HOST_MEMORY, False, None, 3 * MB)
    assert by_name(curve.live.phases) == {"forward": (3 * MB, 1)}
    assert "on the host since the window began" in curve_sentence(curve)
    assert open_run(tmp_path).memory_table.rows == ()


def test_bins_keep_the_maxima(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    held = random.integers(1, 1_000, 4 * MEMORY_GROWTH.most_points_of_curve)
    built = KinetoBuilder(world_size=1).step(0, 0, 100 * MS).kernel(MS, 99 * MS, launch=1000)
    for number, size in enumerate(held.tolist()):
        built.memory(number * 10_000, size, 2 * size, addr=number)
    (curve,) = curves(tmp_path, built)
    assert len(curve.at_ns) <= MEMORY_GROWTH.most_points_of_curve
    assert int(curve.allocated.max()) == curve.peak_allocated == int(held.max())
    assert curve.reserved is not None
    assert int(curve.reserved.max()) == curve.peak_reserved == 2 * int(held.max())
    assert (np.diff(curve.at_ns) > 0).all()
    assert len(curve.live.operators) <= MEMORY_GROWTH.most_live_allocations_listed + 1


def test_each_device_and_each_window_is_a_curve_of_its_own(tmp_path: Path) -> None:
    built = trained().memory(MS, 7 * MB, 8 * MB, device=1, size=7 * MB, addr=9)
    assert [(one.device, one.peak_allocated) for one in curves(tmp_path, built)] == [(0, 190 * MB), (1, 7 * MB)]


def test_a_trace_without_samples_has_no_curve(tmp_path: Path) -> None:
    assert curves(tmp_path, KinetoBuilder(world_size=1).step(0, 0, STEP).kernel(MS, 2 * MS, launch=1000)) == ()
