"""Where each rank's time goes and why its device was idle, as tables of text over the counted steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from diag.account.durations import Durations
from diag.model.accounts import Attribution, StepAccount, StepAccounts
from diag.model.parts import PartColumns
from diag.model.steps import Parts, Stall
from diag.show.policy import PAGE
from diag.tables.rank_means import rank_means
from diag.words.formatting import counted, duration, share, spaced
from diag.words.table import (
    COUNT,
    DURATION,
    INDEX,
    SHARE,
    TENTHS_OF_MS,
    Cell,
    Column,
    Table,
    table_of,
)
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
}
# The columns that are left out last where not all have room; the rest in the order of the table.
_WEIGHTS = {"step": 9, "compute": 8, "communication": 8, "data wait": 7, "idle": 7, OTHERS_WAIT: 9, "of which wait": 6}
RANK = Column("rank", INDEX, weight=0)


def _time(name: str, id: str) -> Column:
    return Column(id, TENTHS_OF_MS, MEANINGS.get(name, ""), label=name, weight=_WEIGHTS.get(name, 3))


def rank_table(
    attribution: Attribution,
    culprits: Sequence[int] = (),
    scheduled: Mapping[str, Mapping[int, float]] | None = None,
    most: int | None = None,
    charged_ns: Mapping[int, int] | None = None,
) -> Table:
    """Mean milliseconds of at most ``most`` ranks: the culprits, then those that the others wait for, then the first by
    number. Columns with only zeros or
    unknown values are left out. ``scheduled``: time that the CPU scheduler withheld, mean milliseconds by column and
    rank. ``charged_ns``: ``Finding.charged_ns`` of the verdict's cause."""
    most = PAGE.most_ranks if most is None else most
    means = rank_means(attribution, [field for _, field in _PARTS])
    for row in means.values():
        outside_ns = row[f"idle_parts.{OUTSIDE}"]
        if row["idle_ns"] is not None and outside_ns:
            row["idle_ns"] -= outside_ns
    traced = _of_a_device(_accounts(attribution).parts)
    columns = [
        (name, field)
        for name, field in _PARTS
        if (
            traced or field == f"idle_parts.{OUTSIDE}" or not field.startswith("idle_parts.")
        )  # idle time of a CPU is not divided
        and (field == "dur_ns" or any(row[field] for row in means.values()))
    ]
    charged = charged_ns or {}
    shown = sorted(sorted(means, key=lambda rank: (rank not in culprits, -charged.get(rank, 0), rank))[:most])
    added = dict(scheduled or {})
    if charged_ns:
        added[OTHERS_WAIT] = {rank: charged_ns.get(rank, 0) / 1e6 for rank in means}
    names = {"dur_ns": _noun(attribution)}
    return table_of(
        "ranks",
        averaged_over(attribution),
        {
            RANK: shown,
            **{_time(names.get(field, name), field): [means[rank][field] for rank in shown] for name, field in columns},
            **{
                _time(name, name.replace(" ", "_")): [_ns(by_rank.get(rank)) for rank in shown]
                for name, by_rank in added.items()
            },
        },
        symbol="ms",
        left_out=len(means) - len(shown),
        noun="rank",
        at_fault=_places(shown, culprits),
    )


def _ns(ms: float | None) -> float | None:
    return None if ms is None else ms * 1e6


def _places(ranks: Sequence[int], culprits: Sequence[int]) -> frozenset[int]:
    return frozenset(place for place, rank in enumerate(ranks) if rank in culprits)


def duration_rank_table(account: Durations, culprits: Sequence[int] = (), most: int | None = None) -> Table:
    """The table of ranks where only durations of collectives are known."""
    most = PAGE.most_ranks if most is None else most
    shown = sorted(sorted(account.ranks, key=lambda rank: (rank not in culprits, rank))[:most])
    spent = {
        rank: (busy_ns, wait_ns, busy_ns - wait_ns)
        for rank, busy_ns, wait_ns in zip(account.ranks, account.busy_ns, account.wait_ns, strict=True)
    }
    return table_of(
        "ranks",
        f"Milliseconds in {counted(account.complete, 'collective')}",
        {
            RANK: shown,
            _time("in collectives", "busy_ns"): [spent[rank][0] for rank in shown],
            _time("of which wait", "wait_ns"): [spent[rank][1] for rank in shown],
            _time("of which transfer", "transfer_ns"): [spent[rank][2] for rank in shown],
        },
        symbol="ms",
        left_out=len(account.ranks) - len(shown),
        noun="rank",
        at_fault=_places(shown, culprits),
    )


