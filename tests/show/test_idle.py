"""Why a device was idle, in the report and in a notebook: a trace with stalls of known length and cause."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, open_run
from diag.show.answer import Part
from diag.show.breakdowns import print_breakdown
from diag.show.notebook import to_html
from diag.show.page import page_of
from diag.show.ranks import idle_table, rank_table, stall_lines, stall_table
from diag.show.text import print_report
from diag.words.formatting import spaced
from diag.words.wording import averaged_over, steps_counted
from tests.account.kineto_builder import KinetoBuilder
from tests.app.runs import MS, STALLED_STEPS, write_stalled_trace
from tests.copies import replace
from tests.samples import opened_sample


@pytest.fixture
def result(tmp_path: Path) -> Result:
    return open_run(write_stalled_trace(tmp_path / "traces"))


def report(result: Result) -> str:
    """As one line with single spaces."""
    console = Console(file=io.StringIO(), highlight=False, emoji=False)
    print_report(result, console, (Part.EVIDENCE, Part.CHECKED))
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_the_causes_add_up_to_the_idle_time(result: Result) -> None:
    used = len(result.attribution.usable)
    idle = idle_table(result.attribution, 0)
    assert idle is not None
    mean = f"The device of rank 0 is idle for 5.00 ms (50%) of 10.0 ms a step, mean of {used} steps."
    assert spaced(idle.title) == mean
    assert [tuple(map(spaced, row[:3])) for row in idle.texts()] == [
        ("not launched", "4.00 ms", "40%"),
        ("in launch", "400 µs", "4%"),
        ("queued", "600 µs", "6%"),
    ]
    assert all(row[3].endswith(("yet", "it", "trace")) for row in idle.texts())
    one = idle_table(result.attribution, 0, step=2)
    assert one is not None
    assert spaced(one.title) == "The device of rank 0 is idle for 5.00 ms (50%) of 10.0 ms in step 2."
    assert one.rows == idle.rows


def test_stalls_are_named_by_what_the_host_did(result: Result) -> None:
    table = stall_table(result.attribution)
    assert table.headings == ("step", "start", "duration", "share", "cause", "the host was in")
    counted = [step.step for step in result.attribution.usable]
    assert [tuple(map(spaced, row)) for row in table.texts()] == [
        (str(step), "after 2.00 ms", "4.00 ms", "40%", "not launched", "resize for 90% of it") for step in counted
    ]
    of_one = stall_table(result.attribution, step=0)  # also of a step that does not count
    assert of_one.headings == ("start", "duration", "share", "cause", "the host was in")
    assert len(of_one.rows) == 1


def test_the_longest_stalls_are_worth_three_lines(result: Result) -> None:
    lines = stall_lines(result.attribution)
    counted = [step.step for step in result.attribution.usable]
    assert lines == tuple(
        f"step {step}: 4.00 ms (40% of the step), not launched; the host was in resize for 90% of it"
        for step in counted[:3]
    )
    text = report(result)
    assert f"Longest stalls of the device {' '.join(lines)}" in text
    shown = html.unescape(re.sub(r"<[^>]*>", " ", to_html(result)))
    assert all(line in shown for line in lines)
    assert 'title="The host had not launched the next work yet"' in to_html(result)


def test_short_stalls_are_left_out_of_a_report(result: Result) -> None:
    """4 ms of 81 are less than a twentieth; the pages show them."""
    steps = tuple(
        replace(step, parts=tuple(replace(parts, dur_ns=81 * MS) for parts in step.parts))
        for step in result.attribution.steps
    )
    long = replace(result.attribution, steps=steps)
    assert stall_lines(long) == ()
    assert stall_table(long).rows


def test_a_stall_without_a_name_says_so(result: Result) -> None:
    def unnamed(step):
        parts = [
            replace(p, stalls=tuple(replace(stall, host="", host_share=0.0) for stall in p.stalls)) for p in step.parts
        ]
        return replace(step, parts=tuple(parts))

    attribution = replace(result.attribution, steps=tuple(map(unnamed, result.attribution.steps)))
    assert stall_lines(attribution)[0].endswith("not launched; no single call of the host covers half of it")
    assert stall_table(attribution).rows[0][-1] == "no single call of the host covers half of it"


def test_idle_time_of_a_cpu_is_not_divided() -> None:
    """Garbage collection is idle time of a CPU as well."""
    result = opened_sample("ddp-straggler-rank0")
    for step in result.attribution.steps:
        for parts in step.parts:
            assert parts.idle_parts.unknown_ns == parts.idle_ns
    assert not {"not launched", "unknown"} & set(rank_table(result.attribution).headings)
    assert all(idle_table(result.attribution, rank) is None for rank in result.attribution.ranks)
    assert "Longest stalls" not in report(result)


def test_a_window_is_not_called_a_step(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1).op("aten::conv2d", 2 * MS, 100 * MS)
    for kernel in range(50):
        at = (0 if kernel < 10 else 100 * MS) + kernel * MS
        build.kernel(at, at + MS, launch=max(0, at - 5_000))
    build.write(tmp_path)
    text = report(open_run(tmp_path))
    assert "1 window" in text
    assert "One window, not divided into steps." in text
    assert "onfidence" not in text
    assert "Milliseconds of the window rank window compute idle" in text
    stall = re.search(r"Longest stalls of the device (.*?) 1 of 1 rank\.", text)
    assert stall is not None
    assert stall[1] == "100 ms (67% of the window), not launched; the host was in aten::conv2d for 90% of it"


def test_how_many_steps_count_in_words(result: Result) -> None:
    attribution = result.attribution
    used = len(attribution.usable)
    assert spaced(steps_counted(attribution)) == f"{used} of {STALLED_STEPS} steps counted"
    assert averaged_over(attribution) == f"Mean milliseconds a step, over {used} steps"
    one = replace(attribution, steps=attribution.usable[:1])
    assert (steps_counted(one), averaged_over(one)) == ("one step", "Milliseconds of the step")
    one_of_two = replace(attribution, steps=attribution.steps[:2])
    assert averaged_over(one_of_two) == "Milliseconds of the counted step"


@pytest.mark.parametrize("on_gpu", [True, False], ids=["GPU", "CPU"])
def test_time_outside_of_the_recorded_work_is_not_idle(on_gpu: bool, tmp_path: Path) -> None:
    """The profiler ran for two seconds around 60 ms of work; nothing marks a step."""
    build = KinetoBuilder(world_size=1)
    build.event("python_function", "train.py(1): setup", 0, 1)
    for number in range(60):
        begin = 1000 * MS + number * MS
        if on_gpu:
            build.kernel(begin, begin + MS // 2, name=f"kernel_{number * 7919}", launch=begin - 5_000)
        else:
            build.op(f"aten::op_{number * 7919}", begin, begin + MS // 2)
    build.event("python_function", "train.py(9): export", 2000 * MS, 2000 * MS + 1)
    result = open_run(build.write(tmp_path))
    page = page_of(result)
    (cells,) = page.ranks.texts()
    of = dict(zip(page.ranks.headings, cells, strict=True))
    assert (of["window"], of["compute"], of["idle"], of["outside"]) == ("2,000.0", "30.0", "29.5", "1,940.5")
    assert page.stall_lines == ()
    assert "29.5 ms of" in result.why
    assert result.why.startswith("The critical path of the window is")
    (step,) = result.attribution.steps
    assert [parts.idle_parts.outside_ns for parts in step.parts] == [1_940_500_001]
    if page.idle is not None:
        assert "is idle for 29.5" in page.idle.title
        assert "outside" not in {row[0] for row in page.idle.rows}


def test_nothing_is_per_step_in_a_window_without_steps(tmp_path: Path) -> None:
    build = KinetoBuilder(world_size=1)
    for number in range(60):
        begin = number * MS
        build.copy(begin, begin + MS // 2, launch=begin - 5_000)
        build.kernel(begin + MS // 2, begin + MS * 3 // 4, name=f"kernel_{number * 7919}", launch=begin)
    result = open_run(build.write(tmp_path))
    assert result.attribution.undivided
    text = io.StringIO()
    print_report(result, Console(file=text, width=400), (Part.EVIDENCE, Part.CHECKED))
    for name in ("kernels", "path"):
        print_breakdown(result, name, Console(file=text, width=400))
    said = text.getvalue()
    assert "in this window" in said
    assert not re.search(r"(?:ms|s|µs)\W+a step", said)
