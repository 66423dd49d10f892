"""How sure an answer is: the cases that the confidence is fitted on, the fit, and its calibration.

    python -m tests.bench.confidence --fit          # from seen.csv: diag/diagnoses/confidence.json
    python -m tests.bench.confidence --report       # calibration of seen.csv and unseen.csv, as tables of Markdown
    python -m tests.bench.confidence --collect seen|unseen [--mirror FOLDER] [--jobs 2]

``--collect`` makes the cases again and writes seen.csv or unseen.csv: the tuning half of the grid, harder cases of it,
the sample runs, and public traces; or the held-out half, harder cases of that, parts of the samples, and the public
traces of set d. It takes about half an hour of two idle cores. ``--mirror``: the repositories of the public traces
(tests.bench.real_traces); without it the file's own public cases are kept. ``--first``: the number of the first case of
each kind; other numbers are other cases.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run as a script: its own folder is on the path, the checkout is not
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import msgspec

import diag.diagnoses
from diag.diagnoses.confidence import fit
from tests.bench.confidence.cases import SEEN, UNSEEN, Case, collected, ids, public, read, samples, write
from tests.bench.confidence.fitting import (
    SURE,
    bins,
    calibration_error,
    confidence,
    cross_validated,
    encoded,
    error_by_chance,
    fitted,
    today,
)
from tests.bench.real_traces.__main__ import CASES

MODEL = Path(diag.diagnoses.__file__).parent / "confidence.json"
GRID, HARD, RECORDS = 1, 1, 780  # cases of each row, harder ones of each, harder runs of records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--collect", choices=("seen", "unseen"))
    parser.add_argument("--mirror", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    if options.collect:
        collect(options.collect, options.mirror, options.jobs, options.first)
    if options.fit:
        MODEL.write_bytes(encoded(fitted(read(SEEN), today())))
        fit.cache_clear()
    if options.fit or options.report:
        print(report())


def collect(which: str, mirror: Path | None, jobs: int, first: int) -> None:
    seen = which == "seen"
    path = SEEN if seen else UNSEEN
    found = collected(ids("tuning" if seen else "heldout", GRID, HARD, RECORDS, first), jobs, print)
    if seen:
        found += samples()
    if mirror is None:
        found += [case for case in read(path) if case.set.startswith("public")]
    else:
        found += [case for case in public(CASES, mirror, print) if (case.set != "public-d") == seen]
    write(found, path)


def report() -> str:
    lines = []
    seen, unseen = read(SEEN), read(UNSEEN)
    for title, cases, said in (
        ("Not seen", unseen, _said(unseen)),
        ("Seen, by fits on other rows", seen, cross_validated(seen)),
        ("Seen by the fit", seen, _said(seen)),
    ):
        lines += [f"### {title}", "", *_table(cases, said), ""]
    model = msgspec.structs.asdict(fit())
    lines += [f"intercept {model['intercept']}", *(f"{name} {c}" for name, c in model["coefficients"].items())]
    return "\n".join(lines)


def _table(cases: list[Case], said: list[float]) -> list[str]:
    lines = [
        "| set | cases | right | calibration error | by chance | 95 % | wrong at 0.9 or more |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in (*dict.fromkeys(case.set for case in cases), "all"):
        own = [(one, case.right) for one, case in zip(said, cases, strict=True) if name in (case.set, "all")]
        of, truth = [one for one, _ in own], [right for _, right in own]
        error, (mean, most) = calibration_error(of, truth), error_by_chance(of)
        wrong = sum(one >= SURE and not right for one, right in own)
        lines.append(f"| {name} | {len(own)} | {sum(truth)} | {error:.3f} | {mean:.3f} | {most:.3f} | {wrong} |")
    lines += ["", "| confidence | answers | mean confidence | right |", "|---|--:|--:|--:|"]
    lines += [
        f"| {name} | {n} | {mean:.2f} | {part:.2f} |"
        for name, n, mean, part in bins(said, [case.right for case in cases])
    ]
    return lines


def _said(cases: list[Case]) -> list[float]:
    return [confidence(case, fit()) for case in cases]


if __name__ == "__main__":
    main()
