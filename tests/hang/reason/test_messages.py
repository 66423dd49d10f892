"""Messages of launchers, libraries and tools, as text: what they lead to, and what looks like them and must not."""

from __future__ import annotations

from pathlib import Path

from diag.hang.api import triage
from diag.hang.model import Triage

TIMEOUT = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=56693, "
    "OpType=BROADCAST, Timeout(ms)={}) ran for {} milliseconds before timing out.\n"
)
ANALYSED = "error msg: " + "{}\n"
CULPRIT = "Culprit rank {}; Error type: {}, Expected input sizes: '[[8]]' does not match found input sizes: '[[{}]]'"
STALL = (
    "[1,0]<stderr>:[[1,0]<stderr>:2020-01-15 22:51:33[1,0]<stderr>:.[1,0]<stderr>:214399[1,0]<stderr>:: W "
    "horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be reduced\n"
)


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(text)
    return triage([str(folder)])


def ranks(answer: Triage) -> list[int | None]:
    return [culprit.rank for culprit in answer.culprits]


def watchdogs(*numbers: int, limit: int = 1_800_000) -> str:
    return "".join(TIMEOUT.format(rank, limit, limit + 90) for rank in numbers)


def test_horovods_ranks_at_different_tensors(tmp_path: Path) -> None:
    text = "Stalled ops: loss_0 [ready ranks: 3], grad_1 [ready ranks: 2, 0, 1], grad_2 [ready ranks: 2, 0, 1]\n"
    answer = of(tmp_path, text)
    assert (answer.fault_class, ranks(answer), answer.victims) == ("desync", [3], (0, 1, 2))
    assert "Rank 3 submitted loss_0, the others grad_1" in answer.headline
    two = of(tmp_path, "Stalled ops: loss_0 [ready ranks: 1], grad_1 [ready ranks: 0]\n")
    assert (two.fault_class, ranks(two)) == ("desync", [0, 1]), "of two ranks nothing shows which one is wrong"


def test_horovods_list_with_mpiruns_tag_before_each_piece(tmp_path: Path) -> None:
    text = f"{STALL}[1,0]<stderr>:Stalled ranks:\n\n[1,0]<stderr>:2: [HorovodAllreduce.x, HorovodAllreduce.y]\n"
    for prefix in ("", "2020-01-15 22:51:33 UTC master.0 -- "):
        answer = of(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
        assert (answer.fault_class, ranks(answer)) == ("missing_rank", [2]), prefix
        assert "to submit HorovodAllreduce.x" in answer.headline


def analysed(members: int, culprits: tuple[int, ...], kind: str = "SIZE_OR_SYNTAX_MISMATCH") -> str:
    listed = ", ".join(CULPRIT.format(rank, kind, 4) for rank in culprits)
    expected = ", ".join(map(str, range(members)))
    return f"Collective sequence number: 9 has errors\nexpected ranks: {{{expected}}}\n{ANALYSED.format(listed)}"


def test_what_torchfrtrace_lists(tmp_path: Path) -> None:
    few = of(tmp_path, analysed(8, (2, 5)))
    assert (few.fault_class, ranks(few)) == ("mismatch_shape", [2, 5])
    most = of(tmp_path, analysed(4, (1, 2, 3)))
    assert ranks(most) == [0], "all others differ from the rank that it compares with"
    other = of(tmp_path, analysed(4, (3,), "COLLECTIVE_TYPE_MISMATCH"))
    assert (other.fault_class, ranks(other)) == ("mismatch_op", [3])
    late = of(tmp_path, analysed(4, (3,), "COLLECTIVE_STATE_MISMATCH"))
    assert late.fault_class == "undetermined"


def test_what_torchfrtrace_misses(tmp_path: Path) -> None:
    answer = of(tmp_path, "Not all ranks joining collective, sequence number: 3\nmissing ranks: {1, 6}\n")
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [1, 6])
    assert answer.confidence <= 0.6, "perhaps only their dumps are missing"


def test_the_first_rank_alone_is_missing_below_those_that_wait(tmp_path: Path) -> None:
    answer = of(tmp_path, watchdogs(3, 1, 2))
    assert (answer.fault_class, ranks(answer), answer.victims) == ("missing_rank", [0], (1, 2, 3))
    assert answer.confidence <= 0.5
    for few in ((1, 2), (0, 1, 3), (2, 3, 4), (1, 2, 4)):
        assert of(tmp_path, watchdogs(*few)).fault_class == "undetermined", few


def test_ranks_that_do_not_register(tmp_path: Path) -> None:
    def members(numbers: range, size: int) -> str:
        return "".join(f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/{size}\n" for rank in numbers)

    answer = of(tmp_path, members(range(4), 8))
    assert (answer.fault_class, ranks(answer)) == ("missing_rank", [4, 5, 6, 7])
    assert "srun" in answer.next_steps[0]
    registered = "All distributed processes registered. Starting with 8 processes\n"
    assert of(tmp_path, members(range(4), 8) + registered).fault_class == "undetermined"
    assert of(tmp_path, members(range(4), 16)).fault_class == "undetermined", "one node's log has its own ranks only"
    assert of(tmp_path, members(range(8), 8)).fault_class == "undetermined"


def test_a_rendezvous_that_too_few_came_to(tmp_path: Path) -> None:
    answer = of(tmp_path, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n")
    assert (answer.fault_class, answer.culprits) == ("missing_rank", ())
    assert "--rdzv-endpoint" in answer.next_steps[0]
    assert of(tmp_path, "    raise RendezvousTimeoutError()\n").fault_class == "undetermined"
