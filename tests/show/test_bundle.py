"""A bundle can be analysed again with the same verdict, and names nobody."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from diag.api import Result, open_memory_snapshots, open_run
from diag.collectors.layout import RunLayout
from diag.collectors.masking import MASK
from diag.collectors.policy import RECORDED_FILES
from diag.errors import DiagError, ExitCode
from diag.show.bundle import write_bundle
from diag.show.redact import Pseudonyms
from tests.allocator import MIB, Allocator, frame
from tests.app.runs import write_run
from tests.command import diag

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SECRETS = ("zqhost1", "zqhost2", "zquser", "zqproject", "zqrun-77", "zqjob", "10.98.76.54", "zqtoken", "zqpassword")
LOG = (
    "zqhost1:12:34 [0] NCCL INFO Bootstrap : Using eth0:10.98.76.54<0>\n"
    "loading /mnt/zqproject/data.bin as zquser@zqhost2 with HF_TOKEN=zqtoken-1 --password zqpassword1\n"
    '  File "/home/zquser/zqproject/train.py", line 12, in main\n'
    '  File "/home/zquser/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward\n'
)


def bundled(root: Path, folder: Path) -> Result:
    result = open_run(root)
    write_bundle(result.tables.root, folder, Pseudonyms(result, [folder]))
    return open_run(folder)


def answer(result: Result) -> object:
    """The verdict without the names of hosts, and the findings behind it."""
    verdict = result.verdict
    hosts = verdict.culprit_hosts
    found = [(finding.id, finding.cost_ns_per_step, finding.ranks) for finding in result.examination.findings]
    return structs.replace(verdict, culprit_hosts=()), len(hosts), found, result.coverage.ranks_used


def contents(folder: Path) -> str:
    """All that can be read out of its files, and their names."""
    parts = []
    for path in folder.rglob("*"):
        parts.append(str(path.relative_to(folder)))
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
            parts.append(data.decode("latin-1"))
    return "\n".join(parts).lower()


@pytest.fixture
def secretive(tmp_path: Path) -> Path:
    root = write_run(tmp_path / "home" / "zquser" / "zqproject" / "zqrun-77", slow_data_ms={1: 40})
    layout = RunLayout(root)
    manifest = json.loads(layout.manifest.read_text())
    more = {
        "run_id": "zqrun-77",
        "argv": ["run", "--data", "/mnt/zqproject", "--token", "zqtoken-1", "--rdzv-endpoint", "10.98.76.54:29400"],
        "rendezvous": "zqjob-5@10.98.76.54:29400",
        "trainer": {"data": "/mnt/zqproject", "api_key": "zqtoken-2"},
    }
    layout.manifest.write_text(json.dumps({**manifest, **more}))
    for rank, host in enumerate(("zqhost1.corp.qz", "zqhost2")):
        file = layout.rank(rank).identity
        file.write_text(file.read_text().replace(f"node{rank}", host))
        layout.rank(rank).log.write_text(LOG)
    allocator = Allocator()
    allocator.alloc(MIB, [frame("main", "/home/zquser/zqproject/train.py", 12)])
    allocator.write(layout.rank(0).memory_snapshot("asked", 3), diag={"rank": 0, "step": 3, "reason": "asked"})
    (layout.root / "notes of zquser.bin").write_bytes(b"\x00zquser")
    return root


def test_it_names_nobody_and_has_the_same_verdict(secretive: Path, tmp_path: Path) -> None:
    assert all(secret in contents(secretive) for secret in SECRETS), "they are planted"
    before = answer(open_run(secretive))
    folder = tmp_path / "bundle"
    after = bundled(secretive, folder)
    assert answer(after) == before
    found = contents(folder)
    assert [secret for secret in SECRETS if secret in found] == []
    assert "user-1@host-2" in found or "account-1" in found
    assert "torch/nn/modules/linear.py" in found, "an analysis recognises it"
    (account,) = open_memory_snapshots(folder / "ranks").accounts
    assert account.state.allocated == MIB


@pytest.mark.parametrize("sample", ["fsdp2-straggler-rank0", "fsdp2-slow-loader-rank1", "fsdp2-not-overlapped"])
def test_traces_say_the_same_without_names(sample: str, tmp_path: Path) -> None:
    run = shutil.copytree(SAMPLES / sample, tmp_path / sample)
    assert answer(bundled(run, tmp_path / "bundle")) == answer(open_run(run))


def test_the_command_says_what_is_left_out(secretive: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    ended = diag("report", secretive, "--bundle", folder)
    assert ended.returncode == 0
    assert "not a kind of file that can be redacted" in ended.stdout
    assert not list(folder.glob("*.bin"))
    assert diag("report", secretive, "--bundle", folder).returncode == 1, "it is there already"
    assert diag("report", secretive, "--bundle", tmp_path / "b", "-o", "x.html").returncode == 2


def test_it_is_not_written_into_the_run(secretive: Path) -> None:
    result = open_run(secretive)
    with pytest.raises(DiagError, match="lies in the run itself"):
        write_bundle(secretive, secretive / "bundle", Pseudonyms(result))


def test_a_pickle_that_asks_for_a_class_is_left_out(secretive: Path, tmp_path: Path) -> None:
    file = RunLayout(secretive).rank(1).memory_snapshot("asked", 4)
    file.write_bytes(pickle.dumps(Path("zquser")))
    result = open_run(secretive)
    written = write_bundle(secretive, tmp_path / "bundle", Pseudonyms(result))
    assert any("refused" in gap.reason for gap in written.left_out if gap.path.endswith(file.name))


@pytest.mark.parametrize("levels", [RECORDED_FILES.most_redacted_depth + 2, 900, 200_000])
@pytest.mark.parametrize("name", ["deep.json", "deep.jsonl"])
def test_a_file_that_is_nested_deeply_is_left_out(secretive: Path, tmp_path: Path, name: str, levels: int) -> None:
    result = open_run(secretive)
    (secretive / name).write_text("[" * levels + "]" * levels)
    written = write_bundle(secretive, tmp_path / "bundle", Pseudonyms(result))
    assert [gap.reason for gap in written.left_out if gap.path == name] == ["nested too deeply"]
    assert not (tmp_path / "bundle" / name).exists()


def test_a_file_that_is_nested_as_deeply_as_is_searched_is_redacted(secretive: Path, tmp_path: Path) -> None:
    levels = RECORDED_FILES.most_redacted_depth
    (secretive / "deep.json").write_text("[" * levels + '{"password": "zqpassword1"}' + "]" * levels)
    write_bundle(secretive, tmp_path / "bundle", Pseudonyms(open_run(secretive)))
    assert (tmp_path / "bundle" / "deep.json").read_text() == f'{"[" * levels}{{"password":"{MASK}"}}{"]" * levels}'


@pytest.mark.parametrize("name", ["bundle.zip", "bundle.tar.gz"])
def test_a_bundle_is_no_archive(secretive: Path, tmp_path: Path, name: str) -> None:
    ended = diag("report", secretive, "--bundle", tmp_path / name)
    assert ended.returncode == ExitCode.USAGE
    assert "--bundle bundle, and pack that folder" in ended.stderr
    assert not (tmp_path / name).exists()
