"""How sure an answer is: the cases that the confidence is fitted on, the fit, and its calibration.

    python -m tests.bench.confidence --fit          # from seen.csv: diag/diagnoses/confidence.json
    python -m tests.bench.confidence --report       # calibration of seen.csv and unseen.csv, as tables of Markdown
    python -m tests.bench.confidence --collect seen|unseen [--mirror FOLDER] [--jobs 2]

``--collect`` makes the cases again and writes seen.csv or unseen.csv: the tuning half of the grid, harder cases of it,
the sample runs, and public traces; or the held-out half, harder cases of that, and the public traces of set d. It takes
about half an hour of two idle cores. ``--mirror``: the repositories of the public traces (tests.bench.real_traces);
without it the file's own public cases are kept.
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
    bins,
    calibration_error,
    confidence,
    encoded,
    error_by_chance,
    fitted,
    surely_wrong,
    today,
)
from tests.bench.real_traces.__main__ import CASES

MODEL = Path(diag.diagnoses.__file__).parent / "confidence.json"
GRID, HARD, RECORDS = 2, 4, 300  # cases of each row, harder ones of each, harder runs of records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--collect", choices=("seen", "unseen"))
    parser.add_argument("--mirror", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.collect:
        collect(options.collect, options.mirror, options.jobs)
    if options.fit:
        MODEL.write_bytes(encoded(fitted(read(SEEN), today())))
        fit.cache_clear()
    if options.fit or options.report:
        print(report())


def collect(which: str, mirror: Path | None, jobs: int) -> None:
    seen = which == "seen"
    path = SEEN if seen else UNSEEN
    found = collected(ids("tuning" if seen else "heldout", GRID, HARD, RECORDS), jobs, print)
    if seen:
        found += samples()
    if mirror is None:
        found += [case for case in read(path) if case.set.startswith("public")]
    else:
        found += [case for case in public(CASES, mirror, print) if (case.set != "public-d") == seen]
    write(found, path)


def report() -> str:
    lines = []
    for title, path in (("Seen by the fit", SEEN), ("Not seen", UNSEEN)):
        cases = read(path)
        lines += [f"### {title}", "", *_table(cases), ""]
    model = msgspec.structs.asdict(fit())
    lines += [f"intercept {model['intercept']}", *(f"{name} {c}" for name, c in model["coefficients"].items())]
    return "\n".join(lines)


def _table(cases: list[Case]) -> list[str]:
    lines = [
        "| set | cases | right | calibration error | by chance | 95 % | wrong at 0.9 or more |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in (*dict.fromkeys(case.set for case in cases), "all"):
        own = [case for case in cases if name in (case.set, "all")]
        error = calibration_error(*_said(own))
        right = sum(case.right for case in own)
        mean, most = error_by_chance(_said(own)[0])
        wrong = len(surely_wrong(own, fit()))
        lines.append(f"| {name} | {len(own)} | {right} | {error:.3f} | {mean:.3f} | {most:.3f} | {wrong} |")
    lines += ["", "| confidence | answers | mean confidence | right |", "|---|--:|--:|--:|"]
    lines += [f"| {name} | {n} | {mean:.2f} | {part:.2f} |" for name, n, mean, part in bins(*_said(cases))]
    return lines


def _said(cases: list[Case]) -> tuple[list[float], list[bool]]:
    return [confidence(case, fit()) for case in cases], [case.right for case in cases]


if __name__ == "__main__":
    main()
