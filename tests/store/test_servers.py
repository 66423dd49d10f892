"""Packers as processes, against real servers, with kills and an outage in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag.api import local_path
from diag.collectors.layout import RunLayout
from diag.collectors.packing import HIDDEN, PACK_VARIABLE, Packing
from diag.errors import DiagError
from diag.store.stores import Store
from tests.patience import PATIENCE_S, until
from tests.store.servers import Server, s3

INTERVAL_S = 0.2


class Packer:
    def __init__(self, folder: Path, address: str) -> None:
        self._command = [sys.executable, "-P", "-m", "diag.store.packer", str(folder), str(os.getpid())]
        self._variables = {**os.environ, PACK_VARIABLE: Packing(address, INTERVAL_S).to_json()}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._variables, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def stored(address: str, name: str) -> bytes:
    with contextlib.suppress(DiagError, OSError):
        return (local_path(address) / name).read_bytes()
    return b""


def test_an_outage_and_a_kill_lose_nothing(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    rank = RunLayout(folder).rank(0)
    rank.folder.mkdir(parents=True)
    name = str(rank.steps.relative_to(folder))
    written = b""

    def write(text: str) -> None:
        nonlocal written
        line = f"{text}\n".encode()
        with rank.steps.open("ab") as file:
            file.write(line)
        rank.heartbeat.write_bytes(line)
        written += line

    write("before")
    packer = Packer(folder, server.address)
    try:
        until(lambda: stored(server.address, name) == written)
        server.away()
        write("while the store is away")
        time.sleep(3 * INTERVAL_S)
        packer.kill()
        write("while no packer runs")
        packer.start()
        time.sleep(3 * INTERVAL_S)
        server.back()
        until(lambda: stored(server.address, name) == written)
        write("after")
        assert packer.end() == 0
    finally:
        packer.process.kill()
    assert stored(server.address, name) == written
    copy = local_path(server.address)
    assert RunLayout(copy).rank(0).heartbeat.read_bytes() == b"after\n"
    secret = server.variables.get("AWS_SECRET_ACCESS_KEY", "no secret").encode()
    for kept in (*folder.rglob("*"), *copy.rglob("*")):
        assert not kept.is_file() or HIDDEN in kept.parts or secret not in kept.read_bytes()


def test_a_bucket_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3(tmp_path) as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        mistyped = Store("s3://buckte/run")
        for _ in range(2):
            with pytest.raises(DiagError, match="there is no 'buckte' there") as raised:
                mistyped.write("segments/node-00000000/0000000001-0000000001.seg", b"x")
            assert raised.value.path == "s3://buckte/run"
        Store(server.address).write("segments/x", b"x")
        assert list(Store("s3://bucket").files()) == ["run/segments/x"]
