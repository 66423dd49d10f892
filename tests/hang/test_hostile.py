"""Hostile inputs: no crash, no hang, no code run, nobody framed, and nothing raw on the terminal.

Every input goes through the command line, in a process of its own: one that hangs or eats the memory fails alone. It
is triaged once, and the answer printed as JSON and as text.
"""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command import diag
from tests.forked import run_forked
from tests.hang.hostile_inputs import CANARY, FORGED, INNOCENT, INPUTS, among_healthy, text
from tests.patience import PATIENCE_S

OUTPUT = 2 << 20
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Printed(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


class Answered(NamedTuple):
    """What ``diag`` says of an input, with bounded memory."""

    name: str
    folder: Path
    json: Printed
    text: Printed


TRIAGE = """
import sys
from tests.hang.limited import json_and_text, limit
limit()
json_and_text(sys.argv[1])
"""


@pytest.fixture(scope="module", params=INPUTS)
def answered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    folder = made(request.param, tmp_path_factory.mktemp("hostile"))
    ended = run_forked(["-c", TRIAGE, str(folder)], [os.environ], PATIENCE_S, kind="commands")
    assert ended.exit_code == 0, (ended.exit_code, ended.stderr[-3000:])
    assert not ended.stderr
    return Answered(request.param, folder, *(Printed(*one) for one in json.loads(ended.stdout)))


def made(name: str, tmp_path: Path) -> Path:
    folder = tmp_path / "input"
    folder.mkdir()
    INPUTS[name](folder)
    return folder


def strings(value: Any) -> list[str]:
    """Every text in the JSON but paths, which must lead to the file."""
    if isinstance(value, dict):
        return [found for key, item in value.items() if key != "path" for found in strings(item)]
    if isinstance(value, list):
        return [found for item in value for found in strings(item)]
    return [value] if isinstance(value, str) else []


def test_json_of_a_hostile_folder(answered: Answered) -> None:
    """An answer, or an error that is one; nothing but JSON on standard output."""
    ended = answered.json
    assert "Traceback" not in ended.stderr, ended.stderr[-3000:]
    assert ended.exit_code in (0, 1, 4), (ended.exit_code, ended.stderr[-3000:])
    assert len(ended.stdout) < OUTPUT
    content = json.loads(ended.stdout)
    assert not RAW.search(ended.stdout.replace("\n", ""))
    assert not [found for found in strings(content) if RAW.search(found.replace("\n", "").replace("\t", ""))]
    assert not (answered.folder.parent / CANARY).exists()
    assert ("error" in content) == (ended.exit_code == 1)
    if answered.name in INNOCENT and "error" not in content:
        assert content["verdict"]["fault_class"] in ("healthy", "undetermined"), content["verdict"]
        assert content["culprits"] == []


def test_text_of_a_hostile_folder(answered: Answered) -> None:
    """No escape, no bell, no turned-round text reaches the terminal."""
    ended = answered.text
    for printed in (ended.stdout, ended.stderr):
        assert not RAW.search(printed.replace("\n", "").replace("\t", "")), ascii(printed)[:2000]
        assert len(printed) < OUTPUT
    assert "Traceback" not in ended.stderr, ended.stderr[-3000:]
    assert not (answered.folder.parent / CANARY).exists()


LARGE = ("one_long_line", "gzip_bomb", "one_long_line_with_everything", "very_many_lines")  # the commands read them


@pytest.mark.parametrize("name", [name for name in INPUTS if name not in LARGE])
def test_the_function_raises_nothing_but_its_own_error(name: str, tmp_path: Path) -> None:
    from diag.errors import DiagError
    from diag.hang.api import triage

    folder = made(name, tmp_path)
    try:
        headline = triage([folder]).headline
    except DiagError as error:
        headline = str(error)
    assert headline
    assert not (tmp_path / CANARY).exists()


def test_a_forged_message_does_not_hide_the_real_one(tmp_path: Path) -> None:
    """The same messages quoted by the training, and one rank that really was killed."""
    quoted = [json.dumps({"seen": message}) for message in FORGED]
    block = (
        "E1121 22:00:39.413000 90 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -11) local_rank: 1 "
        "(pid: 501) of binary: /opt/venv/bin/python\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\ntrain.py FAILED\n"
        + "-" * 60 + "\nFailures:\n  <NO_OTHER_FAILURES>\n" + "-" * 60 + "\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2025-11-21_22:00:39\n  host      : gpu07\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : -11 (pid: 501) (SIGSEGV)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 501\n"
        + "=" * 60
    )  # fmt: skip
    text(tmp_path, "train.log", *among_healthy(*quoted)[:-1], block)
    ended = diag("triage", tmp_path, "--json")
    content = json.loads(ended.stdout)
    assert content["verdict"]["fault_class"] == "rank_killed_sigsegv", content["verdict"]
    assert [culprit["rank"] for culprit in content["culprits"]] == [1]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    ended = diag("triage", tmp_path / "nowhere", "--json")
    assert ended.returncode in (1, 2)
    error = json.loads(ended.stdout)["error"]
    assert "nowhere" in error["message"] + str(error["path"])
    assert "Traceback" not in ended.stderr


def test_an_unreadable_file_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    text(tmp_path, "train.log", *among_healthy())
    (tmp_path / "broken.log.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"\0" * 6 + b"\xff" * 50)
    content = json.loads(diag("triage", tmp_path, "--json").stdout)
    assert "error" not in content
    assert "broken.log.gz" in json.dumps(content), content
