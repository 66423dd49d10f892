"""`diag export` and `diag metrics` as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.command import diag, diag_process
from tests.export.runs import written
from tests.forked import forked_python
from tests.patience import PATIENCE_S

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "fsdp2-slow-loader-rank1"


def names(text: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_a_sample_for_prometheus() -> None:
    ended = diag("export", SAMPLE, "--format", "prometheus")
    assert ended.returncode == 0, ended.stderr
    assert {"diag_steps_total", "diag_tokens_total", "diag_heartbeat_age_seconds"} <= names(ended.stdout)
    assert 'part="data_wait",rank="1"' in ended.stdout
    summary = diag("export", SAMPLE, "--format", "prometheus", "--summary").stdout
    assert names(summary) == names(ended.stdout)
    assert "rank=" not in summary
    one = diag("export", SAMPLE, "--format", "prometheus", "--ranks", "1-1").stdout
    assert 'rank="1"' in one
    assert 'rank="0"' not in one


def test_files_are_replaced_or_appended_to(tmp_path: Path) -> None:
    text, lines = tmp_path / "diag.prom", tmp_path / "diag.jsonl"
    for _ in range(2):
        assert diag("export", SAMPLE, "--format", "prometheus", "-o", text).returncode == 0
        # The run has ended: there is nothing to follow.
        assert (
            diag_process("export", SAMPLE, "--format", "jsonl", "-o", lines, "--follow", timeout=PATIENCE_S).returncode
            == 0
        )
    assert text.read_text().count("# TYPE diag_steps_total counter") == 1
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len({row["time_unix_ns"] for row in rows}) == 2


def test_a_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    layout, lines = written(tmp_path / "r", steps=2), tmp_path / "lines.jsonl"
    beat = json.loads(layout.rank(0).heartbeat.read_bytes())
    layout.rank(0).heartbeat.write_text(json.dumps({**beat, "unix_ns": time.time_ns()}))
    command = [*forked_python(), "-m", "diag", "export", str(layout.root), "--format", "jsonl", "-o", str(lines)]
    with subprocess.Popen([*command, "--follow", "--every", "0.2"]) as process:
        while readings(lines) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        manifest = json.loads(layout.manifest.read_bytes())
        layout.manifest.write_text(json.dumps({**manifest, "exit_code": 0}))
        assert process.wait(timeout=PATIENCE_S) == 0
    assert '"diag_run_exit_code"' in lines.read_text()


def readings(lines: Path) -> int:
    text = lines.read_text() if lines.exists() else ""
    return len({json.loads(line)["time_unix_ns"] for line in text.splitlines(keepends=True) if line.endswith("\n")})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/dev", "--format", "jsonl"], 1, "is not a run directory"),
        (["/nowhere", "--format", "tensorboard"], 1, "no such file"),
        ([str(SAMPLE), "--format", "wandb", "--follow"], 2, "cannot be combined with wandb"),
        ([str(SAMPLE), "--format", "prometheus", "--follow"], 2, "needs a file"),
        ([str(SAMPLE), "--format", "prometheus", "--ranks", "0-"], 2, "is not a rank"),
        ([str(SAMPLE), "--format", "jsonl", "-o", "/dev/null/x"], 1, "cannot be written"),
        ([str(SAMPLE), "--format", "prometheus", "-o", "/dev/null/x"], 1, "cannot be written"),
    ],
)
def test_mistakes(arguments: list[str], code: int, message: str) -> None:
    ended = diag("export", *arguments)
    assert ended.returncode == code
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_metrics_are_served_until_it_is_ended(tmp_path: Path) -> None:
    run = written(tmp_path / "r", steps=3).root
    command = [sys.executable, "-m", "diag", "metrics", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split(": ")[1].split(" ")[0]
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=PATIENCE_S) as answer:
                assert "diag_steps_total" in names(answer.read().decode())
        finally:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert url.startswith("http://127.0.0.1:")


def test_the_dashboard_is_printed() -> None:
    ended = diag_process("metrics", "--grafana")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["title"].startswith("diag")
    assert diag_process("metrics").returncode == 2


@pytest.mark.parametrize(
    ("options", "variable", "with_token", "without", "said"),
    [
        (["--host", "0.0.0.0"], "", True, 401, "Prometheus sends this token"),
        (["--host", "0.0.0.0"], "chosen", False, 401, ""),
        (["--host", "0.0.0.0", "--no-token"], "", False, 200, "No token is required: anyone who can reach 0.0.0.0"),
        (["--token"], "", True, 401, "Prometheus sends this token"),
        ([], "chosen", False, 401, ""),
        (["--no-token"], "chosen", False, 200, "No token is required: every user of this machine"),
    ],
)
def test_who_may_scrape(
    tmp_path: Path, options: list[str], variable: str, with_token: bool, without: int, said: str
) -> None:
    run = written(tmp_path / "r", steps=3).root
    command = [*forked_python(), "-m", "diag", "metrics", str(run), "--port", "0", *options]
    environment = {**os.environ, "DIAG_METRICS_TOKEN": variable}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = urlsplit(process.stdout.readline().split(": ")[1].split(" ")[0])
            assert url.query.startswith("token=") == with_token
            assert url.hostname == (socket.gethostname() if "--host" in options else "127.0.0.1")
            assert status(url.port, "") == without
            assert status(url.port, variable or url.query.removeprefix("token=")) == 200
        finally:
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert err.startswith(said)
    assert bool(err) == bool(said)


def status(port: int | None, token: str) -> int:
    connection = HTTPConnection("127.0.0.1", port or 80, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_token_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_METRICS_TOKEN", "two words")
    ended = diag_process("metrics", SAMPLE, "--port", "0")
    assert ended.returncode == 2
    assert "DIAG_METRICS_TOKEN" in ended.stderr
    assert "two words" not in ended.stderr
    ended = diag_process("metrics", SAMPLE, "--port", "0", "--no-token", "--allow-host", "http://x/")
    assert (ended.returncode, "is no host name" in ended.stderr) == (2, True)
