"""The training loop: process group, data, model, steps. Recording and faults are attached from outside."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..accelerator import Event, accelerator_of, backend_of, device_of_rank
from ..identity import prepare_environment
from ..layout import RunLayout
from ..numbers import GRADIENT_NORM, LOSS
from ..records import CHECKPOINT, DATA, H2D, OPTIMIZER, CheckpointRecord, HeldRecord, StepRecord
from ..settings import collecting, run_dir_from
from .checkpoint import contents
from .checkpoint.folder import Checkpoint, find
from .data import Batches, ByteCorpus, ShardedSampler, build_loader, described, documents
from .faults import parse_faults
from .inject import Injector
from .model import schedule_of
from .options import TrainerOptions, flops_per_token, parameter_count
from .refusals import refuse_data, validate, validate_backend
from .strategies import create
from .strategies.base import Strategy

if TYPE_CHECKING:
    from .checkpoint.saver import Saver

# -- progress ----------------------------------------------------------------------------------------------------------
#
# Prints one line per step on standard output, without waiting for the accelerator.


class _Line(NamedTuple):
    step: int
    loss: Tensor
    ready: Event | None  # None: the loss is on the host already
    dur_ns: int
    tokens: int

    def arrived(self) -> bool:
        return self.ready is None or self.ready.query()


class Progress:
    """Prints steps on rank 0 as their losses arrive, in order."""

    def __init__(self, rank: int) -> None:
        self._silent = rank != 0
        self._waiting: deque[_Line] = deque()

    def add(self, step: int, loss: Tensor, dur_ns: int, tokens: int) -> None:
        """A finished step: its mean loss, the host's nanoseconds, and the tokens of all ranks.

        On an accelerator the loss is copied behind the work in flight, so its line can be some steps late.
        """
        if self._silent:
            return
        copied = None
        if (accelerator := accelerator_of(loss.device)) is not None:
            on_device, loss = loss, torch.empty((), dtype=loss.dtype, pin_memory=True)
            loss.copy_(on_device, non_blocking=True)
            copied = accelerator.event(timed=False)
            copied.record()
        self._waiting.append(_Line(step, loss, copied, dur_ns, tokens))
        while self._waiting and self._waiting[0].arrived():
            self._print(self._waiting.popleft())

    def finish(self) -> None:
        """Waits for the pending losses and prints them."""
        for line in self._waiting:
            if line.ready is not None:
                line.ready.synchronize()
            self._print(line)
        self._waiting.clear()

    def _print(self, line: _Line) -> None:
        rate = line.tokens * 1e9 / line.dur_ns
        print(f"step {line.step}  loss {line.loss:.6f}  {line.dur_ns / 1e6:.1f} ms  {rate:.0f} tokens/s", flush=True)


# -- held --------------------------------------------------------------------------------------------------------------
#
# Memory of model and optimizer on this rank, in bytes of distinct storages; of DTensors only the local shards.


def held(model: nn.Module, optimizer: Any, batch: Tensor | None = None) -> HeldRecord:
    """Bytes that are held now. Call it when both gradients and the optimizer's states exist: after ``step``, before
    ``zero_grad``. A storage counts once, for the first component that has it: gradients that are views of one bucket
    count as the bucket, and a shard's padding counts with the shard."""
    seen: set[int] = set()
    parameters = list(model.parameters())
    return HeldRecord(
        parameters=_bytes(parameters, seen),
        gathered=_bytes(_gathered(model), seen),
        gradients=_bytes((p.grad for p in parameters if p.grad is not None), seen),
        optimizer=_bytes(_states(optimizer), seen),
        buffers=_bytes(model.buffers(), seen),
        batch=_bytes([] if batch is None else [batch], seen),
    )


def _bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    total = 0
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if local.device.type == "meta":
            continue
        storage = local.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _gathered(model: nn.Module) -> Iterator[Tensor]:
    """Unsharded parameters of fully_shard's units that are gathered at this moment; freed ones have an empty storage.

    torch has no public API for them; without its private attributes the result is empty.
    """
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        for group in getattr(state, "_fsdp_param_groups", ()):
            for parameter in getattr(group, "fsdp_params", ()):
                yield from getattr(parameter, "all_gather_outputs", ())


def _states(optimizer: Any) -> Iterator[Tensor]:
    """The tensors of an optimizer's state, including those of an inner optimizer (ZeroRedundancyOptimizer keeps its
    part in ``optim``) and DeepSpeed's flat partitions."""
    for holder in (optimizer, getattr(optimizer, "optim", None)):
        yield from _tensors(getattr(holder, "state", None))
    yield from _tensors(getattr(optimizer, "flat", list)())


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _tensors(inner)


