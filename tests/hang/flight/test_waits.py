"""Who is blamed when ranks wait for each other, in dumps small enough to see it."""

from __future__ import annotations

from pathlib import Path

from tests.hang.flight.boards import Groups, culprits, find

ALL: Groups = {"0": (0, 1, 2, 3)}
TP_DP: Groups = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
PIPE: Groups = {"0": (0, 1, 2, 3), "9": (0, 1, 2, 3)}


def test_the_rank_that_did_not_call(tmp_path: Path) -> None:
    waiting = "0:all_reduce 0:all_reduce?"
    found = find(tmp_path, ALL, {0: waiting, 1: waiting, 2: "0:all_reduce", 3: waiting})
    assert culprits(found) == [2]
    assert found.clues[0].fault_class == "missing_rank"
    assert found.clues[0].victims == (0, 1, 3)
    assert "all_reduce #1 of group 0 (0_GROUP), finished" in found.clues[0].evidence[0].text


def test_a_victim_that_is_late_elsewhere_is_not_blamed(tmp_path: Path) -> None:
    """Rank 2 waits for 3 in its pair, so 0 waits for 2: the wave begins at 3."""
    found = find(
        tmp_path, TP_DP, {0: "1:all_reduce 3:all_reduce?", 1: "1:all_reduce 4:all_reduce?", 2: "2:all_reduce?", 3: ""}
    )
    assert culprits(found) == [3]
    assert found.clues[0].victims == (0, 1, 2)


def test_two_culprits_in_different_groups(tmp_path: Path) -> None:
    found = find(tmp_path, TP_DP, {0: "1:all_reduce?", 1: "", 2: "", 3: "2:all_reduce?"})
    assert culprits(found) == [1, 2]


def test_a_rank_nobody_waits_for_is_no_culprit(tmp_path: Path) -> None:
    """Rank 1 has nothing pending and rank 3 left no dump; only rank 2 is missed."""
    found = find(tmp_path, TP_DP, {0: "1:all_reduce 3:all_reduce?", 1: "1:all_reduce", 2: ""})
    assert culprits(found) == [2]


def test_a_rank_without_a_dump_that_others_wait_for(tmp_path: Path) -> None:
    waiting = "0:all_reduce 0:all_reduce?"
    found = find(tmp_path, ALL, {0: waiting, 1: waiting, 3: waiting})
    assert culprits(found) == [2]
    assert found.clues[0].confidence < 0.8
    assert "There is no dump of rank 2." in found.coverage


def test_most_dumps_missing_blames_nobody(tmp_path: Path) -> None:
    found = find(tmp_path, ALL, {0: "0:all_reduce?"})
    assert found.clues == ()
    assert any("Their dumps are needed" in sentence for sentence in found.coverage)


def test_everybody_in_the_same_op_blames_nobody(tmp_path: Path) -> None:
    found = find(tmp_path, ALL, dict.fromkeys(range(4), "0:all_reduce 0:all_reduce?"))
    assert found.clues == ()
    assert any("no rank is missing" in sentence for sentence in found.coverage)


def test_nothing_pending_is_no_hang(tmp_path: Path) -> None:
    found = find(tmp_path, ALL, dict.fromkeys(range(4), "0:all_reduce 0:all_reduce"))
    assert found.clues == ()
    assert any("show no hang" in sentence for sentence in found.coverage)


def test_a_device_that_stopped(tmp_path: Path) -> None:
    """Rank 1 called the same as its peers, but has not finished what they have."""
    done = "0:all_reduce 0:all_reduce 0:all_reduce?"
    found = find(tmp_path, ALL, {0: done, 1: "0:all_reduce 0:all_reduce? 0:all_reduce?", 2: done, 3: done})
    assert culprits(found) == [1]
    assert "device" in found.clues[0].note


def test_a_broadcast_whose_root_is_through_accuses_nobody(tmp_path: Path) -> None:
    """Its root may finish before the others come."""
    found = find(tmp_path, ALL, {0: "0:broadcast", 1: "0:broadcast?", 2: "0:broadcast?", 3: "0:broadcast?"})
    assert found.clues == ()


def test_a_pipeline_stage_that_stands(tmp_path: Path) -> None:
    """Idle members of the pipeline's group have no part in the pair 1->2 and are not missed."""
    calls = {
        0: "9:send(0>1) 9:recv(1>0)?",
        1: "9:recv(0>1) 9:send(1>2)? 9:recv(2>1)?",
        2: "",
        3: "9:recv(2>3)?",
    }
    assert culprits(find(tmp_path, PIPE, calls)) == [2]


