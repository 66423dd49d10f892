"""Differences between the ranks of one run, its critical path in a sentence, and differences between two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.account.blame import median_of_others
from diag.account.scheduling import Load
from diag.collectors.records import Manifest
from diag.diagnoses.policy import COMPARISON
from diag.model import UNKNOWN
from diag.model.accounts import Attribution, StepAccounts, spent_on
from diag.model.steps import Kind
from diag.rundir.tables import Tables
from diag.words import sentences

from .shares import PART_NAMES as PART_NAMES
from .shares import Shares, step_parts
from .shares import StepPart as StepPart
from .subject import Drawn

_FIELD = {
    Kind.COMPUTE: "compute_ns",
    Kind.COMM: "exposed_transfer_ns",
    Kind.COPY: "exposed_copy_ns",
    Kind.DATA: "data_wait_ns",
    Kind.CHECKPOINT: "checkpoint_ns",
    Kind.IDLE: "idle_ns",
}


class RankDifference(Struct, frozen=True):
    """Time that a rank spends more (positive) or less than the median of the others, mean nanoseconds a step by kind.

    Waiting for other ranks is left out: it mirrors the extra time of those ranks. COMM is transfer alone, and missing
    where transfer could not be separated from waiting. ``idle_by_host_ns`` and ``idle_queued_ns``: the parts of IDLE
    that the host causes, and in which work was launched and did not run.
    """

    rank: int
    host: str
    more_ns: dict[Kind, int]
    idle_by_host_ns: int = 0
    idle_queued_ns: int = 0

    @property
    def total_ns(self) -> int:
        """How much longer than the others this rank works."""
        return sum(self.more_ns.values())


def differences(attribution: Attribution, hosts: dict[int, str]) -> tuple[RankDifference, ...]:
    """For every rank, in order, over the counted steps."""
    counted = attribution.counted
    parts = counted.parts
    ranks = [rank for rank in attribution.ranks if (parts.rank == rank).any()]
    if not ranks:
        return ()
    transfers = bool((parts.exposed_transfer_ns != UNKNOWN).all())
    kinds = [kind for kind in Kind if kind != Kind.COMM or transfers]
    fields = [*(_FIELD[kind] for kind in kinds), "idle_parts.by_host_ns", "idle_parts.queued_ns"]
    columns = [parts.column(name) for name in fields]
    spent = np.array([[np.mean(column[parts.rank == rank]) for column in columns] for rank in ranks])
    whole = np.rint(spent).astype(np.int64)
    more = whole - median_of_others(whole)
    return tuple(
        RankDifference(rank, hosts.get(rank, ""), dict(zip(kinds, row, strict=True)), by_host_ns, queued_ns)
        for rank, (*row, by_host_ns, queued_ns) in zip(ranks, more.tolist(), strict=True)
    )


def path_sentence(attribution: Attribution, shares: Shares) -> str:
    """The mean step by its parts, largest first; "" where the ranks' timelines do not show a critical path."""
    counted = attribution.counted
    counted = counted.take(np.diff(counted.paths.edges) > 0)
    total = float(shares.dur_ns.sum())
    if not counted or not total:
        return ""
    spent = {part: float(series.sum()) for part, series in step_parts(shares).items()}
    parts = sorted(
        (part for part in spent if spent[part] >= COMPARISON.least_part_share * total), key=lambda part: -spent[part]
    )
    pieces = [_piece(counted, part, spent[part] / len(shares.dur_ns)) for part in parts]
    listed = " and ".join([", ".join(pieces[:-1]), pieces[-1]]) if len(pieces) > 1 else pieces[0]
    return (sentences.PATH_OF_WINDOW if attribution.undivided else sentences.PATH_OF_STEPS)(parts=listed)


def _piece(counted: StepAccounts, part: StepPart, mean_ns: float) -> str:
    told = {"ms": f"{mean_ns / 1e6:,.1f}", "part": PART_NAMES[part]}
    if not isinstance(part, Kind) or len(counted.parts) == len(counted):
        return sentences.PART_OF_PATH(**told)
    of_rank = spent_on(counted.paths, part)
    if not of_rank.any():
        return sentences.PART_OF_PATH(**told)
    most = int(of_rank.argmax())
    share = int(of_rank[most]) / int(of_rank.sum())
    if share < COMPARISON.one_rank_share:
        return sentences.PART_OF_PATH(**told)
    return sentences.PART_OF_PATH_ON_ONE_RANK(**told, share=f"{share:.0%}", rank=most)


Series = npt.NDArray[np.float64]

