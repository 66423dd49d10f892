"""What `diag analyze` reaches and loads does not grow back, so that one person can read the way to an answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.house import REACHED_FROM, SAMPLES, loaded_for, reached_from, records_alone

ROOT = Path(__file__).parents[1]
# Lines.
MOST_REACHED = 31_600
MOST_OF_RECORDS = 39_000
MOST_OF_A_SAMPLE = 52_000


def test_the_imports_of_diag_analyze_reach_what_one_person_can_read() -> None:
    reached = reached_from(REACHED_FROM, ROOT)
    assert sum(reached.values()) <= MOST_REACHED, sorted(reached.items(), key=lambda item: -item[1])[:20]


@pytest.mark.slow
def test_records_alone_load_no_reader_of_traces_and_no_finding_that_they_cannot_show(tmp_path: Path) -> None:
    loaded = loaded_for(records_alone(tmp_path / "run"), ROOT)
    absent = (
        "diag.account.gpu",
        "diag.account.trace_ranges",
        "diag.traces.kineto",
        "diag.rundir.inspector",
        "diag.rundir.jobs",
        "diag.diagnoses.comm_cause",
        "diag.diagnoses.straggler",
        "diag.diagnoses.degraded_links",
        "diag.show.breakdowns",
        "diag.summaries",
    )
    assert not loaded.keys() & set(absent)
    assert sum(loaded.values()) <= MOST_OF_RECORDS


@pytest.mark.slow
def test_a_sample_loads_what_its_answer_takes(tmp_path: Path) -> None:
    run = shutil.copytree(SAMPLES / "fsdp2-slow-link-rank1", tmp_path / "run")
    loaded = loaded_for(run, ROOT)
    assert {"diag.traces.kineto", "diag.diagnoses.comm_cause"} <= loaded.keys()
    few_steps = {"diag.history.of_run", "diag.history.changes", "diag.words.history", "diag.summaries"}
    assert not loaded.keys() & {"diag.rundir.inspector", "diag.rundir.jobs", "diag.show.breakdowns", *few_steps}
    assert sum(loaded.values()) <= MOST_OF_A_SAMPLE
