"""What is typed or asked for in the page's address stays inside the folder that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.app.address import inside


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").mkdir()
    found = tmp_path / "runs"
    (found / "one").mkdir(parents=True)
    (found / "link").symlink_to(tmp_path / "secret")
    return found


def test_a_path_inside(folder: Path) -> None:
    for typed in ("one", "./one", "not there/../one", str(folder / "one"), "one/not there"):
        assert inside(folder, typed) == (folder / typed).resolve()


@pytest.mark.parametrize("typed", ["../secret", "{}/secret", "link", "/etc", "one/../../secret", "a\0b"])
def test_no_path_leads_out(folder: Path, typed: str) -> None:
    assert inside(folder, typed.format(folder.parent)) is None
