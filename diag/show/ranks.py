"""Where each rank's time goes and why its device was idle, as tables of text over the counted steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from diag.account.durations import Durations
from diag.model.breakdown import AllToAllStat
from diag.model.parts import parts_of_steps
from diag.model.steps import Attribution, Parts, Stall, StepAccount
from diag.show.policy import PAGE
from diag.tables.frames import rank_means
from diag.words.formatting import UNKNOWN, counted, duration, share, size, spaced
from diag.words.wording import averaged_over, sentence

IDLE_TITLE = "Why the device was idle"
STALLS_TITLE = "Longest stalls of the device"


class IdlePart(Struct, frozen=True):
    """A reason for which a device was idle, in the words of every front end; ``field``: of ``IdleParts``."""

    name: str
    field: str
    meaning: str


IDLE_PARTS = (
    IdlePart("not launched", "not_launched_ns", "the host had not launched the next work yet"),
    IdlePart(
        "in launch",
        "in_launch_ns",
        "the host was inside the call that launches the next work, or loaded or compiled it",
    ),
    IdlePart(
        "queued",
        "queued_ns",
        "the next work was launched but did not start: it waited for an event, another stream, or work that is not in "
        "the trace",
    ),
    IdlePart("host call", "host_call_ns", "the host was inside a call that synchronises or allocates memory"),
    IdlePart(
        "outside", "outside_ns", "before the first or after the last work of a window without step marks: not idle"
    ),
    IdlePart("unknown", "unknown_ns", "the trace does not contain the launch of the next work"),
)
OUTSIDE = "outside_ns"
_PARTS = (
    ("step", "dur_ns"),  # or window
    ("compute", "compute_ns"),
    ("communication", "exposed_comm_ns"),
    ("of which wait", "exposed_wait_ns"),
    ("copies", "exposed_copy_ns"),
    ("data wait", "data_wait_ns"),
    ("checkpoint", "checkpoint_ns"),
    ("idle", "idle_ns"),
    *((part.name, f"idle_parts.{part.field}") for part in IDLE_PARTS),
    ("overlapped comm.", "overlapped_comm_ns"),
)
OTHERS_WAIT = "others wait"
MEANINGS = {part.name: sentence(part.meaning) for part in IDLE_PARTS} | {
    "step": "From the rank's own start of the step to its own end; the step time runs from the first rank's start to "
    "the last rank's end",
    "communication": "Communication that the rank's compute does not overlap, with its waiting for other ranks. The "
    "exposed communication of the headline is that of the critical path, without this waiting",
    OTHERS_WAIT: "How long the other ranks wait for this rank because of the finding in the headline; for the rank at "
    "fault, this is the headline's amount",
    "between phases": "On a CPU core, and neither loading data nor in forward, backward or the optimizer",
    "queued for a core": "The training's thread, or one that computes for it, was ready to run and had no CPU core",
    "blocked": "The training's thread slept, waited for I/O or a lock, or was stopped, for no known reason",
}  # tooltips of columns


class RankTable(Struct, frozen=True):
    """``rows``: (rank, whether it is at fault, one cell a column). ``left_out``: how many ranks have no row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, bool, tuple[str, ...]], ...]
    left_out: int


class IdleTable(Struct, frozen=True):
    """Why one rank's device was idle. ``lead``: for how long, in a sentence. ``rows``: cells of IDLE_COLUMNS."""

    lead: str
    rows: tuple[tuple[str, ...], ...]


