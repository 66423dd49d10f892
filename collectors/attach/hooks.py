"""Hooks on the calls of a training: backward, optimizers, loaders, saving, evaluation, groups, profilers, DDP."""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from time import monotonic_ns
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ..calls import Patches, describe
from ..collectives import CollectiveTimer
from ..fence import Fence, Function, Inside, argument, unseen
from ..identity import prepare_environment
from ..layout import RunLayout
from ..numbers import GRADIENT_NORM, LOSS, REPORTED_LOSS, REPORTED_NORM
from ..scheduling import queue_of
from .boot import AfterImport
from .events import Events, nodes_made


class Attachment(Protocol):
    """The part of ``life.Attachment``, the recording of one process, that the hooks call."""

    events: Events
    described: bool
    fence: Fence

    def tell(self, event: str, *values: Any) -> Any: ...
    def number(self, what: str, value: Any) -> None: ...
    def find_attempt(self, rank: int, world_size: int) -> RunLayout: ...
    def joined(self) -> None: ...
    def leaves(self, error: BaseException | None) -> None: ...
    def optimizer_stepped(self, optimizer: Any) -> None: ...
    def engine_stepped(self, engine: Any) -> None: ...
    def profiler_starts(self, profiler: Any) -> None: ...


# -- evaluation --------------------------------------------------------------------------------------------------------
#
# A hook on ``Module.train``, which ``Module.eval`` also calls: after ``train(False)`` an evaluation may follow. It
# lasts until the same module returns to training mode or the training fetches a batch.


def install_evaluation(patches: Patches, life: Attachment) -> None:
    inside = Inside()
    evaluated: int | None = None  # the module whose evaluation mode was last reported

    # Called once for every submodule: it compares one number when a model returns to training mode.
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        nonlocal evaluated
        if _mode(args, kwargs):
            if id(args[0]) == evaluated:
                evaluated = None
                life.tell("train_called", nodes_made())
            return None
        evaluated = id(args[0])
        life.tell("eval_called", nodes_made())
        return True

    train = life.fence.around(torch.nn.Module.train, begin, inside=inside, skip=torch.compiler.is_compiling)
    patches.replace(torch.nn.Module, "train", train)


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("mode", True)


# -- hooking -----------------------------------------------------------------------------------------------------------
#
# Replaces functions of libraries by ones that report their calls, and lists those that could not be replaced.


