"""The servers that these tests write to, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from diag.rundir.local import copies_folder
from tests.store import servers
from tests.store.servers import Server

Make = Callable[[Path], AbstractContextManager[Server]]


@pytest.fixture(params=[servers.folder, servers.sftp, servers.s3], ids=["folder", "sftp", "s3"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    make: Make = request.param
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    copies_folder.cache_clear()
    with make(tmp_path) as made:
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        from fsspec.config import conf, set_conf_env

        conf.clear()
        set_conf_env(conf)
        yield made
    conf.clear()
