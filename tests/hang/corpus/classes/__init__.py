"""A builder for every class; its docstring says what makes the class decidable."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..model import CLASSES
from ..story import Story
from . import calls, dead_ranks, devices, hosts, infiniband, network, nothing, services, waiting

_MODULES = (calls, dead_ranks, devices, hosts, infiniband, network, nothing, services, waiting)

BUILDERS: dict[str, Callable[[random.Random, int], Story]] = {
    name: next(getattr(module, name) for module in _MODULES if hasattr(module, name)) for name in CLASSES
}
