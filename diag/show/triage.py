"""A hang triage as text and as JSON: the answer first, then why, then what to do. No text of a log is printed raw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from diag import policy
from diag.collectors.layout import SCHEMA_VERSION
from diag.ended.model import Culprit, Source, culprit_words
from diag.hang.model import MergedStack, Stack, Triage
from diag.hang.wording import EMPTY, by_reason, guess_words
from diag.show.policy import PAGE
from diag.words.formatting import counted, listing, spaced, visible
from diag.words.terminal import report_console

_COLOUR = {"healthy": "green", "undetermined": "yellow"}
_INDENT = 2


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


def print_triage(triage: Triage, console: Console | None = None) -> None:
    """Prints the answer and its evidence."""
    console = report_console(console)
    colour = _COLOUR.get(triage.fault_class, "red")
    console.print(Text(visible(triage.headline), style=f"bold {colour}"))
    facts = [triage.fault_class, f"confidence {triage.confidence:.0%}"]
    name = culprit_words(triage.culprits)
    if name:
        facts.insert(1, f"at fault: {name}")
    if triage.victims:
        facts.append(f"{counted(len(triage.victims), 'rank')} waited for it: {listing(triage.victims)}")
    console.print(Text(visible(spaced("; ".join(facts))) + "."))
    _section(console, "Evidence", [_line(console, evidence) for evidence in triage.evidence])
    ranks = {rank for stack in triage.merged_stacks for rank in stack.ranks}
    if len(ranks) > 1:
        _section(console, f"Stacks of {counted(len(ranks), 'rank')}, outliers first", stack_tree(triage.merged_stacks))
    for stack in triage.stacks if len(ranks) < 2 else ():
        _section(console, f"Stack of rank {stack.rank} ({stack.what})", _frames(stack))
    _section(console, "Next best guess", [Text(visible(guess_words(guess))) for guess in triage.guesses])
    ruled_out = [
        Text(visible(f"{alternative.fault_class}: {alternative.because}"), style="dim")
        for alternative in triage.ruled_out
    ]
    _section(console, "Ruled out", ruled_out)
    _section(console, "Next", [_step(step) for step in triage.next_steps])
    if triage.coverage or triage.gaps or policy.notes():
        console.print()
    for note in policy.notes():
        console.print(Text.assemble(("!", "yellow"), " ", visible(note)))
    for sentence in triage.coverage:
        console.print(Text(visible(sentence), style="dim"))
    for gap in _gaps([(path, reason) for path, reason in triage.gaps if not reason.startswith(EMPTY)]):
        console.print(Text.assemble(("!", "yellow"), " ", visible(gap)))


def _gaps(gaps: Sequence[tuple[str, str]]) -> list[str]:
    """One line per reason, with the file, or the first file and how many more."""
    return [
        f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}: {reason}" if paths[0] else reason
        for reason, paths in by_reason(gaps).items()
    ]


def _section(console: Console, title: str, rows: Sequence[Text]) -> None:
    if not rows:
        return
    console.print()
    console.print(Text(visible(title), style="italic"))
    for row in rows:
        console.print(Padding(row, (0, 0, 0, _INDENT)))


def _line(console: Console, evidence: Source) -> Text:
    """``file:line  text``, cut to two rows."""
    path = visible(evidence.path)
    path = path if len(path) <= PAGE.most_path_chars else f"…{path[1 - PAGE.most_path_chars :]}"
    place = f"{path}:{evidence.line}" if evidence.line else path
    room = max(20, PAGE.log_line_rows * (console.width - _INDENT) - len(place) - 2)
    text = visible(evidence.text.strip())
    text = text if len(text) <= room else f"{text[: room - 1]}…"
    return Text.assemble((place, "dim"), "  ", text, overflow="fold")


def _frames(stack: Stack) -> list[Text]:
    rows = [Text(visible(frame), overflow="ellipsis", no_wrap=True) for frame in stack.frames[: PAGE.most_frames]]
    more = len(stack.frames) - PAGE.most_frames
    return [*rows, Text(f"… and {more} more", style="dim")] if more > 0 else rows


def stack_tree(merged: Sequence[MergedStack]) -> list[Text]:
    """All stacks as one tree, the outermost call first, with the ranks at its leaves. Calls that all share with the one
    before are in one line."""
    return _branch([(stack.frames[::-1], stack.ranks) for stack in merged], "", 0)


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
    if shared or not depth:
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
