"""The input of every diagnosis, and the measures that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from diag.account.scheduling import Scheduling
from diag.deferred import loaded
from diag.diagnoses.policy import FINDINGS, STRAGGLER
from diag.model.accounts import Attribution
from diag.model.parts import PartColumns
from diag.model.programs import Settings, settings_of_command
from diag.model.query import By, Query, Value
from diag.model.steps import Evidence, Finding, Knob, Severity
from diag.rundir.machines import Machines
from diag.rundir.sharing import Sharing, sharing_of
from diag.rundir.tables import Tables
from diag.words import sentences
from diag.words.formatting import listing, spaced
from diag.words.wording import per_whole

from .costs import Cost, class_of
from .culprits import Culprits, Series
from .shares import Shares

T = TypeVar("T")


class Column(StrEnum):
    """What diagnoses read besides the costs of the steps, which every account gives, and who waits for whom."""

    PHASES = "phases"  # how much of each part of the step a rank has, on average
    PIECES = "pieces"  # of the ranks' timelines and of the path
    CALLS = "calls"  # collectives of each rank
    STEPS = "steps"  # one by one, as recorded
    SCHEDULING = "scheduling"  # CPU time of the ranks' threads
    SAMPLES = "samples"  # readings of devices
    MEMORY = "memory"  # peaks of the ranks' allocators
    NUMBERS = "numbers"  # losses and gradient norms that were on the host
    DEVICE = "device"  # a device whose work was recorded
    OWN_DEVICE = "own device"  # of each rank: where ranks share one, how long their work takes is not theirs alone


class RankMeans(Struct, frozen=True):
    """The means of fields of ``Parts`` by rank, milliseconds, and the rows that they come from."""

    rows: Query
    ms: Mapping[str, Mapping[int, float]]

    def of(self, field: str) -> tuple[Query, Mapping[int, float]]:
        return replace(self.rows, column=field), self.ms[field]


class Subject(Struct, frozen=True):
    """What every diagnosis examines, however the run was recorded. ``lacks``: the columns that such a recording never
    has, with the reason. ``means``: of the ranks' parts, where those of single steps are not kept."""

    attribution: Attribution
    tables: Tables
    shares: Shares
    phases_alone: bool = False  # the shares come from the durations of phases: no collective connects the ranks
    by_phases: Shares | None = None  # shares from these durations, where both were recorded
    scheduling: Scheduling = field(default_factory=Scheduling)
    lacks: Mapping[Column, str] = {}
    means: RankMeans | None = None
    machines: Callable[[], Machines] | None = None
    _made: dict[Callable[[Subject], Any], Any] = field(default_factory=dict)

    def once(self, make: Callable[[Subject], T]) -> T:
        """A measure that several diagnoses share, computed when first used."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast(T, self._made[make])

    @property
    def parts(self) -> PartColumns:
        """Every rank's part of every step that counts."""
        return self.once(_counted_parts)

    @property
    def per(self) -> str:
        """The unit of a cost, in words."""
        return per_whole(self.attribution)

    @property
    def of_whole(self) -> str:
        """What a cost is part of, in words."""
        return self.per if self.attribution.undivided else f"of {self.per}"

    def each(self, series: Series) -> str:
        """A cost of the mean step, or of the window that stands for one, in words."""
        return f"{in_ms(mean_ns(series))} {self.per}"

    def waiting_ranks_text(self, ranks: tuple[int, ...]) -> str:
        """Which ranks wait for these, as the end of a sentence; "" where no waiting for them was recorded."""
        others = [rank for rank in self.attribution.ranks if rank not in ranks]
        if self.phases_alone or not ranks or not others:
            return ""
        numbers = np.array(self.shares.numbers, dtype=np.int64)
        counted = np.isin(numbers, list(self.attribution.detailed or self.shares.numbers))
        met = self.attribution.collectives.of_steps(numbers[counted].tolist())
        met = met.take(np.isin(met.last_arriver, ranks))
        waiters, place = np.unique(met.rank, return_inverse=True)
        spent = np.bincount(place, weights=met.wait_ns, minlength=len(waiters))
        waited = Counter(dict(zip(waiters.tolist(), spent.tolist(), strict=True)))
        whole_ns = float(self.shares.dur_ns[counted].sum())
        waiting = sum(waited[rank] >= FINDINGS.waiting_rank_share * whole_ns for rank in others)
        them = "it" if len(ranks) == 1 else "them"
        if not waiting:
            return ""
        if waiting == len(others):
            return sentences.EVERY_OTHER_RANK_WAITS(them=them)
        if waiting == 1:
            return sentences.ONE_OTHER_RANK_WAITS(them=them)
        return sentences.OTHER_RANKS_WAIT(count=waiting, them=them)

    def others_waited(self, cost: Cost, culprits: Culprits) -> str:
        """How long the others waited for late ranks because of a cost, and what the rest of it is."""
        waits = waited_for(culprits, self.per, everybody=True)
        late_ns = sum(float(series.mean()) for series in self.shares.blame_ns.get(cost, {}).values())
        whole_ns = mean_ns(self.shares.cost(cost))
        if in_ms(whole_ns) == in_ms(late_ns) or not waits:
            return sentences.OTHERS_WAITED(waits=waits)
        if whole_ns < late_ns:
            return sentences.OTHERS_WAITED_AT_ONCE(waits=waits)
        return sentences.OTHERS_WAITED_AND_ALL_ALIKE(waits=waits, common=in_ms(whole_ns - late_ns))

    def host_of(self, rank: int) -> str | None:
        tables = self.tables.ranks.get(rank)
        return tables.host if tables is not None else None

    def per_rank(self, field: str) -> tuple[Evidence, ...]:
        """The mean of a field of ``Parts`` over the steps, for every rank; in a large job, for both ends of the range.
        Means add up to the step; medians do not."""
        rows, values = self.means_ms_of(field)
        return tuple(
            Evidence(
                f"rank {rank}, mean {_words_of(field)}",
                values[rank],
                "ms",
                replace(rows, where={**rows.where, "rank": rank}),
            )
            for rank in both_ends(sorted(values, key=lambda rank: -values[rank]))
        )

    def means_ms_of(self, field: str) -> tuple[Query, Mapping[int, float]]:
        """The means of a field of ``Parts`` by rank, milliseconds, and the rows that they come from."""
        if self.means is not None:
            return self.means.of(field)
        parts, spent = self.parts.rank, self.parts.column(field)
        return Query("steps", self.counted, field, By.MEAN), {
            rank: round(float(np.mean(spent[of_rank])) / 1e6, 3) if (of_rank := parts == rank).any() else 0.0
            for rank in self.attribution.ranks
        }

    @property
    def counted(self) -> dict[str, Value]:
        """The steps that count, for a query on the frame of steps or of meetings."""
        return {"counted": True} if self.attribution.usable else {}

    def in_few_steps(self, culprits: Culprits) -> str:
        """Where nearly all of a delay is, if the culprit stood still in few steps: ", nearly all of it in step 100"."""
        numbers = [self.shares.numbers[at] for at in culprits.stood_still]
        if len(numbers) < 2:
            return sentences.NEARLY_ALL_IN_ONE_STEP(step=f"{numbers[0]:,}") if numbers else ""
        first, last = f"{numbers[0]:,}", f"{numbers[-1]:,}"
        return sentences.NEARLY_ALL_IN_FEW_STEPS(count=len(numbers), first=first, last=last)

    def charged(self, cost: Cost, ranks: tuple[int, ...]) -> Series:
        """The cost of a finding with these ranks at fault, per step: the number in its title and on every page."""
        return self.shares.charged(cost, ranks) if ranks else self.shares.cost(cost)

    def costing(
        self,
        cost: Cost,
        id: str,
        title: str,
        action: str,
        evidence: Iterable[Evidence] = (),
        ranks: tuple[int, ...] = (),
        part: float = 1.0,
        title_ms: float | None = None,
    ) -> Finding:
        """A finding that costs time; its cost is the first item of its evidence, unless it is zero: no row of the run
        would show it. The cost of a finding that names ranks is what is charged to them; its severity depends on the
        whole cost of the cause. ``part``: fraction of the cost, so that several findings share it and no nanosecond
        counts twice. ``title_ms``: the amount in the title, where it is not ``in_ms`` of the cost."""
        series = part * self.charged(cost, ranks)
        total = float(self.shares.dur_ns.sum())
        share = float(series.sum()) / total if total else 0.0
        of_ranks = f" ({ranks_text(ranks)})" if ranks and cost in self.shares.blame_ns else ""
        rows = Query("costs", {"cost": cost.words, "rank": list(ranks) if of_ranks else None}, "cost_ns")
        if part == 1 and (len(ranks) == 1 or not of_ranks):
            rows = replace(rows, by=By.SUM, of="step_ns")
        whole = Evidence(f"{cost.words}{of_ranks}, share of step time", round(share, 4), "share", rows)
        return Finding(
            id=id,
            title=title,
            severity=severity(part * self.shares.share(cost)),
            share=share,
            cost_ns_per_step=mean_ns(series),
            confidence=self._confidence(series),
            ranks=ranks,
            evidence=(whole, *evidence) if share else tuple(evidence),
            bottleneck=class_of(cost, self.shares.on_device),
            rows=Query("collectives") if cost == Cost.COMM and not self.phases_alone else None,
            action=action,
            title_ns=round(1e6 * (rounded_ms(mean_ns(series)) if title_ms is None else title_ms)),
            charged_ns={
                rank: int(ns) for rank, ns in self.shares.charged_means(cost).items() if ns >= FINDINGS.least_charged_ns
            },
        )

    def _confidence(self, series: Series) -> float:
        """How certain it is that a cost is above the threshold for a warning: its share over resampled steps."""
        share = resampled(series, self.shares.dur_ns)
        most = FINDINGS.confidence_of_phases_alone if self.phases_alone else 0.99
        return round(min(most, float((share >= min(FINDINGS.warning_share, float(np.median(share)) / 2)).mean())), 2)


