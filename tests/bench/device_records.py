"""Does diag say the same of a GPU run without any profiler window as of its traces?

    python -m tests.bench.device_records --mirror FOLDER [--only NAME ...] [--json ROWS] [--keep FOLDER] [--markdown]

From public traces of training that nobody here made, the run directory is derived that the always-on collectors would
have written (tests/bench/_derived_run.py). Both are analysed. The traces' answer is the reference; where the case has a
truth that was worked out without diag (tests/bench/real_traces/cases.json), that decides whether an answer is right.
An answer at a confidence of 0.6 or more that is wrong is the worst outcome. "undetermined" is no answer.

The mirror is that of tests.bench.real_traces. Traces that records cannot be derived from are listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.api import Result, open_run
from diag.errors import DiagError
from diag.model.steps import Bottleneck, Severity
from diag.show.json import to_dict
from tests.bench import _derived_run as derived_run
from tests.bench._derived_run import UnderivableError
from tests.bench.real_traces.__main__ import CASES, SURE, UnfetchedError, judge, lay_out

Json = dict[str, Any]

NAMES = (
    "kin_loader0", "kin_loader4", "kin_loader0_api", "t4_fp32_loader", "t4_amp_array", "v100_ddp_one", "laptop_cifar",
    "gpt_compiled_3060", "h100_two_windows_a", "miopen_free", "ddp_a100_host", "ddp_rank0_of_8", "v100_half_idle",
    "v100_rank1_of_2", "dlrm_rank3_of_8", "dlrm_graph_a100", "mi300_ddp_four", "trec_sleep", "trec_sleep_big",
    "trec_sleep_alone", "trec_sleep_absent", "trec_mild", "trec_even", "trec_qcomm", "trec_tiny_pair",
)  # fmt: skip
# Not among the cases of known truth: the traces' answer alone decides.
_PARAM = "facebookresearch/param"
MORE: tuple[Json, ...] = (
    {"name": "param_resnet", "files": [
        {"repo": _PARAM, "blob": "29571b75b9f4a6f6960e7721c19202994ea5deea", "as": "resnet.json.gz"}]},
    {"name": "param_linear", "files": [
        {"repo": _PARAM, "blob": "38621bfb0b6f4eb6d4bbe061e4591bb0d6fb4293", "as": "linear.json.gz"}]},
)  # fmt: skip
_OF_TRUTH = ("bottleneck_any", "cause_none", "severity_none", "culprit_ranks", "culprit_needed")
_SHARES = {"comm": "exposed_comm_ns", "data": "data_wait_ns", "idle": "idle_ns"}


def run(case: Json, mirror: Path, keep: Path | None) -> Json:
    """The case's row."""
    row: Json = {"name": case["name"]}
    with tempfile.TemporaryDirectory(prefix="derived-") as work:
        folder = keep / case["name"] if keep is not None else Path(work)
        traces, written = folder / "traces", folder / "run"
        for made in (traces, written):
            shutil.rmtree(made, ignore_errors=True)
        traces.mkdir(parents=True)
        try:
            lay_out(case, mirror, traces)
            reference = open_run(traces)
            write(reference, written)
            found = open_run(written)
        except (UnfetchedError, UnderivableError, DiagError) as reason:
            return {**row, "left_out": str(reason)}
        return {**row, **compare(reference, found, case.get("expect"))}


def write(reference: Result, folder: Path) -> None:
    numbers = [step.step for step in reference.attribution.counted]
    ranks = {rank: tables.traces for rank, tables in reference.tables.ranks.items() if tables.traces}
    derived = {rank: derived_run.derive_longest(traces, numbers) for rank, traces in ranks.items()}
    if len({tuple(sorted(own.steps)) for own in derived.values()}) != 1:
        raise UnderivableError("the ranks' traces have other steps")
    derived_run.write(derived, reference.tables.world_size, folder)


