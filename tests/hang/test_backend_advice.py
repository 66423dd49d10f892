"""Next steps are those of the job's backend, and none says again what another one says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diag.app.views.hang import NO_GROUPS, NO_GROUPS_OF_NCCL
from diag.hang.api import investigate, triage
from diag.hang.reason import fitting

CAPTURED = [
    folder
    for folder in sorted(path for path in (Path(__file__).parent / "captured").iterdir() if path.is_dir())
    if not (manifest := folder / "manifest.json").exists() or json.loads(manifest.read_text())["backend"] == "gloo"
]  # those without a manifest are on gloo; those from a GPU have one, and use NCCL
OF_NCCL = re.compile(r"\bNCCL_[A-Z]|\bTORCH_(?:NCCL|FR)_")


@pytest.mark.parametrize("folder", CAPTURED, ids=[folder.name for folder in CAPTURED])
def test_a_job_on_gloo_gets_no_advice_about_nccl(folder: Path) -> None:
    steps = triage([str(folder)]).next_steps
    assert len(CAPTURED) > 20
    assert [step for step in steps if OF_NCCL.search(step)] == []
    assert len(set(steps)) == len(steps)


@pytest.mark.parametrize(("backend", "may"), [("gloo", False), ("nccl", True)])
def test_a_page_without_groups_names_nccl_only_where_it_may_be_used(tmp_path: Path, backend: str, may: bool) -> None:
    (tmp_path / "manifest.json").write_text(f'{{"world_size": 2, "exit_code": 1, "backend": "{backend}"}}')
    assert investigate([str(tmp_path)]).may_use_nccl is may
    assert OF_NCCL.search(NO_GROUPS_OF_NCCL)
    assert not OF_NCCL.search(NO_GROUPS)


def test_a_job_on_nccl_gets_it_once() -> None:
    collect = "Next run: TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_DUMP_TEMP_FILE=/shared/fr_"
    again = "Take the stacks: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE)."
    assert fitting((again, collect, again, "Look at its log."), nccl=True) == (again, "Look at its log.")
    assert fitting((again, collect, "Look at its log."), nccl=False) == ("Look at its log.",)


def test_a_single_process_has_no_peers_to_collect_from(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"world_size": 1, "exit_code": 1}')
    log = tmp_path / "ranks" / "00000" / "log.txt"
    log.parent.mkdir(parents=True)
    log.write_text("epoch 1\nsomething went wrong\n")
    steps = triage([str(tmp_path)]).next_steps
    assert [step for step in steps if OF_NCCL.search(step) or "ranks" in step] == []


def test_a_wrong_interface_of_open_mpi_is_set_where_open_mpi_reads_it(tmp_path: Path) -> None:
    box = "WARNING: Open MPI failed to TCP connect to a peer MPI process.\n\n  Local host: n1\n  PID:        77\n"
    (tmp_path / "job.log").write_text(
        f"{box}  Message:    connect() to 169.254.9.8:1026 failed\n  Error:      x (11)\n"
    )
    answer = triage([str(tmp_path)])
    assert answer.fault_class == "net_wrong_interface"
    assert "btl_tcp_if_include" in answer.next_steps[0]
    assert not any(OF_NCCL.search(step) for step in answer.next_steps)
    assert "NCCL" not in answer.headline
