"""Names of kernels that fit into a table: what a person would call them, without namespaces and argument lists."""

from __future__ import annotations

import re

_NOISE = re.compile(
    r"^void\s+|\(anonymous namespace\)::|\b(?:at|native|c10|std|cuda|cub|detail|cutlass|cudnn|ops|pytorch_flash)::"
)
_IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w+")
_MANGLED = re.compile(r"(\d+)([A-Za-z_])")
_TELLING = re.compile(r"(\d\d)([A-Z]\w+?)(?=\d|$)")
# Frames around a functor, which alone says what is done.
_FRAME = re.compile(r"^(?:Kernel|\w*elementwise_kernel\w*|multi_tensor_apply_kernel)$")
# Template arguments that say how a kernel is built, not what it does.
_DULL = re.compile(
    r"^(?:float\d?|double|int|u?int\d+_t|long|unsigned|signed|bool|char|const|void|true|false|BFloat16|Half|lambda|"
    r"array|Array|operator|Kernel|ReduceOp|func_wrapper_t|[AB]?(?:Unary|Binary)Functor|gpu_kernel_impl\w*|"
    r"binary_internal|TensorIteratorBase|TensorListMetadata|GenericPackedTensorAccessor|OpaqueType|OffsetCalculator|"
    r"MT\w+|Var|\w*PtrTraits|InvStd|nullptr_t|decltype|enum|cudnn\w+|\w+_t|\d\w*)$"
)


def short_name(name: str) -> str:
    """``CUDAFunctor_add``, or ``reduce_kernel sum_functor``, from what the compiler calls it."""
    if name.startswith("_ZN"):
        name = "::".join(_mangled_parts(name)[-1:]) or name
    plain = _NOISE.sub("", _NOISE.sub("", name))
    parts = re.split(r"([<(])", plain, maxsplit=1)
    head = parts[0].strip().split("::")[-1]
    if len(parts) < 3 or parts[1] == "(":
        return head
    inner = parts[2]
    told = next((word for word in _IDENTIFIER.findall(inner) if not _DULL.match(word)), "")
    return told if told and _FRAME.match(head) else f"{head} {told}".strip()


def _mangled_parts(name: str) -> list[str]:
    """The nested name at the start of an Itanium-mangled one: ``["ck", "tensor_operation", "kernel_grouped_conv"]``.

    CUTLASS calls every kernel Kernel: then with the first telling template argument behind it.
    """
    parts, at = [], len("_ZN")
    while found := _MANGLED.match(name, at):
        begin = found.start(2)
        at = begin + int(found.group(1))
        if not name[begin:at].startswith("_GLOBAL_"):
            parts.append(name[begin:at])
    if parts and parts[-1] == "Kernel":
        words = (word[: int(length)] for length, word in _TELLING.findall(name[at:]))
        parts.append(next(words, parts[-1]))
    return parts
