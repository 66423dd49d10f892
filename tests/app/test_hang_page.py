"""The page of the hang triage says what `diag triage` says, of a run's own logs and of a path beside it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from diag.api import state_of
from diag.app.hang_matrix import colours, matrix_of, picture_of_places
from diag.app.markup import plain
from diag.app.standing import Standing, standing_picture
from diag.app.standing import places_of as places_of_ranks
from diag.app.theme import DARK, LIGHT, Theme
from diag.app.views.hang import drawn_groups
from diag.collectors.layout import RunLayout
from diag.hang.api import At, GroupPlaces, Place, investigate, places_of
from diag.hang.ras import live
from diag.words.formatting import spaced
from tests.app.shown import text
from tests.hang.corpus import case
from tests.hang.flight.boards import dump
from tests.hang.ras.reports import Comm, as_json, job, write_run
from tests.hang.ras.reports import text as ras_text
from tests.hang.ras.server import listening, silent, speaks
from tests.hang.rundir.test_well import manifest, run_of
from tests.patience import PATIENCE_S
from tests.rundir.test_standstill import NOW, training, waits_in

ROOT = Path(__file__).parents[1] / "hang" / "captured"


def _page() -> None:
    import sys
    from pathlib import Path

    from diag.app.views import hang

    hang.show(Path(sys.argv[1]), Path(sys.argv[2]))


def shown(root: Path, run: Path, monkeypatch: pytest.MonkeyPatch, **params: str) -> AppTest:
    monkeypatch.setattr("sys.argv", ["main.py", str(root), str(run)])
    test = AppTest.from_function(_page, default_timeout=PATIENCE_S)
    for name, value in params.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, [error.value for error in test.exception]
    return test


def written(folder: Path, fault_class: str, index: int = 0) -> Path:
    """A case of the corpus as a folder."""
    for name, data in case(0, fault_class, index).files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def test_the_page_says_what_the_triage_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = written(tmp_path / "logs", "duplicate_gpu")
    found = investigate([str(logs)]).triage
    said = text(shown(tmp_path, logs, monkeypatch))
    assert plain(found.headline) in said
    for one in found.ruled_out:
        assert plain(one.because) in said
    for sentence in found.coverage:
        assert plain(sentence) in said
    assert "What to do" in said


def test_a_run_that_ended_well_has_nothing_to_triage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = run_of(tmp_path)
    said = text(shown(tmp_path, layout.root, monkeypatch))
    assert "The run ended well" in said
    assert ":green-badge[" in said
    for asked_for in ("What to do", "Ranks in each group", "undetermined"):
        assert asked_for not in said
    manifest(layout, exit_code=None)
    layout.rank(1).heartbeat.unlink()
    said = text(shown(tmp_path, layout.root, monkeypatch))
    assert "ended well" not in said
    assert "undetermined" in said
    assert "What to do" in said


def test_a_path_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    logs = written(tmp_path / "logs", "duplicate_gpu")
    test = shown(tmp_path, tmp_path / "run", monkeypatch, logs="path", path="logs")
    assert plain(investigate([str(logs)]).triage.headline) in text(test)


def test_a_path_that_leads_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown").mkdir()
    written(tmp_path / "logs", "duplicate_gpu")
    test = shown(tmp_path / "shown", tmp_path / "shown", monkeypatch, logs="path", path="../logs")
    assert "not in" in test.error[0].value
    assert not test.subheader


def test_a_folder_without_logs_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = shown(tmp_path, tmp_path, monkeypatch)
    assert test.error[0].value
    assert not test.subheader


def test_markup_in_a_log_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "node1:10:11 [0] include/alloc.h:48 NCCL WARN Cuda failure 'out of memory' <script>alert(1)</script>\n"
    (tmp_path / "rank0.log").write_text(line)
    test = shown(tmp_path, tmp_path, monkeypatch)
    assert not [one for one in test.markdown if one.allow_html]
    assert "<script>" not in text(test)


def test_every_member_of_a_group_is_in_the_matrix(tmp_path: Path) -> None:
    found = investigate([str(written(tmp_path, "missing_rank", 3))])
    groups = places_of(found.logs, found.dumps)
    assert groups
    culprits = [c.rank for c in found.triage.culprits if c.rank is not None]
    matrix = matrix_of(groups, culprits, LIGHT)
    assert len(matrix["columns"]) == len(groups)
    assert [row["fault"] for row in matrix["rows"]][: len(culprits)] == [True] * len(culprits)
    for group in groups:
        assert len(group.members) == group.size


def group(title: str, *ats: At, first: int = 0) -> GroupPlaces:
    members = tuple(Place(i, first + i, at, "all_reduce #42806", 42806, op="all_reduce", at_call="#42806")
                    for i, at in enumerate(ats))  # fmt: skip
    return GroupPlaces(title, len(members), members, from_dumps=True)


def test_the_figure_never_leaves_out_a_rank_at_fault() -> None:
    even = [group(f"even {i}", *[At.HERE] * 4) for i in range(40)]
    uneven = [group(f"uneven {i}", At.HERE, At.BEHIND) for i in range(3)]
    own = [group("its own", *[At.HERE] * 2, first=14)]
    drawn, said = drawn_groups([*uneven, *own, *even], [14])
    assert [one.title for one in drawn[:5]] == ["uneven 0", "uneven 1", "uneven 2", "its own", "even 0"]
    assert len(drawn) == 24
    assert spaced(" ".join(said)).startswith("20 groups more, whose ranks are all as far as each other")
    drawn, _ = drawn_groups([*[group(f"uneven {i}", At.HERE, At.BEHIND) for i in range(30)], *even], [])
    assert len(drawn) == 30
    many = [group(f"uneven {i}", At.HERE, At.BEHIND) for i in range(70)]
    drawn, said = drawn_groups(many, [14])
    assert len(drawn) == 64
    assert spaced(" ".join(said)) == "6 groups more with such ranks, not drawn. No group that is drawn has rank 14."


def test_a_call_that_only_its_peers_finished_is_a_place_of_its_own(tmp_path: Path) -> None:
    """Both ranks have called as often. The culprit's own group shows it."""
    for rank, calls in {0: "0:all_reduce 0:all_reduce", 1: "0:all_reduce 0:all_reduce?"}.items():
        (tmp_path / f"_dump_{rank}").write_text(json.dumps(dump(rank, {"0": (0, 1)}, calls)))
    found = investigate([str(tmp_path)])
    (only,) = places_of(found.logs, found.dumps)
    assert [place.at for place in only.members] == [At.HERE, At.UNFINISHED]


