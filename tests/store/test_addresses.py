"""Run directories at an address: a local copy is kept, and only what is new is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from diag.api import local_path, open_run
from diag.collectors.layout import RunLayout
from diag.errors import DiagError, ExitCode
from diag.rundir.local import copies_folder
from diag.store.stores import Store
from tests.command import diag
from tests.pieces import edit, recorded, split

ADDRESS = "memory://bucket/runs/one"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    copies_folder.cache_clear()
    yield
    fsspec.filesystem("memory").store.clear()


def put(folder: Path, address: str = ADDRESS) -> None:
    store = Store(address)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.write(str(path.relative_to(folder)), path.read_bytes())


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that are read from stores, by name."""
    read = Store.read_if_there
    seen: dict[str, int] = {}

    def counted(self: Store, name: str, start: int = 0) -> bytes | None:
        data = read(self, name, start)
        seen[name] = seen.get(name, 0) + len(data or b"")
        return data

    monkeypatch.setattr(Store, "read_if_there", counted)
    return seen


def test_a_run_at_an_address_opens_as_at_a_path(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    put(run.root)
    result = open_run(ADDRESS)
    assert result.verdict == open_run(run.root).verdict
    assert "bucket/runs/one" in repr(result)


def test_pieces_at_an_address_join(tmp_path: Path) -> None:
    split(recorded(tmp_path / "run"), tmp_path / "pieces", [(0, 1), (2, 3)])
    put(tmp_path / "pieces")
    assert open_run(ADDRESS).attribution.ranks == (0, 1, 2, 3)


def test_only_what_is_new_is_fetched(tmp_path: Path, fetched: dict[str, int]) -> None:
    run = recorded(tmp_path / "run")
    steps = run.rank(3).steps
    everything = steps.read_bytes()
    steps.write_bytes(everything[: len(everything) // 2])
    put(run.root)
    local_path(ADDRESS)
    assert set(fetched) == {str(path.relative_to(run.root)) for path in run.root.rglob("*") if path.is_file()}
    fetched.clear()
    steps.write_bytes(everything)
    name = str(steps.relative_to(run.root))
    Store(ADDRESS).write(name, everything)
    copy = RunLayout(local_path(ADDRESS))
    assert fetched.keys() == {name}
    assert fetched[name] < 0.6 * len(everything)
    assert copy.rank(3).steps.read_bytes() == everything
    fetched.clear()
    local_path(ADDRESS)
    assert not fetched


def test_a_file_with_another_beginning_is_fetched_whole(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    put(run.root)
    local_path(ADDRESS)
    name = str(run.rank(3).steps.relative_to(run.root))
    other = b'{"step":1}\n' * 10_000
    Store(ADDRESS).write(name, other)
    assert RunLayout(local_path(ADDRESS)).rank(3).steps.read_bytes() == other


def test_what_is_gone_at_the_address_is_gone_in_the_copy(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    put(run.root)
    local_path(ADDRESS)
    Store(ADDRESS).remove([str(run.rank(3).steps.relative_to(run.root))])
    assert not RunLayout(local_path(ADDRESS)).rank(3).steps.exists()


def test_no_name_in_a_store_leads_out_of_the_copy(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    put(run.root)
    system = fsspec.filesystem("memory")
    system.store["/bucket/runs/one/ranks/../../../evil"] = system.store["/bucket/runs/one/manifest.json"]
    local_path(ADDRESS)
    assert not list(tmp_path.rglob("evil"))


def test_a_protocol_whose_package_is_missing_names_the_command() -> None:
    if fsspec.utils.get_package_version_without_import("s3fs"):
        pytest.skip("s3fs is installed")
    ended = diag("analyze", "s3://bucket/run")
    assert ended.returncode == ExitCode.ERROR
    assert "pip install s3fs" in ended.stderr


def test_a_message_names_the_address_once() -> None:
    ended = diag("analyze", "unheard-of://bucket/run")
    assert ended.returncode == ExitCode.ERROR
    assert ended.stderr.count("unheard-of://bucket/run") == 1, ended.stderr


def test_no_message_holds_the_password_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiagError) as raised:
        local_path("unheard-of://user:hunter2@host/run")
    assert "hunter2" not in f"{raised.value.message} {raised.value.hint} {raised.value.path}"


@pytest.mark.parametrize("command", ["analyze", "triage", "compare", "check", "export", "report", "history"])
def test_every_command_takes_an_address(command: str, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    edit(run.manifest, exit_code=0)
    address = f"file://{run.root}"
    given = {
        "compare": [str(run.root)],
        "check": ["--max-data-wait", "1%"],
        "export": ["--format", "prometheus", "-o", str(tmp_path / "metrics.prom")],
        "report": ["-o", str(tmp_path / "report.html")],
    }.get(command, [])
    ended = diag(command, address, *given)
    expected = ExitCode.GATE_EXCEEDED if command == "check" else ExitCode.OK
    assert ended.returncode == expected, ended.stdout + ended.stderr
    assert not (run.root / "verdict.json").exists()  # nothing is written there
    assert str(tmp_path / "cache") not in ended.stdout + ended.stderr  # what is printed has the address


def test_a_run_at_an_address_is_watched_with_one_look_at_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(recorded(tmp_path / "run").root)
    looks: list[str] = []
    files = Store.files
    monkeypatch.setattr(Store, "files", lambda store, below="": looks.append(store.address) or files(store, below))
    ended = diag("watch", ADDRESS, "--once")
    assert "Traceback" not in ended.stderr
    assert looks == [ADDRESS]
