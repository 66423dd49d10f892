"""Two runs side by side: which part of the step the difference is in, and how sure that is. Pure.

Compared are the critical paths of the steps that count: what everybody waited for. Their kinds of time add up to the
step, so the differences of the kinds add up to the difference of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from diag.collectors.records import Manifest
from diag.model.steps import Attribution, Kind, StepAccount
from diag.rundir.run import Tables

from .subject import drawn_steps

Series = npt.NDArray[np.float64]

_ROUNDS = 2000
_SURE = 0.95
_LEAST_STEPS = 5  # below it the spread of the steps says little
# Of a model, what makes a step other work; names of the manifest.
_MODEL = ("parameters", "layers", "dim", "seq_len")


class Difference(Struct, frozen=True):
    """Nanoseconds a step of one kind of time, on the critical path: means before and after, and ``after - before`` as
    (low, likely, high), the 95 % interval from both runs' own steps. ``sure``: the interval leaves out zero."""

    kind: Kind
    before_ns: int
    after_ns: int
    ns: tuple[int, int, int]

    @property
    def sure(self) -> bool:
        return self.ns[0] > 0 or self.ns[2] < 0


class Comparison(Struct, frozen=True):
    """Of two runs, the second against the first. ``not_comparable``: why their steps are not the same work; then the
    rest is shown at the reader's own risk. ``notes``: what else differs. ``parts``: of all kinds that any of the two
    has, in the order of ``Kind``; they add up to the step up to the rounding of each."""

    before_ns: int
    after_ns: int
    ns: tuple[int, int, int]
    steps: tuple[int, int]
    parts: tuple[Difference, ...]
    not_comparable: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sure(self) -> bool:
        """Whether the steps themselves surely differ."""
        return self.ns[0] > 0 or self.ns[2] < 0


def compare(before: tuple[Tables, Attribution], after: tuple[Tables, Attribution], seed: int = 0) -> Comparison:
    """The second run against the first, over the steps that count in each."""
    first, second = (_counted(attribution) for _, attribution in (before, after))
    random = np.random.default_rng(seed)
    picks = (drawn_steps(len(first), _ROUNDS, random), drawn_steps(len(second), _ROUNDS, random))
    total = _difference(_durations(first), _durations(second), picks)
    pathless = [name for name, steps in (("first", first), ("second", second)) if not any(s.path.dur_ns for s in steps)]
    parts = []
    for kind in Kind if not pathless else ():
        own = _of_kind(first, kind), _of_kind(second, kind)
        if own[0].any() or own[1].any():
            parts.append(Difference(kind, round(own[0].mean()), round(own[1].mean()), _difference(*own, picks)))
    return Comparison(
        before_ns=round(_durations(first).mean()),
        after_ns=round(_durations(second).mean()),
        ns=total,
        steps=(len(first), len(second)),
        parts=tuple(parts),
        not_comparable=tuple(_reasons(before[0], after[0])),
        notes=(
            *_whole(pathless),
            *_hidden(before[1], after[1]),
            *_notes(before[0], after[0], (len(first), len(second))),
        ),
    )


# -- the numbers -------------------------------------------------------------------------------------------------------


def _counted(attribution: Attribution) -> tuple[StepAccount, ...]:
    return attribution.usable or attribution.steps


def _durations(steps: Sequence[StepAccount]) -> Series:
    return np.array([step.dur_ns for step in steps], dtype=np.float64)


def _of_kind(steps: Sequence[StepAccount], kind: Kind) -> Series:
    return np.array([step.path.total(kind) for step in steps], dtype=np.float64)


def _difference(
    before: Series, after: Series, picks: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
) -> tuple[int, int, int]:
    drawn = after[picks[1]].mean(axis=1) - before[picks[0]].mean(axis=1)
    low, high = np.quantile(drawn, [(1 - _SURE) / 2, (1 + _SURE) / 2])
    likely = float(after.mean() - before.mean())
    return round(min(float(low), likely)), round(likely), round(max(float(high), likely))


# -- whether they are the same work ------------------------------------------------------------------------------------


def _reasons(before: Tables, after: Tables) -> list[str]:
    reasons = []
    if before.world_size is not None and after.world_size is not None and before.world_size != after.world_size:
        reasons.append(f"one ran on {before.world_size} ranks, the other on {after.world_size}")
    if before.on_device != after.on_device:
        reasons.append("one ran on a device, the other on a CPU")
    if before.manifest is not None and after.manifest is not None:
        reasons += _models(before.manifest, after.manifest)
    tokens = _tokens(before), _tokens(after)
    if all(tokens) and tokens[0] != tokens[1]:
        reasons.append(f"a step of a rank is {tokens[0]:,} tokens in one and {tokens[1]:,} in the other")
    return reasons


def _models(before: Manifest, after: Manifest) -> list[str]:
    both = [name for name in _MODEL if name in before.model and name in after.model]
    other = [name for name in both if before.model[name] != after.model[name]]
    return [
        f"the models differ: {name.replace('_', ' ')} {_text(before.model[name])} and {_text(after.model[name])}"
        for name in other
    ]


def _text(value: object) -> str:
    return "(the default)" if value is None else f"{value:,}" if type(value) is int else str(value)


def _tokens(tables: Tables) -> int:
    """Of a rank and step, as most of them have it; 0 where they do not say."""
    counts = [record.tokens for rank in tables.ranks.values() for record in rank.steps]
    return max(set(counts), key=counts.count) if counts else 0


def _whole(pathless: Sequence[str]) -> list[str]:
    """Of runs that were read from their ranks' summaries."""
    where = " and the ".join(pathless)
    return (
        [f"only the ranks' summaries of the {where} run were read: parts of the step are not compared"] if where else []
    )


def _hidden(before: Attribution, after: Attribution) -> list[str]:
    """Of runs on a device without profiler windows."""
    unseen = [name for name, own in (("first", before), ("second", after)) if not own.comm_known]
    where = " and the ".join(unseen)
    return [f"communication was not recorded in the {where} run: there it is a part of compute"] if unseen else []


def _notes(before: Tables, after: Tables, steps: tuple[int, int]) -> list[str]:
    notes = []
    unknown = [
        name
        for name, tables in (("first", before), ("second", after))
        if not (tables.manifest and tables.manifest.model)
    ]
    if unknown:
        notes.append(f"which model was trained is not recorded in the {' and the '.join(unknown)} run")
    settings = _settings(before.manifest, after.manifest)
    if settings:
        notes.append(f"settings that differ: {', '.join(settings)}")
    for name, count in zip(("first", "second"), steps, strict=True):
        if count < _LEAST_STEPS:
            notes.append(f"only {count} of the {name} run's steps count, so the interval says little")
    return notes


def _settings(before: Manifest | None, after: Manifest | None) -> list[str]:
    if before is None or after is None:
        return []
    found = []
    if before.strategy != after.strategy:
        found.append(f"strategy {before.strategy} and {after.strategy}")
    # What was planted an analysis must not know; "setup" repeats other settings in words.
    skipped = {"inject", "setup", "strategy", "steps"}
    of_first, of_second = ({**manifest.loader, **manifest.trainer} for manifest in (before, after))
    for name in sorted({*of_first, *of_second} - skipped):
        own, theirs = of_first.get(name), of_second.get(name)
        if own != theirs:
            found.append(f"{name.replace('_', ' ')} {_text(own)} and {_text(theirs)}")
    return found
