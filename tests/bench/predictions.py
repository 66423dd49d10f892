"""Predicted against measured gains: real trainings on CPU ranks, every change that the knobs propose, in turns.

    python -m tests.bench.predictions [--only NAME ...] [--repeats 3] [--steps 48] [--out FILE] [--markdown FILE]

Each training is run without a change, and with each change that an option of ``diag run`` makes, also those whose
predicted gain is too small to be advised. The prediction comes from the first run alone. Results are appended to the
file (one JSON a line) as they come; run it again and it goes on. Ends with the table, the mean error of the likely
gain as a part of the step, and how often the sign was right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from diag.api import open_run
from diag.replay.advice import changed_arguments
from diag.replay.case import Candidate, Case, sizes_of
from diag.replay.knobs import KNOBS
from diag.replay.policy import ADVICE
from diag.replay.predict import baseline, gain
from diag.replay.program import Refusal
from diag.tune.loop import Series, measured, train
from diag.tune.loop import gain as measured_gain

_PAGE = """# Predicted and measured gains

Trainings of the bundled trainer on CPU ranks with gloo, the wire emulated (`slow-wire` sleeps), by
`python -m tests.bench.predictions`. The prediction comes from one run, the measurement from three runs with the change
and three without, in turns. Milliseconds a step, 95 % intervals in brackets; *off*: the likely gain, as a part of the
step; *open*: equal runs differ by more than the change. The predicted interval is that of the fitted costs, wider by
5 % of the step and 10 % of the gain (in quadrature), which is what it took for such measurements to lie inside."""
_TINY = ("--nproc", "2", "--trace-active", "1")
_SMALL = (*_TINY, "--preset", "small", "--batch-size", "1", "--seq-len", "64", "--steps", "24")
_LONG = (*_TINY, "--preset", "small", "--batch-size", "2", "--steps", "16")
TRAININGS: dict[str, tuple[str, ...]] = {
    "loader, ddp": (*_TINY, "--strategy", "ddp", "--inject", "slow-loader:ms=150"),
    "loader, ddp, 60 ms": (*_TINY, "--strategy", "ddp", "--inject", "slow-loader:ms=60"),
    "loader, fsdp2": (*_TINY, "--strategy", "fsdp2", "--inject", "slow-loader:ms=250"),
    "wire": (*_TINY, "--strategy", "fsdp2", "--inject", "slow-wire"),
    "wire, more latency": (*_TINY, "--strategy", "fsdp2", "--inject", "slow-wire:ms=12,mbps=2000"),
    "wire, larger model": (*_SMALL, "--strategy", "fsdp2", "--inject", "slow-wire:ms=5,mbps=8000"),
    "root only": (*_LONG, "--strategy", "fsdp2", "--wrap", "root", "--inject", "slow-wire:ms=1,mbps=3000"),
    "per linear": (*_SMALL, "--strategy", "fsdp2", "--wrap", "linear", "--inject", "slow-wire:ms=2,mbps=16000"),
    "every micro-batch": (
        *(*_TINY, "--strategy", "ddp", "--micro-batches", "4", "--grad-sync", "every", "--inject", "slow-wire:ms=8"),
    ),
    "every micro-batch, fsdp2": (
        *(*_TINY, "--strategy", "fsdp2", "--micro-batches", "2", "--grad-sync", "every", "--inject", "slow-wire:ms=6"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A training and a change of it. Nanoseconds a step; intervals are (low, likely, high)."""

    training: str
    change: str
    settings: dict[str, str | int]
    step_ns: int
    replay_error: float
    predicted_ns: tuple[int, int, int]
    measured_ns: tuple[int, int, int]

    @property
    def error(self) -> float:
        return abs(self.predicted_ns[1] - self.measured_ns[1]) / self.step_ns

    @property
    def advised(self) -> bool:
        """Whether it is predicted to gain enough to be advised, if the memory allows it."""
        return self.predicted_ns[1] >= ADVICE.least_gain_share * self.step_ns

    @property
    def decided(self) -> bool:
        """Whether the measurement says whether the change gains or costs."""
        return not self.measured_ns[0] <= 0 <= self.measured_ns[2]

    @property
    def right_sign(self) -> bool:
        return (self.predicted_ns[1] > 0) == (self.measured_ns[1] > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=(), help="only these trainings")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("predictions.jsonl"))
    parser.add_argument("--markdown", type=Path, help="write the table of all that was measured to this file")
    options = parser.parse_args()
    done = list(_read(options.out))
    for name, arguments in TRAININGS.items():
        if (not options.only or name in options.only) and name not in {pair.training for pair in done}:
            found = measure(name, ("--steps", str(options.steps), *arguments), options.repeats)
            with options.out.open("a") as file:
                file.writelines(json.dumps(pair.__dict__) + "\n" for pair in found)
            done += found
            print(table(found), flush=True)
    print("\n" + table(done) + "\n" + summary(done))
    if options.markdown is not None:
        options.markdown.write_text(markdown(done))


