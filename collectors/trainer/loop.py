"""The training loop: process group, data, model, steps. Recording and faults are attached to it from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ..identity import prepare_environment
from ..layout import RunLayout
from ..records import BACKWARD, CHECKPOINT, DATA, FORWARD, H2D, OPTIMIZER, StepRecord
from ..settings import collecting, run_dir_from
from .data import Batches, ByteCorpus, ShardedSampler, build_loader, documents
from .faults import parse_faults
from .inject import Injector
from .model import build
from .options import TrainerOptions, flops_per_token, parameter_count
from .progress import Progress
from .strategies import Strategy, create


class CollectorLike(Protocol):
    """What the loop calls of ``diag.collectors.session.Collector``."""

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> Any: ...
    def describe(self, **fields: Any) -> None: ...
    def watch_ddp(self, module: Any, /) -> None: ...
    def step(self, step: int) -> AbstractContextManager[StepRecord]: ...
    def phase(self, name: str, /) -> AbstractContextManager[None]: ...


class NullCollector:
    """Records nothing, for runs that measure what recording costs and for those outside ``diag run``."""

    def __enter__(self) -> NullCollector:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def describe(self, **_fields: Any) -> None:
        return None

    def watch_ddp(self, _module: Any) -> None:
        return None

    def step(self, step: int) -> AbstractContextManager[StepRecord]:
        return nullcontext(StepRecord(step, 0, 0, []))

    def phase(self, _name: str) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Place:
    """Where this process stands among the others, as torchrun says it. Without torchrun it is alone."""

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
        """This rank's own GPU, or the CPU where the host has fewer GPUs than ranks."""
        if torch.cuda.is_available() and torch.cuda.device_count() >= self.local_world_size:
            return torch.device("cuda", self.local_rank)
        return torch.device("cpu")


def connect(place: Place, device: torch.device, timeout_s: float) -> str:
    """Initialise the process group. The backend: nccl on GPUs, else gloo."""
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
    elif "OMP_NUM_THREADS" not in os.environ:
        # torchrun sets it for several ranks; a process for itself would otherwise take every core of a shared host.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // place.local_world_size))
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=timeout_s),
        rank=place.rank,
        world_size=place.world_size,
        store=None if place.launched else dist.HashStore(),  # type: ignore[attr-defined]
        device_id=device if device.type == "cuda" else None,
    )
    return backend


def train(options: TrainerOptions) -> None:
    """Run ``options.steps`` steps on this rank, from joining the others to leaving them.

    OptionError where the options cannot work here.
    """
    place = Place.from_env()
    options.validate(place.world_size)
    device = place.device()
    corpus = ByteCorpus(documents(options.data), options.shape().seq_len)
    if (run_dir := run_dir_from()) is not None and collecting():
        prepare_environment(RunLayout(run_dir).rank(place.rank))
    backend = connect(place, device, options.timeout_s)
    run(options, corpus, place, device, backend)
    dist.destroy_process_group()


def run(options: TrainerOptions, corpus: ByteCorpus, place: Place, device: torch.device, backend: str) -> None:
    """One run in a process group that is there already."""
    shape = options.shape()
    sampler = ShardedSampler(len(corpus), shape.batch_size, place.rank, place.world_size, options.seed)
    torch.manual_seed(options.seed)
    injector = Injector(parse_faults(options.inject, place.world_size), place.rank, place.world_size, device)
    injector.install()
    batches = Batches(
        build_loader(
            injector.dataset(corpus, options.micro_batches),
            sampler,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            pin_memory=options.pin_memory and device.type == "cuda",
        ),
        sampler,
    )
    with _collector(device) as collector:
        injector.install_calls()
        strategy = create(options, device)
        decoder = build(shape, options.seed)
        model = strategy.wrap(decoder)
        injector.attach(decoder.blocks)
        if isinstance(model, DistributedDataParallel):
            if isinstance(collector, NullCollector):
                injector.route(model)
            collector.watch_ddp(model)
        collector.describe(
            strategy=options.strategy,
            backend=backend,
            mesh={"dp": place.world_size},
            model={
                **asdict(shape),
                "preset": options.preset,
                "parameters": parameter_count(shape),
                "flops_per_token": flops_per_token(shape, shape.seq_len),
            },
            trainer={**asdict(options), "setup": strategy.describe()},
        )
        Trainer(options, strategy, model, batches, injector, collector, device).run()
        injector.uninstall_calls()
    batches.close()
    injector.uninstall()


def _collector(device: torch.device) -> CollectorLike:
    if not collecting() or run_dir_from() is None:
        return NullCollector()
    from ..session import Collector

    return Collector.from_env(device)


class Trainer:
    """A model, its optimizer and its data, one step at a time."""

    def __init__(
        self,
        options: TrainerOptions,
        strategy: Strategy,
        model: nn.Module,
        batches: Batches,
        injector: Injector,
        collector: CollectorLike,
        device: torch.device,
    ) -> None:
        self.options, self.strategy, self.model = options, strategy, model
        self.batches, self.injector, self.collector, self.device = batches, injector, collector, device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
        self.progress = Progress(dist.get_rank())

    def run(self) -> None:
        for step in range(self.options.steps):
            begin_ns = time.monotonic_ns()
            with self.collector.step(step) as record:
                loss = self.step(step, record)
            self.progress.add(step, loss, time.monotonic_ns() - begin_ns, record.tokens * dist.get_world_size())
        self.progress.finish()

    def step(self, step: int, record: StepRecord) -> Tensor:
        """One optimizer step over its micro-batches. The loss, averaged over them and over the ranks, on the device."""
        collector, micro_batches = self.collector, self.options.micro_batches
        record.micro_batches = micro_batches
        self.injector.begin_step(step)
        total = torch.zeros((), device=self.device)
        for micro in range(micro_batches):
            with collector.phase(DATA):
                batch = next(self.batches)
            with collector.phase(H2D):
                batch = batch.to(self.device, non_blocking=True)
            record.tokens += batch[:, 1:].numel()
            with self.strategy.micro_step(self.model, is_last=micro == micro_batches - 1):
                with collector.phase(FORWARD), self.strategy.forward_context():
                    logits = self.model(batch[:, :-1])
                    loss = (
                        functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()) / micro_batches
                    )
                with collector.phase(BACKWARD):
                    loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        with collector.phase(OPTIMIZER):
            if self.options.max_grad_norm:
                self.strategy.clip(self.model, self.options.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            dist.all_reduce(total)
            total /= dist.get_world_size()
        if stall_s := self.injector.checkpoint_stall_s():
            with collector.phase(CHECKPOINT):
                time.sleep(stall_s)
        if self.device.type == "cpu":  # on an accelerator reading it would wait for the step
            record.loss = total.item()
        return total
