"""Clues to a hang or a crash in a run directory: collectives that differ, how ranks ended, which ranks stall."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import CHECKPOINT, EVALUATION, HANG, RankExit
from diag.hang.model import Clue, Evidence
from diag.hang.raised import Chain, about_the_group
from diag.hang.rundir.read import CalledCollective, Rank, Rundir
from diag.hang.wording import begun
from diag.words.formatting import counted, listing, spaced

# -- Processes that ended by themselves: exceptions and exit codes -----------------------------------------------------
#
# torchrun's guess at the root cause is not used: a rank that loses a peer often ends before that peer does.

_SIGNALS = {
    signal.SIGKILL: "rank_killed_sigkill",
    signal.SIGBUS: "rank_killed_sigbus",
    signal.SIGSEGV: "rank_killed_sigsegv",
}
_BY_SIGNAL = 0.9
_RAISED = 0.87  # an exception of its own, not about other ranks
_BY_CODE = 0.85
_RAISED_BY_SEVERAL = 0.75
_ABORTED = 0.6  # C++ calls abort() after any error, also after one that a peer caused
_CONNECTION = 0.6  # it lost a connection, while all the others were still running
_APART_S = 2  # clocks of two hosts differ, and error files have whole seconds
_LAST_LINES = 15
_WARNING = re.compile(r"\[W[ \d]")  # of torch, also about a connection that is retried
_MOST_EVIDENCE = 4
RAISED_ITSELF = 1


def clues_of_ends(run: Rundir, explained: bool = False) -> list[Clue]:
    """A clue for the ranks that raised an exception that is not about others, whatever their exit codes; else one for
    each rank that ended before the launcher ended the others. ``explained``: the ranks' calls differ, so an abort is a
    consequence."""
    chains = raised_by(run)
    first = {
        rank: record.exit for rank, record in sorted(run.ranks.items()) if record.exit is not None and record.exit.first
    }
    not_killed = (-signal.SIGTERM, -signal.SIGABRT)
    killed = {rank: ended for rank, ended in first.items() if ended.exit_code < 0 and ended.exit_code not in not_killed}
    raised = {rank: chain for rank, chain in chains.items() if not killed or rank in first}
    clues = [_ended(run, rank, ended, _victims(run, {*killed, *raised})) for rank, ended in killed.items()]
    if raised:
        clues.append(_raised(run, raised, set(first)))
    elif not killed:
        victims = _victims(run, first)
        clues += [clue for rank, ended in first.items() if (clue := _by_code(run, rank, ended, explained, victims))]
    return clues


def raised_by(run: Rundir) -> dict[int, Chain]:
    return {
        rank: record.raised
        for rank, record in sorted(run.ranks.items())
        if record.raised is not None and not record.raised.about_others and _ended_by_it(record)
    }


def lost_a_peer(record: Rank) -> bool:
    """Whether a rank ended because of its peers, by its exception or its last lines."""
    if record.raised is not None and _ended_by_it(record):
        return record.raised.about_others
    last = [line for line in record.log.splitlines()[-_LAST_LINES:] if not _WARNING.search(line)]
    return any(map(about_the_group, last))


def place_of(record: Rank, code: int) -> int:
    """A number for a rank that ended with an error: the culprit's is smaller."""
    record = replace(record, exit=RankExit(record.culprit.rank or 0, code))
    if code < 0 and code not in (-signal.SIGTERM, -signal.SIGABRT):
        return 0
    if record.raised is not None and not record.raised.about_others and _ended_by_it(record):
        return RAISED_ITSELF
    if code == -signal.SIGTERM:
        return 4
    return 3 if lost_a_peer(record) else 2


def _ended_by_it(record: Rank) -> bool:
    """Whether the rank's exception ended its process. A traceback on standard error may have been caught. Python ends
    with a positive code after an uncaught exception, and C++ may still abort on the way out; torchrun's error file
    holds uncaught ones only."""
    if record.error:
        return True
    code = record.exit.exit_code if record.exit is not None else 0
    return code > 0 or code == -signal.SIGABRT or (record.beat is not None and record.beat.failed)


