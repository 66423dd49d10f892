"""Memory snapshots: the curve, the peak and what was live there are those of the allocator that wrote them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diag.api import open_memory_snapshots
from diag.errors import DiagError
from diag.show.snapshots import comparison_sentence, failed_sentence, oom_sentence, peak_sentence, state_sentence
from diag.tables.memory_curves import Share
from diag.tables.snapshots import WITHOUT_STACK, SnapshotAccount
from diag.traces.memory_snapshots import read_snapshot
from diag.traces.snapshot_files import rank_of, snapshots_alone
from tests.allocator import FORWARD, MIB, Allocator, frame, train


def account(path: Path) -> SnapshotAccount:
    (found,) = open_memory_snapshots(path).accounts
    return found


def held(shares: tuple[Share, ...]) -> dict[str, tuple[int, int]]:
    return {one.name: (one.bytes // MIB, one.count) for one in shares}


def test_the_peak_and_what_was_live_there(tmp_path: Path) -> None:
    found = account(train().write(tmp_path / "rank3.pickle"))
    assert (found.rank, found.rank_known, found.device, found.timed) == (3, True, 0, True)
    assert found.peak_allocated == 17 * MIB
    assert found.peak_phase == "backward"
    assert held(found.frames) == {
        "train.py:44 main": (8, 1),
        "train.py:10 <module>": (4, 1),
        "model.py:12 forward": (3, 1),
        "aten::mm, called from C++": (2, 1),
    }
    assert held(found.modules) == {"linear.py:125 forward": (3, 1)}
    assert held(found.phases) == {"optimizer": (8, 1), "other": (4, 1), "forward": (3, 1), "backward": (2, 1)}
    assert found.before == 0
    assert sum(one.bytes for one in found.frames) == found.peak_allocated
    assert found.allocated.max() == found.peak_allocated
    assert found.allocated[-1] == 12 * MIB
    assert "17.8 MB allocated, in the backward" in peak_sentence(found).replace("\u00a0", " ")


def test_a_ring_that_has_lost_the_beginning(tmp_path: Path) -> None:
    """The curve is counted back from the state, so the peak stays; stacks of live blocks are in the state. Only the
    activations of the peak, freed later, lose theirs with the event of their allocation."""
    allocator = train()
    allocator.history = 5  # from the second backward on
    found = account(allocator.write(tmp_path / "a.pickle"))
    assert found.events == 5
    assert found.peak_allocated == 17 * MIB
    assert held(found.frames)["train.py:44 main"] == (8, 1)
    assert found.before == 3 * MIB
    assert found.places[WITHOUT_STACK] == 3 * MIB
    assert "3.15 MB of it (18%) has no recorded stack" in peak_sentence(found).replace("\u00a0", " ")


def test_without_history_there_is_the_state(tmp_path: Path) -> None:
    found = account(train(history=0).write(tmp_path / "a.pickle"))
    assert (found.events, len(found.at_us), found.peak_allocated) == (0, 0, 12 * MIB)
    assert "No history was recorded" in peak_sentence(found)


def test_fragmentation_and_a_failed_allocation(tmp_path: Path) -> None:
    allocator = Allocator()
    first = allocator.alloc(3 * MIB, FORWARD)  # in 4 MiB
    allocator.alloc(MIB // 2, FORWARD)  # behind it
    allocator.alloc(5 * MIB, FORWARD)  # in 6 MiB
    allocator.free(first)
    allocator.fail(64 * MIB, 10 * MIB, FORWARD)
    found = account(allocator.write(tmp_path / "a.pickle"))
    state = found.state
    assert (state.segments, state.reserved, state.allocated) == (2, 10 * MIB, 5 * MIB + MIB // 2)
    assert (state.inactive, state.split, state.largest_free) == (4 * MIB + MIB // 2, 4 * MIB + MIB // 2, 3 * MIB)
    assert state.fragmentation == pytest.approx(0.45)
    assert found.peak_reserved == 10 * MIB
    (oom,) = found.ooms
    assert (oom.requested, oom.device_free, oom.place) == (64 * MIB, 10 * MIB, "model.py:12 forward")
    sentence = oom_sentence(oom, found).replace("\u00a0", " ")
    assert "67.1 MB failed at model.py:12 forward" in sentence
    assert "the largest block 3.15 MB" in sentence
    assert "fragmentation 45%" in state_sentence(found)


@pytest.mark.parametrize("seed", range(4))
def test_any_history_has_the_allocators_own_peak(tmp_path: Path, seed: int) -> None:
    choose, allocator = random.Random(seed), Allocator()
    live: list[int] = []
    for _ in range(400):
        if live and choose.random() < 0.48:
            allocator.free(live.pop(choose.randrange(len(live))))
        else:
            place = [frame("forward", f"/home/me/part{choose.randrange(5)}.py", 1)]
            live.append(allocator.alloc(choose.randrange(1, 3 * MIB), place))
    found = account(allocator.write(tmp_path / "a.pickle"))
    assert found.peak_allocated == allocator.peak
    assert sum(found.places.values()) == allocator.peak
    assert found.before == 0
    assert found.state.requested == sum(allocator.requested.values())
    assert found.doubt == ""


def test_the_rank_with_the_higher_peak_and_what_is_larger_there(tmp_path: Path) -> None:
    for rank, extra in enumerate((0, 6 * MIB, 0)):
        train(extra=extra).write(tmp_path / f"mem_rank_{rank}.pickle", diag={"rank": rank})
    compared = open_memory_snapshots(tmp_path).compared
    assert compared is not None
    assert (compared.rank, compared.peak, compared.median) == (1, 23 * MIB, 17 * MIB)
    (larger,) = compared.larger
    assert (larger.place, larger.bytes, larger.median) == ("model.py:12 forward", 9 * MIB, 3 * MIB)


def two_devices(extra: int = 0) -> dict[str, Any]:
    """The snapshot of a process that uses two devices."""
    first, second = train(extra=extra), Allocator(device=1)
    second.alloc(5 * MIB, FORWARD)
    second.fail(64 * MIB, 10 * MIB, FORWARD)
    both = first.snapshot(), second.snapshot()
    return {
        "segments": both[0]["segments"] + both[1]["segments"],
        "device_traces": [both[0]["device_traces"][0], both[1]["device_traces"][1]],
        "allocator_settings": {},
    }


def written(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def test_devices_of_one_process_are_compared_as_devices(tmp_path: Path) -> None:
    table = open_memory_snapshots(written(tmp_path / "snapshot.pickle", two_devices()))
    assert [(one.rank, one.device) for one in table.accounts] == [(None, 0), (None, 1)]
    assert table.compared is not None
    assert (table.compared.of, table.compared.name, table.compared.rank) == ("devices", "device 0", None)
    assert "(device 1)" in failed_sentence(table)
    assert "rank" not in failed_sentence(table)


def test_files_of_unknown_ranks_are_compared_as_files(tmp_path: Path) -> None:
    written(tmp_path / "a.pickle", two_devices())
    written(tmp_path / "b.pickle", two_devices(extra=6 * MIB))
    compared = open_memory_snapshots(tmp_path).compared
    assert compared is not None
    assert (compared.of, compared.name, compared.number) == ("files", "b.pickle", 2)
    assert comparison_sentence(compared).endswith("above the other file.")


def test_an_unknown_rank_is_not_compared_with_known_ones(tmp_path: Path) -> None:
    for name, extra in (("rank0.pickle", 0), ("rank1.pickle", MIB), ("x.pickle", 6 * MIB)):
        train(extra=extra).write(tmp_path / name)
    table = open_memory_snapshots(tmp_path)
    assert [account.rank for account in table.accounts] == [0, 1, None]
    assert table.compared is not None
    assert (table.compared.of, table.compared.rank) == ("ranks", 1)


def test_the_same_file_twice_counts_once(tmp_path: Path) -> None:
    for name in ("rank0.pickle", "rank1.pickle"):
        train().write(tmp_path / name)
    table = open_memory_snapshots(tmp_path)
    assert [account.rank for account in table.accounts] == [0]
    assert "the same file as" in table.gaps[0].reason


def test_a_snapshot_in_the_folder_of_another_rank_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "ranks" / "00001"
    train().write(folder / "memory-oom-step000003.pickle", diag={"rank": 0, "step": 3, "reason": "oom"})
    with pytest.raises(DiagError, match="written by rank 0, in the folder of rank 1"):
        open_memory_snapshots(folder / "memory-oom-step000003.pickle")


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "form",
    [
        lambda whole: whole["segments"],  # torch.cuda.memory_snapshot()
        lambda whole: {"segments": whole["segments"]},
        lambda whole: {"device_traces": whole["device_traces"], "segments": whole["segments"]},
        lambda whole: {**whole, "external_annotations": [{"name": "step", "time_us": 5}]},
    ],
    ids=["list", "segments alone", "events first", "annotations"],
)
def test_every_form_of_a_snapshot_is_read(form: Callable[[Any], Any], protocol: int, tmp_path: Path) -> None:
    path = written(tmp_path / "snapshot.pickle", form(train().snapshot()), protocol)
    assert snapshots_alone([path]) == [path]
    assert account(path).state.requested == 12 * MIB


def test_a_snapshot_of_nothing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="nothing was allocated on a device"):
        open_memory_snapshots(written(tmp_path / "a.pickle", {"segments": [], "device_traces": [[], []]}))


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/ranks/00012/memory-oom-step000003.pickle", 12),
        ("iteration_100/rank7_memory_snapshot.pickle", 7),
        ("oom_rank-3_snapshot.pickle", 3),
        ("snapshot_100.pickle", None),
        ("snapshot.pickle", None),
    ],
)
def test_the_rank_in_a_path(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


def test_the_oldest_form_has_stacks_in_a_history_and_no_times(tmp_path: Path) -> None:
    snapshot = train().snapshot()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            frames, size = block.pop("frames"), block.pop("requested_size")
            del block["address"]
            if frames:
                block["history"] = [{"addr": 1, "real_size": size, "frames": frames}]
    for event in snapshot["device_traces"][0]:
        del event["time_us"]
    (tmp_path / "old.pickle").write_bytes(
        pickle.dumps({key: snapshot[key] for key in ("segments", "device_traces")}, 2)
    )
    found = account(tmp_path / "old.pickle")
    assert (found.timed, found.peak_allocated) == (False, 17 * MIB)
    assert held(found.frames)["train.py:44 main"] == (8, 1)


def test_events_that_were_not_recorded_are_a_doubt(tmp_path: Path) -> None:
    snapshot = train().snapshot()
    events = snapshot["device_traces"][0]
    events[:] = [event for event in events if not event["action"].startswith("free")]
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot, 4))
    assert "were not recorded" in account(tmp_path / "a.pickle").doubt


# -- bad input ---------------------------------------------------------------------------------------------------------


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("harm",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({"segments": [], "harm": _Harm()}, 4), "refused: asks for builtins.print"),
        (pickle.dumps({"segments": [], "device_traces": [], "more": 1}, 4)[:-9], "truncated"),
        (pickle.dumps({"segments": 3}, 4), "no segments"),
        (pickle.dumps({"segments": {1: 2}}, 4), "refused"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(DiagError, match=reason):
        open_memory_snapshots(path)
    with pytest.raises(DiagError, match="no such file"):
        open_memory_snapshots(tmp_path / "b.pickle")


def test_entries_of_any_shape_are_left_out_and_counted(tmp_path: Path) -> None:
    snapshot = train().snapshot()
    good = read_snapshot(_write(tmp_path / "good.pickle", snapshot))
    snapshot["segments"] += [None, {"address": "x"}, {"address": 1, "total_size": 1 << 62, "blocks": []}]
    snapshot["segments"][0]["blocks"] += [
        7,
        {"size": -1, "state": "inactive"},
        {"size": 1, "state": "none", "address": 3},
    ]
    snapshot["device_traces"][0] += [None, {"action": 5}, {"action": "alloc", "addr": -1, "size": 1}, {"action": "new"}]
    snapshot["device_traces"][0][0]["frames"] = ["x", {"name": 3, "filename": None}]
    read = read_snapshot(_write(tmp_path / "bad.pickle", snapshot))
    assert good.left_out == 0
    assert (
        read.left_out == 3 + 1 + 3
    )  # segments; the first for its blocks; events, of which "new" may be a later torch's
    assert [len(one.events) for one in read.devices] == [len(one.events) for one in good.devices]


def _write(path: Path, held: object) -> Path:
    path.write_bytes(pickle.dumps(held, 4))
    return path


def test_snapshots_alone_are_those_beside_no_trace(tmp_path: Path) -> None:
    file = train().write(tmp_path / "a.pickle")
    _write(tmp_path / "weights.pickle", {"layer": 1})
    assert snapshots_alone([tmp_path]) == [file]
    assert snapshots_alone([file]) == [file]
    (tmp_path / "trace.json").write_text("{}")
    assert snapshots_alone([tmp_path]) == []
