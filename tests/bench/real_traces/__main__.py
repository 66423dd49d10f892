"""Does ``diag analyze`` tell the truth about GPU traces that nobody here made?

    python -m tests.bench.real_traces --mirror FOLDER [CASES.json ...] [--only NAME] [--json ROWS] [--keep FOLDER]
    python -m tests.bench.real_traces --rows ROWS.json [ROWS.json ...] --markdown

No trace is stored here. ``cases.json`` names files of public repositories by their git blobs, what is true of each, and
checks that allow every answer an expert could defend. The truth was worked out without diag: by unions of device
intervals, by when the work behind each gap was launched, by who comes last at each collective, and by reading. Fetch
the repositories first (the command without a mirror lists them):

    git clone --bare https://github.com/OWNER/NAME FOLDER/OWNER+NAME/repo

One line a case, then the score by kind and the calibration: of the answers with confidence p, how many were right.
``--rows`` reads the rows of earlier runs instead. Exit code 0 only if all answers are right.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

CASES = Path(__file__).parent / "cases.json"
SURE = 0.6  # a wrong answer at this confidence or more is the worst outcome
_BINS = 10
_TIMEOUT_S = 600
_UNTRUE = re.compile(r"not JSON|begin with a brace", re.I)  # said of a file that is JSON
_BUSY = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns")

Json = dict[str, Any]


class UnfetchedError(Exception):
    """A repository, or a file of it, is not in the mirror."""


def _blob(mirror: Path, repo: str, sha: str) -> bytes:
    folder = mirror / repo.replace("/", "+") / "repo"
    if not folder.exists():
        raise UnfetchedError(f"fetch {repo}")
    found = subprocess.run(["git", "-C", str(folder), "cat-file", "blob", sha], capture_output=True, check=False)
    if found.returncode:
        raise UnfetchedError(f"{repo} has no blob {sha[:12]}")
    return found.stdout


def lay_out(case: Json, mirror: Path, folder: Path) -> None:
    """Writes the files of the case into the folder, prepared as it says."""
    for file in case["files"]:
        data = _blob(mirror, file["repo"], file["blob"])
        if "member" in file:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                member = tar.extractfile(file["member"])
                assert member is not None
                data = member.read()
        (folder / PurePosixPath(file.get("as") or file["member"]).name).write_bytes(data)
    if "prepare" in case:
        _PREPARE[case["prepare"]](folder)


def _read(path: Path) -> Any:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data.decode("utf-8", "replace"), strict=False)


def _write(path: Path, value: object) -> None:
    with gzip.open(path, "wt", compresslevel=1) as out:
        json.dump(value, out)


def _as_array(folder: Path) -> None:
    """The other form that Chrome's format allows: the bare list of events."""
    for path in folder.iterdir():
        _write(path, _read(path)["traceEvents"])


def _without_loader(folder: Path) -> None:
    """Without the loader's own annotations; its Python frames stay."""
    for path in folder.iterdir():
        trace = _read(path)
        loader = [
            e for e in trace["traceEvents"] if "DataLoader" in str(e.get("name")) and "annot" in str(e.get("cat"))
        ]
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in loader]
        _write(path, trace)


def _unfused(folder: Path) -> None:
    """A fusion of several ranks undone: a file for each, with the ids that the fusion kept as ``*_raw``."""
    (fused,) = folder.iterdir()
    ranks: dict[int, list[Json]] = defaultdict(list)
    for event in _read(fused)["traceEvents"]:
        args = dict(event.get("args") or {})
        rank = args.pop("rank", None)
        for key in [key for key in args if key.endswith("_raw")]:
            value = args.pop(key)
            if key == "correlation_raw":
                args["correlation"] = value
            elif key in ("pid_raw", "id_raw"):
                event[key.removesuffix("_raw")] = value
        if rank is not None:
            ranks[rank].append({**event, "args": args})
    fused.unlink()
    for rank, events in ranks.items():
        info = {"backend": "nccl", "rank": rank, "world_size": len(ranks)}
        _write(folder / f"rank{rank}.json.gz", {"schemaVersion": 1, "traceEvents": events, "distributedInfo": info})


_PREPARE: Mapping[str, Callable[[Path], None]] = {
    "array": _as_array, "unlabel-loader": _without_loader, "unfuse": _unfused,
}  # fmt: skip


# -- what the answer must and must not say -----------------------------------------------------------------------------


def _refusal(code: int, out: str, err: str) -> str:
    """What is wrong with a refusal; "" where the program refused clearly."""
    try:
        said = json.loads(out)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        said = err.strip()
    if code != 1:
        return f"not refused: exit code {code}"
    if not said or "\n" in err.strip():
        return "refused without one clear line"
    return "refused with an untrue reason" if _UNTRUE.search(said) else ""