def _victims(run: Rundir, culprits: Collection[int]) -> tuple[int, ...]:
    """The other ranks, without those that raised an exception of their own."""
    raised = raised_by(run)
    return tuple(rank for rank in sorted(run.ranks) if rank not in culprits and rank not in raised)


def _raised(run: Rundir, chains: Mapping[int, Chain], first: Collection[int]) -> Clue:
    """One clue: the ranks that raised first, as far as that is known, else all."""
    ranks = _earliest(run, [rank for rank in chains if rank in first] or list(chains))
    later = [rank for rank in chains if rank not in ranks]
    note = _who_raised(run, ranks, first)
    if later:
        note += f"; later {_each(chains, later)}"
    return Clue(
        "rank_killed_exception",
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(line for rank in ranks[:_MOST_EVIDENCE] for line in _evidence_of_ends(run.ranks[rank])),
        _RAISED if len(ranks) == 1 else _RAISED_BY_SEVERAL,
        note,
        _victims(run, chains),
    )


def _earliest(run: Rundir, ranks: list[int]) -> list[int]:
    """The first by the times in error files, where all have one."""
    times = {rank: run.ranks[rank].raised_at for rank in ranks}
    if not all(times.values()):
        return ranks
    return [rank for rank in ranks if times[rank] - min(times.values()) < _APART_S]


def _who_raised(run: Rundir, ranks: list[int], first: Collection[int]) -> str:
    chains = {rank: chain for rank in ranks if (chain := run.ranks[rank].raised) is not None}
    if len({chain.words for chain in chains.values()}) > 1:
        return f"{begun(_each(chains, ranks))}; it is unknown which was first"
    words, ended = chains[ranks[0]].words, run.ranks[ranks[0]].exit
    if len(ranks) > 1:
        return f"They raised {words}"
    if ended is not None and ended.exit_code > 0 and ranks[0] in first:
        return f"It raised {words}, and ended with exit code {ended.exit_code} while the others were still running"
    before = sorted(rank for rank in first if rank not in ranks)
    if before:
        return (
            f"It raised {words}; {spaced(listing(before))} ended before it, with no exception but that of a lost peer"
        )
    return f"It raised {words}"


def _each(chains: Mapping[int, Chain], ranks: Iterable[int]) -> str:
    """``rank 0 raised ..; ranks 1, 2 raised ..``."""
    by_words: dict[str, list[int]] = {}
    for rank in ranks:
        by_words.setdefault(chains[rank].words, []).append(rank)
    return "; ".join(f"{spaced(listing(same))} raised {words}" for words, same in by_words.items())


def _by_code(run: Rundir, rank: int, ended: RankExit, explained: bool, victims: tuple[int, ...]) -> Clue | None:
    """The clue for a rank that raised nothing of its own."""
    record = run.ranks[rank]
    if lost_a_peer(record):
        chain = record.raised
        if chain is None or about_the_group(str(chain.errors[0])) or not _others_lived(run, rank):
            return None
        note = (
            f"It raised {chain.words}, and ended with exit code {ended.exit_code} while all others were still running"
        )
        return Clue(
            "rank_killed_exception", (record.culprit,), tuple(_evidence_of_ends(record)), _CONNECTION, note, victims
        )
    if ended.exit_code == 0 or -ended.exit_code == signal.SIGTERM or (-ended.exit_code == signal.SIGABRT and explained):
        return None
    return _ended(run, rank, ended, victims)


def _others_lived(run: Rundir, rank: int) -> bool:
    """Whether the launcher ended every other rank: then none of them was the lost peer."""
    others = [record.exit for number, record in run.ranks.items() if number != rank]
    lived = [ended for ended in others if ended is not None and -ended.exit_code == signal.SIGTERM and not ended.first]
    return len(lived) == len(others) and run.world_size == len(run.ranks)


