"""What is true of each script under each fault, whether diag says so, and the table of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cases import Case
from .running import NOT_FINITE

Json = dict[str, Any]

# Ids of the analyser, in one place: they may be named anew.
STALLED_RANK = frozenset({"stalled-rank", "host-straggler"})
STALLED_ALL = frozenset({"stalled-ranks", "host-stall-cpu", "one-long-stall"})
CONTENDED = frozenset({"contended-host", "contended-ranks"})
DATA_ONE = frozenset({"slow-data-one-rank"})
DATA_ALL = frozenset({"slow-data-all-ranks", "slow-data-bursty"})
ALONE = frozenset({"ranks-train-alone"})
EXCEPTION = frozenset({"rank_killed_exception"})
STORAGE = frozenset({"storage"})  # what a disk that fails raises
HEALTHY = "healthy"
CROWDED = 0.2  # of the time: a rank whose threads are queued for so long in sum shares its core
APART = 2.0  # times as long as any other rank: a rank that was queued so much longer has less of a core than they have
_SCORED = {
    "first": "cause, as the verdict's own",
    "accused": "healthy runs in which an innocent rank is named",
    "rank_right": "rank",
}
_BUSY = (
    "Every rank's waiting for cores is also measured from outside. Where the threads of each were queued for a fifth "
    "of the time, in sum, contention may be reported before what was planted. Where a rank whose core was taken was "
    "queued less than twice as long as the other one, because other processes used both cores, contention of all ranks "
    "is right."
)


def crowded(outcome: Json) -> bool:
    """Whether every rank waited for cores, by what was measured of its threads from outside."""
    queued = outcome.get("queued") or {}
    return bool(queued) and min(queued.values()) >= CROWDED


def drowned(outcome: Json) -> bool:
    """Whether a rank whose core was taken waited for cores hardly longer than the others, measured so: other processes
    had taken the others' cores as well."""
    queued = dict(outcome.get("queued") or {})
    own = queued.pop(str(outcome["rank"]), 0.0)
    return outcome["fault"] == "core-taken" and bool(queued) and own < APART * max(queued.values())


def truth(case: Case, fault: str | None, lost: bool = False) -> Json:
    """``classes`` and ``causes`` that an expert could defend, ``ranks``: the sets of ranks that may be named. ``lost``:
    the fault has drowned in what else ran on the machine."""
    last, one = case.ranks - 1, case.ranks == 1
    innocent: list[list[int]] = [[], [0]] if one else [[]]
    culprit: list[list[int]] = innocent if one else [[last]]
    if case.alone and fault is None:
        return {"classes": None, "causes": sorted(ALONE), "ranks": [[]]}
    if fault is None:
        return {"classes": None, "causes": None, "ranks": [[]]}
    if fault in ("exception", "missing-file"):
        found = EXCEPTION | STORAGE if fault == "missing-file" else EXCEPTION
        return {"crash": sorted(found), "ranks": [[last]]}
    stall = sorted(STALLED_ALL | STALLED_RANK) if one else sorted(STALLED_RANK)
    if fault in ("slow-read", "slow-read-all", "slow-call"):
        every = one or fault == "slow-read-all"
        data = sorted((DATA_ALL if every else DATA_ONE) | (DATA_ONE if one else frozenset()))
        allowed = data if not case.in_loop else sorted({*data, *(STALLED_ALL if every else ()), *stall})
        classes = ["data", "host"] if case.in_loop else ["data"]
        return {"classes": classes, "causes": allowed, "ranks": innocent if every else culprit}
    # Its own loader costs about as much as what is planted, or more.
    own = ["mixed", "data"] if case.data_bound else []
    if fault == "stop-pulses":
        return {"classes": ["host", *own], "causes": stall, "ranks": culprit}
    if fault == "core-taken" and not lost:
        return {"classes": ["host", *own], "causes": sorted(CONTENDED | STALLED_RANK), "ranks": culprit}
    return {
        "classes": ["host", *own],
        "causes": sorted(CONTENDED),
        "ranks": [*innocent, *culprit] if lost else innocent,
    }


