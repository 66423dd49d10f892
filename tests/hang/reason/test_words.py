"""Lines of programs that no pattern knows, read by the words that programs share."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from diag.hang.api import triage
from diag.hang.classes.words import LINUX, READINGS, far_host, reading_of
from diag.hang.model import Triage


def of(folder: Path, text: str) -> Triage:
    (folder / "job.log").write_text(f"{text}\n")
    return triage([str(folder)])


LINES = (
    ("net_connect_refused", "shufflenet[71]: cannot open a stream to 10.0.0.9:4422: Connection refused"),
    ("net_connect_refused", "kvpool: dial of node-7.lab:9001 failed: ECONNREFUSED"),
    ("net_connect_timeout", "E0105 transfer.rs:88] handshake with 10.0.0.9:4422 failed: No route to host"),
    ("net_connect_timeout", "metaserver: errno 110 while it greets 10.0.0.9:4422"),
    ("net_connect_timeout", "shardd: open of 10.0.0.9<4422> failed : No route t"),
    ("net_connection_lost", "kvpool: write to 10.0.0.9:4422 failed: Broken pipe"),
    ("net_connection_lost", "FATAL stager.go:12: the stream was closed, unexpected EOF"),
    ("net_bind_failed", "metricsd: listener on :9400 failed, errno 98"),
    ("net_no_interface", "fabricd: error: no usable interface found for subnet 10.1.0.0/16"),
    ("net_wrong_interface", "kvpool: write to 169.254.3.7:4422 failed: Connection refused"),
    ("net_failure", "stager: error: could not resolve host name of shard 3"),
    ("net_failure", "fabricd[71]: FAB_ERR_ADDRESS: endpoint 12 has no path"),
    ("ib_completion_error", "kvpool: work request 12 failed: remote access error"),
    ("memlock_limit", "kvpool: ibv_create_counters failed, errno 12"),
    ("storage", "ckptd: shard 3 was not written: EDQUOT"),
    ("storage", "ckptd: write of /mnt/ckpt/3 failed: os error 5"),
    ("storage", "stager: error: Input/output error while reading file 12 of the data set"),
    ("shm_exhausted", "stager: could not map its ring in /dev/shm"),
    ("cuda_oom", "tensord: fatal: insufficient memory on GPU 3"),
    ("cuda_oom", "tensord: failed to allocate 12 GiB on device 3"),
    ("gpu_hardware", "healthd: device 0000:3b:00.0 reports an uncorrectable fault"),
    ("cuda_failure", "tensord: npu error 507 in stream 3"),
    ("rank_killed_sigkill", "supervisord: worker 3 exceeded its memory limit and was killed"),
    ("rank_killed_sigkill", "supervisord: worker 3 exited with status 137"),
    ("rank_killed_sigsegv", "supervisord: worker 3 died of signal 11"),
    ("rank_killed_sigsegv", "supervisord: worker 3 crashed, exit code: -11"),
    ("rank_killed_sigbus", "supervisord: worker 3 was terminated by SIGBUS"),
)


@pytest.mark.parametrize(("fault_class", "line"), LINES)
def test_a_line_of_an_unknown_program_is_read_by_its_words(tmp_path: Path, fault_class: str, line: str) -> None:
    answer = of(tmp_path, f"starting\n{line}")
    assert answer.fault_class == fault_class
    assert answer.confidence <= 0.6
    assert "No known pattern matches" in answer.headline
    assert line in [source.text for source in answer.evidence]


@pytest.mark.parametrize(
    "line",
    [
        "kvpool: Connection refused by 10.0.0.9:4422, retrying",
        "kvpool: falling back to TCP: Connection refused",
        "stager: the disk may be full: errno 28",
        "supervisord: the worker was killed for its memory usage or by an operator",
        "supervisord: 0 workers killed for their memory usage",
        "kvpool: connection closed after 3 requests",
        "kvpool: exit code 0, signal handlers installed",
        'stager: bad record "write failed: No space left on device" in file 3',
        "tensord: 12 GiB of GPU memory reserved",
        "healthd: the device /dev/fab0 did not appear: Connection timed out",
        "tensord: kernel 7 needs more shared memory than a block has: out of resource",
    ],
)
def test_words_that_take_it_back_or_say_something_else(tmp_path: Path, line: str) -> None:
    assert of(tmp_path, line).fault_class == "undetermined"


def test_a_line_that_a_pattern_knows_says_more(tmp_path: Path) -> None:
    """The words are not asked beside it, nor where the job went on."""
    words = "kvpool: write to 10.0.0.9:4422 failed: Broken pipe\n"
    known = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1 GiB\n"
    )
    answer = of(tmp_path, words + known)
    assert answer.fault_class == "cuda_oom"
    assert not any(words.strip() == source.text for source in answer.evidence)
    steps = "".join(f"step {at} loss 3.{at}\n" for at in range(4))
    assert of(tmp_path, words + steps).fault_class != "net_connection_lost"
    ended = of(tmp_path, f"n1: Terminated\n{words}")
    assert ended.fault_class != "net_connection_lost", "connections are closed where processes are ended"


def test_whom_such_a_line_names(tmp_path: Path) -> None:
    peer = of(tmp_path, "[rank3]: kvpool: open of ipv4:10.0.0.9:4422 in pool.cc failed: Connection refused").culprits
    assert [(culprit.rank, culprit.peer) for culprit in peer] == [(None, "10.0.0.9")]
    other = of(tmp_path, "[rank3]: kvpool: exchange with rank 5 failed: Broken pipe").culprits
    assert [culprit.rank for culprit in other] == [5]
    nobody = of(tmp_path, "[rank3]: kvpool: write to 10.0.0.9:1, 10.0.0.8:1 failed: Broken pipe").culprits
    assert not any(culprit.rank is not None or culprit.peer for culprit in nobody)
    own = of(tmp_path, "[rank3]: ckptd: shard was not written: Disk quota exceeded").culprits
    assert [culprit.rank for culprit in own] == [3]
    assert far_host("E pool.cc:12] see app.py, kvpool: Connection refused") == ""


def test_every_reading_has_a_line() -> None:
    """And each of them is the first that fits it."""
    first = [reading_of(line) for _, line in LINES]
    assert {id(reading) for reading in first} >= set(map(id, READINGS))


@pytest.mark.skipif(sys.platform != "linux", reason="the table is of Linux")
def test_errors_of_linux_are_those_of_its_headers_and_its_c_library() -> None:
    assert {name: (getattr(errno, name), os.strerror(getattr(errno, name))) for name in LINUX} == LINUX