def _ended(run: Rundir, rank: int, ended: RankExit, victims: tuple[int, ...]) -> Clue:
    record = run.ranks[rank]
    if ended.exit_code < 0:
        number = -ended.exit_code
        known = number in set(signal.Signals)
        name = signal.Signals(number).name if known else f"signal {number}"
        fault = _SIGNALS.get(signal.Signals(number)) if known else None
        note = f"It was ended by {name} while the others were still running."
        sure = _BY_SIGNAL if fault else _ABORTED
        fault = fault or "rank_killed_exception"
    else:
        fault, sure = "rank_killed_exception", _BY_CODE
        note = f"It ended with exit code {ended.exit_code}, without an exception, while the others were still running."
    return Clue(fault, (record.culprit,), tuple(_evidence_of_ends(record)), sure, note, victims)


def _evidence_of_ends(record: Rank) -> list[Evidence]:
    """A rank's exit code, and its exception unless its log has it: the rules for text find it there."""
    evidence = []
    name = f"rank {record.culprit.rank}"
    if record.exit is not None:
        text = f"{name}: exit code {record.exit.exit_code}{', first' if record.exit.first else ''}"
        evidence.append(Evidence(str(RunLayout(RankLayout(record.folder).run).exits), 0, text))
    if record.raised is not None and (record.error or not evidence):
        files = RankLayout(record.folder)
        evidence.append(Evidence(str(files.error if record.error else files.log), 0, f"{name}: {record.raised.words}"))
    return evidence


# -- A training that hangs, by the heartbeats that ranks sent when they were asked -------------------------------------

_CLASSES = {CHECKPOINT: "slow_rank_checkpoint", EVALUATION: "slow_rank_eval"}
_SURE = 0.9
_SILENT = 0.7  # a process that does not answer: stopped, swapping, or the interpreter's lock is held


def clues_of_standstill(run: Rundir) -> list[Clue]:
    """Clues for ranks that are elsewhere while others wait in a collective."""
    if run.asked is None or run.asked[1] != HANG:
        return []
    number = run.asked[0]
    silent = {rank for rank, record in run.ranks.items() if _is_silent(record, number)}
    waiting = {rank for rank, record in run.ranks.items() if rank not in silent and _waits(record)}
    away = {rank for rank in run.ranks if rank not in waiting}
    if not waiting or not away:
        return []
    needed = _waited_for(run.ranks, waiting) & away or away
    by_class: dict[str, list[int]] = {}
    for rank in sorted(needed):
        by_class.setdefault(_CLASSES.get(_phase(run.ranks[rank]), "missing_rank"), []).append(rank)
    victims = tuple(sorted(waiting))
    return [
        Clue(
            fault_class=fault,
            culprits=tuple(run.ranks[rank].culprit for rank in ranks),
            evidence=(
                *(_evidence_of_standstill(run.ranks[rank]) for rank in ranks[:4]),
                _evidence_of_standstill(run.ranks[victims[0]]),
            ),
            confidence=_SILENT if ranks[0] in silent else _SURE,
            note=_noted(run.ranks, ranks[0], victims, ranks[0] in silent),
            victims=victims,
        )
        for fault, ranks in by_class.items()
    ]


def _is_silent(record: Rank, number: int) -> bool:
    """Whether a rank with a heartbeat did not answer. One that failed or is done has sent its last heartbeat."""
    return record.beat is not None and record.answered < number and not record.beat.done and not record.beat.failed


def _waits(record: Rank) -> bool:
    """Whether a rank is in a collective, or was until the collective timed out."""
    if record.beat is None:
        return False
    return "imed out" in record.error if record.beat.failed else record.beat.in_collective


def _waited_for(ranks: Mapping[int, Rank], waiting: set[int]) -> set[int]:
    """The ranks that have not called a collective in which others wait. Those that wait elsewhere lead on to the ranks
    that they wait for."""
    reached: set[int] = set()
    todo = sorted(waiting)
    while todo:
        record = ranks[todo.pop()]
        if record.beat is None:
            continue
        finished = dict(record.beat.finished)
        for group, number in record.beat.started:
            if number <= finished.get(group, -1):
                continue
            for member in record.groups.get(group, ()):
                peer = ranks.get(member)
                if peer is None or member in reached:
                    continue
                if peer.beat is None or dict(peer.beat.started).get(group, -1) < number:
                    reached.add(member)
                    todo.append(member)
    return reached


