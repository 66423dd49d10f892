"""Healthy or undetermined: lines that only look alarming, and errors that no pattern knows."""

from __future__ import annotations

import pytest

from diag.hang.classes import hits_of
from diag.hang.reason import reason
from tests.hang.reason.builders import Job


@pytest.mark.parametrize(
    "text",
    [
        "Failed to open libibverbs.so[.1]",
        "Could not find a path for pattern 4, falling back to simple order",
        "P2P is disabled between connected GPUs 0 and 1.",
    ],
)
@pytest.mark.parametrize("trains", [True, False])
def test_what_looks_alarming_blames_nobody_and_steps_behind_it_are_named(text: str, trains: bool) -> None:
    """Without a clock nothing shows that the job goes on after them."""
    job = Job()
    job.communicate()
    job.warn(0, text)
    if trains:
        job.say("step 120 loss 2.31", 0)
        job.say("step 121 loss 2.29", 0)
        job.say("step 122 loss 2.30", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert ("Work goes on up to the last line" in triage.headline) is trains


def test_steps_of_a_group_that_is_not_whole_are_no_sign_of_health() -> None:
    """Three of four ranks are initialised: the step may be of the run before."""
    job = Job()
    job.communicate(started=[0, 1, 2])
    job.say("step 120 loss 2.31", 0)
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())


def test_only_harmless_lines_are_undetermined() -> None:
    job = Job()
    job.info(0, "Failed to open libibverbs.so[.1]")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits) == ("undetermined", ())
    assert triage.next_steps


def test_one_failed_read_of_the_store_before_an_orderly_end_is_healthy() -> None:
    job = Job()
    job.say("recvValue failed on SocketImpl(fd=3, addr=[a]:1, remote=[b]:2): Connection reset by peer", 1)
    job.communicate(ended="destroyed")
    assert reason(job.logs()).fault_class == "healthy"


def test_an_unknown_warning_is_not_healthy() -> None:
    job = Job()
    job.communicate()
    job.warn(1, "Something that no version is known to print")
    triage = reason(job.logs())
    assert triage.fault_class == "undetermined"
    assert "Something that no version is known to print" in triage.evidence[0].text


def test_an_error_that_is_only_mentioned_is_no_exception() -> None:
    job = Job()
    job.communicate()
    job.say("ValueError: skipped a bad sample", 2)
    assert reason(job.logs()).culprits == ()


NOT_KNOWN = "No known log pattern matches. The last error in the logs: "


def test_an_error_that_no_pattern_knows_is_quoted() -> None:
    job = Job(known_world=False)
    job.say("mylib.errors.PoolError: 3 of 8 workers left", path="train.log")
    job.say("accelerate: error: unrecognized arguments: --turns", source="launcher")
    triage = reason(job.logs())
    assert (triage.fault_class, triage.culprits, triage.confidence) == ("undetermined", (), 0.3)
    assert triage.headline == f"{NOT_KNOWN}mylib.errors.PoolError: 3 of 8 workers left"
    assert {line.path for line in triage.evidence} == {"launcher.log", "train.log"}


def test_a_launchers_error_is_quoted_where_no_exception_was_read() -> None:
    job = Job()
    job.say("accelerate: error: unrecognized arguments: --turns", source="launcher")
    assert reason(job.logs()).headline == f"{NOT_KNOWN}accelerate: error: unrecognized arguments: --turns"


def test_what_torch_quotes_of_nccl_says_more_than_its_exception() -> None:
    job = Job(known_world=False)
    for text in (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2615, unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "Last error:",
        "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection",
    ):
        job.say(text, source="python")
    expected = f"{NOT_KNOWN}[Service thread] Error encountered progressing operation=Connect, res=3, closing connection"
    assert reason(job.logs()).headline == expected


def test_an_error_that_the_job_survived_is_not_quoted() -> None:
    job = Job(known_world=False)
    job.say("OSError: cannot read the cache", 0, source="python")
    job.say("step 120 loss 2.31", 0)
    assert NOT_KNOWN not in reason(job.logs()).headline


def test_notices_that_hung_runs_print_as_well_are_no_sign_of_health() -> None:
    for text in (
        "using GPU 0 as device used by this process is currently unknown. This can potentially cause a hang",
        "[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
    ):
        job = Job(known_world=False)
        job.say(text, 0)
        headline = "The logs hold only lines that healthy runs also print, and no training step or end of the job."
        assert reason(job.logs()).headline == headline
        job.say("step 120 loss 2.31", 0)
        assert reason(job.logs()).fault_class == "undetermined"


def test_fewer_peers_than_expected_are_not_harmless() -> None:
    job = Job()
    job.say("[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 13", 0)
    assert hits_of(job.lines) == []
