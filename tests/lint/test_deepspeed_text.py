"""DeepSpeed's files as text: keys given twice, comments, other syntax, and files that name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.errors import DiagError
from diag.linting.model import Linted
from tests.lint.build import linted

TWICE = """{
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true,
    "stage": 3,
    "stage3_gather_16bit_weights_on_model_save": true
  }
}
"""


def errors(found: Linted) -> list[tuple[str, int | None]]:
    return [(notice.key, notice.line) for notice in found.notices if notice.severity == "error"]


def test_a_key_that_stands_twice(tmp_path: Path) -> None:
    found = linted(tmp_path / "ds.json", TWICE)
    assert errors(found) == [("zero_optimization.stage", 7)]
    assert "DeepSpeed refuses the file" in found.notices[0].text
    assert errors(linted(tmp_path / "ds.json", TWICE.replace('    "stage": 2,\n', ""))) == []


def test_comments_are_read_as_deepspeed_reads_them(tmp_path: Path) -> None:
    text = TWICE.replace('    "stage": 2,\n', "    // the stage\n").replace("true\n  }", 'true, # "x"\n  }')
    found = linted(tmp_path / "ds.json", text)
    assert errors(found) == []
    assert any("Hjson" in notice.text and notice.severity == "note" for notice in found.notices)
    outer = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    assert ("", None) in errors(linted(tmp_path / "accelerate.yaml", outer))  # which reads plain JSON
    plain = TWICE.replace('    "stage": 2,\n', "")
    assert not any("Hjson" in notice.text for notice in linted(tmp_path / "plain.json", plain).notices)


def test_yaml_is_not_what_deepspeed_reads(tmp_path: Path) -> None:
    text = "train_micro_batch_size_per_gpu: 1\nbf16: {enabled: true}\nzero_optimization:\n  stage: 3\n"
    assert [notice.text for notice in linted(tmp_path / "ds.yaml", text).notices if notice.severity == "error"] == [
        "DeepSpeed reads JSON (as Hjson), not YAML."
    ]


def test_a_file_that_another_names_is_read_beside_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2, "overlap_comm": False}}))
    outer = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    found = linted(tmp_path / "accelerate.yaml", outer)
    (notice,) = [notice for notice in found.notices if notice.key == "zero_optimization.overlap_comm"]
    assert notice.path == str(tmp_path / "ds.json")
    found = linted(tmp_path / "args.json", json.dumps({"output_dir": "o", "deepspeed": "ds.json"}))
    assert "zero_optimization.overlap_comm" in [notice.key for notice in found.notices]


def test_an_fsdp_config_that_arguments_name(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text('{"version": 1,\n "backward_prefetch": "no_prefetch"}')
    text = json.dumps({"output_dir": "o", "fsdp": "full_shard auto_wrap", "fsdp_config": "fsdp.json", "bf16": True})
    found = linted(tmp_path / "args.json", text)
    (notice,) = [notice for notice in found.notices if notice.severity == "warning"]
    assert (notice.path, notice.key, notice.line) == (str(tmp_path / "fsdp.json"), "backward_prefetch", 2)
    assert [row.key for row in found.translations] == ["fsdp", "fsdp", "version", "backward_prefetch"]
    (tmp_path / "fsdp.json").unlink()
    found = linted(tmp_path / "args.json", text)
    assert [unchecked.what for unchecked in found.could_not_look] == ["what fsdp.json contains"]
    assert found.translations == ()


def test_a_file_that_is_not_here_is_said(tmp_path: Path) -> None:
    outer = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: /elsewhere/ds.json\n"
    found = linted(tmp_path / "accelerate.yaml", outer)
    assert "what /elsewhere/ds.json contains" in [unchecked.what for unchecked in found.could_not_look]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "."])
def test_a_name_that_no_file_has(tmp_path: Path, name: str) -> None:
    found = linted(tmp_path / "args.json", json.dumps({"output_dir": "o", "deepspeed": name}))
    assert len(found.could_not_look) == 1


def test_a_file_that_is_named_and_is_none(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"output_dir": "x", "seed": 1}')
    outer = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    with pytest.raises(DiagError, match="not a DeepSpeed configuration"):
        linted(tmp_path / "accelerate.yaml", outer)


def test_what_the_file_cannot_tell(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    text = json.dumps({**sizes, "zero_optimization": {"stage": 3}})
    found = linted(tmp_path / "ds.json", text)
    assert [unchecked.what for unchecked in found.could_not_look] == [
        "whether each rank reads its own data", "whether the batch sizes are consistent",
    ]  # fmt: skip
    assert "DistributedSampler" in found.could_not_look[0].check
    assert "8 GPUs" in found.could_not_look[1].check
    assert len(linted(tmp_path / "ds.json", text, gpus=8).could_not_look) == 1
