"""The knobs: one file each, pure functions from a case to the changes they propose, found through the registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..case import Candidate, Case
from . import gradient_sync, hybrid, loader, prefetch, reduce_dtype, reshard, straggler, wrap

REGISTRY: dict[str, Callable[[Case], Sequence[Candidate]]] = {
    "wrap granularity": wrap.propose,
    "prefetch": prefetch.propose,
    "reshard after forward": reshard.propose,
    "sharding group": hybrid.propose,
    "gradient synchronisation": gradient_sync.propose,
    "type of the gradients": reduce_dtype.propose,
    "data loader": loader.propose,
    "straggler": straggler.propose,
}
