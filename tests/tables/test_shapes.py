"""FLOPs and bytes of operators from the shapes in a trace, worked out by hand."""

from __future__ import annotations

import json

import pytest

from diag.tables.shapes import Cost, convolution_outputs, cost, parse

HALF = "c10::BFloat16"


def cost_of(name: str, *dims: list[int], kind: str = HALF) -> Cost | None:
    call = parse(name, json.dumps([*dims, []]), json.dumps([*[kind] * len(dims), "Scalar"]))
    assert call is not None
    return cost(call, {})


@pytest.mark.parametrize(
    ("name", "dims", "flops", "elements"),
    [
        ("aten::mm", [[4, 5], [5, 6]], 2 * 4 * 5 * 6, 20 + 30 + 24),
        ("aten::addmm", [[6], [4, 5], [5, 6]], 2 * 4 * 5 * 6, 6 + 20 + 30 + 24),
        ("aten::bmm", [[3, 4, 5], [3, 5, 6]], 2 * 3 * 4 * 5 * 6, 60 + 90 + 72),
        ("aten::baddbmm", [[3, 4, 6], [3, 4, 5], [3, 5, 6]], 2 * 3 * 4 * 5 * 6, 72 + 60 + 90 + 72),
        ("aten::linear", [[2, 7, 5], [6, 5], [6]], 2 * 14 * 5 * 6, 70 + 30 + 84),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 8, 4]] * 3, 2 * 2 * 3 * 8 * 8 * (4 + 4), 4 * 192),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            [[2, 3, 8, 4]] * 4,
            2.5 * 2 * 2 * 3 * 8 * 8 * (4 + 4),
            8 * 192,
        ),
        # grouped queries: fewer heads of keys and values cost no fewer FLOPs
        (
            "aten::_scaled_dot_product_cudnn_attention",
            [[2, 6, 8, 4], [2, 3, 8, 4], [2, 3, 8, 4]],
            12288,
            2 * 384 + 2 * 192,
        ),
    ],
)
def test_flops_and_bytes(name: str, dims: list[list[int]], flops: float, elements: int) -> None:
    assert cost_of(name, *dims) == Cost(flops, 2 * elements, 2)
    single = cost_of(name, *dims, kind="float")
    assert single == Cost(flops, 4 * elements, 4)


def test_a_convolution_takes_its_result_from_its_backward() -> None:
    x, weight, result = [10, 64, 56, 56], [128, 64, 3, 3], [10, 128, 28, 28]
    forward = parse("aten::cudnn_convolution", json.dumps([x, weight, []]), json.dumps([HALF, HALF, "ScalarList"]))
    backward = parse("aten::convolution_backward", json.dumps([result, x, weight]), json.dumps([HALF] * 3))
    assert forward is not None
    assert backward is not None
    assert cost(forward, {}) is None, "its stride is in no argument that is kept"
    outputs = convolution_outputs([forward, backward])
    once = 2 * 10 * 128 * 28 * 28 * 64 * 9
    assert getattr(cost(forward, outputs), "flops", None) == once
    assert getattr(cost(backward, outputs), "flops", None) == 2 * once
    other = parse("aten::convolution_backward", json.dumps([x, x, weight]), json.dumps([HALF] * 3))
    assert other is not None
    assert cost(forward, convolution_outputs([backward, other])) is None, "two strides of one shape: not known which"


def test_what_no_memory_holds_is_not_known() -> None:
    for length in (10**400, 1 << 48, -5, True):
        call = parse("aten::mm", json.dumps([[length, 4], [4, length]]), json.dumps([HALF, HALF]))
        assert call is not None
        assert cost(call, {}) is None


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("aten::mm", None, None),
        ("aten::mm", "[[4, 5], [5, 6]]", '["", ""]'),
        ("aten::mm", "{", "["),
        ("aten::mm", "[[4, 5], [7, 6]]", '["float", "float"]'),
        ("aten::mm", "[[4, 5]]", '["float"]'),
        ("aten::linear", "[[], [6, 5]]", '["float", "float"]'),
        ("aten::_scaled_dot_product_flash_attention", "[[8, 3, 4], [8, 3, 4], [8, 3, 4]]", '["float"]'),
    ],
)
def test_what_does_not_fit_is_not_known(name: str, dims: str | None, types: str | None) -> None:
    call = parse(name, dims, types)
    assert call is None or cost(call, {}) is None