class Hooks:
    """Patches with names: the manifest lists which are installed, which are not, and why."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.placed: list[str] = []
        self.missing: dict[str, str] = {}

    def place(self, name: str, put: Callable[[Patches], object]) -> None:
        """Runs ``put``. An unexpected version of a library costs only this hook."""
        try:
            put(self.patches)
        except Exception as error:  # whatever another version of the library raises
            self.missing[name] = repr(error)
        else:
            self.placed.append(name)

    def remove(self) -> None:
        self.patches.undo()


# -- tokens ------------------------------------------------------------------------------------------------------------
#
# Tokens of a step, only where the inputs are certain: Hugging Face's Trainer passes those of every micro-batch.

_INPUTS = argument(2, "inputs")  # of Trainer.training_step
_SHARED_BY = ("get_tp_size", "get_cp_size", "get_sp_size")  # number of ranks that work on one batch


def install_tokens(trainer_module: ModuleType, patches: Patches, life: Attachment) -> None:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        life.tell("note", _tokens(args[0], _INPUTS(args, kwargs)), None)

    trainer = trainer_module.Trainer
    patches.replace(trainer, "training_step", life.fence.around(trainer.training_step, begin))


def _tokens(trainer: Any, inputs: Any) -> int:
    """Number of positions, including padding, which is computed, too; 0 for inputs that are not text."""
    ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    if not isinstance(ids, torch.Tensor) or any(_size(trainer, name) > 1 for name in _SHARED_BY):
        return 0
    return ids.numel()


def _size(trainer: Any, name: str) -> int:
    size_of = getattr(trainer, name, None)
    return int(size_of()) if size_of is not None else 1


# -- groups ------------------------------------------------------------------------------------------------------------
#
# Hooks on the creation and the destruction of the process group.

_WORLD_SIZE = argument(3, "world_size")  # of init_process_group
_RANK = argument(4, "rank")
_GROUP = argument(0, "group")  # of destroy_process_group


def install_process_group(patches: Patches, life: Attachment) -> None:
    def init_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        rank = _number(args, kwargs, _RANK, "RANK")
        if rank is not None and rank >= 0:
            _prepare(life, rank, _number(args, kwargs, _WORLD_SIZE, "WORLD_SIZE") or 0)
        return True

    def destroy_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        group = _GROUP(args, kwargs)
        if group is None or group is dist.group.WORLD:
            life.leaves(sys.exc_info()[1])  # before the group is gone, with the exception that is being handled

    around = life.fence.around
    init = around(c10d.init_process_group, init_begins, lambda _begun, _result: life.joined())
    destroy = around(c10d.destroy_process_group, destroy_begins)
    for module in (c10d, dist):
        patches.replace(module, "init_process_group", init)
        patches.replace(module, "destroy_process_group", destroy)


def _number(args: tuple[Any, ...], kwargs: dict[str, Any], argument: Any, variable: str) -> int | None:
    """What the call gives, or else the variable that torch reads; None without both."""
    given = argument(args, kwargs)
    if isinstance(given, int) and given >= 0:
        return given
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _prepare(life: Attachment, rank: int, world_size: int) -> None:
    """Sends NCCL's log and the Flight Recorder's dumps to the run directory; NCCL's log only if the user has not asked
    for one."""
    run = life.find_attempt(rank, world_size)
    prepare_environment(run.rank(rank), nccl_log="NCCL_DEBUG" not in os.environ)


# -- backwards ---------------------------------------------------------------------------------------------------------
#
# Hooks on backward, outermost calls only: activation checkpointing calls it again inside, and DeepSpeed's engine calls
# PyTorch's backward and reduces the gradients before it returns.


def install_backward(hooks: Hooks, imports: AfterImport, life: Attachment) -> None:
    inside, events = Inside(), life.events

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        events.backward_begins()
        life.number(LOSS, _loss(args, kwargs))
        return True

    def put(patches: Patches, *owners: Any) -> None:
        for owner in owners:
            timed = life.fence.around(
                owner.backward,
                begin,
                lambda _begun, _result: events.backward_ends(),
                lambda _begun, _error: life.tell("interrupted"),
                inside,
                torch.compiler.is_dynamo_compiling,
            )
            patches.replace(owner, "backward", timed)

    def on_deepspeed(engine: ModuleType) -> None:
        hooks.place("DeepSpeed's backward", lambda patches: put(patches, engine.DeepSpeedEngine))

    hooks.place("backward", lambda patches: put(patches, torch.Tensor, torch.autograd))
    imports.call("deepspeed.runtime.engine", on_deepspeed)


def _loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the gradients are of: the tensor itself, the first argument of ``torch.autograd.backward``, or the loss that
    DeepSpeed's engine is given."""
    for value in (*args[:2], kwargs.get("tensors"), kwargs.get("loss")):
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, list | tuple) and len(value) == 1:
            return value[0]
    return None


# -- numbers -----------------------------------------------------------------------------------------------------------
#
# The gradient's norm as torch's function returns it, and what Hugging Face's Trainer reports: floats, whatever device
# it trains on.


def install_norm(patches: Patches, life: Attachment) -> None:
    def end(_begun: Any, norm: Any) -> None:
        life.number(GRADIENT_NORM, norm)

    original = torch.nn.utils.clip_grad_norm_
    clip = life.fence.around(original, lambda _args, _kwargs: True, end, skip=torch.compiler.is_compiling)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        patches.replace(module, "clip_grad_norm_", clip)


_LOGS = argument(1, "logs")  # of Trainer.log


