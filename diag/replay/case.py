"""What the knobs are given, and what they propose."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import StrEnum

from msgspec import Struct, field

from diag.collectors.records import Manifest
from diag.collectors.trainer.keys import OptionError
from diag.collectors.trainer.options import TrainerOptions
from diag.collectors.trainer.refusals import validate
from diag.collectors.trainer.strategies import STRATEGIES
from diag.diagnoses import Examination
from diag.model.steps import Attribution, Bottleneck, Finding, Risk
from diag.rundir.run import Tables

from .mutations import Mutation
from .program import GATHERS, GRADIENTS, Program, Role

# -- sizes -------------------------------------------------------------------------------------------------------------
#
# How large the sharding units are, and how much memory a device has left (science.md 4.1).

# Units that are gathered at the same time: one in use, one gathered ahead, one being freed (science.md 3.1).
GATHERED_AT_ONCE = 3


class Sizes(Struct, frozen=True):
    """Bytes of full tensors in one micro-batch of one step, as the collectives show them.

    ``units``: each sharding unit's parameters, in order of forward. ``regathered``: of those that backward gathers
    again. ``gradients``: what is reduced.
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
        """What gathered parameters and unreduced gradients take at the peak, with units of this size."""
        gathered = min(GATHERED_AT_ONCE, units) * largest
        gradients = round(largest * self.gradients / self.parameters) if self.parameters else 0
        return gathered + gradients


def sizes_of(program: Program) -> Sizes:
    usual = _usual_step(program)
    first = [c for c in program.collectives() if c.micro_batch == 0 and c.step == usual]
    forward = sorted((c for c in first if c.role == Role.GATHER_FORWARD), key=lambda c: c.unit)
    return Sizes(
        units=tuple(c.bytes for c in forward),
        regathered=sum(c.bytes for c in first if c.role == Role.GATHER_BACKWARD),
        gradients=sum(c.bytes for c in first if c.role in GRADIENTS),
    )


def _usual_step(program: Program) -> int:
    """A step with as many collectives as most have."""
    counts: Counter[int] = Counter(c.step for c in program.collectives() if c.role in GATHERS | GRADIENTS)
    usual = Counter(counts.values()).most_common(1)
    return next((step for step, count in sorted(counts.items()) if usual and count == usual[0][0]), -1)


def headroom(tables: Tables) -> int | None:
    """Capacity less the peak that the allocator reserved, least over the ranks; None where no rank tells both."""
    left = []
    for rank in tables.ranks.values():
        recorded = [s.memory for s in rank.steps if s.memory is not None and s.memory.capacity]
        if recorded:
            left.append(min((m.capacity or 0) - (m.reserved or 0) for m in recorded))
    return min(left, default=None)


def grouped(units: Iterable[int], by: int) -> tuple[int, ...]:
    """Sizes of the units when ``by`` neighbours become one."""
    sizes = list(units)
    return tuple(sum(sizes[i : i + by]) for i in range(0, len(sizes), by))


class Api(StrEnum):
    """What the users of a knob write it in."""

    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"
    DDP = "ddp"
    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    HF_TRAINER = "hf_trainer"
    PYTORCH = "pytorch"  # the same whatever shards the model


Setting = str | int


class Candidate(Struct, frozen=True):
    """A change that might help. ``settings``: of the bundled trainer's options, by name; empty where it has no such
    option. ``memory_delta_bytes``: of a device; None where what is known does not tell. ``also``: what the prediction
    takes for granted beside the replay."""

    id: str
    finding: str
    knob: str
    change: str
    mutation: Mutation
    memory_delta_bytes: int | None
    risk: Risk
    code: Mapping[Api, str]
    settings: Mapping[str, Setting] = field(default_factory=dict)
    also: tuple[str, ...] = ()


class Case(Struct, frozen=True):
    """The run that is to become faster."""

    attribution: Attribution
    tables: Tables
    examination: Examination
    program: Program
    sizes: Sizes

    @property
    def manifest(self) -> Manifest | None:
        return self.tables.manifest

    @property
    def strategy(self) -> str:
        """Its name without variants: "deepspeed", whatever its stage."""
        return (self.manifest.strategy or "").partition("-")[0] if self.manifest is not None else ""

    @property
    def api(self) -> str:
        """In whose interface its users write a change: ZeRO 1's in DDP's."""
        kind = STRATEGIES.get(self.strategy)
        return kind.api if kind is not None else self.strategy

    @property
    def bundled(self) -> bool:
        """Whether the bundled trainer ran, so that a change is an option of ``diag run``."""
        return self.manifest is not None and bool(self.manifest.trainer)

    def takes(self, settings: Mapping[str, Setting]) -> bool:
        """Whether the bundled trainer can train this run with these options: not every strategy has every one."""
        if self.manifest is None:
            return False
        known = {field.name for field in fields(TrainerOptions)}
        trained = {name: value for name, value in self.manifest.trainer.items() if name in known and name != "resume"}
        try:
            options = TrainerOptions.from_json(json.dumps({**trained, **settings}))
            validate(options, self.manifest.world_size)
        except (OptionError, TypeError, ValueError):
            return False
        return True

    def option(self, name: str, otherwise: Setting) -> Setting:
        """An option that the bundled trainer ran with."""
        value = self.manifest.trainer.get(name) if self.manifest is not None else None
        return value if isinstance(value, str | int) else otherwise

    def number(self, name: str, otherwise: int) -> int:
        value = self.option(name, otherwise)
        return value if isinstance(value, int) else otherwise

    @property
    def micro_batches(self) -> int:
        """Of a step: what the bundled trainer ran with, or most often seen."""
        seen = Counter(record.micro_batches for own in self.tables.ranks.values() for record in own.steps)
        return self.number("micro_batches", max(seen, key=seen.__getitem__, default=1))

    @property
    def blocks(self) -> int | None:
        """Transformer blocks of the model, where the manifest says it."""
        layers = self.manifest.model.get("layers") if self.manifest is not None else None
        return layers if isinstance(layers, int) and layers > 0 else None

    def found(self, *ids: str) -> Finding | None:
        """The most expensive of these findings that costs enough to be acted on."""
        worth = (f for f in self.examination.findings if f.id in ids and f.share >= WORTH)
        return next(worth, None)

    @property
    def communication(self) -> Finding | None:
        """The most expensive finding about communication, if it costs enough to be acted on."""
        about = (f for f in self.examination.findings if f.bottleneck == Bottleneck.COMMUNICATION and f.share >= WORTH)
        return next(about, None)


WORTH = 0.05  # of the step: what costs less is mentioned, not acted on (science.md 2.8)
