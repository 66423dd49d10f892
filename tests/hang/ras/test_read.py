"""Both forms of a report, in all versions, whole and damaged, alone and in longer logs."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from diag.hang.api import incomplete, triage
from diag.hang.policy import NCCL_RAS
from diag.hang.ras.read import overheard, read_reports
from diag.hang.ras.report import Report
from tests.forked import run_forked
from tests.hang.ras.reports import Comm, Job, as_json, job, text
from tests.patience import PATIENCE_S

ODD = Comm(list(range(8)), counts={7: {"AllReduce": 60}})


def read(path: Path, content: str | bytes) -> list[Report]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_reports([str(path)]).reports)


@pytest.mark.parametrize("version", ["2.24.3", "2.25.1", "2.26.2", "2.28.9", "2.30.7"])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_text_of_every_version(tmp_path: Path, version: str, verbose: bool) -> None:
    comm = Comm(list(range(8)), counts={7: {"AllReduce": 60}, 2: {"AllReduce": 0}}, status={1: "INIT", 3: "NOCOMM"})
    (report,) = read(tmp_path / "a", text(job(comm, silent=(4,), dead=(5,), version=version), verbose))
    assert (report.version, report.gpus, report.whole, report.json, report.timeouts) == (version, 8, True, False, 2)
    assert report.absent is not None
    assert [one.pid for one in report.absent.members] == [1004]
    assert report.dead is not None
    assert [one.pid for one in report.dead.members] == [1005]
    (found,) = report.comms.values()
    assert (found.hash, found.size) == ("78db921d1c117b4a", 8)
    (op,) = found.counts
    assert op == ("AllReduce" if version >= "2.26" else "")
    assert [(level.value, level.number) for level in found.counts[op]] == [(64, 3), (60, 1), (0, 1)]
    assert [[one.rank for one in level.members] for level in found.counts[op][1:]] == [[7], [2]]
    assert found.counts[op][1].members[0].host == "10.0.0.2"
    named = {level.value: [one.rank for one in level.members] for level in found.statuses}
    assert named["INIT"] == [1]
    assert named["NOCOMM" if version >= "2.26" else "UNKNOWN"] == [3]
    assert found.unreachable is not None
    assert found.unreachable.number == 2
    if verbose or version >= "2.26":
        assert [one.rank for one in found.unreachable.members] in ([4, 5], [])


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9", "2.29.7", "2.30.7"])
def test_json_of_every_version(tmp_path: Path, version: str) -> None:
    """The first two leave out a comma in missing_ranks."""
    printed = as_json(job(ODD, silent=(4, 5), version=version))
    if version < "2.29":
        with pytest.raises(json.JSONDecodeError):
            json.loads(printed)
    (report,) = read(tmp_path / "a", printed)
    assert (report.version, report.gpus, report.whole, report.json) == (version, 8, True, True)
    (found,) = report.comms.values()
    assert [(level.value, level.number) for level in found.counts["AllReduce"]] == [(64, 5), (60, 1)]
    assert found.unreachable is not None
    assert [one.rank for one in found.unreachable.members] == [4, 5]
    assert report.time_ns == 1_794_312_000_000_000_000


def test_uneven_nodes_have_another_summary(tmp_path: Path) -> None:
    (report,) = read(tmp_path / "a", text(job(Comm(list(range(10)), counts={3: {"AllReduce": 1}}), world=10)))
    assert report.gpus == 10


PREFIXES = {
    "kubernetes": "2026-11-10T12:00:01.123456789Z stdout F ",
    "ray": "(RayTrainWorker pid=619, ip=10.72.2.6) ",
    "mpirun": "[1,3]<stdout>:",
    "srun": " 3: ",
    "torchrun": "[default3]:",
    "kubectl": "[pod/job-0/main] ",
    "terminal": "\x1b[32m",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_a_report_in_a_longer_log_behind_prefixes(tmp_path: Path, name: str) -> None:
    other = [f"step {number} | loss 1.0" for number in range(3000)]
    lines = [*other, "$ ncclras -v", *text(job(ODD)).splitlines(), *other]
    (report,) = read(tmp_path / "a.log", "".join(f"{PREFIXES[name]}{line}\r\n" for line in lines))
    (comm,) = report.comms.values()
    assert [one.rank for one in comm.counts["AllReduce"][1].members] == [7]
    assert report.gpus == 8
    assert report.evidence.line == 3000 + 1 + 11


def test_reports_of_two_pods_whose_lines_alternate(tmp_path: Path) -> None:
    first, second = (
        text(job(Comm(list(range(8)), number, {rank: {"AllReduce": 1}}))) for number, rank in ((1, 3), (2, 5))
    )
    pairs = zip(first.splitlines(), second.splitlines(), strict=True)
    reports = read(tmp_path / "a.log", "".join(f"[pod/a-0/x] {one}\n[pod/b-0/x] {two}\n" for one, two in pairs))
    assert [[one.rank for one in comm.members.values()] for report in reports for comm in report.comms.values()] == [
        [3],
        [5],
    ]


def test_several_reports_in_one_file(tmp_path: Path) -> None:
    assert len(read(tmp_path / "a", text(job(ODD)) * 3)) == 3
    assert len(read(tmp_path / "b", as_json(job(ODD)) * 3)) == 3
    compact = json.dumps(json.loads(as_json(job(ODD))))
    assert len(read(tmp_path / "c", f"{compact}\n{compact}\n")) == 2


def test_what_nc_shows_of_the_protocol_may_stand_before_json(tmp_path: Path) -> None:
    assert len(read(tmp_path / "a", "SERVER PROTOCOL 2\nOK\n" + as_json(job(ODD)))) == 1


def test_a_part_of_a_report_that_somebody_pasted(tmp_path: Path) -> None:
    part = text(job(ODD)).partition("Warnings\n")[2]
    (report,) = read(tmp_path / "a", f"here is what I get:\n{part}")
    assert (report.whole, list(report.comms)) == (False, ["78db921d1c117b4a"])


def test_packed_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read(tmp_path / "a.gz", gzip.compress(text(job(ODD)).encode()))) == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_json(job(ODD)).encode())))
    found = triage(["-"])
    assert any("Rank 7" in one.note for one in found.guesses)
    with overheard(False) as nothing:
        assert nothing is None


def test_a_pipe_is_not_opened_again(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = read_reports([str(pipe)])
    assert found.reports == ()
    assert "standard input" in found.gaps[0][1]


def test_communicators_of_no_ranks_are_passed_over(tmp_path: Path) -> None:
    """nccl#1762: what NCCL 2.27.3 prints of memory that nobody filled."""
    good = text(job(ODD))
    bad = good.replace(
        "\nErrors\n",
        "    1         4         0         0         0         0    NOCOMM  INCOMPLETE,MISMATCH\n\nErrors\n",
        1,
    )
    bad = bad.replace(
        "======\n\nWarnings",
        "======\n\n#1-0 (93d7000200000001) INCOMPLETE\n  Missing communicator data from 255 ranks\n"
        "  Rank 1057455228 -- [process information not found]\n\nWarnings",
    )
    assert bad.count("\n") == good.count("\n") + 5
    (report,) = read(tmp_path / "a", bad)
    assert list(report.comms) == ["78db921d1c117b4a"]