def test_ranks_at_the_same_calls_are_one_row_and_the_one_at_fault_is_first() -> None:
    world = group("world", *[At.HERE if rank != 14 else At.BEHIND for rank in range(16)])
    rows = matrix_of([world, group("pair", At.HERE, At.HERE, first=2)], [14], LIGHT)["rows"]
    assert [(spaced(row["name"]), row["fault"]) for row in rows] == [
        ("rank 14", True), ("ranks 0-1, 4-13, 15", False), ("ranks 2-3", False),
    ]  # fmt: skip
    assert rows[0]["cells"] == [
        [list(At).index(At.BEHIND), "#42806", "behind the others\nlast call: all_reduce #42806"],
        None,
    ]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_places_have_no_colour_of_a_part_of_the_step(theme: Theme) -> None:
    assert not set(colours(theme).values()) & set(theme.part.values())


def test_an_operation_that_differs_is_in_the_cells() -> None:
    members = tuple(
        Place(i, i, At.HERE, f"{op} #3", 3, op=op, at_call="#3") for i, op in enumerate(("gather", "reduce"))
    )
    matrix = matrix_of([GroupPlaces("world", 2, members, from_dumps=True)], [], LIGHT)
    assert matrix["columns"][0]["op"] == ""
    assert [row["cells"][0][1] for row in matrix["rows"]] == ["gather #3", "reduce #3"]


def test_a_run_that_is_stuck_says_where_each_rank_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "forward")})
    monkeypatch.setattr("diag.app.views.hang.state_of", lambda run: state_of(run, NOW))
    test = shown(tmp_path, tmp_path / "run", monkeypatch)
    said = [spaced(plain_of(error.value)) for error in test.error]
    assert [text.partition(" since ")[0] for text in said] == ["The training is stuck: no step"]
    assert "rank 1" not in said[0], "who is where stands in the table"
    rows = test.table[0].value.astype(str).to_numpy().tolist()
    assert [spaced(plain_of(row[0])) for row in rows] == ["at fault ▸ rank 1", "rank 0"]
    assert "is silent for 42 s" in spaced(plain_of(rows[0][1]))
    assert "Why rank 1 makes no progress is not determined." in [
        spaced(plain_of(head.value)) for head in test.subheader
    ]


