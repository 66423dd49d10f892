"""Snapshots of PyTorch's allocator as text and as JSON: the report of files that hold nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from diag.collectors.layout import ASKED, NEAR_OOM, OOM, SCHEMA_VERSION
from diag.show.policy import PAGE
from diag.tables.memory_curves import Share
from diag.tables.snapshots import Compared, Comparison, OutOfMemory, SnapshotAccount, SnapshotTable
from diag.traces.text_stream import file_name
from diag.words.formatting import counted, duration, share, size, spaced, visible
from diag.words.terminal import report_console
from diag.words.wording import sentence

REASONS = {
    ASKED: "requested",
    NEAR_OOM: "near out-of-memory",
    OOM: "an allocation failed",
}


REQUESTED = (
    "Allocated here is what tensors requested. The allocator rounds each allocation up, so that "
    "torch.cuda.max_memory_allocated is slightly higher."
)


def name_of(account: SnapshotAccount) -> str:
    """Which snapshot it is: its file, why and when it was written, and the device if it is not the only one or not 0.
    A device's number is that of the process, not a rank."""
    facts = [REASONS.get(account.reason, "")]
    facts.append(f"step {account.step}" if account.step is not None else "")
    facts.append(f"device {account.device}" if account.device or account.several_devices else "")
    details = ", ".join(fact for fact in facts if fact)
    return f"{file_name(account.path)} ({details})" if details else file_name(account.path)


def who(account: SnapshotAccount) -> str:
    """Whose snapshot it is."""
    return f"rank {account.rank}" if account.rank is not None else "unknown rank"


def peak_sentence(account: SnapshotAccount) -> str:
    """The peak of a snapshot, and how much of it is accounted for."""
    if not account.events:
        held = f"{size(account.peak_allocated)} allocated, {size(account.peak_reserved)} reserved"
        return f"When it was written: {held}. No history was recorded, so an earlier peak is not known."
    when = f", in the {account.peak_phase}" if account.peak_phase in ("forward", "backward", "optimizer") else ""
    after = f", {duration(1000 * account.peak_us)} after the first recorded event" if account.timed else ""
    text = f"Peak: {size(account.peak_allocated)} allocated{when}{after}; most reserved {size(account.peak_reserved)}."
    if account.before:
        of_peak = share(account.before / account.peak_allocated) if account.peak_allocated else "-"
        text += f" {size(account.before)} of it ({of_peak}) has no recorded stack or is older than the history."
    return text


def state_sentence(account: SnapshotAccount) -> str:
    """The allocator when the snapshot was written."""
    state = account.state
    awaiting = f", {size(state.awaiting_free)} waiting for another stream" if state.awaiting_free else ""
    return (
        f"When it was written: {size(state.reserved)} reserved in {counted(state.segments, 'segment')}, "
        f"{size(state.allocated)} allocated{awaiting}, {size(state.inactive)} free in segments. "
        f"{size(state.split)} of that lies in segments in use and cannot go back to the device (fragmentation "
        f"{share(state.fragmentation)}); the largest free block has {size(state.largest_free)}."
    )


def missing_in(account: SnapshotAccount, capacity: float | None) -> str:
    """What a snapshot does not show, and what records it; "" if nothing is missing."""
    missing = []
    if account.doubt:
        missing.append(f"What was live over time is not known: {account.doubt}.")
    elif not account.events:
        missing.append(
            "What was live over time is not known: no history was recorded. `diag run --memory-snapshots` records it; "
            "in other programs, `torch.cuda.memory._record_memory_history()`."
        )
    if account.outside(capacity) is None:
        missing.append(
            "Memory outside of PyTorch is not known: only the snapshot of a failed allocation in a run of `diag run` "
            "has both the free memory and the capacity of the device."
        )
    return " ".join(missing)


def oom_sentence(oom: OutOfMemory, account: SnapshotAccount) -> str:
    """A failed allocation, compared with the free memory."""
    free = "" if oom.device_free is None else f" The device had {size(oom.device_free)} free."
    state = account.state
    return (
        f"An allocation of {size(oom.requested)} failed at {oom.place}.{free} When the snapshot was written, the "
        f"allocator had {size(state.inactive)} free in its segments, the largest block {size(state.largest_free)}."
    )


def comparison_sentence(compared: Comparison) -> str:
    more = compared.peak - compared.median
    one, several = f"the other {compared.of.value[:-1]}", f"the median of the other {compared.of}"
    others = one if compared.number == 2 else several
    against = f"{size(more)} above {others}" if more > 0 else f"as high as {others}"
    name = sentence(compared.name) if compared.of != Compared.FILES else compared.name
    return f"{name} has the highest peak: {size(compared.peak)}, {against}."


