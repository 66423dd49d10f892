"""The least work of an operator, from the shapes that ``record_shapes`` wrote: FLOPs, and bytes moved.

FLOPs count a multiplication and an addition as two; bytes count every operand and result once, at the element size of
the first. Attention does not discount causality (MFU's convention), and its backward is 2.5 forwards, since the fused
kernels compute the scores again. A convolution's result is in no argument of its forward: it is taken from the
backward of the same input and weight, so it stays unknown if the trace has no backward.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from msgspec import Struct

from diag.traces import kineto_names as names

Shape = tuple[int, ...]
Outputs = dict[tuple[Shape, Shape], Shape | None]  # a convolution's input and weight: its result; None: several


class Cost(Struct, frozen=True):
    flops: float
    bytes: float
    element: int


class ShapedOperator(Struct, frozen=True):
    """An operator's name with the shapes of its tensor arguments, () for others, and the element size."""

    name: str
    shapes: tuple[Shape, ...]
    element: int


def parse(name: str, dims: str | None, types: str | None) -> ShapedOperator | None:
    """A call from "Input Dims" and "Input type"; None if they are incomplete."""
    try:
        shapes, kinds = json.loads(dims or "null"), json.loads(types or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return None
    element = next((size for kind in kinds if isinstance(kind, str) and (size := names.dtype_bytes(kind))), 0)
    return ShapedOperator(name, tuple(map(names.shape, shapes)), element) if element else None


def cost(call: ShapedOperator, outputs: Outputs) -> Cost | None:
    """The work of the call; None if the shapes are unknown or do not fit the operator."""
    op = call.name.removeprefix("aten::")
    try:
        if "convolution" in op or op == "_conv_depthwise2d":
            return _convolution(call, outputs)
        if "attention" in op:
            return _attention(call, backward=op.endswith("_backward"))
        if op == "linear":
            return _linear(call)
        # addmm, baddbmm: the first argument is added to the product.
        return _product(call, first=1 if "add" in op else 0)
    except (IndexError, ValueError):
        return None


def convolution_outputs(calls: Sequence[ShapedOperator]) -> Outputs:
    """The outputs of convolutions, from their backwards. None for an input and weight with two strides."""
    outputs: Outputs = {}
    for call in calls:
        if call.name == "aten::convolution_backward" and len(call.shapes) > 2:
            output, key = call.shapes[0], (call.shapes[1], call.shapes[2])
            outputs[key] = output if outputs.get(key, output) == output else None
    return outputs


def _product(call: ShapedOperator, first: int) -> Cost | None:
    a, b = call.shapes[first], call.shapes[first + 1]
    if len(a) != len(b) or len(a) not in (2, 3) or a[-1] != b[-2] or a[:-2] != b[:-2]:
        return None
    result = math.prod(a[:-1]) * b[-1]
    moved = math.prod(a) + math.prod(b) + result + (math.prod(call.shapes[0]) if first and call.shapes[0] else 0)
    return Cost(2.0 * result * a[-1], float(moved * call.element), call.element)


def _linear(call: ShapedOperator) -> Cost | None:
    x, weight = call.shapes[0], call.shapes[1]
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        return None
    result = math.prod(x[:-1]) * weight[0]
    moved = math.prod(x) + math.prod(weight) + result
    return Cost(2.0 * result * weight[1], float(moved * call.element), call.element)


def _convolution(call: ShapedOperator, outputs: Outputs) -> Cost | None:
    backward = call.name.endswith("convolution_backward")
    x, weight = call.shapes[1:3] if backward else call.shapes[0:2]
    output = call.shapes[0] if backward else outputs.get((x, weight))
    if not output or len(x) < 3 or len(weight) != len(x):
        return None
    # Every element of the result needs one product per element of a filter; transposed, every element of the input
    # does.
    transposed = weight[0] != output[1]
    once = 2.0 * math.prod(x if transposed else output) * math.prod(weight[1:])
    moved = float((math.prod(x) + math.prod(weight) + math.prod(output)) * call.element)
    times = 2 if backward else 1  # gradients of the input and of the weight
    return Cost(once * times, moved * times, call.element)


def _attention(call: ShapedOperator, backward: bool) -> Cost | None:
    """(batch, heads, length, head_dim) each; the backward has the result's gradient first."""
    query, key, value = call.shapes[1:4] if backward else call.shapes[0:3]
    if not (len(query) == len(key) == len(value) == 4) or query[-1] != key[-1]:
        return None
    batch, heads, length, _ = query
    flops = 2.0 * batch * heads * length * key[2] * (key[3] + value[3])
    moved = math.prod(query) + math.prod(key) + math.prod(value) + batch * heads * length * value[3]
    times = 2 if backward else 1
    return Cost(flops * (2.5 if backward else 1), float(moved * times * call.element), call.element)