def _named(verdict: Json) -> list[int]:
    return sorted((verdict.get("culprit") or {}).get("ranks") or ())


def judge(case: Case, outcome: Json, answer: Json) -> Json:
    """What was answered, and what of it is right: ``class``, ``cause`` and ``rank_right``, each True, False or None
    where nothing is expected of it. ``first``: the cause, without what else is true of a script or of a machine whose
    cores other processes took: there contention may come first and what was planted after it."""
    fault = outcome["fault"]
    expected = truth(case, fault, drowned(outcome))
    if "crash" in expected:
        said = answer["triage"]
        if "verdict" not in said:
            return {"answer": f"no answer: {said.get('error', {}).get('message', '')}", "class": False, "cause": False,
                    "first": False, "rank_right": False, "named": []}  # fmt: skip
        found, named = said["verdict"]["fault_class"], sorted({row["rank"] for row in said.get("culprits", ())})
        right = found in expected["crash"]
        line = said["verdict"].get("headline") or said["verdict"].get("summary") or ""
        return {"answer": f"{found}: {line}", "class": right, "cause": right, "first": right,
                "rank_right": named in expected["ranks"], "named": named, "said_class": found,
                "said_cause": found}  # fmt: skip
    said = answer["analysis"]
    if "verdict" not in said:
        return {"answer": f"no answer: {said.get('error', {}).get('message', '')}", "class": False, "cause": False,
                "first": False, "rank_right": False, "named": []}  # fmt: skip
    verdict = said["verdict"]
    healthy = verdict["severity"] == HEALTHY
    # a healthy verdict names nothing that would have to be changed
    named, cause = ([], "") if healthy else (_named(verdict), verdict["cause"] or "")
    listed = {found["id"] for found in said["findings"] if found["severity"] != HEALTHY}
    own = cause
    several = verdict["bottleneck"] == "mixed" or (case.data_bound and fault is not None)  # the loader, and the fault
    too = fault is not None and crowded(outcome) and cause in CONTENDED
    if (several or too) and expected["causes"] is not None and listed & set(expected["causes"]):
        cause = next(found for found in sorted(listed) if found in expected["causes"])
        if too and expected["classes"] is not None:
            expected["classes"] = [*expected["classes"], "host", "mixed"]
    if case.alone and cause in ALONE:  # true of every run of this script, and worse than what was planted
        expected = {"classes": None if fault is None else [verdict["bottleneck"]], "causes": [cause], "ranks": [named]}
    return {
        "answer": verdict.get("headline") or verdict.get("summary") or "",
        "class": None if expected["classes"] is None else not healthy and verdict["bottleneck"] in expected["classes"],
        "cause": None if expected["causes"] is None else cause in expected["causes"],
        "first": None if expected["causes"] is None else own in expected["causes"],
        "rank_right": named in expected["ranks"], "named": named, "severity": verdict["severity"],
        "said_class": HEALTHY if healthy else verdict["bottleneck"], "said_cause": cause,
        "confidence": verdict.get("confidence"),
    }  # fmt: skip


def same(bare: Json, recorded: Json) -> str:
    """Whether a recorded run printed, wrote and ended as the bare one: "yes", or what is not."""
    differ = []
    if bare["exit_code"] != recorded["exit_code"]:
        differ.append(f"exit code {recorded['exit_code']}, not {bare['exit_code']}")
    if bare["losses"] != recorded["losses"]:
        differ.append("losses differ")
    if bare["outputs"] != recorded["outputs"]:
        differ.append("outputs differ")
    if any(NOT_FINITE in file for file in bare["outputs"]):
        differ.append(f"what the bare run saved {NOT_FINITE}")
    if not differ and not bare["losses"] and not bare["outputs"]:
        return "exit code (no two runs print the same losses)"
    return "; ".join(differ) or "yes"


