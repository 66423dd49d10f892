"""Input and output of the knobs: a case and its candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field

from diag.collectors.records import Manifest
from diag.collectors.strategies import named
from diag.diagnoses import Examination, answered_by
from diag.diagnoses.memory_pressure import peaks_of
from diag.model.accounts import Attribution
from diag.model.steps import Bottleneck, Finding, Knob, Risk
from diag.replay.policy import ADVICE
from diag.rundir.tables import Tables

from .mutations import Mutation
from .program import GATHERS, GRADIENTS, Program, Role

# -- sizes -------------------------------------------------------------------------------------------------------------
#
# How large the sharding units are, and how much memory a device has left (docs/concepts/sharding.md).


class Sizes(Struct, frozen=True):
    """Bytes of full tensors in one micro-batch of one step, from the collectives.

    ``units``: each sharding unit's parameters, in order of forward. ``regathered``: parameters that the backward
    gathers again. ``gradients``: bytes reduced.
    """

    units: tuple[int, ...]
    regathered: int
    gradients: int

    @property
    def parameters(self) -> int:
        return sum(self.units)

    @property
    def largest(self) -> int:
        return max(self.units, default=0)

    @property
    def largest_gradient(self) -> int:
        """The gradients of the largest unit, in the type that they are reduced in."""
        return round(self.largest * self.gradients / self.parameters) if self.parameters else 0

    def transient(self, largest: int, units: int) -> int:
        """Peak of gathered parameters and unreduced gradients, with units of this size."""
        gathered = min(ADVICE.units_gathered_at_once, units) * largest
        gradients = round(largest * self.gradients / self.parameters) if self.parameters else 0
        return gathered + gradients


def sizes_of(program: Program) -> Sizes:
    usual = _usual_step(program)
    # Of one rank: with several sharding groups, each gathers the same units.
    rank = program.ranks[0]
    first = [c for c in program.collectives() if c.micro_batch == 0 and c.step == usual and rank in c.tail_ns]
    forward = sorted((c for c in first if c.role == Role.GATHER_FORWARD), key=lambda c: c.unit)
    return Sizes(
        units=tuple(c.bytes for c in forward),
        regathered=sum(c.bytes for c in first if c.role == Role.GATHER_BACKWARD),
        gradients=sum(c.bytes for c in first if c.role in GRADIENTS),
    )


def _usual_step(program: Program) -> int:
    """A step with the most frequent number of collectives."""
    counts: Counter[int] = Counter(c.step for c in program.collectives() if c.role in GATHERS | GRADIENTS)
    usual = Counter(counts.values()).most_common(1)
    return next((step for step, count in sorted(counts.items()) if usual and count == usual[0][0]), -1)


def headroom(tables: Tables) -> int | None:
    """Capacity minus the peaks of reserved memory of the ranks on a device, the least over the devices; None where no
    rank recorded both."""
    return min((peak.free for peak in peaks_of(tables)), default=None)


def capacity(tables: Tables) -> int:
    """Of the largest device; 0 where none was recorded."""
    return max((int(t.steps.memory_of("capacity").max(initial=0)) for t in tables.ranks.values()), default=0)


def grouped(units: Iterable[int], by: int) -> tuple[int, ...]:
    sizes = list(units)
    return tuple(sum(sizes[i : i + by]) for i in range(0, len(sizes), by))


class Api(StrEnum):
    """The API in which a knob is set."""

    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"
    DDP = "ddp"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    HF_TRAINER = "hf_trainer"
    PYTORCH = "pytorch"  # the same, whichever API shards the model


Setting = str | int


class Candidate(Struct, frozen=True):
    """A change that might help. ``settings``: options of the bundled trainer, by name; empty where it has no such
    option. ``memory_delta_bytes``: per device; None where unknown. ``before``: what the code replaces. ``also``:
    assumptions of the prediction beyond the replay."""

    id: str
    finding: str
    knob: Knob
    change: str
    mutation: Mutation
    memory_delta_bytes: int | None
    risk: Risk
    code: Mapping[Api, str]
    before: Mapping[Api, str] = field(default_factory=dict)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    also: tuple[str, ...] = ()


class Case(Struct, frozen=True):
    attribution: Attribution
    tables: Tables
    examination: Examination
    program: Program
    sizes: Sizes

    @property
    def step_ns(self) -> float:
        """The step time that every page shows: the mean of all steps that count."""
        return float(self.examination.shares.dur_ns.mean())

    @property
    def manifest(self) -> Manifest | None:
        return self.tables.manifest

    @property
    def api(self) -> str:
        """The API in which users write a change: DDP's for ZeRO-1. "" where no strategy is known."""
        name = (self.manifest.strategy or "") if self.manifest is not None else ""
        kind = named(name)
        return kind.api if kind is not None else name

    @property
    def bundled(self) -> bool:
        """Whether the bundled trainer ran, so that a change is an option of ``diag run``."""
        return self.manifest is not None and bool(self.manifest.trainer)

    def takes(self, settings: Mapping[str, Setting]) -> bool:
        """Whether the bundled trainer accepts these options for this run: not every strategy has every option."""
        if self.manifest is None:
            return False
        strategy = named(self.manifest.strategy)
        return strategy is not None and strategy.takes({**self.manifest.trainer, **settings})

    def option(self, name: str, otherwise: Setting) -> Setting:
        value = self.manifest.trainer.get(name) if self.manifest is not None else None
        return value if isinstance(value, str | int) else otherwise

    def number(self, name: str, otherwise: int) -> int:
        value = self.option(name, otherwise)
        return value if isinstance(value, int) else otherwise

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: the bundled trainer's setting, else the most frequent number."""
        seen: Counter[int] = Counter()
        for rank in self.tables.ranks.values():
            seen.update(rank.steps.micro_batches.tolist())
        return self.number("micro_batches", max(seen, key=seen.__getitem__, default=1))

    @property
    def blocks(self) -> int | None:
        layers = self.manifest.model.get("layers") if self.manifest is not None else None
        return layers if isinstance(layers, int) and layers > 0 else None

    def finding(self, knob: Knob) -> Finding | None:
        """The most expensive of the findings that the knob answers, if it costs enough to be acted on."""
        ids = answered_by(knob)
        worth = (f for f in self.examination.findings if f.id in ids and f.share >= ADVICE.worth_acting_share)
        return next(worth, None)

    @property
    def communication(self) -> Finding | None:
        """The most expensive finding about communication, if it costs enough to be acted on."""
        about = (
            f
            for f in self.examination.findings
            if f.bottleneck == Bottleneck.COMMUNICATION and f.share >= ADVICE.worth_acting_share
        )
        return next(about, None)
