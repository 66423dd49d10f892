"""A run's memory as text and in the JSON contract: failed allocations, peaks, curves of traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from diag.api import Result
from diag.diagnoses.ids import ALLOCATOR_RETRIES, NEAR_OUT_OF_MEMORY
from diag.model.memory import Lower
from diag.model.steps import FailedAllocation, Finding, Fit
from diag.show.policy import PAGE
from diag.tables.memory import rank_peaks
from diag.traces.snapshot_files import ENDINGS, rank_of
from diag.traces.text_stream import file_name
from diag.words import sentences
from diag.words.formatting import counted, listing, size
from diag.words.wording import sentence


class Failure(Struct, frozen=True):
    """A failed allocation in words: what failed; what was free; the changes that would have made room, and those that
    are not enough alone, each with its effect on memory and its price."""

    text: str
    room: str = ""
    enough: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def fits(self) -> str:
        """What would have made room, in a sentence or two; "" if that is not known."""
        first = f"It might have fitted with {'; or '.join(self.enough)}." if self.enough else ""
        if not self.others:
            return first
        nothing = "" if first else "No single change frees enough. "
        return f"{first} {nothing}Not enough alone: {'; '.join(self.others)}.".strip()

    @property
    def sentence(self) -> str:
        return " ".join(filter(None, (self.text, self.room, self.fits)))


def failures_of(failed: Sequence[FailedAllocation]) -> tuple[Failure, ...]:
    """One for each allocation that failed, on one rank or on several alike, and one for the rest of many."""
    alike: dict[object, list[FailedAllocation]] = {}
    for at, failure in enumerate(failed):
        known = failure.rank is not None and failure.size is not None and failure.place
        alike.setdefault((failure.size, failure.place, failure.step, failure.times) if known else at, []).append(
            failure
        )
    groups = list(alike.values())
    shown = tuple(map(_failure, groups[: PAGE.most_snapshots_named]))
    more = sum(map(len, groups[len(shown) :]))
    return (*shown, Failure(f"Out of memory on {counted(more, 'more rank')}.")) if more else shown


def _failure(group: Sequence[FailedAllocation]) -> Failure:
    """Of one allocation on ranks where it failed alike: room and changes are the first one's."""
    failure, *others = group
    wanted = "" if failure.size is None else size(failure.size)
    what = f"an allocation{f' of {wanted}' if wanted else ''} failed"
    if failure.times > 1:
        what = f"{counted(failure.times, 'allocation')} failed" + (f", one of {wanted}" if wanted else "")
    where = f" on {listing([each.rank for each in group if each.rank is not None])}" if failure.rank is not None else ""
    where += f" in step {failure.step}" if failure.step is not None else ""
    where += f", at {failure.place}" if failure.place else ""
    by = f" ({file_name(failure.source)})"
    detail = f" `diag analyze {failure.source}` shows what was allocated." if failure.source.endswith(ENDINGS) else ""
    return Failure(
        f"Out of memory: {what}{where}{by}.{detail}",
        _room(failure, f"on rank {failure.rank}, " if others else ""),
        tuple(_fit(fit) for fit in failure.fits if fit.enough),
        tuple(_fit(fit) for fit in failure.fits if not fit.enough),
    )


def _room(failure: FailedAllocation, where: str) -> str:
    """What was free when an allocation failed. ``where``: on which of several ranks."""
    free = "" if failure.device_free is None else f"the device had {size(failure.device_free)} free"
    held = "" if failure.unallocated is None else f"PyTorch had {size(failure.unallocated)} reserved but unallocated"
    if held and failure.largest_free is not None:
        held += f", in blocks of at most {size(failure.largest_free)}"
    facts = " and ".join(filter(None, (free, held)))
    return f"{sentence(where + facts)}." if facts else ""


MEMORY_FINDINGS = (NEAR_OUT_OF_MEMORY, ALLOCATOR_RETRIES)


def action_of(result: Result, finding: Finding) -> str:
    """What to do about a finding; where a device is full, with the peak that each change would leave."""
    lowered = result.lowered if finding.id in MEMORY_FINDINGS else None
    if lowered is None or not lowered.changes:
        return finding.action
    changes = [_lower(lower, lowered.allocated) for lower in lowered.changes[: PAGE.most_changes_named]]
    return sentences.LEAVE_HEADROOM(changes="; or ".join(changes))


def _lower(lower: Lower, before: int) -> str:
    risk = f"; {lower.risk}" if lower.risk else ""
    if lower.peak is None:
        most = "at most " if lower.at_most else "about "
        return sentences.FREES(change=lower.change, most=most, freed=size(lower.frees), risk=risk)
    return sentences.INSTEAD_OF(change=lower.change, peak=size(lower.peak), before=size(before), risk=risk)


def _fit(fit: Fit) -> str:
    risk = f"; {fit.risk}" if fit.risk else ""
    change = f"`{fit.change}`" if "=" in fit.change else fit.change
    return f"{change} (frees {'at most ' if fit.at_most else 'about '}{size(fit.frees)}{risk})"


def snapshots_sentence(files: Sequence[str]) -> str:
    """The snapshots of a run, and what shows them; "" without any."""
    if not files:
        return ""
    shown = ", ".join(map(_place, files[: PAGE.most_snapshots_named]))
    more = f" and {len(files) - PAGE.most_snapshots_named} more" if len(files) > PAGE.most_snapshots_named else ""
    return (
        f"{counted(len(files), 'memory snapshot')}: {shown}{more}. The memory page shows them, and diag analyze FILE."
    )


def _place(file: str) -> str:
    rank = rank_of(file)
    return f"{file_name(file)} of rank {rank}" if rank is not None else file_name(file)


def peaks_to_dict(result: Result) -> dict[str, Any] | None:
    """The peak that every page shows, and those of the ranks; None where no memory was recorded."""
    peak = None if result.from_summaries else result.peak_memory
    if peak is None:
        return None
    rows = rank_peaks(result.tables).rows
    return {
        "peak_bytes": peak.bytes,
        "rank": peak.rank,
        "capacity_bytes": peak.capacity,
        "on_device": peak.on_device,
        "of_all_steps": peak.of_steps,
        "definition": peak.definition,
        "ranks": [
            {"rank": row.rank, "allocated_bytes": row.allocated, "reserved_bytes": row.reserved, "ooms": row.ooms}
            for row in rows
        ],
        "snapshots": list(result.tables.snapshots),
    }