def compare(reference: Result, found: Result, expect: Json | None) -> Json:
    """Of both: class, severity, cause, confidence, culprits and shares; and how the second answer is judged."""
    wrong = _against_truth(found, expect) if expect is not None else _against(reference, found)
    undetermined = found.verdict.bottleneck == Bottleneck.UNDETERMINED
    sure = found.verdict.confidence >= SURE
    outcome = "open" if undetermined else "right" if not wrong else "WRONG AND SURE" if sure else "wrong, unsure"
    return {
        "traces": _said(reference),
        "derived": _said(found),
        "outcome": outcome,
        "wrong": [] if undetermined else wrong,
        "differs": _against(reference, found),
    }


def _said(result: Result) -> Json:
    verdict = result.verdict
    steps = result.attribution.counted
    parts = [part for step in steps for part in step.parts]
    whole = max(1, sum(part.dur_ns for part in parts))
    return {
        "class": _class(result),
        "cause": verdict.cause,
        "confidence": verdict.confidence,
        "culprits": list(verdict.culprit_ranks),
        "headline": verdict.headline,
        "shares": {name: sum(getattr(part, key) for part in parts) / whole for name, key in _SHARES.items()},
        "step_ms": whole / max(1, len(parts)) / 1e6,
        "findings": [(f.id, round(f.share, 3), list(f.ranks)) for f in result.examination.findings],
    }


def _class(result: Result) -> str:
    healthy = result.verdict.severity == Severity.HEALTHY
    return "healthy" if healthy else str(result.verdict.bottleneck.value)


def _against_truth(found: Result, expect: Json) -> list[str]:
    return judge(to_dict(found), {key: expect[key] for key in _OF_TRUTH if key in expect})


def _against(reference: Result, found: Result) -> list[str]:
    wrong = []
    if _class(found) != _class(reference):
        wrong.append(f"{_class(found)}, not {_class(reference)}")
    if set(found.verdict.culprit_ranks) - set(reference.verdict.culprit_ranks):
        wrong.append(f"ranks {list(found.verdict.culprit_ranks)}, not {list(reference.verdict.culprit_ranks)}")
    return wrong


def _cells(row: Json) -> list[str]:
    traces, derived = row["traces"], row["derived"]

    def verdict(of: Mapping[str, Any]) -> str:
        ranks = f" {of['culprits']}" if of["culprits"] else ""
        return f"{of['class']}/{of['cause'] or '-'}{ranks} {of['confidence']:.2f}"

    shares = [f"{100 * traces['shares'][key]:.0f} / {100 * derived['shares'][key]:.0f}" for key in _SHARES]
    return [row["name"], row["outcome"], verdict(traces), verdict(derived), *shares]


def report(rows: Sequence[Json], markdown: bool) -> str:
    header = ["case", "outcome", "traces", "records", "exposed communication, %", "data wait, %", "idle, %"]
    cells = [_cells(row) for row in rows if "traces" in row]
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *cells)]
    else:
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    outcomes = [row["outcome"] for row in rows if "outcome" in row]
    lines += ["", ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))]
    lines += [f"left out: {row['name']}: {row['left_out']}" for row in rows if "left_out" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, required=True, help="folder of OWNER+NAME/repo, bare git directories")
    parser.add_argument(
        "--only",
        nargs="+",
        default=(*NAMES, *(case["name"] for case in MORE)),
        metavar="NAME",
        help="these cases alone",
    )
    parser.add_argument("--json", metavar="ROWS", type=Path, help="write the rows there")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave traces and run of each case in FOLDER/NAME")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    os.environ["DIAG_CACHE"] = "off"
    cases = {case["name"]: case for case in (*json.loads(CASES.read_text()), *MORE)}
    rows = []
    for name in options.only:
        rows.append(row := run(cases[name], options.mirror.absolute(), options.keep))
        print(f"{name:22}{row.get('outcome') or row['left_out']}: {'; '.join(row.get('wrong', ()))}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(report(rows, options.markdown))
    sys.exit(any(row.get("outcome") == "WRONG AND SURE" for row in rows))


if __name__ == "__main__":
    main()
