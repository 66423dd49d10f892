"""``diag plan`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.errors import ExitCode
from diag.show.policy import PAGE
from tests.command import diag


def test_the_answer_comes_first_and_the_table_holds_its_numbers() -> None:
    ended = diag("plan", "70B", "--gpus", "256", "--memory", "80", "-v")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Use ZeRO-3 (")
    assert "70,000,000,000 parameters on 256 x GPU of 80.0 GB, 8 a host; recipe mixed, 16 bytes" in ended.stdout
    assert "2 + 2 + 4 + 8 = 16 bytes a parameter" in ended.stdout
    states = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("DDP", "ZeRO-1", "ZeRO-2"))}
    assert states == {"DDP": "1,120.00", "ZeRO-1": "283.28", "ZeRO-2": "143.83"}
    assert "The states do not fit on fewer than 14 GPUs" in ended.stdout
    assert "6 + 4 + 8 = 18 bytes: Hugging Face" in ended.stdout
    assert "ZeRO paper" not in ended.stdout  # it counts as this recipe does
    assert max(map(len, lines)) <= 110


def test_the_answer_is_short_unless_more_is_asked_for() -> None:
    given = ("plan", "llama-3-8b", "--gpus", "16", "--gpu", "H100")
    short, tables, assumed = (diag(*given, *more).stdout for more in ((), ("--tables",), ("--assumed",)))
    assert len(short.splitlines()) <= 18
    assert short.splitlines()[-1] == "More: --tables --assumed, or -v for all."
    assert next(line for line in short.splitlines() if line.startswith("hybrid")).split()[1] == "yes"
    assert "gradients" in tables
    assert "gradients" not in short
    assert "--latency-within" in assumed
    assert "--latency-within" not in short
    assert "More:" not in diag(*given, "-v").stdout


def test_json_has_bytes_and_what_is_not_known_is_null() -> None:
    ended = diag("plan", "llama-3-8b", "--gpus", "8", "--gpu", "H100", "--checkpointing", "full", "--json")
    found = json.loads(ended.stdout)["plan"]
    assert found["model"] == {"name": "llama-3-8b", "parameters": 8_030_261_248}
    assert found["recommended"] == "ZeRO-1"
    assert found["topology"] is None
    assert found["activations"]["total"] == sum(found["activations"][key] for key in ("blocks", "working", "logits"))
    for row in found["strategies"]:
        assert row["peak"] == row["states"]["total"] + row["gathered"] + row["buffers"] + found["outside_states"]
    assert json.loads(diag("plan", "8B", "--json").stdout)["plan"]["activations"] is None


def test_axes_that_make_up_the_gpus() -> None:
    ended = diag("plan", "70B", "--gpus", "128", "--topology", "dp=8,tp=4,pp=2,cp=2")
    assert "dp=8 x tp=4 x pp=2 x cp=2 = 128 ranks;" in ended.stdout
    ended = diag("plan", "70B", "--gpus", "64", "--topology", "dp=8,tp=4,pp=2,cp=2")
    assert ended.returncode == ExitCode.ERROR
    assert "there are 64 GPUs" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lama",), "no such model: lama"),
        (("7B", "--recipe", "fp4"), "there is no 'fp4'"),
        (("7B", "--wrap", "layer"), "there is no unit 'layer'"),
        (("7B", "--checkpointing", "some"), "there is no 'some'"),
        (("7B", "--gpu", "H1000"), "no device called 'H1000'"),
        (("7B", "--memory", "-1"), "give a number above 0"),
    ],
)
def test_mistakes_are_messages(arguments: tuple[str, ...], message: str) -> None:
    ended = diag("plan", *arguments)
    assert ended.returncode == ExitCode.ERROR
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_recipes_are_listed() -> None:
    ended = diag("plan", "7B", "--recipe", "list")
    assert ended.returncode == 0
    assert "fsdp-mixed" in ended.stdout


def test_a_config_json(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "124,439,808 parameters" in diag("plan", tmp_path, "--gpus", "1").stdout


def test_axes_in_the_tables() -> None:
    given = ("llama-3-70b", "--gpus", "128", "--gpu", "H100", "--micro-batches", "16")
    assert len(diag("plan", *given, "--topology", "dp=2,tp=8,pp=8").stdout.splitlines()) <= PAGE.rows_of_answer
    ended = diag("plan", *given, "--topology", "dp=2,tp=8,pp=8", "--tables")
    assert ended.returncode == 0, ended.stderr
    assert "tp=8: " in ended.stdout
    assert "within a host." in ended.stdout
    assert "pp=8, 1f1b: with equal stages 30% of the step is bubble" in ended.stdout
    assert "(--mfu, --peak)" in " ".join(ended.stdout.split())
    assert max(map(len, ended.stdout.splitlines())) <= 110
    found = json.loads(diag("plan", *given, "--topology", "dp=2,tp=8,pp=8", "--json").stdout)["plan"]
    assert found["assumed"]["mfu"] == 0.4
    for row in found["strategies"]:
        assert row["peak"] == row["states"]["total"] + row["gathered"] + row["buffers"] + row["outside"]
        assert {axis["axis"] for axis in row["axes"]} == {"tp", "pp"}
        time = row["expected"]
        assert time["step_ns"] == time["compute_ns"] + time["exposed_ns"] + time["bubble_ns"]
    interleaved = diag(
        "plan", *given, "--topology", "dp=2,tp=8,pp=8", "--schedule", "interleaved", "--virtual-stages", "5", "--json"
    )
    better = json.loads(interleaved.stdout)["plan"]["strategies"][0]["expected"]
    assert better["bubble_ns"] < found["strategies"][0]["expected"]["bubble_ns"]


def test_time_needs_a_peak() -> None:
    assert "cannot be estimated: name the GPUs" in diag("plan", "7B").stdout
    assert "peak is for 16-bit arithmetic" in diag("plan", "7B", "--gpu", "H100", "--recipe", "fp32").stdout
    known = json.loads(diag("plan", "7B", "--peak", "100", "--mfu", "0.3", "--json").stdout)["plan"]
    assert known["strategies"][0]["expected"]["mfu"] < 0.3
    assert known["assumed"]["memory_bandwidth"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schedule", "dualpipe"), "there is no 'dualpipe'"),
        (("--mfu", "1.5"), "--mfu 1.5: give a number above 0 and up to 1"),
        (("--peak", "0"), "--peak 0: give a number above 0"),
        (("--topology", "dp=2,pp=4", "--schedule", "interleaved", "--micro-batches", "6"), "6 micro-batches do not"),
        (
            ("--topology", "pp=8", "--schedule", "interleaved", "--micro-batches", "8", "--virtual-stages", "5"),
            "--virtual-stages 5: a stage of pp=8 has 4 layers",
        ),
        (("--topology", "dp=1,tp=8,cp=1"), None),
        (("--topology", "tp=3,dp=1"), "there are 8 GPUs"),
    ],
)
def test_mistakes_of_axes_are_messages(arguments: tuple[str, ...], message: str | None) -> None:
    ended = diag("plan", "llama-3-8b", "--gpus", "8", "--gpu", "H100", *arguments)
    assert ended.returncode == (ExitCode.OK if message is None else ExitCode.ERROR)
    assert (message or "") in ended.stderr
    assert "Traceback" not in ended.stderr
