"""``diag triage``: text for people, the JSON contract for programs, exit codes for scripts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from diag.ended.model import Culprit, Source, culprit_words
from diag.ended.raised import shortened
from diag.hang.api import triage
from diag.hang.model import Guess, RuledOut, Stack, Triage
from diag.show.policy import PAGE
from diag.show.triage import print_triage, to_dict, visible
from tests.command import diag
from tests.patience import PATIENCE_S

OOM = """\
node1:1003:2003 [1] NCCL INFO comm 0x55 rank 3 nranks 4 cudaDev 1 busId 4b000 commId 0xabc - Init COMPLETE
node1:1003:2003 [1] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'
"""
EVIL = "\x1b]0;owned\x07\x1b[31mred\u202etxt\u2028new \x9b31m\r\n\t[bold]x[/bold]"

FOUND = Triage(
    "missing_rank",
    0.85,
    "A rank did not come to the collective: rank 3.",
    (Culprit(3, "node1", 1, "default_pg"),),
    (Source("logs/rank0.log", 12, f"[rank0]: {EVIL}"), Source("dumps/rank_3", 0, "entry 7")),
    (RuledOut("mismatch_op", f"all the same {EVIL}"),),
    ("Take the stack: `py-spy dump --pid 7`.", "One ` alone."),
    (0, 1, 2),
    (Stack(3, "culprit", ("read (loader.py:7)", *(f"f{n} (a.py:{n})" for n in range(20))), Source("s", 1, "")),),
    coverage=("4 logs read.",),
    gaps=(("logs/rank2.log", "cut off"),),
)
OPEN = Triage(
    "undetermined",
    0.3,
    "No known signature fits.",
    (),
    (),
    (),
    (),
    (),
    guesses=(Guess("missing_rank", 0.3, (Culprit(3, "node1"),), f"It did not come {EVIL}"),),
)


def printed(triage: Triage, width: int = 110, *, evidence: bool = True) -> str:
    out = io.StringIO()
    # A terminal, whose width is used; without a terminal it is that of a report.
    console = Console(file=out, width=width, highlight=False, color_system=None, force_terminal=True)
    print_triage(triage, console, evidence=evidence, more="diag triage R -v")
    return out.getvalue()


def test_the_report_says_it_all() -> None:
    text = printed(FOUND)
    assert text.startswith("A rank did not come to the collective: rank 3.\n")
    assert "missing_rank; confidence 85%; at fault: rank 3 on node1 (GPU 1)" in text
    assert "confidence 85%" in text
    assert "3 ranks waited for it: ranks 0-2." in text
    for words in (
        "logs/rank0.log:12  [rank0]:",
        "dumps/rank_3  entry 7",
        "Stack of rank 3 (culprit)",
        "read (loader.py:7)",
        "f19 (a.py:19)",
        "mismatch_op: all the same",
        "Take the stack: py-spy dump --pid 7.",
        "One ` alone.",
        "4 logs read.",
        "! logs/rank2.log: cut off",
    ):
        assert words in text, words


def test_the_answer_is_short_and_says_how_to_see_the_rest() -> None:
    text = printed(FOUND, evidence=False)
    assert len(text.splitlines()) <= PAGE.rows_of_answer
    assert "rank 3  read (loader.py:7) < f0 (a.py:0) < f1 (a.py:1) < …" in text
    assert "Ruled out: mismatch_op. 4 logs read." in text
    assert text.splitlines()[-1].endswith("diag triage R -v")


def test_what_several_ranks_say_is_one_line() -> None:
    said = "[rank{0}]:[E1121 22:43:5{0}.97 ProcessGroupNCCL.cpp:67{0}] Watchdog timed out after {0}00 ms"
    lines = [Source(f"logs/rank{rank}.log", rank + 1, said.format(rank)) for rank in (*range(5), 6)]
    lines.append(Source("R/ranks/00009/error.json", 1, '{"message": {"message": "Watchdog timed out after 7 ms\\n"'))
    lines.append(Source("logs/rank7.log", 1, "ValueError: no"))
    text = printed(replace(FOUND, evidence=tuple(lines)), width=200, evidence=False)
    rows = text.partition("Evidence: ")[2].splitlines()[:2]
    assert rows == [
        "ranks 0-4, 6, 9  Watchdog timed out after 000 ms (logs/rank0.log:1 and 6 more)",
        "  rank 7  ValueError: no (logs/rank7.log:1)",
    ]


CAPTURED = sorted(path for path in (Path(__file__).parent / "captured").iterdir() if path.is_dir())


@pytest.mark.parametrize("width", [80, 200])
def test_an_answer_has_ten_lines(width: int) -> None:
    for path in CAPTURED:
        found = triage([str(path)])
        text = printed(found, width=width, evidence=False)
        words = " ".join(text.split())
        assert len(text.splitlines()) <= PAGE.rows_of_answer, text
        assert " ".join(visible(found.headline).split()) in words
        assert "What to do: " in words or not found.next_steps


@pytest.mark.parametrize("width", [80, 110])
def test_no_number_of_an_answer_is_cut(width: int) -> None:
    for folder in CAPTURED[::4]:
        text = printed(answer := triage([str(folder)]), width, evidence=False)
        assert max(map(len, text.splitlines()[:-1])) <= width
        whole = {number for line in (*answer.evidence, *answer.coverage, answer.headline) for number in numbers(line)}
        whole |= {number for stack in answer.stacks for frame in stack.frames for number in numbers(frame)}
        # At a cut: "…" after a number, or before one.
        cut = re.findall(r"\d+(?=…)|(?<=…)\d+", text)
        assert [number for number in cut if number not in whole] == []


def numbers(said: Source | str) -> list[str]:
    return re.findall(r"\d+", said if isinstance(said, str) else f"{said.path} {said.text}")


def test_guesses_are_said_apart_from_what_is_ruled_out() -> None:
    text = printed(OPEN)
    assert "Next best guess" in text
    assert "missing_rank, rank 3 on node1, 30%: It did not come" in text
    assert all(character == "\n" or character.isprintable() for character in text)
    shown = json.loads(json.dumps(to_dict(OPEN)))
    assert [(one["fault_class"], one["culprits"][0]["rank"]) for one in shown["guesses"]] == [("missing_rank", 3)]
    assert shown["ruled_out"] == []


def test_nothing_of_a_log_reaches_the_terminal_raw() -> None:
    text = printed(FOUND)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert "\\x1b]0;owned\\x07\\x1b[31mred\\u202etxt\\u2028new \\x9b31m\\x0d\\x0a [bold]x[/bold]" in "".join(
        line.strip("\n").removeprefix("  ") for line in text.splitlines(keepends=True)
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("a\tb", "a b"), ("\x00", "\\x00"), ("\U000e0041", "\\U000e0041"), ("é", "é")],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_long_lines_are_cut() -> None:
    long = Triage("undetermined", 0.3, "x.", (), (Source("p" * 300, 1, "y" * 10_000),), (), (), ())
    lines = printed(long, evidence=False).splitlines()
    assert max(map(len, lines)) <= 110
    assert len(lines) < 10


def test_the_document_has_the_contracts_keys() -> None:
    content = json.loads(json.dumps(to_dict(FOUND)))
    assert content["schema_version"] == 1
    assert content["verdict"] == {
        "fault_class": "missing_rank", "confidence": 0.85, "culprit_confidence": None, "headline": FOUND.headline,
    }  # fmt: skip
    assert content["culprits"] == [
        {
            "rank": 3,
            "host": "node1",
            "gpu": 1,
            "process_group": "default_pg",
            "peer": None,
            "bus_id": None,
            "nic": None,
        },
    ]
    assert content["evidence"][0] == {"path": "logs/rank0.log", "line": 12, "text": f"[rank0]: {EVIL}"}
    assert content["ruled_out"][0]["fault_class"] == "mismatch_op"
    assert content["victims"] == [0, 1, 2]
    assert content["gaps"] == [{"path": "logs/rank2.log", "reason": "cut off"}]
    assert content["stacks"][0]["frames"][0] == "read (loader.py:7)"
    assert {"next_steps", "coverage"} <= set(content)


def test_the_devices_of_a_culprit_are_in_the_document() -> None:
    culprit = Culprit(3, "node1", bus_id="0000:3b:00", nic="mlx5_2")
    shown = to_dict(Triage("gpu_hardware", 0.9, "x.", (culprit,), (), (), (), ()))
    assert [(one["bus_id"], one["nic"]) for one in shown["culprits"]] == [("0000:3b:00", "mlx5_2")]
    assert "GPU 0000:3b:00, adapter mlx5_2" in culprit_words([culprit])


def test_of_many_hosts_the_rest_is_counted() -> None:
    culprits = [Culprit(rank, f"node{rank}") for rank in range(10)]
    hosts = "node0, node1, node2, node3, node4, node5, node6, node7 and 2 more"
    assert culprit_words(culprits) == f"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more on {hosts}"
    assert culprit_words([Culprit(host=culprit.host) for culprit in culprits]) == f"hosts {hosts}"


def test_a_log_is_triaged(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    log.write_text(OOM)
    ended = diag("triage", tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    content = json.loads(ended.stdout)
    assert content["verdict"]["fault_class"] == "cuda_oom"
    assert content["culprits"][0] == {
        "rank": 3,
        "host": "node1",
        "gpu": 1,
        "process_group": None,
        "peer": None,
        "bus_id": None,
        "nic": None,
    }
    assert content["evidence"][0] == {"path": str(log), "line": 2, "text": OOM.splitlines()[1]}
    text = diag("triage", log).stdout
    assert "GPU memory is used up: rank 3 on node1 (GPU 1)" in text.replace("\n", " ")


def test_standard_input_is_read() -> None:
    command = [sys.executable, "-m", "diag", "triage", "-", "--json"]
    ended = subprocess.run(command, input=OOM, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdict"]["fault_class"] == "cuda_oom"


def test_what_could_not_be_read_is_exit_code_4(tmp_path: Path) -> None:
    (tmp_path / "rank3.log").write_text(OOM)
    (tmp_path / "rank2.log.gz").write_bytes(b"\x1f\x8b\x08\x00 broken")
    ended = diag("triage", tmp_path, "--json")
    assert ended.returncode == 4, ended.stderr
    content = json.loads(ended.stdout)
    assert content["verdict"]["fault_class"] == "cuda_oom"
    assert "rank2.log.gz" in content["gaps"][0]["path"]


def test_a_healthy_or_undetermined_answer_is_exit_code_0(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n")
    ended = diag("triage", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "undetermined" in ended.stdout


def test_nothing_to_read_is_a_message(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        ended = diag("triage", path, "--json")
        assert ended.returncode == 1
        error = json.loads(ended.stdout)["error"]
        assert error["message"]
        assert error["hint"]
        assert error["exit_code"] == 1
    ended = diag("triage", tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" not in ended.stderr


def test_no_path_is_a_usage_error() -> None:
    assert diag("triage").returncode == 2


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; import diag.cli.main; "
        "print([m for m in ('torch', 'polars', 'numpy', 'diag.hang', 'diag.show.triage') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stdout.strip() == "[]"


def test_a_number_is_left_out_rather_than_cut() -> None:
    assert shortened("timeout 12345 ms", 11) == "timeout …"
    assert shortened("timeout 12345 ms", 14) == "timeout 12345…"
    assert shortened("1" * 20, 5) == "1111…"
