"""DeepSpeed's ZeRO 1 to 3. The engine owns backward, reduction, clipping, the optimizer's step, and checkpoints.

Only the engine reads and writes its checkpoints: in the foreground, for the same ranks and stage. They are in a folder
of their own inside the checkpoint, whose manifest, ``latest`` and renaming are the same as for other strategies.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...strategies import DEEPSPEED
from ..checkpoint import folder as folders
from ..checkpoint.folder import Checkpoint, CheckpointManifest, first_error, rank_file
from ..keys import CHOICE, INTEGER, TEXT, Key, OptionError
from .base import YES_NO, Strategy, switch

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from ..model import Decoder
    from ..options import TrainerOptions

TAG = "deepspeed"  # the engine's folder in a checkpoint


class DeepSpeed(Strategy):
    facts = DEEPSPEED
    about = "DeepSpeed's ZeRO 1 to 3 (pip install deepspeed)"
    settings = (
        Key("stage", INTEGER, "2", "ZeRO stage: 1, 2 or 3", least=1),
        Key("offload_optimizer", CHOICE, "none", "where optimizer states live", ("none", "cpu", "nvme")),
        Key("offload_param", CHOICE, "none", "where parameters live; stage 3", ("none", "cpu", "nvme")),
        Key("nvme_path", TEXT, "none", "a folder on the NVMe disk, for what is offloaded there"),
        Key("overlap_comm", CHOICE, "default", "reduce gradients while backward computes; by default in stage 3",
            ("default", *YES_NO)),
        Key("reduce_bucket_size", INTEGER, "500000000", "gradients reduced together, in elements", least=1),
        Key("allgather_bucket_size", INTEGER, "500000000", "parameters gathered together, in elements", least=1),
        Key("prefetch_bucket_size", INTEGER, "50000000", "stage 3: elements gathered ahead of their use"),
        Key("persistence_threshold", INTEGER, "100000", "stage 3: smaller parameters stay gathered, in elements"),
        switch("contiguous_gradients", "yes", "copy gradients into a contiguous buffer as they are produced"),
        switch("zero_init", "no", "stage 3: parameters are sharded while the model is built"),
    )  # fmt: skip
    checkpoint_kind = folders.DEEPSPEED
    why_not_taken = (
        "it gathers parameter by parameter in the order of the first step. Use --set prefetch_bucket_size=N and "
        "--set persistence_threshold=N"
    )
    no_tensor_parallel = (
        "its AutoTP shards Hugging Face models by layer name, and does not support ZeRO 3. Use --strategy fsdp2"
    )
    no_pipeline = (
        "its PipelineModule works with ZeRO 1 alone, since ZeRO 2 and 3 partition gradients that a pipeline "
        "accumulates. Use --strategy fsdp2 or ddp"
    )

    @classmethod
    def refuse(cls, options: TrainerOptions) -> None:
        knobs = options.knobs()
        stage = knobs.integer("stage")
        offloaded = knobs.text("offload_optimizer"), knobs.text("offload_param")
        if stage > 3:
            raise OptionError(f"--set stage={stage}: ZeRO has stages 1, 2 and 3")
        if stage < 3:
            for name, off in (("offload_param", "none"), ("zero_init", "no")):
                if knobs.text(name) != off:
                    raise OptionError(
                        f"--set {name}={knobs.text(name)} needs --set stage=3: stage {stage} keeps all parameters on "
                        "every rank"
                    )
        if "nvme" in offloaded and knobs.text("nvme_path") == "none":
            raise OptionError("offloading to nvme needs --set nvme_path=FOLDER on that disk")
        if offloaded == ("none", "nvme"):
            raise OptionError(
                "--set offload_param=nvme offloads parameters without their optimizer states: offload both"
            )
        if options.grad_sync == "every" and options.micro_batches > 1:
            raise OptionError(
                "--grad-sync every: DeepSpeed decides by itself when it reduces; ZeRO 2 and 3 reduce in every "
                "micro-batch"
            )
        if options.compile:
            raise OptionError("--compile is for the strategies of PyTorch; DeepSpeed compiles with its own engine")

    @classmethod
    def refuse_resume(
        cls, manifest: CheckpointManifest, where: str, options: TrainerOptions, world_size: int | None
    ) -> None:
        if _name(options) != manifest.strategy:
            raise OptionError(f"{where} was saved by {manifest.strategy}: DeepSpeed reads it with the same stage only")
        if world_size is not None and world_size != manifest.world_size:
            raise OptionError(
                f"{where} was saved on {manifest.world_size} ranks, and this run has {world_size}: DeepSpeed's shards "
                "need the same number. Checkpoints of other strategies do not"
            )

    engine: Any = None

    @property
    def name(self) -> str:
        return _name(self.options)

    def config(self) -> dict[str, Any]:
        """The content of an equivalent ds_config.json."""
        options, knobs = self.options, self.knobs
        stage = knobs.integer("stage")
        zero: dict[str, Any] = {
            "stage": stage,
            "reduce_bucket_size": knobs.integer("reduce_bucket_size"),
            "allgather_bucket_size": knobs.integer("allgather_bucket_size"),
            "contiguous_gradients": knobs.on("contiguous_gradients"),
        }
        if knobs.text("overlap_comm") != "default":
            zero["overlap_comm"] = knobs.on("overlap_comm")
        if stage == 3:
            zero["stage3_prefetch_bucket_size"] = knobs.integer("prefetch_bucket_size")
            zero["stage3_param_persistence_threshold"] = knobs.integer("persistence_threshold")
        for name in ("offload_optimizer", "offload_param"):
            if knobs.text(name) != "none":
                zero[name] = {"device": knobs.text(name), "pin_memory": self.device.type != "cpu"}
                if knobs.text(name) == "nvme":
                    zero[name]["nvme_path"] = knobs.text("nvme_path")
        return {
            "train_micro_batch_size_per_gpu": options.shape().batch_size,
            "gradient_accumulation_steps": options.micro_batches,
            "gradient_clipping": options.max_grad_norm,
            "zero_optimization": zero,
            # PyTorch's AdamW, as all strategies use it; DeepSpeed's own CPU optimizer would have to be compiled.
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": options.precision == "bf16"},
            "steps_per_print": 1_000_000_000,
        }

    def build(self) -> list[nn.Module]:
        if "nvme" in (self.knobs.text("offload_optimizer"), self.knobs.text("offload_param")):
            _deepspeed(self.device)
            refuse_without_async_io()
        if not self.knobs.on("zero_init"):
            return super().build()
        from ..model import Decoder

        deepspeed = _deepspeed(self.device)
        with deepspeed.zero.Init(config_dict_or_path=self.config()):
            model = Decoder(self.options.shape())
        _fill(deepspeed, model, self.options.seed)
        blocks = list(model.blocks.values())
        self.model = self.wrap(model)
        return blocks

    def wrap(self, model: Decoder) -> nn.Module:
        import torch

        from ..model import materialize

        deepspeed = _deepspeed(self.device)
        self.prepare(model)
        if model.shape.deferred and not self.knobs.on("zero_init"):
            materialize(model, self.device, self.options.seed)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(parameters, lr=self.options.learning_rate),
            config=self.config(),
            dist_init_required=False,
        )
        engine: nn.Module = self.engine
        return engine

    def optimizer(self) -> Optimizer:
        return _engine_optimizer(self.engine)

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        self.engine.set_gradient_accumulation_boundary(is_boundary=is_last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)  # the loop has divided by the micro-batches

    def clip(self, max_norm: float) -> Tensor:  # noqa: ARG002
        """The engine clips in its step; it reports the norm of the previous step."""
        import torch

        norm = self.engine.get_global_grad_norm()
        return torch.tensor(float("nan") if norm is None else float(norm))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **dict(self.knobs.values), "config": self.config()}

    def save_checkpoint(
        self, draft: Path, of_this_rank: dict[str, Any], manifest: CheckpointManifest, keep: int, group: Any
    ) -> tuple[int, str]:
        import torch.distributed as dist

        start_ns, rank = time.monotonic_ns(), dist.get_rank()
        if why := _first_rank(lambda: (draft / TAG).mkdir(parents=True), group):
            return 0, why
        errors = _guard(self.engine)
        self.engine.save_checkpoint(str(draft), tag=TAG, save_latest=False)
        try:
            folders.write_synced(draft / rank_file(rank), json.dumps(of_this_rank).encode())
        except OSError as error:
            errors.append(str(error))
        errors_by_rank: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(errors_by_rank, errors, group=group)
        for number, rank_errors in enumerate(errors_by_rank):
            if rank_errors:
                return 0, f"rank {number}: {rank_errors[0]}"

        def publish() -> None:
            names = [str(path.relative_to(draft)) for path in sorted((draft / TAG).rglob("*")) if path.is_file()]
            folders.complete(draft, names, manifest, start_ns, keep)

        size = sum(path.stat().st_size for path in _own_files(draft / TAG, rank))
        return size, _first_rank(publish, group)

    def load_checkpoint(self, optimizer: Optimizer, checkpoint: Checkpoint) -> None:
        from pickle import UnpicklingError

        _guard(self.engine)
        try:
            loaded, _ = self.engine.load_checkpoint(str(checkpoint.folder), tag=TAG)
        except UnpicklingError as error:
            raise OptionError(f"--resume {checkpoint.folder}: {str(error).splitlines()[0]}") from error
        if loaded is None:
            raise OptionError(f"--resume {checkpoint.folder}: DeepSpeed found nothing to load in it")
        optimizer.param_groups = self.engine.optimizer.param_groups  # loading made new ones

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()


def _name(options: TrainerOptions) -> str:
    return f"deepspeed-zero{options.knobs().integer('stage')}"


def _engine_optimizer(engine: Any) -> Optimizer:
    """The engine's step as an optimizer, for the loop. The engine zeroes gradients by itself."""
    from torch.optim import Optimizer

    class EngineOptimizer(Optimizer):
        def __init__(self) -> None:
            # PyTorch's own, with the states of this rank's part.
            self.optim = getattr(engine.optimizer, "optimizer", None)
            super().__init__(list(engine.module.parameters()), {})
            self.param_groups = engine.optimizer.param_groups  # a schedule sets the learning rate there

        def flat(self) -> list[Any]:
            """The attributes in which the engine's ZeRO optimizer keeps tensors between steps: its flat partitions of
            parameters and gradients, which belong neither to the model nor to PyTorch's optimizer, and the buckets of
            stage 3."""
            attributes = vars(engine.optimizer)
            return [
                attributes,
                [getattr(bucket, "buffer", None) for bucket in attributes.get("ipg_buckets", {}).values()],
            ]

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            assert closure is None
            engine.step()

        def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
            return None

    return EngineOptimizer()


