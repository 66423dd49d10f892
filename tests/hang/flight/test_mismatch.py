"""Calls that differ between ranks."""

from __future__ import annotations

from pathlib import Path

from tests.hang.flight.boards import Groups, culprits, find

ALL: Groups = {"0": (0, 1, 2, 3)}
TWO: Groups = {"0": (0, 1)}


def test_the_minority_calls_another_operation(tmp_path: Path) -> None:
    usual = "0:all_reduce 0:all_reduce?"
    found = find(tmp_path, ALL, {0: usual, 1: usual, 2: "0:all_reduce 0:broadcast?", 3: usual})
    assert (found.clues[0].fault_class, culprits(found)) == ("mismatch_op", [2])
    assert "rank 2: broadcast" in found.clues[0].note
    assert "ranks 0, 1 and 3: all_reduce" in found.clues[0].note


def test_the_minority_passes_another_size(tmp_path: Path) -> None:
    usual = "0:all_reduce[8]?"
    found = find(tmp_path, ALL, {0: usual, 1: "0:all_reduce[9]?", 2: usual, 3: usual})
    assert (found.clues[0].fault_class, culprits(found)) == ("mismatch_shape", [1])
    assert len(found.clues) == 1  # nobody is missing besides


def test_of_two_nobody_can_tell(tmp_path: Path) -> None:
    found = find(tmp_path, TWO, {0: "0:all_reduce[8]?", 1: "0:all_reduce[9]?"})
    assert (found.clues[0].fault_class, culprits(found)) == ("mismatch_shape", [0, 1])
    assert "do not show which one is wrong" in found.clues[0].note
    assert found.clues[0].confidence <= 0.6


def test_of_two_the_one_that_breaks_the_law_of_its_collective(tmp_path: Path) -> None:
    """An all-gather of two puts out twice what goes in: rank 1's own sizes cannot be right."""
    import json

    from diag.hang.flight import clues_of, read_dumps
    from tests.hang.flight.boards import dump

    for rank in (0, 1):
        content = dump(rank, TWO, "0:all_gather[8]?")
        if rank == 1:
            content["entries"][0]["output_sizes"] = [[24]]  # type: ignore[index]
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    found = clues_of(read_dumps([tmp_path]))
    assert culprits(found) == [1]
    assert "sizes of rank 1 do not fit a group of 2" in found.clues[0].note


def test_shapes_of_one_size_agree(tmp_path: Path) -> None:
    import json

    from diag.hang.flight import clues_of, read_dumps
    from tests.hang.flight.boards import dump

    for rank in (0, 1):
        content = dump(rank, TWO, "0:all_reduce[8] 0:all_reduce[8]")
        if rank:
            content["entries"][0]["input_sizes"] = content["entries"][0]["output_sizes"] = [[2, 4]]  # type: ignore[index]
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    assert clues_of(read_dumps([tmp_path])).clues == ()


def test_types_must_agree(tmp_path: Path) -> None:
    import json

    from diag.hang.flight import clues_of, read_dumps
    from tests.hang.flight.boards import dump

    for rank in range(4):
        content = dump(rank, ALL, "0:all_reduce?", dtype="Half" if rank == 3 else "Float")
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    assert culprits(clues_of(read_dumps([tmp_path]))) == [3]


def test_an_all_to_all_of_different_sizes_is_left_open(tmp_path: Path) -> None:
    calls = {rank: f"0:all_to_all[{8 + rank}]?" for rank in range(4)}
    assert find(tmp_path, ALL, calls).clues == ()


def test_a_call_left_out(tmp_path: Path) -> None:
    """Rank 2 has no second call; from there its calls are the others' next ones."""
    rest = "0:all_reduce[3] 0:broadcast[4] 0:all_reduce[5] 0:all_reduce[6]?"
    usual = f"0:all_reduce[1] 0:all_reduce[2] {rest}"
    found = find(tmp_path, ALL, {0: usual, 1: usual, 2: f"0:all_reduce[1] {rest}", 3: usual})
    assert (found.clues[0].fault_class, culprits(found)) == ("desync", [2])
    assert "Rank 2 left out 1" in found.clues[0].note


def test_a_call_too_many(tmp_path: Path) -> None:
    rest = "0:all_reduce[3] 0:broadcast[4] 0:all_reduce[5] 0:all_reduce[6]?"
    usual = f"0:all_reduce[1] {rest}"
    found = find(tmp_path, ALL, {0: usual, 1: usual, 2: f"0:all_reduce[1] 0:barrier {rest}", 3: usual})
    assert (found.clues[0].fault_class, culprits(found)) == ("desync", [2])
    assert "Rank 2 made 1 too many" in found.clues[0].note


def test_rings_that_lost_different_entries_are_aligned_by_number(tmp_path: Path) -> None:
    """Nothing is shifted by what a ring has lost."""
    import json

    from diag.hang.flight import clues_of, read_dumps
    from tests.hang.flight.boards import dump

    calls = " ".join(f"0:all_reduce[{size}]" for size in range(1, 30))
    for rank in range(4):
        content = dump(rank, ALL, calls + " 0:all_reduce[99]?" * (rank != 1), first=5 * rank)
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(content))
    found = clues_of(read_dumps([tmp_path]))
    assert (found.clues[0].fault_class, culprits(found)) == ("missing_rank", [1])
    assert any("3 ranks no longer hold their first entries" in sentence for sentence in found.coverage)
    for rank in (2, 3):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
    found = clues_of(read_dumps([tmp_path]))
    assert "The recorder of 1 rank no longer holds its first entries." in found.coverage
