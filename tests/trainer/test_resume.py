"""A run that goes on from a checkpoint computes what an uninterrupted one would have: the same numbers on the same
topology, the same to rounding on another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from diag.collectors.trainer.checkpoint.folder import CheckpointManifest
from tests.matrix import chosen, matrix
from tests.trainer.launching import launch
from tests.trainer.ways import COMMON, INTERLEAVED, ON_FOUR, ON_TWO, Options

SCRIPT = str(Path(__file__).with_name("several_runs.py"))
STEPS, SAVED = 4, 2
MIDDLE, END = f"step-{SAVED:08d}", f"step-{STEPS:08d}"
ROUNDING = 1e-5  # of losses near 5.5 in fp32; sums in another order

TWO: dict[str, Options] = {
    **{name: ON_TWO[name] for name in (
        "ddp", "zero1", "zero1, bucket views", "fsdp1", "fsdp1, flat parameters", "fsdp1, no_shard", "fsdp2",
        "fsdp2, offload", "tp", "pp, 1f1b",
    )},
    "fsdp2, root, warm-up": {**ON_TWO["fsdp2"], "wrap": "root", "warmup_steps": 3},
    "fsdp2, in the foreground": {**ON_TWO["fsdp2"], "checkpoint_async": False},
    "ddp, loader processes": {**ON_TWO["ddp"], "num_workers": 2},
    "fsdp2, bf16": {**ON_TWO["fsdp2"], "precision": "bf16"},
    "pp, interleaved": INTERLEAVED["pp, interleaved"],
}  # fmt: skip
FOUR: dict[str, Options] = dict(ON_FOUR)

# What was saved by the first goes on as the second; all take the same four sequences in a step.
ACROSS_TWO = [
    ("fsdp2", "ddp"), ("ddp", "fsdp2"), ("zero1", "fsdp2"), ("fsdp2", "zero1"), ("fsdp1", "fsdp2"), ("fsdp2", "fsdp1"),
    ("ddp", "fsdp1, flat parameters"), ("tp", "ddp"), ("ddp", "tp"), ("pp, 1f1b", "fsdp2"), ("zero1", "pp, 1f1b"),
]  # fmt: skip
ON_ONE: dict[str, Options] = {
    "ddp": {"strategy": "ddp", "batch_size": 4},
    "fsdp2": {"strategy": "fsdp2", "batch_size": 4},
    "fsdp2, two micro-batches": {"strategy": "fsdp2", "batch_size": 2, "micro_batches": 2},
}
TO_ONE = [("fsdp2", "fsdp2"), ("fsdp2", "fsdp2, two micro-batches"), ("zero1", "ddp"), ("tp", "fsdp2")]
TO_FOUR = [("fsdp2", "hsdp"), ("pp, 1f1b", "fsdp2 x tp"), ("ddp", "pp x zero1")]
FOUR_TO_TWO = [("hsdp", "fsdp2"), ("pp x fsdp2", "zero1"), ("fsdp1, hybrid", "ddp"), ("fsdp2 x tp", "fsdp1")]

Losses = list[tuple[int, str]]


def train(ranks: int, runs: Mapping[str, Options]) -> tuple[dict[str, Losses], str]:
    """(step, loss as printed) of each run, all in one launch, and all that was printed."""
    ended = launch([SCRIPT, json.dumps([{**COMMON, "steps": STEPS, **run} for run in runs.values()])], ranks=ranks)
    assert ended.returncode == 0, ended.stderr[-5000:]
    parts = re.split(r"^run \d+$", ended.stdout, flags=re.MULTILINE)[1:]
    found = {
        name: [(int(step), loss) for step, loss in re.findall(r"step (\d+)  loss ([\d.]+)", part)]
        for name, part in zip(runs, parts, strict=True)
    }
    return found, ended.stdout


def twice(ways: Mapping[str, Options], root: Path) -> dict[str, Options]:
    """Each way from the beginning, and once more from the middle; both save."""
    runs: dict[str, Options] = {}
    for name, options in ways.items():
        saving = {**options, "checkpoint_every": SAVED}
        runs[name] = {**saving, "checkpoint_dir": str(root / name)}
        resumed = str(root / name / MIDDLE)
        runs[f"{name}, again"] = {**saving, "checkpoint_dir": str(root / f"{name}, again"), "resume": resumed}
    return runs


def differing(ways: Iterable[str], root: Path) -> dict[str, list[str]]:
    """Of each way the files of the last checkpoint that the uninterrupted and the resumed run do not have alike.

    The metadata holds the name of its saving, the manifest its time.
    """
    found: dict[str, list[str]] = {}
    for name in ways:
        once, again = root / name / END, root / f"{name}, again" / END
        assert sorted(path.name for path in once.iterdir()) == sorted(path.name for path in again.iterdir())
        for path in filter(Path.is_file, once.rglob("*")):
            if not same(path, again / path.relative_to(once)) and path.name not in (".metadata", "manifest.json"):
                found.setdefault(name, []).append(path.name)
        was, now = CheckpointManifest.read(once), CheckpointManifest.read(again)
        for field in ("cursor", "consumed", "optimizer", "scheduler", "data", "model", "mesh"):
            if getattr(was, field) != getattr(now, field):
                found.setdefault(name, []).append(field)
    return found


def same(one: Path, other: Path) -> bool:
    """Of DeepSpeed's pickles the tensors in them: equal ones can be written differently."""
    if one.suffix != ".pt":
        return one.read_bytes() == other.read_bytes()
    trees = [tree_leaves(torch.load(path, weights_only=False)) for path in (one, other)]
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in trees]
    return len(tensors[0]) > 0 and all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def on_two(request: pytest.FixtureRequest, root: Path) -> dict[str, Losses]:
    pairs = chosen(request, "pair")
    across = {
        f"{was} -> {now}": {**TWO[now], "resume": str(root / was / MIDDLE), "checkpoint_every": 0} for was, now in pairs
    }
    names = {*chosen(request, "name"), *(was for was, _ in pairs)}
    if any(item.get_closest_marker("matrix") for item in request.session.items if item.path == request.path):
        names = {*TWO}
    return train(2, {**twice({name: TWO[name] for name in TWO if name in names}, root), **across})[0]


