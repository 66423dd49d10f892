"""The kind of a kernel or an operator, from its name: the first pattern that matches.

Written against the kernels of the real traces on V100, A100 and MI300 (cuDNN, cuBLAS, CUTLASS, MIOpen, Composable
Kernel, Tensile, fbgemm) and the names of torch 2.13's operators. Names without a matching pattern are "other".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from diag.model.breakdown import Bound, KernelKind
from diag.traces.kineto_names import FUSED_PATTERN

Patterns = tuple[tuple[KernelKind, str], ...]

# Order matters: Inductor's names repeat the operators around a kernel, implicit GEMMs are convolutions, fbgemm's
# lookups are not GEMMs, a fused Adam contains a functor.
KERNELS: Final[Patterns] = (
    (KernelKind.GEMM, r"(?i)^triton_tem_"),  # inductor's template of a matrix product
    (KernelKind.TRITON, r"^triton_"),
    (KernelKind.FUSED, FUSED_PATTERN),
    (KernelKind.ATTENTION, r"(?i)flash|fmha|attention|aotriton|_attn_|attn_(?:fwd|bwd)|mem_eff"),
    (
        KernelKind.EMBEDDING,
        r"(?i)embedding|fbgemm_gpu|index_?select|indexing_backward|index_elementwise|krn_partial|linearize_index",
    ),
    (KernelKind.OPTIMIZER, r"(?i)fused_?(?:adam|sgd|adagrad|lamb)|adam_|lamb_|sgd_kernel"),
    (
        KernelKind.REDUCTION,
        r"(?i)(?:\b|_)bn_|batch_?norm|layer_?norm|rms_?norm|group_?norm|GammaBeta|RowwiseMoments|ClassNLL",
    ),
    (KernelKind.COPY, r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose|^transpose_|CatArray|copy_kernel|memcpy"),
    (KernelKind.COPY, r"(?i)^Mem(?:cpy|set)|fillBuffer|copyBuffer|chunk_cat|split_with_sizes_copy|CastTensor"),
    (
        KernelKind.CONVOLUTION,
        r"(?i)conv(?!ert)|[dw]grad|fprop|igemm_(?:fwd|bwd|wrw)|bwd_(?:weight|data)|winograd|implicit_gemm|scudnn|"
        r"im2col|col2im|depthwise|compute_?B?Offsets",
    ),
    (
        KernelKind.GEMM,
        r"(?i)gemm|gemv|cutlass|cublas|xmma|^Cijk_|nvjet|splitKreduce|magma|dot_kernel|reduce_1Block",
    ),
    (
        KernelKind.REDUCTION,
        r"(?i)reduce|softmax|welford|_pool|cub::Device(?:Reduce|Scan|Segmented|Select)|nll_loss|cross_entropy|norm|"
        r"DeviceScan|cumsum|topk|sort|argmax",
    ),
    (
        KernelKind.ELEMENTWISE,
        r"(?i)elementwise|multi_tensor_apply|functor|dropout|distribution_|(?:Sub|Op|Packed)Tensor|masked|triu|tril|arange|"
        r"where|clamp",
    ),
)

OPERATORS: Final[Patterns] = (
    (KernelKind.ATTENTION, r"attention"),
    (KernelKind.CONVOLUTION, r"conv(?!ert)"),
    (
        KernelKind.GEMM,
        r"^aten::(?:mm|mv|bmm|addmm|addmv|baddbmm|dot|linear|matmul|einsum|_scaled_mm|_addmm_activation|mkldnn_linear)"
        r"(?:_|$)|^(?:mkl|mkldnn)::_?linear",
    ),
    (KernelKind.OPTIMIZER, r"_fused_(?:adam|sgd|adagrad)"),
    (KernelKind.EMBEDDING, r"embedding|index_select|^aten::(?:index|gather|scatter)|fbgemm::"),
    (KernelKind.REDUCTION, r"_?(?:batch|layer|group|rms|instance)_norm|softmax|_pool|nll_loss|cross_entropy"),
    (
        KernelKind.REDUCTION,
        r"^aten::(?:_foreach_norm|(?:linalg_)?(?:vector_)?norm|sum|mean|amax|amin|max|min|any|all|var|std|cumsum|"
        r"logsumexp|topk|sort|argmax|prod)(?:_|$)",
    ),
    (
        KernelKind.COPY,
        r"^aten::(?:copy_|_to_copy|to|clone|contiguous|cat|_chunk_cat|stack|fill_|zero_|zeros|ones|zeros_like|"
        r"ones_like|full|split_with_sizes_copy|_foreach_copy_|_foreach_zero_|repeat|flatten_dense|unflatten_dense)|"
        r"^fsdp::|^aten::_?cat$",
    ),
    (
        KernelKind.ELEMENTWISE,
        r"^aten::_?(?:foreach_)?(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|neg|exp|log|log1p|sigmoid|silu|gelu|relu|tanh|"
        r"clamp|clamp_min|clamp_max|where|masked_fill|native_dropout|dropout|bernoulli|lerp|addcmul|addcdiv|threshold|"
        r"reciprocal|abs|eq|ne|lt|gt|le|ge|bitwise_\w+|logical_\w+|sin|cos|maximum|minimum|square|sign|erf|softplus|"
        r"elu|leaky_relu|hardtanh|mse_loss|tril|triu|arange|isnan|isinf|floor|round|complex|polar|normal|uniform|"
        r"random)_?(?:_backward|_in)?(?:_|$)",
    ),
)

MATH_KINDS: Final = (KernelKind.GEMM, KernelKind.ATTENTION, KernelKind.CONVOLUTION)
_MEMORY_KINDS: Final = (
    KernelKind.ELEMENTWISE,
    KernelKind.REDUCTION,
    KernelKind.COPY,
    KernelKind.EMBEDDING,
    KernelKind.OPTIMIZER,
)
# In the optimizer these are the optimizer's work, whatever their names: torch's foreach kernels have one name
# everywhere.
OF_OPTIMIZER: Final = (KernelKind.ELEMENTWISE, KernelKind.REDUCTION, KernelKind.OTHER, KernelKind.TRITON)


def kinds_of(names: Iterable[str], patterns: Patterns) -> dict[str, str]:
    """The kind of every name, computed once per distinct name."""
    return {name: _kind(name, patterns) for name in set(names)}


def bound_of(kind: KernelKind) -> Bound:
    """The usual limit of a class of kernels: most do few operations on each byte they move."""
    return Bound.MEMORY if kind in _MEMORY_KINDS else Bound.UNKNOWN


@cache
def _kind(name: str, patterns: Patterns) -> str:
    return next((str(kind) for kind, pattern in patterns if re.search(pattern, name)), str(KernelKind.OTHER))