def _value(answer: Json, check: Json) -> float | None:
    """The number that a check asks for, over the steps' ranks; None where the answer does not give it."""
    rows = [row for step in answer["steps"] for row in step["ranks"] if check.get("rank") in (None, row["rank"])]
    if not rows:
        return None

    def total(*keys: str) -> float:
        parts = [row["idle_parts"][key.partition(".")[2]] if "." in key else row[key] for row in rows for key in keys]
        return float(sum(parts))

    what = check["what"]
    if what == "overlap_share":
        hidden = total("overlapped_comm_ns")
        return hidden / max(1, hidden + total("exposed_comm_ns"))
    if what == "idle_share":  # without start-up
        idle = total("idle_ns") - total("idle_parts.outside_ns", "idle_parts.in_launch_ns")
        return idle / max(1, total("dur_ns"))
    if what == "queued_share":
        return total("idle_parts.queued_ns", "idle_parts.unknown_ns") / max(1, total("dur_ns"))
    value = total(*(_BUSY if what == "busy_ns" else (what,)))
    return value / len(rows) if check.get("over") == "mean" else value


def _off(value: float | None, check: Json) -> bool:
    if value is None:
        return not check.get("if_given")
    if "value" in check and abs(value - check["value"]) > check["tolerance"] * abs(check["value"]):
        return True
    return not check.get("min", value) <= value <= check.get("max", value)


def _as_dict(item: str | Json, key: str) -> Json:
    return {key: item} if isinstance(item, str) else item


def judge(answer: Json, expect: Json) -> list[str]:
    """What is wrong with the answer, as short sentences."""
    verdict = answer["verdict"]
    told = verdict["bottleneck"] != "undetermined"
    idle = _value(answer, {"what": "idle_share"}) or 0.0
    queued = _value(answer, {"what": "queued_share"}) or 0.0
    wrong = []
    allowed = [
        own["bottleneck"]
        for own in (_as_dict(item, "bottleneck") for item in expect["bottleneck_any"])
        if idle < own.get("idle_under", 2) and queued > own.get("queued_over", -1)
    ]
    if verdict["bottleneck"] not in allowed:
        wrong.append(f"bottleneck {verdict['bottleneck']} ({verdict['cause'] or 'no cause'})")
    for no in (_as_dict(item, "cause") for item in expect.get("cause_none", ())):
        cost_ms = sum(f["cost_ns_per_step"] for f in answer["findings"] if f["id"] == no["cause"]) / 1e6
        cost_ms *= max(1, len(answer["steps"]))
        small = verdict["share"] <= no.get("share_over", -1) or cost_ms <= no.get("cost_over_ms", -1)
        if verdict["cause"] == no["cause"] and verdict["severity"] != "healthy" and not small:
            wrong.append(f"cause {no['cause']} ({cost_ms:.0f} ms)")
    for no in (_as_dict(item, "severity") for item in expect.get("severity_none", ())):
        if told and verdict["severity"] == no["severity"] and idle > no.get("idle_over", -1):
            wrong.append(f"severity {no['severity']} with {idle:.0%} idle")
    if "culprit_ranks" in expect:
        named = set((verdict["culprit"] or {}).get("ranks") or ())
        named |= {rank for f in answer["findings"] if "straggler" in f["id"] for rank in f["ranks"]}
        if named - set(expect["culprit_ranks"]) or (expect.get("culprit_needed") and not named):
            wrong.append(f"ranks named {sorted(named)}, not {sorted(expect['culprit_ranks'])}")
    if told and len(answer["run"]["ranks"]) != expect.get("ranks_count", len(answer["run"]["ranks"])):
        wrong.append(f"{len(answer['run']['ranks'])} ranks, not {expect['ranks_count']}")
    for check in expect.get("numbers", ()):
        if (told or not check.get("unless_undetermined")) and _off(value := _value(answer, check), check):
            wrong.append(f"{check['what']} is {value}")
    if told and verdict["confidence"] > expect.get("max_confidence", 1):
        wrong.append(f"confidence {verdict['confidence']} over {expect['max_confidence']}")
    return wrong


# -- running -----------------------------------------------------------------------------------------------------------


def run(case: Json, mirror: Path, keep: Path | None) -> Json:
    """The case's row: what was answered, and what is wrong with it."""
    row: Json = {
        "name": case["name"],
        "kind": case["kind"],
        "right": False,
        "failed": [],
        "answer": "",
        "truth": case["truth"],
    }
    expect = case["expect"]
    with tempfile.TemporaryDirectory(prefix="real-") as work:
        folder = (keep / case["name"] if keep is not None else Path(work) / "traces").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lay_out(case, mirror, folder)
        except UnfetchedError as reason:
            return {**row, "answer": f"skipped: {reason}", "skipped": True}
        command = [sys.executable, "-m", "diag", "analyze", str(folder), "--json"]
        environment = {**os.environ, "DIAG_CACHE": "off"}
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_TIMEOUT_S, env=environment, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return {**row, "failed": [f"no answer in {_TIMEOUT_S} s"]}
    if "Traceback (most recent call last)" in done.stdout + done.stderr:
        return {**row, "failed": ["traceback"], "traceback": True}
    refused = _refusal(done.returncode, done.stdout, done.stderr)
    if done.returncode == 1:
        if expect.get("refused"):
            return {**row, "answer": "refused", "failed": [refused] if refused else [], "right": not refused}
        return {**row, "answer": "refused", "failed": [refused or "refused, though it can be read"]}
    answer = json.loads(done.stdout)
    if "jobs" in answer:  # several runs, each with its own answer: no answer over all of them
        found = f"{len(answer['jobs'])} jobs"
        several = expect.get("refused") and len(answer["jobs"]) == expect.get("jobs", len(answer["jobs"]))
        failed = [] if several else [f"{found}, not {expect.get('jobs', 1)}"]
        return {**row, "answer": found, "failed": failed, "right": not failed}
    verdict = answer["verdict"]
    row["answer"] = f"{verdict['bottleneck']}/{verdict['cause'] or '-'} {verdict['severity']} {verdict['confidence']}"
    if verdict["bottleneck"] != "undetermined":
        row["confidence"] = verdict["confidence"]
    row["failed"] = ["not refused"] if expect.get("refused") is True else judge(answer, expect)
    return {**row, "right": not row["failed"]}


