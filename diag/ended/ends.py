"""How ranks ended, by their exit codes, exceptions and last heartbeats: who ended first and why, and whether the run
was ended from outside."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from msgspec import structs

from diag.collectors.layout import RunLayout
from diag.collectors.living import last_sign_ns
from diag.collectors.records import HANG, RankExit
from diag.ended.codes import ASKS, Signal, fault_of_signal, signal_name, signal_number
from diag.ended.model import Clue, Source
from diag.ended.policy import ENDED
from diag.ended.raised import Chain, about_the_group, lost_worker, shortened
from diag.ended.read import Rank, Rundir
from diag.events.left import Ended, Left, who_left
from diag.words.formatting import begun, counted, listing, spaced

# torchrun's guess at the root cause is not used: a rank that loses a peer often ends before that peer does.

_WARNING = re.compile(r"\[W[ \d]")  # of torch, also about a connection that is retried
RAISED_ITSELF = 1
LEFT = "done: it reached the end of its training"  # of a rank that left a run in which others went on

_BEFORE_THE_LIMIT = "Schedulers send this signal before the time limit, and the program has no handler for it"
_SENT = {
    "SIGINT": "Ctrl-C sends this signal",
    "SIGUSR1": _BEFORE_THE_LIMIT,
    "SIGUSR2": _BEFORE_THE_LIMIT,
}
_SENT_BY_ANY = "A person or a scheduler (time limit, preemption, cancellation) sent this signal"


class End(StrEnum):
    """The state of a rank, as its records show it."""

    DONE = "reached the end of its training"
    FAILED = "raised an exception"
    EXITED = "ended with an exit code"
    ENDED = "ended by diag, which took the run for hung"
    GONE = "gone without a recorded end"
    OPEN = "not known to have ended"


def end_of(run: Rundir, record: Rank) -> End:
    if record.ended_as_hung:
        return End.ENDED
    if record.exit is not None and (record.exit.exit_code or not record.is_done):
        return End.EXITED
    if record.beat is not None and (record.beat.failed or record.failed_in):
        return End.FAILED
    if record.is_done:
        return End.DONE
    return End.GONE if is_gone(run, record) else End.OPEN


def is_gone(run: Rundir, record: Rank) -> bool:
    """Whether a rank's process no longer exists and its last heartbeat says that it trains. A process on another host
    is taken for gone only if the launcher's end is recorded and all ranks ran on one host: with several, the first
    launcher to end records it. A rank is not gone if ``diag run`` ended it, or if others of its host are known to have
    ended first: their launcher ended it."""
    if record.beat is None or record.beat.done or record.beat.failed or record.failed_in or record.exit is not None:
        return False
    if record.ended_as_hung or record.culprit.host in run.ended_first_on:
        return False
    if record.runs is not None:
        return not record.runs and (run.exit_code is not None or _is_old(run, record))
    return run.exit_code is not None and len(run.hosts) == 1 and _is_old(run, record)


def _is_old(run: Rundir, record: Rank) -> bool:
    """Whether the last heartbeat is not from just now: a container's processes are not visible from another one."""
    sent_ns = record.beat.unix_ns if record.beat is not None else run.read_unix_ns
    seen_ns = last_sign_ns(record.files, sent_ns, record.began_unix_ns)
    return (run.read_unix_ns - seen_ns) / 1e9 > ENDED.fresh_heartbeat_s


def clues_of_ends(run: Rundir, explained: bool = False) -> list[Clue]:
    """Clues for the ranks that ended first, or one that the run was ended from outside. ``explained``: the ranks' calls
    differ, so an abort is a consequence."""
    chains = raised_by(run)
    first = {
        rank: record.exit for rank, record in sorted(run.ranks.items()) if record.exit is not None and record.exit.first
    }
    killed = {rank: ended for rank, ended in first.items() if _is_killed(run.ranks[rank], ended.exit_code)}
    left = _left(run, killed, chains, first)
    raised = [rank for rank in left.first if rank in chains]
    victims = _victims(run, {*killed, *raised})
    clues = [_killed(run, code, ranks, victims) for code, ranks in _by_signal(killed).items()]
    if raised:
        clues.append(_raised(run, raised, () if killed else left.later, set(first)))
    if not clues:
        clues += _gone(run)
    asked = _asked(run, faulty=bool(clues))
    if asked is not None:
        return [*clues, asked]
    if not clues:
        victims = _victims(run, first)
        clues += [clue for rank, ended in first.items() if (clue := _by_code(run, rank, ended, explained, victims))]
    return clues or _left_early(run)


