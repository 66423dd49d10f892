"""`diag compare` and `diag check` as a user calls them, on runs written to the disk."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from diag.cli.main import app
from diag.gate.budgets import QUANTITIES
from diag.show.policy import PAGE
from tests.command import diag
from tests.simulate import MS, Plan, simulate, write_run

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    plans = {"before": Plan(), "slow": Plan(data_ns=31 * MS, seed=1), "again": Plan(seed=2), "four": Plan(ranks=4)}
    return {name: str(write_run(simulate(plan), folder / name).root) for name, plan in plans.items()}


def test_compare_says_which_part_changed(runs: dict[str, str]) -> None:
    ended = diag("compare", runs["before"], runs["slow"])
    assert ended.returncode == 0, ended.stderr
    text = " ".join(ended.stdout.split())
    assert "The step is 30% longer: 100 ms before, 130 ms after, +30.3 ms (+30.1 ms to +30.5 ms)." in text
    assert "The difference is in data wait (+30.3 ms)." in text
    assert "Data-bound" in text
    assert len(ended.stdout.splitlines()) <= PAGE.rows_of_answer
    assert any(line.startswith("data wait ") and line.rstrip().endswith("longer") for line in ended.stdout.splitlines())
    ended = diag("compare", runs["before"], runs["slow"], "-v")
    rows = {line[:22].strip(): line for line in ended.stdout.splitlines()}
    assert rows["data wait"].rstrip().endswith("longer")
    assert rows["compute"].rstrip().endswith("within noise")


def test_compare_says_where_nothing_surely_changed(runs: dict[str, str]) -> None:
    ended = diag("compare", runs["before"], runs["again"])
    assert ended.returncode == 0
    assert "No significant difference" in ended.stdout


def test_compare_names_parts_that_changed_in_a_step_as_long_as_before() -> None:
    ended = diag("compare", SAMPLES / "fsdp2-slow-loader-rank1", SAMPLES / "fsdp2-slow-wire")
    first = " ".join(ended.stdout.partition("critical path")[0].split())
    assert "No significant difference in step time" in first
    assert re.search(
        r"But its parts changed: data wait \(-2\d\d ms\) and exposed communication \(\+2\d\d ms\)\.", first
    )


def test_compare_as_json(runs: dict[str, str]) -> None:
    content = json.loads(diag("compare", runs["before"], runs["slow"], "--json").stdout)
    assert content["schema_version"] == 1
    assert content["comparison"]["comparable"]
    parts = {part["part"]: part for part in content["comparison"]["parts"]}
    assert parts["data"]["sure"]
    low, likely, high = parts["data"]["difference_ns"]
    assert low <= likely <= high
    assert abs(likely - 30 * MS) < MS
    assert abs(sum(p["difference_ns"][1] for p in parts.values()) - content["comparison"]["difference_ns"][1]) <= 6


def test_what_is_not_the_same_work_is_refused_with_the_reasons(runs: dict[str, str]) -> None:
    ended = diag("compare", runs["before"], runs["four"])
    assert ended.returncode == 1
    assert "one ran on 2 ranks, the other on 4" in ended.stderr
    assert "--anyway" in ended.stderr
    error = json.loads(diag("compare", runs["before"], runs["four"], "--json").stdout)["error"]
    assert error["exit_code"] == 1
    assert "2 ranks" in error["message"]
    forced = diag("compare", runs["before"], runs["four"], "--anyway")
    assert forced.returncode == 0
    assert "a comparison may mislead" in forced.stdout
    assert not json.loads(diag("compare", runs["before"], runs["four"], "--anyway", "--json").stdout)["comparison"][
        "comparable"
    ]


def test_every_budget_has_its_option() -> None:
    import typer

    command = typer.main.get_command(app).commands["check"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {f"--{quantity.name}" for quantity in QUANTITIES} <= options


def test_check_from_a_file_and_the_command_line(runs: dict[str, str], tmp_path: Path) -> None:
    file, junit = tmp_path / "budget.toml", tmp_path / "gate.xml"
    file.write_text(f'max-data-wait = "5%"\nmax-step = "1ms"\nbaseline = "{runs["before"]}"\nmax-regression = "5%"\n')
    ended = diag("check", runs["slow"], "--budget", file, "--max-step", "1s", "--junit", junit, "--github")
    assert ended.returncode == 3, ended.stderr
    assert "Failed: max-data-wait, max-regression." in ended.stdout
    lines = [line for line in ended.stdout.splitlines() if line.startswith("::")]
    assert [line.split(" ")[0] for line in lines] == ["::error", "::notice", "::error"]
    assert ElementTree.parse(junit).getroot().get("failures") == "2"


def test_check_exit_codes_and_json(runs: dict[str, str]) -> None:
    kept = diag("check", runs["slow"], "--max-step", "1s", "--json")
    assert kept.returncode == 0, kept.stderr
    content = json.loads(kept.stdout)
    assert content["schema_version"] == 1
    (row,) = content["check"]["budgets"]
    assert row["status"] == "kept"
    assert row["limit"] == 1e9
    assert row["interval"][0] <= row["value"] <= row["interval"][1]
    unknown = diag("check", runs["slow"], "--max-step", "1s", "--min-mfu", "35%")
    assert unknown.returncode == 4
    assert "the run is on a CPU" in unknown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no budget was given"),
        (["--max-step", "fast"], 2, "max-step = 'fast' is not a limit"),
        (["--max-regression", "5%"], 2, "--baseline RUN"),
        (["--max-step", "1s", "--baseline", "x"], 2, "--max-regression"),
        (["--max-step", "1s", "--json", "--github"], 2, "both write to standard output"),
        (["--max-step", "1s", "--junit", "/dev/null/gate.xml"], 1, "cannot be written"),
    ],
)
def test_mistakes(runs: dict[str, str], arguments: list[str], code: int, message: str) -> None:
    ended = diag("check", runs["before"], *arguments)
    assert ended.returncode == code
    assert message in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_sample(tmp_path: Path) -> None:
    ended = diag("check", SAMPLES / "ddp-slow-loader-all", "--max-data-wait", "5%", "--max-exposed-comm", "20%")
    assert ended.returncode == 3, ended.stderr
    assert "exceeded" in ended.stdout
