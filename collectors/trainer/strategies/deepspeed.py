"""DeepSpeed's ZeRO 1 to 3. The engine owns backward, reduction, clipping and the optimizer's step."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..model import Decoder, materialize, reset_parameters
from ..options import OptionError
from .base import Strategy


class EngineOptimizer(Optimizer):
    """The engine's step under the name that the loop knows. The engine zeroes gradients by itself."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.optim = getattr(engine.optimizer, "optimizer", None)  # PyTorch's own, with the states of this rank's part
        super().__init__(list(engine.module.parameters()), {})
        self.param_groups = engine.optimizer.param_groups  # a schedule sets the learning rate there

    def flat(self) -> list[Any]:
        """Where the engine's ZeRO optimizer keeps tensors from one step to the next: its flat partitions of parameters
        and gradients, in which neither the model nor PyTorch's optimizer has a part, and the buckets of stage 3."""
        own = vars(self.engine.optimizer)
        return [own, [getattr(bucket, "buffer", None) for bucket in own.get("ipg_buckets", {}).values()]]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        return None


class DeepSpeedStrategy(Strategy):
    engine: Any = None

    @property
    def name(self) -> str:
        return f"deepspeed-zero{self.knobs.integer('stage')}"

    def config(self) -> dict[str, Any]:
        """What a user would write into ds_config.json."""
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
        deepspeed = _deepspeed(self.device)
        with deepspeed.zero.Init(config_dict_or_path=self.config()):
            model = Decoder(self.options.shape())
        _fill(deepspeed, model, self.options.seed)
        blocks = list(model.blocks.values())
        self.model = self.wrap(model)
        return blocks

    def wrap(self, model: Decoder) -> nn.Module:
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
        return EngineOptimizer(self.engine)

    def micro_step(self, is_last: bool) -> AbstractContextManager[Any]:
        self.engine.set_gradient_accumulation_boundary(is_boundary=is_last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss, scale_wrt_gas=False)  # the loop has divided by the micro-batches

    def clip(self, max_norm: float) -> Tensor:  # noqa: ARG002
        """The engine clips in its step; what it reports is the norm of the step before."""
        norm = self.engine.get_global_grad_norm()
        return torch.tensor(float("nan") if norm is None else float(norm))

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, **dict(self.knobs.values), "config": self.config()}

    def close(self) -> None:
        if self.engine is not None:
            self.engine.destroy()


def _deepspeed(device: torch.device) -> Any:
    """The package, told to compute where we do. OptionError where it is not installed."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
        import deepspeed.comm
    except ImportError as error:
        raise OptionError(f"--strategy deepspeed needs DeepSpeed ({error}): pip install 'diag[deepspeed]'") from error
    if device.type == "cpu":
        # Its collectives in shared memory would be compiled at first use, for two minutes, and hide the wire.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)
    return deepspeed


def refuse_without_async_io() -> None:
    """OptionError where DeepSpeed's asynchronous I/O is neither built nor can be."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise OptionError(
            "offloading to nvme needs DeepSpeed's async_io, which cannot be built here: install libaio's headers "
            "(Debian, Ubuntu: libaio-dev) and a C++ compiler, or use --set offload_optimizer=cpu"
        )


def _fill(deepspeed: Any, model: Decoder, seed: int) -> None:
    """Gives a model that was sharded as it was built the weights of this seed."""
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        if dist.get_rank() == 0:
            reset_parameters(model, seed)
