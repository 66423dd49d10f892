"""Hang triage for callers: paths in, a triage out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from diag.collectors.layout import RankLayout, RunLayout, is_folder, without_first
from diag.collectors.masking import masked
from diag.collectors.reading import walk
from diag.ended.model import FULL
from diag.errors import DiagError
from diag.hang.policy import HANG_ANSWER, HANG_DUMPS
from diag.words.formatting import listing, spaced, visible
from diag.words.places import in_command, shown

from .model import Communicator, Logs, Member, Stack, Triage, absent_of
from .wording import by_reason as by_reason
from .wording import guess_words as guess_words
from .wording import is_incomplete

if TYPE_CHECKING:
    from diag.ended.read import Rundir
    from diag.hang.flight import Dumps
    from diag.hang.ras.client import Asked

# -- One answer for a training that its launcher restarted: the first known cause, and what followed -------------------


def reported(attempts: Sequence[Triage | None]) -> int:
    """The index of the attempt to report: the first with a known cause, else with a guess, else the first that left
    anything. ``None`` stands for an attempt that left nothing to read. Raises ValueError where all are."""
    present = [number for number, attempt in enumerate(attempts) if attempt is not None]
    if not present:
        raise ValueError("no attempt left anything")

    def rank(number: int) -> tuple[int, int]:
        attempt = attempts[number]
        assert attempt is not None
        return (0 if _names_a_cause(attempt) else 1 if attempt.guesses else 2), number

    return min(present, key=rank)


def with_others(attempts: Sequence[Triage | None]) -> Triage:
    """The triage of the attempt to report; its headline also says how the other attempts ended. Raises ValueError as
    ``reported`` does."""
    chosen = reported(attempts)
    answer = attempts[chosen]
    assert answer is not None
    sentences = [_before(attempts[:chosen])] if chosen else []
    evidence = list(answer.evidence)
    again: list[int] = []
    for number, later in enumerate(attempts[chosen + 1 :], chosen + 1):
        if later is not None and _is_same(later, answer):
            again.append(number)
        else:
            sentences.append(_after(number, later))
        evidence += later.evidence[: HANG_ANSWER.most_outcome_evidence] if later is not None and later.culprits else ()
    if again:
        which = f"restart{'s' if len(again) > 1 else ''} {', '.join(map(str, again))}"
        same = (
            f"After {which} it failed again, in the same way."
            if _names_a_cause(answer)
            else f"It was the same after {which}."
        )
        sentences.insert(bool(chosen), same)
    first = answer.headline if answer.headline.endswith((".", "!")) else f"{answer.headline}."
    return replace(answer, headline=" ".join((first, *sentences)), evidence=tuple(dict.fromkeys(evidence)))


def _names_a_cause(attempt: Triage) -> bool:
    from diag.hang.classes import CLASSES

    return CLASSES[attempt.fault_class].names_a_cause


def _is_same(later: Triage, first: Triage) -> bool:
    """Whether two attempts failed alike: same class, ranks and words. One may have left more about its end."""
    ranks = [[culprit.rank for culprit in attempt.culprits] for attempt in (later, first)]
    short, long = sorted((attempt.headline.rstrip(".") for attempt in (later, first)), key=len)
    return later.fault_class == first.fault_class and ranks[0] == ranks[1] and long.startswith(short)


def _before(attempts: Sequence[Triage | None]) -> str:
    words = "the first attempt" if len(attempts) == 1 else f"the first {len(attempts)} attempts"
    which = "the first restart" if len(attempts) == 1 else f"restart {len(attempts)}"
    return f"That was after {which}: the records of {words} name no cause."


def _after(number: int, attempt: Triage | None) -> str:
    if attempt is None:
        return f"After restart {number} it left no logs or records."
    if attempt.fault_class == "healthy":
        return f"After restart {number}: {attempt.headline}"
    if not _names_a_cause(attempt):
        return f"After restart {number} no cause is known: {attempt.headline}"
    return f"After restart {number} it failed in another way: {attempt.headline}"


STDIN = "-"

T = TypeVar("T")


@dataclass(frozen=True)
class Investigation:
    """A triage with the logs and dumps that it was drawn from."""

    triage: Triage
    logs: Logs
    dumps: Dumps
    backends: frozenset[str] = frozenset()  # of the process groups of the run directories

    @property
    def may_use_nccl(self) -> bool:
        """Whether NCCL's variables may show more. Looks through the logs."""
        from diag.hang.job import JobLogs
        from diag.hang.reason import may_use_nccl

        return may_use_nccl(JobLogs(self.logs), self.backends)


