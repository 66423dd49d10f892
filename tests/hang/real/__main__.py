"""``python -m tests.hang.real [--folder DIR] [--quiet] [--rules] [--words] [ID ...]``: how right the triage is."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path

from diag.hang.classes import PATTERNS
from tests.hang.real import HERE, Judged, cases_of, judge, known_wrong, score
from tests.hang.real.first_runs import first_runs, total
from tests.hang.real.support import Support, independent, lost_without, names_its_source, recorded
from tests.hang.real.words import verdicts

parser = argparse.ArgumentParser(prog="python -m tests.hang.real")
parser.add_argument("ids", nargs="*", help="only these cases, with the whole answer")
parser.add_argument("--folder", type=Path, default=HERE, help="where the TOML files are")
parser.add_argument("--quiet", action="store_true", help="the score alone")
parser.add_argument("--rules", action="store_true", help="what each rule and each pattern rests on (minutes)")
parser.add_argument("--words", action="store_true", help="how right words that programs share are alone")
arguments = parser.parse_args()

judged: list[Judged] = []
support = Support()
known = known_wrong()
for case in cases_of(arguments.folder):
    if arguments.ids and case.id not in arguments.ids:
        continue
    with tempfile.TemporaryDirectory() as folder, recorded(support, case):
        judged.append(judge(case, Path(folder)))
for one in judged:
    if arguments.quiet or (one.right and not one.unsaid and not arguments.ids):
        continue
    marks = [
        "" if one.right_class else "class",
        "culprit" if one.right_culprit is False else "",
        "ACCUSES" if one.accused else "",
        "HEALTHY" if one.called_healthy else "",
        f"does not repeat {', '.join(one.unsaid)}" if one.unsaid else "",
    ]
    print(f"{one.case.id} ({one.case.file}): wrong: {', '.join(filter(None, marks))}")
    print(f"  truth   {one.case.fault_class} {list(one.case.culprits)}: {one.case.decided_by}")
    print(f"  answer  {one.answer.fault_class} ({one.answer.confidence:.2f}): {one.answer.headline}")
    if one.case.id in known:
        print(f"  known   {known[one.case.id]}")
    if arguments.ids:
        print("  culprits", *one.answer.culprits, sep="\n    ")
        print("  next    ", *one.answer.next_steps, sep="\n    ")
        print(
            "  guesses ", *(f"{g.fault_class} {g.confidence:.2f}: {g.note}" for g in one.answer.guesses), sep="\n    "
        )
        print("  rest    ", *(f"{r.fault_class}: {r.because}" for r in one.answer.ruled_out), sep="\n    ")
        for name, text in one.case.logs:
            print(f"  --- {name}\n{text}")
for name, (right, of) in score(judged).items():
    print(f"{name}: {right} of {of}")
# The confidence of a class says nothing of who is at fault, which has one of its own.
of_class: dict[int, list[bool]] = defaultdict(list)
of_culprit: dict[int, list[bool]] = defaultdict(list)
for one in judged:
    if one.answer.fault_class not in ("undetermined", "healthy"):
        of_class[min(9, int(one.answer.confidence * 10))].append(one.right_class)
    if one.answer.culprit_confidence is not None and one.right_culprit is not None:
        of_culprit[min(9, int(one.answer.culprit_confidence * 10))].append(one.right_culprit)
for what, bins in (("class", of_class), ("culprit", of_culprit)):
    for at in sorted(bins):
        counted = f"{sum(bins[at])} of {len(bins[at])} right"
        print(f"confidence of the {what} {at / 10:.1f} to {(at + 1) / 10:.1f}: {counted}")
if arguments.folder == HERE and not arguments.ids:
    print("\nblind set: class, culprit right, innocent accused, called healthy: at the first run; then today, seen")
    runs = first_runs()
    for run in (*runs, total(runs)):
        now = score([one for one in judged if run.holds(one.case)])
        first = (run.right_class, run.culprit)
        words = [f"{right} of {of}" for right, of in first] + [str(run.accused), str(run.called_healthy)]
        words += [f"{now[what][0]} of {now[what][1]}" for what in ("class", "culprit")]
        words += [str(now[what][0]) for what in ("innocent accused", "called healthy and is not")]
        print(f"{run.name:8} {', '.join(words[:4]):34} {', '.join(words[4:])}")
if arguments.words:
    said = verdicts(one.case for one in judged)
    right = sum(one.right_class for one in said)
    accused = sum(bool(one.accused) for one in said)
    print(f"\nread by shared words alone: {len(said)} cases, class right in {right}, innocent accused in {accused}")
if arguments.rules:
    cases = [one.case for one in judged]
    lost = lost_without(cases)
    print("\nrule: cases whose class it has a clue of; cases that are wrong without it")
    for rule, ids in sorted(lost.items(), key=lambda item: -len(item[1])):
        named = f": {', '.join(ids[:8])}{' …' * (len(ids) > 8)}" if ids else ""
        print(f"{rule:20} {len(support.rules[rule]):4} {len(ids):4}{named}")
    by_id = {case.id: case for case in cases}
    patterns = {name: pattern for _, name, pattern in PATTERNS}
    sources = sum(names_its_source(pattern) for pattern in patterns.values())
    print(f"\n{len(patterns)} patterns; {sources} name the file that prints the line")
    for most in (0, 1):
        names = [name for name, ids in support.patterns.items() if len(ids) == most]
        print(f"patterns that {most} case{'s' * (most != 1)} show{'s' * (most == 1)}: {len(names)}")
        for name in names:
            print(f"  {name}: {patterns[name].printed_by or 'no source is named'}")
    weak = [
        name
        for name, ids in support.patterns.items()
        if not names_its_source(patterns[name]) and independent([by_id[one] for one in ids]) < 2
    ]
    print(f"patterns with neither a source nor two independent cases: {', '.join(weak) or 'none'}")
