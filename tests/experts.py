"""A simulated training with expert parallelism: in each layer ranks compute, send tokens to the ranks of the experts,
compute with what they received, and send it back; in backward the same the other way round.

What each rank receives and how long it computes is therefore known to the byte and the nanosecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from diag.collectors.records import BACKWARD, DATA, FORWARD, OPTIMIZER, CollectiveRow, Manifest, PhaseRow, StepRecord
from diag.rundir.tables import RankTables, Tables
from tests.copies import replace
from tests.simulate import MS, Plan, _Rank, _tables

ROW = 1024  # bytes of a token
Weights = Sequence[float]


@dataclass(frozen=True)
class Experts:
    """``popular(step, layer, random)``: the weights by which tokens go to the ranks. ``token_ns``: computation of a
    token by the expert in forward, backward takes twice as long; ``fixed_ns``: of a layer's experts whatever they
    receive; ``dense_ns``: of attention. ``slow``: factor by rank on all computation, ``slow_experts``: on that of the
    experts."""

    ranks: int = 4
    steps: int = 20
    layers: int = 3
    tokens: int = 512
    token_ns: int = 20_000
    fixed_ns: int = 0
    dense_ns: int = 5 * MS
    transfer_ns: int = MS // 2
    popular: Callable[[int, int, Random], Weights] = field(default=lambda step, layer, random: ())
    slow: dict[int, float] = field(default_factory=dict)
    slow_experts: dict[int, float] = field(default_factory=dict)
    own_tokens: Callable[[int], int] | None = None  # by rank
    disturbed: float = 0.0  # part of the attentions, of any rank, that take six times as long
    jitter: float = 0.03
    seed: int = 0
    groups: int = 1  # of expert parallelism; all ranks reduce gradients
    sequence: bool = False  # all ranks exchange equal parts of the sequence before the attention
    sized: bool = True  # the records say what was received


def run_of(plan: Experts) -> Tables:
    """The tables of such a run, as if read from its directory."""
    random = Random(plan.seed)
    ranks = [_Rank(rank) for rank in range(plan.ranks)]
    sequence = 0

    def busy(rank: _Rank, ns: float, experts: bool = False) -> None:
        factor = plan.slow.get(rank.rank, 1.0) * (plan.slow_experts.get(rank.rank, 1.0) if experts else 1.0)
        rank.now += round(ns * factor * (1 + random.uniform(-plan.jitter, plan.jitter)))

    def meet(step: int, group: str, members: Sequence[_Rank], op: str, sizes: Sequence[tuple[int, int | None]]) -> None:
        nonlocal sequence
        end = max(rank.now for rank in members) + plan.transfer_ns
        for rank, (sent, got) in zip(members, sizes, strict=True):
            row = CollectiveRow(group, sequence, op, sent, "float32", rank.now, end, rank.now, end, True, got)
            rank.rows.append((step, row))
            rank.now = end
        sequence += 1

    def exchange(step: int, sent: Sequence[int], received: Sequence[int]) -> None:
        sizes = [(ROW * out, ROW * got if plan.sized else None) for out, got in zip(sent, received, strict=True)]
        for members in _groups(plan):
            meet(step, "ep", [ranks[r] for r in members], "all_to_all", [sizes[r] for r in members])

    def layer(step: int, own: Sequence[int], load: Sequence[int], factor: int) -> None:
        if plan.sequence:
            meet(step, "cp", ranks, "all_to_all", [(ROW * plan.tokens, ROW * plan.tokens)] * plan.ranks)
        for rank, tokens in zip(ranks, own, strict=True):
            longer = 6 if plan.disturbed and random.random() < plan.disturbed else 1
            busy(rank, longer * factor * plan.dense_ns * tokens / plan.tokens)
        exchange(step, own, load)
        for rank, received in zip(ranks, load, strict=True):
            busy(rank, factor * (plan.fixed_ns + received * plan.token_ns), experts=True)
        exchange(step, load, own)

    own = [plan.own_tokens(r) if plan.own_tokens else plan.tokens for r in range(plan.ranks)]
    for step in range(plan.steps):
        begins = [rank.now for rank in ranks]
        for rank in ranks:
            rank.phases = [PhaseRow(DATA, rank.now, rank.now + MS)]
            rank.now += MS
        loads = [_routed(plan, step, number, own, random) for number in range(plan.layers)]
        for phase, factor, order in ((FORWARD, 1, loads), (BACKWARD, 2, loads[::-1])):
            starts = [rank.now for rank in ranks]
            for load in order:
                layer(step, own, load, factor)
            for rank, start in zip(ranks, starts, strict=True):
                rank.phases.append(PhaseRow(phase, start, rank.now))
        starts = [rank.now for rank in ranks]
        for rank in ranks:
            busy(rank, 2 * MS)
        meet(step, "0", ranks, "all_reduce", [(4, None)] * plan.ranks)
        for rank, start, begin in zip(ranks, starts, begins, strict=True):
            rank.phases.append(PhaseRow(OPTIMIZER, start, rank.now))
            rank.steps.append(StepRecord(step, begin, rank.now, rank.phases, tokens=own[rank.rank]))
    tables: dict[int, RankTables] = {}
    for members in _groups(plan):
        groups = {"0": list(range(plan.ranks)), "cp": list(range(plan.ranks)), "ep": list(members)}
        for rank in members:
            tables[rank] = replace(_tables(Plan(ranks=plan.ranks), ranks[rank]), groups=groups)
    manifest = Manifest(
        run_id="experts", created_unix_ns=0, world_size=plan.ranks, backend="gloo", strategy="none", device="cpu"
    )
    return Tables(Path("experts"), manifest, plan.ranks, tables, ())


def _routed(plan: Experts, step: int, layer: int, own: Sequence[int], random: Random) -> list[int]:
    """How many tokens each rank receives."""
    weights = list(plan.popular(step, layer, random)) or [1.0] * plan.ranks
    load: list[int] = []
    for members in _groups(plan):
        whole, total = sum(own[r] for r in members), sum(weights[r] for r in members)
        part = [int(whole * weights[r] / total) for r in members]
        load += [*part[:-1], whole - sum(part[:-1])]
    return load


def _groups(plan: Experts) -> list[range]:
    size = plan.ranks // plan.groups
    return [range(first, first + size) for first in range(0, plan.ranks, size)]


def hot(rank: int, factor: float, ranks: int, noise: float = 0.05) -> Callable[[int, int, Random], Weights]:
    """One rank receives ``factor`` times as much as the others, each with noise."""
    return lambda _step, _layer, random: [
        (factor if r == rank else 1.0) * (1 + random.uniform(-noise, noise)) for r in range(ranks)
    ]


def mild(ranks: int, noise: float) -> Callable[[int, int, Random], Weights]:
    """All ranks receive about the same."""
    return lambda _step, _layer, random: [1 + random.uniform(-noise, noise) for _ in range(ranks)]