def test_a_finished_send_is_no_missing_send(tmp_path: Path) -> None:
    """A small message leaves before it is received. Rank 1's receive is held up by rank 3, which it waits for first."""
    calls = {0: "9:send(0>1) 0:all_reduce?", 1: "0:all_reduce? 9:recv(0>1)?", 2: "0:all_reduce?", 3: ""}
    assert culprits(find(tmp_path, PIPE, calls)) == [3]


def test_sends_count_in_order(tmp_path: Path) -> None:
    """Both sides made one pair of calls; the second receive has no send yet."""
    calls = {0: "9:send(0>1)", 1: "9:recv(0>1) 9:recv(0>1)?", 2: "", 3: ""}
    assert culprits(find(tmp_path, PIPE, calls)) == [0]


def test_ranks_that_wait_for_each_other_in_different_groups(tmp_path: Path) -> None:
    """0 calls group 1 then 3, 1 has group 4 first, and so on: no order fits."""
    groups: Groups = {"1": (0, 1), "2": (1, 2), "3": (2, 0)}
    found = find(tmp_path, groups, {0: "1:all_reduce?", 1: "2:all_reduce?", 2: "3:all_reduce?"})
    assert culprits(found) == [0, 1, 2]
    assert found.clues[0].fault_class == "desync"


def test_a_rank_that_alone_left_out_a_collective(tmp_path: Path) -> None:
    """Rank 2 went on to its pair, where rank 3 will not come before the common one."""
    calls = {0: "0:all_reduce?", 1: "0:all_reduce?", 2: "2:all_reduce?", 3: "0:all_reduce?"}
    found = find(tmp_path, TP_DP, calls)
    assert culprits(found) == [2]
    assert found.clues[0].fault_class == "desync"


def test_one_more_that_is_behind_its_peers(tmp_path: Path) -> None:
    """Rank 1 waits for 3 as the others do, but they went on to the next call: a weaker clue of its own."""
    ahead = "0:all_reduce? 0:all_reduce?"
    found = find(tmp_path, ALL, {0: ahead, 1: "0:all_reduce?", 2: ahead, 3: ""})
    assert culprits(found) == [3]
    assert [c.rank for c in found.clues[1].culprits] == [1]
    assert found.clues[1].confidence < 0.5


def test_gloo_marks_failed_ops_like_finished_ones(tmp_path: Path) -> None:
    """As torch 2.13 dumps it: retired after the time-out, no members listed, the rank only in the name."""
    failed = "0:barrier 0:all_reduce"
    found = find(tmp_path, ALL, {0: failed, 1: "0:barrier", 2: failed, 3: "0:barrier 0:all_reduce?"}, 4, "gloo")
    assert culprits(found) == [1]
    assert any("gloo records no sends" in sentence for sentence in found.coverage)
    assert any("4 dumps is taken from the file name" in sentence for sentence in found.coverage)


def test_gloo_world_size_from_an_all_gather(tmp_path: Path) -> None:
    """Rank 3 left no dump, and only the sizes say that there is one."""
    waiting = "0:all_gather 0:all_reduce?"
    assert culprits(find(tmp_path, ALL, {0: waiting, 1: waiting, 2: waiting}, None, "gloo")) == [3]


def test_stacks_stand_side_by_side(tmp_path: Path) -> None:
    waiting = "0:barrier 0:all_reduce?"
    found = find(tmp_path, ALL, {0: waiting, 1: waiting, 2: "0:barrier", 3: waiting})
    culprit, victim = found.stacks
    assert (culprit.rank, culprit.frames) == (2, ("called_barrier (train.py:0)",))
    assert (victim.rank, victim.frames) == (0, ("called_all_reduce (train.py:1)",))
    assert culprit.what.startswith("culprit")
    assert victim.what.startswith("a typical victim")


def test_a_culprit_without_entries_says_so(tmp_path: Path) -> None:
    found = find(tmp_path, ALL, {0: "0:all_reduce?", 1: "", 2: "0:all_reduce?", 3: "0:all_reduce?"})
    assert found.stacks[0].what == "culprit: no entries: hung in Python before any collective"
    assert found.stacks[0].frames == ()


def test_fewer_dumps_are_less_sure(tmp_path: Path) -> None:
    waiting = "0:all_reduce 0:all_reduce?"
    whole, part = tmp_path / "whole", tmp_path / "part"
    whole.mkdir(), part.mkdir()
    sure = find(whole, ALL, {0: waiting, 1: waiting, 2: "0:all_reduce", 3: waiting}).clues[0]
    less = find(part, ALL, {0: waiting, 1: waiting, 2: "0:all_reduce"}).clues[0]
    assert [c.rank for c in sure.culprits] == [c.rank for c in less.culprits] == [2]
    assert less.confidence < sure.confidence
