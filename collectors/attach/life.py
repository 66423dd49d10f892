"""The recording of a process from ``import torch`` to its end: when it begins, which events it gets, and how it ends.

The hooks are installed when torch is imported, so that the training never gets a function without one. They do nothing
until the process joins a process group, or trains without one. The recording must not end a training: an exception here
switches the recording off, with one line on standard error.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from ..accelerator import device_in_use, device_is_settled
from ..attempts import attempt_of
from ..budget import Complaints
from ..calls import Patches
from ..collectives import CollectiveTimer
from ..dumps import install_excepthook, write_exception
from ..fence import Fence, ignore
from ..files import append_to, create_file, encode
from ..identity import identify, rank_and_world
from ..keeping import Keeper
from ..launchers import joins
from ..layout import RUN_DIR_VARIABLE, RunLayout
from ..packing import keeper_of, make_private, packing_from
from ..policy import RECORDING
from ..records import Unrecorded
from ..session import Collector
from ..settings import (
    OWNER_VARIABLE,
    CollectorSettings,
    restarts,
    run_dir_from,
    settings_from,
    wanted,
)
from ..strategies import DDP, DEEPSPEED, FSDP1, FSDP2, ZERO1
from . import hooks
from .boot import AfterImport
from .events import Events, nodes_made
from .hooks import Hooks, Reducers, Saving
from .leaving import Failure, Leaving, ended_by, failed_with, failure_of

# -- strategy ----------------------------------------------------------------------------------------------------------
#
# The parallelism of a training, inferred from the objects that exist at its first step.


def strategy_of(optimizer: Any, engine: Any, ddp: bool) -> tuple[str, dict[str, int]]:
    """The strategy, "none" without any, and the mesh where one is known."""
    if engine is not None:
        return f"{DEEPSPEED.id}-zero{engine.zero_optimization_stage()}", {}
    parameters = [p for group in getattr(optimizer, "param_groups", []) for p in group.get("params", [])]
    mesh = next((placed_on for p in parameters if (placed_on := getattr(p, "device_mesh", None)) is not None), None)
    if mesh is not None:
        fully_sharded = "torch.distributed.fsdp" in sys.modules
        return FSDP2.id if fully_sharded else "tensor-parallel", _sizes(mesh)
    if any(getattr(p, "_fsdp_flattened", False) or type(p).__name__ == "FlatParameter" for p in parameters):
        return FSDP1.id, {}
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return ZERO1.id, {}
    return (DDP.id if ddp else "none"), {}


def _sizes(mesh: Any) -> dict[str, int]:
    names = getattr(mesh, "mesh_dim_names", None) or ()
    return dict(zip(names, map(int, mesh.shape), strict=False))


# Events that begin the recording of a process without a process group: they show that it trains.
_TRAINS = frozenset({"backward_begins", "optimizer_begins", "told_steps"})
# Phases without a call of their own: they are inferred from the events around them.
_INFERRED = {
    "forward": "from the arrival of the last batch to the start of backward, and before that batch was requested if "
    "autograd made more nodes there",
    "optimizer": "from the end of the last backward to the end of the optimizer's step",
    "DDP's reductions": "one call per backward, from when the last gradient was ready to the end of backward",
    "evaluation": "from Module.train(False), or a batch fetched without gradients, to the training's next batch or to "
    "Module.train(True) of the same module",
}
_NOT_HOOKED = {
    "h2d": "the device time of host-to-device copies is recorded in profiler windows only; for a copy from "
    "pageable memory, the time for which the host is blocked is recorded",
    "loss on a device": "reading it would wait for the device; the losses and gradient norms that the training itself "
    "reports are looked at (Hugging Face's Trainer)",
    "other loaders": "batches that do not come from a torch DataLoader: waiting for them counts as forward",
}


def backend_in_use() -> str | None:
    """Of the default group. Initialised without one, or with one for each kind of device, torch calls it "undefined" or
    "cpu:gloo,cuda:nccl": then the one for the device in use."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    name = dist.get_backend()
    if name != dist.Backend.UNDEFINED and ":" not in name:
        return name
    by_device = dict(each.split(":", 1) for each in str(dist.get_backend_config()).split(",") if ":" in each)
    return by_device.get(device_in_use().type, name)


