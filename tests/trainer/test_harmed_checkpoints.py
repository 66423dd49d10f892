"""A kill at any point of saving leaves a good checkpoint, and a disk that fails costs no training."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diag.collectors.trainer.checkpoint.folder import find
from diag.collectors.trainer.options import TrainerOptions
from tests.matrix import chosen, matrix
from tests.trainer.harmed_run import FULL, MOMENTS
from tests.trainer.launching import launch

HERE = Path(__file__).parent
RUN = {
    "strategy": "fsdp2", "steps": 8, "num_workers": 0, "batch_size": 2, "seq_len": 32, "checkpoint_every": 2,
    "keep_checkpoints": 1,
}  # fmt: skip
OLD, NEW, DRAFT = "step-00000002", "step-00000004", ".step-00000004.draft"
LEFT = {
    "in a shard": [DRAFT, "latest", OLD],
    "between shards and manifest": [DRAFT, "latest", OLD],
    "between manifest and name": [DRAFT, "latest", OLD],
    "between name and latest": ["latest", OLD, NEW],
    "while an old one is removed": [f".{OLD}.removed", "latest", NEW],
}


def names_in(folder: Path) -> list[str]:
    """Without the run's name in those of drafts, and without the draft that the other rank may begin for the next
    checkpoint before it is ended too."""
    names = sorted(re.sub(r"\.\w+\.draft$", ".draft", path.name) for path in folder.iterdir())
    return [name for name in names if name != ".step-00000006.draft"]


def losses_in(text: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"step (\d+)  loss ([\d.]+)", text)}


def harmed(how: str, folder: Path, **options: object) -> tuple[int, dict[int, str], str]:
    """Exit code, losses and what was said."""
    asked = TrainerOptions.from_json(json.dumps({**RUN, "checkpoint_dir": str(folder), **options}))
    ended = launch([str(HERE / "harmed_run.py"), how, asked.to_json()])
    return ended.returncode, losses_in(ended.stdout), ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of runs that were killed in each of the moments."""
    found = {}
    for how in chosen(request, "how"):
        found[how] = tmp_path_factory.mktemp("killed")
        code, losses, said = harmed(how, found[how])
        assert code != 0, how
        assert re.search(r"exitcode\s*: -9", said), said[-3000:]
        assert 2 in losses
        assert names_in(found[how]) == LEFT[how], how
        assert find(found[how]).manifest.steps == (2 if OLD in LEFT[how] else 4)
    return found


@pytest.fixture(scope="module")
def after_them(killed: dict[str, Path]) -> tuple[dict[int, str], dict[str, dict[int, str]]]:
    """The losses of an uninterrupted run, and of those that go on from what the killed ones left."""
    runs = [{**RUN, "checkpoint_every": 0}]
    runs += [{**RUN, "resume": str(folder), "checkpoint_dir": str(folder)} for folder in killed.values()]
    ended = launch([str(HERE / "several_runs.py"), json.dumps(runs)])
    assert ended.returncode == 0, ended.stderr[-3000:]
    whole, *parts = (losses_in(part) for part in re.split(r"^run \d+$", ended.stdout, flags=re.MULTILINE)[1:])
    return whole, dict(zip(killed, parts, strict=True))


@pytest.mark.parametrize("how", matrix(MOMENTS, ["in a shard", "between name and latest"]))
def test_a_run_that_was_killed_while_saving_goes_on_as_if_it_had_not_been(
    how: str, after_them: tuple[dict[int, str], dict[str, dict[int, str]]], killed: dict[str, Path]
) -> None:
    whole, resumed = after_them
    assert resumed[how] == {step: loss for step, loss in whole.items() if step >= min(resumed[how])}
    assert min(resumed[how]) == (2 if OLD in LEFT[how] else 4)
    assert max(resumed[how]) == 7
    assert names_in(killed[how]) == ["latest", "step-00000008"]


def test_what_cannot_be_saved_costs_one_checkpoint_and_no_step(tmp_path: Path) -> None:
    code, losses, said = harmed(FULL, tmp_path, keep_checkpoints=9)
    assert code == 0, said[-3000:]
    assert list(losses) == list(range(8))
    assert names_in(tmp_path) == ["latest", "step-00000002", "step-00000006", "step-00000008"]
    warning = (
        r"the checkpoint after 4 steps could not be saved: rank 1: OSError: .+ File too large\. Training goes on; "
    )
    assert re.findall(r"diag: WARNING: " + warning + r"the last complete one of this run: (\S+)", said) == [
        "step-00000002"
    ]
    assert find(tmp_path).manifest.steps == 8


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, losses, said = harmed(FULL, tmp_path / "file" / "checkpoints")
    assert code != 0
    assert losses == {}
    assert re.search(r"checkpoints cannot be written to \S+: Not a directory. Give another --checkpoint-dir", said)
