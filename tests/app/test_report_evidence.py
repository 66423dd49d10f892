"""The report holds what the other pages show: the worst step, collectives, memory at its peak, and the place of each
rank in a hang."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path

from diag.api import open_run
from diag.app.html_report.evidence import figures_of
from diag.app.html_report.render import render
from diag.app.run_view import view_of
from diag.collectors.layout import RunLayout
from diag.model.memory import Category
from diag.show.redact import Pseudonyms
from tests.allocator import FORWARD, MIB, train
from tests.app.runs import write_run

HUNG = Path(__file__).parents[1] / "hang" / "captured" / "hang-loader-4-ranks"


def test_the_worst_step_is_that_in_which_the_finding_costs_most(tmp_path: Path) -> None:
    result = open_run(write_run(tmp_path / "slow", slow_data_ms={1: 40}))
    view = view_of(result)
    found = figures_of(view)
    assert found.timeline is not None
    place = view.page.findings[0].place
    assert place is not None
    assert found.timeline.lead == f"Step {place.step}"
    assert found.timeline.drawn.startswith("<svg")
    assert "rank 1, at fault" in found.timeline.drawn
    assert {"data wait", "compute"} <= {entry.name for entry in found.timeline.legend}
    assert "<title>data wait: 40.0" in found.timeline.drawn
    assert found.collectives is not None
    assert found.collectives == found.collectives.known(), "no column of which nothing is known"
    assert found.hang is None
    text = render(result, "", "1")
    assert all(f"{entry.variable}: {entry.dark}" in text for entry in found.colours)


def test_memory_at_its_peak_is_of_the_snapshot_that_failed(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run"))
    for rank in (0, 1):
        allocator = train(extra=0 if rank else 6 * MIB)
        if rank:
            allocator.fail(64 * MIB, 10 * MIB, FORWARD)
        allocator.write(layout.rank(rank).memory_snapshot("asked", 3), diag={"rank": rank, "step": 3})
    memory = figures_of(view_of(open_run(layout.root))).memory
    assert memory is not None
    assert memory.text.startswith("Rank 1: Peak: 17.8")
    assert memory.drawn.count("<polygon") == len(memory.legend) == 4
    assert Category.ACTIVATIONS.value in {entry.name for entry in memory.legend}
    assert "train.py:44 main" in str(memory.live.texts())


def test_a_hang_shows_where_the_ranks_are_and_names_nobody_if_redacted(tmp_path: Path) -> None:
    layout = RunLayout(write_run(tmp_path / "run", ranks=4))
    shutil.copytree(HUNG, layout.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("truth.json", "rank.json"))
    manifest = json.loads(layout.manifest.read_text())
    layout.manifest.write_text(json.dumps({**manifest, "exit_code": 1}))
    result = open_run(layout.root)
    hang = figures_of(view_of(result)).hang
    assert hang is not None
    assert hang.headline
    assert hang.matrix is not None
    assert hang.matrix.rows
    text = render(result, "", "1")
    assert "Where each rank is in each group" in text
    redacted = render(result, "", "1", Pseudonyms(result, [layout.root]))
    assert f"<p>{hang.headline}</p>" in html.unescape(text)
    assert hang.headline not in html.unescape(redacted)
    assert str(tmp_path) not in redacted
