"""Whether a run ended well: a hang or a crash that did not happen needs no triage."""

from __future__ import annotations

from dataclasses import dataclass

from diag.hang.model import Evidence
from diag.hang.rundir.read import Rank, Rundir
from diag.words.formatting import counted, spaced

# The launcher saw every process end with 0, and every rank said itself that its training came to its end.
_SURE = 0.95
_MOST_RANKS = 4


@dataclass(frozen=True)
class EndedWell:
    """``headline``: for people; ``evidence``: what it rests on."""

    headline: str
    confidence: float
    evidence: tuple[Evidence, ...]


def ended_well(run: Rundir) -> EndedWell | None:
    """None where it is not known of the launcher and of every rank: while it trains, after a kill, where a rank left
    no heartbeat, and on several nodes of which one is not done (the first to end writes its exit code already)."""
    if run.exit_code != 0 or any(one.exit is not None for one in run.ranks.values()):
        return None
    if run.world_size != len(run.ranks) or not all(_is_done(one) for one in run.ranks.values()):
        return None
    ranks = "the only rank" if len(run.ranks) == 1 else f"all {spaced(counted(len(run.ranks), 'rank'))}"
    last = max(map(_last_step, run.ranks.values()))
    after = f", after step {last:,}" if last >= 0 else ""
    return EndedWell(
        f"The run ended well: {ranks} came to the end of the training{after}, with exit code 0. "
        "There is nothing to triage.",
        _SURE,
        (
            Evidence(str(run.manifest), 0, "exit code 0"),
            *(_evidence(rank, one) for rank, one in sorted(run.ranks.items())[:_MOST_RANKS]),
        ),
    )


def _is_done(one: Rank) -> bool:
    return one.beat is not None and one.beat.done and not one.beat.failed and not one.failed_in


def _last_step(one: Rank) -> int:
    """-1 where it made none."""
    return one.beat.step if one.beat is not None else -1


def _evidence(rank: int, one: Rank) -> Evidence:
    last = _last_step(one)
    return Evidence(
        str(one.folder / "heartbeat.json"), 0, f"rank {rank}: done{f' after step {last:,}' if last >= 0 else ''}"
    )
