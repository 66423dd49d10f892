"""Thresholds: each is documented, a file can override them, and every answer says so."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import policy
from diag.errors import DiagError
from diag.hang.classes.base import SUGGESTS, LogPattern
from diag.traces.shelf import with_thresholds
from tests.bench.house import numbers_outside_of_policy
from tests.command import analyze_json, diag

ROOT = Path(__file__).parents[1]
SAMPLE = Path("ddp-straggler-rank0")  # in the current folder: an analysis writes its answer into the run


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    shutil.copytree(ROOT / "sample_traces" / SAMPLE, folder / SAMPLE)
    return folder


@pytest.fixture(autouse=True)
def _beside_the_sample(samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(samples)


# Fewer is better: lower it when numbers move into a policy module. Units, codes and formats of files may remain.
MOST_NUMBERS_ELSEWHERE = 165


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "thresholds.toml"
    path.write_text("[findings]\nmention_share = 0.9\nwarning_share = 0.95\n")
    return path


def test_every_threshold_has_a_unit_and_an_origin() -> None:
    for topic in policy.topics().values():
        assert topic.meaning.endswith(".")
        for name, its in topic.thresholds.items():
            assert its.unit, f"{topic.name}.{name}"
            assert its.origin.partition(":")[0] in ("chosen", "measured", "source"), f"{topic.name}.{name}"
            assert policy.wrong(its.value, its) is None, f"{topic.name}.{name}"


def test_every_policy_module_is_listed() -> None:
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("diag.")
        for package in ("diag", "app", "collectors")
        for path in (ROOT / package).rglob("policy.py")
    } - {"policy"}
    assert {name.removeprefix("diag.") for name in policy.MODULES} == modules


def test_numbers_are_in_policy_modules() -> None:
    numbers = numbers_outside_of_policy(ROOT)
    assert len(numbers) <= MOST_NUMBERS_ELSEWHERE, "\n".join(numbers)


def test_no_threshold_that_can_be_overridden_is_read_at_import() -> None:
    policy.topics()  # imports the policy modules of all rooms
    overridable = {
        name
        for module in policy.MODULES
        for name, topic in vars(sys.modules[module]).items()
        if isinstance(topic, policy.Topic) and not topic.fixed
    }
    paths = [path for package in ("diag", "app") for path in (ROOT / package).rglob("*.py")]
    read = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in paths
        for node in _at_import(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in overridable
    ]
    assert not read


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = child.args
            for part in (*arguments.defaults, *filter(None, arguments.kw_defaults), *child.decorator_list):
                yield from (part, *_at_import(part))
        elif not isinstance(child, ast.Lambda):
            yield from (child, *_at_import(child))


def test_an_override_changes_the_answer_and_is_said(file: Path) -> None:
    assert "compute-straggler" in {finding["id"] for finding in analyze_json(SAMPLE)["findings"]}
    ended = diag("analyze", SAMPLE, "--policy", file, "--json")
    answer = json.loads(ended.stdout)
    assert not answer["findings"]
    assert answer["policy"]["file"] == str(file)
    assert answer["policy"]["overridden"][0] == {
        "topic": "findings", "name": "mention_share", "value": 0.9, "default": 0.05, "unit": "fraction"
    }  # fmt: skip
    text = " ".join(diag("analyze", SAMPLE, "--policy", file).stdout.split())
    assert "findings.mention_share = 0.9 (default 0.05)" in text
    assert "policy" not in analyze_json(SAMPLE)


@pytest.mark.parametrize(
    "command",
    [("compare", SAMPLE, SAMPLE), ("check", SAMPLE, "--max-step", "10s"), ("triage", SAMPLE)],
    ids=lambda command: command[0],
)
def test_every_command_with_a_verdict_says_what_is_overridden(command: tuple[str | Path, ...], file: Path) -> None:
    assert json.loads(diag(*command, "--policy", file, "--json").stdout)["policy"]["file"] == str(file)
    assert "findings.warning_share = 0.95" in " ".join(diag(*command, "--policy", file).stdout.split())


def test_the_report_says_what_is_overridden(file: Path, tmp_path: Path) -> None:
    assert diag("report", SAMPLE, "--policy", file, "-o", tmp_path / "report.html").returncode in (0, 4)
    assert "findings.mention_share = 0.9" in (tmp_path / "report.html").read_text("utf-8")
    diag("report", SAMPLE, "--policy", file, "--redact", "-o", tmp_path / "redacted.html")
    redacted = (tmp_path / "redacted.html").read_text("utf-8")
    assert "findings.mention_share = 0.9" in redacted
    assert str(file.parent) not in redacted


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[finding]\nmention_share = 0.1", "[finding] is no topic"),
        ("[findings]\nmention = 0.1", "findings has no threshold mention"),
        ("findings = 3", "findings is not a table"),
        ('[findings]\nmention_share = "a"', "it is a number"),
        ("[findings]\nmention_share = true", "it is a number"),
        ("[findings]\nmention_share = 1.5", "between 0 and 1"),
        ("[findings]\nmention_share = nan", "it is finite"),
        ("[steps]\nwarm_up_steps = 1.5", "a whole number"),
        ("[steps]\nwarm_up_steps = 0", "at least 1"),
        ("[watching]\ngrace_s = 1.0", "[watching] is fixed"),
        ("[findings", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.toml"
    path.write_text(text)
    with pytest.raises(DiagError) as error:
        policy.use(path)
    assert reason in error.value.message
    assert not policy.overrides()


@pytest.mark.parametrize("command", [("run",), ("tune",), ("export", SAMPLE, "--format", "jsonl"), ("metrics", SAMPLE)])
def test_commands_that_start_something_check_the_file_first(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    ended = diag(*command, "--policy", tmp_path / "none.toml")
    assert ended.returncode == 1
    assert "none.toml: cannot be read" in ended.stderr


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    ended = diag("analyze", SAMPLE, "--policy", tmp_path / "none.toml")
    assert ended.returncode == 1
    assert "cannot be read" in ended.stderr


def test_help_lists_every_topic() -> None:
    listed = diag("help", "policy").stdout
    assert all(f"[{name}]" in listed for name in policy.topics())
    one = diag("help", "policy", "findings").stdout
    assert "mention_share = 0.05  (fraction)" in one
    assert "[straggler]" not in one
    assert diag("help", "policy", "nothing").returncode == 2


def test_processes_that_are_started_have_the_same_values() -> None:
    code = "from diag.account.policy import CLOCKS; print(CLOCKS.rounds)"
    with policy.changed(clocks={"rounds": 5}):
        read = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=True)
    assert read.stdout == "5\n"
    assert policy.INHERITED not in os.environ


def test_caches_keep_results_with_other_thresholds_apart() -> None:
    usual = with_thresholds("0123456789ab", "account", "traces")
    assert usual == "0123456789ab"
    with policy.changed(clocks={"rounds": 5}):
        assert with_thresholds("0123456789ab", "account", "traces") != usual
        assert with_thresholds("0123456789ab", "traces") == usual


def test_patterns_of_logs_have_the_confidence_of_the_policy() -> None:
    pattern = LogPattern(("a",), support=SUGGESTS)
    with policy.changed(hang_evidence={"suggests": 0.25}):
        assert pattern.confidence == 0.25
    assert pattern.confidence == 0.5
