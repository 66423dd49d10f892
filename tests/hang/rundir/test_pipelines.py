"""A pipeline of four stages that stands still: counters of pairs differ from rank to rank, and only one is at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import HANG, Asked, CollectiveLine, CollectiveRow, Heartbeat, RankRecord
from diag.ended.model import Clue
from diag.ended.rundir import clues_of, read_runs
from diag.rundir.beats import beat_of

STAGES, BATCHES, DONE = 4, 4, 3


def row(source: int, target: int, rank: int, seq: int, ended: bool = True, size: int = 4096) -> CollectiveRow:
    op = "send" if rank == source else "recv"
    return CollectiveRow(f"p2p {source}>{target}", seq, op, size, "float32", 0, 1 if ended else None, 0, 0)


def step_of(rank: int, number: int) -> list[CollectiveRow]:
    """All messages of a step."""
    pairs = [(a, b) for a in range(STAGES) for b in (a - 1, a + 1) if 0 <= b < STAGES and rank in (a, b)]
    return [row(a, b, rank, number * BATCHES + i) for a, b in pairs for i in range(BATCHES)]


def clues(folder: Path, stuck: int, phase: str, size: int = 4096) -> list[Clue]:
    """In the last step the forward of ``stuck`` stands still in its second micro-batch: those behind it wait for its
    message, those before it for its gradients. The last one of its messages had ``size`` bytes for the receiver."""
    layout = RunLayout(folder / "run")
    update_manifest(layout, world_size=STAGES)
    layout.asked.write_bytes(encode(Asked(1, HANG, 1)))
    for rank in range(STAGES):
        files = layout.rank(rank)
        files.folder.mkdir(parents=True)
        files.identity.write_bytes(encode(RankRecord(rank, rank, STAGES, "node1", 100 + rank, "", 0, 0, "cpu")))
        groups = {r.group: [int(r.group[4]), int(r.group[6])] for r in step_of(rank, 0)}
        lines = [CollectiveLine(step, step_of(rank, step), groups if not step else {}) for step in range(DONE)]
        files.collectives.write_bytes(b"".join(map(encode, lines)))
        first = DONE * BATCHES
        calls, waits = [], ""
        if rank > 0:  # what came from the stage before
            came = 2 if rank <= stuck else 1
            calls += [
                row(rank - 1, rank, rank, first + i, size=size if i and rank == stuck else 4096) for i in range(came)
            ]
            if rank > stuck:
                calls.append(row(rank - 1, rank, rank, first + came, ended=False))
                waits = f"p2p {rank - 1}>{rank}"
        if rank < STAGES - 1:  # what went to the stage behind
            gone = BATCHES if rank < stuck else 1
            calls += [row(rank, rank + 1, rank, first + i) for i in range(gone)]
            if rank < stuck:
                calls.append(row(rank + 1, rank, rank, first, ended=False))
                waits = f"p2p {rank + 1}>{rank}"
        started = dict.fromkeys(groups, first - 1) | {call.group: call.seq for call in calls}
        finished = {group: seq - (group == waits) for group, seq in started.items()}
        beat = Heartbeat(
            unix_ns=0,
            monotonic_ns=9_000_000_000,
            step=DONE,
            phase=phase if rank == stuck else "forward",
            steps=DONE,
            phase_since_ns=1_000_000_000,
            last_started=started,
            last_finished=finished,
            answered=1,
            groups=groups,
            calls=calls,
        )
        files.heartbeat.write_bytes(encode(beat))
    return [clue for run in read_runs([str(layout.root)]) for clue in clues_of(run)]


@pytest.mark.parametrize("stuck", range(STAGES))
def test_the_stage_that_all_others_wait_for(tmp_path: Path, stuck: int) -> None:
    (clue,) = clues(tmp_path, stuck, "data")
    assert clue.fault_class == "missing_rank"
    assert [culprit.rank for culprit in clue.culprits] == [stuck]
    assert clue.victims == tuple(rank for rank in range(STAGES) if rank != stuck)


def test_a_send_and_its_receive_of_different_sizes(tmp_path: Path) -> None:
    found = clues(tmp_path, 2, "forward", size=8192)
    (clue,) = [clue for clue in found if clue.fault_class == "mismatch_shape"]
    assert "recv of 8,192 bytes" in clue.note
    assert [culprit.rank for culprit in clue.culprits] == [2]


def test_what_a_rank_has_sent_and_not_waited_for_is_no_waiting() -> None:
    """Its messages are handed over: it stands still for none of them."""
    heartbeat = Heartbeat(0, 0, 1, "data", last_started={"p2p 0>1": 5}, last_finished={"p2p 0>1": 5})
    assert not beat_of(heartbeat).in_collective