class ExchangeTable(Struct, frozen=True):
    """What each rank sends and receives in all-to-alls. ``lead``: how unequal the ranks are, one sentence per group."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: tuple[str, ...]
    left_out: int


EXCHANGES_TITLE = "All-to-alls by rank, means of a step"
EXCHANGES_HELP = (
    "Sizes include the part that a rank keeps. Over mean: bytes received divided by the group's mean, in all-to-alls "
    "with unequal parts. Others wait: mean waiting of the other ranks where this rank arrives last at an all-to-all."
)
IDLE_COLUMNS = ("Cause", "Duration", "Share", "Meaning")


class StallTable(Struct, frozen=True):
    """The longest stalls of the devices, the longest first."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def rank_table(
    attribution: Attribution,
    culprits: Sequence[int] = (),
    scheduled: Mapping[str, Mapping[int, float]] | None = None,
    most: int | None = None,
    charged_ns: Mapping[int, int] | None = None,
) -> RankTable:
    """Mean milliseconds of at most ``most`` ranks: the culprits, then the first by number. Columns with only zeros or
    unknown values are left out. ``scheduled``: time that the CPU scheduler withheld, mean milliseconds by column and
    rank. ``charged_ns``: ``Finding.charged_ns`` of the verdict's cause."""
    most = PAGE.most_ranks if most is None else most
    means = rank_means(attribution, [field for _, field in _PARTS])
    for row in means.values():
        outside_ns = row[f"idle_parts.{OUTSIDE}"]
        if row["idle_ns"] is not None and outside_ns:
            row["idle_ns"] -= outside_ns
    traced = _of_a_device([parts for step in _accounts(attribution) for parts in step.parts])
    columns = [
        (name, field)
        for name, field in _PARTS
        if (
            traced or field == f"idle_parts.{OUTSIDE}" or not field.startswith("idle_parts.")
        )  # idle time of a CPU is not divided
        and (field == "dur_ns" or any(row[field] for row in means.values()))
    ]
    shown = sorted(sorted(means, key=lambda rank: (rank not in culprits, rank))[:most])
    added = dict(scheduled or {})
    if charged_ns:
        added[OTHERS_WAIT] = {rank: charged_ns.get(rank, 0) / 1e6 for rank in means}
    return RankTable(
        title=averaged_over(attribution),
        columns=(_noun(attribution), *(name for name, _ in columns[1:]), *added),
        rows=tuple(
            (
                rank,
                rank in culprits,
                (
                    *(_ms(means[rank][field], 1e6) for _, field in columns),
                    *(_ms(by_rank.get(rank)) for by_rank in added.values()),
                ),
            )
            for rank in shown
        ),
        left_out=len(means) - len(shown),
    )


def duration_rank_table(account: Durations, culprits: Sequence[int] = (), most: int | None = None) -> RankTable:
    """The table of ranks where only durations of collectives are known."""
    most = PAGE.most_ranks if most is None else most
    shown = sorted(sorted(account.ranks, key=lambda rank: (rank not in culprits, rank))[:most])
    spent = {
        rank: (busy_ns, wait_ns, busy_ns - wait_ns)
        for rank, busy_ns, wait_ns in zip(account.ranks, account.busy_ns, account.wait_ns, strict=True)
    }
    return RankTable(
        title=f"Milliseconds in {counted(account.complete, 'collective')}",
        columns=("in collectives", "of which wait", "of which transfer"),
        rows=tuple((rank, rank in culprits, tuple(_ms(ns, 1e6) for ns in spent[rank])) for rank in shown),
        left_out=len(account.ranks) - len(shown),
    )


def exchange_table(stats: Sequence[AllToAllStat], most: int | None = None) -> ExchangeTable:
    """At most ``most`` rows, those of the ranks that receive most over the mean of their group. No rows where no
    all-to-all of known size was recorded."""
    most = PAGE.most_ranks if most is None else most
    groups = {(row.group, row.axis): row.imbalance for row in stats}
    shown = sorted(stats, key=lambda row: -row.received_over_mean)[:most]
    several = len(groups) > 1
    columns: dict[str, list[str]] = {
        "rank": [str(row.rank) for row in shown],
        **({"group": [_exchange_group(row.group, row.axis) for row in shown]} if several else {}),
        "calls": [f"{row.count:,}" for row in shown],
        "sends": [UNKNOWN if row.sent_bytes is None else size(row.sent_bytes) for row in shown],
        "receives": [size(row.received_bytes) for row in shown],
        "over mean": [f"{row.received_over_mean:.2f}" for row in shown],
        "others wait": [UNKNOWN if row.caused_wait_ns is None else duration(row.caused_wait_ns) for row in shown],
    }
    lead = [
        f"{f'Group {_exchange_group(*name)}: the' if several else 'The'} rank that receives most in an all-to-all gets "
        f"{imbalance:.2f} times the mean."
        for name, imbalance in groups.items()
    ]
    return ExchangeTable(
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        tuple(lead[: PAGE.most_groups_with_sentence]),
        len(stats) - len(shown),
    )


def _exchange_group(group: str, axis: str) -> str:
    return axis or group.split("@")[0][:8] or UNKNOWN


def _ms(value: float | None, unit: float = 1) -> str:
    return "unknown" if value is None else f"{value / unit:,.1f}"


