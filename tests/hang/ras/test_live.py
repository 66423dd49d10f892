"""A run that is watched: what its NCCL RAS reports, what it says where nobody answers, and whom it asks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from diag.hang.policy import NCCL_RAS
from diag.hang.ras import client, live
from diag.hang.ras.live import Row, Seen, Watch, recorded, recorded_ns
from tests.hang.ras.reports import Comm, Job, as_json, job, text, write_run
from tests.hang.ras.server import endless, listening, says, silent, speaks
from tests.patience import PATIENCE_S

STUCK = job(Comm(list(range(8)), counts={7: {"AllReduce": 60}}))
GONE = job(Comm(list(range(8))), silent=(3,))
WELL = job()


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)


def answers(*states: Job) -> Callable[[int, bool], str]:
    """One after the other, then the last one again, 20 s apart."""

    def answer(number: int, in_json: bool) -> str:
        state = states[min(number, len(states)) - 1]
        at = f"2026-11-10 12:{number // 3:02d}:{number % 3 * 20:02d}"
        return as_json(replace(state, time=at)) if in_json else text(state)

    return answer


def asked(watch: Watch, times: int = 1) -> Seen:
    """What is seen after so many answers."""
    for _ in range(times):
        watch.look()
        thread = watch._thread
        assert thread is not None
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    watch._due_s = float("inf")
    return watch.look()


def watched(root: Path, serve: Callable[[socket.socket], None], times: int = 1, run: Job = STUCK) -> Seen:
    layout = write_run(run, root / "run")
    with listening(serve) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", address)
        return asked(Watch(layout.root, every_s=0.0, again_s=0.0), times)


def odd(seen: Seen) -> list[Row]:
    return [row for row in seen.rows if row.trouble or "launched" in row.says]


@pytest.mark.parametrize("has_json", [True, False])
def test_counts_that_differ_by_rank(tmp_path: Path, has_json: bool) -> None:
    seen = watched(tmp_path, speaks(answers(STUCK), has_json))
    assert not seen.why
    assert "launched fewer collectives than the others: AllReduce 60, not 64" in seen.summary
    assert not seen.trouble, "a single report is a snapshot of a running job"
    behind = next(row for row in seen.rows if "60 launched" in row.says)
    assert (behind.ranks.replace("\u00a0", " "), behind.still) == ("rank 7", "one report so far")
    assert "GPU 3" in behind.host
    assert any("64 launched" in row.says for row in seen.rows)
    if not has_json:
        assert any(line.startswith("#0-0 (78db921d1c117b4a) MISMATCH") for line in seen.lines)


def test_counts_that_stand_still_are_trouble_after_a_while(tmp_path: Path) -> None:
    seen = watched(tmp_path, speaks(answers(STUCK)), times=3)
    assert seen.trouble
    behind = next(row for row in seen.rows if "60 launched" in row.says)
    assert (behind.still, behind.host) == ("unchanged for 40 s", f"{socket.gethostname()}, GPU 3")


def test_text_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is that of the question, in whole seconds."""
    at = iter(range(0, 600, 20))
    monkeypatch.setattr(client.time, "strftime", lambda *_: f"2026-11-10T12:00:{next(at):02d}Z")
    seen = watched(tmp_path, speaks(answers(STUCK), has_json=False), times=2)
    assert seen.trouble
    assert next(row for row in seen.rows if "60 launched" in row.says).still == "unchanged for 20 s"


def test_counts_that_change_are_a_running_job(tmp_path: Path) -> None:
    later = job(Comm(list(range(8)), usual={"AllReduce": 90}, counts={7: {"AllReduce": 89}}))
    seen = watched(tmp_path, speaks(answers(STUCK, later)), times=2)
    assert "makes progress" in seen.summary
    assert not seen.trouble
    assert {row.still for row in seen.rows} == {"changing"}


