"""The linter's report as text and JSON, its exit codes, and that no configuration breaks it."""

from __future__ import annotations

import io
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from diag.cli.plan import lint_command
from diag.errors import DiagError, ExitCode
from diag.linting import deepspeed
from diag.linting.arguments import KNOWN as ARGUMENTS
from diag.linting.document import parse
from diag.linting.fsdp import KNOWN as FSDP
from diag.linting.lint import lint
from diag.linting.model import Linted, NoticeSeverity
from diag.linting.torchtitan import MOVED, TABLES
from diag.show.plan import lint_to_json, print_lint
from tests.examples import examples
from tests.lint.test_clean import ACCELERATE_FSDP1, ZERO_2

GOLDEN = Path(__file__).parent / "report.txt"
SHOWN = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
fsdp_config:
  fsdp_version: 1
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: SHARD_GRAD_OP
  fsdp_limit_all_gathers: true
  fsdp_forward_prefetch: true
"""


def text_of(files: list[Linted]) -> str:
    console = Console(file=io.StringIO(), width=110, highlight=False, emoji=False)
    print_lint(files, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_is_the_golden_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("accelerate.yaml").write_text(SHOWN)
    text = text_of(lint([Path("accelerate.yaml")]))
    if os.environ.get("DIAG_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    assert max(map(len, text.splitlines())) <= 110
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_holds_every_notice(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(SHOWN)
    files = lint([path, path])
    found = json.loads(lint_to_json(files))
    assert found["schema_version"] == 1
    assert len(found["lint"]) == 2
    one = found["lint"][0]
    assert one["format"] == "Accelerate"
    assert [notice["key"] for notice in one["notices"]] == [notice.key for notice in files[0].notices]
    assert set(one["notices"][0]) == {"path", "line", "key", "severity", "text", "instead", "source"}
    assert set(one["translations"][0]) == {"key", "value", "line", "config", "python"}
    assert set(one["could_not_look"][0]) == {"what", "check"}


@pytest.mark.parametrize("as_json", [False, True])
def test_errors_are_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    (tmp_path / "good.yaml").write_text(ACCELERATE_FSDP1)  # notes only
    (tmp_path / "bad.json").write_text(ZERO_2.replace('"stage": 2', '"stage": 7'))
    assert lint_command([tmp_path / "good.yaml"], 8, 8, as_json) is ExitCode.OK
    assert lint_command([tmp_path / "good.yaml", tmp_path / "bad.json"], 8, 8, as_json) is ExitCode.GATE_EXCEEDED
    assert "no ZeRO stage 7" in capsys.readouterr().out


def test_what_a_file_says_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": "\x1b[2J", "\x1b]0;x\x07": 1, "[red]b[/red]": 1}}))
    text = text_of(lint([path]))
    assert "\x1b" not in text
    assert "[red]b[/red]" in text


KEYS = sorted(
    deepspeed.TOP
    | deepspeed.ZERO
    | deepspeed.OFFLOAD_OPTIMIZER
    | ARGUMENTS
    | FSDP["Accelerate"]
    | FSDP["Transformers"]
    | {f"fsdp_{key}" for key in FSDP["Accelerate"]}
    | {"distributed_type", "num_processes", "num_machines", "parallelism_config", "deepspeed_config", "zero_stage",
       "parallelism_config_dp_shard_size", "deepspeed_config_file", "enabled", "params"}
)  # fmt: skip
WORDS = [
    "auto",
    "FSDP",
    "DEEPSPEED",
    "MULTI_GPU",
    "full_shard offload",
    "HYBRID_SHARD",
    "cpu",
    "nvme",
    "true",
    "1e9",
    "",
]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | st.sampled_from(WORDS)
    | st.text(max_size=5)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
GPUS = st.sampled_from([None, 1, 8, 48])


def checked(document: dict[str, Any] | str, gpus: int | None, folder: Path) -> None:
    """Every notice is whole, or the file is refused with a message."""
    path = folder / "config"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    try:
        files = lint([path], gpus)
    except DiagError:
        return
    for notice in files[0].notices:
        assert notice.text
        assert notice.instead
        assert notice.source
        assert notice.line is None or notice.line >= 1
    order = [notice.severity for notice in files[0].notices]
    assert order == sorted(order, key=list(NoticeSeverity).index)
    assert text_of(files)
    assert json.loads(lint_to_json(files))


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), VALUES, max_size=8), GPUS)
def test_no_json_breaks_it(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], gpus: int | None) -> None:
    checked(values, gpus, tmp_path_factory.getbasetemp())


TITAN_KEYS = sorted({key for keys in TABLES.values() for key in keys or ()} | {key.partition(".")[2] for key in MOVED})
TITAN_VALUES = st.integers(-2, 64) | st.booleans() | st.sampled_from(["op", "never", "1F1B", "float32", ""])


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*TABLES, "float8"]),
        st.dictionaries(st.sampled_from([key for key in TITAN_KEYS if key]), TITAN_VALUES, max_size=6),
        min_size=2,
        max_size=5,
    ),
    GPUS,
)
def test_no_toml_breaks_it(
    tmp_path_factory: pytest.TempPathFactory, tables: dict[str, dict[str, Any]], gpus: int | None
) -> None:
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    text = "\n".join(lines) + "\n"
    assert parse(text, "x").values == tomllib.loads(text)
    checked(text, gpus, tmp_path_factory.getbasetemp())


@settings(max_examples=examples(25, thorough=60), deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_it(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    checked(text.encode("utf-8", "replace").decode(), None, tmp_path_factory.getbasetemp())