def many_stuck(run: Path, ranks: int, culprit: int) -> None:
    """All but one wait in a collective."""
    training(run, {rank: (1, 40, "backward") if rank != culprit else (42, 0, "forward") for rank in range(ranks)})
    for rank in set(range(ranks)) - {culprit}:
        waits_in(RunLayout(run).rank(rank), 7, last_op="all_reduce")


def test_many_ranks_in_one_place_are_one_row(tmp_path: Path) -> None:
    many_stuck(tmp_path / "run", 40, 17)
    state = state_of(tmp_path / "run", NOW)
    at_fault, waiting = places_of_ranks(state)
    assert (at_fault.ranks, at_fault.standing) == ((17,), Standing.AT_FAULT)
    assert (len(waiting.ranks), waiting.where) == (39, "waits in all_reduce #7")
    assert "is silent for 42 s" in spaced(at_fault.where)
    grid = standing_picture(state, LIGHT)
    cells = [cell for row in grid["rows"] for cell in row["cells"]]
    assert [cell[0] for cell in cells if len(cell) > 2] == [17]
    assert [name for name, _ in grid["states"]] == ["at fault: 1", "waits in a collective: 39"]
    assert len(grid["rows"]) == 40  # hosts


def test_ranks_that_came_there_at_other_times_are_one_row(tmp_path: Path) -> None:
    training(tmp_path / "run", {rank: (1, 40 - rank, "backward") for rank in range(3)})
    (place,) = places_of_ranks(state_of(tmp_path / "run", NOW))
    assert place.ranks == (0, 1, 2)


def test_the_places_of_many_ranks_are_a_grid() -> None:
    world = group("world", *[At.HERE if rank != 14 else At.BEHIND for rank in range(48)])
    grid = picture_of_places([world, group("pair", At.HERE, At.HERE, first=14)], [14], LIGHT)
    assert grid is not None
    assert [row["host"] for row in grid["rows"]] == ["ranks 0 to 15", "ranks 16 to 31", "ranks 32 to 47"]
    rank, state, fault = grid["rows"][0]["cells"][14]
    assert (rank, grid["states"][grid["places"][state][0]][0], fault) == (14, "behind the others: 1", 1)
    assert picture_of_places([group("few", At.HERE, At.BEHIND)], [1], LIGHT) is None


def plain_of(cell: str) -> str:
    return cell.replace("\\", "")


def test_groups_of_a_captured_hang(tmp_path: Path) -> None:
    found = investigate([str(ROOT / "hang-loader-4-ranks")])
    apart = [group for group in places_of(found.logs, found.dumps) if group.uneven]
    assert apart
    assert {place.at for place in apart[0].members} & {At.BEHIND, At.UNKNOWN}
    (culprit, _) = found.triage.stacks
    assert culprit.what.startswith("culprit, when it made its last call, not where it is now: all_reduce #30")


def test_a_log_that_is_a_link_out_of_the_run_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("[rank0]: RuntimeError: not for everybody\n")
    run = run_of(tmp_path)
    manifest(run, exit_code=1)
    run.rank(0).log.symlink_to(secret)
    said = text(shown(tmp_path, run.root, monkeypatch))
    assert "not for everybody" not in said
    assert "a link that leads out of the run directory" in said


STUCK = job(Comm(list(range(8)), counts={7: {"AllReduce": 60}}))


def cells(test: AppTest) -> list[list[str]]:
    """Of the table of NCCL RAS, with plain spaces."""
    tables = [one.value for one in test.table if "NCCL RAS reports" in one.value.columns]
    assert len(tables) <= 1
    return [[str(cell).replace("\u00a0", " ") for cell in row] for row in tables[0].to_numpy()] if tables else []


