"""Is what ``diag run`` says of public training scripts true, and does it leave them as they are?

    python -m tests.bench.scripts --mirror FOLDER --out FOLDER [--extra FOLDER] [--only NAME ...] [--fault NAME ...]
    python -m tests.bench.scripts --mirror FOLDER --out FOLDER --healthy 30
    python -m tests.bench.scripts --reanalyse FOLDER [--json ROWS.json] [--write]
    python -m tests.bench.scripts --table FOLDER [--json ROWS.json] [--write]

Each script of ``cases.py`` is taken from a bare mirror of its repository at a named commit, given small data that is
made here, and run: bare, recorded, and recorded with each of its faults, which are planted from outside
(``faults.py``). Run directories, output and outcome stay in ``--out``, so that ``--reanalyse`` makes the table again
with another analyser; what is missing in ``--out`` is run, and all with ``--again``. ``--write`` writes
``tests/attach/scripts.md``, or the page that ``--page`` names, with the rows of the scripts that were run.

Mirrors: git clone --bare https://github.com/OWNER/NAME FOLDER/OWNER+NAME/repo
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .cases import BY_NAME, CASES, Case
from .faults import FAULTS, burners
from .judging import judge, same, summary, table
from .running import UnfetchedError, analysed, run, steps_recorded

PAGE = Path(__file__).parents[2] / "attach" / "scripts.md"
Json = dict[str, Any]


def labels(case: Case, only: Sequence[str] | None) -> list[str]:
    """The runs of a case, those without a fault first."""
    faults = [fault for fault in case.faults if only is None or fault in only]
    return ["bare", "healthy", *faults]


def row_of(case: Case, folder: Path, again: bool = False) -> Json:
    """What is known of a run that lies in a folder, analysed where it is not yet, or again."""
    outcome = json.loads((folder / "outcome.json").read_text())
    if outcome["label"] == "bare":
        return outcome
    bare = json.loads((folder.parent / "bare" / "outcome.json").read_text())
    fault = outcome["fault"]
    kept_answer = folder / "answer.json"
    if again or not kept_answer.exists():
        answer = analysed(folder, crash=bool(fault) and FAULTS[fault].crash)
        kept_answer.write_text(json.dumps(answer) + "\n")
    answer = json.loads(kept_answer.read_text())
    return {
        **outcome, **judge(case, outcome, answer), "steps": steps_recorded(folder),
        "same": "" if fault else same(bare, outcome), "all_ranks": bool(fault) and FAULTS[fault].all_ranks,
    }  # fmt: skip


def kept(out: Path, only: Sequence[str] | None) -> Iterator[tuple[Case, Path]]:
    """The runs that lie in a folder, in the order of the cases."""
    for case in CASES:
        if only and case.name not in only:
            continue
        order = [*labels(case, None), *sorted(path.name for path in (out / case.name).glob("healthy-*"))]
        yield from (
            (case, out / case.name / name) for name in order if (out / case.name / name / "outcome.json").exists()
        )


def say(row: Json) -> None:
    """A line of a run."""
    if row["label"] == "bare":
        text = f"exit code {row['exit_code']}, {row['took_s']} s"
    elif row["fault"]:
        right = " ".join(f"{key}:{'yes' if row[key] else 'NO'}" for key in ("class", "cause", "rank_right"))
        text = f"{right}  {row.get('said_class')}/{row.get('said_cause') or '-'} {row['named']}"
    else:
        text = f"same: {row['same']}; steps {row['steps']}; {row.get('said_class')}/{row.get('said_cause') or '-'} "
        text += f"names {row['named']}"
    print(f"{row['case']:24}{row['label']:16}{text}", flush=True)


def run_all(options: argparse.Namespace) -> None:
    """Runs what is asked for and not there yet."""
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        for label in labels(case, options.fault):
            folder = options.out / case.name / label
            if (folder / "outcome.json").exists() and not options.again:
                continue
            try:
                run(case, label, options.mirror, options.out, options.extra, FAULTS.get(label))
            except UnfetchedError as reason:
                print(f"{case.name:24}skipped: {reason}", flush=True)
                break
            say(row_of(case, folder))


def run_healthy(options: argparse.Namespace) -> None:
    """Healthy runs of the cases in turn, while a process spins on each core."""
    cases = [case for case in CASES if case.ranks > 1 and (not options.only or case.name in options.only)]
    with burners(sorted(os.sched_getaffinity(0))):
        for number in range(options.healthy):
            case = cases[number % len(cases)]
            label = f"healthy-{number:02d}"
            folder = options.out / case.name / label
            if (folder / "outcome.json").exists() and not options.again:
                continue
            if not (options.out / case.name / "bare" / "outcome.json").exists():
                run(case, "bare", options.mirror, options.out, options.extra)
            run(case, label, options.mirror, options.out, options.extra)
            say(row_of(case, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, help="folder of OWNER+NAME/repo, bare git directories")
    parser.add_argument("--out", type=Path, help="folder of the runs; what is there is not run again")
    parser.add_argument("--extra", type=Path, help="folder of the packages of requirements.txt")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(BY_NAME), help="these scripts alone")
    parser.add_argument("--fault", nargs="*", metavar="NAME", choices=sorted(FAULTS), help="these faults alone")
    parser.add_argument("--healthy", type=int, metavar="N", help="N healthy runs while every core is busy otherwise")
    parser.add_argument("--again", action="store_true", help="also run what is there")
    parser.add_argument("--reanalyse", type=Path, metavar="FOLDER", help="analyse the runs there, run nothing")
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="the answers kept there; run and analyse nothing")
    parser.add_argument("--json", type=Path, metavar="ROWS", help="write the rows there")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="PAGE", help=f"not {PAGE.name}: this page")
    parser.add_argument("--title", default="Public training scripts under `diag run`", help="of that page")
    options = parser.parse_args()
    out = options.reanalyse or options.table or options.out
    runs = out is not None and out == options.out
    if out is None or (runs and options.mirror is None):
        print("Fetch these repositories, then give --mirror and --out:", file=sys.stderr)
        sys.exit("\n".join(sorted({case.source[0] for case in CASES})))
    if runs:
        options.mirror, options.out = options.mirror.absolute(), options.out.absolute()
        options.out.mkdir(parents=True, exist_ok=True)
        (run_healthy if options.healthy else run_all)(options)
    rows = []
    for case, folder in kept(out, options.only):
        rows.append(row := row_of(case, folder, again=options.reanalyse is not None))
        if not runs:
            say(row)
    print("\n".join(summary(rows)))
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.write:
        loads = [row["load"] for row in rows]
        page = f" --page {options.page}" if options.page != PAGE else ""
        about = (
            f"Written by `python -m tests.bench.scripts --write{page}`. Two ranks with gloo, or one process, on two "
            "cores; the load of the machine when a run began was "
            f"{min(loads, default=0):.1f} to {max(loads, default=0):.1f}."
        )
        options.page.write_text(table(CASES, rows, about, options.title))


if __name__ == "__main__":
    main()
