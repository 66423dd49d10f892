"""A training process as the launcher sees one, in a quarter of a second and without torch: it beats and it answers.

``python fake_rank.py MODE``: "hangs" beats and stands still in a collective, "away" stands still outside of one, "mute"
never answers, "stubborn" ignores SIGTERM.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

from diag.collectors.files import encode, replace_file
from diag.collectors.layout import RunLayout
from diag.collectors.records import Heartbeat, RankRecord

INTERVAL_S = 0.05


def main(mode: str) -> None:
    rank, run = int(os.environ["RANK"]), RunLayout(Path(os.environ["DIAG_RUN_DIR"]))
    files = run.rank(rank)
    files.folder.mkdir(parents=True, exist_ok=True)
    number = None
    if mode != "mute":
        number = int(signal.SIGUSR2)
        faulthandler.register(number, files.stacks.open("ab", buffering=0))
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    replace_file(
        files.identity, encode(RankRecord(rank, rank, 2, "host", os.getpid(), "", 0, 0, "cpu", stack_signal=number))
    )
    answered = 0
    while True:
        if mode != "mute" and run.asked.exists():
            answered = json.loads(run.asked.read_bytes())["number"]
        started = 8 if mode == "away" else 9
        beat = Heartbeat(
            time.time_ns(), time.monotonic_ns(), 5, "forward", {"0": started}, {"0": 8}, steps=5, answered=answered
        )
        replace_file(files.heartbeat, encode(beat))
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main(sys.argv[1])
