"""Strategies of parallelism, one file each. The loop uses them only through ``base.Strategy``.

Importing this package does not import torch: commands also read the strategies' names, settings and refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..keys import KnobError, Knobs, values_of
from .base import Strategy
from .ddp import Ddp
from .deepspeed import DeepSpeed
from .fsdp1 import Fsdp1
from .fsdp2 import Fsdp2
from .zero1 import Zero1

if TYPE_CHECKING:
    import torch

    from ..options import TrainerOptions

STRATEGIES: Mapping[str, type[Strategy]] = {kind.facts.id: kind for kind in (Ddp, Zero1, Fsdp1, Fsdp2, DeepSpeed)}


def create(options: TrainerOptions, device: torch.device) -> Strategy:
    """The strategy of ``options``, which must have been validated."""
    strategy = STRATEGIES[options.strategy](options, device)
    if options.pipeline_parallel == 1:
        return strategy
    from .pipeline import PipelineStrategy

    return PipelineStrategy(strategy)


def usage(strategy: str) -> str:
    """The settings of a strategy, each with its default."""
    return ", ".join(map(str, STRATEGIES[strategy].settings))


def knobs_of(strategy: str, settings: tuple[str, ...]) -> Knobs:
    """The settings of a strategy from ``KEY=VALUE`` texts. KnobError has the mistake, and the strategies that do have
    an unknown key."""
    for part in settings:
        name = part.partition("=")[0].strip()
        owners = [
            name_of_owner for name_of_owner, kind in STRATEGIES.items() if name in {key.name for key in kind.settings}
        ]
        if owners and strategy not in owners:
            raise KnobError(
                f"--set {part} is a setting of --strategy {' and '.join(owners)}, not of {strategy}, which takes: "
                f"{usage(strategy)}"
            )
    keys = STRATEGIES[strategy].settings
    return Knobs(values_of(f"--strategy {strategy}", keys, settings, f"--set {usage(strategy)}", KnobError))
