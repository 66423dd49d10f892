"""Fault classes and the log patterns that show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from diag.ended.model import FAULTS, NAME_NO_CAUSE
from diag.ended.precedence import OF_A_PROCESS
from diag.ended.raised import shortened
from diag.hang.model import Line, Role
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE
from diag.words.formatting import begun


class Support(Enum):
    """How much a line says about its class. The confidence of each is in HANG_EVIDENCE."""

    NAMES_THE_CAUSE = "names_the_cause"
    NAMES_AN_EFFECT = "names_an_effect"
    SUGGESTS = "suggests"
    WAS_ASKED = "was_asked"


NAMES_THE_CAUSE, NAMES_AN_EFFECT, SUGGESTS, WAS_ASKED = Support


@dataclass(frozen=True)
class LogPattern:
    """A message that a program prints. ``anchors``: literals of which every such line holds at least one, for readers
    that search for strings. ``regex`` (default: any anchor): confirms the match; its named groups extract values."""

    anchors: tuple[str, ...]
    regex: str = ""
    printed_by: str = ""  # versions; file:line in the program that prints it
    says: str = ""  # one sentence about such a line; "[at {peer}]": only where the line gives the peer
    role: Role = Role.ROOT
    support: Support = NAMES_THE_CAUSE
    unless: tuple[str, ...] = ()  # literals that make it something else
    rivalled: bool = False  # the program prints it for other classes, too

    @property
    def confidence(self) -> float:
        """That the line's class is the answer, before other clues raise or lower it (diag.hang.order)."""
        confidence: float = getattr(HANG_EVIDENCE, self.support.value)
        return confidence

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        # At most as many digits as 64 bits need: Python refuses to parse numbers of thousands of digits.
        return re.compile((self.regex or "|".join(map(re.escape, self.anchors))).replace(r"\d+", r"\d{1,20}"))

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """All matches in a line that lists several."""
        return self._compiled.finditer(text)

    def match(self, line: Line) -> re.Match[str] | None:
        """The match in a line that holds an anchor: in its text, or in what was parsed as a prefix."""
        if any(word in line.raw for word in self.unless):
            return None
        match = self._compiled.search(line.text) or self._compiled.search(line.raw)
        return None if match is not None and line.source in ("", "python") and _quoted(match) else match


def confirms(
    anchors: tuple[str, ...],
    regex: str = "",
    printed_by: str = "",
    says: str = "",
    support: Support = NAMES_AN_EFFECT,
) -> LogPattern:
    return LogPattern(anchors, regex, printed_by, says, Role.CONFIRMATION, support)


def cascade(anchors: tuple[str, ...], regex: str = "", printed_by: str = "", says: str = "") -> LogPattern:
    return LogPattern(anchors, regex, printed_by, says, Role.CASCADE, NAMES_AN_EFFECT)


def harmless(
    anchors: tuple[str, ...],
    regex: str = "",
    printed_by: str = "",
    says: str = "",
    support: Support = NAMES_AN_EFFECT,
) -> LogPattern:
    return LogPattern(anchors, regex, printed_by, says, Role.HARMLESS, support)


def cut_off(words: str, least: int) -> str:
    """A regex for words that the end of a paste has cut: their first ``least`` characters or more, at the end of the
    line."""
    rest = ""
    for letter in reversed(words[least:-1]):
        rest = f"(?:{re.escape(letter)}{rest})?"
    return f"{re.escape(words[:least])}{rest}$"


# How UCX's lines begin: "[host:pid:thread] ib_iface.c:1035  UCX  ERROR ", fatal ones with two numbers of the thread
UCX = r"(?:\[(?P<host>[^:\]\s]+):(?P<pid>\d+)\s*:\d+(?::\d+)?\] .{0,80}?)?"

# How an exception begins whose message is the error of a call: Python's, and the names that libuv and TensorPipe print
RAISED = r"^(?:\w{1,60}\.){0,8}\w{0,60}(?:Error|Exception): (?:\[Errno -?\d+\] )?"

# A quotation mark at the beginning of a word, and the next one of its kind at the end of one.
_QUOTED = re.compile(r"""(?<![\w\\])(?P<mark>["'`])(?:(?!(?P=mark)(?!\w)).)*(?P=mark)(?!\w)""")