@pytest.fixture(scope="module")
def on_four(root: Path, on_two: dict[str, Losses]) -> dict[str, Losses]:
    across = {f"{was} -> {now}": {**FOUR[now], "resume": str(root / was / MIDDLE)} for was, now in TO_FOUR}
    return train(4, {**twice(FOUR, root), **across})[0]


def numbers(losses: Losses) -> list[float]:
    return [float(loss) for _, loss in losses]


def far_from(expected: Mapping[str, Losses], found: Mapping[str, Losses]) -> dict[str, list[float]]:
    """Runs whose steps after the checkpoint are not those of the run that saved it."""
    wrong = {}
    for name, losses in found.items():
        was = expected[name.partition(" -> ")[0]]
        if numbers(losses) != pytest.approx(numbers(was[SAVED:]), abs=ROUNDING) or losses[0][0] != SAVED:
            wrong[name] = numbers(losses)
    return wrong


@pytest.mark.parametrize("name", matrix(TWO, ["ddp", "zero1", "fsdp2", "pp, 1f1b"]))
def test_on_the_same_two_ranks_all_is_equal_to_the_last_bit(on_two: dict[str, Losses], root: Path, name: str) -> None:
    assert on_two[f"{name}, again"] == on_two[name][SAVED:]
    assert differing([name], root) == {}


@pytest.mark.matrix
def test_on_the_same_four_ranks_all_is_equal_to_the_last_bit(on_four: dict[str, Losses], root: Path) -> None:
    for name in FOUR:
        assert on_four[f"{name}, again"] == on_four[name][SAVED:], name
    assert differing(FOUR, root) == {}


@pytest.mark.parametrize("pair", matrix(ACROSS_TWO, [("fsdp2", "ddp"), ("ddp", "fsdp2")]), ids=" to ".join)
def test_another_strategy_goes_on_with_the_same_losses(on_two: dict[str, Losses], pair: tuple[str, str]) -> None:
    name = " -> ".join(pair)
    assert far_from(on_two, {name: on_two[name]}) == {}


@pytest.mark.matrix
def test_four_ranks_go_on_from_two(on_two: dict[str, Losses], on_four: dict[str, Losses]) -> None:
    assert far_from(on_two, {name: on_four[name] for name in on_four if " -> " in name}) == {}


@pytest.mark.matrix
def test_two_ranks_go_on_from_four(on_four: dict[str, Losses], root: Path) -> None:
    runs = {f"{was} -> {now}": {**TWO[now], "resume": str(root / was / MIDDLE)} for was, now in FOUR_TO_TWO}
    assert far_from(on_four, train(2, runs)[0]) == {}


@pytest.mark.matrix
def test_one_rank_goes_on_from_two(on_two: dict[str, Losses], root: Path) -> None:
    runs = {f"{was} -> {now}": {**ON_ONE[now], "resume": str(root / was / MIDDLE)} for was, now in TO_ONE}
    found, said = train(1, runs)
    assert far_from(on_two, found) == {}
    assert "fsdp2 on 2 ranks before, now fsdp2 on 1 rank: the order of floating-point sums differs" in said


@pytest.mark.matrix
def test_deepspeed_goes_on_in_its_own_format(root: Path) -> None:
    pytest.importorskip("deepspeed", reason="the extra diag[deepspeed] is not installed")
    ways = {
        "deepspeed 1, warm-up": {**ON_TWO["deepspeed 1"], "warmup_steps": 3},
        "deepspeed 2": ON_TWO["deepspeed 2"],
        "deepspeed 3": ON_TWO["deepspeed 3"],
    }
    found, _ = train(2, twice(ways, root))
    for name in ways:
        assert found[f"{name}, again"] == found[name][SAVED:], name
    assert differing(ways, root) == {}


@pytest.mark.matrix
def test_the_learning_rate_rises_over_the_warm_up(on_two: dict[str, Losses], root: Path) -> None:
    """So that what the resumed run restores is something."""
    rates = {
        steps: CheckpointManifest.read(root / "fsdp2, root, warm-up" / f"step-{steps:08d}").optimizer["groups"][0]["lr"]
        for steps in (SAVED, STEPS)
    }
    assert rates == {SAVED: pytest.approx(3e-4), STEPS: pytest.approx(3e-4)}
    assert numbers(on_two["fsdp2, root, warm-up"])[1:] != numbers(on_two["fsdp2"])[1:]