class CollectorLike(Protocol):
    """The part of ``diag.collectors.session.Collector`` that the loop calls."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> Any: ...
    def describe(self, **fields: Any) -> None: ...
    def watch_ddp(self, module: Any, hook: tuple[Any, Any] | None = None, /) -> None: ...
    def step(self, step: int) -> AbstractContextManager[StepRecord]: ...
    def phase(self, name: str, /) -> AbstractContextManager[None]: ...
    def checkpoint(self, record: CheckpointRecord, /) -> None: ...
    def number(self, what: str, value: Any, /) -> None: ...


class NullCollector:
    """Records nothing: for runs that measure the cost of recording, and for those outside ``diag run``."""

    def __enter__(self) -> NullCollector:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def describe(self, **_fields: Any) -> None:
        return None

    def watch_ddp(self, _module: Any, _hook: tuple[Any, Any] | None = None) -> None:
        return None

    def step(self, step: int) -> AbstractContextManager[StepRecord]:
        return nullcontext(StepRecord(step, 0, 0, []))

    def phase(self, _name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def checkpoint(self, _record: CheckpointRecord) -> None:
        return None

    def number(self, _what: str, _value: Any) -> None:
        return None


@dataclass(frozen=True)
class Place:
    """The rank of this process and its peers, from torchrun's variables. Without torchrun it is a single process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launched: bool

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Place:
        world_size = int(environ.get("WORLD_SIZE", "1"))
        return cls(
            rank=int(environ.get("RANK", "0")),
            world_size=world_size,
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_world_size=int(environ.get("LOCAL_WORLD_SIZE", str(world_size))),
            launched="RANK" in environ,
        )

    def device(self) -> torch.device:
        return device_of_rank(self.local_rank, self.local_world_size)


def connect(place: Place, device: torch.device, timeout_s: float) -> str:
    """Initializes the process group; returns the backend: the accelerator's, else gloo."""
    backend, accelerator = backend_of(device), accelerator_of(device)
    if accelerator is not None:
        accelerator.select()
    elif "OMP_NUM_THREADS" not in os.environ:
        # torchrun sets it for several ranks; otherwise a process would use every core of a shared host.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.local_world_size))
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=timeout_s),
        rank=place.rank,
        world_size=place.world_size,
        store=None if place.launched else dist.HashStore(),  # type: ignore[attr-defined]
        device_id=device if accelerator is not None else None,
    )
    return backend


def train(options: TrainerOptions) -> None:
    """Runs ``options.steps`` steps on this rank, from creating the process group to destroying it.

    OptionError where the options cannot work here.
    """
    place = Place.from_env()
    device = place.device()
    validate(options, place.world_size)
    validate_backend(options, backend_of(device))
    corpus = ByteCorpus(documents(options.data), options.shape().seq_len)
    if (run_dir := run_dir_from()) is not None and collecting():
        prepare_environment(RunLayout(run_dir).rank(place.rank))
    backend = connect(place, device, options.timeout_s)
    run(options, corpus, place, device, backend)
    dist.destroy_process_group()


def run(options: TrainerOptions, corpus: ByteCorpus, place: Place, device: torch.device, backend: str) -> None:
    """One run in an existing process group."""
    shape, axes = options.shape(), options.axes(place.world_size)
    sampler = ShardedSampler(len(corpus), shape.batch_size, axes.data_rank(place.rank), axes.data, options.seed)
    data = described(corpus.documents, options.data)
    resumed = find(Path(options.resume)) if options.resume is not None else None
    if resumed is not None:
        refuse_data(resumed, data)
        sampler.load_state_dict(resumed.manifest.cursor)
    contents.seed(options.seed)
    injector = Injector(parse_faults(options.inject, place.world_size), place.rank, place.world_size, device)
    injector.install()
    batches = Batches(
        build_loader(
            injector.dataset(corpus, options.micro_batches),
            sampler,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            pin_memory=options.pin_memory and accelerator_of(device) is not None,
        ),
        sampler,
    )
    with _collector(device) as collector:
        injector.install_calls()
        strategy = create(options, device)
        injector.attach(strategy.build())
        for module in strategy.model.modules():
            if isinstance(module, DistributedDataParallel):
                if isinstance(collector, NullCollector):
                    injector.route(module, strategy.ddp_hook())
                collector.watch_ddp(module, strategy.ddp_hook())
        collector.describe(
            strategy=strategy.name,
            backend=backend,
            mesh=axes.sizes(),
            model={
                **asdict(shape),
                "preset": options.preset,
                "parameters": parameter_count(shape),
                "flops_per_token": flops_per_token(shape, shape.seq_len),
            },
            trainer={**asdict(options), "setup": strategy.describe()},
        )
        Trainer(options, strategy, batches, injector, collector, device, data, resumed).run()
        injector.uninstall_calls()
        strategy.close()
    batches.close()
    injector.uninstall()


