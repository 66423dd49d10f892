"""Real failures: small logs worded as people posted them, each with its thread and what its text decides.

A case is a table ``[[case]]`` of a TOML file in this folder:

- ``id``, ``thread`` (its address), ``versions``;
- ``class``, and ``also`` for other classes that a fair judge would accept;
- ``culprits``: who is at fault as far as the text decides (``rank``, ``host``, ``gpu``, ``nic``, ``peer``); none where
  it does not;
- ``innocent``: who is tempting and must not be named;
- ``names``: what the lines print and the answer has to repeat;
- ``decided_by``: what in the text decides;
- ``log``: one or several tables with ``name`` and ``text``.

``known_wrong.tsv`` lists the cases whose answer is wrong today, with what is missing. ``python -m tests.hang.real``
prints the score and, for each blind set, its first run beside today; with ``--rules`` also what each rule and each
pattern rests on. ``figures`` keeps the first runs and what supports each rule.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag.ended.model import Culprit, culprit_words
from diag.hang.api import triage
from diag.hang.model import Triage

HERE = Path(__file__).parent
NOBODY = ("undetermined", "healthy")


@dataclass(frozen=True)
class Case:
    id: str
    thread: str
    fault_class: str
    also: tuple[str, ...]
    culprits: tuple[dict[str, Any], ...]
    innocent: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    decided_by: str
    logs: tuple[tuple[str, str], ...]  # name, text
    file: str

    @property
    def decidable(self) -> bool:
        """Whether the text names who is at fault."""
        return bool(self.culprits)


@dataclass(frozen=True)
class Verdict:
    """An answer held against the truth of a case, whoever gave it."""

    right_class: bool
    right_culprit: bool | None  # None: the text does not decide
    accused: tuple[Culprit, ...]  # innocent ones that were named
    called_healthy: bool

    @property
    def right(self) -> bool:
        return self.right_class and self.right_culprit is not False and not self.accused and not self.called_healthy


@dataclass(frozen=True)
class Judged(Verdict):
    """What ``diag triage`` says of a case."""

    case: Case
    answer: Triage
    unsaid: tuple[str, ...]  # of ``names``


def cases_of(folder: Path = HERE) -> Iterator[Case]:
    """All cases of the TOML files of a folder. Raises KeyError or tomllib.TOMLDecodeError where one is not whole."""
    for path in sorted(folder.glob("*.toml")):
        for found in tomllib.loads(path.read_text())["case"]:
            yield Case(
                found["id"],
                found["thread"],
                found["class"],
                tuple(found.get("also", ())),
                tuple(found.get("culprits", ())),
                tuple(found.get("innocent", ())),
                tuple(found.get("names", ())),
                found["decided_by"],
                tuple((log["name"], log["text"]) for log in found["log"]),
                path.name,
            )


def known_wrong(folder: Path = HERE) -> dict[str, str]:
    """By the id of a case whose answer is wrong: why. Raises ValueError where a line has no reason."""
    reasons = {}
    for line in (folder / "known_wrong.tsv").read_text().splitlines():
        name, reason = line.split("\t")
        reasons[name] = reason
    return reasons


def write_logs(case: Case, folder: Path) -> None:
    """Writes the case's logs below a folder that is empty."""
    for name, text in case.logs:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.removeprefix("\n"))


def judge(case: Case, folder: Path) -> Judged:
    """Writes the case's logs below ``folder``, which is empty, and holds the answer against the truth."""
    write_logs(case, folder)
    answer = triage([str(folder)])
    shown = [evidence.text for evidence in answer.evidence]
    said = " ".join((answer.headline, culprit_words(answer.culprits), *answer.next_steps, *shown))
    unsaid = tuple(name for name in case.names if name not in said)
    verdict = held_against(case, (answer.fault_class,), answer.culprits)
    return Judged(
        verdict.right_class,
        verdict.right_culprit,
        verdict.accused,
        verdict.called_healthy,
        case=case,
        answer=answer,
        unsaid=unsaid,
    )


def held_against(case: Case, classes: Sequence[str], culprits: Sequence[Culprit]) -> Verdict:
    """An answer of one class, or of one word that stands for several, against the truth."""
    accepted = (case.fault_class, *case.also)
    named = [culprit for culprit in culprits if _names_somebody(culprit)]
    right = None
    open_answer = "undetermined" in classes and "undetermined" in case.also
    if case.decidable and case.fault_class not in NOBODY and not open_answer:
        right = any(_fits(one, culprit) for one in case.culprits for culprit in named)
    accused = [culprit for culprit in named if any(_fits(one, culprit) for one in case.innocent)]
    if case.decidable:
        ranks = {one["rank"] for one in case.culprits if "rank" in one}
        accused += [c for c in named if ranks and c.rank is not None and c.rank not in ranks and c not in accused]
    healthy = tuple(classes) == ("healthy",) and "healthy" not in accepted
    return Verdict(any(name in accepted for name in classes), right, tuple(accused), healthy)


def _names_somebody(culprit: Culprit) -> bool:
    return any(part is not None and part != "" for part in (culprit.rank, culprit.host, culprit.gpu, culprit.peer)) or (
        bool(culprit.devices)
    )


def _fits(truth: dict[str, Any], found: Culprit) -> bool:
    """Whether a culprit is the one meant: by rank, else by host, else by what else the answer tells of it."""
    if "rank" in truth and found.rank is not None:
        return bool(truth["rank"] == found.rank)
    if "host" in truth and found.host:
        return _host(str(truth["host"])) == _host(found.host)
    told = [str(truth[key]) for key in ("peer", "host", "nic", "gpu") if key in truth]
    seen = [text for text in (found.peer, found.host, *found.devices) if text]
    seen += [str(found.gpu)] if found.gpu is not None else []
    return any(_same(text, other) for text in told for other in seen)


def _same(one: str, other: str) -> bool:
    """The same address with and without its port, the same GPU with and without its domain."""
    one, other = (name.lower().partition("<")[0].removeprefix("gpu") for name in (one, other))
    return one == other or (len(one) > 4 and one in other) or (len(other) > 4 and other in one)


def _host(name: str) -> str:
    return name if name.replace(".", "").isdigit() else name.partition(".")[0] or name


def score(judged: Sequence[Judged]) -> dict[str, tuple[int, int]]:
    """(right, of how many) of classes and culprits, and how many of the worst kinds of answers there are."""
    decidable = [one for one in judged if one.right_culprit is not None]
    return {
        "class": (sum(one.right_class for one in judged), len(judged)),
        "culprit": (sum(one.right_culprit is True for one in decidable), len(decidable)),
        "innocent accused": (sum(bool(one.accused) for one in judged), len(judged)),
        "called healthy and is not": (sum(one.called_healthy for one in judged), len(judged)),
        "not repeated": (sum(bool(one.unsaid) for one in judged), sum(bool(one.case.names) for one in judged)),
    }
