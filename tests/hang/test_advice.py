"""Advice can be typed as it stands: what is known is filled in, and nothing is asked for that is there or gone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from diag.ended.model import Culprit, Source
from diag.hang.api import investigate
from diag.hang.classes import CLASSES
from diag.hang.model import Known
from diag.hang.reason import DETAIL, DUMPS, NCCL_LOGS, STACKS
from diag.hang.wording import steps

CAPTURED = Path(__file__).parent / "captured"
ONE = (Culprit(3, "node1"),)
# A word in capitals that stands for something, inside of a command.
_PLACEHOLDER = re.compile(r"(?<![\w=$/.+-])([A-Z]{2,}|<\w+>)(?![\w=:])")


def placeholders(step: str) -> list[str]:
    return [found[1] for command in step.split("`")[1::2] if (found := _PLACEHOLDER.search(command))]


@pytest.mark.parametrize("culprits", [(), ONE, (*ONE, Culprit(5, "node2"))])
@pytest.mark.parametrize("pids", [{}, {3: 4711, 5: 4712}])
def test_no_command_has_a_placeholder(culprits: tuple[Culprit, ...], pids: dict[int, int]) -> None:
    for fault in CLASSES.values():
        for literal in ("", *(literals[0] for literals in fault.if_read)):
            for step in steps(fault, culprits, "", [Source("log", 1, literal)], (), Known(pids)):
                assert not placeholders(step), step
    for step in (NCCL_LOGS, DUMPS, DETAIL, STACKS):
        assert not placeholders(step), step


def test_the_process_of_the_rank_at_fault_is_named() -> None:
    missing = CLASSES["missing_rank"]
    assert "`py-spy dump --pid 4711` on node1" in steps(missing, ONE, facts=Known({3: 4711}))[0]
    assert "py-spy dump on its process, on node1" in steps(missing, ONE)[0]
    both = steps(missing, (*ONE, Culprit(5, "node2")), facts=Known({3: 4711, 5: 4712}))[0]
    assert "`py-spy dump --pid 4711` on node1, `py-spy dump --pid 4712` on node2" in both


def test_a_process_that_is_gone_is_not_asked() -> None:
    assert not any("py-spy" in step for step in steps(CLASSES["missing_rank"], ONE, facts=Known({3: 4711}, ended=True)))


def test_stacks_that_are_there_are_not_asked_for() -> None:
    first, *others = steps(CLASSES["missing_rank"], ONE, facts=Known({3: 4711}, stacked={3: "load (data.py:7)"}))
    assert first == "See what it did when the stacks were taken: rank 3 in load (data.py:7)."
    assert not any("py-spy" in step or "faulthandler" in step for step in others)


def test_an_endpoint_in_the_evidence_is_in_the_command() -> None:
    line = Source("log", 1, "socketStartConnect: Connect to 10.0.0.2<4321> failed : Connection timed out")
    assert any("`nc -vz 10.0.0.2 4321`" in step for step in steps(CLASSES["net_connect_timeout"], ONE, "", [line]))


def test_evidence_of_a_stack_is_the_frame_that_says_where_it_is(tmp_path: Path) -> None:
    """Not the header of the stack, and not the call of Python's own library in which the thread sleeps."""
    log = tmp_path / "rank{}.log"
    for rank, frames in {
        0: ('"/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 99 in all_reduce',
            '"/home/me/train.py", line 40 in step'),
        1: ('"/usr/lib/python3.11/threading.py", line 320 in wait', '"/home/me/reader.py", line 7 in read_chunk',
            '"/home/me/train.py", line 38 in step'),
        2: ('"/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 99 in all_reduce',),
    }.items():  # fmt: skip
        lines = ["Current thread 0x00007f1 (most recent call first):", *(f"  File {frame}" for frame in frames)]
        Path(str(log).format(rank)).write_text("".join(f"[rank{rank}]: {line}\n" for line in lines))
    triage = investigate([str(tmp_path)]).triage
    assert [culprit.rank for culprit in triage.culprits] == [1]
    texts = [item.text for item in triage.evidence]
    assert not any("most recent call first" in text for text in texts)
    assert "line 7 in read_chunk" in texts[0]
    assert "in read_chunk" in triage.headline
    assert any("rank 1 in read_chunk" in step for step in triage.next_steps)


def test_a_captured_hang_is_asked_for_no_more_than_it_lacks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(CAPTURED / "hang-loader-4-ranks", run)
    for step in investigate([str(run)]).triage.next_steps:
        assert "PID" not in step