def install_reports(trainer_module: ModuleType, patches: Patches, life: Attachment) -> None:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        logs = _LOGS(args, kwargs)
        if isinstance(logs, Mapping):
            for name, what in (("loss", REPORTED_LOSS), ("grad_norm", REPORTED_NORM)):
                life.number(what, logs.get(name))

    trainer = trainer_module.Trainer
    patches.replace(trainer, "log", life.fence.around(trainer.log, begin))


# -- loaders -----------------------------------------------------------------------------------------------------------
#
# The time of each request for a batch and of its arrival: hooks on ``torch.utils.data.DataLoader``.


class Fetches:
    """Reports the batches that a training waits for; only outermost calls, as a dataset may use a loader itself."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._events = life.events
        self._inside = Inside()
        self._loader = 0  # the outermost loader
        self._settings: dict[int, dict[str, Any]] = {}  # by loader, if it has any

    def timed(self, fetch: Function, source: Callable[[tuple[Any, ...]], tuple[int, Any]]) -> Function:
        """``fetch``, which returns the next batch, with reports. ``source``: the number of the loader and the iterator,
        from the arguments."""

        def begin(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool | None:
            loader, iterator = source(args)
            if self._inside.now:
                if self._events.looks:
                    self._look_at(iterator)  # a wrapper of a DataLoader has no queue of its own
                return None
            self._loader = loader
            self._events.fetch_begins(loader, torch.is_grad_enabled())
            if self._events.looks:
                self._look_at(iterator)
            self._inside.now = True
            return True

        return self._life.fence.around(fetch, begin, self._ended, self._raised)

    def _ended(self, _begun: Any, _batch: Any) -> None:
        self._inside.now = False
        self._events.fetch_ends()

    def _raised(self, _begun: Any, error: BaseException) -> None:
        self._inside.now = False
        if isinstance(error, StopIteration):
            self._life.tell("fetch_ends", True)
        else:
            self._life.tell("interrupted")

    def settings(self, loaders: Collection[int]) -> dict[str, Any]:
        """The settings that are equal in these loaders, or in all loaders seen if ``loaders`` is empty:
        ``num_workers``, ``prefetch_factor``, ``pin_memory``."""
        loader_settings = [self._settings.get(loader, {}) for loader in loaders or self._settings] or [{}]
        return {
            name: value
            for name, value in loader_settings[0].items()
            if all(other_settings.get(name) == value for other_settings in loader_settings)
        }

    def _look_at(self, iterator: Any) -> None:
        if self._loader not in self._settings and (settings := _settings_of(iterator)):
            self._settings[self._loader] = settings
        queue = queue_of(iterator)
        if queue is not None:
            self._events.queue_seen(queue)


def install_loader(patches: Patches, fetches: Fetches) -> None:
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def source(args: tuple[Any, ...]) -> tuple[int, Any]:
        # Identifies the loader: each epoch has a new iterator, but the same sampler.
        return id(getattr(args[0], "_index_sampler", args[0])), args[0]

    patches.replace(_BaseDataLoaderIter, "__next__", fetches.timed(_BaseDataLoaderIter.__next__, source))


def _settings_of(iterator: Any) -> dict[str, Any]:
    """The settings of a DataLoader's iterator, from its private fields; empty for any other iterator."""
    workers = getattr(iterator, "_num_workers", None)
    if not isinstance(workers, int):
        return {}
    settings = {"num_workers": workers, "pin_memory": bool(getattr(iterator, "_pin_memory", False))}
    factor = getattr(iterator, "_prefetch_factor", None)
    return {**settings, "prefetch_factor": factor} if isinstance(factor, int) else settings


# -- profiling ---------------------------------------------------------------------------------------------------------
#
# Only one profiler can run: if the training uses one of its own, ours is disabled for the rest of the run.


def install_profiler(patches: Patches, life: Attachment) -> None:
    profile: Any = torch.autograd.profiler.profile
    prepare = life.fence.around(profile._prepare_trace, lambda args, _kwargs: life.profiler_starts(args[0]))
    patches.replace(profile, "_prepare_trace", prepare)


