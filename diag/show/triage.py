"""A hang triage as text and as JSON: the answer first, then why, then what to do. No text of a log is printed raw."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from enum import IntEnum, auto
from typing import Any

from rich.console import Console
from rich.text import Text

from diag import policy
from diag.collectors.layout import SCHEMA_VERSION
from diag.ended.model import Culprit, Source, culprit_words
from diag.ended.raised import shortened
from diag.hang.model import MergedStack, Stack, Triage
from diag.hang.text.prefixes import named, plain, read_text
from diag.hang.wording import EMPTY, by_reason, guess_words
from diag.show.fitting import fitting, headed, rows_of, warning
from diag.show.policy import PAGE
from diag.show.screen import Screen
from diag.words import sentences
from diag.words.formatting import counted, listing, rank_ranges, spaced, visible
from diag.words.terminal import report_console

_COLOUR = {"healthy": "green", "undetermined": "yellow"}
_INDENT = 2

TO_DO, EVIDENCE, GUESS, RULED_OUT = "What to do", "Evidence", "Next best guess", "Ruled out"
STACKS = "Stacks"


def to_json(triage: Triage, indent: int | None = 1) -> str:
    """The document of the contract, for a terminal too: texts of logs are made visible."""
    return json.dumps(_visible(to_dict(triage)), indent=indent)


def to_dict(triage: Triage) -> dict[str, Any]:
    """Plain containers, as the contract names them; what is not known is null."""
    return {
        "schema_version": SCHEMA_VERSION,
        **policy.as_dict(),
        "verdict": {
            "fault_class": triage.fault_class,
            "confidence": triage.confidence,
            "culprit_confidence": triage.culprit_confidence,
            "headline": triage.headline,
        },
        "culprits": [_culprit(culprit) for culprit in triage.culprits],
        "evidence": [asdict(evidence) for evidence in triage.evidence],
        "ruled_out": [asdict(ruled_out) for ruled_out in triage.ruled_out],
        "guesses": [
            {**asdict(guess), "culprits": [_culprit(culprit) for culprit in guess.culprits]} for guess in triage.guesses
        ],
        "next_steps": list(triage.next_steps),
        "victims": list(triage.victims),
        "stacks": [asdict(stack) for stack in triage.stacks],
        "merged_stacks": [asdict(stack) for stack in triage.merged_stacks],
        "coverage": list(triage.coverage),
        "gaps": [{"path": path, "reason": reason} for path, reason in triage.gaps],
    }


def _visible(value: Any) -> Any:
    """The value with control characters made visible. Paths stay unchanged, since they lead to the files."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: item if name == "path" else _visible(item) for name, item in value.items()}
    return [_visible(item) for item in value] if isinstance(value, list | tuple) else value


def _culprit(culprit: Culprit) -> dict[str, Any]:
    return {name: None if value == "" else value for name, value in asdict(culprit).items()}


def print_triage(
    triage: Triage, console: Console | None = None, *, evidence: bool = False, tree: bool = False, more: str = ""
) -> None:
    """Prints who is at fault, what to do about it, and in short what that rests on. ``evidence``: prints all of it.
    ``tree``: prints the stacks of all ranks as one tree. ``more``: the command that prints the evidence."""
    console = report_console(console)
    if not evidence and not tree:
        _print_in_short(console, triage, more)
        return
    for row in _who(triage):
        console.print(row)
    _to_do(console, triage.next_steps)
    if evidence:
        _section(console, EVIDENCE, [_whole_line(line) for line in triage.evidence])
    else:
        _section(console, EVIDENCE, _kinds(console, triage.evidence))
    _print_stacks(console, triage)
    guesses = triage.guesses if evidence else triage.guesses[:1]
    _section(console, GUESS, [Text(visible(guess_words(guess))) for guess in guesses])
    ruled_out = [f"{alternative.fault_class}: {alternative.because}" for alternative in triage.ruled_out]
    _section(console, RULED_OUT, [Text(visible(text), style="dim") for text in ruled_out if evidence])
    console.print()
    for note in policy.notes():
        console.print(warning(visible(note)))
    for sentence in triage.coverage:
        console.print(Text(visible(sentence), style="dim"))
    for gap in _gaps(triage):
        console.print(warning(visible(gap)))
    if not evidence and more:
        console.print(Text(visible(sentences.MORE_BEHIND_THE_TRIAGE(command=more)), "dim"), soft_wrap=True)


