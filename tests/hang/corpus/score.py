"""How often the triage is right on the corpus: class, culprit, and the two things it must never do."""

from __future__ import annotations

import math
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .model import WORDINGS, Blame, Case


class Named(Protocol):
    """What the score reads of a culprit."""

    @property
    def rank(self) -> int | None: ...
    @property
    def host(self) -> str: ...


@dataclass(frozen=True)
class Scored:
    """A case and what was answered. ``culprit_right`` is None where the question is not scored."""

    case: Case
    answer: str
    named: str
    class_right: bool
    culprit_right: bool | None
    error: str = ""

    @property
    def healthy_called_faulty(self) -> bool:
        return self.case.fault_class == "healthy" and (
            self.answer not in ("healthy", "undetermined") or bool(self.named)
        )

    @property
    def culprit_invented(self) -> bool:
        """An undetermined case for which somebody was blamed who may not be."""
        return self.case.fault_class == "undetermined" and self.culprit_right is False

    @property
    def wrong(self) -> bool:
        return not self.class_right or self.culprit_right is False

    @property
    def reproduce(self) -> str:
        fault_class, seed, _ = self.case.id.rsplit("-", 2)
        words = f"--wordings {self.case.wordings}"
        return (
            f"python -m tests.hang.corpus --seed {seed} --class {fault_class} --id {self.case.id} {words} --keep FOLDER"
        )


def write_case(case: Case, folder: Path) -> Path:
    """The case's files in a folder of its own."""
    target = folder / case.id
    for name, content in case.files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return target


def _host(case: Case, name: str) -> str:
    """The host's own name, for an address or a full name."""
    return case.aliases.get(name) or name.split(".")[0].lower()


def matches(case: Case, blame: Blame, culprits: Iterable[Named]) -> bool:
    """Whether these culprits are exactly who is to blame: all of them, none extra.

    A rank counts by its number. Where a host is to blame, any rank of it stands for it.
    """
    culprits = list(culprits)
    if blame.ranks:
        return {culprit.rank for culprit in culprits} == blame.ranks
    hosts = {host.lower() for host in blame.hosts}
    named = set()
    for culprit in culprits:
        if culprit.host:
            named.add(_host(case, culprit.host))
        elif culprit.rank is not None and culprit.rank in blame.also:
            named.add(case.owners[culprit.rank].lower())
        else:
            return False
        if culprit.rank is not None and culprit.rank not in blame.also:
            return False
    return named == hosts


def score_case(case: Case, folder: Path) -> Scored:
    """Runs the triage on the case's files; an exception is a wrong answer."""
    from diag.hang.api import triage

    target = write_case(case, folder)
    try:
        found = triage([target])
    except Exception as error:
        return Scored(case, f"{type(error).__name__}", "", False, False, traceback.format_exc())
    culprits = list(found.culprits)
    named = ", ".join(
        (f"rank {c.rank}" if c.rank is not None else "") + (f" host {c.host}" if c.host else "") for c in culprits
    )
    right = any(matches(case, blame, culprits) for blame in case.blames) if case.blames else None
    return Scored(case, found.fault_class, named, found.fault_class in (case.fault_class, *case.accept), right)


def score(cases: Iterable[Case], keep: Path | None = None) -> Iterator[Scored]:
    """Every case scored, its files in ``keep`` or in a folder that is gone afterwards."""
    for case in cases:
        if keep is not None:
            yield score_case(case, keep)
            continue
        with tempfile.TemporaryDirectory(prefix="hang-corpus-") as folder:
            yield score_case(case, Path(folder))


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), sensible near 0 and 1."""
    if not total:
        return 0.0, 1.0
    z, share = 1.959964, right / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, (middle - spread) / (1 + z * z / total)), min(1.0, (middle + spread) / (1 + z * z / total))


@dataclass(frozen=True)
class Summary:
    """Counts over a set of cases. A culprit counts where the case names one."""

    total: int
    class_right: int
    naming: int
    culprit_right: int
    healthy_called_faulty: int
    culprit_invented: int
    confusion: Counter[tuple[str, str]]

    @property
    def class_share(self) -> float:
        return self.class_right / self.total if self.total else 0.0

    @property
    def culprit_share(self) -> float:
        return self.culprit_right / self.naming if self.naming else 1.0


def summarise(scored: Iterable[Scored]) -> Summary:
    scored = list(scored)
    naming = [one for one in scored if one.case.names_culprit]
    return Summary(
        total=len(scored),
        class_right=sum(one.class_right for one in scored),
        naming=len(naming),
        culprit_right=sum(one.culprit_right is True for one in naming),
        healthy_called_faulty=sum(one.healthy_called_faulty for one in scored),
        culprit_invented=sum(one.culprit_invented for one in scored),
        confusion=Counter((one.case.fault_class, one.answer) for one in scored),
    )


def _share(name: str, right: int, total: int) -> str:
    low, high = wilson(right, total)
    return f"{name}: {right} of {total} = {right / total if total else 0:.1%} [{low:.1%}, {high:.1%}]"


def _right(scored: list[Scored], fault_class: str) -> str:
    mine = [one for one in scored if one.case.fault_class == fault_class]
    return f"{sum(one.class_right for one in mine)}/{len(mine)}"


def report(scored: list[Scored]) -> str:
    """Rates with their intervals, a line for every class, and the wrong cases with how to reproduce them.

    Where cases speak both the package's own words and real ones, each half has its own rates.
    """
    summary = summarise(scored)
    halves = {words: [one for one in scored if one.case.wordings == words] for words in WORDINGS}
    both = all(halves.values())
    lines = [
        _share("class", summary.class_right, summary.total),
        _share("culprit, where the truth names one", summary.culprit_right, summary.naming),
        f"healthy called faulty: {summary.healthy_called_faulty} (must be 0)",
        f"undetermined given a culprit: {summary.culprit_invented} (must be 0)",
    ]
    for words, half in halves.items() if both else ():
        part = summarise(half)
        lines += [
            "",
            _share(f"{words} wordings, class", part.class_right, part.total),
            _share(f"{words} wordings, culprit", part.culprit_right, part.naming),
            f"{words} wordings, healthy called faulty: {part.healthy_called_faulty}",
            f"{words} wordings, undetermined given a culprit: {part.culprit_invented}",
        ]
    lines.append("")
    for fault_class in dict.fromkeys(one.case.fault_class for one in scored):
        mine = [one for one in scored if one.case.fault_class == fault_class]
        part = summarise(mine)
        answers = ", ".join(f"{answer} {count}" for (_, answer), count in part.confusion.most_common())
        who = f"who {part.culprit_right}/{part.naming}" if part.naming else ""
        apart = [f"{words} {_right(half, fault_class)}" for words, half in halves.items()] if both else []
        shown = f"{' '.join(apart):24} " if both else ""
        lines.append(f"{fault_class:24} class {part.class_right:3}/{part.total:<3} {shown}{who:10} {answers}")
    wrong = [one for one in scored if one.wrong]
    lines += ["", f"{len(wrong)} wrong"]
    for one in wrong:
        spoken = f"{one.case.grammar}, {one.case.wordings} wordings"
        lines.append(f"{one.case.id} ({spoken}): said {one.answer}, {one.named or 'nobody'}; true: {one.case.culprits}")
        lines.append(f"    {one.reproduce}")
        if one.error:
            lines.append("    " + one.error.strip().replace("\n", "\n    "))
    return "\n".join(lines)