# -- optimizers --------------------------------------------------------------------------------------------------------
#
# Hooks on optimizers: PyTorch's own, gradient scalers that may skip their step, and DeepSpeed's engine around them.


def install_optimizers(life: Attachment) -> list[RemovableHandle]:
    """Registers PyTorch's own hooks, which every subclass of ``Optimizer`` calls, wrapped or not. They must not be
    removed inside one of them."""

    events, compiling = life.events, torch.compiler.is_dynamo_compiling

    def begins(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        events.optimizer_begins(id(optimizer))

    def ends(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not life.described:
            life.optimizer_stepped(optimizer)
        events.optimizer_ends(id(optimizer))

    hook = life.fence.hook  # the end always: it also counts the steps of a process that is not recorded
    before, after = hook(begins, skip=compiling), hook(ends, always=True, skip=compiling)
    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]


def install_zeroing(patches: Patches, life: Attachment) -> None:
    """Hooks ``zero_grad``, the only sign of an optimizer whose step is compiled: compiled code runs no hooks."""

    def begin(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        life.events.gradients_cleared()

    for owner in (Optimizer, torch.nn.Module):
        zero_grad = life.fence.around(owner.zero_grad, begin, skip=torch.compiler.is_dynamo_compiling)
        patches.replace(owner, "zero_grad", zero_grad)


def install_scaler(patches: Patches, life: Attachment) -> None:
    """Hooks the gradient scaler: a step that it skips because of overflowed gradients still counts as a step."""
    from torch.amp.grad_scaler import GradScaler

    optimizer_of = argument(1, "optimizer")

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        number = -id(optimizer_of(args, kwargs))  # differs from the optimizer's own number, whose step is inside
        life.events.optimizer_begins(number)
        return number

    step = life.fence.around(GradScaler.step, begin, lambda number, _result: life.events.optimizer_ends(number))
    patches.replace(GradScaler, "step", step)


def install_engine(engine_module: ModuleType, patches: Patches, life: Attachment) -> None:
    """Hooks DeepSpeed's engine. Its step is called after every micro-batch, and its ZeRO optimizers call the inner
    optimizer once for every group of parameters."""
    engine_class = engine_module.DeepSpeedEngine

    def begin(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> tuple[Any, int]:
        engine = args[0]
        life.events.optimizer_begins(id(engine))
        return engine, engine.global_steps

    def end(begun: tuple[Any, int], _result: Any) -> None:
        engine, before = begun
        life.engine_stepped(engine)
        life.events.optimizer_ends(id(engine), engine.global_steps > before)

    patches.replace(engine_class, "step", life.fence.around(engine_class.step, begin, end))


# -- checkpoints -------------------------------------------------------------------------------------------------------
#
# Hooks on saving: the functions of PyTorch and safetensors that write files, and those of frameworks around them.

_DISTRIBUTED = "torch.distributed.checkpoint"
# Module: the class whose methods save, or "" for functions of the module, and the names.
_SAVERS = {
    "safetensors.torch": ("", ("save_file",)),
    "accelerate.accelerator": ("Accelerator", ("save_state",)),
    "transformers.trainer": ("Trainer", ("_save_checkpoint",)),
    "lightning.pytorch.trainer.trainer": ("Trainer", ("save_checkpoint",)),
    "deepspeed.runtime.engine": ("DeepSpeedEngine", ("save_checkpoint",)),
    _DISTRIBUTED: ("", ("save", "async_save", "save_state_dict")),
}


class Saving:
    """Hooks all functions that save. They call each other, so they share one guard: only the outermost call counts."""

    def __init__(self, life: Attachment) -> None:
        self._life = life
        self._inside = Inside()

    def install(self, hooks: Hooks, imports: AfterImport) -> None:
        """Hooks ``torch.save`` at once, the others when the training imports them."""
        hooks.place("torch.save", lambda patches: self._put(patches, (torch, torch.serialization), ("save",)))

        def on_import(module: ModuleType) -> None:
            hooks.place(f"saving: {module.__name__}", lambda patches: self._put_into(patches, module))

        for name in _SAVERS:
            imports.call(name, on_import)

    def _put_into(self, patches: Patches, module: ModuleType) -> None:
        class_name, names = _SAVERS[module.__name__]
        if class_name:
            self._put(patches, (getattr(module, class_name),), names)
        elif module.__name__ == _DISTRIBUTED:
            self._put(patches, (sys.modules[f"{_DISTRIBUTED}.state_dict_saver"], module), names)
        else:
            self._put(patches, (module,), names)

    def _put(self, patches: Patches, owners: Sequence[Any], names: Sequence[str]) -> None:
        """``owners``: modules that export the same functions, or a class."""
        for name in names:
            original = getattr(owners[0], name, None)
            if original is None:
                continue
            timed = self._life.fence.around(
                original,
                lambda _args, _kwargs: (self._life.tell("checkpoint_begins"),),
                self._saved,
                lambda _begun, _error: self._life.tell("interrupted"),
                self._inside,
                torch.compiler.is_dynamo_compiling,
            )
            for owner in owners:
                if getattr(owner, name, None) is original:
                    patches.replace(owner, name, timed)

    def _saved(self, begun: tuple[Any], _result: Any) -> None:
        if begun[0] is not None:
            self._life.tell("checkpoint_ends", begun[0])


# -- DDP ---------------------------------------------------------------------------------------------------------------
#
# DistributedDataParallel's gradients, which C++ reduces without calling Python.
#
# The reducer is not changed: with a communication hook of ours it would divide each bucket in a kernel of its own and
# create its views anew. It reports how long after the end of forward each gradient was ready, and backward returns when
# the last bucket is reduced. The rank waits in between, which is the only visible part of the reduction: one row per
# backward, not one per bucket. A communication hook of the training is called through one of ours, which times its
# calls.


@dataclass(slots=True, eq=False)
class _Reduced:
    """The gradients of one reducer."""

    reducer: weakref.ref[Any]
    module: weakref.ref[Any]
    bytes: int
    dtype: str
    on_device: bool
    ready: list[int]  # when each gradient was ready, as last reported: changes with every backward of its module
    group: str = ""  # looked up when it is needed: the group may be destroyed before the module
    hooked: bool = False  # a communication hook of the training reduces, and is timed
    prepared_ns: int = 0  # when it was last prepared for a backward


class Reducers:
    """The DDP modules of the process."""

    def __init__(self, timer: CollectiveTimer, fence: Fence) -> None:
        self._timer, self._fence = timer, fence
        timer.reducing_groups = fence.hook(self._reducing_groups)
        self._before_the_end = fence.hook(self._gradient_ready)
        self._computed = fence.hook(timer.backward_computed)
        self._reduced: dict[int, _Reduced] = {}  # by the reducer's id
        self._prepared: list[_Reduced] = []  # those whose backward has not ended
        self.seen = False  # whether there was a DDP module
        self.not_timed: list[str] = []
        self._noting: Callable[..., None] | None = None  # in place of the reducer's function

    def install(self, patches: Patches) -> None:
        from torch._C._distributed_c10d import Reducer  # not in every build of torch

        fence, failed = self._fence, self._fence.failed
        register, prepare = DistributedDataParallel.register_comm_hook, Reducer.prepare_for_backward
        get_reduced, prepared = self._reduced.get, self._prepared
        init = fence.around(
            DistributedDataParallel.__init__,
            lambda args, _kwargs: args[:1],
            lambda begun, _result: self._add(begun[0]),
        )

        @functools.wraps(register)
        def register_comm_hook(module: Any, /, state: Any, hook: Any) -> None:
            timed = fence.call(self._timer.timed_bucket, hook)
            if timed is None:
                return register(module, state, hook)
            module._check_comm_hook(hook)  # raises for a hook of another signature, and ours has none
            register(module, state, timed)
            fence.call(self._is_hooked, module)

        def prepare_for_backward(reducer: Any, /, *args: Any, **kwargs: Any) -> None:
            try:
                reduced = get_reduced(id(reducer))
                if reduced is not None:
                    reduced.prepared_ns = monotonic_ns()  # the reducer counts its times from here
                    if reduced not in prepared:
                        prepared.append(reduced)
            except Exception as error:
                failed(error)
            prepare(reducer, *args, **kwargs)

        patches.replace(DistributedDataParallel, "__init__", init)
        patches.replace(DistributedDataParallel, "register_comm_hook", unseen(register_comm_hook))
        patches.replace(Reducer, "prepare_for_backward", prepare_for_backward)
        self._noting = prepare_for_backward

    def keep_from(self, dynamo: ModuleType) -> None:
        """Excludes our function from compilation, like the forward that calls it. torch's decorator for that would wrap
        it in code that takes three times as long as the function itself."""
        dynamo.skip(self._noting)

    def _is_hooked(self, module: Any) -> None:
        reduced = self._reduced.get(id(module.reducer))
        if reduced is not None:
            reduced.hooked = True

    def find(self) -> None:
        """Adds the modules that were created before ``install``."""
        for candidate in gc.get_objects():
            if issubclass(type(candidate), DistributedDataParallel):
                self._add(candidate)

    def _add(self, module: Any) -> None:
        self.seen = True
        if getattr(module, "_use_python_reducer", False):
            self.not_timed.append("torch.compile reduces DDP's gradients itself")
            return
        ignored = getattr(module, "parameters_to_ignore", ())
        owned = [p for name, p in module.named_parameters() if p.requires_grad and name not in ignored]
        size, dtype, on_device = describe(owned)
        if getattr(module, "_comm_hooks", ()):
            size = 0  # the collectives of its hook have rows of their own
        if on_device:  # a gradient's hook runs before the reducer handles the gradient
            owned[-1].register_hook(self._before_the_end)
        reducer = module.reducer
        number, ready = id(reducer), reducer.get_backward_stats()
        reducer_ref = weakref.ref(reducer, lambda _gone: self._reduced.pop(number, None))  # another may get its number
        self._reduced[number] = _Reduced(reducer_ref, weakref.ref(module), size, dtype, on_device, ready)

    def _gradient_ready(self, _gradient: torch.Tensor) -> None:
        """Queues a callback that runs before the reducer's: callbacks run in order, and the reducer queues its own with
        the last bucket."""
        torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def backward_ends(self) -> None:
        """Called when a backward of any modules has returned."""
        now, timer = monotonic_ns(), self._timer
        if timer.ddp_buckets:
            timer.end_backward(now)
        for reduced in self._prepared[:]:
            reducer = reduced.reducer()
            if reducer is None:
                self._prepared.remove(reduced)
                continue
            ready_times = reducer.get_backward_stats()
            if ready_times == reduced.ready:  # its module's backward has not run yet
                continue
            reduced.ready = ready_times
            self._prepared.remove(reduced)
            if not reduced.hooked and (group := reduced.group or self._group_of(reduced)):
                last = min(reduced.prepared_ns + max(ready_times), now)
                timer.reduced(group, reduced.bytes, reduced.dtype, reduced.on_device, last, now)

    def _reducing_groups(self) -> list[str]:
        """The group of each module whose gradients are all ready while its backward has not returned: their reduction
        is under way. Asked by another thread while the training stands still."""
        groups = []
        for reduced in self._prepared[:]:
            reducer = reduced.reducer()
            if reducer is None or reduced.hooked:
                continue
            ready_times = reducer.get_backward_stats()
            if all(map(ne, ready_times, reduced.ready)) and (group := reduced.group or self._group_of(reduced)):
                groups.append(group)
        return groups

    def _group_of(self, reduced: _Reduced) -> str:
        """The name of the module's group; empty if the module is gone."""
        module = reduced.module()
        if module is not None:
            reduced.group = self._timer.group_name(module.process_group)
        return reduced.group