def _collector(device: torch.device) -> CollectorLike:
    if not collecting() or run_dir_from() is None:
        return NullCollector()
    from ..session import Collector

    return Collector.from_env(device)


class Trainer:
    """A strategy with its model, the optimizer and the data, one step at a time."""

    def __init__(
        self,
        options: TrainerOptions,
        strategy: Strategy,
        batches: Batches,
        injector: Injector,
        collector: CollectorLike,
        device: torch.device,
        data: dict[str, Any] | None = None,
        resumed: Checkpoint | None = None,
    ) -> None:
        self.options, self.strategy = options, strategy
        self.batches, self.injector, self.collector, self.device = batches, injector, collector, device
        self.optimizer = strategy.optimizer()
        self._batch: Tensor | None = None
        self.schedule = schedule_of(self.optimizer, options.warmup_steps)
        self.progress = Progress(dist.get_rank())
        self.first_step, self.saver = self._begin(data or {}, resumed)

    def _begin(self, data: dict[str, Any], resumed: Checkpoint | None) -> tuple[int, Saver | None]:
        """The number of the first step, after a checkpoint if there is one, and the saver. See ``saver.begin``."""
        options, collector = self.options, self.collector
        if resumed is None and not options.checkpoint_every:
            return 0, None
        # Here, because they import all of FSDP, which takes longer than a short run of DDP.
        from .checkpoint.contents import Contents
        from .checkpoint.saver import begin

        contents = Contents(options, self.strategy, self.optimizer, self.schedule, self.batches.sampler, data)
        return begin(contents, resumed, collector.describe, collector.checkpoint)

    def run(self) -> None:
        data_ranks = self.strategy.axes.data
        for step in range(self.first_step, self.options.steps):
            begin_ns = time.monotonic_ns()
            with self.collector.step(step) as record:
                loss = self.step(step, record)
            tokens = record.tokens * self.strategy.axes.model * data_ranks
            self.progress.add(step, loss, time.monotonic_ns() - begin_ns, tokens)
            if self.saver is not None:
                self.saver.poll()
        if self.saver is not None:
            with self.collector.phase(CHECKPOINT):
                self.saver.finish()
        self.progress.finish()

    def step(self, step: int, record: StepRecord) -> Tensor:
        """One optimizer step over its micro-batches. Returns the loss on the device, averaged over them and the
        ranks."""
        collector, strategy = self.collector, self.strategy
        record.micro_batches = self.options.micro_batches
        self.injector.begin_step(step)
        total = strategy.accumulate(self._micro_batches(record), collector.phase)
        collector.number(LOSS, total)  # of this rank
        with collector.phase(OPTIMIZER):
            if self.options.max_grad_norm:
                collector.number(GRADIENT_NORM, strategy.clip(self.options.max_grad_norm))
            self.optimizer.step()
            if step == self.options.steps - 1:
                record.held = held(strategy.model, self.optimizer, self._batch)
            if self.schedule is not None:
                self.schedule.step()
            self.optimizer.zero_grad()
            dist.all_reduce(total)
            total /= strategy.ranks_with_loss
        stall_s = self.injector.checkpoint_stall_s()
        saver = self.saver if self.saver is not None and self.saver.due(step + 1) else None
        if stall_s or saver is not None:
            with collector.phase(CHECKPOINT):
                time.sleep(stall_s)
                if saver is not None:
                    saver.save(step + 1)
        if self.device.type == "cpu":  # on an accelerator, reading it would wait for the step
            record.loss = total.item()
        return total

    def _micro_batches(self, record: StepRecord) -> Iterator[Tensor]:
        """The micro-batches of a step on the device. Ranks that work on one batch share its tokens."""
        record.queue = self.batches.queue()
        for _ in range(self.options.micro_batches):
            with self.collector.phase(DATA):
                batch = next(self.batches)
            with self.collector.phase(H2D):
                batch = batch.to(self.device, non_blocking=True)
            self._batch = batch
            record.tokens += batch[:, 1:].numel() // self.strategy.axes.model
            yield batch