# Fields of the manifest's model: where they differ, a step is not the same work.
_MODEL = ("parameters", "layers", "dim", "seq_len")


class Difference(Struct, frozen=True):
    """Nanoseconds a step of one of its parts (``shares.step_parts``): means before and after, and ``after - before`` as
    (low, likely, high), the 95 % interval from both runs' own steps. ``sure``: the interval excludes zero."""

    kind: StepPart
    before_ns: int
    after_ns: int
    ns: tuple[int, int, int]

    @property
    def sure(self) -> bool:
        return self.ns[0] > 0 or self.ns[2] < 0


class Setting(Struct, frozen=True):
    """A setting with another value in each run, as texts; None where a run does not record it."""

    name: str
    before: str | None
    after: str | None

    @property
    def of_both(self) -> bool:
        """Whether both runs record it."""
        return self.before is not None and self.after is not None


class Comparison(Struct, frozen=True):
    """The second run compared with the first. ``not_comparable``: reasons why their steps are not the same work; the
    numbers are reported all the same. ``settings``: those that differ. ``remarks``: what else differs. ``parts``: those
    that either run has, in the order of ``shares.PART_NAMES``; they add up to the step up to rounding. ``loads``: of
    the busiest host in each run."""

    before_ns: int
    after_ns: int
    ns: tuple[int, int, int]
    steps: tuple[int, int]
    parts: tuple[Difference, ...]
    not_comparable: tuple[str, ...]
    settings: tuple[Setting, ...]
    remarks: tuple[str, ...]
    loads: tuple[Load | None, Load | None] = (None, None)

    @property
    def notes(self) -> tuple[str, ...]:
        """All that differs besides the times, in words."""
        settings = ", ".join(f"{each.name} {each.before} and {each.after}" for each in self.settings if each.of_both)
        of_one = [each.name for each in self.settings if not each.of_both]
        return (
            *self.remarks,
            *((f"settings that differ: {settings}",) if settings else ()),
            *((f"settings that only one run recorded: {', '.join(of_one)}",) if of_one else ()),
        )

    @property
    def sure(self) -> bool:
        """Whether the interval of the difference excludes zero."""
        return self.ns[0] > 0 or self.ns[2] < 0


def compare(
    before: tuple[Tables, Attribution, Shares],
    after: tuple[Tables, Attribution, Shares],
    seed: int = 0,
    loads: tuple[Load | None, Load | None] = (None, None),
) -> Comparison:
    """The second run against the first, over the steps that count in each. ``loads``: of their hosts."""
    first, second = before[2], after[2]
    steps = len(first.numbers), len(second.numbers)
    picks = resamples_of(*steps, seed)
    pathless = [
        name
        for name, (_, attribution, _) in (("first", before), ("second", after))
        if not attribution.counted.spent().any()
    ]
    parts, of_first, of_second = [], step_parts(first), step_parts(second)
    for part in PART_NAMES if not pathless else ():
        spent = of_first[part], of_second[part]
        if spent[0].any() or spent[1].any():
            parts.append(Difference(part, round(spent[0].mean()), round(spent[1].mean()), difference_of(*spent, picks)))
    return Comparison(
        before_ns=round(first.dur_ns.mean()),
        after_ns=round(second.dur_ns.mean()),
        ns=difference_of(first.dur_ns, second.dur_ns, picks),
        steps=steps,
        parts=tuple(parts),
        not_comparable=reasons_against(before[0], after[0]),
        settings=_settings(before[0].manifest, after[0].manifest),
        remarks=(*_whole(pathless), *_hidden(before[1], after[1]), *_remarks(before[0], after[0], steps)),
        loads=loads,
    )


def resamples_of(before: int, after: int, seed: int = 0) -> tuple[Drawn, Drawn]:
    """Of so many steps of each run: the same ones for all that is compared of two runs."""
    return _drawn(before, after, COMPARISON.resamples, seed)


@lru_cache(maxsize=1)
def _drawn(before: int, after: int, rounds: int, seed: int) -> tuple[Drawn, Drawn]:
    random = np.random.default_rng(seed)
    return Drawn(before, rounds, random), Drawn(after, rounds, random)


def difference_of(before: Series, after: Series, picks: tuple[Drawn, Drawn]) -> tuple[int, int, int]:
    drawn = picks[1].sums(after) / len(after) - picks[0].sums(before) / len(before)
    low, high = np.quantile(drawn, [(1 - COMPARISON.interval_confidence) / 2, (1 + COMPARISON.interval_confidence) / 2])
    likely = float(after.mean() - before.mean())
    return round(min(float(low), likely)), round(likely), round(max(float(high), likely))


