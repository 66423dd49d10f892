"""Which checkpoint a resume takes, whatever kills and disks have left of the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.collectors.trainer.checkpoint import folder
from diag.collectors.trainer.checkpoint.folder import NAME
from diag.collectors.trainer.keys import OptionError
from tests.trainer.checkpoints import make


def steps_found(path: Path) -> int:
    return folder.find(path).manifest.steps


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for steps in (4, 8, 12):
        folder.point_latest(make(tmp_path, steps))
    return tmp_path


@pytest.mark.parametrize("where", ["", "latest", "step-00000012"])
def test_the_newest_is_found_by_its_folder_by_latest_and_by_name(three: Path, where: str) -> None:
    assert steps_found(three / where) == 12


def test_a_run_directory_is_searched_in_its_own_folder_of_checkpoints(three: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in sorted(three.glob("*")):
        if path != run:
            (run / folder.OF_RUN).mkdir(exist_ok=True)
            shutil.move(path, run / folder.OF_RUN / path.name)
    assert steps_found(run) == 12


def test_latest_counts_and_not_the_number(three: Path) -> None:
    folder.point_latest(three / "step-00000008")
    assert steps_found(three) == 8


@pytest.mark.parametrize("latest", [None, "", "step-00000016", "../../etc", "\x00", "step-00000012.old"])
def test_without_a_good_latest_it_is_the_newest_complete_one(three: Path, latest: str | None) -> None:
    (three / folder.LATEST).unlink()
    if latest is not None:
        (three / folder.LATEST).write_text(latest)
    assert steps_found(three) == 12


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: Path) -> None:
    path.write_bytes(b"X" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        (NAME, Path.unlink, "it has no manifest.json: saving was not finished"),
        (NAME, cut, "manifest.json is damaged"),
        ("__0_0.distcp", Path.unlink, r"__0_0.distcp is missing \(No such file"),
        ("__0_0.distcp", cut, "__0_0.distcp has 499 bytes instead of 500"),
        ("rank-00000.json", change, "rank-00000.json was changed after it was saved"),
        (".metadata", change, ".metadata was changed after it was saved"),
    ],
)
def test_a_damaged_one_is_refused_by_name_and_passed_over_otherwise(
    three: Path, name: str, harm: Callable[[Path], None], reason: str
) -> None:
    newest = three / "step-00000012"
    if (name, harm) == (NAME, cut):
        (newest / name).write_bytes((newest / name).read_bytes()[:50])
    else:
        harm(newest / name)
    assert steps_found(three) == 8
    with pytest.raises(OptionError, match=reason):
        folder.find(newest)


def test_where_nothing_is_complete_the_reasons_are_told(three: Path, tmp_path: Path) -> None:
    for path in three.glob("step-*"):
        (path / NAME).unlink()
    with pytest.raises(OptionError, match=r"no complete checkpoint \(step-00000012: it has no manifest"):
        folder.find(three)
    with pytest.raises(OptionError, match="no such folder"):
        folder.find(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="holds no complete checkpoint"):
        folder.find(tmp_path / "empty" / "latest")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "does not describe a checkpoint"),
        ('{"run_id": "x"}', "does not describe a checkpoint"),
        ('{"checkpoint_format": 2}', "its format is 2; this version of diag reads formats up to 1"),
        ('{"checkpoint_format": 1, "steps": 3}', "is incomplete"),
    ],
)
def test_a_strange_manifest_is_no_checkpoint(three: Path, text: str, reason: str) -> None:
    (three / "step-00000012" / NAME).write_text(text)
    with pytest.raises(OptionError, match=reason):
        folder.find(three / "step-00000012")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b"])
def test_a_manifest_names_no_file_outside_of_its_folder(three: Path, name: str) -> None:
    path = three / "step-00000012" / NAME
    path.write_text(path.read_text().replace("rank-00000.json", name))
    with pytest.raises(OptionError, match="outside of its folder"):
        folder.find(three / "step-00000012")


def test_an_unfinished_one_is_not_seen_and_cleared_away(three: Path) -> None:
    draft = folder.draft_of(three, 16, "killed")
    shutil.copytree(three / "step-00000012", draft)
    assert steps_found(three) == 12
    folder.clear_drafts(three)
    assert sorted(path.name for path in three.iterdir()) == [
        "latest", "step-00000004", "step-00000008", "step-00000012",
    ]  # fmt: skip


def test_old_ones_go_and_the_newest_stay(three: Path) -> None:
    folder.prune(three / "step-00000012", keep=2)
    assert sorted(path.name for path in three.iterdir()) == ["latest", "step-00000008", "step-00000012"]


def test_a_folder_that_cannot_be_listed_is_left_as_it_is(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new checkpoint is complete by then: an error would report it as failed."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        folder.prune(three / "step-00000012", keep=1)
        folder.point_latest(make(three, 16))
    assert steps_found(three) == 16
    assert (three / "step-00000004").exists()


def test_after_a_resume_from_an_earlier_step_the_new_one_stays_though_its_number_is_lower(three: Path) -> None:
    again = make(three, 8)
    folder.point_latest(again)
    folder.prune(again, keep=1)
    assert sorted(path.name for path in three.iterdir()) == ["latest", "step-00000008", "step-00000012"]
    assert steps_found(three) == 8


def test_saving_a_step_again_replaces_it_and_one_of_the_two_is_always_there(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a resume from before it. Looks whenever a folder changes its name."""
    seen: list[int] = []
    rename = Path.rename

    def watched(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        seen.append(steps_found(three))
        return renamed

    for old in ("step-00000004", "step-00000008"):
        shutil.rmtree(three / old)
    monkeypatch.setattr(Path, "rename", watched)
    make(three, 12, ranks=4)
    assert seen == [12] * 3
    assert folder.find(three).manifest.world_size == 4
    assert sorted(path.name for path in three.iterdir()) == ["latest", "step-00000012"]
