"""The exposition, read back by Prometheus' own parser, and served to a scraper while the run grows."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from diag.api import open_run
from diag.collectors.text import visible_lines
from diag.errors import DiagError
from diag.export import definitions as of
from diag.export.definitions import METRICS, Sample
from diag.export.formats import serving, to_text
from diag.export.run_metrics import RunMetrics
from diag.serve.guard import HEADERS
from diag.show.json import save
from tests.export.runs import NOW_NS, cut, written
from tests.patience import PATIENCE_S

GOLDEN = """\
# HELP diag_run_info Labels that describe the run; always 1.
# TYPE diag_run_info gauge
diag_run_info{device="cpu",run="a \\"b\\" \\\\ c\\nd"} 1.0
# HELP diag_steps_total Steps finished.
# TYPE diag_steps_total counter
diag_steps_total{rank="0"} 3.0
diag_steps_total{rank="1"} 2.0
# HELP diag_step_part_seconds_total Time in finished steps, by part; parts add up to the step.
# TYPE diag_step_part_seconds_total counter
diag_step_part_seconds_total{part="data_wait",rank="0"} 0.25
"""


def test_the_text() -> None:
    samples = [
        Sample(of.STEPS, {of.RANK: "0"}, 3),
        Sample(of.PART_SECONDS, {of.RANK: "0", of.PART: "data_wait"}, 0.25),
        Sample(of.STEPS, {of.RANK: "1"}, 2),
        Sample(of.RUN_INFO, {of.RUN: 'a "b" \\ c\nd', "device": "cpu"}, 1),
    ]
    assert to_text(samples) == GOLDEN


def read_back(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]


@given(st.text(), st.text(), st.floats(allow_nan=False))
def test_any_label_comes_back(run: str, host: str, value: float) -> None:
    # The library writes what UTF-8 cannot hold as it must, with a question mark or an error: names of folders can.
    labels = {of.RUN: run.encode("utf-8", "replace").decode(), of.HOST: host.encode("utf-8", "replace").decode()}
    shown = {name: visible_lines(text) for name, text in labels.items()}  # a terminal may be what reads it
    assert read_back(to_text([Sample(of.LAST_STEP, labels, value)])) == [("diag_last_step", shown, value)]


def test_a_run_s_exposition_holds_every_sample_once(tmp_path: Path) -> None:
    samples = RunMetrics(written(tmp_path / "r").root).read(NOW_NS)
    found = read_back(to_text(samples))
    assert len(found) == len(samples)
    found_by = {(name, frozenset(labels.items())): value for name, labels, value in found}
    assert found_by == {(s.metric.name, frozenset(s.labels.items())): s.value for s in samples}
    families = {family.name: family for family in text_string_to_metric_families(to_text(samples))}
    for metric in {sample.metric for sample in samples}:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.value, metric.help)
    assert {metric.name for metric in METRICS} > {name for name, _, _ in found}


@contextmanager
def served(run: Path, token: str | None = None) -> Iterator[str]:
    with serving(RunMetrics(run), "127.0.0.1", 0, token=token, allowed_hosts=["metrics.example.org"]) as (port, _):
        yield f"http://127.0.0.1:{port}/metrics"


def scraped(url: str) -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        found = read_back(answer.read().decode())
    return {name: value for name, labels, value in found if labels.get("rank") == "1" and "part" not in labels}


def test_each_scrape_has_what_is_new(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole" / "r", steps=8)
    grown = type(whole)(tmp_path / "grown" / "r")
    grown.root.mkdir(parents=True)
    cut(whole, grown, 0.5)
    with served(grown.root) as url:
        first = scraped(url)
        assert 1 <= first["diag_steps_total"] < 8
        assert scraped(url)["diag_steps_total"] == first["diag_steps_total"]
        cut(whole, grown, 1)
        last = scraped(url)
        assert last["diag_steps_total"] == 8
        assert last["diag_tokens_total"] == 8 * 512
        assert last["diag_step_seconds_total"] > first["diag_step_seconds_total"]


def test_prometheus_itself_asks_for_openmetrics(tmp_path: Path) -> None:
    """Its parser takes nothing that is not to the letter."""
    layout = written(tmp_path / "r", steps=12)
    save(open_run(layout.root))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with served(layout.root) as url:
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        with opener.open(request, timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
    found = {s.name for family in openmetrics.text_string_to_metric_families(text) for s in family.samples}
    assert found == {s.metric.name for s in RunMetrics(layout.root).read(NOW_NS)}


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    run = written(tmp_path / "r", steps=1).root
    with served(run) as url, pytest.raises(DiagError, match="cannot listen on port"):
        serving(RunMetrics(run), "127.0.0.1", int(url.rsplit(":", 1)[1].split("/")[0])).__enter__()


def test_nothing_listens_after_ctrl_c(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), served(written(tmp_path / "r", steps=1).root) as url:
        raise KeyboardInterrupt
    address = urlsplit(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port)).close()


def asked(url: str, **headers: str) -> tuple[int, str]:
    address = urlsplit(url)
    connection = HTTPConnection(address.hostname or "", address.port or 80, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"{address.path}?{address.query}", headers=headers)
        answer = connection.getresponse()
        assert set(HEADERS) <= {(name.lower(), value) for name, value in answer.getheaders()}
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/", "/favicon.ico", "//elsewhere"])
def test_strangers_are_refused(tmp_path: Path, path: str) -> None:
    with served(written(tmp_path / "r", steps=1).root) as url:
        url = url.replace("/metrics", path)
        assert asked(url)[0] == 200
        assert asked(url, Host="metrics.example.org:9123")[0] == 200
        for refused in (asked(url, Host="evil.example.org"), asked(url, Origin="http://evil.example.org")):
            assert refused[0] == 403
            assert "diag_" not in refused[1]


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with served(written(tmp_path / "r", steps=1).root, "secret") as url:
        assert asked(url, Authorization="Bearer secret")[0] == 200
        assert asked(f"{url}?token=secret")[0] == 200
        for refused in (asked(url), asked(url, Authorization="Bearer other"), asked(f"{url}?token=other")):
            assert refused[0] == 401
            assert "diag_" not in refused[1]
            assert "Authorization: Bearer TOKEN" in refused[1]


def test_a_scraper_that_hangs_up_is_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with served(written(tmp_path / "r", steps=1).root) as url:
        address = urlsplit(url)
        for sent in (b"GET /metrics HTTP/1.1\r\nHost: loc", b"\0\r\n\r\n"):
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends with a reset
                connection.sendall(sent)
        assert asked(url)[0] == 200
    assert "Traceback" not in capfd.readouterr().err
