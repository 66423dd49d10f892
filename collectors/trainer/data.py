"""Real text, byte by byte: a corpus, a sampler that can be resumed, and the loader that joins them.

One item of the dataset is one batch. The sampler sends numbered requests to the loader's processes, which read and
tokenize it. So a slow dataset is slow where a user's would be, and each process knows the number of its batch.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..layout import is_folder
from ..reading import open_regular, walk
from ..records import LoaderQueue
from ..scheduling import queue_of
from .keys import OptionError
from .refusals import carried_over

SEPARATOR = 256  # the token after each document; 0 to 255 are its bytes

_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class BatchRequest(NamedTuple):
    """A request to a loader process: the batch's number on this rank, counted from 0, and its samples."""

    number: int
    samples: tuple[int, ...]


class Document(NamedTuple):
    path: str
    size: int  # bytes when the run began


def standard_library() -> list[Document]:
    """The .py sources of the running interpreter, without installed packages and tests."""
    return _walk(Path(sysconfig.get_paths()["stdlib"]), suffix=".py")


def documents(data: str | None) -> list[Document]:
    """The non-empty files of ``--data``, or the standard library's sources. OptionError where there are none."""
    if data is None:
        texts, source = standard_library(), "the Python standard library's sources"
    else:
        path = Path(data)
        if not os.path.lexists(path):
            raise OptionError(f"--data {data} does not exist: give a text file or a folder of them")
        source = f"--data {data}"
        texts = _walk(path) if is_folder(path) else [Document(str(path), path.stat().st_size)]
    texts = [document for document in texts if document.size]
    if not texts:
        raise OptionError(f"{source}: no text found. Give a non-empty text file, or a folder that holds one")
    return texts


def described(texts: list[Document], data: str | None) -> dict[str, Any]:
    """A description of the text for a checkpoint: a resumed run must cut the same documents into the same samples.
    Names and sizes are compared, not contents."""
    root = os.path.commonpath([str(Path(document.path).parent) for document in texts])
    digest = hashlib.sha256()
    for document in texts:
        digest.update(f"{os.path.relpath(document.path, root)}\0{document.size}\0".encode())
    return {
        "source": data or "the Python standard library's sources",
        "documents": len(texts),
        "bytes": sum(document.size for document in texts),
        "fingerprint": digest.hexdigest(),
    }


def _walk(root: Path, suffix: str = "") -> list[Document]:
    def enter(path: str) -> bool:
        name = Path(path).name
        return name not in _SKIPPED_FOLDERS and not name.startswith(".")

    def wanted(name: str) -> bool:
        return name.endswith(suffix) and not name.startswith(".")

    # Sorted by plain names: samples are drawn in this order, also in a resumed run.
    paths = walk(root, wanted=wanted, enter=enter, fenced=False, order=str, most=sys.maxsize)
    return [Document(path, Path(path).stat().st_size) for path in paths]


