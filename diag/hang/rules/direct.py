"""Faults that a single line names: whoever prints it is at fault."""

from __future__ import annotations

from collections.abc import Iterable

from diag.hang.case import Case, bus_number, culprit_of, distinct
from diag.hang.model import Clue, Culprit, Line, Role
from diag.hang.rules.launcher import speaker_of
from diag.hang.signatures import CLASSES
from diag.hang.signatures.base import Hit

_CLASSES = (
    "gpu_hardware",
    "ib_device_fatal",
    "ib_link_down",
    "shm_exhausted",
    "cuda_oom",
    "nvls_multicast",
    "net_no_interface",
    "gdr_acs",
    "ib_unreachable_rail",
    "memlock_limit",
    "ddp_unused_parameters",
)
_MOST_LINES = 6


def clues(case: Case) -> list[Clue]:
    found = [clue for name in _CLASSES if (clue := _of_class(case, name)) is not None]
    duplicate = _duplicate_gpu(case)
    return [*found, duplicate] if duplicate is not None else found


def _of_class(case: Case, name: str) -> Clue | None:
    hits = case.of_class(name)
    roots = [hit for hit in hits if hit.signature.role == Role.ROOT and not _tried_again(hit)]
    if not roots:
        return None
    others = [hit for hit in hits if hit.signature.role == Role.CONFIRMATION]
    culprits = _without_vague([(hit, _culprit(case, hit)) for hit in roots])
    return clue_of(name, roots, culprits, note_of(first_by_time(roots)), others)


def _without_vague(found: list[tuple[Hit, Culprit]]) -> list[Culprit]:
    """A line may say the same twice, once with the device: then the rank that this gives counts. Messages without a
    name repeat what a line with one says."""
    ranked = {hit.line for hit, culprit in found if culprit.rank is not None}
    clear = [culprit for hit, culprit in found if culprit.rank is not None or hit.line not in ranked]
    hosts = {culprit.host for culprit in clear if culprit.rank is not None and culprit.host}
    hostless = any(culprit.rank is not None and not culprit.host for culprit in clear)
    named = [c for c in clear if c.rank is not None or c.peer or (c.host and c.host not in hosts and not hostless)]
    return named or [culprit for culprit in clear if culprit.host] or clear


def _tried_again(hit: Hit) -> bool:
    return hit.line.level == "INFO" and "retrying" in hit.line.text


def note_of(hit: Hit) -> str:
    """The signature's sentence with what the line tells; a text from a log is shortened."""
    groups = {name: value if len(value) <= 60 else f"{value[:59]}…" for name, value in hit.groups.items()}
    try:
        return hit.signature.says.format_map(groups)
    except KeyError:  # this version's line tells less
        return f"{CLASSES[hit.fault_class.id].title.capitalize()}." if hit.fault_class.id in CLASSES else ""


def clue_of(
    name: str,
    roots: list[Hit],
    culprits: Iterable[Culprit],
    note: str,
    others: Iterable[Hit] = (),
    confidence: float | None = None,
) -> Clue:
    """A root clue of one class, from its lines: the first of every culprit, in order."""
    sure = max(hit.signature.confidence for hit in roots) if confidence is None else confidence
    lines = [first_by_time(roots).line, *(hit.line for hit in roots), *(hit.line for hit in others)]
    return Clue(
        fault_class=name,
        role=Role.ROOT,
        culprits=distinct(list(culprits)),
        evidence=tuple(dict.fromkeys(line.evidence for line in lines))[:_MOST_LINES],
        confidence=sure,
        note=note,
        time_ns=time_of([hit.line for hit in roots]),
    )


def ranks_in(text: str) -> list[int]:
    """``0, 1, 3``; what no rank can be is passed over."""
    return [int(word) for word in text.replace(",", " ").split() if word.isdecimal() and len(word) < 10]


def first_by_time(hits: list[Hit]) -> Hit:
    timed = [hit for hit in hits if hit.line.time_ns is not None]
    return min(timed, key=lambda hit: hit.line.time_ns or 0) if timed else hits[0]


def time_of(lines: Iterable[Line]) -> int | None:
    times = [line.time_ns for line in lines if line.time_ns is not None]
    return min(times) if times else None


def _culprit(case: Case, hit: Hit) -> Culprit:
    """The driver names a GPU by its PCI address, which the communicators tie to a rank of that host."""
    found = speaker_of(case, hit.line)
    number = bus_number(hit.groups.get("bus_id", ""))
    if number is not None and found.rank is None:
        for process in case.logs.processes:
            if bus_number(process.bus_id) == number and found.host in ("", process.host):
                candidates = [p for p in case.logs.processes if bus_number(p.bus_id) == number]
                if found.host or len(candidates) == 1:
                    return culprit_of(process)
    return found


def _duplicate_gpu(case: Case) -> Clue | None:
    """Both ranks of the pair, which every one of them reports for itself."""
    hits = case.named("duplicate-gpu")
    if not hits:
        return None
    culprits = []
    for hit in hits:
        own = case.culprit(hit.line)
        offset = (own.rank or 0) - int(hit.groups["group_rank"]) if own.rank is not None else 0
        for name in ("group_rank", "other_group_rank"):
            rank = int(hit.groups[name]) + offset
            found = case.of_rank(rank)
            # NCCL compares the hosts before it says so: both are on the one that speaks.
            culprits.append(found if found.host else Culprit(rank, own.host))
    return clue_of("duplicate_gpu", hits, culprits, note_of(hits[0]))
