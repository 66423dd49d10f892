"""A secret of a command line is in no file that is recorded, and only the owner may read files with command lines."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path

import pytest

from diag.collectors.layout import RunLayout
from diag.collectors.manifest import make_manifest, read_fields, update_manifest
from diag.collectors.masking import MASK
from diag.errors import DiagError
from diag.model import Gap
from diag.tune.history import FILE_NAME
from diag.tune.loop import tune
from diag.watch.hang_monitor import _tool
from diag.watch.launch import Launch, open_run_directory
from tests.command import diag, diag_process

SECRET = "S3cr3tV4lue"
ARGUMENTS = (
    "--api-key", SECRET, f"--hf-token={SECRET}", f"DB_PASSWORD={SECRET}", f"https://me:{SECRET}@host/data",
    f"hf_{SECRET}abcdefghijkl", "--tokenizer", "gpt2", "--max-tokens", "512",
)  # fmt: skip
TRAINING = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
raise RuntimeError("planted")
"""


def contents(folder: Path) -> dict[str, bytes]:
    """All files, what is compressed decompressed."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(folder))] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("way", ["script", pytest.param("command", marks=pytest.mark.matrix)])
def test_a_recorded_run(way: str, tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", tmp_path / "run"
    script.write_text(TRAINING)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    given = ["--nproc", "1"] if way == "script" else []
    started = [script] if way == "script" else ["--", *torchrun, script]
    ended = diag_process("run", *given, "--trace-skip", "2", "--out", run, *started, *ARGUMENTS)
    assert ended.returncode == 1, ended.stderr
    layout = RunLayout(run)
    found = contents(run)
    assert {"manifest.json", "hang.json", "ranks/00000/steps.jsonl"} <= set(found)
    assert any(name.endswith("gz") for name in found)
    assert [name for name, data in found.items() if SECRET.encode() in data] == []
    written = read_fields(layout)
    for words in (written["argv"], written["collector"]["attached"]["command"]):
        assert words[words.index("--api-key") + 1] == MASK
        assert words[-4:] == ["--tokenizer", "gpt2", "--max-tokens", "512"]
    files = layout.rank(0)
    printed = [files.log, files.stdout] if way == "script" else [files.error]
    assert {mode(path) for path in (layout.manifest, layout.hang, *printed)} == {0o600}
    report = tmp_path / "report.html"
    assert diag("report", run, "-o", report).returncode in (0, 4)
    assert SECRET not in report.read_text()
    assert SECRET not in diag("triage", run).stdout


def test_the_error_that_torchrun_keeps(tmp_path: Path) -> None:
    options = ("--nproc", "1", "--steps", "4", "--no-trace", "--inject", "die:rank=0,step=2,how=exception,code=1")
    assert diag_process("run", *options, "--out", tmp_path / "run").returncode == 1
    assert mode(RunLayout(tmp_path / "run").rank(0).error) == 0o600


def test_every_part_of_a_manifest(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    make_manifest(layout, argv=["--token", SECRET], rendezvous="job@host:29500")
    update_manifest(layout, trainer={"data": f"https://me:{SECRET}@host/x"}, hang={"why": f"--api-key {SECRET}"})
    update_manifest(layout, collector={"attached": {"command": ["x", "--password", SECRET]}})
    assert SECRET not in layout.manifest.read_text()
    assert read_fields(layout)["rendezvous"] == "job@host:29500"
    assert mode(layout.manifest) == 0o600


def test_what_a_tool_prints(tmp_path: Path) -> None:
    with _tool(["printf", f"Process 5: python train.py --api-key {SECRET}\\nThread 5\\n"], tmp_path / "py-spy.txt"):
        pass
    assert (tmp_path / "py-spy.txt").read_text() == f"Process 5: python train.py --api-key {MASK}\nThread 5\n"
    assert mode(tmp_path / "py-spy.txt") == 0o600


def test_a_triage_of_a_log_that_shows_its_command(tmp_path: Path) -> None:
    log = tmp_path / "rank_0.log"
    log.write_text(f"Traceback (most recent call last):\nRuntimeError: python x.py --api-key {SECRET} failed\n" * 3)
    for options in ((), ("--json",)):
        ended = diag("triage", log, *options)
        assert "failed" in ended.stdout
        assert SECRET not in ended.stdout


def test_tuning_trains_with_the_secret_and_keeps_it_nowhere(tmp_path: Path) -> None:
    trained = []

    def train(arguments: object, folder: Path) -> str:
        trained.append(arguments)
        return "exit code 1"

    with pytest.raises(DiagError):
        tune(["--data", f"https://me:{SECRET}@host/x", "--api-key", SECRET], tmp_path / "t", 1, 2, train)
    assert trained == [["--data", f"https://me:{SECRET}@host/x", "--api-key", SECRET]]
    kept = tmp_path / "t" / FILE_NAME
    assert SECRET not in kept.read_text()
    assert f"--api-key '{MASK}'" in json.loads(kept.read_text())["command"]
    assert mode(kept) == 0o600


def test_a_masked_command_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="--api-key is masked"):
        open_run_directory(tmp_path / "run", Launch(nproc=1), ["run", "x.py", "--api-key", MASK], "x")
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_older_version_shows_no_secret(tmp_path: Path) -> None:
    run, report = tmp_path / "run", tmp_path / "report.html"
    shutil.copytree(Path(__file__).parents[2] / "sample_traces/ddp-healthy", run)
    layout = RunLayout(run)
    text = f"--password {SECRET} https://me:{SECRET}@host/x"
    words = ["run", "--wandb_key", SECRET, "--header", f"X-Api-Key: {SECRET}", "--data", f"https://{SECRET}@host/x"]
    manifest = json.loads(layout.manifest.read_text())
    manifest |= {
        "argv": words,
        "trainer": {"api_key": SECRET, "data": text},
        "resumed_from": text,
        "injected": [text],
        "model": manifest["model"] | {"name": text},
        "collector": {"attached": {"command": words}, "problem": text},
        "hang": {"why": text},
    }
    layout.manifest.write_text(json.dumps(manifest))
    for files in layout.ranks().values():
        heartbeat = json.loads(files.heartbeat.read_text()) if files.heartbeat.exists() else {}
        files.heartbeat.write_text(json.dumps(heartbeat | {"errors": [text]}))
        files.log.write_text(f"+ python x.py {text}\nRuntimeError: {text}\n")
    asked: tuple[tuple[str | Path, ...], ...] = (
        ("analyze", run, "--json"), ("triage", run, "--json"), ("report", run, "-o", report),
        ("report", run, "--redact", "-o", tmp_path / "redacted.html"), ("check", run, "--max-step", "1s"),
    )  # fmt: skip
    for arguments in asked:
        ended = diag(*arguments)
        assert ended.stdout or ended.stderr
        assert SECRET not in ended.stdout + ended.stderr, arguments
    assert [path.name for path in tmp_path.glob("*.html") if SECRET in path.read_text()] == []
    assert SECRET not in layout.verdict.read_text()
    assert {mode(layout.verdict), mode(report)} == {0o600}


def test_an_error_about_an_address_shows_no_password() -> None:
    ended = diag("analyze", f"https://me:{SECRET}@127.0.0.1:9/trace.json?sig={SECRET}")
    assert ended.returncode == 1
    assert "127.0.0.1:9" in ended.stderr
    assert SECRET not in ended.stdout + ended.stderr


def test_a_reason_that_quotes_a_command_line_shows_no_secret() -> None:
    assert SECRET not in Gap("x", f"OSError: --password {SECRET}").reason