_HEARTBEAT = RankLayout(Path()).heartbeat.name


def newest_write(path: str) -> int:
    """The time of the last write at or below a path, Unix time in ns; 0 where it cannot be read. Heartbeats, which come
    every second, do not count: the state of the run says what they show."""
    times = [0]
    for entry in (path, *(walk(path, order=None) if is_folder(path) else ())):
        if Path(entry).name == _HEARTBEAT:
            continue
        with suppress(OSError):  # removed meanwhile
            times.append(Path(entry).stat().st_mtime_ns)
    return max(times)


def incomplete(answer: Triage) -> bool:
    """Whether a file could not be read completely."""
    return any(path and is_incomplete(reason) for path, reason in answer.gaps)


def triage(
    paths: Iterable[str], progress: Callable[[int, int, str], None] | None = None, ras: Sequence[Asked] = ()
) -> Triage:
    """The cause of a hang or crash and the culprits. See ``investigate``."""
    return investigate(paths, progress, ras).triage


def investigate(
    paths: Iterable[str], progress: Callable[[int, int, str], None] | None = None, ras: Sequence[Asked] = ()
) -> Investigation:
    """The triage of the logs, Flight Recorder dumps and NCCL RAS reports below ``paths``, with what was read.

    ``paths``: files and folders, "-" for standard input. Logs and dumps are recognised by content. A single run
    directory stands for all attempts of its training: each is triaged by itself, one is returned, and its headline says
    how the others ended. ``progress`` is called with (files read, number of files, file). ``ras``: reports that a
    running job has just given. Raises DiagError where there is nothing to read.
    """
    given = list(dict.fromkeys(paths))
    sources = [without_first(path) for path in given]
    one = len(sources) == 1 and sources == given and sources[0] != STDIN and not ras
    restarts = RunLayout(Path(sources[0])).restarts() if one else []
    if not restarts:
        return _investigated(sources, progress, ras)
    attempts: list[Investigation | None] = []
    missing: DiagError | None = None
    for path in (sources[0], *(str(layout.root) for layout in restarts)):
        try:
            attempts.append(_investigated([path], progress, ()))
        except DiagError as error:  # it ended before it left anything
            attempts.append(None)
            missing = missing or error
    answers = [attempt.triage if attempt is not None else None for attempt in attempts]
    if missing is not None and not any(answers):
        raise missing
    chosen = attempts[reported(answers)]
    assert chosen is not None
    return replace(chosen, triage=with_others(answers))


