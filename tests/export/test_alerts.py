"""The alerting rules use metrics that exist, with labels and values that they have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from diag.diagnoses.registry import DIAGNOSES
from diag.export.definitions import METRICS
from diag.rundir.states import State
from tests.command import diag

PRINTED = diag("metrics", "--alerts")
RULES = yaml.safe_load(PRINTED.stdout)["groups"][0]["rules"]
EXPRESSIONS = " ".join(rule["expr"] for rule in RULES)


def test_each_rule_says_what_it_is_about() -> None:
    assert PRINTED.returncode == 0
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert "{{ $labels.run }}" in rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_promtool_accepts_them(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    file = tmp_path / "rules.yml"
    file.write_text(PRINTED.stdout)
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True)
    assert (done.returncode, f"{len(RULES)} rules found" in done.stdout) == (0, True), done.stdout + done.stderr


def test_they_ask_for_metrics_that_exist() -> None:
    assert set(re.findall(r"\bdiag_\w+", EXPRESSIONS)) <= {metric.name for metric in METRICS}


def test_they_name_states_and_findings_that_exist() -> None:
    states, causes = (re.findall(rf'{label}=~"([^"]+)"', EXPRESSIONS)[0] for label in ("state", "cause"))
    assert set(states.split("|")) <= {state.value for state in State}
    assert set(causes.split("|")) <= {diagnosis.id for diagnosis in DIAGNOSES}
