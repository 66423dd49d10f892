"""Hooks on the process group's beginning and end: between them the ranks know each other."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..calls import argument
from ..identity import prepare_environment
from ..layout import RunLayout
from ..patches import Patches

if TYPE_CHECKING:
    from .life import Attachment

_RANK = argument(4, "rank")  # of init_process_group
_GROUP = argument(0, "group")  # of destroy_process_group


def install(patches: Patches, life: Attachment) -> None:
    init, destroy = c10d.init_process_group, c10d.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        rank = _rank(args, kwargs)
        if rank is not None:
            life.safely(lambda: _prepare(life, rank))
        result = init(*args, **kwargs)
        life.joined()
        return result

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        group = _GROUP(args, kwargs)
        if group is None or group is dist.group.WORLD:
            life.finish(sys.exc_info()[1])  # while the group still has something to tell of a failure
        return destroy(*args, **kwargs)

    for module in (c10d, dist):
        patches.replace(module, "init_process_group", init_process_group)
        patches.replace(module, "destroy_process_group", destroy_process_group)


def _rank(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    given = _RANK(args, kwargs)
    if isinstance(given, int) and given >= 0:
        return given
    named = os.environ.get("RANK", "")
    return int(named) if named.isdecimal() else None


def _prepare(life: Attachment, rank: int) -> None:
    """NCCL's log and the Flight Recorder's dumps into the run directory; NCCL's log not where the user asked for one,
    which stays where it would be."""
    prepare_environment(RunLayout(life.run_dir).rank(rank), nccl_log="NCCL_DEBUG" not in os.environ)