def _phase(record: Rank) -> str:
    return (record.failed_in or record.beat.phase) if record.beat is not None else "setup"


def _noted(ranks: Mapping[int, Rank], rank: int, victims: tuple[int, ...], silent: bool) -> str:
    record = ranks[rank]
    waiting = spaced(listing(victims))
    wait = "waits" if len(victims) == 1 else "wait"
    if silent:
        return (
            f"Rank {rank} did not answer while {waiting} {wait} in a collective: its process is stopped or swapping, "
            "or a thread holds the GIL"
        )
    if record.beat is None:
        return f"Rank {rank} has sent no heartbeat, {waiting} {wait} in a collective"
    if record.beat.done:
        return f"Rank {rank} had finished its training, {waiting} {wait} in a collective that it did not call"
    seconds = (record.beat_ns - record.beat.phase_since_ns) / 1e9 if record.beat.phase_since_ns else 0.0
    since = f", for {seconds:.0f} s" if seconds >= 1 else ""
    return f"Rank {rank} is in its {_phase(record)} phase{since}, and in no collective; {waiting} {wait} in one"


def _evidence_of_standstill(record: Rank) -> Evidence:
    beat = record.beat
    if beat is None:
        return Evidence(str(record.folder), 0, f"rank {record.culprit.rank}: no heartbeat.json")
    last = [f"#{number} of group {group} called" for group, number in beat.started]
    last += [f"#{number} of group {group} finished" for group, number in beat.finished]
    text = f"rank {record.culprit.rank}: step {beat.step}, phase {beat.phase}, {', '.join(last) or 'no collective yet'}"
    return Evidence(str(RankLayout(record.folder).heartbeat), 0, text)


# -- Calls that differ from those of the other ranks, or from the rank's own previous step -----------------------------
#
# A training calls the same collectives step after step. Where two ranks differ, that call alone does not show which of
# them is wrong; the one that also differs from its own previous step is. So this names one rank of two, which a single
# dump or log line cannot. Ranks that ended in C++ (gloo aborts when it receives more than it expects) leave no record
# of their last step: gloo's message states what they expected.

Calls = tuple[CalledCollective, ...]

# gloo's transport: received more bytes than the buffer of this rank's call.
_TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<expected>\d+)")
_BY_VOTE = 0.9
_BY_HISTORY = 0.85
_BY_MESSAGE = 0.85
_EITHER = 0.7  # two ranks without a previous step to compare with: both are named


@dataclass(frozen=True)
class _Odd:
    """Ranks that called ``did`` where the others called ``should``, as their ``place``-th collective of a step."""

    fault_class: str
    ranks: tuple[int, ...]
    step: int
    place: int
    did: CalledCollective | None
    should: CalledCollective | None
    confidence: float
    because: str
    aborted: tuple[int, ...] = ()  # those that gloo aborted: their calls are not recorded


def clues_of_calls(run: Rundir) -> list[Clue]:
    """One clue where the ranks' calls differ; none for a run without trouble."""
    opened = [record.open_step for record in run.ranks.values() if record.open_step is not None]
    if not opened or (run.asked is None and not any(record.exit for record in run.ranks.values())):
        return []
    odd = _different(run, max(opened)) or _aborted(run, max(opened))
    return [_clue(run, odd)] if odd is not None else []


def _different(run: Rundir, last: int) -> _Odd | None:
    """The first place at which recorded calls differ, in the last step or the one before."""
    for step in (last - 1, last):
        of_step = {rank: record.steps[step] for rank, record in run.ranks.items() if step in record.steps}
        for group in sorted({call.group for calls in of_step.values() for call in calls}):
            members = {rank: _of_group(calls, group) for rank, calls in of_step.items() if _is_member(run, rank, group)}
            before = {rank: _of_group(run.ranks[rank].steps.get(step - 1, ()), group) for rank in members}
            odd = _first_difference(step, members, before) or _alone(run, step, members, before)
            if odd is not None:
                return odd
    return None


def _is_member(run: Rundir, rank: int, group: str) -> bool:
    named = [record.groups[group] for record in run.ranks.values() if group in record.groups]
    return rank in named[0] if named else True


