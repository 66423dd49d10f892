"""What the manifest says of the training's DataLoader: an option of the bundled trainer, or seen by the hooks."""

from __future__ import annotations

from msgspec import Struct

from diag.collectors.records import Manifest


class LoaderSettings(Struct, frozen=True):
    """Of each rank's loader; None: not known. ``workers``: its processes, 0 where the training loads its batches
    itself. ``prefetch_factor``: batches that each of them keeps ready. ``pin_memory``: batches are page-locked."""

    workers: int | None
    prefetch_factor: int | None
    pin_memory: bool | None


def loader_settings(manifest: Manifest | None) -> LoaderSettings:
    """What is no integer or no boolean counts as unknown."""
    told = {**manifest.loader, **manifest.trainer} if manifest is not None else {}
    workers, factor, pinned = (told.get(name) for name in ("num_workers", "prefetch_factor", "pin_memory"))
    return LoaderSettings(
        workers if isinstance(workers, int) else None,
        factor if isinstance(factor, int) else None,
        pinned if isinstance(pinned, bool) else None,
    )