def _investigated(
    paths: list[str], progress: Callable[[int, int, str], None] | None, ras: Sequence[Asked]
) -> Investigation:
    from diag.ended.rundir import clues_of as clues_of_run
    from diag.ended.rundir import read_runs
    from diag.ended.state import ended_well, is_over, standing
    from diag.hang.classes import anchors
    from diag.hang.flight import clues_of, read_dumps
    from diag.hang.ras.clues import completed, findings_of
    from diag.hang.ras.read import ANCHORS, overheard, read_reports
    from diag.hang.reason import reason
    from diag.hang.text import read_logs

    if not paths and not ras:
        raise DiagError("no log was given", hint="give log files, folders of logs, or - for standard input")
    with overheard(STDIN in paths) as stdin:
        logs = read_logs(paths, (*anchors(), *ANCHORS), progress)
        with_reports = [line.path for line in logs.lines if any(anchor in line.raw for anchor in ANCHORS)]
        reports = read_reports(with_reports, ras, stdin, paths)
    dumps = read_dumps([path for path in paths if path != STDIN])
    from_dumps = clues_of(dumps, logs.world_size)
    runs = read_runs(paths)
    logs = _without_earlier_stacks(_without_what_followed(logs, runs), runs)
    # A log given in addition to the run may be of another job.
    well = ended_well(runs[0]) if len(runs) == len(paths) == 1 else None
    state = standing(runs[0]) if len(runs) == len(paths) == 1 else None
    from_runs = [clue for run in runs for clue in clues_of_run(run)]
    logs = replace(logs, gaps=tuple(dict.fromkeys((*logs.gaps, *(gap for run in runs for gap in run.gaps)))))
    if not logs.paths and not dumps.paths and not from_runs and state is None and not reports.reports:
        reasons = "; ".join(f"{visible(path)}: {reason}" for path, reason in logs.gaps[:3] if path)
        raise DiagError(
            "no log and no Flight Recorder dump was found" + (f" ({reasons})" if reasons else ""),
            hint="give text logs of the ranks (NCCL_DEBUG=INFO), torchrun's output, or dumps; folders are searched",
            path=paths[0] if paths else None,
        )
    # A dump is not a text, and JSON in one long line is not a log: neither is a gap.
    known = {*dumps.paths, *reports.json_paths}
    logs = replace(logs, gaps=tuple(gap for gap in logs.gaps if gap[0] not in known))
    findings = findings_of(reports, logs)
    backends = frozenset(run.backend for run in runs if run.backend)
    pids = {rank: record.pid for run in runs for rank, record in run.ranks.items() if record.pid is not None}
    ended = bool(runs) and all(map(is_over, runs))
    recorded = 0 < len(runs) == len(paths) and all(run.ranks for run in runs)
    answer = reason(logs, from_dumps, [*from_runs, *findings.clues], well, state, backends, pids, ended, recorded)
    answer = _with_tracebacks(answer, runs)
    answer = _as_shown(_without_secrets(_with_snapshot(completed(answer, findings), paths)))
    answer = with_steps_while_stuck(answer, runs)
    answer = replace(answer, next_steps=answer.next_steps[: HANG_ANSWER.next_steps_shown])
    return Investigation(answer, logs, dumps, backends)


def _with_tracebacks(answer: Triage, runs: Sequence[Rundir]) -> Triage:
    """The answer with the stacks in which the ranks at fault raised what ended them, instead of those of their last
    collectives, which they had left."""
    from diag.ended.ends import raised_by, stack_of_exception
    from diag.hang.classes import CLASSES

    if not CLASSES[answer.fault_class].ending:
        return answer
    faulty = sorted({culprit.rank for culprit in answer.culprits if culprit.rank is not None})
    stacks: dict[int, Stack] = {}
    for rank in faulty:
        of_rank = [run for run in runs if rank in run.ranks]
        if len(of_rank) != 1 or rank not in raised_by(of_rank[0]):  # of two jobs
            continue
        if (found := stack_of_exception(of_rank[0].ranks[rank])) is not None:
            stacks[rank] = Stack(rank, "culprit, where it raised its exception", *found)
    if not stacks:
        return answer
    most = list(stacks.values())[: HANG_DUMPS.culprits_named]
    return replace(answer, stacks=(*most, *(stack for stack in answer.stacks if stack.rank not in stacks)))


def _as_shown(answer: Triage) -> Triage:
    """The triage with the paths that the user knows."""
    return replace(
        answer,
        evidence=tuple(replace(evidence, path=shown(evidence.path)) for evidence in answer.evidence),
        gaps=tuple((shown(path) if path else path, reason) for path, reason in answer.gaps),
    )


def _without_what_followed(logs: Logs, runs: Iterable[Rundir]) -> Logs:
    """The logs without the exceptions that ranks raised only after ``diag run`` had ended them."""
    late = {
        str(RunLayout(run.manifest.parent).rank(rank).log): {f"{error.name}: {error.message}" for error in chain.errors}
        for run in runs
        for rank, record in run.ranks.items()
        if (chain := record.raised_late) is not None
    }
    if not late:
        return logs
    lines = tuple(
        line for line in logs.lines if not any(line.text.strip().startswith(text) for text in late.get(line.path, ()))
    )
    return replace(logs, lines=lines)