class ByteCorpus(Dataset[Tensor]):
    """Concatenated documents, cut into samples of ``seq_len`` + 1 tokens; neighbouring samples share one token.

    Holds an index of offsets, not the text. An item maps a BatchRequest to an int64 tensor (batch, seq_len + 1).
    """

    def __init__(self, texts: list[Document], seq_len: int) -> None:
        self.documents = texts
        self.seq_len = seq_len
        self.ends = list(accumulate(document.size + 1 for document in texts))  # in tokens, with the separators

    def __len__(self) -> int:
        """Number of samples, from which the sampler draws."""
        return max(0, (self.ends[-1] - 1) // self.seq_len)

    def __getitem__(self, request: BatchRequest) -> Tensor:
        return torch.stack([self.sample(number) for number in request.samples])

    def sample(self, number: int) -> Tensor:
        """Tokens [number x seq_len, number x seq_len + seq_len], int64."""
        position = number * self.seq_len
        end = position + self.seq_len + 1
        parts = []
        index = bisect_right(self.ends, position)
        while position < end:
            document = self.documents[index]
            offset = position - (self.ends[index] - document.size - 1)
            count = min(end - position, document.size - offset)
            if count > 0:
                parts.append(_read(document, offset, count))
                position += count
            if position < end:
                parts.append(torch.tensor([SEPARATOR]))
                position += 1
            index += 1
        return torch.cat(parts)


def _read(document: Document, offset: int, size: int) -> Tensor:
    with open_regular(document.path) as file:
        file.seek(offset)
        raw = file.read(size)
    if len(raw) != size:
        raise OptionError(f"{document.path} had {document.size} bytes and became shorter during the run")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


class ShardedSampler(Sampler[BatchRequest]):
    """This rank's requests, endlessly: every epoch has a new permutation, cut into batches that the ranks take in turn.

    All ranks draw the same permutation, so they see disjoint samples of it. The incomplete last round of an epoch is
    dropped. The cursor counts batches that the training took (``advance``), not those that the loader prefetched.
    """

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.consumed = 0
        self.batches_per_epoch = samples // (batch_size * world_size)
        if not self.batches_per_epoch:
            raise OptionError(
                f"the text is too short: it holds {samples} sequences, and one step of {world_size} ranks takes "
                f"{batch_size * world_size}. Give more text with --data, or lower --batch-size or --seq-len"
            )

    def __iter__(self) -> Iterator[BatchRequest]:
        number = self.consumed
        while True:
            epoch, first = divmod(number, self.batches_per_epoch)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(self.samples, generator=generator)
            for batch in range(first, self.batches_per_epoch):
                start = (batch * self.world_size + self.rank) * self.batch_size
                yield BatchRequest(number, tuple(order[start : start + self.batch_size].tolist()))
                number += 1

    def advance(self) -> None:
        """Counts a batch that the training took."""
        self.consumed += 1

    def _layout(self) -> dict[str, int]:
        return {
            "samples": self.samples, "batch_size": self.batch_size, "world_size": self.world_size, "seed": self.seed,
        }  # fmt: skip

    def state_dict(self) -> dict[str, int]:
        return {**self._layout(), "consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues after the consumed samples; takes effect at the next ``iter``.

        The number of ranks and the batch size may change if one of the new rounds begins at that sample. The
        incomplete last round of an epoch then differs, so that from the next epoch on the samples differ.
        """
        layout = self._layout()
        changed = [
            f"{name} {state.get(name)} to {layout[name]}"
            for name in ("samples", "seed")
            if state.get(name) != layout[name]
        ]
        if changed:
            raise OptionError(f"cannot resume the data: {', '.join(changed)} changed. Resume with the same values")
        self.consumed = carried_over(state, layout)


class Batches:
    """The loader as an endless iterator that advances the sampler's cursor with each batch taken."""

    def __init__(self, loader: DataLoader[Tensor], sampler: ShardedSampler) -> None:
        self.sampler = sampler
        self._iterator: Any = iter(loader)  # starts the loader's processes

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Tensor:
        batch: Tensor = next(self._iterator)
        self.sampler.advance()
        return batch

    def queue(self) -> LoaderQueue | None:
        """The number of ready batches; see ``scheduling.queue_of``."""
        return queue_of(self._iterator)

    def close(self) -> None:
        """Ends the loader's processes, which would otherwise live until the interpreter exits."""
        self._iterator = iter(())


def build_loader(
    dataset: Dataset[Tensor],
    sampler: ShardedSampler,
    *,
    num_workers: int,
    prefetch_factor: int,
    pin_memory: bool,
) -> DataLoader[Tensor]:
    """A DataLoader over requests. The dataset returns whole batches, so the loader's own batching is off.

    The loader has its own generator, from which it draws a base seed. Drawing that from torch's global generator would
    make a resumed run's random numbers differ from an uninterrupted run's.
    """
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        persistent_workers=num_workers > 0,
        pin_memory=pin_memory,
        generator=torch.Generator().manual_seed(sampler.seed),
    )
