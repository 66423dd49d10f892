"""Servers that tests start: an S3 API, OpenSSH's SFTP, and a folder. Each can be stopped and started again."""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.ports import free_port


@dataclass
class Server:
    """``variables``: what a client needs in its environment. ``away`` and ``back``: an outage begins and ends."""

    address: str
    away: Callable[[], object]
    back: Callable[[], object]
    variables: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def folder(tmp_path: Path) -> Iterator[Server]:
    there, gone = tmp_path / "shared", tmp_path / "shared-gone"
    there.mkdir()

    def away() -> None:
        there.rename(gone)
        there.write_text("no folder")  # so that it cannot be made again meanwhile

    def back() -> None:
        there.unlink()
        gone.rename(there)

    yield Server(str(there / "run"), away, back)


class _Process:
    """A server process, which answers on its port once started."""

    def __init__(self, command: list[str], port: int, log: Path, **variables: str) -> None:
        self._command, self._port, self._log = command, port, log
        self._variables = {**os.environ, **variables}
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._variables)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._running.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.05)
        pytest.fail(f"{self._command[0]} does not start: {self._log.read_text()[-500:]}")

    @property
    def pid(self) -> int:
        return self._running.pid

    def stop(self) -> None:
        self._running.kill()
        self._running.wait()


@contextlib.contextmanager
def sftp(tmp_path: Path) -> Iterator[Server]:
    daemon = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    keygen = shutil.which("ssh-keygen")
    if daemon is None or keygen is None or importlib.util.find_spec("paramiko") is None:
        pytest.skip("needs OpenSSH's server, and paramiko")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    port = free_port()
    for name in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    authorized = tmp_path / "authorized"
    shutil.copy(tmp_path / "user.pub", authorized)
    # Who is not root cannot look up whether an account is locked: without PAM, sshd takes it for locked.
    pam = "no" if os.geteuid() == 0 else "yes"
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {authorized}\n"
        f"PidFile {tmp_path}/sshd.pid\nStrictModes no\nUsePAM {pam}\nPermitRootLogin yes\nPasswordAuthentication no\n"
        "Subsystem sftp internal-sftp\n"
    )
    server = _Process([daemon, "-D", "-e", "-f", str(tmp_path / "sshd_config")], port, tmp_path / "sshd.log")
    try:
        yield Server(
            f"sftp://{getpass.getuser()}@127.0.0.1:{port}{tmp_path}/on-server/run",
            server.stop,
            server.start,
            {"FSSPEC_SFTP_KEY_FILENAME": str(tmp_path / "user")},
        )
    finally:
        server.stop()


@contextlib.contextmanager
def s3(tmp_path: Path) -> Iterator[Server]:
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("s3fs") is None:
        pytest.skip("needs moto's server and s3fs")
    port = free_port()
    program = (
        "import sys; from moto.server import DomainDispatcherApplication, create_backend_app; "
        "from werkzeug.serving import run_simple; "
        "run_simple('127.0.0.1', int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=True)"
    )
    server = _Process([sys.executable, "-c", program, str(port)], port, tmp_path / "moto.log")
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-store",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    made = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
    urllib.request.urlopen(made, timeout=PATIENCE_S).close()
    # What it holds is in memory, so it is made silent, not ended.
    away, back = (partial(os.kill, server.pid, number) for number in (signal.SIGSTOP, signal.SIGCONT))
    try:
        yield Server("s3://bucket/run", away, back, variables)
    finally:
        server.stop()
