"""What RAS reports of jobs with a known fault are taken for: class, ranks, confidence; and when nothing is decided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RunLayout
from diag.collectors.records import RankRecord
from diag.hang.api import triage
from diag.hang.model import Triage
from tests.hang.ras.reports import Comm, Job, as_json, job, text

FORMS = ("text", "json")


def said(tmp_path: Path, *states: Job, form: str = "json", apart_s: int = 30, verbose: bool = True) -> Triage:
    """Reports one after the other; text ones behind a scheduler's times."""
    for number, state in enumerate(states):
        seconds = number * apart_s
        time = f"2026-11-10 12:{seconds // 60:02d}:{seconds % 60:02d}"
        if form == "json":
            (tmp_path / f"ras{number}.json").write_text(as_json(replace(state, time=time)))
        else:
            lines = text(state, verbose).splitlines()
            (tmp_path / f"ras{number}.log").write_text("".join(f"{time.replace(' ', 'T')}Z {line}\n" for line in lines))
    return triage([str(tmp_path)])


def ranks(found: Triage) -> list[int | None]:
    return [culprit.rank for culprit in found.culprits]


def behind(rank: int = 7, count: int = 60, usual: int = 64) -> Job:
    comm = Comm(list(range(8)), counts={rank: {"AllReduce": count}}, usual={"AllReduce": usual, "AllGather": 12})
    return job(comm)


@pytest.mark.parametrize("form", FORMS)
def test_counts_that_differ_and_do_not_change_name_who_is_behind(tmp_path: Path, form: str) -> None:
    found = said(tmp_path, behind(), behind(), form=form)
    assert (found.fault_class, ranks(found)) == ("missing_rank", [7])
    assert (found.culprits[0].host, found.culprits[0].gpu) == ("10.0.0.2", 3)
    assert found.confidence == pytest.approx(0.75)
    assert "AllReduce 60, not 64" in found.headline
    assert "process 1007" in found.headline
    assert "for 30 s" in found.headline


@pytest.mark.parametrize(("apart_s", "sure"), [(1, 0.5), (5, 0.65), (59, 0.75), (60, 0.85)])
def test_the_longer_nothing_changes_the_surer(tmp_path: Path, apart_s: int, sure: float) -> None:
    found = said(tmp_path, behind(), behind(), apart_s=apart_s)
    assert (found.fault_class, found.confidence) == ("missing_rank", pytest.approx(sure))


