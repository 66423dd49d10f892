"""What a fault class and one of its signatures are, and how a line is held against them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from diag.hang.model import Line, Role

# How sure one line makes of its class, before anything speaks for or against it (diag.hang.confidence).
NAMES_THE_CAUSE = 0.9  # the program that failed says what failed
NAMES_AN_EFFECT = 0.7  # says what was seen, which has one usual cause
SUGGESTS = 0.5  # has several causes


@dataclass(frozen=True)
class Signature:
    """One text that a program prints. ``anchors``: literals of which every such line holds at least one, for a reader
    that looks for strings; ``pattern``: what makes sure, with named groups for what the line tells."""

    name: str
    anchors: tuple[str, ...]
    pattern: str
    versions: str
    source: str  # file:line in the program that prints it
    says: str  # one sentence about such a line; "[at {peer}]": only where the line gives the peer
    role: Role = Role.ROOT
    confidence: float = NAMES_THE_CAUSE
    unless: tuple[str, ...] = ()  # literals that make it something else

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        # Numbers as long as 64 bits print them: Python refuses to read those of thousands of digits.
        return re.compile(self.pattern.replace(r"\d+", r"\d{1,20}"))

    def match(self, line: Line) -> re.Match[str] | None:
        """Where a line with one of the anchors says it: in its text, or in a part that was taken for a prefix."""
        if any(word in line.raw for word in self.unless):
            return None
        found = self._compiled.search(line.text) or self._compiled.search(line.raw)
        return None if found is not None and line.source in ("", "python") and _quoted(found) else found


# A quotation mark at the beginning of a word, and the next one of its kind at the end of one.
_QUOTED = re.compile(r"""(?<![\w\\])(?P<mark>["'`])(?:(?!(?P=mark)(?!\w)).)*(?P=mark)(?!\w)""")


# Programs quote the error that they report: "Last error: '...'", "failed: unhandled cuda error .. log entry '...'".
_REPORTS = re.compile(
    r"(?i)(?:\blast (?:nccl )?(?:error|warning)[^'\"`]{0,80}|\b(?:error|failed|exception|reason|warning):?)\s*$"
)


def _quoted(found: re.Match[str]) -> bool:
    """Whether a program's own line only quotes the message: a record, a sample of text, a comparison."""
    if not found.start():
        return False
    quotes = (one for one in _QUOTED.finditer(found.string) if one.start() < found.start() and found.end() <= one.end())
    return any(not _REPORTS.search(found.string, 0, one.start()) for one in quotes)


@dataclass(frozen=True)
class FaultClass:
    """A cause that can be named. ``priority``: the smaller number is the root where several classes match.
    ``rule``: what decides where no single line does. ``if_unnamed``: next steps that show the exception, where no line
    has it."""

    id: str
    title: str
    priority: int
    next_steps: tuple[str, ...]
    signatures: tuple[Signature, ...] = ()
    rule: str = ""
    rules_out: dict[str, str] = field(default_factory=dict)  # class: why it cannot be that
    if_unnamed: tuple[str, ...] = ()


_CLAUSE = re.compile(r"\[([^\[\]]*)\]")
_BLANK = re.compile(r"\{(\w+)\}")
_LONGEST = 160  # characters of a text from a log in a sentence


@dataclass(frozen=True)
class Hit:
    """A line that a signature recognised."""

    fault_class: FaultClass
    signature: Signature
    line: Line
    groups: dict[str, str]

    @property
    def sentence(self) -> str:
        """What the signature says, with what this line tells. A clause in brackets whose names this line does not give
        is left out, as is the whole where a name outside of brackets is missing."""
        told = {
            name: f"{text[: _LONGEST - 1]}…" if len(text) > _LONGEST else text for name, text in self.groups.items()
        }

        def clause(match: re.Match[str]) -> str:
            return match[1] if all(name in told for name in _BLANK.findall(match[1])) else ""

        says = _CLAUSE.sub(clause, self.signature.says)
        if not says or any(name not in told for name in _BLANK.findall(says)):
            title = self.fault_class.title
            return f"{title[0].upper()}{title[1:]}."
        return says.format_map(told)
