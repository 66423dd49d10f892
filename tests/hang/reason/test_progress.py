"""What is at work at the end of a log, and whether it still is: the clock of the file decides, never the text alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.model import Triage

EVERY_S = 30.0
STEP = "trainer INFO: iter: {count}/1000  loss: 1.{count}  lr: 0.1"


def _stamped(texts: Sequence[str], ended_s: float) -> str:
    """Lines with time stamps that are as far apart as steps, the last one at ``ended_s``."""
    lines = []
    for place, text in enumerate(texts):
        at = ended_s - EVERY_S * (len(texts) - 1 - place)
        lines.append(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))},000 {text}\n")
    return "".join(lines)


def _write(path: Path, text: str, written_s: float) -> None:
    path.write_text(text)
    os.utime(path, (written_s, written_s))


def _answer(folder: Path, texts: Sequence[str], *, silent_s: float = 1.0, copied: bool = False) -> Triage:
    """Of a log whose last line was printed ``silent_s`` ago, when the file was written unless it was copied now."""
    now = time.time()
    _write(folder / "train.log", _stamped(texts, now - silent_s), now if copied else now - silent_s)
    return triage([str(folder)])


STEPS = tuple(STEP.format(count=count) for count in (20, 40, 60, 80))


def test_a_step_that_was_just_written_is_of_a_job_that_works(tmp_path: Path) -> None:
    answer = _answer(tmp_path, STEPS)
    assert (answer.fault_class, answer.confidence, answer.culprits) == ("healthy", 0.7, ())
    assert "at most 30\u00a0s apart" in answer.headline
    assert "if no line comes for 10\u00a0min" in answer.next_steps[0]


def test_utc_is_read_where_local_time_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    utc = _stamped(STEPS, now + (time.mktime(time.gmtime(now)) - time.mktime(time.localtime(now))))
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        _write(tmp_path / "train.log", utc, now)
        assert triage([str(tmp_path)]).fault_class == "healthy"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_file_that_is_older_than_many_steps_is_of_a_job_that_stands_still(tmp_path: Path) -> None:
    answer = _answer(tmp_path, STEPS, silent_s=3 * 3600)
    assert answer.fault_class == "undetermined"
    assert "Nothing has been written for 3\u00a0h: the job stands still" in answer.headline


def test_a_pause_as_of_a_checkpoint_is_neither(tmp_path: Path) -> None:
    answer = _answer(tmp_path, STEPS, silent_s=300)
    assert answer.fault_class == "undetermined"
    assert "If nothing was printed for much longer than that" in answer.headline


def test_a_copy_does_not_show_whether_the_job_works(tmp_path: Path) -> None:
    answer = _answer(tmp_path, STEPS, silent_s=7200, copied=True)
    assert (answer.fault_class, answer.confidence) == ("undetermined", 0.3)


def test_steps_without_time_stamps_do_not_either(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(STEPS))
    answer = triage([str(tmp_path)])
    assert (answer.fault_class, answer.confidence) == ("undetermined", 0.3)
    assert "stands still" in answer.headline


def test_a_rank_whose_file_stands_still_while_another_works(tmp_path: Path) -> None:
    """Its last step is of the same form, only older."""
    now = time.time()
    _write(tmp_path / "rank0.log", _stamped(STEPS, now), now)
    _write(tmp_path / "rank1.log", _stamped(STEPS[:3], now - 2400), now - 2400)
    assert triage([str(tmp_path)]).fault_class == "undetermined"


_READY = [
    f"n1:{70 + rank}:{90 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks 2 "
    f"cudaDev {rank} nvmlDev {rank} busId {rank}1000 commId 0xabc - Init COMPLETE"
    for rank in range(2)
]


@pytest.mark.parametrize(
    "before",
    [
        "\n".join(_READY),
        "[W reducer.cpp:1300] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find "
        "any unused parameters in the forward pass.",
    ],
)
def test_what_comes_before_the_steps_makes_no_old_file_healthy(tmp_path: Path, before: str) -> None:
    now = time.time()
    _write(tmp_path / "train.log", f"{before}\n{_stamped(STEPS, now)}", now)
    assert triage([str(tmp_path)]).fault_class == "healthy"
    _write(tmp_path / "train.log", f"{before}\n{_stamped(STEPS, now - 7200)}", now - 7200)
    answer = triage([str(tmp_path)])
    assert answer.fault_class == "undetermined"
    assert "Nothing has been written for 2\u00a0h" in answer.headline
    for steps, at in ((_stamped(STEPS, now - 7200), now), ("\n".join(STEPS), now)):  # a copy; no time stamps
        _write(tmp_path / "train.log", f"{before}\n{steps}", at)
        answer = triage([str(tmp_path)])
        assert (answer.fault_class, answer.culprits) == ("undetermined", ())
        assert "the job stands still there" in answer.headline


def test_each_bar_counts_its_own_time(tmp_path: Path) -> None:
    bars = [
        "train:  16%|#6        | 1024/6400 [1:14:20<1:13:02,  1.23it/s, loss=1.3]",
        "rollout:  90%|######### | 115/128 [01:31<00:10,  1.40it/s, loss=1.2]",
        "train:  16%|#6        | 1025/6400 [1:14:23<1:13:02,  1.23it/s, loss=1.2]",
    ]
    (tmp_path / "train.log").write_text("\n".join(bars))
    answer = triage([str(tmp_path)])
    assert answer.fault_class == "undetermined"
    assert "Work goes on up to the last line, at most 3\u00a0s apart" in answer.headline


def test_rows_of_a_benchmark_are_no_work(tmp_path: Path) -> None:
    rows = [
        f"  {size:>12} {size // 4:>12}     float     sum      -1    17.08    0.00    0.00      0"
        for size in (8, 16, 32)
    ]
    (tmp_path / "nccl-tests.log").write_text("\n".join(rows))
    assert "Work goes on" not in triage([str(tmp_path)]).headline


HANGS = {
    "a bar that is drawn again, with the same step": [
        f"train:  93%|#########3| 18679/18684 [1:49:{10 + 10 * at}<00:01,  2.86it/s, loss=1.2]" for at in range(4)
    ],
    "a step that is printed again": [STEP.format(count=80)] * 4,
    "a loss alone": [f"loss: {loss}" for loss in (2.1, 1.9, 1.8, 1.7)],
    "heartbeats": [f"heartbeat of the trainer, {30 * at} s since the last step" for at in range(4)],
    "steps, then heartbeats": [*STEPS, *["agent: alive"] * 4],
    "health checks": ['INFO:     10.0.0.3:5912 - "GET /health HTTP/1.1" 200 OK'] * 4,
    "answers of a server": ['INFO:     10.0.0.3:5912 - "POST /v1/tokenize HTTP/1.1" 200 OK'] * 4,
    "a server's average": [
        f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {speed} tokens/s, Running: 1 "
        "reqs, Waiting: 14 reqs"
        for speed in (5.4, 5.3, 5.5, 5.4)
    ],
    "a loader's warnings": [*STEPS, *["UserWarning: worker 3 returned an empty batch, 12 of them skipped"] * 4],
    "a watchdog that counts up": [
        *STEPS,
        *(f"[Rank 0] collective of step 80 has not ended for {30 * at} s" for at in range(1, 5)),
    ],
    "retries without an end": [
        *STEPS,
        *(f"could not reach the store at 10.0.0.1:29500, retrying ({at}/1000)" for at in range(4)),
    ],
    "a batch that is tried again": [f"iter: 80, retry {at}, loss: inf, batch skipped" for at in range(4)],
    "steps back": [STEP.format(count=count) for count in (60, 80, 60, 80)],
    "a wait at the end of an epoch": [*STEPS, "epoch 1 done, waiting for the other ranks"],
    "one step": ["starting", "model built", "data read", STEPS[0]],
}


@pytest.mark.parametrize("texts", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("silent_s", [1.0, 7200.0])
def test_what_goes_on_while_a_job_hangs_is_no_work(tmp_path: Path, texts: list[str], silent_s: float) -> None:
    assert _answer(tmp_path, texts, silent_s=silent_s).fault_class != "healthy"