def test_a_straggler_stands_while_the_others_go_on(tmp_path: Path) -> None:
    later = job(Comm(list(range(8)), usual={"AllReduce": 90}, counts={7: {"AllReduce": 60}}))
    seen = watched(tmp_path, speaks(answers(STUCK, later)), times=2)
    still = {row.says: row.still for row in seen.rows}
    assert still == {
        "AllReduce: 90 launched": "changing",
        "AllReduce: 60 launched": "unchanged, while others make progress",
    }


def test_equal_counts_that_stand_still(tmp_path: Path) -> None:
    seen = watched(tmp_path, speaks(answers(WELL)), times=2)
    assert [(row.says, row.still) for row in seen.rows] == [("equal counts: AllReduce 64", "unchanged for 20 s")]
    assert not seen.trouble, "a long step looks the same"


@pytest.mark.parametrize("has_json", [True, False])
def test_a_rank_that_does_not_answer(tmp_path: Path, has_json: bool) -> None:
    seen = watched(tmp_path, speaks(answers(GONE), has_json))
    assert seen.trouble
    assert "RAS gets no answer from" in seen.summary
    rows = odd(seen)
    assert [(row.ranks.replace("\u00a0", " "), row.says) for row in rows] == [("rank 3", "does not answer")]
    assert rows[0].host == f"{socket.gethostname()}, GPU 3"
    assert any("time-out" in line for line in seen.lines)


@pytest.mark.parametrize("has_json", [True, False])
def test_a_rank_that_is_considered_dead(tmp_path: Path, has_json: bool) -> None:
    seen = watched(tmp_path, speaks(answers(job(Comm(list(range(8))), dead=(3,))), has_json))
    assert seen.trouble
    assert "considers it dead" in odd(seen)[0].says


@pytest.mark.parametrize("has_json", [True, False])
def test_errors_that_nccl_reports(tmp_path: Path, has_json: bool) -> None:
    seen = watched(tmp_path, speaks(answers(job(Comm(list(range(8)), errors={5: 2}))), has_json))
    assert seen.trouble
    assert "NCCL reports an asynchronous error: System error" in {row.says for row in seen.rows}


def test_ranks_of_a_smaller_communicator_are_those_of_the_job(tmp_path: Path) -> None:
    state = Job([Comm(list(range(8))), Comm([4, 5, 6, 7], hash=0xABC, counts={1: {"AllReduce": 9}})])
    seen = watched(tmp_path, speaks(answers(state)))
    behind = next(row for row in seen.rows if ": 9 launched" in row.says)
    assert behind.communicator.replace("\u00a0", " ") == "0x0000000000000abc, 4 ranks"
    assert behind.ranks.replace("\u00a0", " ") == "rank 5"
    assert seen.summary.startswith(
        "Rank 1 (process 1005 on 10.0.0.2, GPU 1) of communicator 0x0000000000000abc of 4 ranks"
    )
    assert seen.summary.endswith("AllReduce 9, not 64. In the job: rank 5.")


def test_many_communicators_have_a_bounded_table(tmp_path: Path) -> None:
    state = Job([Comm(list(range(8)), hash=n + 1, counts={7: {"AllReduce": 60}}) for n in range(100)])
    seen = watched(tmp_path, speaks(answers(state)))
    assert (len(seen.rows), seen.more_rows, len(seen.lines)) == (
        NCCL_RAS.most_live_rows,
        200 - NCCL_RAS.most_live_rows,
        NCCL_RAS.most_live_lines,
    )


def test_reports_of_a_long_standstill_are_few(tmp_path: Path) -> None:
    layout = write_run(STUCK, tmp_path / "run")
    with listening(speaks(answers(STUCK))) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", address)
        watch = Watch(layout.root, every_s=0.0)
        seen = asked(watch, times=12)
    assert len(watch._reports) == 5
    assert next(row for row in seen.rows if "60 launched" in row.says).still == "unchanged for 220 s"


# Nobody answers as RAS does


