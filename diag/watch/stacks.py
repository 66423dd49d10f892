"""The stacks of all ranks of a training that is stuck, on request: as ``diag run`` takes them before it ends a hang."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psutil

from diag.collectors.layout import RunLayout
from diag.collectors.records import HANG
from diag.errors import DiagError, install_command, readable
from diag.processes import find_program
from diag.rundir.delays import delay_ns
from diag.rundir.job_ranks import job_ranks
from diag.rundir.lines import read_heartbeat
from diag.rundir.runs import recording_environment, state_of
from diag.rundir.states import State
from diag.watch.hang_monitor import gather, take_back
from diag.watch.policy import WATCHING
from diag.words.formatting import listing, spaced

from .reach import Reach
from .workers import Worker, recorded_process


def take_stacks(reach: Reach) -> list[int]:
    """Asks every rank for its Python stacks, its Flight Recorder's dump and its calls, and waits for the answers. Each
    rank writes them from the recorder's own thread, or where that cannot run in a signal handler; py-spy runs for the
    ranks of this host, if it is installed and permitted. Returns the ranks whose stacks are not there: they did not
    answer, and py-spy did not see them. DiagError for a run that does not live, or that has steps and is not stuck:
    then stacks are of a moment. Before the first step they show what the ranks wait for."""
    layout = reach.layout.newest()
    state = state_of(layout.root, with_answer=False)
    if not state.live:
        raise DiagError("the run does not live, so no rank can answer", path=layout.root)
    late_s = delay_ns(layout) / 1e9
    if not state.stuck and state.state is not State.STARTING:
        late = f"; its records may be {late_s:.0f} s old: ask again if it has stopped since" if late_s else ""
        raise DiagError(
            f"the training is not stuck ({state.state.value}), so stacks show a moment alone",
            path=layout.root,
            hint=f"diag trace records what the ranks do in a few steps{late}",
        )
    with readable(layout.ranks_folder):
        ranks = job_ranks(layout).files
    number = int(time.time())  # different from the requests of a launcher, which count from 1
    workers = [worker for rank in ranks if (worker := _here(layout, rank)) is not None]
    take_back(layout)  # what an earlier look has left
    gather(layout, workers, HANG, number, WATCHING.answer_s)
    reach.hand_on(layout.asked)
    deadline = time.monotonic() + WATCHING.answer_s + late_s  # for the ranks of other hosts
    near = {worker.rank for worker in workers}
    while (missing := _unanswered(layout, list(ranks), number)) and time.monotonic() < deadline:
        if set(missing) <= near:
            break
        looked = time.monotonic()
        reach.refresh()
        time.sleep(max(WATCHING.poll_hang_s, time.monotonic() - looked))
    reach.refresh()
    return [rank for rank in missing if not layout.rank(rank).pyspy.exists()]


@contextmanager
def asked_for_stacks(path: str) -> Iterator[list[int]]:
    """``take_stacks`` of the run at a path; heartbeats are short again after the context."""
    reach = Reach(path)
    try:
        yield take_stacks(reach)
    finally:
        take_request_back(reach)


def no_stacks_words(ranks: Sequence[int]) -> str:
    """Why ranks that were asked left none."""
    reason = "left no stacks: no answer to the request, as a process that is stopped gives none"
    if find_program("py-spy") is None:
        reason += f"; py-spy would show them where it may look ({install_command('py-spy')})"
    return f"{spaced(listing(ranks))} {reason}"


def take_request_back(reach: Reach) -> None:
    """Removes the request: the ranks' heartbeats are short again. What they wrote stays."""
    reach.take_back(reach.layout.newest().asked)


def _here(layout: RunLayout, rank: int) -> Worker | None:
    _, pid = recorded_process(layout.rank(rank))
    if not pid or not recording_environment(layout, pid):  # on another host, or of another user
        return None
    with suppress(psutil.Error):
        return Worker(rank, psutil.Process(pid))
    return None


def _unanswered(layout: RunLayout, ranks: list[int], number: int) -> list[int]:
    beats = {rank: read_heartbeat(layout.rank(rank))[0] for rank in ranks}
    return [rank for rank, beat in beats.items() if beat is not None and beat.answered != number and not beat.done]