def _left(run: Rundir, killed: Collection[int], raised: Collection[int], first: Collection[int]) -> Left[int]:
    """Who left of their own accord, and which of them first. ``first``: whom the launcher saw end first."""
    # Error files have whole seconds, 0 where there is none; an exit has none.
    times = {rank: 10**9 * run.ranks[rank].raised_at or None for rank in raised if rank not in killed}
    ends = (Ended(rank, times.get(rank), first=rank in first) for rank in sorted({*killed, *raised}))
    return who_left(ends, int(ENDED.clocks_apart_s * 1e9))


def _is_killed(record: Rank, code: int) -> bool:
    return code < 0 and code != -Signal.SIGABRT and not _asked_by(record)


# -- Ended from outside ------------------------------------------------------------------------------------------------


def _asked_by(record: Rank) -> str:
    """The signal that asked a rank to end and did; "" without one. Python raises KeyboardInterrupt at SIGINT."""
    if record.ended_as_hung:
        return ""
    code = record.exit.exit_code if record.exit is not None else 0
    name = signal_name(signal_number(code))
    if name in ASKS:
        return name
    interrupted = record.raised is not None and record.raised.errors[0].name == "KeyboardInterrupt"
    return "SIGINT" if record.failed_as == "KeyboardInterrupt" or (interrupted and _ended_by_it(record)) else ""


def _asked(run: Rundir, faulty: bool) -> Clue | None:
    """A clue that a signal ended the run or some ranks, sent by a person or a scheduler. ``faulty``: ranks ended by
    themselves as well, and the signal came first only if the launcher's record says so."""
    by_rank = {rank: name for rank, record in sorted(run.ranks.items()) if (name := _asked_by(record))}
    if run.ended_by is not None:
        name, when = run.ended_by
        before = faulty and any(_ended_before(record, when) for record in run.ranks.values())
        return _whole(
            run, name, f"The run was {_words(name)}", ENDED.signal_to_one, first=not before and not _still(run)
        )
    if not by_rank or faulty or run.exit_code == 0:  # a launcher may end its ranks when it has finished
        return None
    first = {rank: name for rank, name in by_rank.items() if (ended := run.ranks[rank].exit) is None or ended.first}
    of_first = [rank for rank, record in run.ranks.items() if record.exit is not None and record.exit.first]
    if len(by_rank) == len(run.ranks) and len(set(by_rank.values())) == 1:
        name = next(iter(by_rank.values()))
        clue = _whole(run, name, f"The run was {_words(name)}", ENDED.all_asked_to_end, first=not _still(run))
        if of_first and len(of_first) < len(run.ranks):  # its launcher may have ended the others
            clue = replace(clue, note=f"{clue.note}; {spaced(listing(of_first))} ended first")
        return clue
    if not first or any(rank not in by_rank for rank in of_first):
        return None
    name = next(iter(first.values()))
    ranks = [rank for rank in first if first[rank] == name]
    subject = begun(spaced(listing(ranks)))
    note = f"{subject} {'was' if len(ranks) == 1 else 'were'} {_words(name)}{_while_others_ran(run, ranks)}"
    return Clue(
        "job_cancelled",
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(line for rank in ranks[: ENDED.most_ends_shown] for line in _evidence_of_ends(run.ranks[rank])),
        ENDED.one_interrupted if name == "SIGINT" else ENDED.one_asked_to_end,
        note,
        _victims(run, ranks),
        comes_first=True,
    )


def _words(name: str) -> str:
    return ASKS.get(name, f"ended by {name}")


