"""Put on PYTHONPATH by the benchmark. The script is not changed.

PLANTED_RANK, PLANTED_STEP: the k-th step of any optimizer of one rank raises.
SLOW_RANK, SLOW_CALL, SLOW_MS: each call of MODULE:CLASS.METHOD waits longer on one rank.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import time


def _here(variable):
    return (os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0") == os.environ[variable]


def _raising(module):
    steps = 0

    def count(*_):
        nonlocal steps
        steps += 1
        if _here("PLANTED_RANK") and steps == int(os.environ["PLANTED_STEP"]):
            raise RuntimeError("planted")

    module.register_optimizer_step_pre_hook(count)


def _slow(module):
    owner, name = os.environ["SLOW_CALL"].partition(":")[2].split(".")
    owner = getattr(module, owner)
    method = getattr(owner, name)

    @functools.wraps(method)
    def slow(*args, **keywords):
        if _here("SLOW_RANK"):
            time.sleep(int(os.environ["SLOW_MS"]) / 1000)
        return method(*args, **keywords)

    setattr(owner, name, slow)


_WANTED = {}
if "PLANTED_RANK" in os.environ:
    _WANTED["torch.optim.optimizer"] = _raising
if "SLOW_RANK" in os.environ:
    _WANTED[os.environ["SLOW_CALL"].partition(":")[0]] = _slow


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        _WANTED[module.__name__](module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _WANTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


if _WANTED:
    sys.meta_path.insert(0, _Finder())
