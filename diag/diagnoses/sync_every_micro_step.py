"""Gradients that are reduced in every micro-batch although the optimizer needs them once a step."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from diag.collectors.strategies import named
from diag.diagnoses.policy import COMMUNICATION
from diag.model.query import By, Query
from diag.model.states import Sharding, partitions_gradients, sharding_of
from diag.model.steps import Evidence
from diag.words import sentences

from .comm_cause import (
    NEEDS_PARTS,
    PER_RANK_AND_STEP,
    Claim,
    calls_of,
    exposed_of,
    is_replicated,
    reductions,
    reductions_of,
)
from .needs import micro_batches
from .subject import Subject

ID = "sync-every-micro-step"
NEEDS = f"the number of micro-batches of a step; {NEEDS_PARTS}."
MEANS = "Gradients are reduced in every micro-batch."
_NO_SYNC = "Run all micro-batches but the last inside model.no_sync()."
_NO_SYNC_SHARDED = _NO_SYNC + " The unsharded gradients stay in memory meanwhile."
_IN_LAST = sentences.WITH_OPTIONS(
    action="Reduce in the last micro-batch only: set_requires_gradient_sync(False) and set_is_last_backward(False) "
    "before. The unsharded gradients stay in memory meanwhile.",
    options="--grad-sync last",
)
_BY_ENGINE = "Set gradient_accumulation_steps: ZeRO-1 then reduces in the last micro-batch only."
_PARTITIONED = (
    "ZeRO-2 and ZeRO-3 reduce in every micro-batch, since no rank keeps whole gradients between them. Use fewer and "
    "larger micro-batches; or, where memory allows, stage 1, which reduces in the last one only."
)


def claim(subject: Subject) -> Claim | None:
    """The reductions of all micro-batches but the last."""
    batches = micro_batches(subject)
    calls = subject.once(calls_of)
    reduced = reductions_of(calls.rows)
    counts = Counter(reduced.micro.tolist())
    if batches is None or batches < 2 or set(counts) != set(range(batches)):
        return None
    last = batches - 1
    if min(counts[micro] for micro in range(last)) < COMMUNICATION.reductions_of_micro_step_share * counts[last]:
        return None
    exposed = int(reduced.exposed_ns[reduced.micro < last].sum())
    per_step = len(reduced) / max(1, calls.rank_steps)
    ms = calls.ms_per_step(exposed)
    return Claim(
        ID,
        calls.part(exposed),
        ms,
        f"Gradients are reduced in each of {batches} micro-batches: {ms:.1f} ms {subject.per} before the last one",
        _action(subject),
        (
            Evidence(
                "reductions of gradients",
                round(per_step, 1),
                subject.per,
                replace(reductions(), by=By.COUNT, per=PER_RANK_AND_STEP),
            ),
            Evidence("micro_batches", float(batches), subject.per, Query("steps", subject.counted)),
            Evidence(
                "reductions before the last, exposed",
                ms,
                f"ms {subject.per}",
                exposed_of(reductions(**{"micro_batch <": last})),
            ),
        ),
    )


def _action(subject: Subject) -> str:
    manifest = subject.tables.manifest
    strategy = (manifest.strategy or "") if manifest is not None else ""
    kind = named(strategy)
    if kind is not None and kind.by_engine:
        return _PARTITIONED if partitions_gradients(strategy) else _BY_ENGINE
    if kind is not None and kind.no_sync:
        return _NO_SYNC_SHARDED if sharding_of(strategy) == Sharding.PARAMETERS else _NO_SYNC
    return _NO_SYNC if is_replicated(subject) else _IN_LAST
