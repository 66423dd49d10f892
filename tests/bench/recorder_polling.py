"""CPU time of polling the Flight Recorder for durations of collectives, as part of one core.

``python tests/bench/recorder_polling.py [entries ...]`` (2,000 and 20,000): a process for each size of the ring. The
entries are gloo's of a world of one rank, with a duration put into each, in the sizes of a sharded training; the ring
is full. Seconds are simulated, nothing waits: in each the recorder gets 50, 100 or 200 collectives, and the poll is
asked as the background thread asks it. Printed: the polls' CPU time per simulated second; that of one reading, in most
of which Python stands still; how many of the collectives were written; and the process's CPU time with and without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from diag.collectors.budget import Budget, Complaints, LineFile
from diag.collectors.durations import DurationPoll, last_number, read_dump
from diag.collectors.flight_recorder import Recorder, recorders
from diag.collectors.identity import _RECORDED_CALLS
from diag.collectors.policy import RECORDING

RATES = (50, 100, 200)  # collectives a second
SECONDS = 1024


def calls(count: int) -> None:
    """All-gathers, reduce-scatters and a few all-reduces, as FSDP's."""
    shard, whole = torch.ones(1024), torch.ones(1024)
    for index in range(count):
        if index % 10 == 9:
            dist.all_reduce(shard)
        elif index % 3 == 2:
            dist.reduce_scatter_tensor(shard, whole)
        else:
            dist.all_gather_into_tensor(whole, shard)


def cpu(rate: int, poll: DurationPoll | None) -> tuple[float, list[float]]:
    """CPU seconds of ``SECONDS`` simulated seconds, and of each reading."""
    began, readings = time.process_time(), []
    for second in range(SECONDS):
        calls(rate)
        if poll is not None:
            before = time.thread_time()
            poll.poll(1e9 + second)
            if (took := time.thread_time() - before) > 1e-4:
                readings.append(took)
    return time.process_time() - began, readings


def measure(entries: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's new names for these collectives
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    generic = next(one for one in recorders() if one.name == "")
    assert generic.json is not None

    def timed(**arguments: bool) -> bytes:
        text = generic.json(**arguments)
        text = text.replace(b'"input_dtypes"', b'"duration_ms":1.234567,"input_dtypes"')
        return text.replace(b'"pg_config":{', b'"pg_config":{"0":{"ranks":"[0, 1, 2, 3, 4, 5, 6, 7]"},')

    calls(entries)
    text = timed()
    parts = []
    for what in (
        lambda: timed(),
        lambda: read_dump(text, last_number(text) - 99, bool),
        lambda: read_dump(text, 0, bool),
    ):
        began = time.process_time()
        for _ in range(5):
            what()
        parts.append((time.process_time() - began) / 5 * 1e3)
    print(f"{entries:,} entries, {len(text) / 1e6:.1f} MB: dump {parts[0]:.1f} ms, then parsed: the last 100 ", end="")
    print(f"{parts[1]:.2f} ms, all {parts[2]:.1f} ms")
    for rate in RATES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "durations.jsonl")
            file = LineFile(path, Budget(1 << 30), Complaints(0))
            poll = DurationPoll(Recorder("nccl", None, timed), file, Complaints(0))
            poll.look()
            without, _ = cpu(rate, None)
            poll.look()
            size = path.stat().st_size
            with_poll, readings = cpu(rate, poll)
            file.close()
            lines = path.read_bytes()[size:]
        rows = sum(len(json.loads(line)["rows"]) for line in lines.splitlines())
        print(
            f"  {rate} collectives a second: {sum(readings) / SECONDS:.3%} of a core (goal {RECORDING.cpu_share:.1%}), "
            f"{len(readings)} readings in {SECONDS} s, of {median(readings) * 1e3:.0f} ms, longest "
            f"{max(readings) * 1e3:.0f} ms; {rows / (rate * SECONDS):.0%} of the collectives written, "
            f"{len(lines) / rows:.0f} bytes each; CPU with and without: {with_poll:.2f} s, {without:.2f} s, "
            f"ratio {with_poll / without:.2f} (making the collectives takes {without / SECONDS:.2%} of a core)"
        )


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        measure(int(sys.argv[2]))
        return
    for entries in map(int, sys.argv[1:] or ("2000", "20000")):
        size = {_RECORDED_CALLS: str(entries)}
        subprocess.run([sys.executable, __file__, "--one", str(entries)], env={**os.environ, **size}, check=True)


if __name__ == "__main__":
    main()