class _Place(IntEnum):
    HEAD = auto()
    TO_DO = auto()
    GUESS = auto()
    EVIDENCE = auto()
    STACKS = auto()
    READ = auto()


def _print_in_short(console: Console, triage: Triage, more: str) -> None:
    """In ten rows: who is at fault and what to do, then the lines and stacks that this rests on, as many as have room,
    what could not be read, and the command that prints all."""
    screen = Screen(console)
    screen.left -= bool(more)
    for row in _who(triage):
        screen.put(_Place.HEAD, row)
    for note in policy.notes():
        screen.put(_Place.READ, warning(visible(note)))
    first, *others = triage.next_steps or ("",)
    if first:
        screen.put(_Place.TO_DO, headed(TO_DO, _step(first)))
    if gaps := _gaps(triage):
        missing = warning(visible(gaps[0]))
        if len(gaps) > 1 or rows_of(console, missing.plain) > PAGE.rows_of_warnings:
            missing = warning(sentences.MORE_THAT_IS_NOT_READ(what=counted(len(gaps), "note")))
        screen.put_if_room(_Place.READ, missing)
    for guess in triage.guesses[:1]:
        screen.put_if_room(_Place.GUESS, headed(GUESS, Text(visible(guess_words(guess)))))
    lines, stacks = _kinds(console, triage.evidence), _stacks(triage)
    shown = _put_list(screen, _Place.EVIDENCE, EVIDENCE, lines[:1])
    _put_list(screen, _Place.STACKS, STACKS, stacks[: PAGE.ranks_that_matter])
    if shown:
        _put_list(screen, _Place.EVIDENCE, "", lines[1:])
    for step in others:
        if not screen.put_if_room(_Place.TO_DO, _indented_row(_step(step))):
            break
    read = list(triage.coverage)
    if triage.ruled_out:
        names = dict.fromkeys(alternative.fault_class for alternative in triage.ruled_out)
        read.insert(0, f"{RULED_OUT}: {', '.join(names)}.")
    screen.put_if_room(_Place.READ, Text(fitting(console, [visible(text) for text in read], screen.left), "dim"))
    screen.print()
    if more:
        console.print(Text(visible(sentences.MORE_BEHIND_THE_TRIAGE(command=more)), "dim"), soft_wrap=True)


def _who(triage: Triage) -> list[Text]:
    """What is wrong, how sure that is, and who is at fault."""
    colour = _COLOUR.get(triage.fault_class, "red")
    facts = [triage.fault_class, f"confidence {triage.confidence:.0%}"]
    name = culprit_words(triage.culprits)
    if name:
        sure = triage.culprit_confidence
        alike = sure is None or f"{sure:.0%}" == f"{triage.confidence:.0%}"
        facts.append(f"at fault: {name}" + ("" if alike else f" (confidence {sure:.0%})"))
    if triage.victims:
        them = "it" if len(triage.culprits) == 1 else "them"
        facts.append(f"{counted(len(triage.victims), 'rank')} waited for {them}: {rank_ranges(triage.victims)}")
    headline = Text(visible(triage.headline), style=f"bold {colour}")
    return [headline, Text(visible(spaced("; ".join(facts))) + ".")]


def _put_list(screen: Screen, place: _Place, heading: str, rows: Sequence[Text]) -> bool:
    """As many as have room, the first behind the heading; whether any has."""
    for number, row in enumerate(rows):
        text = _indented_row(row) if number or not heading else headed(heading, row)
        if not screen.put_if_room(place, text):
            return number > 0
    return bool(rows)


def _indented_row(text: Text) -> Text:
    return Text.assemble(" " * _INDENT, text, overflow="fold")


