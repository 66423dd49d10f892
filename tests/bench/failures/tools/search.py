"""The plain search that people do first: ``grep -riE 'error|exception|timeout|timed out|killed' FOLDER``.

``search.py first`` answers from the first matching line, ``search.py last`` from the last one. The class is the first
of ``WORDS`` that the line has; the rank is the one that the line's prefix, or else its words, name. No line: healthy.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

MATCH = re.compile(r"error|exception|timeout|timed out|killed", re.IGNORECASE)
WORDS = (
    "out of memory",
    "xid",
    "ecc",
    "segmentation fault",
    "bus error",
    "no space left",
    "address already in use",
    "connection refused",
    "connection reset",
    "connection closed",
    "cuda error",
    "cuda failure",
    "killed",
    "exitcode: -9",
    "timeout",
    "timed out",
    "nccl",
    "exception",
    "error",
)
RANK = re.compile(r"\[rank ?(\d+)\]|^\s*\[\d+,(\d+)\]|\brank:? ?(\d+)\b", re.IGNORECASE)


def answer(folder: Path, which: str) -> dict[str, object]:
    """The answer for one folder."""
    texts = [data for path in sorted(folder.rglob("*")) if path.is_file() and b"\0" not in (data := path.read_bytes())]
    texts = [text for text in texts if text]
    if not texts:
        return {"not_applicable": "no text"}  # grep says: binary file matches
    lines = [line for data in texts for line in data.decode("utf-8", "replace").splitlines()]
    found = [line for line in lines if MATCH.search(line)]
    if not found:
        return {"class": "no matching line", "culprits": []}
    line = found[0 if which == "first" else -1]
    lower = line.lower()
    word = next((word for word in WORDS if word in lower), "")
    rank = RANK.search(line)
    number = next((text for text in rank.groups() if text), "") if rank else ""
    return {"class": word, "culprits": [{"rank": int(number)}] if number else [], "why": line[:300]}


if __name__ == "__main__":
    for given in sys.stdin:
        print(json.dumps(answer(Path(given.strip()), sys.argv[1])), flush=True)