def _whole(run: Rundir, name: str, text: str, sure: float, first: bool) -> Clue:
    last = max((record.beat.step for record in run.ranks.values() if record.beat is not None), default=-1)
    after = f" after step {last:,}" if last >= 0 else ""
    lines = [Source(str(run.manifest), 0, f"the launcher received {name}")] if run.ended_by is not None else []
    lines += [line for record in run.ranks.values() if _asked_by(record) for line in _evidence_of_ends(record)[:1]]
    lines += [_evidence_of_beat(record) for record in run.ranks.values() if record.beat is not None]
    return Clue(
        "job_cancelled",
        (),
        tuple(lines[: ENDED.most_ends_shown]),
        sure,
        f"{text}{after}. {_SENT.get(name, _SENT_BY_ANY)}: no rank is at fault",
        comes_first=first,
    )


def _ended_before(record: Rank, when_ns: int) -> bool:
    """Whether a rank had ended by itself when a signal came, as far as its last heartbeat shows."""
    failed = record.beat is not None and record.beat.failed and record.failed_as != "KeyboardInterrupt"
    return failed and record.beat is not None and record.beat.unix_ns < when_ns


def _still(run: Rundir) -> bool:
    """Whether no rank had made progress for a while when it sent its last heartbeat: the run may have hung."""
    if run.asked is not None and run.asked[1] == HANG:
        return True
    beats = [record.beat for record in run.ranks.values() if record.beat is not None and record.beat.phase_since_ns]
    return bool(beats) and all((beat.sent_ns - beat.phase_since_ns) / 1e9 > ENDED.still_s for beat in beats)


def _gone(run: Rundir) -> list[Clue]:
    """A clue for ranks whose processes are gone without an exit code or an end of the training."""
    gone = [rank for rank, record in sorted(run.ranks.items()) if end_of(run, record) is End.GONE]
    if not gone or (len(gone) == len(run.ranks) and run.ended_by is not None):
        return []
    if len(gone) == len(run.ranks):
        return [_all_gone(run, gone)] if len(gone) > 1 or run.exit_code != 0 else [_some_gone(run, gone)]
    return [_some_gone(run, _first_silent(run, gone))]


def _first_silent(run: Rundir, gone: list[int]) -> list[int]:
    """Those whose heartbeats ended first, beyond doubt about clocks and a late write."""
    times = {rank: beat.unix_ns for rank in gone if (beat := run.ranks[rank].beat) is not None}
    return list(who_left((Ended(rank, times[rank]) for rank in gone), int(ENDED.fresh_heartbeat_s * 1e9)).first)


def _some_gone(run: Rundir, ranks: list[int]) -> Clue:
    record = run.ranks[ranks[0]]
    step = record.beat.step if record.beat is not None else -1
    after = f" after step {step:,}" if step >= 0 else ""
    theirs, was = ("Its process", "It was") if len(ranks) == 1 else ("Their processes", "They were")
    subject = begun(spaced(listing(ranks)))
    note = (
        f"{subject} disappeared{after}: {theirs.lower()} recorded neither an end nor an exception. {was} killed "
        "(SIGKILL), or crashed in native code"
    )
    if run.exit_code == 0:
        note += "; the launcher ignored it and ended with exit code 0"
    return Clue(
        "rank_killed_sigkill",
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(_evidence_of_beat(run.ranks[rank]) for rank in ranks[: ENDED.most_ends_shown]),
        ENDED.gone,
        note,
        _victims(run, ranks),
    )


def _all_gone(run: Rundir, ranks: list[int]) -> Clue:
    last = max((record.beat.step for record in run.ranks.values() if record.beat is not None), default=-1)
    after = f" after step {last:,}" if last >= 0 else ""
    who = f"All {spaced(counted(len(ranks), 'rank'))}" if len(ranks) > 1 else "The only rank"
    launcher = ", and no launcher recorded one" if run.exit_code is None else ""
    return Clue(
        "rank_killed_sigkill",
        (),
        tuple(_evidence_of_beat(run.ranks[rank]) for rank in ranks[: ENDED.most_ends_shown]),
        ENDED.all_gone,
        f"{who} disappeared{after} without recording an end{launcher}: everything was killed at once, by a scheduler, "
        "a memory limit or a person, or the host went down",
    )