def _without_earlier_stacks(logs: Logs, runs: Iterable[Rundir]) -> Logs:
    """The logs without stacks that were taken in an earlier standstill: the training has gone on since."""
    early = {str(file) for run in runs for file in run.stack_files()[1]}
    return replace(logs, lines=tuple(line for line in logs.lines if line.path not in early)) if early else logs


def _with_snapshot(answer: Triage, paths: Sequence[str]) -> Triage:
    """After a CUDA out-of-memory error the first next step is to look at the allocator's snapshot, if there is one."""
    if answer.fault_class != FULL:
        return answer
    from diag.ended.out_of_memory import look_at_snapshot

    layouts = [RunLayout(Path(path)) for path in paths if path != STDIN]
    step = look_at_snapshot(layouts, {culprit.rank for culprit in answer.culprits})
    return replace(answer, next_steps=(step, *answer.next_steps)) if step else answer


def with_steps_while_stuck(answer: Triage, runs: Sequence[Rundir]) -> Triage:
    """While a run is stuck, the first next steps are to let a stopped process go on, and to take the stacks if they
    were not taken."""
    from diag.rundir.states import State

    live = [run for run in runs if run.judged is not None and run.judged.state is State.STUCK]
    if not live:
        return answer
    run, faulty = live[0], {culprit.rank for culprit in answer.culprits}
    stopped = {
        rank: f"`kill -CONT {record.pid}`{f' on {record.culprit.host}' if record.culprit.host else ''}"
        for rank, record in sorted(run.ranks.items())
        if record.stopped and rank in faulty
    }
    first = []
    if stopped:
        commands = ", ".join(list(stopped.values())[: HANG_ANSWER.most_commands])
        why = "A debugger, job control or a batch system that suspends jobs stops a process."
        first.append(f"Let {spaced(listing(list(stopped)))} go on: {commands}. {why}")
    if not answer.merged_stacks:
        first.append(f"Take the stacks of all ranks: `diag triage {in_command(str(run.manifest.parent))} --stacks`.")
    return replace(answer, next_steps=(*first, *answer.next_steps))


def _without_secrets(value: T) -> T:
    """A value with secrets masked: lines of logs hold command lines, and a triage is passed around. Paths stay."""
    changed: Any = value
    if isinstance(value, str):
        changed = masked(value)
    elif isinstance(value, tuple):
        changed = tuple(map(_without_secrets, value))
    elif is_dataclass(value) and not isinstance(value, type):
        values = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "path"}
        changed = replace(value, **{name: _without_secrets(item) for name, item in values.items()})
    return cast(T, changed)


# -- The last call of every rank in every group: communicators from logs, process groups from dumps --------------------


class At(StrEnum):
    """A member's position, relative to the furthest member of the group."""

    HERE = "as far as any other"
    BEHIND = "behind the others"
    UNFINISHED = "has not finished what others finished"
    INITIALISING = "initialises the communicator"
    NEVER_BEGAN = "never began to initialise it"
    ENDED = "has left it"
    UNKNOWN = "no information about it"


@dataclass(frozen=True)
class Place:
    """One member. ``rank``: global, None where unknown; ``last``: its last call, ``op`` and ``at_call`` its operation
    and its number as written in the logs; "" where unknown."""

    group_rank: int
    rank: int | None
    at: At
    last: str = ""
    number: int | None = None
    waits: bool = False  # the call is not finished, as far as its recorder knows
    op: str = ""
    at_call: str = ""
    finished: int | None = None  # the last call that it has left, as far as its recorder knows


@dataclass(frozen=True)
class GroupPlaces:
    title: str
    size: int
    members: tuple[Place, ...]
    from_dumps: bool

    @property
    def uneven(self) -> bool:
        return len({place.at for place in self.members}) > 1

    def holds(self, ranks: Collection[int]) -> bool:
        return any(place.rank in ranks for place in self.members)


