"""Modules are called what the model's author called them, whatever wraps them. The ranges are those that torch 2.13
and DeepSpeed 0.19 leave of the bundled trainer with ``--trace-stacks``."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from diag.api import open_run
from diag.model.breakdown import ModuleStat
from diag.tables.module_ranges import own_classes, own_path
from tests.account.kineto_builder import KinetoBuilder

MS = 1_000_000


@pytest.mark.parametrize(
    ("given", "own"),
    [
        ("blocks.0.attention", "blocks.0.attention"),
        ("", "(root)"),
        ("_orig_mod", "(root)"),
        ("module", "module"),
        ("_orig_mod.blocks.0", "blocks.0"),
        ("blocks.0._checkpoint_wrapped_module.attention", "blocks.0.attention"),
        ("_fsdp_wrapped_module.blocks.0._fsdp_wrapped_module._orig_mod", "blocks.0"),
        ("module.blocks.0", "blocks.0"),
        ("_forward_module.module.blocks.0", "blocks.0"),
        ("blocks.0.module.attention", "blocks.0.module.attention"),
        ("blocks.0._orig_mod, blocks.1._orig_mod", "blocks.0, blocks.1"),
    ],
)
def test_paths_without_the_parts_of_wrappers(given: str, own: str) -> None:
    assert own_path(given) == own


def calls(*ranges: tuple[int, int, str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "ts_ns": [begin for begin, _, _ in ranges],
            "dur_ns": [end - begin for begin, end, _ in ranges],
            "thread": [1] * len(ranges),
            "name": [name for _, _, name in ranges],
        }
    )


def test_a_wrapper_is_the_module_that_is_called_in_it() -> None:
    found = own_classes(
        calls(
            (0, 100, "DistributedDataParallel_0"),
            (1, 99, "OptimizedModule_0"),
            (2, 98, "Decoder_0"),
            (10, 50, "CheckpointWrapper_0"),
            (12, 40, "Block_0"),
            (13, 30, "Linear_0"),
            (60, 80, "CheckpointWrapper_1"),
            (81, 90, "FSDPBlock_1"),
        )
    )
    assert found.select("ts_ns", "dur_ns", "name").rows() == [
        (0, 100, "Decoder_0"),
        (10, 40, "Block_0"),
        (13, 17, "Linear_0"),
        (60, 20, "CheckpointWrapper_1"),
        (81, 9, "Block_1"),
    ]
    plain = calls((0, 9, "Decoder_0"), (1, 2, "FSDPBlock_0"), (3, 4, "FSDP_0"))
    assert own_classes(plain)["name"].to_list() == ["Decoder_0", "Block_0", "FSDP_0"]


def rows_of(folder: Path, source: str) -> dict[str, ModuleStat]:
    tables = open_run(folder).breakdowns.modules
    (table,) = [table for table in tables if table.source == source]
    return {row.name: row for row in table.rows}


@pytest.mark.parametrize(
    ("root", "unit"), [("FullyShardedDataParallel_0", "FullyShardedDataParallel_1"), ("DeepSpeedEngine_0", None)]
)
def test_a_unit_has_what_its_wrapper_does_for_it(tmp_path: Path, root: str, unit: str | None) -> None:
    """FSDP1 gathers in a wrapper's forward before the block is called, ZeRO-3 in hooks of the block itself."""
    built = KinetoBuilder(rank=0).step(0, 0, 100 * MS).range("diag.forward", 0, 50 * MS)
    built.event("python_function", f"nn.Module: {root}", 0, 50 * MS)
    built.event("python_function", "nn.Module: Decoder_0", 2 * MS, 49 * MS)
    if unit is not None:
        built.event("python_function", f"nn.Module: {unit}", 10 * MS, 40 * MS)
        built.range("FullyShardedDataParallel._pre_forward", 10 * MS + 1, 14 * MS)
    begin = 10 * MS if unit is None else 15 * MS
    built.event("python_function", "nn.Module: Block_0", begin, 39 * MS)
    built.kernel(51 * MS, 53 * MS, "split_with_sizes_copy", launch=12 * MS)
    built.kernel(53 * MS, 60 * MS, "gemm", launch=20 * MS)
    built.write(tmp_path)
    rows = rows_of(tmp_path, "nn.Module")
    assert set(rows) == {"Decoder_0", "Block_0"}
    block, decoder = rows["Block_0"], rows["Decoder_0"]
    assert (block.parent, block.calls, decoder.calls) == ("Decoder_0", 1, 1)
    assert (block.forward_ns, decoder.forward_ns, decoder.self_ns) == (9 * MS, 9 * MS, 0)


def test_units_of_fsdp2_around_compiled_and_recomputed_blocks(tmp_path: Path) -> None:
    built = KinetoBuilder(rank=0).step(0, 0, 100 * MS).range("diag.forward", 0, 50 * MS)
    for begin, name in ((0, " (_orig_mod)"), (10, " (_orig_mod.blocks.0._checkpoint_wrapped_module)")):
        built.range(f"FSDP::pre_forward{name}", begin * MS, (begin + 1) * MS)
        built.range(f"FSDP::post_forward{name}", (40 - begin) * MS, (41 - begin) * MS)
    built.range("_orig_mod.blocks.0.attention", 15 * MS, 20 * MS)
    built.kernel(51 * MS, 53 * MS, "gemm", launch=12 * MS)
    built.kernel(53 * MS, 60 * MS, "attention", launch=16 * MS)
    built.write(tmp_path)
    assert set(rows_of(tmp_path, "FSDP unit")) == {"(root)", "blocks.0"}
    assert set(rows_of(tmp_path, "annotation")) == {"blocks.0.attention"}
    path = open_run(tmp_path).breakdowns.path
    assert {row.module for row in path.rows} == {"", "(root)", "blocks.0", "blocks.0.attention"}