def _sure(row: Json) -> bool:
    return not row["right"] and row.get("confidence", 0) >= SURE


def scores(rows: Sequence[Json]) -> list[tuple[str, int, int, int]]:
    """Kind, right, wrong at a confidence of 0.6 or more, and cases; last of all kinds together."""
    found = []
    for kind in [*sorted({row["kind"] for row in rows}), "all"]:
        own = [row for row in rows if kind in (row["kind"], "all")]
        found.append((kind, sum(row["right"] for row in own), sum(map(_sure, own)), len(own)))
    return found


def calibration(rows: Sequence[Json]) -> list[tuple[str, int, float, float]]:
    """For each tenth of the confidence that was used: its name, answers, their mean confidence, and the part of them
    that was right. Answers that leave the verdict open, and refusals, have none."""
    bins: dict[int, list[Json]] = defaultdict(list)
    for row in rows:
        if "confidence" in row:
            bins[min(_BINS - 1, int(row["confidence"] * _BINS))].append(row)
    return [
        (
            f"{number / _BINS:.1f} to {(number + 1) / _BINS:.1f}",
            len(own := bins[number]),
            sum(row["confidence"] for row in own) / len(own) if own else 0.0,
            sum(row["right"] for row in own) / len(own) if own else 0.0,
        )
        for number in range(_BINS)
    ]


def report(rows: Sequence[Json], markdown: bool) -> str:
    bar = "| " if markdown else "  "
    between, end = (" | ", " |") if markdown else ("  ", "")

    def line(*cells: object) -> str:
        return bar + between.join(str(cell) if markdown else f"{cell!s:<18}" for cell in cells) + end

    lines = [
        line("kind", "right", "wrong and sure", "cases"),
        *([line("---", "--:", "--:", "--:")] if markdown else []),
    ]
    lines += [line(*score) for score in scores(rows)]
    lines += ["", line("confidence", "answers", "mean confidence", "right")]
    lines += [line("---", "--:", "--:", "--:")] if markdown else []
    lines += [
        line(name, count, f"{mean:.2f}" if count else "", f"{right:.2f}" if count else "")
        for name, count, mean, right in calibration(rows)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", type=Path, default=[CASES])
    parser.add_argument("--mirror", type=Path, help="folder of OWNER+NAME/repo, bare git directories")
    parser.add_argument("--only", metavar="NAME", help="this case alone")
    parser.add_argument("--json", metavar="ROWS", type=Path, help="write the rows there")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave each case's files in FOLDER/NAME")
    parser.add_argument("--rows", nargs="+", type=Path, help="report the rows of earlier runs, run nothing")
    parser.add_argument("--markdown", action="store_true", help="tables for the benchmark's page")
    options = parser.parse_args()
    if options.rows:
        rows = [row for path in options.rows for row in json.loads(path.read_text())]
        print(report(rows, options.markdown))
        return
    cases = [case for path in options.cases for case in json.loads(path.read_text())]
    cases = [case for case in cases if options.only in (None, case["name"])]
    if options.mirror is None:
        print("Fetch these repositories, then give --mirror:", file=sys.stderr)
        sys.exit("\n".join(sorted({file["repo"] for case in cases for file in case["files"]})))
    rows = []
    for case in cases:
        rows.append(row := run(case, options.mirror.absolute(), options.keep))
        word = "right" if row["right"] else "skipped" if row.get("skipped") else "wrong"
        why = f": {'; '.join(row['failed'])}" if row["failed"] else ""
        print(f"{word:8}{row['kind']:18}{row['name']:26}{row['answer']}{why}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    rows = [row for row in rows if not row.get("skipped")]
    print(report(rows, options.markdown))
    print(f"{sum(bool(row.get('traceback')) for row in rows)} tracebacks, {len(cases) - len(rows)} skipped")
    sys.exit(0 if rows and all(row["right"] for row in rows) else 1)


if __name__ == "__main__":
    main()