def steps_right(case: Case, row: Json) -> tuple[int, int]:
    """Steps recorded over the ranks, and how many there were."""
    return sum(row["steps"].values()), case.steps * case.ranks


# -- the table ---------------------------------------------------------------------------------------------------------


def _tick(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "**no**"


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "/").split())


def _row(*cells: object) -> str:
    return "| " + " | ".join(_cell(str(cell)) for cell in cells) + " |"


def score(rows: Sequence[Json]) -> Json:
    """Counts over the rows: causes, classes and ranks right of the faults, and innocents accused of healthy runs."""
    faulty = [row for row in rows if row["fault"]]
    healthy = [row for row in rows if not row["fault"] and row["label"] != "bare"]
    keys = ("class", "cause", "first", "rank_right")
    counts = {key: [sum(bool(row[key]) for row in faulty), len(faulty)] for key in keys}
    return counts | {"accused": [sum(bool(row["named"]) for row in healthy), len(healthy)]}


def summary(rows: Sequence[Json]) -> list[str]:
    """The score in lines."""
    counts = score(rows)
    lines = [f"{key} right: {right}/{total}" for key, (right, total) in counts.items() if key != "accused"]
    return [*lines, "innocents accused in healthy runs: {}/{}".format(*counts["accused"])]


def table(cases: Sequence[Case], rows: Sequence[Json], about: str, title: str) -> str:
    """The page: the scripts, then their faults, then the score."""
    by_case = {case.name: [row for row in rows if row["case"] == case.name] for case in cases}
    lines = [
        f"# {title}", "", about, "", "## Scripts", "",
        "Steps: recorded of all ranks / run by all ranks, in the healthy run. Same: losses (or the saved tensors) and "
        "exit code of the recorded run are those of the run without diag.", "",
        _row("script", "launcher", "steps", "same", "healthy verdict", "accused"),
        _row("---", "---", "--:", "---", "---", "---"),
    ]  # fmt: skip
    for case in cases:
        for row in by_case[case.name]:
            if row["label"] != "healthy":
                continue
            repo, commit = case.source
            where = f"{repo} `{(case.folder + '/' + case.script).strip('/')}` @ {commit[:8]}"
            right, total = steps_right(case, row)
            lines.append(_row(
                f"{case.name}: {where}", " ".join(case.launcher[:2]) or "diag run --nproc 2", f"{right}/{total}",
                row["same"], f"{row['said_class']}: {row['said_cause'] or '-'}" if "said_class" in row
                else row["answer"], row["named"] or "",
            ))  # fmt: skip
    lines += ["", "What was changed or is particular:", ""]
    for case in cases:
        if by_case[case.name] and (case.changes or case.note):
            parts = [f"{change.file}: `{_cell(change.old)}` becomes `{_cell(change.new)}` ({change.why})"
                     for change in case.changes]  # fmt: skip
            lines.append(f"- {case.name}: {'; '.join([*([case.note] if case.note else []), *parts])}")
    lines += [
        "", "## Faults", "", _BUSY, "",
        _row("script", "fault", "rank", "class", "right", "cause", "right", "named", "right", "verdict"),
        _row(*["---"] * 10),
    ]  # fmt: skip
    for case in cases:
        for row in by_case[case.name]:
            if row["fault"]:
                lines.append(_row(
                    case.name, row["fault"], row["rank"] if case.ranks > 1 and not row["all_ranks"] else "all",
                    row.get("said_class", ""), _tick(row["class"]), row.get("said_cause", "") or "-",
                    _tick(row["cause"]), row["named"] or "-", _tick(row["rank_right"]), row["answer"],
                ))  # fmt: skip
    lines += ["", "## Score", "", _row("", "right", "of"), _row("---", "--:", "--:")]
    for key, (right, total) in score(rows).items():
        lines.append(_row(_SCORED.get(key, key), right, total))
    return "\n".join(lines) + "\n"