def places_of(logs: Logs, dumps: Dumps, culprits: Collection[int] = ()) -> tuple[GroupPlaces, ...]:
    """All groups of two members and more: those with members that are behind others first, then those of which some
    members are not known, then those of the culprits, then the largest."""
    groups = [_of_communicator(logs, communicator) for communicator in logs.communicators if communicator.size > 1]
    groups += _of_dumps(dumps)

    def order(group: GroupPlaces) -> tuple[object, ...]:
        faulty = any(place.at not in (At.HERE, At.UNKNOWN) for place in group.members)
        return not faulty, not group.uneven, not group.holds(culprits), -group.size, group.title

    return tuple(sorted(groups, key=order))


def _of_communicator(logs: Logs, communicator: Communicator) -> GroupPlaces:
    by_rank = {member.group_rank: member for member in communicator.members}
    most = max((m.calls[-1].op_count for m in communicator.members if m.calls), default=None)
    began = any(member.started for member in communicator.members)
    members = []
    # Where a few of very many members were read, the others would be the same line a million times.
    for number in range(communicator.size) if absent_of(communicator.size, by_rank) else sorted(by_rank):
        member = by_rank.get(number)
        rank = number if communicator.size == logs.world_size else None
        if member is not None and member.process is not None:
            rank = logs.processes[member.process].rank if logs.processes[member.process].rank is not None else rank
        members.append(_member(number, rank, member, most, began))
    title = f"communicator {communicator.comm_id}" if communicator.comm_id else "communicator without an id"
    return GroupPlaces(title, communicator.size, tuple(members), from_dumps=False)


def _member(number: int, rank: int | None, member: Member | None, most: int | None, began: bool) -> Place:
    if member is None:
        return Place(number, rank, At.NEVER_BEGAN if began else At.UNKNOWN)
    call = member.calls[-1] if member.calls else None
    if member.ended:
        at = At.ENDED
    elif not member.completed and member.started:
        at = At.INITIALISING
    else:
        at = At.HERE if most is None or (call is not None and call.op_count == most) else At.BEHIND
    if call is None:
        return Place(number, rank, at)
    at_call = f"{call.op_count:#x}"
    return Place(number, rank, at, f"{call.op} {at_call}", call.op_count, op=call.op, at_call=at_call)


def _of_dumps(dumps: Dumps) -> list[GroupPlaces]:
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for dump in dumps.dumps.values():
        for name, group in dump.groups.items():
            if group.ranks or name not in names:
                names[name] = group.title, group.ranks
    groups = []
    for name, (title, listed) in names.items():
        ranks = listed or tuple(sorted(dumps.dumps))
        called = {rank: dumps.dumps[rank].called(name) for rank in ranks if rank in dumps.dumps}
        most = max((number for number in called.values() if number is not None), default=None)
        if len(ranks) > 1 and most is not None:
            members = tuple(_of_dump(dumps, name, i, rank, called.get(rank), most) for i, rank in enumerate(ranks))
            groups.append(GroupPlaces(title, len(ranks), _unfinished(members), from_dumps=True))
    return groups


def _unfinished(members: tuple[Place, ...]) -> tuple[Place, ...]:
    """The members of a group, where one that has called as much as any other may still be in a call that others have
    left."""
    most = max((place.finished for place in members if place.finished is not None), default=0)
    return tuple(
        replace(place, at=At.UNFINISHED)
        if place.at == At.HERE and place.finished is not None and place.finished < most
        else place
        for place in members
    )


def _of_dump(dumps: Dumps, group: str, group_rank: int, rank: int, number: int | None, most: int) -> Place:
    dump = dumps.dumps.get(rank)
    if dump is None or number is None:  # a recorder that lost entries may have held a call
        return Place(group_rank, rank, At.BEHIND if dump is not None and dump.whole else At.UNKNOWN)
    at_call = f"#{number}"
    unfinished = [op.number for op in dump.pending if op.group == group and not op.p2p]
    pending = [op for op in dump.pending if op.group == group and op.number == number]
    recent = [op for op in dump.recent.get(group, ()) if op.number == number]
    last = next(iter((*pending, *recent)), None)
    return Place(
        group_rank,
        rank,
        At.HERE if number == most else At.BEHIND,
        last.title if last is not None else at_call,
        number,
        waits=bool(pending),
        op=last.name if last is not None else "",
        at_call=at_call,
        finished=min(unfinished, default=number + 1) - 1,
    )
