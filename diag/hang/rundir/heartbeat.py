"""How far a rank has come, as its heartbeats say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diag.collectors.records import CHECKPOINT, EVALUATION, FAILED

BUSY_PHASES = (CHECKPOINT, EVALUATION)  # long by nature, and often on one rank alone


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. Two that differ in ``sent_ns`` alone mean that the rank stands still."""

    steps: int  # that this process has finished
    step: int
    phase: str
    phase_since_ns: int
    started: tuple[tuple[str, int], ...]  # (group, sequence number of the last collective called)
    finished: tuple[tuple[str, int], ...]
    recorder: tuple[tuple[str, int, int], ...] = ()  # (group, last enqueued, last completed); only of one that stands
    done: bool = False
    sent_ns: int = 0  # on the sender's clock: good for telling whether a new one has come

    def moved_since(self, before: Beat) -> bool:
        """Whether anything has happened. The recorder's numbers count where both have them: they come with standing."""
        if self.recorder and before.recorder and self.recorder != before.recorder:
            return True
        return self._reached != before._reached

    @property
    def _reached(self) -> tuple[object, ...]:
        return self.steps, self.step, self.phase, self.phase_since_ns, self.started, self.finished, self.done

    @property
    def failed(self) -> bool:
        """Its training raised; the process may still be there."""
        return self.phase.startswith(FAILED)

    @property
    def in_collective(self) -> bool:
        """Whether a collective that this rank called is not through.

        Of a collective on a device the host knows the start only; then the Flight Recorder tells, and where there is
        none it may be. A group of which the recorder never saw a collective complete is not told by it either.
        """
        finished = dict(self.finished)
        on_host = [(number, finished[group]) for group, number in self.started if group in finished]
        told = [(enqueued, completed) for _, enqueued, completed in self.recorder if completed > 0]
        if self.failed:
            return False
        if any(called > done for called, done in (*on_host, *told)):
            return True
        return not told and len(on_host) < len(self.started)


def beat_of(content: Mapping[str, Any]) -> Beat | None:
    """What heartbeat.json holds; None where it is no heartbeat of ours."""
    try:
        return Beat(
            steps=int(content.get("steps", 0)),
            step=int(content["step"]),
            phase=str(content["phase"]),
            phase_since_ns=int(content.get("phase_since_ns", 0)),
            started=_numbers(content.get("last_started", {})),
            finished=_numbers(content.get("last_finished", {})),
            recorder=tuple(
                sorted((str(group), int(row[0]), int(row[1])) for group, row in content.get("recorder", {}).items())
            ),
            done=bool(content.get("done", False)),
            sent_ns=int(content.get("monotonic_ns", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None


def _numbers(content: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((str(group), int(number)) for group, number in content.items()))
