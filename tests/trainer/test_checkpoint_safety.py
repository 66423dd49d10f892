"""Nothing in a checkpoint is executed, whoever wrote it."""

from __future__ import annotations

import json
import os
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from diag.collectors.trainer.checkpoint import contents
from diag.collectors.trainer.checkpoint.contents import SafeReader, TensorsOnly, read_metadata
from diag.collectors.trainer.checkpoint.folder import IncompleteError
from diag.collectors.trainer.checkpoint.saver import CheckpointWriter
from diag.collectors.trainer.options import TrainerOptions
from tests.trainer.checkpoints import manifest_of


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def tensors() -> dict[str, torch.Tensor]:
    return {"model.a": torch.arange(12.0).view(3, 4), "optimizer.a.step": torch.tensor(7.0)}


@pytest.fixture
def saved(alone: None, tmp_path: Path) -> Path:
    draft = tmp_path / ".step-00000003.x.draft"
    writer = CheckpointWriter(draft, 0, {"rank": 0}, manifest_of(TrainerOptions(), 3, ranks=1), keep=2)
    save(tensors(), storage_writer=writer)
    return tmp_path / "step-00000003"


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    target = {name: torch.zeros_like(value) for name, value in tensors().items()}
    load(target, storage_reader=SafeReader(folder, {"__0_0.distcp"}), planner=TensorsOnly())
    return target


def test_what_was_saved_is_read(saved: Path) -> None:
    assert {name: value.tolist() for name, value in loaded(saved).items()} == {
        name: value.tolist() for name, value in tensors().items()
    }
    assert str(saved.parent).encode() not in (saved / ".metadata").read_bytes()


class Runs:
    """Unpickling it runs a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def plain() -> metadata.Metadata:
    return metadata.Metadata(state_dict_metadata={}, storage_data={})


def hidden_in(place: str, mark: Path) -> Any:
    found = plain()
    if place == "the whole":
        return Runs(mark)
    if place == "planner_data":
        found.planner_data = {"a": Runs(mark)}
    else:
        found.storage_data = {metadata.MetadataIndex("a"): Runs(mark)}
    return found


@pytest.mark.parametrize("place", ["the whole", "planner_data", "storage_data"])
def test_a_malicious_metadata_is_refused_and_not_run(saved: Path, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    harmful = pickle.dumps(hidden_in(place, mark))
    pickle.loads(harmful)
    assert mark.exists()  # so it does run where nobody is careful
    mark.unlink()
    (saved / ".metadata").write_bytes(harmful)
    with pytest.raises(
        CheckpointException, match=r"asks for posix\.system, which a checkpoint of tensors does not need"
    ):
        loaded(saved)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [("builtins", "eval"), ("builtins", "getattr"), ("torch", "load"), ("torch.serialization", "load"),
     ("torch._utils", "_rebuild_tensor"), ("torch.distributed.checkpoint.metadata", "pickle"),
     ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"), ("pathlib", "PosixPath")],
)  # fmt: skip
def test_the_metadata_can_name_nothing_but_its_own_classes(tmp_path: Path, module: str, name: str) -> None:
    (tmp_path / ".metadata").write_bytes(f"c{module}\n{name}\n.".encode())
    with pytest.raises(IncompleteError, match=rf"asks for {module}\.{name}"):
        read_metadata(tmp_path / ".metadata", set())


@pytest.mark.parametrize("content", [b"", b"\x80\x05", pickle.dumps(3), pickle.dumps(metadata.StorageMeta())])
def test_a_damaged_metadata_is_a_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(IncompleteError, match=r"cannot be read|does not describe a checkpoint"):
        read_metadata(tmp_path / ".metadata", set())


_INDEX = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
_STATE = b"}(X\x03\x00\x00\x00fqnh\x01X\x05\x00\x00\x00indexh\x01ub"  # both are the value remembered as 1


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (b"]r\xff\xff\xff\x7f.", "a memo index of 2,147,483,647"),
        (b"}(NN\x86q\x01" + b"h\x01h\x01\x86q\x01" * 50 + b"Nu.", "keys that are not strings"),
        (b"}" + b"N" + b"\x85" * 100_000 + b"Ns.", "nested more than 64 deep"),
        (b"NN\x86q\x01" + (_INDEX + b")\x81" + _STATE + b"q\x01") * 30 + b"}h\x01Ns.", "counting shared ones"),
        (b"N" * (9 << 20) + b".", "values in one container"),
    ],
)
def test_a_metadata_that_takes_memory_or_time_is_refused(tmp_path: Path, program: bytes, expected: str) -> None:
    """Memory: gigabytes. Time: a key that is made of shared parts is hashed part by part, 2^30 of them and more."""
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + program)
    with pytest.raises(IncompleteError, match=expected):
        read_metadata(tmp_path / ".metadata", set())


def test_it_points_to_no_file_that_the_manifest_does_not_name(tmp_path: Path) -> None:
    found = plain()
    found.storage_data = {metadata.MetadataIndex("a"): filesystem._StorageInfo("../../elsewhere", 0, 10)}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(IncompleteError, match="files outside of this checkpoint"):
        read_metadata(tmp_path / ".metadata", {"__0_0.distcp"})


def test_a_value_that_is_no_tensor_is_never_unpickled(alone: None, tmp_path: Path) -> None:
    """torch's own load planner would: with ``weights_only=False``."""
    mark = tmp_path / "ran"
    save({"a": Runs(mark)}, storage_writer=filesystem.FileSystemWriter(tmp_path / "harmful"))
    assert not mark.exists()
    with pytest.raises(CheckpointException, match="BytesStorageMetadata"):
        load({"a": 1}, storage_reader=SafeReader(tmp_path / "harmful", {"__0_0.distcp"}), planner=TensorsOnly())
    with pytest.raises(CheckpointException, match="is not a tensor: not read"):
        load({"a": 1}, storage_reader=filesystem.FileSystemReader(tmp_path / "harmful"), planner=TensorsOnly())
    assert not mark.exists()
    load({"a": 1}, storage_reader=filesystem.FileSystemReader(tmp_path / "harmful"))
    assert mark.exists()  # as torch does it by itself


def drawn() -> list[float]:
    return [random.random(), random.gauss(), float(np.random.standard_normal()), float(torch.rand(()))]


def test_random_numbers_go_on_from_a_text(alone: None) -> None:
    device = torch.device("cpu")
    random.gauss()  # every second one is kept for the next call
    np.random.standard_normal()
    text = json.dumps(contents.capture(device))
    expected = drawn()
    assert drawn() != expected
    contents.restore(json.loads(text), device)
    assert drawn() == expected


def test_numpy_is_not_imported_for_its_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    state = contents.capture(torch.device("cpu"))
    monkeypatch.delitem(sys.modules, "numpy")
    assert "numpy" not in contents.capture(torch.device("cpu"))
    contents.restore(state, torch.device("cpu"))
    assert "numpy" not in sys.modules
