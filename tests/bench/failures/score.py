"""Runs a tool on folders and holds its answers against the truth."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diag.ended.model import Culprit
from tests.hang.real import Case, Verdict, held_against
from tests.hang.real.first_runs import first_runs, total

ROOT = Path(__file__).parents[3]
TOOLS = Path(__file__).parent / "tools.toml"


class ToolError(Exception):
    """The tool cannot be run, or breaks the protocol."""


@dataclass(frozen=True)
class Tool:
    name: str
    title: str
    command: tuple[str, ...]
    claims: str = ""  # what the tool says of itself, in a sentence
    needs: str = ""  # an environment variable with the interpreter that has the tool
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by the tool's word, classes of the truth

    def meant(self, word: str) -> tuple[str, ...]:
        """The classes that the tool's word stands for. Raises ToolError where ``tools.toml`` does not map it."""
        if not word:
            return ("undetermined",)
        if not self.classes:  # it speaks the truth's own classes
            return (word,)
        if word not in self.classes:
            raise ToolError(f"{self.name} said {word!r}, which tools.toml does not map")
        return self.classes[word]


def tools_of(path: Path = TOOLS, environment: Mapping[str, str] = os.environ) -> dict[str, Tool]:
    """The tools of a file, by name. ``{python}`` in a command is this interpreter, ``{NAME}`` an environment variable;
    a tool whose variable is not set has no command."""
    tools = {}
    read = tomllib.loads(path.read_text())
    for name, found in read["tools"].items():
        needs = found.get("needs", "")
        values = {"python": sys.executable, "tools": str(path.parent / "tools"), needs: environment.get(needs, "")}
        command = (
            () if needs and not environment.get(needs) else tuple(part.format(**values) for part in found["command"])
        )
        shared = read["classes"][found["classes_of"]] if "classes_of" in found else {}
        classes = {word: tuple(meant) for word, meant in found.get("classes", shared).items()}
        tools[name] = Tool(name, found["title"], command, found.get("claims", ""), needs, classes)
    return tools


def tool_of(given: str) -> Tool:
    """A tool that ``--tool NAME=COMMAND`` gives; it answers in the classes of the truth."""
    name, _, command = given.partition("=")
    if not name or not command:
        raise ToolError(f"{given!r} is not NAME=COMMAND")
    return Tool(name, name, tuple(shlex.split(command)))


def answers_of(tool: Tool, folders: Sequence[Path]) -> tuple[list[dict[str, Any]], float]:
    """An answer for each folder, and the CPU seconds of the tool's process with what it started."""
    with subprocess.Popen(
        tool.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for folder in folders:
            try:
                process.stdin.write(f"{folder}\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise ToolError(f"{tool.name} ended after {len(answers)} of {len(folders)} folders") from None
            line = process.stdout.readline()
            if not line:
                raise ToolError(f"{tool.name} ended after {len(answers)} of {len(folders)} folders")
            answers.append(_answer(tool, line))
        process.stdin.close()
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return answers, usage.ru_utime + usage.ru_stime


def _answer(tool: Tool, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise ToolError(f"{tool.name} printed a line that is not JSON: {line[:200]!r}") from None
    if not isinstance(found, dict):
        raise ToolError(f"{tool.name} printed no object: {line[:200]!r}")
    return found


@dataclass(frozen=True)
class Row:
    """One line of the table: counts over the cases that the tool can read."""

    tool: Tool
    cases: int
    not_applicable: int
    right_class: int
    right_causes: int  # of the cases whose text names a cause
    causes: int
    culprits_right: int
    culprits_asked: int
    accused: int
    called_healthy: int
    left_open: int
    classes_meant: float  # of an answer, on average: 1 where each word of the tool is one class
    cpu_s: float
    wrong: tuple[str, ...] = ()  # what was said of the cases that are wrong


def judged(tool: Tool, cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], cpu_s: float) -> Row:
    verdicts: list[Verdict] = []
    meant: list[tuple[str, ...]] = []
    is_cause: list[bool] = []
    wrong = []
    for case, answer in zip(cases, answers, strict=True):
        if answer.get("not_applicable"):
            continue
        classes = tool.meant(str(answer.get("class") or ""))
        verdict = held_against(case, classes, list(_culprits(answer)))
        verdicts.append(verdict)
        is_cause.append(not {"undetermined", "healthy"} & {case.fault_class, *case.also})
        meant.append(classes)
        if not verdict.right:
            wrong.append(f"{case.id}: truth {case.fault_class} {list(case.culprits)}, said {json.dumps(answer)}")
    named = [classes for classes in meant if not {"undetermined", "healthy"} & set(classes)]
    asked = [one for one in verdicts if one.right_culprit is not None]
    return Row(
        tool,
        len(cases),
        len(cases) - len(verdicts),
        sum(one.right_class for one in verdicts),
        sum(one.right_class for one, cause in zip(verdicts, is_cause, strict=True) if cause),
        sum(is_cause),
        sum(bool(one.right_culprit) for one in asked),
        len(asked),
        sum(bool(one.accused) for one in verdicts),
        sum(one.called_healthy for one in verdicts),
        sum("undetermined" in classes for classes in meant),
        sum(map(len, named)) / len(named) if named else 0.0,
        cpu_s,
        tuple(wrong),
    )


def _culprits(answer: Mapping[str, Any]) -> Iterator[Culprit]:
    for one in answer.get("culprits") or ():
        yield Culprit(
            rank=one.get("rank"),
            host=one.get("host") or "",
            gpu=one.get("gpu"),
            peer=one.get("peer") or "",
            bus_id=one.get("bus_id") or "",
            nic=one.get("nic") or "",
        )


def first_words() -> str:
    """What ``diag triage`` said of the blind sets before anybody who wrote its rules had seen them."""
    run = total(first_runs())
    return (
        f"class {run.right_class[0]} of {run.right_class[1]}, culprit {run.culprit[0]} of {run.culprit[1]}, "
        f"{run.accused} innocent accused, {run.called_healthy} called healthy and is not"
    )


HEAD = (
    "tool",
    "class right",
    "of them a cause",
    "culprit right",
    "innocent accused",
    "called healthy and is not",
    "left open",
    "not applicable",
    "classes in an answer",
    "CPU s",
)


def table(rows: Sequence[Row]) -> str:
    """Markdown. Shares are of the cases that a tool can read."""
    lines = [HEAD, ("---", *("--:",) * (len(HEAD) - 1)), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    read = row.cases - row.not_applicable
    if not read:
        return (row.tool.title, *("",) * 6, str(row.not_applicable), "", f"{row.cpu_s:.1f}")
    return (
        row.tool.title,
        f"{row.right_class} of {read}",
        f"{row.right_causes} of {row.causes}",
        f"{row.culprits_right} of {row.culprits_asked}",
        str(row.accused),
        str(row.called_healthy),
        str(row.left_open),
        str(row.not_applicable),
        f"{row.classes_meant:.1f}",
        f"{row.cpu_s:.1f}",
    )