def _deepspeed(device: torch.device) -> Any:
    """The package, set up for this device. OptionError where it is not installed."""
    import torch.distributed as dist

    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
        import deepspeed.comm
    except ImportError as error:
        raise OptionError(f"--strategy deepspeed needs DeepSpeed ({error}): pip install deepspeed") from error
    if device.type == "cpu":
        # Its shared-memory collectives would be compiled at first use, for two minutes, and bypass the wire.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)
    return deepspeed


def refuse_without_async_io() -> None:
    """OptionError if DeepSpeed's asynchronous I/O is neither built nor can be."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise OptionError(
            "offloading to nvme needs DeepSpeed's async_io, which cannot be built here: install libaio's headers "
            "(Debian, Ubuntu: libaio-dev) and a C++ compiler, or use --set offload_optimizer=cpu"
        )


def _fill(deepspeed: Any, model: Decoder, seed: int) -> None:
    """Initializes a model that was sharded while it was built with the weights of this seed."""
    import torch.distributed as dist

    from ..model import reset_parameters

    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        if dist.get_rank() == 0:
            reset_parameters(model, seed)


def _guard(engine: Any) -> list[str]:
    """Installs a checkpoint engine that unpickles only tensors and a few classes of DeepSpeed, and that collects errors
    of writing instead of raising them, since the peers wait for this rank at the end.

    Returns the list of errors.
    """
    import torch
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    errors: list[str] = []

    class GuardedFiles(TorchCheckpointEngine):  # type: ignore[misc]
        def save(self, state_dict: Any, path: str) -> None:
            try:
                with Path(path).open("wb") as file:
                    torch.save(state_dict, file)
                    file.flush()
                    os.fsync(file.fileno())
            except (OSError, RuntimeError) as error:
                errors.append(str(first_error(error)).splitlines()[0])

        def load(self, path: str, map_location: Any = None) -> Any:
            with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
                return torch.load(path, map_location=map_location, weights_only=True)

    engine.checkpoint_engine = GuardedFiles()
    return errors


def _own_files(folder: Path, rank: int) -> list[Path]:
    """The files that one rank wrote: its optimizer's part, and on the first rank the model, or its part in stage 3."""
    return [
        path
        for path in folder.glob("*.pt")
        if f"zero_pp_rank_{rank}_" in path.name or (rank == 0 and path.name.startswith("mp_rank_00"))
    ]


def _first_rank(action: Callable[[], object], group: dist.ProcessGroup) -> str:
    """Runs the action on the first rank. Returns its error on every rank; "" without one."""
    import torch.distributed as dist

    outcome = [""]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            outcome = [f"rank 0: {error}"]
    dist.broadcast_object_list(outcome, src=0, group=group)
    return outcome[0]