class Attachment:
    """The recording of one process, started by its launcher, or by its own script (``explicit``)."""

    def __init__(
        self, run_dir: Path, settings: CollectorSettings, explicit: bool = False, fence: Fence | None = None
    ) -> None:
        """``fence``: the one that the process has already."""
        self.run_dir = run_dir
        self._found = False  # whether it is the folder of this attempt, where several share one
        self._hooks = Hooks()
        self.fence = fence = fence or Fence()
        fence.say = _say
        self._timer = CollectiveTimer(settings.max_collectives_per_step, fence=fence)
        self._reducers = Reducers(self._timer, self.fence)
        self.events = Events(self.tell, self._reducers.backward_ends, self.fence.failed)
        fence.undo += [
            lambda _why: self._hear_no_more(),
            lambda _why: self._timer.uninstall(),
            lambda _why: self._hooks.remove(),
            self._give_up,
        ]
        self.fetches = hooks.Fetches(self)
        self._settings = settings
        self._explicit = explicit
        self._handles: list[Any] = []  # of hooks that stay until the training has ended
        self._child_ends: Finalize[Any] | None = None  # set in a process of multiprocessing
        self._collector: Collector | None = None
        self._packed: Keeper | None = None
        self._error_file: Path | None = None  # of a process that is recorded, or was
        # Rank, world size and number of steps when the process group was destroyed.
        self._before: tuple[int, int, int] | None = None
        self._over = False  # further events are ignored
        self._closed = False
        self._unrecorded = ""  # why the process is not recorded; reported if it trains
        self._unrecorded_steps = 0
        self._optimizer: Any = None
        self._engine: Any = None
        self._imports: AfterImport | None = None
        self.described = False
        self._own_profiler = False  # the training runs its own profiler
        self._leaving = Leaving(self.fence, self._close, self._progress)

    def install(self, imports: AfterImport) -> None:
        """Hooks everything that ``import torch`` brought, and the rest when the training imports it."""
        self._imports = imports
        place = self._hooks.place

        def on_import(module: str, hook: str, put: Callable[[ModuleType, Patches, Attachment], None]) -> None:
            imports.call(module, lambda library: place(hook, lambda patches: put(library, patches, self)))

        place("loader", lambda patches: hooks.install_loader(patches, self.fetches))
        hooks.install_backward(self._hooks, imports, self)
        place("optimizer", lambda _patches: self._handles.extend(hooks.install_optimizers(self)))
        place("zero_grad", lambda patches: hooks.install_zeroing(patches, self))
        place("gradient scaler", lambda patches: hooks.install_scaler(patches, self))
        place("gradient norm", lambda patches: hooks.install_norm(patches, self))
        place("evaluation", lambda patches: hooks.install_evaluation(patches, self))
        place("profiler", lambda patches: hooks.install_profiler(patches, self))
        Saving(self).install(self._hooks, imports)
        if not self._explicit:
            place("traceback", lambda _patches: install_excepthook())
            place("exit", lambda _patches: self._leaving.install(lambda: self.events.thread))
        if dist.is_available():
            place("process group", lambda patches: hooks.install_process_group(patches, self))
            if self._settings.collectives:
                place("collectives", lambda _patches: self._timer.install_calls())
                place("DDP", self._reducers.install)
                on_import("torch._dynamo.decorators", "compiler", lambda dynamo, *_: self._reducers.keep_from(dynamo))

        on_import("deepspeed.runtime.engine", "DeepSpeed", hooks.install_engine)
        on_import("transformers.trainer", "tokens", hooks.install_tokens)
        on_import("transformers.trainer", "reported numbers", hooks.install_reports)
        self._exit_hooks = [self.fence.hook(action, always=True) for action in (self._timer.let_go, self._at_exit)]
        for hook in self._exit_hooks:  # called in reverse order
            atexit.register(hook)
        quiet = Fence()  # a fork is not recorded anyway
        quiet.say = ignore
        os.register_at_fork(after_in_child=quiet.hook(self._forked))

    def begin(self) -> None:
        """Called by a script that records itself. Without a process group the recording begins with the first step."""
        self.install(AfterImport(self.fence))
        if _joined():
            self.joined()

    def joined(self) -> None:
        """Called when the process group has been initialized."""
        if device_is_settled():
            self._begin()

    def find_attempt(self, rank: int, world_size: int) -> RunLayout:
        """The run directory of this process, once it is known which rank it is. ``world_size``: 0 if unknown."""
        if joins() and not self._found:
            self._found = True
            with contextlib.suppress(OSError):  # which the collector reports
                self.run_dir = attempt_of(RunLayout(self.run_dir), rank, world_size).root
        return RunLayout(self.run_dir)

    def _begin(self) -> None:
        if self._collector is not None or self._over:
            return
        rank, _, world_size = rank_and_world()
        if self._before is not None and (why := self._goes_on_as_another(rank, world_size)):
            self._end(why)
            return
        if why := self._recorded_otherwise():
            self._end(why)
            self._unrecorded = ""
            return
        if why := self._why_not(rank, world_size):
            self._end(why)
            return
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        steps = self._before[2] if self._before is not None else 0
        collector = Collector(self.run_dir, self._settings, device_in_use(), self._timer, self.fence, steps)
        self._collector, self._error_file = collector, collector.error_file
        collector.__enter__()
        self._keep_packed()
        self.events.record(collector, steps)
        collector.followed_by(self.events)
        if self._child_ends is None and multiprocessing.parent_process() is not None:
            # A forked process ends by os._exit, without atexit. multiprocessing clears inherited finalizers in the
            # child, so this one is registered here and not earlier.
            self._child_ends = Finalize(None, self.fence.hook(self._at_end_of_child, always=True), exitpriority=0)
        if self._explicit:
            self._reducers.find()
        if self._own_profiler:
            collector.no_windows("the training runs its own profiler")
        collector.describe(world_size=world_size, backend=backend_in_use(), collector={"attached": self._about()})

    def _keep_packed(self) -> None:
        """Sees to it that what is recorded leaves this node, if the launcher wants that."""
        packing, folder = packing_from(), os.environ.get(RUN_DIR_VARIABLE)
        if packing is not None and folder and self._packed is None and not self._explicit:
            self._packed = keeper_of(Path(folder), packing, _say)
            self._packed.start()

    def _goes_on_as_another(self, rank: int, world_size: int) -> str:
        """Why the steps after the process group was destroyed do not belong to those before it; "" if they do."""
        assert self._before is not None
        before_rank, before_size, steps = self._before
        if (rank, world_size) == (before_rank, before_size):
            return ""
        return (
            f"the process group was destroyed after {steps} steps, and rank {before_rank} of {before_size} goes on "
            f"as rank {rank} of {world_size}"
        )

    def _recorded_otherwise(self) -> str:
        """Why nothing is to be recorded here: the process is recorded already, or must not be; "" otherwise."""
        owner = os.environ.get(OWNER_VARIABLE, "")
        if self._before is not None:
            return ""
        if self._explicit and owner == str(os.getpid()):
            return "this process is already recorded"
        if not self._explicit and not owner and not wanted():
            return "recording is switched off"
        if not self._explicit and "diag.collectors.session" in sys.modules:
            return "the training uses its own Collector"
        return ""

    def _why_not(self, rank: int, world_size: int) -> str:
        """Why this process cannot be recorded; "" if it can, and then the rank's folder belongs to this process."""
        if os.environ.get(OWNER_VARIABLE, str(os.getpid())) != str(os.getpid()):
            return "an ancestor process is recorded"
        if self._before is not None:  # the folder is this process's own
            return ""
        files = self.find_attempt(rank, world_size).rank(rank)
        files.folder.mkdir(parents=True, exist_ok=True)
        occupied = files.identity.exists()
        if not occupied:
            with contextlib.suppress(OSError):  # which the collector reports
                occupied = not create_file(files.identity, encode(identify(device_in_use())))
        return f"{self.run_dir} already has a rank {rank}" if occupied else ""

    def _about(self) -> dict[str, Any]:
        missing = _NOT_HOOKED | self._hooks.missing
        if self._reducers.not_timed:
            missing["DDP's reductions"] = "; ".join(dict.fromkeys(self._reducers.not_timed))
        return {
            "command": sys.orig_argv,
            "restarts": restarts(),
            "hooked": self._hooks.placed,
            "not_hooked": missing,
            "inferred": _INFERRED,
        }

    def tell(self, event: str, *values: Any) -> Any:
        """Passes an event of the training's thread to the timeline. Called within the fence."""
        if self._unrecorded and event == "optimizer_ends":
            self._trains_unrecorded()
        if self._over or (threading.get_ident() != self.events.thread and not self._moves(event)):
            return None
        if self._collector is None and (event in _TRAINS or _joined()):
            self._begin()
        if self._collector is None:
            return None
        answer = self.events.hear(event, values)
        if not self.described and self.events.timeline.steps:
            self._describe(self.events.timeline.loaders)
        return answer

    def number(self, what: str, value: Any) -> None:
        """Looks at a loss or a gradient's norm of the step under way. Called within the fence."""
        collector = self._collector
        if collector is not None and not self._over and threading.get_ident() == self.events.thread:
            collector.number(what, value, self._step_under_way)

    def _step_under_way(self) -> int:
        self.tell("too_many")  # passes on what is queued
        return self.events.timeline.steps

    def _trains_unrecorded(self) -> None:
        """Writes a line about this unrecorded process into the run directory, once."""
        self._unrecorded_steps += 1
        if self._unrecorded_steps < RECORDING.steps_of_a_training:
            return
        why, self._unrecorded = self._unrecorded, ""
        line = Unrecorded(rank_and_world()[0], socket.gethostname(), os.getpid(), time.time_ns(), why)
        with contextlib.suppress(OSError), append_to(RunLayout(self.run_dir).unrecorded) as file:
            file.write(encode(line))

    def _moves(self, event: str) -> bool:
        """Whether the training runs in this thread instead: it is the thread that steps first."""
        if event != "optimizer_begins" or (self._collector is not None and self.events.timeline.steps):
            return False
        self.events.thread = threading.get_ident()
        return True

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Remembers the first optimizer, until the first step is over."""
        if self._optimizer is None and not (self.described or self._over):
            self._optimizer = optimizer

    def engine_stepped(self, engine: Any) -> None:
        if not (self.described or self._over):
            self._engine = engine

    def profiler_starts(self, profiler: Any) -> None:
        """Called when any profiler starts. Unless it is ours, it is the training's own."""
        if self._own_profiler or self._over or (self._collector is not None and self._collector.profiles(profiler)):
            return
        self._own_profiler = True
        if self._collector is not None:
            self._collector.no_windows("the training runs its own profiler")

    def _describe(self, trained_with: Collection[int]) -> None:
        """Describes the training in the manifest, once, after the first step."""
        self.described = True
        assert self._collector is not None
        strategy, mesh = strategy_of(self._optimizer, self._engine, self._reducers.seen)
        self._optimizer = self._engine = None
        loader = self.fetches.settings(trained_with)
        self._collector.describe(strategy=strategy, mesh=mesh, loader=loader, collector={"attached": self._about()})

    def leaves(self, error: BaseException | None) -> None:
        """The process group is about to be destroyed, as most trainings do before they end. All records are written; a
        training that goes on is recorded further. ``error``: the exception that is being handled, after which it may go
        on as well."""
        if self._collector is None or self._over:
            return
        rank, _, world_size = rank_and_world()
        handled = None if isinstance(error, SystemExit) and not error.code else error
        self._collector.__exit__(type(handled) if handled is not None else None, None, None)
        self._before = rank, world_size, self.events.timeline.steps
        self._collector = None
        self.events.rest()
        self._timer.leave_groups()

    def finish(self, error: BaseException | None) -> None:
        """The training has ended, or fails with ``error``."""
        if isinstance(error, SystemExit) and not error.code:
            error = None
        self._close(failed_with(error) if error is not None else None)

    def _close(self, failure: Failure | None) -> None:
        """Ends the recording, once. A failure that is known later is still written."""
        if failure is not None:
            self._write_failure(failure)
        if self._closed:
            return
        self._closed = True
        self._hear_no_more()
        if self._collector is not None:
            self._collector.__exit__(failure.kind if failure is not None else None, None, None)
        self._remove()
        if self._explicit:
            self._let_go()

    def _progress(self) -> int | None:
        """The number of nodes that autograd has made in this thread; None where the process is not recorded, or no
        longer. Not the number of steps: the last of those are counted only when an exit that interrupts one unwinds."""
        return nodes_made() if self._collector is not None and not self._closed else None

    def _write_failure(self, failure: Failure) -> None:
        """Writes the exception: the program may print it in its own way, or not at all."""
        if self._error_file is not None and failure.text:
            with contextlib.suppress(OSError):
                write_exception(self._error_file, failure.message, failure.text)

    def _let_go(self) -> None:
        """Undoes the rest in a process that goes on and may start another recording."""
        for handle in self._handles:
            handle.remove()
        self.fence.call(self._timer.let_go, always=True)
        for hook in self._exit_hooks:
            atexit.unregister(hook)
        if self._child_ends is not None:
            self._child_ends.cancel()
        recorded = self._collector is not None or self._before is not None
        if recorded and os.environ.get(OWNER_VARIABLE) == str(os.getpid()):
            del os.environ[OWNER_VARIABLE]

    def _end(self, why: str) -> None:
        """Ends the recording, not the training, for a reason that is no failure of ours."""
        self._hear_no_more()
        self._remove()
        _say(why)
        self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._optimizer = self._engine = None
        if self._collector is not None:
            self._collector.give_up(why)
        else:
            self._unrecorded = why

    def _hear_no_more(self) -> None:
        self._over = True
        self.events.stop()

    def _remove(self) -> None:
        """Removes the patches. The optimizers' hooks stay, and do nothing: this may be called from one of them."""
        self._timer.uninstall()
        self._hooks.remove()
        if self._imports is not None:
            self._imports.forget()

    def _at_exit(self) -> None:
        error = ended_by()
        self._close(failed_with(error) if error is not None else self._leaving.failure)

    def _at_end_of_child(self) -> None:
        # The exception that ends the process is being handled. torch.multiprocessing sends it to the parent and turns
        # it into an exit code.
        error = sys.exc_info()[1]
        status = error.code if isinstance(error, SystemExit) else error is not None
        self._close(failure_of(status, error))

    def _forked(self) -> None:
        """Called in a forked child. A child of a recorded process is not recorded; a child of a process that is not
        recorded yet may be the one that trains."""
        if self._collector is not None and not self._over:
            self._closed = True
            self._hear_no_more()
            self._remove()
            self._collector.give_up("forked")
            self._before = None
            self._unrecorded = "it was forked from a recorded process"
        self.events.thread = threading.get_ident()


armed: Attachment | None = None  # the attachment of this process; ``recording`` looks it up


def arm(imports: AfterImport) -> None:
    """Installs the hooks. Called within the fence of ``imports``."""
    global armed
    run_dir = run_dir_from()
    if run_dir is not None:
        if packing_from() is not None:
            make_private(Path(os.environ[RUN_DIR_VARIABLE]))
        armed = Attachment(run_dir, settings_from(), fence=imports.fence)
        armed.install(imports)


def _say(why: str) -> None:
    Complaints(rank_and_world()[0]).add("nothing more is recorded", why)


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()
