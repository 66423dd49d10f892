"""Logs that nobody wrote honestly: an answer comes, whatever the lines say."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import cycle

import pytest

from diag.hang.classes import CLASSES
from diag.hang.model import Line, Speaker
from diag.hang.reason import reason
from tests.hang.reason.builders import Job
from tests.hang.reason.test_classes import SCENARIOS


def all_lines() -> list[Line]:
    found: list[Line] = []
    for build in SCENARIOS.values():
        job = Job()
        build(job)
        found += job.lines
    return found


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_lines_has_an_answer(seed: int) -> None:
    """Lines of all classes in one file, from anybody or nobody, cut anywhere, at any time."""
    random.seed(seed)
    mixed = []
    for number, line in enumerate(random.sample(all_lines(), 60)):
        cut = random.randrange(len(line.text) + 1) if random.random() < 0.3 else len(line.text)
        speaker = random.choice([line.speaker, Speaker(), Speaker(rank=random.randrange(9)), Speaker(host="x", pid=7)])
        time_ns = random.choice([None, None, random.randrange(10**12)])
        text = line.text[:cut]
        mixed.append(replace(line, path="a", number=number, text=text, raw=text, speaker=speaker, time_ns=time_ns))
    job = Job()
    triage = reason(replace(job.logs(), lines=tuple(mixed), paths=("a",)))
    assert triage.fault_class in CLASSES
    assert 0 <= triage.confidence <= 0.97


def test_numbers_of_thousands_of_digits_are_no_numbers() -> None:
    digits = "9" * 4400  # from 4301 on Python refuses them
    job = Job()
    for line, old in zip(all_lines(), cycle(("1", "3", "100"))):  # each of them takes as long as a thousand lines
        job.say(line.text.replace(old, digits, 1), 0, source=line.source, level=line.level, path="a")
    assert reason(job.logs()).fault_class in CLASSES


@pytest.mark.parametrize(
    "text", ["[Proxy Service " * 500, "A" * 8000, "Error" * 1600, "[" * 8000, "a." * 4000 + "Error"]
)
def test_long_repetitions_do_not_hold_it_up(text: str) -> None:
    job = Job()
    for _ in range(20):
        job.say(text, 0)
    assert reason(job.logs()).fault_class == "undetermined"
