"""What people and libraries call the ranges they put around a step's phases, and where each spelling was read.

A name is listed only if its source was read: torch 2.13's own Python files, and pytorch-lightning, torchrec,
Megatron-LM and DeepSpeed as of July and August 2026. Not listed because they never reach a Kineto trace: Megatron's
timers and NVTX ranges, DeepSpeed's ``instrument_w_nvtx``. torchtitan and accelerate add no ranges: what they run shows
by the names of torch's own loader, wrappers and optimizers.
"""

from __future__ import annotations

from typing import Final

STEP_PATTERN: Final = r"^diag\.step#(\d+)$"
PROFILER_STEP_PATTERN: Final = r"^ProfilerStep#(\d+)$"
AUTOGRAD_PREFIX: Final = "autograd::engine::evaluate_function"
# With record_python_gc_info and stacks (pytorch PR 161209, August 2025): of category python_function in torch 2.13.
GC_PATTERN: Final = r"^(?:Python GC|diag\.gc)$"

_LIGHTNING: Final = r"\[pl\]\[profile\]"  # profilers/pytorch.py, start()


def _any(*patterns: str) -> str:
    return "^(?:" + "|".join(patterns) + ")"


DATA_PATTERN: Final = _any(
    r"enumerate\(DataLoader\)",  # torch/utils/data/dataloader.py; StatefulDataLoader's iterators inherit it
    rf"{_LIGHTNING}\[\w+\]\.train_dataloader_next$",  # loops/training_epoch_loop.py, _on_before_fetch
    r"## load_batch ##$",  # torchrec/distributed/train_pipeline: around next(dataloader_iter)
)
# The same as functions of Python, in a trace with stacks: torch/utils/data/dataloader.py.
DATA_FUNCTION_PATTERN: Final = r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): __next__$"
FORWARD_PATTERN: Final = _any(
    r"[A-Za-z]*DataParallel\.forward$",  # DataParallel, DistributedDataParallel, FullyShardedDataParallel
    r"CustomFSDP\.forward$",  # Megatron-FSDP: megatron_fsdp.py
    r"## (?:dense_)?forward(?: \d+)? ##$",  # torchrec/distributed/train_pipeline
    rf"{_LIGHTNING}\[Strategy\]\w+\.training_step$",  # trainer/call.py, loops/optimization/automatic.py
    r"Forward \d+$",  # torch/distributed/pipelining/schedules.py: one stage
    r"PP:\d+F\d*$",  # the same: several stages
)
BACKWARD_PATTERN: Final = _any(
    r"## backward(?: \d+)? ##$",
    rf"{_LIGHTNING}\[Strategy\]\w+\.backward$",
    r"Backward \d+$",
    r"PP:\d+[BIW]\d*$",
    r"FullyShardedDataParallel\.(?:_pre_backward|_post_backward)",  # fsdp/_runtime_utils.py
    r"FSDP::(?:pre_backward|post_backward|root_post_backward|backward_prefetch)",  # fsdp/_fully_shard
)
# Where FSDP fetches parameters that it keeps on the host and brings gradients there. Its copies of inputs are in
# FSDP::inputs_to_device and FullyShardedDataParallel._to_kwargs, both inside a root's pre-forward.
OFFLOAD_PATTERN: Final = _any(
    r"FSDP::(?:all_gather|post_backward_reduce)",  # fsdp/_fully_shard/_fsdp_param_group.py
    r"FullyShardedDataParallel\._(?:pre_forward|pre_backward|post_backward)",  # fsdp/_runtime_utils.py
)
# Without zero_grad: most loops call it after the step, and what idles between the two is no work of the optimizer.
OPTIMIZER_PATTERN: Final = _any(
    # torch/optim/optimizer.py. With a closure, ``step`` encloses a forward and a backward; so does Lightning's hook.
    r"Optimizer\.step#",
    rf"{_LIGHTNING}\[LightningModule\]\w+\.(?:optimizer_step|configure_gradient_clipping)$",
    rf"{_LIGHTNING}optimizer_step$",  # loops/optimization/manual.py
    r"## optimizer(?: \d+)? ##$",
)
# What comes once in an iteration, at its end and near its begin.
OPTIMIZER_STEP_PATTERN: Final = r"^Optimizer\.step#"
ZERO_GRAD_PATTERN: Final = r"^(?:Optimizer\.zero_grad#|## zero_grad ##$)"
CHECKPOINT_PATTERN: Final = _any(
    rf"{_LIGHTNING}save_checkpoint$",  # trainer/trainer.py
    rf"{_LIGHTNING}\[Callback\].*\.on_save_checkpoint$",  # trainer/call.py
)
# Functions of Python in a trace with stacks: "torch/serialization.py(943): save".
CHECKPOINT_FUNCTION_PATTERN: Final = (
    r"(?:^|/)torch/(?:serialization|distributed/checkpoint/state_dict_saver)\.py\(\d+\): (?:async_)?save$"
)

# FSDP2 has no range around a forward: it begins with the root's hook and ends with the last hook after a module.
FSDP2_FORWARD_BEGIN: Final = "FSDP::root_pre_forward"
FSDP2_FORWARD_END: Final = r"^FSDP::post_forward"
FSDP2_BACKWARD_BEGIN: Final = r"^FSDP::pre_backward"

# torch/_dynamo/utils.py, dynamo_timed: only while something compiles or is tuned, never when compiled code runs.
COMPILING_PATTERN: Final = r" \(dynamo_timed\)$"
# Functions of Python that compile, tune or record a graph, once: Triton's JIT, Inductor's autotuning, C++ extensions,
# graphs. Not Triton's ``run``, which launches as well.
LOADING_PATTERN: Final = (
    r"(?:^|/)(?:"
    + "|".join(
        (
            r"triton/compiler/compiler\.py\(\d+\): compile$",
            r"triton/runtime/autotuner\.py\(\d+\): (?:benchmark|_bench)$",
            r"triton/runtime/build\.py\(\d+\): _build$",
            r"torch/_inductor/runtime/triton_heuristics\.py\(\d+\): (?:autotune_to_one|benchmark_all)_configs?$",
            r"torch/utils/cpp_extension\.py\(\d+\): load",
            r"torch/cuda/graphs\.py\(\d+\): (?:capture_begin|capture_end|__enter__|make_graphed_callables)$",
            r"torch/_inductor/cudagraph_trees\.py\(\d+\): _?record",
        )
    )
    + ")"
)

# torch/_inductor/output_code.py: the compiled code runs. Its own C++ kernels leave no event of their own.
COMPILED_CODE_PREFIX: Final = "## Call CompiledFxGraph"

# What wrappers add to the names of a model's own modules, each read in its wrapper's source. As parts of a path: FSDP1
# (fsdp/_common_utils.py), checkpoint_wrapper (algorithms/_checkpoint/checkpoint_wrapper.py), torch.compile
# (_dynamo/eval_frame.py, OptimizedModule), Lightning (fabric/wrappers.py, _FabricModule).
WRAPPER_PARTS: Final = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "_forward_module"})
# DistributedDataParallel and DeepSpeedEngine hold the model under this name.
WRAPPER_ROOT: Final = "module"
# As classes, which the profiler's "nn.Module: Class_3" shows. What checkpoint_wrapper makes is a CheckpointWrapper.
WRAPPER_CLASSES: Final = frozenset(
    {
        "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule",
        "CheckpointWrapper", "OffloadWrapper", "_FabricModule",
    }
)  # fmt: skip
# fully_shard makes of a module's class one of this prefix (fsdp/_fully_shard/_fully_shard.py).
FSDP_CLASS_PREFIX: Final = "FSDP"