def test_a_server_that_never_answers_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = write_run(STUCK, tmp_path / "run")
    with listening(silent) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        monkeypatch.setitem(vars(NCCL_RAS), "live_answer_s", 10 * PATIENCE_S)
        watch = Watch(layout.root)
        assert [watch.look().why, watch.look(0.1).why] == ["Querying NCCL RAS."] * 2
        monkeypatch.setitem(vars(NCCL_RAS), "live_answer_s", 1.0)
        assert "did not answer within 1 s" in asked(Watch(layout.root)).why


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not NCCL RAS"),
        (b"SERVER PROTOCOL 2\nOK\nOK\n", "closed the connection without a report"),
        (b'SERVER PROTOCOL 2\nOK\nOK\n{"nccl_version": \x00', "cannot be read"),
        (b"SERVER PROTOCOL 2\nOK\nOK\nnothing to see here\n", "cannot be read"),
    ],
)
def test_a_server_that_closes_at_once_or_says_something_else(tmp_path: Path, content: bytes, words: str) -> None:
    seen = watched(tmp_path, says(content))
    assert words in seen.why or "no NCCL RAS answers" in seen.why
    assert "\n" not in seen.why
    assert not seen.source


def test_a_huge_answer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(NCCL_RAS), "most_report_bytes", 8 << 20)
    assert "larger than 8 MiB" in watched(tmp_path, endless).why


def test_no_server_and_the_last_report_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = write_run(STUCK, tmp_path / "run")
    watch = Watch(layout.root, every_s=0.0, again_s=0.0)
    with listening(speaks(answers(STUCK))) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        watch.look(PATIENCE_S)
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    seen = asked(watch)
    assert "no NCCL RAS answers at 127.0.0.1:1" in seen.why
    assert any("60 launched" in row.says for row in seen.rows)