def _counted_parts(subject: Subject) -> PartColumns:
    return subject.attribution.counted.parts


def both_ends(ranks: Sequence[int]) -> Sequence[int]:
    """The ranks; of many, the first and the last ones."""
    most = FINDINGS.ranks_at_either_end
    return ranks if len(ranks) <= 2 * most else [*ranks[:most], *ranks[-most:]]


def severity(share: float) -> Severity:
    return (
        Severity.CRITICAL
        if share >= FINDINGS.critical_share
        else Severity.WARN
        if share >= FINDINGS.warning_share
        else Severity.HEALTHY
    )


def resampled(cost_ns: Series, dur_ns: Series, rounds: int = 400) -> Series:
    """The share of the time over ``rounds`` bootstrap resamples of the steps, always the same ones."""
    if not len(dur_ns) or not dur_ns.sum():
        return np.zeros(rounds)
    drawn = Drawn(len(dur_ns), rounds, np.random.default_rng(0))
    time = drawn.sums(dur_ns)
    share: Series = drawn.sums(cost_ns) / np.where(time > 0, time, 1)
    return share


class Drawn:
    """The steps in each of ``rounds`` resamples of ``count`` steps.

    Steps are not independent of their neighbours (a slow shard, a full page cache, a thermal limit last for some). So
    from 20 steps on, blocks of steps are drawn, with the cube root of the number of steps as their length (a moving
    block bootstrap); the last block of a resample is cut.
    """

    def __init__(self, count: int, rounds: int, random: np.random.Generator) -> None:
        length = round(count ** (1 / 3)) if count >= STRAGGLER.least_steps_for_blocks else 1
        self._first = random.integers(0, count, size=(rounds, -(-count // length)))
        self._last = self._first + length
        self._last[:, -1] -= self._first.shape[1] * length - count

    def sums(self, values: Series) -> Series:
        """Of each resample, over its steps. A block that reaches beyond the last step goes on at the first one."""
        before = np.concatenate(([0.0], np.cumsum(np.concatenate((values, values)))))
        total: Series = (before[self._last] - before[self._first]).sum(axis=1)
        return total


def in_ms(ns: float) -> str:
    """``13 ms``; below ten with two significant digits, so that no cost is printed as 0."""
    ms = rounded_ms(ns)
    return f"{ms:,.0f} ms" if abs(ms) >= 10 or not ms else f"{ms:.2g} ms"


# Fields of ``Parts`` for people. Exposed communication is what the critical path has of it, without the waiting.
_WORDS = {
    "exposed_comm_ns": "waiting and transfer that are not overlapped",
    "exposed_wait_ns": "waiting for a rank that is not overlapped",
}


def _words_of(field: str) -> str:
    return _WORDS.get(field) or field.removesuffix("_ns").replace("_", " ")


def rounded_ms(ns: float) -> float:
    ms = ns / 1e6
    return round(ms) if abs(ms) >= 9.95 or not ms else float(f"{ms:.2g}")


def highest_ranks(scheduling: Scheduling, column: str, quantity: str) -> list[Evidence]:
    """Evidence for the eight ranks with the highest means of a column of CPU scheduling, milliseconds."""
    means_ms = scheduling.mean_ms(column)
    shown = sorted(means_ms, key=lambda rank: -means_ms[rank])[: FINDINGS.ranks_as_evidence]
    return [scheduled(rank, column, f"mean {quantity}", means_ms[rank]) for rank in shown]


def scheduled(rank: int, column: str, quantity: str, mean_ms: float) -> Evidence:
    """A rank's mean of a column of CPU scheduling."""
    rows = Query("scheduling", {"rank": rank}, column, By.MEAN)
    return Evidence(f"rank {rank}, {quantity}", round(mean_ms, 3), "ms", rows)


def mean_ns(series: Series) -> int:
    return int(series.mean()) if len(series) else 0


def settings_of_run(subject: Subject) -> Settings | None:
    """What the command line of an attached training sets, if its program has options of its own that are known."""
    manifest = subject.tables.manifest
    attached = manifest.collector.get("attached") if manifest is not None else None
    command = attached.get("command") if isinstance(attached, dict) else None
    words = command if isinstance(command, list) else manifest.argv if manifest is not None else []
    return settings_of_command(word for word in words if isinstance(word, str))


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Ranks in a finding's words: with ordinary spaces, so that a title can be compared and searched."""
    return spaced(listing(ranks))


def gpus_of(subject: Subject) -> Sharing:
    """Which rank uses which GPU, as far as it is known."""
    return sharing_of(subject.tables)


def shared_words(sharing: Sharing) -> str:
    """Which ranks share a GPU: "ranks 0, 1 share one GPU"."""
    first, *more = sharing.shared
    if more:
        return sentences.RANKS_SHARE_GPUS(ranks=ranks_text(first.ranks), gpus=len(more))
    return sentences.RANKS_SHARE_A_GPU(ranks=ranks_text(first.ranks))


def waited_for(culprits: Culprits, per: str, everybody: bool = False) -> str:
    """How long others waited for each of the latest ranks, in words: ``116 ms a step for rank 1, 25 ms for rank 0``."""
    shown = [(rank, ns) for rank, ns in culprits.late_ns if ns > 0 and (everybody or rank in culprits.suspects)]
    return ", ".join(f"{in_ms(ns)}{'' if at else f' {per}'} for rank {rank}" for at, (rank, ns) in enumerate(shown))


def times_last(cost: Cost, ranks: tuple[int, ...], times: int, affected: int, name: str = "") -> Evidence:
    """In how many of the affected steps these ranks were last. Without ranks: the rank called ``name``, or the rank
    that was last most often."""
    quantity = f"steps in which {name or ranks_text(ranks)} {'were' if len(ranks) > 1 else 'was'} last"
    if not ranks and not name:
        quantity = "most steps in which the same rank was last"
    rows = Query("costs", {"cost": cost.words, **({"rank": list(ranks)} if ranks else {})})
    return Evidence(f"{quantity}, of {affected} affected", float(times), "steps", rows)


def late_ranks_text(culprits: Culprits) -> str:
    """The culprits; or that the late rank changes from step to step, or is not known."""
    if culprits.ranks:
        return ranks_text(culprits.ranks)
    return "a different rank from step to step" if culprits.moves else "an unidentified rank"


class Diagnosis(Struct, frozen=True):
    """What looks for a kind of problem, in a module of its own. ``find`` returns its findings. For its documentation:
    ``needs``, what has to be recorded, and ``means``, what each of its findings means, by id."""

    find: Callable[[Subject], Sequence[Finding]]
    needs: str = ""
    means: Mapping[str, str] = {}


class Listed(Struct, frozen=True):
    """A diagnosis in the registry. ``id`` names it, ``question`` is its name in words. ``where``: its ``Diagnosis``, as
    "module:name", which is loaded where a run may show it; a module of several has a table of them by id. ``reads``:
    the columns without which it cannot look; ``cannot_look`` returns any other reason why the data of this run does not
    show it, "" where it does. ``costs``: what it looks for; with costs, ``find`` is called only where one of them is
    worth a mention, or ``always``. ``knobs``: by the id of a finding, the knobs that answer it, each with what to
    change, or "" where the knob says that."""

    id: str
    question: str
    where: str
    reads: tuple[Column, ...] = ()
    costs: tuple[Cost, ...] = ()
    always: bool = False
    cannot_look: Callable[[Subject], str] = lambda _: ""
    knobs: Mapping[str, Mapping[Knob, str]] = {}

    @property
    def diagnosis(self) -> Diagnosis:
        """Loads its module."""
        found: Diagnosis | Mapping[str, Diagnosis] = loaded(self.where)
        return found if isinstance(found, Diagnosis) else found[self.id]

    def unseen(self, subject: Subject) -> str:
        """Why it could not be looked for; "" where it could."""
        missing = (subject.lacks.get(column) or _lacking(subject, column) for column in self.reads)
        return next(filter(None, missing), "") or self.cannot_look(subject)

    def worth_looking(self, shares: Shares) -> bool:
        return not self.costs or self.always or any(shares.share(cost) >= FINDINGS.mention_share for cost in self.costs)


def ranks_not_comparable(subject: Subject) -> str:
    """Why no rank can be called slower than the others; "" where one can."""
    if len(subject.attribution.ranks) < 2:
        return "only one rank was recorded; a comparison needs two"
    if subject.phases_alone:
        unseen = subject.shares.on_device and not subject.attribution.comm_known
        return "the device's work was not recorded" if unseen else ""
    return "" if subject.attribution.aligned else "the ranks' clocks could not be aligned"


def _lacking(subject: Subject, column: Column) -> str:
    """Why this run lacks a column that its source could have; "" where it has it, or diagnoses ask for more of it."""
    if column == Column.NUMBERS:
        ranks = subject.tables.ranks.values()
        seen = any(of.numbers or (of.heartbeat is not None and of.heartbeat.numbers) for of in ranks)
        return "" if seen else _numbers_not_looked_at(subject)
    if column == Column.OWN_DEVICE:
        sharing = subject.once(gpus_of)
        return shared_words(sharing) if sharing.shared else ""
    if column != Column.DEVICE or subject.shares.on_device:
        return ""
    return "the device's work was not recorded" if subject.tables.device_unread else "the run is on a CPU"


def _numbers_not_looked_at(subject: Subject) -> str:
    """Why no loss and no gradient norm was looked at while the run trained."""
    if any(np.isfinite(of.steps.loss).any() for of in subject.tables.ranks.values()):
        return "losses were recorded, but nothing says that the recorder looked at them for this"
    if subject.shares.on_device or subject.tables.device_unread:
        return "no loss and no gradient norm was on the host: reading one would wait for the device"
    return "no loss and no gradient norm was recorded"