@pytest.mark.parametrize("form", FORMS)
def test_one_report_is_a_suspicion_and_asks_for_a_second(tmp_path: Path, form: str) -> None:
    found = said(tmp_path, behind(), form=form)
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert any("Rank 7" in one.note for one in found.guesses)
    assert "sleep 30" in found.next_steps[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_running_job_is_not_stuck(tmp_path: Path, form: str) -> None:
    found = said(tmp_path, behind(7, 60, 61), behind(3, 80, 81), form=form)
    assert (found.fault_class, found.culprits) == ("healthy", ())
    assert "makes progress" in found.headline


@pytest.mark.parametrize("form", FORMS)
def test_a_straggler_stands_still_while_the_others_go_on(tmp_path: Path, form: str) -> None:
    found = said(tmp_path, behind(7, 60, 64), behind(7, 60, 70), form=form)
    assert (found.fault_class, ranks(found), found.confidence) == ("missing_rank", [7], pytest.approx(0.55))


@pytest.mark.parametrize("form", FORMS)
def test_a_difference_that_is_gone_in_the_second_report_is_progress(tmp_path: Path, form: str) -> None:
    found = said(tmp_path, behind(), job(Comm(list(range(8)), usual={"AllReduce": 90, "AllGather": 12})), form=form)
    assert found.fault_class == "healthy"


def test_equal_counts_are_no_evidence_of_anything(tmp_path: Path) -> None:
    found = said(tmp_path, job())
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert "two reports show whether" in found.headline
    assert "--ras" in found.next_steps[0]


def test_equal_counts_that_do_not_change_leave_it_open(tmp_path: Path) -> None:
    found = said(tmp_path, job(), job())
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert "none launched another one" in found.headline
    assert any("CUDA graphs" in sentence for sentence in found.coverage)


def test_equal_counts_in_text_cannot_show_progress(tmp_path: Path) -> None:
    found = said(tmp_path, job(), job(), form="text")
    assert found.fault_class == "undetermined"
    assert "ncclras -f json" in found.next_steps[0]


def test_equal_counts_that_grow_are_progress(tmp_path: Path) -> None:
    found = said(tmp_path, job(), job(Comm(list(range(8)), usual={"AllReduce": 90})))
    assert (found.fault_class, found.confidence) == ("healthy", pytest.approx(0.7))


@pytest.mark.parametrize("form", FORMS)
def test_another_collective_in_place_of_the_others_is_a_mismatch(tmp_path: Path, form: str) -> None:
    comm = Comm(
        list(range(8)), counts={2: {"AllReduce": 63, "AllGather": 13}}, usual={"AllReduce": 64, "AllGather": 12}
    )
    found = said(tmp_path, job(comm), job(comm), form=form)
    assert (found.fault_class, ranks(found)) == ("mismatch_op", [2])
    assert found.confidence > 0.8


@pytest.mark.parametrize("form", FORMS)
def test_more_of_one_and_fewer_of_another_without_the_same_sum_is_a_desync(tmp_path: Path, form: str) -> None:
    comm = Comm(
        list(range(8)), counts={2: {"AllReduce": 60, "AllGather": 13}}, usual={"AllReduce": 64, "AllGather": 12}
    )
    found = said(tmp_path, job(comm), job(comm), form=form)
    assert (found.fault_class, ranks(found)) == ("desync", [2])


@pytest.mark.parametrize("form", FORMS)
def test_a_few_ranks_that_are_ahead_are_less_sure(tmp_path: Path, form: str) -> None:
    """nccl#1911: two of 32 have launched one more. They wait in what the others have not launched, unless it is a call
    of their own."""
    comm = Comm(list(range(32)), counts={12: {"AllGather": 641}, 13: {"AllGather": 641}}, usual={"AllGather": 640})
    state = job(comm, world=32, per_host=8)
    found = said(tmp_path, state, state, form=form)
    assert (found.fault_class, found.confidence < 0.6) == ("missing_rank", True)
    assert ranks(found) == [rank for rank in range(32) if rank not in (12, 13)]
    assert {12, 13} <= set(found.victims)


@pytest.mark.parametrize("form", FORMS)
def test_equal_counts_beside_time_outs_leave_devices_and_the_network(tmp_path: Path, form: str) -> None:
    late = (
        "[rank{0}]:[E110 12:00:00.000000000 ProcessGroupNCCL.cpp:616] [PG ID 2 PG GUID 9(tp) Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) "
        "ran for 600012 milliseconds before timing out.\n"
    )
    (tmp_path / "job.log").write_text("".join(late.format(rank) for rank in (0, 3)))
    found = said(tmp_path, job(), form=form)
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert "have launched the same collectives" in found.headline
    assert "device or the network" in found.headline
    assert "unknown" not in found.headline


def test_of_two_ranks_the_one_behind_is_named_with_less_confidence(tmp_path: Path) -> None:
    comm = Comm([0, 1], counts={1: {"AllReduce": 60}})
    found = said(tmp_path, job(comm, world=2), job(comm, world=2))
    assert (found.fault_class, ranks(found)) == ("missing_rank", [1])
    assert found.confidence < 0.65


def test_half_of_the_ranks_are_named_by_json_and_not_by_text(tmp_path: Path) -> None:
    comm = Comm(list(range(8)), counts={n: {"AllReduce": 60} for n in range(4)})
    found = said(tmp_path, job(comm), job(comm), form="text")
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert "ncclras -f json" in found.next_steps[0]
    for path in tmp_path.iterdir():
        path.unlink()
    found = said(tmp_path, job(comm), job(comm))
    assert (found.fault_class, ranks(found)) == ("missing_rank", [0, 1, 2, 3])


def test_ranks_that_wait_for_another_communicator_are_not_blamed(tmp_path: Path) -> None:
    """Rank 3 is away. In its pair 0, 1, 2 wait; in their data-parallel groups 0, 1, 2 are behind as well as 3."""
    tensor = Comm([0, 1, 2, 3], 0xA, counts={3: {"AllReduce": 99}}, usual={"AllReduce": 100})
    other = Comm([4, 5, 6, 7], 0xB, usual={"AllReduce": 104})
    pairs = [
        Comm([n, n + 4], 0xC0 + n, counts={0: {"ReduceScatter": 10}}, usual={"ReduceScatter": 11}) for n in range(4)
    ]
    state = Job([tensor, other, *pairs])
    found = said(tmp_path, state, state)
    assert found.fault_class == "missing_rank"
    assert [(culprit.host, culprit.gpu) for culprit in found.culprits] == [("10.0.0.1", 3)]
    assert ranks(found) == [None], "no communicator is that of the whole job: the rank in the job is not known"
    assert "Rank 3 (process 1003" in found.headline


@pytest.mark.parametrize(("logged", "rank"), [(8, 6), (5, None)])
def test_a_pid_ties_a_rank_to_the_job_where_all_processes_are_known(
    tmp_path: Path, logged: int, rank: int | None
) -> None:
    """Hosts have names in a run directory and addresses in RAS; with logs of some hosts only, pids may repeat."""
    (tmp_path / "manifest.json").write_text(json.dumps({"world_size": 8}))
    for number in range(logged):
        files = RunLayout(tmp_path).rank(number)
        files.folder.mkdir(parents=True)
        who = RankRecord(number, number % 4, 8, f"node{number // 4}", 1000 + number, "", 0, 0, "cuda", number % 4)
        files.identity.write_bytes(encode(who))
    comm = Comm([4, 5, 6, 7], 0xB, counts={2: {"AllReduce": 9}}, usual={"AllReduce": 11})
    found = said(tmp_path, Job([comm]), Job([comm]))
    assert (found.fault_class, ranks(found)) == ("missing_rank", [rank])
    assert found.culprits[0].host == ("node1" if rank is not None else "10.0.0.2")


def test_the_log_of_nccl_ties_a_rank_of_a_communicator_to_the_job(tmp_path: Path) -> None:
    comm = Comm([4, 5, 6, 7], 0xB, counts={2: {"AllReduce": 9}}, usual={"AllReduce": 11})
    for rank in range(8):
        host, pid = f"node{rank // 4}", 1000 + rank
        lines = [
            f"{host}:{pid}:{pid} [{rank % 4}] NCCL INFO ncclCommInitRank comm 0x55{rank} rank {rank} nranks 8 "
            f"cudaDev {rank % 4} nvmlDev {rank % 4} busId {rank:x}000 commId 0xa - Init COMPLETE"
        ]
        (tmp_path / f"nccl.{host}.{pid}.log").write_text("\n".join(lines) + "\n")
    found = said(tmp_path, Job([comm]), Job([comm]))
    assert (found.fault_class, ranks(found)) == ("missing_rank", [6])
    assert found.culprits[0].host == "node1"


@pytest.mark.parametrize(
    ("form", "version"),
    [("text", "2.24.3"), ("text", "2.26.2"), ("text", "2.30.7"), ("json", "2.28.9"), ("json", "2.30.7")],
)
def test_a_dead_process_is_named_with_its_rank(tmp_path: Path, form: str, version: str) -> None:
    found = said(tmp_path, job(dead=(5,), version=version), form=form)
    assert (found.fault_class, ranks(found)) == ("missing_rank", [5])
    assert (found.culprits[0].host, found.culprits[0].gpu, found.confidence) == ("10.0.0.2", 1, pytest.approx(0.8))
    assert "considers dead" in found.headline


@pytest.mark.parametrize("form", FORMS)
def test_a_process_that_does_not_answer_twice_is_surer(tmp_path: Path, form: str) -> None:
    once = said(tmp_path, job(silent=(5,)), form=form)
    twice = said(tmp_path, job(silent=(5,)), job(silent=(5,)), form=form)
    assert (ranks(once), ranks(twice)) == ([5], [5])
    assert (once.confidence, twice.confidence) == (pytest.approx(0.5), pytest.approx(0.7))


def test_dead_processes_without_communicators_may_be_the_end_of_the_job(tmp_path: Path) -> None:
    found = said(tmp_path, Job([], dead=(5,)), form="text")
    assert (found.fault_class, ranks(found), found.confidence) == ("missing_rank", [None], pytest.approx(0.5))
    assert found.culprits[0].host == "10.0.0.2"


def test_who_is_behind_gives_way_to_who_is_dead(tmp_path: Path) -> None:
    comm = Comm(list(range(8)), counts={1: {"AllReduce": 60}})
    found = said(tmp_path, job(comm, dead=(6,)), job(comm, dead=(6,)))
    assert ranks(found) == [6]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("status", ["INIT", "NOCOMM", "FINALIZE"])
def test_a_rank_with_another_status_is_named_when_that_does_not_change(tmp_path: Path, form: str, status: str) -> None:
    comm = Comm(list(range(8)), status={4: status})
    found = said(tmp_path, job(comm), form=form)
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    found = said(tmp_path, job(comm), job(comm), form=form)
    assert (found.fault_class, ranks(found)) == ("missing_rank", [4])
    assert status in found.headline


def test_aborted_ranks_are_nobodys_fault(tmp_path: Path) -> None:
    comm = Comm(list(range(8)), status={4: "ABORT"})
    found = said(tmp_path, job(comm), job(comm))
    assert (found.fault_class, found.culprits) == ("undetermined", ())
    assert any("aborted" in sentence for sentence in found.coverage)


def test_an_initialisation_that_is_not_complete_anywhere(tmp_path: Path) -> None:
    comm = Comm(list(range(8)), status=dict.fromkeys(range(8), "INIT"), usual={})
    for form in FORMS:
        found = said(tmp_path, job(comm), form=form)
        assert (found.fault_class, found.culprits) == ("undetermined", ())
        assert "initialisation" in found.headline


@pytest.mark.parametrize("form", FORMS)
def test_an_asynchronous_error_is_said_with_its_rank_and_blamed_on_nothing(tmp_path: Path, form: str) -> None:
    comm = Comm(list(range(8)), errors={3: 2, **dict.fromkeys((0, 1, 2), 6)})
    found = said(tmp_path, job(comm), form=form)
    assert (found.fault_class, ranks(found)) == ("undetermined", [3])
    assert "'System error'" in found.headline


def test_two_reports_of_one_moment_are_one(tmp_path: Path) -> None:
    found = said(tmp_path, behind(), behind(), apart_s=0)
    assert found.fault_class == "undetermined"


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(as_json(replace(behind(), time="2026-11-10 12:05:00")))
    (tmp_path / "b.json").write_text(as_json(replace(behind(3, 1, 2), time="2026-11-10 12:00:00")))
    (tmp_path / "c.json").write_text(as_json(replace(behind(), time="2026-11-10 12:06:00")))
    found = triage([str(tmp_path)])
    assert (found.fault_class, ranks(found)) == ("missing_rank", [7])


def test_a_watchdogs_answer_keeps_its_place_beside_reports_that_say_ok(tmp_path: Path) -> None:
    """nccl#1730: RAS says OK while the watchdog's time-out passes."""
    (tmp_path / "log.txt").write_text(
        text(job())
        + "[rank1]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=59, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=1800000) ran for 1800068 "
        "milliseconds before timing out.\n"
    )
    found = triage([str(tmp_path)])
    assert found.fault_class == "undetermined"
    assert "timed out" in found.headline
    assert "no rank is missing" in found.headline