def idle_table(attribution: Attribution, rank: int, step: int | None = None) -> Table | None:
    """Why one rank's device was idle: the mean over the counted steps with a trace, or one step by its number. The
    title says for how long. None where no device was traced or it never idled."""
    accounts = _accounts(attribution, step)
    every = accounts.parts
    rank_parts = every.take((every.rank == rank) & every.from_source("trace"))
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
    causes = [(part, ns) for part, ns in spent.items() if ns]
    return table_of(
        "idle",
        f"The device of rank {rank} is idle for {of_step}.",
        {
            Column("cause", weight=0): [part.name for part, _ in causes],
            Column("dur_ns", DURATION, label="duration", weight=0): [ns for _, ns in causes],
            Column("share", SHARE): [ns / dur for _, ns in causes],
            Column("meaning", long=True): [MEANINGS[part.name] for part, _ in causes],
        },
    )


def stall_table(attribution: Attribution, step: int | None = None, most: int | None = None) -> Table:
    """The longest stalls of the counted steps, or of one step; without columns that would be the same in every row."""
    most = PAGE.most_stalls if most is None else most
    accounts = _accounts(attribution, step)
    stalls = longest_stalls(attribution, step)[:most]
    ranks = set(accounts.parts.rank.tolist())
    several_steps = {
        Column("step", COUNT, label=_noun(attribution), weight=0): [account.step for account, _, _ in stalls]
    }
    several_ranks = {RANK: [parts.rank for _, parts, _ in stalls]}
    return table_of(
        "stalls",
        STALLS_TITLE,
        {
            **(several_steps if len(accounts) > 1 else {}),
            **(several_ranks if len(ranks) > 1 else {}),
            Column("at_ns", DURATION, label="start"): [
                Cell(stall.at_ns, f"after {duration(stall.at_ns)}") for _, _, stall in stalls
            ],
            Column("dur_ns", DURATION, label="duration", weight=0): [stall.dur_ns for _, _, stall in stalls],
            Column("share", SHARE): [stall.dur_ns / parts.dur_ns for _, parts, stall in stalls],
            Column("cause"): [_cause(stall) for _, _, stall in stalls],
            Column("host", label="the host was in", long=True): [_host(stall) for _, _, stall in stalls],
        },
    )


def stall_lines(attribution: Attribution) -> tuple[str, ...]:
    """The longest stalls that are worth a line of a report, with ordinary spaces."""
    accounts = _accounts(attribution)
    several = len(set(accounts.parts.rank.tolist())) > 1
    lines = []
    for account, parts, stall in longest_stalls(attribution)[: PAGE.most_stall_lines]:
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


def _accounts(attribution: Attribution, step: int | None = None) -> StepAccounts:
    if step is not None:
        return attribution.steps.of_numbers([step])
    return attribution.counted


def _noun(attribution: Attribution) -> str:
    return "window" if attribution.undivided else "step"


def longest_stalls(attribution: Attribution, step: int | None = None) -> list[tuple[StepAccount, Parts, Stall]]:
    """The rows of `stall_table`, and those that it leaves out."""
    accounts = _accounts(attribution, step)
    every, owner = accounts.parts, accounts.of_part
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


def _of_a_device(parts: PartColumns) -> bool:
    within_ns = parts.idle_ns - parts.column("idle_parts.outside_ns")
    return bool((parts.column("idle_parts.unknown_ns") < within_ns).any())


def idle_within_ns(parts: Parts) -> int:
    """Idle time from the first to the last recorded work: what lies outside of it is unknown, not idle."""
    return parts.idle_ns - parts.idle_parts.outside_ns
