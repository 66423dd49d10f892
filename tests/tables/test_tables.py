"""The tables as people and programs get them: the command line, JSON, widths, names of kernels."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from diag.api import Result, open_run
from diag.model.breakdown import peak_of
from diag.show.breakdowns import print_breakdown
from diag.show.json import to_json
from diag.tables.kernel_kinds import KERNELS, OPERATORS, kinds_of
from diag.words.formatting import short_name
from tests.account.test_shared_traces import FILES, TRACES
from tests.command import analyze_json, diag
from tests.samples import opened_sample
from tests.tables.test_breakdowns import check_sums, rank_trace, two_ranks
from tests.tables.test_path_modules import check_path

NAMES = ("collectives", "kernels", "modules", "efficiency", "path")
RUNS = sorted({name.split("/")[0] for name in FILES} - {"odd"}) + [name for name in FILES if name.startswith("odd/")]


def printed(result: Result, *names: str) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False)
    for name in names:
        print_breakdown(result, name, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in text.splitlines()) <= 110
    return str(text)


def test_collectives_in_a_terminal(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    lines = [" ".join(line.split()) for line in printed(open_run(tmp_path), "collectives").splitlines()]
    assert "all-reduce 0 2 100 MB 3 25.0 15.0 1 (100%) 10.0 10.0 100% 25.0" in lines
    assert "all-reduce 0 2 50.0 MB 3 10.0 0 - 10.0 5.00 50% 5.00" in lines


def test_kernels_in_a_terminal(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    text = printed(open_run(tmp_path), "kernels", "modules")
    assert re.search(r"nvjet_tst_128x256 +mm ", text)
    assert "(memory)" in text
    assert "block.0" in text


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.skipif(not FILES, reason="no ../shared/traces beside this checkout")
@pytest.mark.matrix
def test_every_shared_trace_has_tables_that_fit_and_add_up(run: str) -> None:
    result = open_run(TRACES / run)
    check_sums(result)
    check_path(result)
    assert printed(result, *NAMES)
    json.loads(to_json(result, tables=True))


@pytest.mark.skipif(not FILES, reason="no ../shared/traces beside this checkout")
def test_what_real_traces_say() -> None:
    (row,) = open_run(TRACES / "ddp_v100_rank1of2").breakdowns.collectives.rows
    assert (row.op, row.count, row.wait_mean_ns, row.busbw_gb_s) == ("all_reduce", 1616, None, None)
    dlrm = open_run(TRACES / "dlrm_v100_8ranks").breakdowns
    assert [sum(r.count for r in dlrm.collectives.rows), {r.ranks for r in dlrm.collectives.rows}] == [8, {8}]
    assert {r.matched == r.count for r in dlrm.collectives.rows} == {True}
    checkpointed = open_run(TRACES / "ddp_mi300_rank0of8").breakdowns
    again = checkpointed.efficiency.recompute_share
    assert again.value == pytest.approx(0.198, abs=0.01)
    assert "stacks" in again.basis
    assert checkpointed.efficiency.hfu.value == pytest.approx(0.0058, abs=0.0005)
    modules = {row.name: row for row in checkpointed.modules[0].rows}
    assert modules["Sequential_0"].recompute_ns == pytest.approx(modules["Sequential_0"].forward_ns, rel=0.15)


def test_a_sample_of_our_own(tmp_path: Path) -> None:
    result = opened_sample("fsdp2-slow-wire")
    check_sums(result)
    (units,) = result.breakdowns.modules
    assert [row.name for row in units.rows] == ["(root)", "blocks.1", "blocks.0"]
    assert all(row.backward_ns > row.forward_ns > 0 for row in units.rows)
    gathers = [row for row in result.breakdowns.collectives.rows if row.op == "all_gather"]
    assert all(row.transfer_mean_ns and row.transfer_mean_ns > 20_000_000 for row in gathers), "the planted slow wire"
    assert "on a CPU" in result.breakdowns.efficiency.mfu.reason


def test_the_command_line(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_trace(rank).write(tmp_path, f"rank{rank}.json")
    content = analyze_json(tmp_path)["breakdowns"]
    assert {"steps", "collectives", "kernels", "modules", "efficiency"} <= set(content)
    assert content["collectives"]["rows"][0]["wait_mean_ns"] == 15_000_000
    assert content["kernels"]["rows_left_out"] == 0
    ended = diag("analyze", tmp_path, "--table", "kernels", "--table", "efficiency")
    assert ended.returncode == 0, ended.stderr
    assert "By class:" in ended.stdout
    assert "(MFU)" in ended.stdout
    assert diag("analyze", tmp_path, "--table", "nothing").returncode == 2


_AT = "void at::native::"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32"),
        (
            f"{_AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, int>(int, int)",
            "CUDAFunctor_add",
        ),
        (
            f"{_AT}vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 2> >(int)",
            "MulFunctor",
        ),
        (
            f"{_AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
            "at::native::sum_functor<float> > > >(int)",
            "reduce_kernel sum_functor",
        ),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_nn>(int)", "cutlass_80_tensorop_s1688gemm_nn"),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_19kernel_abI3fooEEv", "kernel_ab"),
        ("_ZN19cutlass_cudnn_train6KernelINS_4conv6kernel23ImplicitGemmConvolutionIfEEEEv", "ImplicitGemmConvolution"),
        ("volta_sgemm_128x32_nt", "volta_sgemm_128x32_nt"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD"),
        ("aten::mm", "mm"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32", "convolution"),
        ("void splitKreduce_kernel<32, 16, int, float>", "gemm"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false>", "embedding"),
        ("triton_poi_fused_add_0", "triton"),
        ("triton_tem_fused_mm_3", "gemm"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "reduction"),
        ("void convert_something", "other"),
        ("Memset (Device)", "copy"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert kinds_of([name], KERNELS)[name] == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::_fused_rms_norm", "reduction"),
        ("aten::addcmul_", "elementwise"),
        ("aten::silu_backward", "elementwise"),
        ("fsdp::all_gather_copy_in", "copy"),
        ("aten::view", "other"),
    ],
)
def test_kinds_of_operators(name: str, kind: str) -> None:
    assert kinds_of([name], OPERATORS)[name] == kind


@pytest.mark.parametrize(
    ("device", "tflop_s"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("AMD Instinct MI300X", 1307),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("Tesla V100-SXM2-32GB", 125),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", None),
        ("NVIDIA RTX A1000", None),
        ("cpu", None),
        (None, None),
    ],
)
def test_peaks(device: str | None, tflop_s: float | None) -> None:
    found = peak_of(device)
    assert (found.tflop_s if found else None) == tflop_s