def idle_table(attribution: Attribution, rank: int, step: int | None = None) -> IdleTable | None:
    """The mean over the counted steps with a trace, or one step by its number. None where no device was traced or it
    never idled."""
    accounts = _accounts(attribution, step)
    rank_parts = [
        parts for account in accounts for parts in account.parts if parts.rank == rank and parts.source == "trace"
    ]
    if not _of_a_device(rank_parts):
        return None
    noun = _noun(attribution)
    dur = sum(parts.dur_ns for parts in rank_parts) / len(rank_parts)
    idle = sum(map(idle_within_ns, rank_parts)) / len(rank_parts)
    if len(rank_parts) > 1:
        where = f"a {noun}, mean of {len(rank_parts):,} {noun}s"
    else:
        where = f"in {noun} {accounts[0].step:,}" if len(attribution.steps) > 1 else f"in the {noun}"
    spent = {
        part: sum(getattr(parts.idle_parts, part.field) for parts in rank_parts) / len(rank_parts)
        for part in IDLE_PARTS
        if part.field != OUTSIDE
    }
    of_step = f"{duration(idle)} ({share(idle / dur)}) of {duration(dur)} {where}"
    return IdleTable(
        lead=f"The device of rank {rank} is idle for {of_step}.",
        rows=tuple((part.name, duration(ns), share(ns / dur), MEANINGS[part.name]) for part, ns in spent.items() if ns),
    )


def stall_table(attribution: Attribution, step: int | None = None, most: int | None = None) -> StallTable:
    """The longest stalls of the counted steps, or of one step; without columns that would be the same in every row."""
    most = PAGE.most_stalls if most is None else most
    accounts = _accounts(attribution, step)
    stalls = _stalls(accounts)[:most]
    ranks = set(parts_of_steps(accounts)[0].rank.tolist())
    columns = {
        sentence(_noun(attribution)): [f"{account.step:,}" for account, _, _ in stalls] if len(accounts) > 1 else [],
        "Rank": [str(parts.rank) for _, parts, _ in stalls] if len(ranks) > 1 else [],
        "Start": [f"after {duration(stall.at_ns)}" for _, _, stall in stalls],
        "Duration": [duration(stall.dur_ns) for _, _, stall in stalls],
        "Share": [share(stall.dur_ns / parts.dur_ns) for _, parts, stall in stalls],
        "Cause": [_cause(stall) for _, _, stall in stalls],
        "The host was in": [_host(stall) for _, _, stall in stalls],
    }
    columns = {name: cells for name, cells in columns.items() if cells}
    return StallTable(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def stall_lines(attribution: Attribution) -> tuple[str, ...]:
    """The longest stalls that are worth a line of a report, with ordinary spaces."""
    accounts = _accounts(attribution)
    several = len(set(parts_of_steps(accounts)[0].rank.tolist())) > 1
    lines = []
    for account, parts, stall in _stalls(accounts)[: PAGE.most_stall_lines]:
        if stall.dur_ns < PAGE.stall_line_share * parts.dur_ns:
            continue
        noun = _noun(attribution)
        where = [f"{noun} {account.step:,}"] if len(accounts) > 1 else []
        where += [f"rank {parts.rank}"] if several else []
        of_step = share(stall.dur_ns / parts.dur_ns)
        host = f"the host was in {_host(stall)}" if stall.host else _NO_NAME
        lines.append(
            spaced(
                f"{', '.join(where)}{': ' if where else ''}{duration(stall.dur_ns)} ({of_step} of the {noun}), "
                f"{_cause(stall)}; {host}"
            )
        )
    return tuple(lines)


_NO_NAME = "no single call of the host covers half of it"


def _accounts(attribution: Attribution, step: int | None = None) -> Sequence[StepAccount]:
    if step is not None:
        return [account for account in attribution.steps if account.step == step]
    return attribution.usable or attribution.steps


def _noun(attribution: Attribution) -> str:
    return "window" if attribution.undivided else "step"


def _stalls(accounts: Sequence[StepAccount]) -> list[tuple[StepAccount, Parts, Stall]]:
    every, owner = parts_of_steps(accounts)
    stalls = [
        (accounts[owner[place]], every[place], stall) for place, of_rank in every.stalls.items() for stall in of_rank
    ]
    return sorted(stalls, key=lambda row: (-row[2].dur_ns, row[0].step, row[1].rank, row[2].at_ns))


def _cause(stall: Stall) -> str:
    return next(part.name for part in IDLE_PARTS if part.field == f"{stall.part}_ns")


def _host(stall: Stall) -> str:
    if not stall.host:
        return _NO_NAME
    name = stall.host if len(stall.host) <= PAGE.host_chars else f"{stall.host[: PAGE.host_chars - 1]}…"
    return f"{name} for {share(stall.host_share)} of it"


def _of_a_device(every: Sequence[Parts]) -> bool:
    return any(parts.idle_parts.unknown_ns < idle_within_ns(parts) for parts in every)


def idle_within_ns(parts: Parts) -> int:
    """Idle time from the first to the last recorded work: what lies outside of it is unknown, not idle."""
    return parts.idle_ns - parts.idle_parts.outside_ns
