"""``python -m tests.hang.corpus``: scores the triage, or only writes the cases.

Even seeds are for development, odd ones held out. Half of the cases speak this package's words, half those of real
threads; the score tells the two apart.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import CLASSES, WORDINGS, cases
from .score import report, score, write_case


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hang.corpus", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-class", type=int, default=12)
    parser.add_argument("--class", dest="classes", action="append", choices=CLASSES, help="repeatable; else all")
    parser.add_argument("--id", help="one case")
    parser.add_argument(
        "--wordings", choices=("both", *WORDINGS), default="both", help="all cases in these words; both: half and half"
    )
    parser.add_argument("--keep", type=Path, help="leave the files and their truth in this folder")
    parser.add_argument("--wrong", action="store_true", help="with --keep: leave only the wrong ones")
    parser.add_argument("--write-only", action="store_true", help="with --keep: do not run the triage")
    given = parser.parse_args()
    if (given.wrong or given.write_only) and not given.keep:
        parser.error("give a folder with --keep")
    per_class = given.per_class
    if given.id:
        per_class = max(per_class, int(given.id.rsplit("-", 1)[1]) + 1)
    chosen = [
        case
        for case in cases(given.seed, per_class, tuple(given.classes or CLASSES), given.wordings)
        if given.id in (None, case.id)
    ]
    truth = {}
    if given.write_only:
        for case in chosen:
            write_case(case, given.keep)
            truth[case.id] = case
    else:
        scored = list(score(chosen, None if given.wrong else given.keep))
        for one in scored:
            if given.keep and (one.wrong or not given.wrong):
                write_case(one.case, given.keep)
                truth[one.case.id] = one.case
        print(report(scored))
    if given.keep:
        # Beside the folders, not in them: the triage must not read it.
        told = {
            name: {
                "class": c.fault_class,
                "accept": c.accept,
                "culprits": c.culprits,
                "grammar": c.grammar,
                "wordings": c.wordings,
                "notes": c.notes,
            }
            for name, c in truth.items()
        }
        (given.keep / "truth.json").write_text(json.dumps(told, indent=1) + "\n")
        print(f"{len(truth)} cases in {given.keep}")


if __name__ == "__main__":
    main()
