"""Groups of ranks are called by the axis of the mesh that they lie along."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.model.axes import Axes, axis_of, coordinates, group_words, is_data
from diag.rundir.run import open_paths
from diag.rundir.tables import axes_of, axis_named
from tests.account.kineto_builder import KinetoBuilder

MESH = {"pp": 2, "dp": 2, "tp": 2}
HSDP = {"dp_replicate": 2, "dp_shard": 4}


@pytest.mark.parametrize(
    ("ranks", "axis"),
    [
        ((0, 1), "tp"),
        ((6, 7), "tp"),
        ((0, 2), "dp"),
        ((5, 7), "dp"),
        ((0, 4), "pp"),
        ((0, 1, 2, 3), "dp x tp"),
        (range(8), "world"),
        ((0, 3), None),  # no line of the mesh
        ((0, 1, 2), None),
        ((3,), None),
        ((), None),
        ((0, 8), None),
    ],
)
def test_the_axis_of_a_group(ranks: tuple[int, ...], axis: str | None) -> None:
    assert axis_of(ranks, MESH, 8) == axis


def test_sharded_replicas_have_two_axes_and_are_data_parallel_together() -> None:
    assert axis_of((0, 1, 2, 3), HSDP, 8) == "dp_shard"
    assert axis_of((1, 5), HSDP, 8) == "dp_replicate"
    assert axis_of(range(8), HSDP, 8) == "dp"
    assert axis_of((0, 1, 4, 5), {"dp_replicate": 2, "dp_shard": 2, "tp": 2}, 8) == "dp_replicate x tp"
    assert axis_of((0, 2, 4, 6), {"dp_replicate": 2, "dp_shard": 2, "tp": 2}, 8) == "dp"


def test_one_axis_is_called_by_its_name_and_not_by_being_everything() -> None:
    assert axis_of((0, 1), {"dp": 2}, 2) == "dp"
    assert axis_of((0, 1), {"dp": 1, "tp": 2}, 2) == "tp"


def test_a_mesh_that_does_not_fit_says_nothing() -> None:
    assert axis_of((0, 1), MESH, 4) is None
    assert axis_of((0, 1), {}, 2) is None
    assert axis_of((0, 1), MESH, None) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_every_line_of_a_mesh_is_of_its_axis(sizes: list[int], data: st.DataObject) -> None:
    mesh = {f"axis{i}": size for i, size in enumerate(sizes)}
    world = 1
    for size in sizes:
        world *= size
    axis = data.draw(st.sampled_from(sorted(mesh)))
    place = coordinates(data.draw(st.integers(0, world - 1)), mesh)
    line = [r for r in range(world) if {**coordinates(r, mesh), axis: 0} == {**place, axis: 0}]
    assert len(line) == mesh[axis]
    assert axis_of(line, mesh, world) == (axis if mesh[axis] > 1 else None)


def test_words() -> None:
    assert group_words("tp", (0, 1)) == "tensor-parallel group (ranks 0 and 1)"
    assert group_words("pp", (0, 2, 4)) == "pipeline-parallel group (ranks 0, 2 and 4)"
    assert group_words("dp", tuple(range(64))) == "data-parallel group (ranks 0, 1, 2 and 61 more)"
    assert group_words(None, (0, 3)) == "group (ranks 0 and 3)"


def test_stages() -> None:
    assert Axes(MESH, 8).stages() == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    assert Axes({"dp": 8}, 8).stages() == {}
    assert Axes({}, 4, {(0, 2): "pp", (1, 3): "pp", (0, 1): "dp"}).stages() == {0: 0, 2: 1, 1: 0, 3: 1}


def test_descriptions_of_other_tools() -> None:
    """torch's DeviceMesh with and without names of its axes, and Megatron-LM."""
    assert axis_named("mesh_tp") == "tp"
    assert axis_named("mesh_dp_shard_cp") == "dp_shard_cp"
    assert axis_named("mesh_dim_0") is None
    assert axis_named("mesh_default") is None
    assert axis_named("default_pg") is None
    assert axis_named("TENSOR_MODEL_PARALLEL_GROUP") == "tp"
    assert axis_named("PIPELINE_MODEL_PARALLEL_GROUP") == "pp"


def test_traces_of_another_tool_name_their_groups(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_pp", "pg_size": 2, "ranks": [0, 2]},
        {"pg_name": "2", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "3", "pg_size": 2, "ranks": [1, 3]},
    ]
    built = KinetoBuilder(rank=0, world_size=4).step(0, 0, 1000).step(1, 1000, 2000).kernel(100, 200)
    built.header["distributedInfo"]["pg_config"] = groups
    built.write(tmp_path, "rank0.json")
    axes = axes_of(open_paths([tmp_path]))
    assert axes.words((0, 1)) == "tensor-parallel group (ranks 0 and 1)"
    assert axes.words((1, 3)) == "group (ranks 1 and 3)"
    assert axes.of(range(4)) is None
    assert axes.several
    assert axes.stages() == {0: 0, 2: 1}


def test_what_moves_along_an_axis() -> None:
    assert is_data("dp_shard")
    assert is_data(None), "nothing says what a group is for: data parallelism needs no names"
    assert not is_data("tp")
    assert not is_data("pp")
