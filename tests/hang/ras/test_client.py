"""Asking a running job: the protocol, other programs on the port, time limits, the command line and a hung run."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.records import CRASH, HANG
from diag.errors import DiagError
from diag.hang.api import triage
from diag.hang.policy import NCCL_RAS
from diag.hang.ras.client import address_of, ask, ask_twice, is_address
from diag.hang.ras.read import read_reports
from diag.watch.hang_monitor import gather, take_back
from tests.command import diag
from tests.hang.ras.reports import Comm, as_json, job, text
from tests.hang.ras.server import endless, listening, says, silent, speaks
from tests.patience import PATIENCE_S

STUCK = job(Comm(list(range(8)), counts={7: {"AllReduce": 60}}))


def stuck(number: int, in_json: bool) -> str:
    return as_json(replace(STUCK, time=f"2026-11-10 12:00:{5 * number:02d}")) if in_json else text(STUCK)


def test_json_where_the_job_has_it_else_text() -> None:
    with listening(speaks(stuck)) as address:
        assert json.loads(ask(address).data)["nccl_version"] == "2.30.7"
    with listening(speaks(stuck, has_json=False)) as address:
        report = ask(address).data.decode()
    head, _, rest = report.partition("\n")
    assert rest == text(STUCK)
    assert f" NCCL RAS report of {address}" in head


@pytest.mark.parametrize("has_json", [True, False])
def test_two_reports_of_a_stuck_job_name_the_rank(has_json: bool) -> None:
    pause = 0.0 if has_json else 1.2  # text bears the time at which it was asked for
    with listening(speaks(stuck, has_json)) as address:
        reports = ask_twice(address, apart_s=pause)
    assert all(report.time_ns is not None for report in read_reports((), reports).reports)
    found = triage([], ras=reports)
    assert (found.fault_class, [culprit.rank for culprit in found.culprits]) == ("missing_rank", [7])
    assert found.confidence >= 0.5


def test_a_job_that_ends_between_two_reports_leaves_one() -> None:
    answered = iter([True])

    def once(connection: socket.socket) -> None:
        if next(answered, False):
            speaks(stuck)(connection)

    with listening(once) as address:
        assert len(ask_twice(address, apart_s=0.0)) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not NCCL RAS: 'HTTP/1.1 400 Bad Request'"),
        (b"\x1b]0;owned\x07\n", r"is not NCCL RAS: '\\x1b]0;owned\\x07'"),
        (b"", "is not NCCL RAS: ''"),
        (b"x" * 100_000, "is not NCCL RAS: 'xxx"),
        (b"SERVER PROTOCOL 2\nOK\nOK\n", "without a report"),
    ],
)
def test_other_programs_on_the_port(content: bytes, words: str) -> None:
    with listening(says(content)) as address, pytest.raises(DiagError) as caught:
        ask(address, answer_s=5)
    assert words in caught.value.message or "no NCCL RAS answers" in caught.value.message
    assert caught.value.message.isprintable()


def test_who_does_not_answer_or_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(silent) as address, pytest.raises(DiagError, match="did not answer within 1 s"):
        ask(address, answer_s=1.0)
    monkeypatch.setitem(vars(NCCL_RAS), "most_report_bytes", 8 << 20)
    with listening(endless) as address, pytest.raises(DiagError, match="larger than 8 MiB"):
        ask(address)


def test_nothing_listens() -> None:
    with listening(speaks(stuck)) as address:
        pass
    with pytest.raises(DiagError, match="no NCCL RAS answers") as caught:
        ask("127.0.0.1:1")
    assert "NCCL_RAS_ENABLE" in caught.value.hint
    assert address


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    assert address_of("") == ("localhost", 28028)
    assert address_of("node7") == ("node7", 28028)
    assert address_of(":5") == ("localhost", 5)
    assert address_of("[fe80::1%eth0]:5") == ("fe80::1%eth0", 5)
    monkeypatch.setenv("NCCL_RAS_ADDR", "10.0.0.1:1234")
    assert address_of("") == ("10.0.0.1", 1234)
    assert address_of("node7") == ("node7", 1234)
    for bad in ("a b:1", "host:99999", "host:0", "http://host:1", "\x1b[0m:1"):
        with pytest.raises(DiagError, match="is not an address"):
            address_of(bad)
    monkeypatch.setenv("NCCL_RAS_ADDR", "a:b:c")
    with pytest.raises(DiagError, match="NCCL_RAS_ADDR"):
        address_of("")
    assert [is_address(one) for one in ("a:1", "[::1]:1", "a", ":1", "logs/")] == [True, True, False, False, False]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.log").write_text("step 1 | loss 2.0\n")
    with listening(speaks(stuck)) as address:
        ended = diag("triage", "--ras", address, tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["verdict"]["fault_class"], found["culprits"][0]["rank"]) == ("missing_rank", 7)
    assert any("1 log read" in sentence for sentence in found["coverage"])
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    ended = diag("triage", "--ras")
    assert ended.returncode == 1
    assert "no NCCL RAS answers at 127.0.0.1:1" in ended.stderr
    assert diag("triage").returncode == 2


# diag run


@pytest.mark.parametrize("has_json", [True, False])
def test_a_hung_run_keeps_two_reports_and_a_crash_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_json: bool
) -> None:
    monkeypatch.setitem(vars(NCCL_RAS), "reports_apart_s", 1.1)
    layout = RunLayout(tmp_path / "run")
    layout.rank(0).folder.mkdir(parents=True)
    layout.manifest.write_text("{}")
    with listening(speaks(stuck, has_json)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        gather(layout, (), HANG, answer_s=0.1)
        assert len(list(layout.root.glob("nccl-ras-*.txt"))) == 2
        found = triage([str(layout.root)])
        assert (found.fault_class, [culprit.rank for culprit in found.culprits]) == ("missing_rank", [7])
        take_back(layout)
        assert not list(layout.root.glob("nccl-ras-*"))
        gather(layout, (), CRASH, number=2, answer_s=0.1)
        assert len(list(layout.root.glob("nccl-ras-*.txt"))) == 1


def test_a_run_without_nccl_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    monkeypatch.setitem(vars(NCCL_RAS), "reports_apart_s", 10 * PATIENCE_S)
    gather(RunLayout(tmp_path), (), HANG, answer_s=0.1)
    assert not list(tmp_path.glob("nccl-ras-*"))
