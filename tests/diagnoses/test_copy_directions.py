"""Exposed copies are named by their direction, and pinned memory is not advised where it is in use already."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import open_run
from diag.model.steps import Finding
from tests.account.kineto_builder import KinetoBuilder

MS = 1_000_000
STEPS = 6


def finding(folder: Path, *names: str) -> Finding:
    """Of steps in which copies of these names take half of the time, while nothing else runs."""
    build = KinetoBuilder(world_size=1)
    for number in range(STEPS):
        begin = number * 20 * MS
        build.step(number, begin, begin + 20 * MS, "ProfilerStep#")
        for position, name in enumerate(names):
            at = begin + position * 10 * MS // len(names)
            build.copy(at, at + 10 * MS // len(names), launch=begin)
            build.events[-1]["name"] = name
        build.kernel(begin + 10 * MS, begin + 20 * MS, launch=begin + MS)
    for event in build.events:  # copies are an event and its call
        assert event["name"]
    (copied,) = [f for f in open_run(build.write(folder)).examination.findings if f.id == "exposed-copy"]
    return copied


PINNED, PAGEABLE = "pinned memory already", "pinned memory ("


@pytest.mark.parametrize(
    ("name", "direction", "said", "unsaid"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "from the host", PAGEABLE, "already"),
        ("Memcpy HtoD (Pinned -> Device)", "from the host", PINNED, "pin_memory=True"),
        ("Memcpy HtoD (Host -> Device)", "from the host", PAGEABLE, "already"),  # ROCm
        ("Memcpy DtoH (Device -> Pageable)", "to the host", "less often", "already"),
        ("Memcpy DtoH (Device -> Pinned)", "to the host", PINNED, "into pinned"),
        ("Memcpy DtoH (Device -> Host)", "to the host", "less often", "already"),
        ("CopyHostToDevice", "from the host", PAGEABLE, "already"),  # roctracer
        ("CopyDeviceToHost", "to the host", "less often", "already"),
        ("Memcpy M2D (Memory->Device)", "from the host", PAGEABLE, "already"),  # Intel
        ("zeCommandListAppendMemoryCopy(H2D)", "from the host", PINNED, "pin_memory=True"),
        ("zeCommandListAppendMemoryCopy(D2H)", "to the host", PINNED, "into pinned"),
        ("memcpy_d2m", "to the host", "less often", "already"),
        ("MEMCPY_ASYNC", "between host and device", PAGEABLE, "already"),
    ],
)
def test_a_copy_is_named_by_its_direction(name: str, direction: str, said: str, unsaid: str, tmp_path: Path) -> None:
    copied = finding(tmp_path, name)
    assert f"waits for copies {direction}: 10.0 ms" in copied.title
    assert said in copied.action
    assert unsaid not in copied.action


def test_copies_in_both_directions_have_both_actions(tmp_path: Path) -> None:
    copied = finding(tmp_path, "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)")
    assert "copies between host and device" in copied.title
    assert "From the host: The copies come from pinned memory already" in copied.action
    assert "To the host: Copy less often" in copied.action


@pytest.mark.parametrize("name", ["Memcpy DtoD (Device -> Device)", "Memcpy AtoD (Array -> Device)", "Memcpy D2D"])
def test_copies_on_the_device_are_its_own_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        finding(tmp_path, name)