def _left_early(run: Rundir) -> list[Clue]:
    """A clue for ranks that ended their training without an error while all others failed because they lost a peer."""
    left = who_left((Ended(rank, of_others=_lost_others(run, run.ranks[rank])) for rank in sorted(run.ranks)), 0)
    done, others = left.first, left.victims
    if not done or not others or not all(_without_error(run, run.ranks[rank]) for rank in done):
        return []
    # If the launcher ended all others, or a rank without a record may have been first, nothing shows why.
    if not any(lost_a_peer(run.ranks[rank]) for rank in others) or len(run.ranks) < (run.world_size or 0):
        return []
    subject = begun(spaced(listing(done)))
    note = (
        f"{subject} ended {'its' if len(done) == 1 else 'their'} training without an error while "
        f"{spaced(listing(others))} still needed {'it' if len(done) == 1 else 'them'}"
    )
    return [
        Clue(
            "missing_rank",
            tuple(run.ranks[rank].culprit for rank in done),
            tuple(_evidence_of_beat(run.ranks[rank]) for rank in (*done[: ENDED.most_ends_shown], others[0])),
            ENDED.left_early,
            note,
            others,
        )
    ]


def _lost_others(run: Rundir, record: Rank) -> bool:
    return _is_failed_victim(run, record) and not _without_error(run, record)


def _without_error(run: Rundir, record: Rank) -> bool:
    """Whether a rank reached its end, or left by itself with exit code 0."""
    return end_of(run, record) is End.DONE or (record.exit is not None and record.exit.exit_code == 0)


def _is_failed_victim(run: Rundir, record: Rank) -> bool:
    """Whether a rank failed with the loss of a peer, or was ended by the launcher after that."""
    if record.exit is not None and not record.exit.first and record.exit.exit_code == -Signal.SIGTERM:
        return True
    return end_of(run, record) in (End.FAILED, End.EXITED) and lost_a_peer(record)


# -- Exceptions and exit codes -----------------------------------------------------------------------------------------


def raised_by(run: Rundir) -> dict[int, Chain]:
    return {
        rank: record.raised
        for rank, record in sorted(run.ranks.items())
        if record.raised is not None and not record.raised.about_others and _ended_by_it(record)
        if run.exit_code != 0 or record.error or record.exit is not None  # else the program has handled it
    }


def lost_a_peer(record: Rank) -> bool:
    """Whether a rank ended because of its peers, by its exception or its last lines."""
    if record.raised is not None and _ended_by_it(record):
        return record.raised.about_others
    last = [line for line in record.log.splitlines()[-ENDED.last_log_lines :] if not _WARNING.search(line)]
    return any(map(about_the_group, last))


def place_of(record: Rank, code: int) -> int:
    """A number for a rank that ended with an error: the culprit's is smaller."""
    record = structs.replace(record, exit=RankExit(record.culprit.rank or 0, code))
    if _is_killed(record, code):
        return 0
    if record.raised is not None and not record.raised.about_others and _ended_by_it(record):
        return RAISED_ITSELF
    if code == -Signal.SIGTERM:
        return 4
    return 3 if lost_a_peer(record) else 2


def _ended_by_it(record: Rank) -> bool:
    """Whether the rank's exception ended its process. A traceback on standard error may have been caught. Python ends
    with a positive code after an uncaught exception, and C++ may still abort on the way out; torchrun's error file
    holds uncaught ones only."""
    if record.error:
        return True
    code = record.exit.exit_code if record.exit is not None else 0
    return code > 0 or code == -Signal.SIGABRT or (record.beat is not None and record.beat.failed)


def left_by_itself(record: Rank) -> bool:
    """Whether a rank left its last step by an exception of its own, or because it was interrupted: the calls that it
    then did not make, or made while it cleaned up, are a consequence."""
    if _asked_by(record):
        return True
    return record.raised is not None and not about_the_group(str(record.raised.errors[0])) and _ended_by_it(record)


def _victims(run: Rundir, culprits: Collection[int]) -> tuple[int, ...]:
    """The other ranks that did not reach their end, without those that raised an exception of their own. None where no
    rank called a collective: they did not wait for one another."""
    if not any(_calls_collectives(record) for record in run.ranks.values()):
        return ()
    raised = raised_by(run)
    return tuple(
        rank
        for rank, record in sorted(run.ranks.items())
        if rank not in culprits and rank not in raised and not record.is_done
    )


