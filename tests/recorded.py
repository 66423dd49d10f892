"""Keeps a small run that another machine recorded, without that machine's names.

``python -m tests.recorded RUN TARGET [--replace OLD=NEW ...]`` copies what a run left but caches, answers and empty
files. OLD, a host name or a path, is replaced as a whole word in texts and file names. Dumps and snapshots are pickles,
which are not loaded: OLD is replaced in their bytes if NEW is as long, and is an error otherwise. Boot ids, serial
numbers and UUIDs of GPUs, and the traces' own names, are replaced in any case.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import shutil
from pathlib import Path

from sample_traces.record import compressed

CACHES = {"tables", "verdict.json", "hang.json"}
PICKLE = b"\x80"  # PROTO, what a pickle of protocol 2 or later begins with
FIXED = (
    (rb'("boot_id":\s*)"[^"]*"', rb'\1"recorded"'),
    (rb"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", b"00000000-0000-0000-0000-000000000000"),
    (rb"((?:Serial Number|GPU PDI)\s*: )\S+", rb"\1N/A"),
)


def _named(old: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?<![\w])" + re.escape(old.encode()) + rb"(?![\w])")


def neutral_content(content: bytes, replaced: dict[str, str]) -> bytes:
    """The content of a text or a pickle with other names, the longest first."""
    pickled = content.startswith(PICKLE)
    for old in sorted(replaced, key=len, reverse=True):
        if pickled:
            if old.encode() in content and "/" in old and len(old) != len(replaced[old]):
                raise SystemExit(f"{old} is in a pickle: its replacement has another length")
            if "/" in old:
                content = content.replace(old.encode(), replaced[old].encode())
        else:
            content = _named(old).sub(replaced[old].encode(), content)
    for pattern, new in () if pickled else FIXED:
        content = re.sub(pattern, new, content)
    return content


def keep(run: Path, target: Path, replaced: dict[str, str]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(run.rglob("*")):
        inside = path.relative_to(run)
        if not path.is_file() or not path.stat().st_size or CACHES & set(inside.parts):
            continue
        content = path.read_bytes()
        if path.name.endswith(".json.gz"):
            content = compressed(neutral_content(gzip.decompress(content), replaced))
        else:
            content = neutral_content(content, replaced)
        copy = target / neutral_content(str(inside).encode(), replaced).decode()
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW")
    given = parser.parse_args()
    keep(given.run, given.target, dict(pair.split("=", 1) for pair in given.replace))
    size = sum(path.stat().st_size for path in given.target.rglob("*") if path.is_file())
    print(json.dumps({"target": given.target.name, "bytes": size}))


if __name__ == "__main__":
    main()
