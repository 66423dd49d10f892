"""What ranks recorded beside their summaries, around the steps of these: of few ranks everything, of all hosts what
they counted. Nothing is read before it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from diag.collectors.layout import RankLayout, RunLayout, parts_of
from diag.collectors.reading import open_regular
from diag.collectors.records import STEP, DeviceRecord, HostRecord, NumberRecord, RankRecord, StepRecord
from diag.collectors.step_places import UnorderedError, lines_of
from diag.model import Gap
from diag.rundir.policy import BLOCKS, RUN_READING, SILENCE

from .columns import NO_ROWS, NO_STEPS, Steps, StepsBuilder
from .host_lines import HostLines
from .lines import each_piece, read_last_lines, read_lines
from .machines import Machines
from .numbers import read_numbers
from .step_lines import CollectiveLines
from .summaries import NS_PER_US, Summaries
from .tables import RankTables

_Sample = TypeVar("_Sample", DeviceRecord, HostRecord)


class Beside(Struct, frozen=True, dict=True):
    """Of the run that has these summaries."""

    summaries: Summaries

    def machines(self) -> Machines:
        """What all hosts counted."""
        return self._hosts

    def of_ranks(self, ranks: Iterable[int]) -> dict[int, RankTables]:
        """Those of these ranks that have records of most of the steps, with these and what was sampled meanwhile."""
        found = {rank: self._of_rank(rank) for rank in ranks}
        self._read.update({rank: of_rank for rank, of_rank in found.items() if of_rank is not None})
        return dict(self._read)

    def with_samples(self, ranks: Mapping[int, RankTables]) -> dict[int, RankTables]:
        """Those of these ranks of which samples of the device, the host or its counters were read, with these."""
        lines = self._hosts.kept
        return {
            rank: replace(
                ranks[rank],
                device=self._read[rank].device if rank in self._read else (),
                scheduling=self._read[rank].scheduling if rank in self._read else (),
                machine=lines.get(rank, ()),
            )
            for rank in sorted({*self._read, *lines})
        }

    @cached_property
    def _read(self) -> dict[int, RankTables]:
        return {}

    @cached_property
    def _hosts(self) -> HostLines:
        identities = zip(self.summaries.ranks, self.summaries.identities, strict=True)
        return HostLines(RunLayout(self.summaries.root), dict(identities), self._span_ns)

    @cached_property
    def _place(self) -> Mapping[int, int]:
        return {rank: at for at, rank in enumerate(self.summaries.ranks)}

    def _identity(self, rank: int) -> RankRecord:
        return self.summaries.identities[self._place[rank]]

    def _span_ns(self, rank: int) -> tuple[int, int]:
        """When these steps of the rank began and ended, by its host's clock."""
        at = self._place[rank]
        begin_us, last_us = self.summaries.begin_us[at], int(self.summaries.column(STEP)[at, -1])
        return int(begin_us[0]) * NS_PER_US, (int(begin_us[-1]) + last_us) * NS_PER_US

    def _of_rank(self, rank: int) -> RankTables | None:
        files, identity = RunLayout(self.summaries.root).rank(rank), self._identity(rank)
        steps = _steps(files, self.summaries.numbers)
        if 2 * len(steps) < len(self.summaries.numbers):
            return None
        begin_ns = int(steps.begin_ns[0]) - BLOCKS.samples_around_ns
        end_ns = int(steps.end_ns[-1]) + BLOCKS.samples_around_ns

        def samples(stream: Path, kind: type[_Sample]) -> tuple[_Sample, ...]:
            lines, _ = read_last_lines(stream, kind, RUN_READING.beside_tail_bytes)
            return tuple(line for line in lines if begin_ns <= line.monotonic_ns <= end_ns)

        rows, groups = NO_ROWS, dict[str, list[int]]()
        if identity.device == "cpu":  # elsewhere calls do not show how long the host waited
            lines = CollectiveLines(files.collectives, files.run)
            read = lines.of_steps([(int(steps.step[0]), int(steps.step[-1]) + 1)])
            rows, groups = read.rows, read.groups
        device, scheduling = samples(files.device, DeviceRecord), samples(files.host, HostRecord)
        memory = self.summaries.memory.get(rank, ())
        return RankTables(rank, identity, steps, rows, groups, device, scheduling, memory=memory)


def _steps(files: RankLayout, numbers: Sequence[int]) -> Steps:
    """The records of these steps that are there, in order."""
    builder = StepsBuilder()
    with suppress(UnorderedError):
        for part in parts_of(files.steps):
            with suppress(OSError):
                with open_regular(part, files.run) as file:
                    span = lines_of(file, numbers[0], numbers[-1] + 1)
                each_piece(part, StepRecord, builder.add, files.run, span, checks=True)
        steps = builder.built()
        return steps.take(steps.end_ns > steps.begin_ns).of_numbers(numbers).sorted_by("step")
    return NO_STEPS


def numbers_of_many(
    ranks: Mapping[int, RankLayout], with_file: Iterable[int] | None = None
) -> tuple[dict[int, tuple[NumberRecord, ...]], list[Gap]]:
    """What the ranks of a large job recorded, of those that did; of the first few ranks also what their output says, as
    a reduction gives it to all. ``with_file``: the ranks that have a file of it, if their folders were listed
    already."""
    first = dict(islice(ranks.items(), SILENCE.ranks_looked_at))
    read = {rank: read_numbers(files, RUN_READING.tail_bytes) for rank, files in first.items()}
    if with_file is None:
        numbers = RankLayout.numbers
        with_file = [rank for rank, files in ranks.items() if os.path.exists(files.text(numbers))]  # noqa: PTH110
    for rank in with_file:
        if rank in ranks and rank not in first:
            read[rank] = read_lines(ranks[rank].numbers, NumberRecord, ranks[rank].run)
    return {rank: tuple(records) for rank, (records, _) in read.items()}, [
        gap for _, gaps in read.values() for gap in gaps
    ]
