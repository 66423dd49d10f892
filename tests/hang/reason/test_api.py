"""Paths in, one answer out: what the two readers find is joined, and what could not be read is said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.errors import DiagError
from diag.hang.api import incomplete, triage
from diag.hang.model import Triage


def answer(*gaps: tuple[str, str]) -> Triage:
    return Triage("healthy", 0.9, "x.", (), (), (), (), (), gaps=gaps)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (("a.gz", "truncated"), True),
        (("a.log", "is empty"), False),
        (("", "several processes have the same rank"), False),
    ],
)
def test_only_what_could_not_be_read_makes_it_incomplete(gap: tuple[str, str], expected: bool) -> None:
    assert incomplete(answer(gap)) is expected
    assert not incomplete(answer())


def test_nothing_to_read_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(DiagError):
        triage([])
    with pytest.raises(DiagError):
        triage([str(tmp_path)])


def test_logs_and_dumps_lie_in_one_folder(tmp_path: Path) -> None:
    """A dump is not reported as a text that could not be read."""
    import pickle

    (tmp_path / "rank0.log").write_text("node0:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.\n")
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    dump = {"version": "2.10", "pg_config": {"0": group}, "pg_status": {}, "entries": []}
    (tmp_path / "comm_lib_trace_rank_0").write_bytes(pickle.dumps(dump, protocol=2))
    found = triage([str(tmp_path)])
    assert not [path for path, reason in found.gaps if "not text" in reason]


def test_one_rank_without_a_log_is_one_rank(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("[rank0]: world_size=2\n[rank0]: ValueError: bad sample\n")
    assert "No log lines of 1 rank: 1." in [line.replace("\xa0", " ") for line in triage([str(tmp_path)]).coverage]


def test_sruns_labels_are_not_horovods_list(tmp_path: Path) -> None:
    """A list of Horovod's has lines "1: [tensor, ..]"; so have tracebacks of torch behind srun --label."""
    log = tmp_path / "slurm-7.out"
    log.write_text(
        "0: world_size: 2\n"
        "1: [rank1]: Traceback (most recent call last):\n"
        '1: [rank1]:   File "/w/train.py", line 4, in <module>\n'
        "1: [rank1]: ValueError: bad sample\n"
        "srun: error: gpu1: task 1: Exited with exit code 1\n"
    )
    found = triage([str(log)])
    assert (found.fault_class, [culprit.rank for culprit in found.culprits]) == ("rank_killed_exception", [1])
    assert "Horovod" not in found.headline