# -- whether they are the same work ------------------------------------------------------------------------------------


class Work(Struct, frozen=True):
    """What makes the steps of two runs the same work. ``on_device``: None if unknown; ``model``: the manifest's fields
    of it that are known; ``tokens``: of a rank and step, 0 if unknown."""

    world_size: int | None
    on_device: bool | None
    model: dict[str, object]
    tokens: int


def work_of(tables: Tables) -> Work:
    return Work(tables.world_size, tables.on_device, model_of(tables.manifest), _tokens(tables))


def model_of(manifest: Manifest | None) -> dict[str, object]:
    """The manifest's fields of the model that are known."""
    model = manifest.model if manifest is not None else {}
    return {name: model[name] for name in _MODEL if name in model}


def reasons_against(before: Tables, after: Tables) -> tuple[str, ...]:
    """Why the steps of two runs are not the same work, so that neither run is better; empty where nothing speaks
    against comparing them."""
    return reasons_between(work_of(before), work_of(after))


def reasons_between(before: Work, after: Work) -> tuple[str, ...]:
    """The same of what is known of their work."""
    reasons = []
    if before.world_size is not None and after.world_size is not None and before.world_size != after.world_size:
        reasons.append(f"one ran on {before.world_size} ranks, the other on {after.world_size}")
    if before.on_device is not None and after.on_device is not None and before.on_device != after.on_device:
        reasons.append("one ran on a device, the other on a CPU")
    unlike = [
        f"{name.replace('_', ' ')} {text_of(before.model[name])} and {text_of(after.model[name])}"
        for name in _MODEL
        if name in before.model and name in after.model and before.model[name] != after.model[name]
    ]
    if unlike:
        reasons.append(f"the models differ: {', '.join(unlike)}")
    if before.tokens and after.tokens and before.tokens != after.tokens:
        reasons.append(f"a step of a rank is {before.tokens:,} tokens in one and {after.tokens:,} in the other")
    return tuple(reasons)


def text_of(value: object) -> str:
    """The value of a setting for people."""
    return "(the default)" if value is None else f"{value:,}" if type(value) is int else str(value)


def _tokens(tables: Tables) -> int:
    """The most frequent number of tokens per rank and step; 0 where unknown."""
    counts = Counter[int]()
    for rank in tables.ranks.values():
        counts.update(rank.steps.tokens.tolist())
    return counts.most_common(1)[0][0] if counts else 0


def _whole(pathless: Sequence[str]) -> list[str]:
    where = " and the ".join(pathless)
    return (
        [f"only the ranks' summaries of the {where} run were read: parts of the step are not compared"] if where else []
    )


def _hidden(before: Attribution, after: Attribution) -> list[str]:
    unseen = [name for name, attribution in (("first", before), ("second", after)) if not attribution.comm_known]
    where = " and the ".join(unseen)
    return [f"communication was not recorded in the {where} run: there it is a part of compute"] if unseen else []


def _remarks(before: Tables, after: Tables, steps: tuple[int, int]) -> list[str]:
    notes = []
    unknown = [
        name
        for name, tables in (("first", before), ("second", after))
        if not (tables.manifest and tables.manifest.model)
    ]
    if unknown:
        notes.append(f"which model was trained is not recorded in the {' and the '.join(unknown)} run")
    for name, count in zip(("first", "second"), steps, strict=True):
        if count < COMPARISON.least_steps:
            notes.append(f"only {count} of the {name} run's steps count, so the interval says little")
    return notes


def _settings(before: Manifest | None, after: Manifest | None) -> tuple[Setting, ...]:
    if before is None or after is None:
        return ()
    differing = []
    of_first, of_second = map(settings_of, (before, after))
    for name in sorted({*of_first, *of_second}, key=lambda name: (name != "strategy", name)):
        if of_first.get(name) != of_second.get(name):
            first, second = (text_of(each[name]) if name in each else None for each in (of_first, of_second))
            differing.append(Setting(name.replace("_", " "), first, second))
    return tuple(differing)


def settings_of(manifest: Manifest) -> dict[str, object]:
    """Those that may be told. An analysis must not know which fault was planted ("inject"); "setup" repeats others in
    words, and a run of more steps has the same ones."""
    every = {**manifest.loader, **manifest.trainer, "strategy": str(manifest.strategy)}
    return {name: value for name, value in every.items() if name not in ("inject", "setup", "steps")}