def _calls_collectives(record: Rank) -> bool:
    return record.beat is None or bool(record.beat.started) or lost_a_peer(record)


def _while_others_ran(run: Rundir, ranks: Collection[int]) -> str:
    """`` while rank 0 was still running``; "" where that is not known. A rank ran on if it ended later, or is there."""
    others = [rank for rank in sorted(run.ranks) if rank not in ranks]
    running = [
        rank for rank in others if (ended := run.ranks[rank].exit) is not None and not ended.first and ended.exit_code
    ]
    running += [rank for rank in others if run.ranks[rank].exit is None and not run.ranks[rank].is_done]
    if not running:
        return ""
    if len(running) == len(others) > 1 and len(run.ranks) == (run.world_size or len(run.ranks)):
        return " while the others were still running"
    return f" while {spaced(listing(sorted(running)))} {'was' if len(running) == 1 else 'were'} still running"


def _raised(run: Rundir, ranks: list[int], later: Collection[int], first: Collection[int]) -> Clue:
    """One clue: the ranks that raised first, as far as that is known, else all. ``first``: whom the launcher saw end
    first."""
    chains = raised_by(run)
    note = _who_raised(run, ranks, first)
    worker = lost_worker(chains[ranks[0]].words) if len(ranks) == 1 else None
    fault_class, words = worker or ("rank_killed_exception", "")
    if worker:
        note = f"It {words}. {note}"
    if later:
        note += f"; later {_each(chains, later)}"
    return Clue(
        fault_class,
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(line for rank in ranks[: ENDED.most_ends_shown] for line in _evidence_of_ends(run.ranks[rank])),
        ENDED.raised if len(ranks) == 1 else ENDED.raised_by_several,
        note,
        _victims(run, ranks),
    )


def _who_raised(run: Rundir, ranks: list[int], first: Collection[int]) -> str:
    chains = {rank: chain for rank in ranks if (chain := run.ranks[rank].raised) is not None}
    if len({chain.words for chain in chains.values()}) > 1:
        return f"{begun(_each(chains, ranks))}; it is unknown which was first"
    chain, ended = chains[ranks[0]], run.ranks[ranks[0]].exit
    one_place = len({chain.words_with_place for chain in chains.values()}) == 1
    words = chain.words_with_place if one_place else chain.words
    if len(ranks) > 1:
        return f"They raised {words}"
    if ended is not None and ended.exit_code > 0 and ranks[0] in first:
        return f"It raised {words}, and ended with exit code {ended.exit_code}{_while_others_ran(run, ranks)}"
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
        by_words.setdefault(chains[rank].words_with_place, []).append(rank)
    return "; ".join(f"{spaced(listing(same))} raised {words}" for words, same in by_words.items())


def _by_code(run: Rundir, rank: int, ended: RankExit, explained: bool, victims: tuple[int, ...]) -> Clue | None:
    """The clue for a rank that raised nothing of its own."""
    record = run.ranks[rank]
    if lost_a_peer(record):
        chain = record.raised
        if chain is None or about_the_group(str(chain.errors[0])) or not _others_lived(run, rank):
            return None
        note = (
            f"It raised {chain.words_with_place}, and ended with exit code {ended.exit_code} while all others were "
            "still running"
        )
        return Clue(
            "rank_killed_exception",
            (record.culprit,),
            tuple(_evidence_of_ends(record)),
            ENDED.lost_connection,
            note,
            victims,
        )
    if ended.exit_code == 0 or _asked_by(record) or (-ended.exit_code == Signal.SIGABRT and explained):
        return None
    return _ended(run, rank, ended, victims)


def _others_lived(run: Rundir, rank: int) -> bool:
    """Whether the launcher ended every other rank: then none of them was the lost peer."""
    others = [record.exit for number, record in run.ranks.items() if number != rank]
    lived = [ended for ended in others if ended is not None and -ended.exit_code == Signal.SIGTERM and not ended.first]
    return bool(lived) and len(lived) == len(others) and run.world_size == len(run.ranks)