def _gaps(triage: Triage) -> list[str]:
    """What was not read: one line per reason, with the file, or the first file and how many more."""
    gaps = [(path, reason) for path, reason in triage.gaps if not reason.startswith(EMPTY)]
    return [
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}" if paths[0] else reason
        for reason, paths in by_reason(gaps).items()
    ]


def _section(console: Console, title: str, rows: Sequence[Text]) -> None:
    if not rows:
        return
    console.print()
    console.print(Text(visible(title), style="italic"))
    _indented(console, rows)


def _to_do(console: Console, steps: Sequence[str]) -> None:
    """The first step beside the heading."""
    if not steps:
        return
    console.print()
    first, *others = map(_step, steps)
    console.print(headed(TO_DO, first))
    _indented(console, others)


def _indented(console: Console, rows: Sequence[Text]) -> None:
    for row in rows:
        for line in row.wrap(console, console.width - _INDENT, overflow="fold"):
            line.rstrip()
            console.print(Text.assemble(" " * _INDENT, line), no_wrap=True, overflow="ignore", crop=False)


# -- lines of logs -----------------------------------------------------------------------------------------------------


def _whole_line(evidence: Source) -> Text:
    """``file:line  text``, not cut but where it is longer than any message."""
    text = shortened(visible(evidence.text.strip()), PAGE.most_line_chars)
    return Text.assemble((visible(_place(evidence)), "dim"), "  ", text, overflow="fold")


def _kinds(console: Console, evidence: Sequence[Source]) -> list[Text]:
    """A line for each message, with the ranks that printed it and where it stands: ``ranks 0-6  RuntimeError: ...``"""
    alike: dict[str, list[tuple[int | None, str, Source]]] = {}
    for source in evidence:
        rank, text = _said(source)
        if text == _OPENS_A_TRACEBACK and len(evidence) > 1:  # says nothing beside its last line
            continue
        alike.setdefault(_shape(text), []).append((rank, text, source))
    rows = []
    for of_kind in list(alike.values())[: PAGE.most_evidence_kinds]:
        ranks = sorted({rank for rank, _, _ in of_kind if rank is not None})
        who = f"{spaced(rank_ranges(ranks))}  " if ranks else ""
        _, text, first = of_kind[0]
        more = f" and {len(of_kind) - 1} more" if len(of_kind) > 1 else ""
        place = f" ({_last_of(visible(_place(first)))}{more})"
        room = max(20, PAGE.log_line_rows * (console.width - _INDENT) - len(who) - len(place))
        rows.append(Text.assemble((who, "bold"), shortened(visible(text), room), (place, "dim"), overflow="fold"))
    if len(alike) > len(rows):
        rows.append(Text(f"… and {len(alike) - len(rows)} more kinds of lines", style="dim"))
    return rows


_OPENS_A_TRACEBACK = "Traceback (most recent call last):"
_MESSAGE = re.compile(r'\{"message": \{"message": "((?:[^"\\]|\\.)*)')  # of error.json, which may be cut


def _said(source: Source) -> tuple[int | None, str]:
    """The rank that printed it, where that is known, and its message without prefixes. An entry of a dump names its
    rank itself."""
    raw = source.text.strip()
    if not source.line:
        return None, raw
    if match := _MESSAGE.match(raw):
        raw = match[1].partition("\\n")[0]
    parsed = read_text(plain(raw))
    rank = parsed.rank if parsed.rank is not None else named(source.path).rank
    return rank, parsed.text.strip() or raw


def _shape(text: str) -> str:
    """Equal for what several ranks say about one thing: without numbers and the exception's class."""
    text = re.sub(r"^(?:[\w.]+(?:Error|Exception): )?(?:\[[^\]]*\]:? ?)*", "", text).lower()
    return re.sub(r"\b(rank|process|node|host)s\b", r"\1", re.sub(r"\b0x[0-9a-f]+|\d+", "0", text))[: PAGE.shape_chars]


def _place(evidence: Source) -> str:
    return f"{evidence.path}:{evidence.line}" if evidence.line else evidence.path