def failed_sentence(table: SnapshotTable) -> str:
    """The failed allocations in one sentence, the largest by name; "" without any."""
    failed = table.failed
    if not failed:
        return ""
    account, largest = max(failed, key=lambda item: item[1].requested)
    on = f"on rank {account.rank}" if account.rank is not None else f"in {file_name(account.path)}"
    on += f" (device {account.device})" if account.several_devices else ""
    if len(failed) == 1:
        return f"Out of memory: an allocation of {size(largest.requested)} failed {on}, at {largest.place}."
    return (
        f"Out of memory: {counted(len(failed), 'allocation')} failed, the largest of {size(largest.requested)} {on}, "
        f"at {largest.place}."
    )


def print_snapshots(table: SnapshotTable, console: Console | None = None) -> None:
    """The report of snapshots alone: the comparison first, then each snapshot."""
    console = console or report_console()
    files = len({account.path for account in table.accounts})
    _say(console, _what(table, files), "dim")
    if failed := failed_sentence(table):
        console.print()
        _say(console, failed, "bold red")
    if table.compared is not None:
        console.print()
        _say(console, comparison_sentence(table.compared), "bold")
        for larger in table.compared.larger:
            against = "the other" if table.compared.number == 2 else "median of the others"
            line = f"{size(larger.bytes)} at {larger.place}; {against} {size(larger.median)}"
            _indented(console, line)
    for account in table.accounts:
        console.print()
        _say(console, f"{sentence(who(account))}: {name_of(account)}", "bold")
        _say(console, peak_sentence(account))
        _print_shares(console, "By code", account.frames)
        _print_shares(console, "By operator", account.operators)
        _print_shares(console, "By phase", account.phases)
        _say(console, state_sentence(account))
        for oom in account.ooms:
            _say(console, oom_sentence(oom, account), "red")
        if account.settings:
            _say(console, f"PYTORCH_CUDA_ALLOC_CONF={account.settings}", "dim")
        if account.doubt:
            console.print(f"[yellow]![/] {escape(spaced(account.doubt))}")
    console.print()
    _say(console, REQUESTED, "dim")
    for gap in table.gaps:
        console.print(f"[yellow]![/] {escape(visible(f'{gap.path}: {gap.reason}'))}")


def _what(table: SnapshotTable, files: int) -> str:
    """How many snapshots there are, and of what."""
    text = counted(files, "memory snapshot")
    ranks, unknown = len(table.ranks), len({account.path for account in table.accounts if account.rank is None})
    if ranks:
        text += f" of {counted(ranks, 'rank')}"
    if unknown:
        text += f", {unknown} of unknown rank" if ranks else " of unknown rank"
    devices = {(account.path, account.device) for account in table.accounts if account.several_devices}
    if devices:
        text += f", {counted(len({device for _, device in devices}), 'device')} in one process"
    return text


def _print_shares(console: Console, title: str, shares: Sequence[Share]) -> None:
    if not shares:
        return
    _say(console, f"{title}:", "italic")
    for item in shares[: PAGE.most_snapshot_rows]:
        of_peak = f" ({share(item.share)})" if item.share is not None else ""
        _indented(console, f"{size(item.bytes)}{of_peak}  {item.name}, {counted(item.count, 'allocation')}")


def _indented(console: Console, text: str) -> None:
    console.print(Padding(escape(visible(text)), (0, 0, 0, 2)))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(escape(spaced(visible(text))), style=style or None)


def snapshots_to_dict(table: SnapshotTable) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "memory_snapshots": [_snapshot(account) for account in table.accounts],
        "headline": failed_sentence(table) or None,
        "compared": to_builtins(table.compared),
        "skipped": [to_builtins(gap) for gap in table.gaps],
    }


def _snapshot(account: SnapshotAccount) -> dict[str, Any]:
    return {
        "path": account.path,
        "rank": account.rank,
        "rank_known": account.rank_known,
        "step": account.step,
        "reason": account.reason or None,
        "device": account.device,
        "allocator_settings": account.settings,
        "events": account.events,
        "peak_allocated_bytes": account.peak_allocated,
        "peak_reserved_bytes": account.peak_reserved,
        "peak_phase": account.peak_phase,
        "without_stack_bytes": account.before,
        "by_code": to_builtins(account.frames),
        "by_module": to_builtins(account.modules),
        "by_operator": to_builtins(account.operators),
        "by_phase": to_builtins(account.phases),
        "state": {**to_builtins(account.state), "fragmentation": round(account.state.fragmentation, 4)},
        "out_of_memory": to_builtins(account.ooms),
        "doubt": account.doubt or None,
    }
