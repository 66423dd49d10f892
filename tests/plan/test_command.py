"""``diag plan`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.errors import ExitCode
from tests.command import diag


def test_the_answer_comes_first_and_the_table_holds_its_numbers() -> None:
    ended = diag("plan", "70B", "--gpus", "256", "--memory", "80")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("Use ZeRO-3 (")
    assert "70,000,000,000 parameters on 256 x GPU of 80.0 GB, 8 a host." in ended.stdout
    assert "2 + 2 + 4 + 8 = 16 bytes a parameter" in ended.stdout
    states = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("DDP", "ZeRO-1", "ZeRO-2"))}
    assert states == {"DDP": "1,120.00", "ZeRO-1": "283.28", "ZeRO-2": "143.83"}
    assert "Bound: below 14 GPUs" in ended.stdout
    assert "6 + 4 + 8 = 18 bytes: Hugging Face" in ended.stdout
    assert "ZeRO paper" not in ended.stdout  # it counts as this recipe does
    assert max(map(len, lines)) <= 110


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
    assert "dp=8 x tp=4 x pp=2 x cp=2 = 128 ranks." in ended.stdout
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