def _by_signal(killed: Mapping[int, RankExit]) -> dict[int, list[int]]:
    """The ranks by exit code: those that one signal ended at the same time have one cause."""
    by_code: dict[int, list[int]] = {}
    for rank, ended in killed.items():
        by_code.setdefault(ended.exit_code, []).append(rank)
    return by_code


def _killed(run: Rundir, code: int, ranks: Sequence[int], victims: tuple[int, ...]) -> Clue:
    """The clue for ranks that a signal ended. ``code``: -N for signal N."""
    fault = fault_of_signal(-code)
    sure = ENDED.ended_by_signal if fault else ENDED.aborted
    if all(run.ranks[rank].is_done for rank in ranks):  # something broke after the training
        sure = min(sure, ENDED.after_its_end)
    return Clue(
        fault or "rank_killed_exception",
        tuple(run.ranks[rank].culprit for rank in ranks),
        tuple(line for rank in ranks[: ENDED.most_ends_shown] for line in _evidence_of_ends(run.ranks[rank])),
        sure,
        f"{'It was' if len(ranks) == 1 else 'They were'} ended by {signal_words(code)}{_while_others_ran(run, ranks)}",
        victims,
    )


def signal_words(code: int) -> str:
    """The name of the signal of an exit code -N."""
    return signal_name(-code) or f"signal {-code}"


def _ended(run: Rundir, rank: int, ended: RankExit, victims: tuple[int, ...]) -> Clue:
    record = run.ranks[rank]
    if ended.exit_code < 0:
        return _killed(run, ended.exit_code, [rank], victims)
    why = f"It raised {record.failed_as}, and ended" if record.failed_as else "It ended"
    note = f"{why} with exit code {ended.exit_code}{_while_others_ran(run, [rank])}"
    if not record.failed_as:
        words = _last_words(record)
        note += f"; it recorded no exception{f', and its last line is: {words}' if words else ''}"
    sure = min(ENDED.ended_by_code, ENDED.after_its_end) if record.is_done else ENDED.ended_by_code  # it left by itself
    return Clue("rank_killed_exception", (record.culprit,), tuple(_evidence_of_ends(record)), sure, note, victims)


def _last_words(record: Rank) -> str:
    """The last line on the rank's standard error that says something, shortened."""
    lines = [line.strip() for line in record.log.splitlines() if line.strip() and not _WARNING.search(line)]
    return shortened(lines[-1], 120) if lines else ""


def _evidence_of_ends(record: Rank) -> list[Source]:
    """A rank's exit code, and its exception, or where it was raised if its log has it: the rules for text find it
    there."""
    evidence = []
    name = f"rank {record.culprit.rank}"
    if record.exit is not None:
        text = f"{name}: exit code {record.exit.exit_code}{', first' if record.exit.first else ''}"
        evidence.append(Source(str(RunLayout(record.files.run).exits), 0, text))
    in_log = record.raised is not None and str(record.raised.errors[-1]) in record.log
    if record.raised is not None and ((record.error and not in_log) or not evidence):
        evidence.append(Source(_file_of_exception(record), 0, f"{name}: {record.raised.words_with_place}"))
    elif record.raised is not None and record.raised.frame:
        evidence.append(Source(_file_of_exception(record), 0, f"{name}: raised in {record.raised.frame}"))
    elif record.failed_as and record.raised is None:
        evidence.append(_evidence_of_beat(record))
    return evidence


def _file_of_exception(record: Rank) -> str:
    return str(record.files.error if record.error else record.files.log)


def stack_of_exception(record: Rank) -> tuple[tuple[str, ...], Source] | None:
    """The frames in which a rank raised what ended it, innermost first, and the file that has them; None where its
    traceback is not known."""
    if record.raised is None or not record.raised.errors[0].frames or not _ended_by_it(record):
        return None
    text = f"rank {record.culprit.rank}: {record.raised.words_with_place}"
    return record.raised.errors[0].frames, Source(_file_of_exception(record), 0, text)


def _evidence_of_beat(record: Rank) -> Source:
    beat = record.beat
    phase = LEFT if record.is_done else beat.phase if beat is not None else ""
    text = f"step {beat.step}, {phase}" if beat is not None else "no heartbeat"
    return Source(str(record.files.heartbeat), 0, f"rank {record.culprit.rank}: last heartbeat: {text}")
