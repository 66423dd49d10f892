"""How sure triage is: the first runs of the sets of public failures, the fit, and its calibration on sets left out.

    python -m tests.bench.hang_confidence --fit       # from first_runs.csv: diag/hang/confidence.json
    python -m tests.bench.hang_confidence --report    # calibration of each set by a fit on the others, as Markdown
    python -m tests.bench.hang_confidence --collect SET [--folder DIR]   # adds a set that nobody has seen

A row is an answer that rests on a line, of the version that had not seen the set: its doubts, and whether class and
culprit were right ("" where the text does not decide who it was and no innocent one was named). The versions before the
third set are not known exactly, so the sets before it are left out; so is the ninth, whose author also completed
logs.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a script: its own folder is on the path, the checkout is not
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import msgspec

import diag.hang
from diag.hang.classes import CLASSES
from diag.hang.confidence import (
    OF_CLASS,
    OF_CULPRIT,
    Doubts,
    Models,
    bounded,
    bounded_culprit,
    doubts_of,
    models,
    named,
)
from tests.bench.confidence.fitting import bins, calibration_error, fit_of, today
from tests.hang.real import HERE as REAL
from tests.hang.real import Judged, cases_of, judge

MODEL = Path(diag.hang.__file__).parent / "confidence.json"
ROWS = Path(__file__).parent / "first_runs.csv"
DOUBTS = tuple(field.name for field in msgspec.structs.fields(Doubts))
SCRIPT = "python -m tests.bench.hang_confidence --fit"


@dataclass(frozen=True)
class Row:
    """``by_rule``: the confidence that the rules of the evidence give."""

    set: str
    id: str
    right_class: bool
    right_culprit: bool | None
    by_rule: float
    doubts: dict[str, float]


def read() -> list[Row]:
    with ROWS.open(newline="") as file:
        return [
            Row(
                row["set"],
                row["id"],
                row["class"] == "1",
                None if row["culprit"] == "" else row["culprit"] == "1",
                float(row["by_rule"]),
                {name: float(row[name]) for name in DOUBTS},
            )
            for row in csv.DictReader(file)
        ]


def fits(rows: Sequence[Row]) -> Models:
    def fit(names: Sequence[str], of: Sequence[Row], right: Callable[[Row], bool | None]) -> msgspec.Struct:
        truth = [bool(right(row)) for row in of]
        return fit_of(names, [row.doubts for row in of], truth, [row.set for row in of], today(), SCRIPT)

    decided = [row for row in rows if row.right_culprit is not None]
    return Models(
        fit(OF_CLASS, rows, lambda row: row.right_class),  # type: ignore[arg-type]
        fit(OF_CULPRIT, decided, lambda row: row.right_culprit),  # type: ignore[arg-type]
    )


def said(row: Row, by: Models) -> tuple[float, float]:
    """The confidence of class and culprit, with the bounds of ``diag.hang.confidence``."""
    bound, doubts = bounded(row.by_rule), Doubts(**row.doubts)
    of_class = min(bound, by.of_class.probability(row.doubts))
    return of_class, min(of_class, by.of_culprit.probability(row.doubts), bounded_culprit(bound, row.by_rule, doubts))


def report() -> str:
    rows = read()
    left_out = [
        (row, *said(row, fits([other for other in rows if other.set != name])))
        for name in dict.fromkeys(row.set for row in rows)
        for row in rows
        if row.set == name
    ]
    lines = [
        "| set left out | answers | class right | error | culprits | right | error |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in (*dict.fromkeys(row.set for row in rows), "all"):
        own = [one for one in left_out if name in (one[0].set, "all")]
        who = [one for one in own if one[0].right_culprit is not None]
        errors = (
            calibration_error([one[1] for one in own], [one[0].right_class for one in own]),
            calibration_error([one[2] for one in who], [bool(one[0].right_culprit) for one in who]),
        )
        counts = sum(one[0].right_class for one in own), sum(bool(one[0].right_culprit) for one in who)
        lines.append(
            f"| {name} | {len(own)} | {counts[0]} | {errors[0]:.3f} | {len(who)} | {counts[1]} | {errors[1]:.3f} |"
        )
    for title, at in (("class", 1), ("culprit", 2)):
        of = [one for one in left_out if at == 1 or one[0].right_culprit is not None]
        truth = [bool(one[0].right_class if at == 1 else one[0].right_culprit) for one in of]
        lines += ["", f"| confidence of the {title} | answers | mean | right |", "|---|--:|--:|--:|"]
        lines += [
            f"| {name} | {n} | {mean:.2f} | {part:.2f} |"
            for name, n, mean, part in bins([one[at] for one in of], truth)
        ]
    return "\n".join(lines)


def row_of(one: Judged, name: str) -> Row | None:
    """None for an answer that no fit is for."""
    answer = one.answer
    right = None if one.right_culprit is None else one.right_culprit and not one.accused
    right = False if one.accused else right
    if not named(answer.culprits):
        right = None
    if answer.by_rules is None:
        return None
    by_rule, of_line = answer.by_rules
    doubts = doubts_of(of_line, CLASSES[answer.fault_class].ending, answer.culprits)
    return Row(name, one.case.id, one.right_class, right, by_rule, msgspec.structs.asdict(doubts))


def write(rows: Sequence[Row]) -> None:
    with ROWS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["set", "id", "class", "culprit", "by_rule", *DOUBTS])
        for row in rows:
            who = "" if row.right_culprit is None else int(row.right_culprit)
            writer.writerow([row.set, row.id, int(row.right_class), who, row.by_rule, *row.doubts.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--collect", metavar="SET", help="the beginning of the names of its files")
    parser.add_argument("--folder", type=Path, default=REAL)
    options = parser.parse_args()
    if options.collect:
        rows = [row for row in read() if row.set != options.collect]
        for case in cases_of(options.folder):
            if case.file.startswith(f"{options.collect}_"):
                with tempfile.TemporaryDirectory() as folder:
                    row = row_of(judge(case, Path(folder)), options.collect)
                rows += [row] if row is not None else []
        write(rows)
    if options.fit:
        MODEL.write_bytes(msgspec.json.format(msgspec.json.encode(fits(read())), indent=1) + b"\n")
        models.cache_clear()
    if options.fit or options.report:
        print(report())


if __name__ == "__main__":
    main()