# Programs quote the error that they report: "Last error: '...'", "failed: unhandled cuda error .. log entry '...'";
# torchrun's error file is JSON; gRPC for Python prints details = "..."; Rust { kind: StorageFull, message: "..." }.
_REPORTS = re.compile(
    r"(?i)(?:\b(?:message|status|(?:debug_)?error_string|details) ?= |"
    r"\blast (?:nccl )?(?:error|warning)[^'\"`]{0,80}|\b(?:error|failed|exception|reason|warning):?|, message:|"
    r"^\{\"message\": ?\{\"message\":)\s*$"
)


def _quotes(text: str) -> Iterator[re.Match[str]]:
    """What a program's own line only quotes: a record, a sample of text, a comparison."""
    return (quote for quote in _QUOTED.finditer(text) if not _REPORTS.search(text, 0, quote.start()))


def _quoted(match: re.Match[str]) -> bool:
    """Whether a program's own line only quotes the message."""
    return bool(match.start()) and any(
        quote.start() < match.start() and match.end() <= quote.end() for quote in _quotes(match.string)
    )


def unquoted(text: str) -> str:
    """A line without what it only quotes."""
    for quote in reversed(list(_quotes(text))):
        text = f"{text[: quote.start()]}{text[quote.end() :]}"
    return text


@dataclass(frozen=True)
class FaultClass:
    """A cause that can be named, with all that the rules need to know about it. Where several classes match, the one
    of the smallest priority that no other explains (``diag.ended.precedence``) is the root."""

    id: str
    title: str
    priority: int
    next_steps: tuple[str, ...]
    patterns: dict[str, LogPattern] = field(default_factory=dict)  # by name
    rule: str = ""  # the rule that decides where no single line does
    rules_out: dict[str, str] = field(default_factory=dict)  # by class: why that is not the cause
    if_unnamed: tuple[str, ...] = ()  # instead of ``next_steps``, where no line names the exception
    # By literals of programs, where a line of the evidence has one of them: steps instead of ``next_steps``
    if_read: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    context: tuple[str, ...] = ()  # literals of lines that its rule reads and no pattern of any class searches for
    coarse: bool = False  # less specific than the other classes of its priority: never their rival

    # Its place among clues
    ending: bool = False  # a process ended: another class may explain it, and it may have been a victim
    outside: bool = False  # somebody ended the job from outside
    explained_on_host: tuple[str, ...] = ()  # for an ending: classes that explain it if they are on its host
    ends_processes: bool = False  # its processes are ended because of it, which closes connections
    closed_at_end: bool = False  # it also happens when the processes of a failed job are ended
    lost_with_process: bool = False  # peers of a process that ended report it as well: it explains no end

    # A single line that decides (rules.direct)
    by_line: bool = False  # one line names the class
    speaker_is_culprit: bool = True  # the printing process is at fault; False where the line does not show the side
    optional: bool = False  # NCCL continues without it if it reports the failure at level INFO
    busy: str = ""  # what a rank of this class was doing while the others waited: "was still loading"

    @property
    def names_a_cause(self) -> bool:
        return self.id not in NAME_NO_CAUSE

    @property
    def explains_ends(self) -> bool:
        """Whether a process may have ended because of it."""
        return self.id in OF_A_PROCESS

    def patterns_of(self, role: Role) -> tuple[str, ...]:
        return tuple(name for name, pattern in self.patterns.items() if pattern.role == role)


def of(fault_id: str) -> dict[str, Any]:
    """The fields of a class that records alone can show too."""
    return vars(FAULTS[fault_id])


_CLAUSE = re.compile(r"\[([^\[\]]*)\]")
_BLANK = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Hit:
    """A line that a pattern matched."""

    fault_class: FaultClass
    name: str  # of the pattern
    pattern: LogPattern
    line: Line
    groups: dict[str, str]

    @property
    def sentence(self) -> str:
        """The pattern's ``says`` with the line's values. A clause in brackets that needs a missing value is left out;
        where a value outside of brackets is missing, the class's title takes its place."""
        values = {name: shortened(text, HANG_ANSWER.text_chars) for name, text in self.groups.items()}

        def clause(match: re.Match[str]) -> str:
            return match[1] if all(name in values for name in _BLANK.findall(match[1])) else ""

        says = _CLAUSE.sub(clause, self.pattern.says)
        if not says or any(name not in values for name in _BLANK.findall(says)):
            return begun(f"{self.fault_class.title}.")
        return says.format_map(values)