def measure(name: str, arguments: tuple[str, ...], repeats: int) -> list[Pair]:
    """Every proposed change of this training, predicted from one run of it and measured in several of both."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        _must(train(changed_arguments(arguments, {}), first))
        result = open_run(first)
        base = baseline(result.attribution, result.tables)
        if isinstance(base, Refusal):
            print(f"{name}: {base.reason}")
            return []
        case = Case(result.attribution, result.tables, result.examination, base.program, sizes_of(base.program))
        changes = [c for propose in KNOBS.values() for c in propose(case) if c.settings]
        predicted = {change.id: gain(base, change.mutation) for change in changes}
        changes = [change for change in changes if predicted[change.id].refused is None]
        times: dict[str, list[Series]] = {"": [measured(result)[0]], **{change.id: [] for change in changes}}
        for turn in range(repeats):
            for change in _in_turn(changes, turn):
                key, settings = (change.id, change.settings) if change is not None else ("", {})
                if len(times[key]) <= turn:
                    into = Path(folder) / f"{key or 'without'}-{turn}"
                    _must(train(changed_arguments(arguments, settings), into))
                    times[key].append(measured(open_run(into))[0])
        without = times.pop("")
        return [
            Pair(
                name,
                change.change,
                dict(change.settings),
                round(float(np.mean([series.mean() for series in without]))),
                base.error,
                predicted[change.id].expected_ns_per_step,
                tuple(measured_gain(without, times[change.id])),
            )
            for change in changes
        ]


def _in_turn(changes: list[Candidate], turn: int) -> Iterator[Candidate | None]:
    order: list[Candidate | None] = [None, *changes]
    yield from order if turn % 2 == 0 else reversed(order)


def _must(failed: str) -> None:
    if failed:
        raise SystemExit(f"a training failed: {failed}")


def _read(path: Path) -> Iterator[Pair]:
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield Pair(**(row | {key: tuple(row[key]) for key in ("predicted_ns", "measured_ns")}))


def table(pairs: list[Pair]) -> str:
    lines = [f"{'training':26}{'change':34}{'step':>8}{'predicted':>24}{'measured':>24}{'off':>8}  sign"]
    for pair in pairs:
        settings = ", ".join(f"{key}={value}" for key, value in pair.settings.items())
        lines.append(
            f"{pair.training:26}{settings[:33]:34}{pair.step_ns / 1e6:8.1f}{_range(pair.predicted_ns):>24}"
            f"{_range(pair.measured_ns):>24}{pair.error:8.1%}  {_sign(pair)}"
        )
    return "\n".join(lines)


def markdown(pairs: list[Pair]) -> str:
    lines = [*_PAGE.splitlines(), "", f"{summary(pairs)}.", ""]
    lines += ["| training | change | step | predicted | measured | off | sign |", "|---|---|---:|---:|---:|---:|---|"]
    for pair in pairs:
        settings = ", ".join(f"{key}={value}" for key, value in pair.settings.items())
        cells = (pair.training, settings, f"{pair.step_ns / 1e6:.0f}", _range(pair.predicted_ns))
        lines.append(f"| {' | '.join(cells)} | {_range(pair.measured_ns)} | {pair.error:.1%} | {_sign(pair)} |")
    return "\n".join(lines) + "\n"


def _sign(pair: Pair) -> str:
    """ "open" where equal runs differ by more than the change."""
    return "right" if pair.right_sign else "wrong" if pair.decided else "open"


def _range(gain_ns: tuple[int, int, int]) -> str:
    low, likely, high = (value / 1e6 for value in gain_ns)
    return f"{likely:.1f} [{low:.1f}, {high:.1f}]"


def summary(pairs: list[Pair]) -> str:
    if not pairs:
        return "nothing measured"
    decided = [pair for pair in pairs if pair.decided]
    advised = [pair for pair in pairs if pair.advised]
    inside = sum(p.predicted_ns[0] <= p.measured_ns[1] <= p.predicted_ns[2] for p in pairs)
    return (
        f"{len(pairs)} pairs: mean error {np.mean([p.error for p in pairs]):.1%} of the step, "
        f"median {np.median([p.error for p in pairs]):.1%}; "
        f"right sign in {sum(p.right_sign for p in pairs)} of {len(pairs)}, "
        f"{sum(p.right_sign for p in decided)} of the {len(decided)} whose measurement decides, "
        f"{sum(p.right_sign for p in advised)} of the {len(advised)} that gain enough to be advised; "
        f"measured gain inside the predicted interval in {inside}; "
        f"mean replay error {np.mean([p.replay_error for p in pairs]):.2%}"
    )


if __name__ == "__main__":
    main()
