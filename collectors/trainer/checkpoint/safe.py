"""Reading torch.distributed.checkpoint's files without executing what they say.

A checkpoint may come from anywhere. The tensors are read with ``weights_only=True`` by torch itself. Two things are
not: ``.metadata`` is a plain pickle, and values that are no tensors are unpickled by the load planner. So the first is
read by an unpickler that knows the few classes of a checkpoint of tensors, and the second is refused: such values are
in manifest.json instead.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem

from ... import bounded_pickle
from ...reading import read_regular
from .manifest import IncompleteError

_TIMES = 8  # as much as a recorder's dump may hold: 1,500 tensors in 256 shards each

_CLASSES: dict[tuple[str, str], Any] = {
    (found.__module__, found.__qualname__): found
    for found in (
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.TensorStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
    )
}
_CLASSES["torch", "Size"] = torch.Size
_CLASSES["torch.serialization", "_get_layout"] = torch.serialization._get_layout  # "torch.strided" to the layout


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What the pickle may name: the classes of a checkpoint, and torch's dtypes."""
        if (found := _class_of(module, name)) is None:
            raise IncompleteError(f".metadata asks for {module}.{name}, which no checkpoint of tensors needs: not read")
        return found


def _class_of(module: str, name: str) -> Any:
    if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
        return found
    return _CLASSES.get((module, name))


def read_metadata(path: Path, files: Collection[str]) -> metadata.Metadata:
    """The metadata of a checkpoint that consists of these files. IncompleteError where it wants anything else."""
    try:
        data = read_regular(path, bounded_pickle.MAX_BYTES, path.parent)
        bounded_pickle.check(data, lambda module, name: _class_of(module, name) is not None, times=_TIMES)
        found = _Unpickler(io.BytesIO(data)).load()
    except IncompleteError:
        raise
    except bounded_pickle.RefusedError as refused:
        raise IncompleteError(f".metadata {refused}, which no checkpoint of tensors needs: not read") from refused
    except Exception as error:  # a damaged pickle can raise about anything
        raise IncompleteError(f".metadata cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(found, metadata.Metadata) or not isinstance(found.storage_data, dict):
        raise IncompleteError(".metadata holds no checkpoint")
    for info in found.storage_data.values():
        if not isinstance(info, filesystem._StorageInfo) or info.relative_path not in files:
            raise IncompleteError(".metadata points to files that are not of this checkpoint")
        info.transform_descriptors = None
    return found


class SafeReader(FileSystemReader):
    """Reads the checkpoint in a folder that consists of these files."""

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        super().__init__(folder)
        self.folder, self.files = folder, files

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> metadata.Metadata:
        found = read_metadata(self.folder / ".metadata", self.files)
        found.storage_meta = metadata.StorageMeta(load_id=self.load_id)
        return found


class TensorsOnly(DefaultLoadPlanner):
    """A load planner that unpickles nothing."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002
        raise IncompleteError(f"{read_item.dest_index.fqn} is not a tensor: not read")
