"""The state of a run by its records: that it ended well, or where every rank is."""

from __future__ import annotations

from dataclasses import dataclass

from diag.ended.clues import evidence_of_standstill
from diag.ended.ends import End, end_of, signal_words
from diag.ended.model import Source
from diag.ended.policy import ENDED
from diag.ended.read import Rank, Rundir
from diag.rundir.state_words import headline_of, where_words
from diag.rundir.states import State, by_heartbeat
from diag.words.formatting import begun, counted, listing, spaced
from diag.words.places import in_command


@dataclass(frozen=True)
class EndedWell:
    headline: str
    confidence: float
    evidence: tuple[Source, ...]


def ended_well(run: Rundir) -> EndedWell | None:
    """None unless every rank recorded it, and the launcher as far as there was one: None while the run trains, after a
    kill, where a rank left no heartbeat, and on several nodes of which one is not done (the first to end already writes
    its exit code)."""
    if run.exit_code or run.ended_by is not None or any(record.exit is not None for record in run.ranks.values()):
        return None
    if run.world_size != len(run.ranks) or not all(record.is_done for record in run.ranks.values()):
        return None
    ranks = "the only rank" if len(run.ranks) == 1 else f"all {spaced(counted(len(run.ranks), 'rank'))}"
    last = max(map(_last_step, run.ranks.values()))
    after = f", after step {last:,}" if last >= 0 else ""
    launcher = "with exit code 0" if run.exit_code == 0 else "and no launcher recorded an exit code"
    return EndedWell(
        f"The run ended well: {ranks} reached the end of the training{after}, {launcher}. There is nothing to triage.",
        ENDED.ended_well if run.exit_code == 0 else ENDED.ended_well_without_launcher,
        (
            *([Source(str(run.manifest), 0, "exit code 0")] if run.exit_code == 0 else []),
            *(_evidence_of_end(rank, record) for rank, record in sorted(run.ranks.items())[: ENDED.most_ranks_named]),
        ),
    )


@dataclass(frozen=True)
class Standing:
    """What the records of a run say about its state where no cause is known."""

    headline: str
    evidence: tuple[Source, ...]
    next_steps: tuple[str, ...] = ()


def standing(run: Rundir) -> Standing:
    """The state of every rank, by its last heartbeat."""
    if not run.ranks:
        text = "No rank left a record: the run ended, or waits, before its processes joined."
        if run.exit_code is not None:
            text = f"No rank left a record; the launcher ended with exit code {run.exit_code}."
        return Standing(text, (Source(str(run.manifest), 0, _exit_words(run)),))
    states: dict[str, list[int]] = {}
    for rank, record in sorted(run.ranks.items()):
        states.setdefault(_state(run, rank, record), []).append(rank)
    parts = [f"{spaced(listing(ranks))}: {words.removeprefix('is ')}" for words, ranks in states.items()]
    missing = (run.world_size or 0) - len(run.ranks)
    if missing > 0:
        parts.append(f"no record of {spaced(counted(missing, 'rank'))}")
    ended = "The run has no recorded end" if run.exit_code is None else f"The run ended with exit code {run.exit_code}"
    text = f"{ended}. {begun('; '.join(parts))}."
    if run.stuck and run.judged is not None:
        text = headline_of(run.judged)
    evidence = [Source(str(run.manifest), 0, _exit_words(run))]
    shown = [ranks[0] for ranks in states.values()][: ENDED.most_ranks_named]
    evidence += [evidence_of_standstill(run.ranks[rank]) for rank in shown]
    pids = {rank: pid for rank in shown if (pid := run.ranks[rank].pid) is not None}
    dumps = [f"`py-spy dump --pid {pid}`{_on_host(run, rank)}" for rank, pid in pids.items()]
    step = ""
    if not run.stuck and not is_over(run):
        step = look_at_stacks(run) or (f"While it runs, take the stacks: {', '.join(dumps)}." if dumps else "")
    return Standing(text, tuple(evidence), (step,) if step else ())


def look_at_stacks(run: Rundir) -> str:
    """The command for the stacks of all ranks, of a training that is stuck or has not begun its steps."""
    if run.judged is None or run.judged.state not in (State.STUCK, State.STARTING):
        return ""
    command = f"diag triage {in_command(str(run.manifest.parent))}"
    if run.stack_files()[0]:
        return f"`{command}` shows the stacks that were taken of its ranks."
    return f"`{command} --stacks` takes the stacks of all ranks."


def _on_host(run: Rundir, rank: int) -> str:
    """`` on node-b`` in a run of several hosts."""
    host = run.ranks[rank].culprit.host
    return f" on {host}" if host and len(run.hosts) > 1 else ""


def is_over(run: Rundir) -> bool:
    """Whether the run is known to have ended: its launcher recorded it, or no rank's process is left. Ranks without a
    record may still wait for the others."""
    if run.exit_code is not None:
        return True
    ended = all(end_of(run, record) is not End.OPEN for record in run.ranks.values())
    return ended and 0 < (run.world_size or 0) <= len(run.ranks)


def _exit_words(run: Rundir) -> str:
    return "no exit code" if run.exit_code is None else f"exit code {run.exit_code}"


def _state(run: Rundir, rank: int, record: Rank) -> str:
    """``waits in all_reduce #41``, ``raised KeyError, after step 41``."""
    end, beat = end_of(run, record), record.beat
    if beat is None:
        return "no heartbeat"
    after = f", after step {beat.step:,}" if beat.step >= 0 else ""
    if end is End.EXITED and record.exit is not None:
        why = f" ({record.raised.words})" if record.raised is not None and record.error else ""
        code = record.exit.exit_code
        how = f"ended by {signal_words(code)}" if code < 0 else f"ended with exit code {code}"
        return f"{how}{why}{after}"
    if end is End.FAILED:
        return f"raised {record.failed_as or 'an exception'}{after}"
    if end is not End.OPEN:
        return f"{end.value}{after}"
    as_of_ns = run.judged.as_of_ns if run.judged is not None and run.judged.was is not None else beat.unix_ns
    return where_words(run.state_of(rank) or by_heartbeat(rank, record.files, beat, as_of_ns))


def _last_step(record: Rank) -> int:
    """-1 where no step finished."""
    return record.beat.step if record.beat is not None else -1


def _evidence_of_end(rank: int, record: Rank) -> Source:
    last = _last_step(record)
    return Source(str(record.files.heartbeat), 0, f"rank {rank}: done{f' after step {last:,}' if last >= 0 else ''}")
