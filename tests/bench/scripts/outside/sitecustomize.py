"""Put on PYTHONPATH by the benchmark: the k-th step of any optimizer of one rank raises. The script is not changed.

Environment: PLANTED_RANK, PLANTED_STEP.
"""

import importlib.abc
import importlib.machinery
import os
import sys

_MODULE = "torch.optim.optimizer"


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        steps = 0

        def count(*_):
            nonlocal steps
            rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
            steps += 1
            if rank == os.environ["PLANTED_RANK"] and steps == int(os.environ["PLANTED_STEP"]):
                raise RuntimeError("planted")

        module.register_optimizer_step_pre_hook(count)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if "PLANTED_RANK" in os.environ:
    sys.meta_path.insert(0, _Finder())
