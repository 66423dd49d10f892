"""PyTorch's Flight Recorders in this process.

There are several. ProcessGroupNCCL has a recorder of its own (``_dump_nccl_trace``, missing from a build without NCCL),
and so has XCCL (``_dump_xccl_trace``). The generic one (``_dump_fr_trace``, torch 2.8 and newer) is in every build:
gloo records there, and it stays empty after NCCL collectives. Where it takes ``backend=``, each backend without native
recording has a recorder of its own there (pytorch/pytorch#192233). So all of them are read, those of accelerators
first, and those without an entry are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .policy import RECORDING

TORCH = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])  # the version of torch: (2, 13)

# The name of the recorder, and of its dump function; with "_json" appended, the JSON dump. Accelerators first.
_NATIVE = (("nccl", "_dump_nccl_trace"), ("xccl", "_dump_xccl_trace"))
_GENERIC = "_dump_fr_trace"
# The first field of an entry, in the pickle and in JSON; the dump of an empty recorder does not contain it.
_ENTRY = b"record_id"

# Recorders whose entries hold no events of a device, by name.
_ON_HOST = ("", "gloo")

Status = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Recorder:
    """``name``: its backend; "" for the generic recorder, which several backends may share."""

    name: str
    pickled: Callable[..., bytes] | None
    json: Callable[..., bytes] | None

    def status(self) -> Status:
        """(last enqueued, last completed) of every process group, by the recorder's number for the group; empty where
        it does not report them. The dump without entries is a few hundred bytes."""
        if self.json is None:
            return {}
        try:
            groups = json.loads(self.json(includeCollectives=False))["pg_status"]
            return {
                str(name): (int(group["last_enqueued_collective"]), int(group["last_completed_collective"]))
                for name, group in groups.items()
            }
        except Exception:  # an older signature, another format, or whatever C++ raises: the report works without it
            return {}


def recorders() -> Iterator[Recorder]:
    """Every recorder of this build of torch, those of accelerators first, also empty ones."""
    c10d = getattr(torch._C, "_distributed_c10d", None)
    for name, function in _NATIVE:
        pickled, as_json = getattr(c10d, function, None), getattr(c10d, f"{function}_json", None)
        if pickled is not None or as_json is not None:
            yield Recorder(name, pickled, as_json)
    pickled, as_json = getattr(c10d, _GENERIC, None), getattr(c10d, f"{_GENERIC}_json", None)
    if pickled is None and as_json is None:
        return
    if _takes_backend(pickled or as_json):
        for name in _backends():
            yield Recorder(name, _of_backend(pickled, name), _of_backend(as_json, name))
    yield Recorder("", pickled, as_json)


def native_recorder() -> Recorder | None:
    """The recorder of the accelerator's backend with a JSON dump; None where this build of torch has none."""
    native = {name for name, _ in _NATIVE}
    return next((recorder for recorder in recorders() if recorder.name in native and recorder.json is not None), None)


def dumps(stacks: bool) -> tuple[dict[str, bytes], list[str]]:
    """The pickled dump of every recorder that holds an entry, by the recorder's name, those of accelerators first; and
    the errors. Two names for one recorder give one dump."""
    contents: dict[str, bytes] = {}
    problems = []
    for recorder in recorders():
        if recorder.pickled is None or recorder.name in contents:
            continue
        try:
            content = recorder.pickled(includeStackTraces=stacks)
        except Exception as error:  # whatever C++ raises: the next one may answer
            problems.append(f"{recorder.name or 'generic'}: {error!r}")
            continue
        if content and _ENTRY in content and content not in contents.values():
            contents[recorder.name] = content
    return contents, problems


def status() -> Status:
    """``Recorder.status`` of all recorders; where two have a group of the same name, the accelerator's counts."""
    counts_by_group: Status = {}
    for recorder in recorders():
        for group, counts in recorder.status().items():
            counts_by_group.setdefault(group, counts)
    return counts_by_group


class Counts:
    """``status`` of a rank that makes no progress.

    gloo's threads complete collectives that are under way together in any order, and torch keeps the number of the one
    that completed last: (84, 83) also where 83 was the slower one and nothing is under way. The entries say of each
    call whether it is over. They are a megabyte, so they are read when the rank has stood still for a while, and not
    again soon. Those of an accelerator are not read: that may ask a device that hangs, and its calls end in order.
    """

    def __init__(self) -> None:
        self._counts: Status = {}  # as torch told them, at the last look
        self._settled: Status = {}  # what the entries made of them
        self._looked_ns = 0

    def status(self, now_ns: int, still_ns: int) -> Status:
        """``now_ns``: monotonic; ``still_ns``: for how long the rank has shown no progress."""
        counts = status()
        since_ns = now_ns - self._looked_ns
        due = still_ns >= RECORDING.entries_read_after_ns and since_ns >= RECORDING.entries_read_every_ns
        if counts != self._counts or any(called > done for called, done in self._settled.values()):
            if not due:
                return self._settled if counts == self._counts else counts
            self._counts, self._looked_ns = counts, now_ns
            self._settled = _settled(counts)
        return self._settled


def _settled(counts: Status) -> Status:
    """Counts, in which a group is as far as its last call before the first one that is not over."""
    native = native_recorder()
    accelerated = {} if native is None else native.status()
    settled = dict(counts)
    for recorder in recorders():
        if recorder.name not in _ON_HOST or recorder.json is None:
            continue
        try:
            over: dict[str, dict[int, bool]] = {}
            for entry in json.loads(recorder.json()).get("entries", []):
                if not entry["is_p2p"]:
                    over.setdefault(str(entry["pg_id"]), {})[entry["collective_seq_id"]] = entry["retired"]
        except Exception:  # as above
            continue
        for group, (called, done) in counts.items():
            calls = over.get(group, {})
            # Only where the entries are known to say it: the call that torch says is done is over, none is missing.
            if group not in accelerated and calls.get(done) and all(number in calls for number in range(done, called)):
                settled[group] = called, min((number for number in calls if not calls[number]), default=called + 1) - 1
    return settled


def _backends() -> list[str]:
    """The backends of this process's groups: "nccl2" and "gloo" for "cpu:gloo,cuda:nccl2"."""
    if not dist.is_available() or not dist.is_initialized():
        return []
    texts = [str(backend) for backend, _ in dist.distributed_c10d._world.pg_map.values()]
    names = [part.rpartition(":")[2] for text in texts for part in text.split(",")]
    return [name for name in dict.fromkeys(names) if name]


def _takes_backend(function: Any) -> bool:
    """Whether a function takes ``backend=``. pybind puts the signature into the docstring; it is nowhere else."""
    return "backend:" in (getattr(function, "__doc__", None) or "").partition("\n")[0]


def _of_backend(function: Callable[..., bytes] | None, name: str) -> Callable[..., bytes] | None:
    if function is None:
        return None
    return lambda **arguments: function(backend=name, **arguments)