def _first_difference(step: int, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    for place in range(max(map(len, calls.values()), default=0)):
        here = {rank: of_rank[place] for rank, of_rank in calls.items() if len(of_rank) > place}
        votes = Counter(call.what for call in here.values())
        if len(votes) < 2:
            continue
        usual, count = votes.most_common(1)[0]
        if 2 * count > len(here):
            odd = tuple(rank for rank, call in here.items() if call.what != usual)
            sure, because = _BY_VOTE, "the others agree"
        else:
            steady = {rank for rank in here if _continues(calls[rank][: place + 1], before[rank])}
            odd = tuple(rank for rank in here if rank not in steady)
            sure, because = _BY_HISTORY, f"unlike its calls of step {step - 1}"
            if not steady or not odd:
                odd, sure, because = tuple(here), _EITHER, "it is unknown which is wrong"
        model = next((rank for rank in here if rank not in odd), odd[-1])
        should, did = here[model], here[odd[0]]
        expected = max((calls[model], before[odd[0]], before[model]), key=len)
        return _Odd(_class(calls[odd[0]], expected, place), odd, step, place, did, should, sure, because)
    return None


def _alone(run: Rundir, step: int, calls: Mapping[int, Calls], before: Mapping[int, Calls]) -> _Odd | None:
    """For two ranks of which one recorded the step: compares that rank with its own previous step."""
    if len(calls) != 1 or run.world_size != 2:
        return None
    rank, current = next(iter(calls.items()))
    earlier = before[rank]
    for place, (did, should) in enumerate(zip(current, earlier, strict=False)):
        if did.what != should.what:
            because = f"unlike its calls of step {step - 1}"
            return _Odd(_class(current, earlier, place), (rank,), step, place, did, should, _BY_HISTORY, because)
    return None


def _class(calls: Calls, expected: Calls, place: int) -> str:
    """ "desync" where a call was left out: the calls after it are the expected ones."""
    rest, following = calls[place:], expected[place + 1 :]
    if rest and _continues(rest, following):
        return "desync"
    if place < len(expected) and calls[place].what[0] == expected[place].what[0]:
        return "mismatch_shape"
    return "mismatch_op"


def _continues(calls: Sequence[CalledCollective], expected: Sequence[CalledCollective]) -> bool:
    return len(calls) <= len(expected) and all(a.what == b.what for a, b in zip(calls, expected, strict=False))


def _of_group(calls: Calls, group: str) -> Calls:
    return tuple(call for call in calls if call.group == group)


def _aborted(run: Rundir, step: int) -> _Odd | None:
    """Ranks that gloo aborted while all records of the last step agree."""
    aborted = {rank: match for rank, record in run.ranks.items() if (match := _TOO_LONG.search(record.log)) is not None}
    aborted = {rank: match for rank, match in aborted.items() if step not in run.ranks[rank].steps}
    alive = [record for record in run.ranks.values() if step in record.steps]
    if not aborted or not alive:
        return None
    pending = next((call for record in alive for call in record.steps[step] if not call.ended), None)
    sizes = {call.bytes for record in run.ranks.values() for calls in record.steps.values() for call in calls}
    steady = [
        record
        for record in alive
        if step - 1 in record.steps and _continues(record.steps[step], record.steps[step - 1])
    ]
    culprits, classes = [], []
    for rank, match in aborted.items():
        received, expected = int(match["received"]), int(match["expected"])
        # gloo cuts a tensor into segments: the expected one into as many as the one that arrived.
        waits = {call.bytes for record in alive for call in record.steps[step][-2:]}
        cuts = {size // received for size in waits if received and size % received == 0} | {1}
        expected_sizes = {expected * cut for cut in cuts}
        if pending is not None and pending.bytes in expected_sizes:
            continue  # it was in the same call as the others: the data that arrived was wrong
        culprits.append(rank)
        classes.append("desync" if expected_sizes & sizes else "mismatch_shape")
    if not culprits:
        return None
    if len(run.ranks) == 2 and not steady:
        everybody = tuple(run.ranks)
        because = "it is unknown which is wrong"
        return _Odd(classes[0], everybody, step, -1, None, pending, _EITHER, because, tuple(culprits))
    because = (
        "no call of the others has the size that it expected"
        if classes[0] == "mismatch_shape"
        else ("the size that it expected is that of another call of the step")
    )
    return _Odd(classes[0], tuple(culprits), step, -1, None, pending, _BY_MESSAGE, because, tuple(culprits))


def _clue(run: Rundir, odd: _Odd) -> Clue:
    ranks = [run.ranks[rank] for rank in odd.ranks]
    others = [record for rank, record in run.ranks.items() if rank not in odd.ranks]
    return Clue(
        fault_class=odd.fault_class,
        culprits=tuple(record.culprit for record in ranks),
        evidence=tuple(_evidence(record, odd) for record in (*ranks[:4], *others[:1])),
        confidence=odd.confidence,
        note=_note(odd),
        victims=tuple(rank for rank in run.ranks if rank not in odd.ranks),
    )


def _note(odd: _Odd) -> str:
    subject = begun(spaced(listing(odd.aborted or odd.ranks)))
    if odd.did is None:
        where = f", where the others call {odd.should}" if odd.should is not None else ""
        return f"{subject} received more than expected in step {odd.step}{where}; {odd.because}"
    where = f"as collective {odd.place + 1} of step {odd.step}"
    if odd.fault_class == "desync":
        return f"{subject} left out {odd.should} {where} and went on with {odd.did}; {odd.because}"
    return f"{subject} called {odd.did} {where}, others {odd.should}; {odd.because}"


def _evidence(record: Rank, odd: _Odd) -> Evidence:
    calls = record.steps.get(odd.step)
    if calls is None:
        match = _TOO_LONG.search(record.log)
        text = match[0] if match else "left no record of that step"
        return Evidence(str(RankLayout(record.folder).log), 0, f"rank {record.culprit.rank}: {text}")
    shown = calls[max(0, odd.place - 1) : odd.place + 2] if odd.place >= 0 else calls[-2:]
    words = ", ".join(f"#{call.seq} {call}{'' if call.ended else ' (waits)'}" for call in shown)
    return Evidence(
        str(RankLayout(record.folder).collectives), 0, f"rank {record.culprit.rank}, step {odd.step}: … {words}"
    )


# -- Runs that ended well and need no triage ---------------------------------------------------------------------------

# The launcher saw every process end with 0, and every rank recorded that its training reached its end.
_SURE_OF_END = 0.95
_MOST_RANKS = 4


@dataclass(frozen=True)
class EndedWell:
    headline: str
    confidence: float
    evidence: tuple[Evidence, ...]


def ended_well(run: Rundir) -> EndedWell | None:
    """None unless the launcher and every rank recorded it: None while the run trains, after a kill, where a rank left
    no heartbeat, and on several nodes of which one is not done (the first to end already writes its exit code)."""
    if run.exit_code != 0 or any(record.exit is not None for record in run.ranks.values()):
        return None
    if run.world_size != len(run.ranks) or not all(record.is_done for record in run.ranks.values()):
        return None
    ranks = "the only rank" if len(run.ranks) == 1 else f"all {spaced(counted(len(run.ranks), 'rank'))}"
    last = max(map(_last_step, run.ranks.values()))
    after = f", after step {last:,}" if last >= 0 else ""
    return EndedWell(
        f"The run ended well: {ranks} reached the end of the training{after}, with exit code 0. "
        "There is nothing to triage.",
        _SURE_OF_END,
        (
            Evidence(str(run.manifest), 0, "exit code 0"),
            *(_evidence_of_end(rank, record) for rank, record in sorted(run.ranks.items())[:_MOST_RANKS]),
        ),
    )


def _last_step(record: Rank) -> int:
    """-1 where no step finished."""
    return record.beat.step if record.beat is not None else -1


def _evidence_of_end(rank: int, record: Rank) -> Evidence:
    last = _last_step(record)
    return Evidence(
        str(RankLayout(record.folder).heartbeat), 0, f"rank {rank}: done{f' after step {last:,}' if last >= 0 else ''}"
    )
