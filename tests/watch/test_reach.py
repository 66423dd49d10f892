"""Ranks are asked where they look: in the run directory that was given, or through the packers of a packed run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diag.errors import DiagError
from diag.watch.reach import Reach
from tests.pieces import recorded, split


@pytest.mark.parametrize("way", ["{0}", "{0}/", "{0}/../run", "../{1}"])
def test_a_folder_is_asked_in_place(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path / "run")
    monkeypatch.chdir(run.ranks_folder)
    reach = Reach(way.format(run.root, os.curdir))
    reach.layout.asked.write_text("{}")
    reach.hand_on(reach.layout.asked)
    assert run.asked.is_file()
    assert not (run.root / "requests.json").exists()
    reach.take_back(reach.layout.asked)
    assert not run.asked.exists()


def test_pieces_joined_elsewhere_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAG_CACHE", str(tmp_path / "cache"))
    split(recorded(tmp_path / "whole"), tmp_path / "pieces", [(0, 1), (2, 3)])
    with pytest.raises(DiagError, match="cannot be asked"):
        Reach(str(tmp_path / "pieces"))