@pytest.mark.parametrize("has_json", [True, False])
def test_a_run_that_trains_shows_its_nccl_ras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_json: bool) -> None:
    state = replace(STUCK, silent=(3,))
    layout = write_run(state, tmp_path / "run")
    with listening(speaks(lambda _, in_json: as_json(state) if in_json else ras_text(state), has_json)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        test = shown(tmp_path, layout.root, monkeypatch)
    said = text(test)
    assert "NCCL RAS" in [one.value for one in test.subheader]
    assert plain(f"NCCL RAS at {address} (NCCL 2.30.7), 0 s ago.") in said
    assert "RAS gets no answer from" in test.warning[0].value
    rows = cells(test)
    assert [(row[1], row[3]) for row in rows if "answer" in row[3]] == [("rank 3", "does not answer")]
    assert [row[1] for row in rows if row[3] == plain("AllReduce: 60 launched")] == ["rank 7"]
    assert any("time" in one.value and "RAS" in one.value for one in test.code)


def test_a_run_without_ras_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    test = shown(tmp_path, write_run(STUCK, tmp_path / "run", device="NVIDIA H100").root, monkeypatch)
    assert [plain("no NCCL RAS answers at 127.0.0.1:1") in one.value for one in test.caption].count(True) == 1
    assert not cells(test)
    assert not test.error or "Nothing to triage" not in test.error[0].value


def test_nothing_is_said_about_ras_on_a_run_of_another_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    run = write_run(STUCK, tmp_path / "run", device="cpu", backend="gloo").root
    (RunLayout(run).rank(0).folder / "log.txt").write_text("[rank0]: RuntimeError: Connection reset by peer\n")
    test = shown(tmp_path, run, monkeypatch)
    assert "NCCL RAS" not in text(test)
    assert "NCCL RAS" not in [one.value for one in test.subheader]


def test_a_server_that_never_answers_does_not_hold_up_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = write_run(STUCK, tmp_path / "run")
    with listening(silent) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        test = shown(tmp_path, layout.root, monkeypatch)
    assert "Querying NCCL RAS" in text(test)


def test_a_run_that_ended_shows_the_last_report_that_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ask", lambda *_: pytest.fail("a run that ended was asked"))
    layout = write_run(STUCK, tmp_path / "run", exit_code=5)
    for number in (1, 2):
        at = replace(STUCK, time=f"2026-11-10 12:00:{30 * number - 30:02d}")
        layout.nccl_ras("node1", number).write_text(as_json(at))
    test = shown(tmp_path, layout.root, monkeypatch)
    assert plain("2026-11-10 12:00:30") in text(test)
    assert [row[4] for row in cells(test) if row[1] == "rank 7"] == ["unchanged for 30 s"]


def _sidebar() -> None:
    import sys
    from pathlib import Path

    from diag.app.views import hang

    hang.ras_line(Path(sys.argv[1]))


def test_the_sidebar_says_it_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = replace(STUCK, silent=(3,))
    layout = write_run(state, tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["main.py", str(layout.root)])
    with listening(speaks(lambda *_: as_json(state))) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        test = AppTest.from_function(_sidebar, default_timeout=PATIENCE_S).run()
    assert not test.exception
    assert "RAS gets no answer from" in test.warning[0].value
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    st.cache_resource.clear()
    test.run()
    assert not test.warning
    assert text(test) == ""


def test_the_stack_of_one_rank_is_shown_where_the_triage_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heading stood above nothing."""
    run = tmp_path / "run"
    training(run, {0: (1, 0.1, "backward"), 1: (1, 0.1, "forward")})
    RunLayout(run).rank(1).stacks.write_text(
        'Current thread 0x00007fe467df7b80 (most recent call first):\n  File "/job/train.py", line 57 in locked\n'
    )
    assert not investigate([str(run)]).triage.stacks
    test = shown(tmp_path, run, monkeypatch)
    assert "Stacks" in [one.value for one in test.subheader]
    assert any("locked (train.py:57)" in one.value.replace("\u00a0", " ") for one in test.code)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ({"gaps": [{"path": "", "reason": "rank 1 left no stacks"}, {"path": "a", "reason": "cut"}]}, "left no stacks"),
        ({"error": {"message": "the training is not stuck"}}, "the training is not stuck"),
        (None, "diag triage ended with -9"),
        ({"gaps": []}, ""),
    ],
)
def test_stacks_of_a_run_that_is_stuck_are_taken_from_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: dict[str, Any] | None, said: str
) -> None:
    asked: list[Sequence[str]] = []

    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        text = b"" if printed is None else json.dumps(printed).encode()
        return subprocess.CompletedProcess(command, -9 if printed is None else 3, text)

    monkeypatch.setattr("diag.app.views.hang.run_process", run)
    training(tmp_path / "run", {0: (1, 40, "backward"), 1: (42, 0, "forward")})
    monkeypatch.setattr("diag.app.views.hang.state_of", lambda run, **_: state_of(run, NOW))
    test = shown(tmp_path, tmp_path / "run", monkeypatch)
    (button,) = [button for button in test.button if "stacks" in button.label]
    button.click().run()
    assert [command[-2:] for command in asked] == [["--stacks", "--json"]]
    words = [spaced(plain_of(warning.value)) for warning in test.warning]
    assert any(said.lower() in each.lower() for each in words) if said else not words
