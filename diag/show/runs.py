"""The runs of a folder, one row each: its state, its verdict and its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from diag.api import Result, RunState, State
from diag.model.steps import Bottleneck, Severity, Verdict
from diag.show.page import numbers_of
from diag.words.formatting import listing, spaced
from diag.words.wording import class_name

TOKENS, MFU = "Tokens per second", "MFU"  # labels of numbers


class RunRow(Struct, frozen=True):
    """``state``: in words, with the exit code of a run that failed; ``step_ns``: the mean of the counted steps, or of
    the last 20 steps of a run that was not analysed; ``cause``: the id of the finding behind the class; ``mfu``: 0 to
    1. "" and None where a value is not known, such as the verdict of a run that was not analysed."""

    name: str
    state: str
    changed_ns: int
    ranks: int
    world_size: int | None
    strategy: str
    last_step: int | None
    severity: Severity | None = None
    bottleneck: str = ""
    culprit: str = ""
    cause: str = ""
    headline: str = ""
    step_ns: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None

    def holds(self, words: Sequence[str]) -> bool:
        """Whether each of the words, in lower case, is somewhere in its texts."""
        texts = (self.name, self.state, self.strategy, self.severity, self.bottleneck, self.culprit, self.cause)
        whole = " ".join((*(text or "" for text in texts), self.headline)).lower()
        return all(word in whole for word in words)


def row_of(state: RunState, result: Result | None = None) -> RunRow:
    """``result``: of the run's analysis; without it, the row uses what the last ``diag analyze`` stored."""
    verdict = result.verdict if result is not None else state.answer
    numbers = numbers_of(result) if result is not None else {}
    tables = result.tables if result is not None else None
    manifest = tables.manifest if tables is not None else None
    return RunRow(
        name=state.path.name,
        state=state.state.value + (f" ({state.exit_code})" if state.state == State.FAILED else ""),
        changed_ns=state.changed_ns,
        ranks=len(tables.ranks) if tables is not None else state.ranks,
        world_size=tables.world_size if tables is not None else state.world_size,
        strategy=(manifest.strategy if manifest is not None else state.strategy) or "",
        last_step=state.last_step,
        severity=verdict.severity if verdict is not None else None,
        bottleneck=class_name(verdict.bottleneck) if verdict is not None else "",
        culprit=spaced(listing(verdict.culprit_ranks)) if verdict is not None and verdict.culprit_ranks else "",
        cause=_cause(verdict),
        headline=verdict.headline if verdict is not None else "",
        step_ns=next(iter(numbers.values()), state.step_ns),
        tokens_per_s=numbers.get(TOKENS),
        mfu=numbers.get(MFU),
    )


def _cause(verdict: Verdict | None) -> str:
    return verdict.cause if verdict is not None and verdict.bottleneck != Bottleneck.UNDETERMINED else ""