# Hostile input


def test_json_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    whole = as_json(job(ODD, silent=(4,), version="2.28.9"))
    for end in range(40, len(whole) - 3, 97):
        (tmp_path / "a.json").write_text(whole[:end])
        found = triage([str(tmp_path)])
        assert (found.fault_class, found.culprits) == ("undetermined", ())
        if '"communicators_count"' in whole[:end]:
            assert any("cut off" in reason for _, reason in found.gaps)
            assert incomplete(found)


def test_text_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    whole = text(job(ODD, dead=(4,)))
    for end in range(0, len(whole), 23):
        (tmp_path / "a.log").write_text(whole[:end] or "\n")
        found = triage([str(tmp_path)])
        assert found.fault_class in ("undetermined", "missing_rank")
        assert {culprit.rank for culprit in found.culprits} <= {4, None}
    (tmp_path / "a.log").write_text(whole.partition("Group")[0])
    found = triage([str(tmp_path)])
    assert any("is cut off" in reason for _, reason in found.gaps)


HOSTILE = {
    "nested": '{"nccl_version": "2.30.7", "communicators_count": 1, "communicators": ' + "[" * 200_000,
    "nested objects": '{"communicators_count": 1, "communicators": [' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "]}",
    "another program": '{"communicators_count": 3, "communicators": {"a": [1, 2]}, "nccl_version": 7}',
    "wrong types": as_json(job(ODD)).replace('"rank": 7', '"rank": "seven"'),
    "huge numbers": as_json(job(ODD)).replace('"AllReduce": 60', '"AllReduce": 1' + "0" * 5000),
    "infinite": as_json(job(ODD)).replace('"AllReduce": 60', '"AllReduce": Infinity'),
    "ranks beyond the size": as_json(job(ODD)).replace('"rank": 7', '"rank": 4000000000'),
    "negative": as_json(job(ODD)).replace('"size": 8', '"size": -8'),
    "a size that nothing holds": as_json(job(ODD)).replace('"size": 8', '"size": 9000000000000000000'),
    "no hash": as_json(job(ODD)).replace("0x78db921d1c117b4a", "\x1b]0;owned\x07"),
    "bytes": '{"communicators_count": 1, "communicators": \udcff\udcfe}',
    "numbers in text": text(job(ODD)).replace("8 ranks", f"{'9' * 400} ranks").replace("Rank 7", f"Rank {'7' * 300}"),
    "rows": text(job(ODD)).replace("         8         8   RUNNING", "99999999999999999999999 8   RUNNING"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_reports_are_gaps(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text(HOSTILE[name], errors="surrogateescape")
    found = triage([str(tmp_path)])
    assert (found.fault_class, found.culprits) == ("undetermined", ())


def test_names_cannot_do_anything_to_a_terminal(tmp_path: Path) -> None:
    evil = "\\u001b]0;owned\\u0007\\u202e"
    printed = as_json(job(ODD, dead=(5,))).replace('"10.0.0.2"', f'"{evil}"').replace('"2.30.7"', f'"{evil}"')
    (tmp_path / "a.json").write_text(printed)
    ended = run_forked(["-m", "diag", "triage", str(tmp_path)], [os.environ], PATIENCE_S, kind="commands")
    assert ended.exit_code == 0, ended.stderr
    assert not set("\x1b\x07\u202e") & set(ended.stdout + ended.stderr)
    assert "missing_rank" in ended.stdout


def test_huge_files_are_refused_or_read_in_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.write(b'{"nccl_version": "2.30.7", "communicators_count": 1, "communicators": [')
        file.truncate(NCCL_RAS.most_report_bytes + (16 << 20))
    found = read_reports([str(huge)])
    assert found.reports == ()
    assert "more than 64 MiB" in found.gaps[0][1]
    begin = time.process_time()
    comm = Comm(list(range(4000)), counts={n: {"AllReduce": 1} for n in range(1500)})
    (report,) = read(tmp_path / "many.txt", text(Job([comm], world=4000)))
    (found_comm,) = report.comms.values()
    assert len(found_comm.counts["AllReduce"][1].members) == 1500
    monkeypatch.setitem(vars(NCCL_RAS), "most_report_lines", 5000)
    many = tmp_path / "very-many.txt"
    many.write_text(text(Job([comm], world=4000)) * 20)
    found = read_reports([str(many)])
    assert 2 < len(found.reports) < 6
    assert "the first 5,000 lines" in found.gaps[0][1]
    assert time.process_time() - begin < 60
