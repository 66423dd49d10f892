"""Heartbeats: how far a rank has come, and which ranks the others wait for. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from msgspec import Struct

from diag.collectors.records import FAILED, P2P_PREFIX, Heartbeat
from diag.events.behind import Waits, waits_of
from diag.events.rows import Did, Event, JobRank

_RECORDED = "recorded in "  # before the Flight Recorder's name of a group, which is not the host's


class Beat(Struct, frozen=True):
    """A heartbeat. Two that differ in ``sent_ns`` alone mean that the rank stalls."""

    steps: int  # that this process has finished
    step: int
    phase: str
    phase_since_ns: int
    started: tuple[tuple[str, int], ...]  # (group, sequence number of the last collective called)
    finished: tuple[tuple[str, int], ...]
    recorder: tuple[tuple[str, int, int], ...] = ()  # (group, last enqueued, last completed); only if the rank stalls
    done: bool = False
    sent_ns: int = 0  # on the sender's clock: only shows whether a new one has come
    unix_ns: int = 0  # the same moment; clocks of two hosts differ
    op: str = ""  # of the last collective called
    unmoved_since_ns: int = 0  # since when nothing has changed but the time; 0: unknown
    compiles: bool = False  # the training's thread is in the compiler
    line: str = ""  # of the training's own code, while the rank stalls
    call: str = ""  # to the system, that the training's thread is blocked in
    idle_since_ns: int = 0  # since when that thread has hardly run; 0: it runs, or unknown
    missing: bool = False  # the call waits for something outside of the job

    def moved_since(self, before: Beat) -> bool:
        """Whether anything has happened. The recorder's numbers count only where both have them."""
        if self.recorder and before.recorder and self.recorder != before.recorder:
            return True
        return self.reached != before.reached

    @property
    def reached(self) -> tuple[object, ...]:
        return self.steps, self.step, self.phase, self.phase_since_ns, self.started, self.finished, self.done

    @property
    def failed(self) -> bool:
        """Whether its training raised; the process may still be there."""
        return self.phase.startswith(FAILED)

    @property
    def in_collective(self) -> bool:
        """Whether a collective that this rank called is not finished.

        On a device the host knows the start only; then the Flight Recorder decides, and without it the answer is yes. A
        group in which the recorder never saw a collective complete does not count.
        """
        finished = dict(self.finished)
        on_host = [(number, finished[group]) for group, number in self.started if group in finished]
        on_device = [(enqueued, completed) for _, enqueued, completed in self.recorder if completed > 0]
        if self.failed:
            return False
        if any(called > done for called, done in (*on_host, *on_device)):
            return True
        return not on_device and len(on_host) < len(self.started)

    @property
    def may_wait(self) -> bool:
        """Whether it is, or may be, in a collective: also in the first one of a group, which is neither known to finish
        on the host nor in the recorder."""
        if self.in_collective:
            return True
        finished = dict(self.finished)
        first = any(group not in finished for group, _ in self.started) and bool(finished)
        return first and not self.failed and any(called > done for _, called, done in self.recorder)

    @property
    def waits_in(self) -> tuple[tuple[str, int], ...]:
        """(group, sequence number) of the calls that are not known to be finished."""
        finished = dict(self.finished)
        on_host = tuple((group, number) for group, number in self.started if number > finished.get(group, -1))
        if not on_host or on_host == self.started:  # launched in C++, or on a device: the recorder counts these
            in_recorder = [(_RECORDED + name, done) for name, call, done in self.recorder if call > done > 0]
            on_host += tuple((group, dict(self.calls)[group]) for group, _ in in_recorder)
        return on_host

    @property
    def calls(self) -> tuple[tuple[str, int], ...]:
        """(group, number of the last collective called), by the host and by the recorder."""
        return (*self.started, *((_RECORDED + name, call) for name, call, _ in self.recorder))

    @property
    def waits_words(self) -> str:
        """``all_reduce #626``; of several calls, the last one's operation is known."""
        calls = self.waits_in
        if not calls:
            return "a collective"
        group, number = calls[-1]
        if group.startswith(P2P_PREFIX):
            return f"#{number} of {group}"
        if group.startswith(_RECORDED):
            return f"collective #{number}"
        return f"{self.op or 'collective'} #{number}" if len(calls) == 1 else f"#{number} of group {group}"


def beat_of(heartbeat: Heartbeat) -> Beat:
    return Beat(
        steps=heartbeat.steps,
        step=heartbeat.step,
        phase=heartbeat.phase,
        phase_since_ns=heartbeat.phase_since_ns,
        started=tuple(sorted(heartbeat.last_started.items())),
        finished=tuple(sorted(heartbeat.last_finished.items())),
        recorder=tuple(sorted((group, *numbers) for group, numbers in heartbeat.recorder.items())),
        done=heartbeat.done,
        sent_ns=heartbeat.monotonic_ns,
        unix_ns=heartbeat.unix_ns,
        op=heartbeat.last_op,
        unmoved_since_ns=heartbeat.unmoved_since_ns,
        compiles=heartbeat.compiles,
        line=heartbeat.line,
        call=heartbeat.call,
        idle_since_ns=heartbeat.idle_since_ns,
        missing=heartbeat.missing,
    )


Groups = Mapping[str, Collection[int]]  # the ranks of each group
BeatWaits = Waits[JobRank, Event[JobRank]]


def beats_wait(beats: Mapping[int, Beat | None], groups: Mapping[int, Groups], waiting: Collection[int]) -> BeatWaits:
    """Who waits for whom. ``waiting``: the ranks that are known to wait; ``groups``: as each rank named them, where it
    did. A rank without a heartbeat has called nothing."""
    called: dict[str, list[int]] = {}
    for rank, beat in beats.items():
        for group, _ in beat.calls if beat is not None else ():
            called.setdefault(group, []).append(rank)
    events: list[Event[JobRank]] = []
    members: dict[Hashable, tuple[JobRank, ...]] = {}
    for rank, beat in beats.items():
        if beat is None:
            continue
        named = groups.get(rank, {})
        keys = {group: _key(group, members_of(group, named, called)) for group, _ in beat.calls}
        for group, key in keys.items():
            if key not in members:
                members[key] = tuple(JobRank(m) for m in members_of(group, named, called) if m in beats)
        events += [Event(JobRank(rank), number, group=keys[group]) for group, number in beat.calls]
        if rank in waiting:
            events += [
                Event(JobRank(rank), number, did=Did.WAITS, group=keys[group]) for group, number in beat.waits_in
            ]
    return waits_of(events, members)


def _key(group: str, members: Collection[int]) -> Hashable:
    """Groups with one name and other members on other ranks are told apart by their first member: they are parts of one
    mesh."""
    return group, next(iter(members), None)


def group_name(key: Hashable) -> str:
    """The name of a group in the events of ``beats_wait``."""
    return str(key[0]) if isinstance(key, tuple) else str(key)


def members_of(group: str, groups: Groups, called: Mapping[str, Collection[int]]) -> Collection[int]:
    """The ranks of a group: as a rank named them, else the two of a point-to-point group, else all that called one of
    its collectives."""
    if group in groups:
        return groups[group]
    if group.startswith(P2P_PREFIX):
        ends = group.removeprefix(P2P_PREFIX).partition(" ")[0].split(">")
        return [int(end) for end in ends if end.isdecimal()]
    return called.get(group, ())
