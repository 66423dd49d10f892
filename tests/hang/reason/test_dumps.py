"""Logs beside dumps and stacks: what agrees is surer, and what contradicts is not."""

from __future__ import annotations

from diag.ended.model import Clue, Culprit, Source
from diag.hang.flight import FlightFindings
from diag.hang.model import Stack
from diag.hang.reason import reason
from tests.hang.reason.builders import Job, ranks


def dump_clue(name: str, *culprits: int, confidence: float = 0.8) -> Clue:
    evidence = (Source("fr_0", 0, "entry 7"),)
    return Clue(name, tuple(Culprit(rank) for rank in culprits), evidence, confidence, "Seen.", from_dumps=True)


def test_stacks_tell_who_is_not_in_the_collective() -> None:
    job = Job()
    for rank in range(4):
        job.say(f'Thread {1000 + rank} (idle): "MainThread"', rank, source="stack")
        where = "all_reduce (torch/distributed/distributed_c10d.py:2500)"
        job.say(f"    {'read (loader.py:7)' if rank == 1 else where}", rank, source="stack")
        job.say("    main (train.py:3)", rank, source="stack")
    triage = reason(job.logs())
    assert (triage.fault_class, ranks(triage), triage.victims) == ("missing_rank", [1], (0, 2, 3))
    assert [(stack.rank, stack.what) for stack in triage.stacks] == [(1, "culprit"), (0, "a typical victim")]
    assert triage.stacks[0].frames == ("read (loader.py:7)", "main (train.py:3)")


def test_dumps_and_logs_that_agree_are_surer_than_each() -> None:
    job = Job()
    for rank in (0, 1, 3):
        job.timeout(rank)
    job.info(2, "anything")
    alone = reason(job.logs())
    both = reason(job.logs(), FlightFindings(clues=(dump_clue("missing_rank", 2),), coverage=("4 dumps.",)))
    assert ranks(both) == [2]
    assert both.culprits[0].host == "node1"
    assert both.confidence > alone.confidence
    assert any(line.path == "fr_0" for line in both.evidence)


def test_dumps_that_contradict_make_it_less_sure() -> None:
    job = Job()
    job.exit(3, -9)
    contradicted = reason(job.logs(), FlightFindings(clues=(dump_clue("missing_rank", 1),)))
    assert contradicted.fault_class == "rank_killed_sigkill"
    assert contradicted.confidence < reason(job.logs()).confidence
    assert "missing_rank" in [one.fault_class for one in contradicted.ruled_out]


def test_the_stacks_of_dumps_are_shown() -> None:
    stack = Stack(2, "culprit", ("f (a.py:1)",), Source("fr_2", 0, ""))
    found = reason(Job().logs(), FlightFindings(clues=(dump_clue("mismatch_op", 2),), stacks=(stack,)))
    assert (found.fault_class, found.stacks) == ("mismatch_op", (stack,))


def test_a_clue_that_is_hardly_believed_is_a_suspicion() -> None:
    found = reason(Job().logs(), FlightFindings(clues=(dump_clue("missing_rank", 2, confidence=0.2),)))
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert [(one.fault_class, one.confidence) for one in found.guesses] == [("missing_rank", 0.2)]


def test_gaps_of_both_readers_are_handed_on() -> None:
    found = reason(Job(gaps=(("a.log", "cut"),)).logs(), FlightFindings(gaps=(("b.pt", "is empty"),)))
    assert found.gaps == (("a.log", "cut"), ("b.pt", "is empty"))
