"""Messages: to a command and to a real HTTP server; a notifier that fails or hangs changes nothing."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from diag import processes
from diag.collectors.layout import RunLayout
from diag.collectors.manifest import update_manifest
from diag.collectors.records import Heartbeat
from diag.errors import DiagError
from diag.watch import notify
from diag.watch.events import Event, Level
from diag.watch.notify import Notifier, addresses, without_addresses
from diag.watch.policy import WATCHING
from tests.app.runs import write_run
from tests.ports import free_port

STUCK = Event("stuck", Level.CRITICAL, "The training is stuck: rank 1 is silent.", "/runs/r", 62, (1,), 1)
OVER = Event("stuck-over", Level.INFO, "The training goes on.", "/runs/r", 63, (), 2)


def told(events: list[Event], command: str = "", urls: tuple[str, ...] = ()) -> list[str]:
    said: list[str] = []
    notifier = Notifier(urls, command, said.append)
    for event in events:
        notifier.tell(event)
    notifier.stop()
    return said


def test_a_command_gets_the_event_as_json(tmp_path: Path) -> None:
    out = tmp_path / "events"
    assert told([STUCK], f"cat >> {shlex.quote(str(out))}") == []
    assert json.loads(out.read_text()) == STUCK.to_dict() | {"ranks": [1]}


def test_a_command_that_fails_is_said_once() -> None:
    assert told([STUCK, STUCK], "exit 7") == ["--on-event: the message was not delivered (exit code 7)"]
    assert told([STUCK], "./no-such-file") == ["--on-event: the message was not delivered (the shell does not find it)"]


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def __getattr__(self, name: str) -> object:
            return 0.2 if name == "notify_s" else getattr(WATCHING, name)

    short = Short()
    monkeypatch.setattr(notify, "WATCHING", short)
    said: list[str] = []
    notifier = Notifier((), "sleep 600", said.append)
    notifier._deliver([STUCK])
    assert said == ["--on-event: the message was not delivered (no end within 0 s)"]
    notifier.stop()


def test_what_is_over_before_it_was_sent_is_not_sent() -> None:
    assert notify._added([STUCK], OVER) == []
    assert notify._added([], OVER) == [OVER]


def test_addresses_come_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "require", lambda *_: None)
    monkeypatch.setenv("DIAG_NOTIFY", "json://one/ json://two/")
    file = tmp_path / "urls"
    file.write_text("# people\nslack://token/\n\n")
    assert addresses([str(file)]) == ["json://one/", "json://two/", "slack://token/"]
    with pytest.raises(DiagError, match="cannot be read"):
        addresses([str(tmp_path / "none")])


def test_addresses_need_apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    with pytest.raises(DiagError, match="Apprise"):
        addresses(["json://localhost/"])


def test_addresses_are_not_recorded() -> None:
    argv = ["run", "--notify", "slack://secret/", "--nproc", "2", "--notify=json://secret/", "train.py", "--x", "1"]
    assert without_addresses(argv) == ["run", "--nproc", "2", "train.py", "--x", "1"]


@pytest.fixture
def server() -> Iterator[tuple[int, list[bytes]]]:
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http.server_port, received
    http.shutdown()


def test_a_message_arrives_at_a_server(server: tuple[int, list[bytes]]) -> None:
    pytest.importorskip("apprise")
    port, received = server
    assert told([STUCK], urls=(f"json://localhost:{port}/",)) == []
    message = json.loads(received[0])
    assert (message["type"], message["message"]) == ("failure", STUCK.text)


def test_a_server_that_is_not_there_is_said_without_its_address(server: tuple[int, list[bytes]]) -> None:
    pytest.importorskip("apprise")
    assert told([STUCK], urls=("json://user:secret@localhost:1/",)) == [
        "--notify: the message was not delivered (the service did not take the message)"
    ]


def test_a_message_arrives_by_mail_and_its_password_is_nowhere_on_disk(tmp_path: Path) -> None:
    """The whole of ``diag watch``, with a stuck run; the server is a real one."""
    pytest.importorskip("apprise")
    controllers, handlers = pytest.importorskip("aiosmtpd.controller"), pytest.importorskip("aiosmtpd.handlers")
    smtp = pytest.importorskip("aiosmtpd.smtp")
    mailbox: list[bytes] = []

    class Inbox(handlers.AsyncMessage):  # type: ignore[misc, name-defined]
        async def handle_message(self, message: Any) -> None:
            parts = (part.get_payload(decode=True) for part in message.walk() if not part.is_multipart())
            mailbox.append(b" ".join(b" ".join(parts).split()))

    def login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> Any:
        return smtp.AuthResult(success=data.password == SECRET.encode())

    port = free_port()
    server = controllers.Controller(
        Inbox(), hostname="127.0.0.1", port=port, authenticator=login, auth_required=True, auth_require_tls=False
    )
    server.start()
    run = stuck_run(tmp_path / "run")
    url = f"mailto://me:{SECRET}@127.0.0.1:{port}?mode=insecure&from=diag@example.org&to=you@example.org"
    try:
        done = processes.run(
            processes.python("-m", "diag", "watch", str(run), "--once"),
            {**os.environ, "DIAG_NOTIFY": url, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
    finally:
        server.stop()
    assert "The training is stuck" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert len(mailbox) == 1, done.stderr
    assert b"rank 1 raised RuntimeError" in mailbox[0]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


SECRET = "x7Rq-not-to-be-written"


def stuck_run(folder: Path) -> Path:
    layout = RunLayout(write_run(folder, ranks=2))
    update_manifest(layout, exit_code=None)
    end_ns = max(json.loads(line)["end_ns"] for line in layout.rank(0).steps.read_text().splitlines())
    for rank, phase in enumerate(("backward", "failed: RuntimeError")):
        beat = Heartbeat(time.time_ns(), end_ns + 20 * 10**9, 11, phase)
        layout.rank(rank).heartbeat.write_text(json.dumps(asdict(beat)))
    return layout.root
