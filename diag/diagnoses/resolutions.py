"""Two accounts of the same steps at different resolutions: which of them the answer follows, and how they disagree.

The finer account decides, unless the coarser one explains what it leaves open: that a rank is late, and not why. Then
the answer keeps the finer account's time and takes the cause from the coarser one.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from diag.diagnoses.policy import COMMUNICATION, CONFIDENCE, FINDINGS
from diag.model.steps import Bottleneck, Detail
from diag.words import sentences

from .cost_rows import CostTable, Side
from .costs import REMOVABLE, Cost, class_of
from .shares import Shares
from .subject import in_ms, ranks_text

# What is left of a rank's lateness when nothing explains it: that it works longer; and what explains it.
_OPEN = Cost.STRAGGLER
_REASONS = tuple(cost for cost in Cost if cost.value.lateness and not cost.value.waiting)


class Comparison(Struct, frozen=True):
    """``shares``: what the answer rests on. ``followed``: where the coarser account explains the finer one, in words;
    ``doubt``: how they contradict each other, and neither explains the other. Both "" where they do not."""

    shares: Shares
    followed: str = ""
    doubt: str = ""


def follow(fine: Shares, coarse: Shares) -> Comparison:
    shares, said = fine, []
    for rank in coarse.ranks:
        for reason in _REASONS:
            if _explains(coarse, shares, rank, reason):
                before, known = shares.waiting(reason, rank), coarse.waiting(reason, rank)
                shares = _with_reason(shares, rank, reason, known - before)
                steps = len(shares.numbers)
                each = {"before": in_ms(before / steps), "known": in_ms(known / steps)}
                names = {"fine": fine.source, "coarse": coarse.source}
                said.append(sentences.FOLLOWED(rank=rank, reason=reason.words, **each, **names))
    return Comparison(shares, "; ".join(said), _disagreement(shares, coarse))


def _explains(coarse: Shares, fine: Shares, rank: int, reason: Cost) -> bool:
    """Whether one account leaves open why a rank is late, and the other has the reason for nearly all of it."""
    steps_ns, known, before = float(fine.dur_ns.sum()), coarse.waiting(reason, rank), fine.waiting(reason, rank)
    late = fine.waiting(_OPEN, rank) + before
    return (coarse.sees is None or reason in coarse.sees) and (
        fine.waiting(_OPEN, rank) >= FINDINGS.mention_share * steps_ns
        and before < COMMUNICATION.contradicting_account_share * known
        and known >= CONFIDENCE.explained_wait_share * max(late, known + coarse.waiting(_OPEN, rank))
    )


def _with_reason(shares: Shares, rank: int, reason: Cost, ns: float) -> Shares:
    """The same time, so much of it with this reason: the same fraction in each step, as accounts of different
    resolutions have one delay in different steps."""
    table = CostTable.of(shares.rows, len(shares.numbers))
    whole, paid = table.total(Side.WAITING, _OPEN), table.total(Side.PATH, _OPEN)
    moved = table.total(Side.WAITING, _OPEN, rank) * min(1.0, ns / shares.waiting(_OPEN, rank))
    part = np.minimum(1, np.divide(paid, whole, out=np.zeros_like(whole), where=whole > 0))
    table.relabel(Side.WAITING, _OPEN, reason, moved, rank)
    table.relabel(Side.PATH, _OPEN, reason, part * moved)
    return replace(shares, rows=tuple(table.rows()))


class _Claim(Struct, frozen=True):
    """The class with the largest removable share, and the ranks late in it."""

    name: Bottleneck
    share: float
    ranks: tuple[int, ...]


def _disagreement(fine: Shares, coarse: Shares) -> str:
    """How one account contradicts the other about a class or a rank; "" where they do not, or where the coarser one
    sees nothing to compare."""
    if not (coarse.sees is None or coarse.sees):
        return ""
    fine = replace(fine, rows=tuple(row for row in fine.rows if row.side != Side.STAGES))
    names = {"fine": fine.source, "coarse": coarse.source}
    mine, its = _claim(_seen(fine, coarse)), _claim(coarse)
    if mine is None and its is None:
        return ""
    if mine is None or its is None:
        claim, silent = (mine, coarse) if mine is not None else (its, fine)
        if (
            claim is None
            or claim.share < FINDINGS.critical_share
            or silent.of_class(claim.name) >= FINDINGS.mention_share
        ):
            return ""
        if silent is coarse:
            return sentences.THE_OTHER_DOES_NOT(bottleneck=claim.name.value, **names)
        return sentences.ONE_ACCOUNT_ALONE(account=coarse.source, bottleneck=claim.name.value)
    unseen = coarse.of_class(mine.name) < COMMUNICATION.contradicting_account_share * mine.share
    unshared = fine.of_class(its.name) < COMMUNICATION.contradicting_account_share * its.share
    if its.name != mine.name and unseen and unshared:
        return sentences.ACCOUNTS_DIFFER(its=mine.name.value, other=its.name.value, **names)
    if mine.ranks and its.ranks and not set(mine.ranks) & set(its.ranks):
        return sentences.ACCOUNTS_NAME_OTHERS(its=ranks_text(mine.ranks), other=ranks_text(its.ranks), **names)
    return ""


def _seen(fine: Shares, coarse: Shares) -> Shares:
    """The part of the finer account that the coarser one would show as well: nothing that lies between the steps."""
    if coarse.sees is None:
        return fine
    rows = (row for row in fine.rows if row.detail != Detail.UNKNOWN and row.cost in coarse.sees)
    return replace(fine, rows=tuple(rows))


def _claim(shares: Shares) -> _Claim | None:
    """None where no class is worth a warning."""
    top = max(REMOVABLE, key=shares.of_class)
    if shares.of_class(top) < FINDINGS.warning_share:
        return None
    main = max((cost for cost in Cost if class_of(cost, shares.on_device) == top), key=shares.share)
    return _Claim(top, shares.of_class(top), shares.culprits(main).ranks)