def _last_of(path: str) -> str:
    """The end of a path, from a folder on."""
    most = PAGE.most_path_chars
    if len(path) <= most:
        return path
    _, slash, rest = path[1 - most :].partition("/")
    return f"…/{rest}" if slash else f"…{path[1 - most :]}"


def _print_stacks(console: Console, triage: Triage) -> None:
    """All calls of each stack, with their paths; of several ranks as one tree."""
    ranks = {rank for stack in triage.merged_stacks for rank in stack.ranks}
    if len(ranks) > 1:
        title = f"{STACKS} of {counted(len(ranks), 'rank')}, outliers first"
        _section(console, title, stack_tree(triage.merged_stacks))
        return
    for stack in triage.stacks:
        _section(console, f"Stack of rank {stack.rank} ({stack.what})", _frames(stack))


def _stacks(triage: Triage) -> list[Text]:
    """The innermost calls of each stack, those of several ranks outliers first."""
    merged = triage.merged_stacks
    if len({rank for stack in merged for rank in stack.ranks}) > 1:
        return [_innermost(spaced(rank_ranges(stack.ranks)), stack.frames) for stack in merged]
    return [_innermost(f"rank {stack.rank}", stack.frames) for stack in triage.stacks if stack.frames]


def _innermost(who: str, frames: Sequence[str]) -> Text:
    calls = " < ".join(_short_frame(frame) for frame in frames[: PAGE.most_innermost_frames])
    return Text.assemble((f"{who}  ", "bold"), visible(calls), " < …" * (len(frames) > PAGE.most_innermost_frames))


def _frames(stack: Stack) -> list[Text]:
    return [Text(visible(frame), overflow="fold") for frame in stack.frames]


def stack_tree(merged: Sequence[MergedStack]) -> list[Text]:
    """All stacks as one tree, the outermost call first, with the ranks at its leaves. Calls that all share with the one
    before are in one line."""
    return _branch([(stack.frames[::-1], stack.ranks) for stack in merged], "", 0) if merged else []


def _branch(stacks: Sequence[tuple[Sequence[str], tuple[int, ...]]], indent: str, depth: int) -> list[Text]:
    ranks = sorted(rank for _, of_stack in stacks for rank in of_stack)
    common = 0
    while all(len(frames) > common for frames, _ in stacks) and len({frames[common] for frames, _ in stacks}) == 1:
        common += 1
    shared = [_short_frame(frame) for frame in stacks[0][0][:common]]
    if len(shared) > PAGE.most_frames:
        half = PAGE.most_frames // 2
        shared = [*shared[:half], f"… {len(shared) - 2 * half} calls …", *shared[-half:]]
    rows = []
    name = spaced(listing(ranks))
    if not shared and depth:  # of a rank that is in no call beyond those of the line above
        rows.append(Text.assemble((f"{indent}{name}", "bold"), "  in no further call", overflow="fold"))
    elif shared or not depth:
        rows.append(Text.assemble((f"{indent}{name}", "bold"), "  ", visible(" > ".join(shared)), overflow="fold"))
    if len(stacks) > 1:
        branches: dict[str, list[tuple[Sequence[str], tuple[int, ...]]]] = {}
        for frames, of_stack in stacks:  # in their order: outliers first
            key = frames[common] if len(frames) > common else ""
            branches.setdefault(key, []).append((frames[common:], of_stack))
        for branch in branches.values():
            rows += _branch(branch, indent + "  ", depth + 1) if len(branches) > 1 else []
    return rows


def _short_frame(frame: str) -> str:
    """``train (loop.py:12)`` of ``train (/home/user/loop.py:12)``."""
    name, _, place = frame.rpartition(" (")
    return f"{name} ({place.rpartition('/')[2]}" if name else frame


def _step(step: str) -> Text:
    """Commands between backticks are shown as such."""
    parts = visible(step).split("`")
    if len(parts) % 2 == 0:
        return Text(visible(step))
    return Text.assemble(*((part, "cyan" if number % 2 else "") for number, part in enumerate(parts)))