def test_asked_at_most_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def count(number: int, in_json: bool) -> str:
        requests.append(number)
        return answers(WELL)(number, in_json)

    layout = write_run(WELL, tmp_path / "run")
    with listening(speaks(count)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        watch = Watch(layout.root)
        for _ in range(5):
            watch.look(PATIENCE_S)
    assert requests == [1]


# Whom it asks


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def ask(address: str, answer_s: float) -> client.Asked:
        found.append(address)
        raise client.DiagError("refused")

    monkeypatch.setattr(live, "ask", ask)
    return found


@pytest.mark.parametrize(
    ("of_manifest", "device", "words"),
    [
        ({"backend": "gloo"}, "cpu", "its backend is gloo"),
        ({"backend": None}, "cpu", "its ranks train on CPUs"),
        ({"backend": "cpu:gloo,cuda:nccl"}, "NVIDIA H100", "refused"),
        ({"backend": None}, "NVIDIA H100", "refused"),
    ],
)
def test_runs_without_nccl_are_not_asked(
    tmp_path: Path, nobody_is_asked: list[str], of_manifest: dict[str, object], device: str, words: str
) -> None:
    seen = asked(Watch(write_run(WELL, tmp_path / "run", device=device, **of_manifest).root))
    assert words in seen.why
    assert nobody_is_asked == (["localhost:28028"] if words == "refused" else [])


def test_another_host_is_asked_only_where_its_ras_listens_for_others(
    tmp_path: Path, nobody_is_asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(WELL, tmp_path / "run", host="node7").root
    assert "NCCL RAS listens on the localhost of node7" in asked(Watch(run)).why
    assert nobody_is_asked == []
    monkeypatch.setenv("NCCL_RAS_ADDR", "0.0.0.0:1234")
    asked(Watch(run))
    monkeypatch.setenv("NCCL_RAS_ADDR", "head:5")
    asked(Watch(run))
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost:6")  # a tunnel
    asked(Watch(run))
    assert nobody_is_asked == ["node7:1234", "head:5", "localhost:6"]


@pytest.mark.parametrize("host", ["http://evil/", "a b", "-x", "\x1b[2J", "x" * 300, ""])
def test_a_host_that_is_none_is_not_asked(
    tmp_path: Path, nobody_is_asked: list[str], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "0.0.0.0:1234")
    run = write_run(WELL, tmp_path / "run", host=host or "\x00").root
    assert "no host that can be queried" in asked(Watch(run)).why
    assert nobody_is_asked == []


def test_few_of_many_hosts_are_asked(
    tmp_path: Path, nobody_is_asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "[::]:9")
    layout = write_run(WELL, tmp_path / "run", host="node0")
    for rank, files in layout.ranks().items():
        files.identity.write_text(files.identity.read_text().replace("node0", f"node{rank}"))
    asked(Watch(layout.root))
    assert nobody_is_asked == ["node0:9", "node1:9", "node2:9"]


def test_a_wrong_address_is_a_sentence(
    tmp_path: Path, nobody_is_asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "a:b:c")
    assert "is not an address" in asked(Watch(write_run(WELL, tmp_path / "run").root)).why
    monkeypatch.setenv("NCCL_RAS_ADDR", f"{'x' * 100}:1")
    monkeypatch.setattr(live, "ask", client.ask)
    seen = asked(Watch(write_run(WELL, tmp_path / "run").root))
    assert "is not an address" in seen.why or "no NCCL RAS answers" in seen.why


def test_another_job_on_the_port(tmp_path: Path) -> None:
    layout = write_run(STUCK, tmp_path / "run")
    for files in layout.ranks().values():
        files.identity.write_text(files.identity.read_text().replace('"pid": 1', '"pid": 9'))
    with listening(speaks(answers(STUCK))) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("NCCL_RAS_ADDR", address)
        assert "answers for another job" in asked(Watch(layout.root)).why


@pytest.mark.parametrize(
    ("variables", "words"),
    [({"NCCL_RAS_ENABLE": "0"}, "runs with NCCL_RAS_ENABLE=0"), ({"NCCL_RAS_ADDR": "localhost:7"}, "refused")],
)
def test_the_job_s_own_environment(
    tmp_path: Path, nobody_is_asked: list[str], variables: dict[str, str], words: str
) -> None:
    layout = write_run(WELL, tmp_path / "run")
    environment = {**os.environ, **variables, "DIAG_RUN_DIR": str(layout.root.resolve())}
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        identity = layout.rank(0).identity
        identity.write_text(identity.read_text().replace('"pid": 1000', f'"pid": {process.pid}'))
        assert words in asked(Watch(layout.root)).why
        process.communicate(b"\n")
    assert nobody_is_asked == (["localhost:7"] if words == "refused" else [])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("node1:10:10 [0] NCCL INFO NCCL version 2.21.5+cuda12.4", "NCCL 2.21 has no RAS"),
        ("node1:10:10 [0] NCCL INFO NCCL_RAS_ENABLE set by environment to 0.", "runs with NCCL_RAS_ENABLE=0"),
        ("node1:10:10 [0] NCCL INFO NCCL version 2.27.5+cuda12.9", "refused"),
    ],
)
def test_the_log_says_why_nobody_listens(tmp_path: Path, nobody_is_asked: list[str], line: str, words: str) -> None:
    layout = write_run(WELL, tmp_path / "run")
    layout.rank(0).nccl_log.write_text(f"{line}\n")
    assert words in asked(Watch(layout.root)).why


# What a run keeps


def test_the_last_report_that_a_run_keeps(tmp_path: Path) -> None:
    layout = write_run(STUCK, tmp_path / "run", exit_code=1)
    assert recorded(layout.root) is None
    assert recorded_ns(layout.root) == 0
    for number in (1, 2):
        at = replace(STUCK, time=f"2026-11-10 12:00:{30 * number - 30:02d}")
        layout.nccl_ras("node1", number).write_text(as_json(at))
    seen = recorded(layout.root)
    assert seen is not None
    assert recorded_ns(layout.root) > 0
    assert seen.trouble
    assert next(row for row in seen.rows if "60 launched" in row.says).still == "unchanged for 30 s"
    assert seen.at_s is not None
    assert time.strftime("%H:%M:%S", time.gmtime(seen.at_s)) == "12:00:30"


def test_a_link_out_of_the_run_is_no_report(tmp_path: Path) -> None:
    layout = write_run(STUCK, tmp_path / "run", exit_code=1)
    (tmp_path / "secret").write_text(as_json(STUCK))
    layout.nccl_ras("node1", 1).symlink_to(tmp_path / "secret")
    assert recorded(layout.root) is None
