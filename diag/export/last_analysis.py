"""What the last ``diag analyze`` of a run found, as samples: the verdict, and what only it can tell of each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from diag.collectors.reading import ANSWER_BYTES, read_regular
from diag.errors import DAMAGED
from diag.export import definitions as of
from diag.export.definitions import Sample
from diag.model.steps import Parts


class _Culprit(msgspec.Struct):
    ranks: tuple[int, ...]


class _Verdict(msgspec.Struct):
    bottleneck: str
    severity: str
    cause: str
    share: float
    confidence: float
    culprit: _Culprit | None = None


class _Step(msgspec.Struct):
    usable: bool
    ranks: tuple[Parts, ...]


class _Document(msgspec.Struct):
    verdict: _Verdict
    steps: tuple[_Step, ...] = ()


class LastAnalysis:
    """Reads verdict.json again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed_ns = 0
        self._verdict: _Verdict | None = None
        self._parts_s: dict[int, dict[str, float]] = {}

    def samples(self, run: Mapping[str, str], ranks: Mapping[int, Mapping[str, str]]) -> Iterator[Sample]:
        """None where nothing was analysed, or what is there cannot be read. ``ranks``: the labels of those that are
        looked at."""
        self._refresh()
        if self._verdict is None:
            return
        found = self._verdict
        told = {"bottleneck": found.bottleneck, "severity": found.severity, "cause": found.cause}
        guilty = ",".join(map(str, found.culprit.ranks)) if found.culprit is not None else ""
        yield Sample(of.VERDICT_INFO, {**run, **told, "culprit_ranks": guilty}, 1)
        yield Sample(of.VERDICT_SHARE, run, found.share)
        yield Sample(of.VERDICT_CONFIDENCE, run, found.confidence)
        yield Sample(of.VERDICT_TIME, run, self._changed_ns / 1e9)
        for rank in sorted(self._parts_s.keys() & ranks.keys()):
            for part, seconds in self._parts_s[rank].items():
                yield Sample(of.ANALYSED_PART, {**ranks[rank], of.PART: part}, seconds)

    def _refresh(self) -> None:
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns == self._changed_ns:
                return
            document = msgspec.json.decode(read_regular(self._path, ANSWER_BYTES, self._path.parent), type=_Document)
        except (OSError, *DAMAGED):
            self._changed_ns, self._verdict, self._parts_s = 0, None, {}
            return
        self._changed_ns, self._verdict = changed_ns, document.verdict
        self._parts_s = _means(document.steps)


def _means(steps: tuple[_Step, ...]) -> dict[int, dict[str, float]]:
    """Seconds by rank and part, over the steps that count."""
    sums: dict[int, Counter[str]] = {}
    counts: Counter[int] = Counter()
    for step in [step for step in steps if step.usable] or steps:
        for parts in step.ranks:
            sums.setdefault(parts.rank, Counter()).update(_split(parts))
            counts[parts.rank] += 1
    return {rank: {part: ns / 1e9 / counts[rank] for part, ns in own.items()} for rank, own in sums.items()}


def _split(parts: Parts) -> dict[str, int]:
    """Nanoseconds by part, which add up to the step; waiting and transfer where the clocks tell them apart."""
    if parts.exposed_wait_ns is None or parts.exposed_transfer_ns is None:
        comm = {"exposed_comm": parts.exposed_comm_ns}
    else:
        comm = {"exposed_wait": parts.exposed_wait_ns, "exposed_transfer": parts.exposed_transfer_ns}
    return {
        "compute": parts.compute_ns,
        **comm,
        "exposed_copy": parts.exposed_copy_ns,
        "data_wait": parts.data_wait_ns,
        "checkpoint": parts.checkpoint_ns,
        "idle": parts.idle_ns,
    }
