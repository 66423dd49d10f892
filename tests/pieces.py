"""Pieces of a recorded run: what each node keeps where no storage is shared."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from diag.collectors.layout import RunLayout


def split(run: RunLayout, folder: Path, ranks: Sequence[Sequence[int]]) -> list[RunLayout]:
    """Run directories node0, node1, ... with these ranks of the run each; the manifest is in the first."""
    pieces = []
    for number, of_node in enumerate(ranks):
        piece = RunLayout(folder / f"node{number}")
        piece.ranks_folder.mkdir(parents=True)
        for rank in of_node:
            shutil.copytree(run.rank(rank).folder, piece.rank(rank).folder)
        if not number:
            shutil.copy(run.manifest, piece.manifest)
        pieces.append(piece)
    return pieces
