"""Pseudonyms: what is a name, what is none, and what is left of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.api import Result, open_run
from diag.show.redact import Pseudonyms
from tests.copies import replace
from tests.simulate import Plan, simulate, write_run


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    plan = Plan(steps=6, hosts=lambda rank: ("gpu-17.corp.example", "vm", "fsdp")[rank], ranks=3)
    return open_run(write_run(simulate(plan), tmp_path_factory.mktemp("runs") / "fsdp2").root)


@pytest.fixture
def names(result: Result) -> Pseudonyms:
    manifest = result.tables.manifest
    assert manifest is not None
    manifest = replace(
        manifest,
        run_id="4711-a",
        strategy="fsdp2",
        rendezvous="nightly-job@fd00::17:29500",
        argv=["run", "--steps", "20", "--wrap", "block", "--data", "corpus/wiki", "--tag=Blue-1"],
    )
    return Pseudonyms(replace(result, tables=replace(result.tables, manifest=manifest)))


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("rank 0 on gpu-17.corp.example is slow", "rank 0 on host-1 is slow"),
        ("GPU-17 waits; gpu-17: late. gpu-170 does not", "host-1 waits; host-1: late. gpu-170 does not"),
        ("on vm.", "on host-2."),
        ("vms and a svm", "vms and a svm"),
        ("run 4711-a of nightly-job", "run run-1 of value-1"),
        ("see /etc/motd. Then /etc/motd, too", "see path-1. Then path-1, too"),
        ("(~/x/y), ../z and \\\\server\\share", "(path-1), path-2 and path-3"),
        ("https://user:key@example.org/a?b=c", "address-1"),
        ("mail bob@example.org", "mail account-1"),
        ("at 10.0.0.7:29500 or fd00::17", "at host-5:29500 or host-4"),
        ("tag Blue-1 of corpus/wiki/part", "tag value-1 of path-1"),
    ],
)
def test_names_are_hidden(names: Pseudonyms, text: str, hidden: str) -> None:
    assert names.text(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "12.5 GB/s of 3.2 TFLOP/s, 4/8 ranks, and/or n/a; ± 0.3 ms",
        "aten::mm, c10d::allreduce_, at::native::vectorized_elementwise_kernel<4, float>",
        "set_modules_to_forward_prefetch; --prefetch 1; fsdp2; block; data wait; ranks/*/log.txt",
        "torch 2.13.0+cpu · python 3.11.7 · NVIDIA H100 80GB HBM3",
        "layers.0.attention.wq: extra time of rank 1 over the other ranks",
        "for i in range(0, len(model.layers), 2):\n    fully_shard([*model.layers[i : i + 2]])",
    ],
)
def test_what_is_no_name_stays(names: Pseudonyms, text: str) -> None:
    assert names.text(text) == text


def test_a_text_that_is_nothing_but_a_name_is_hidden_though_it_is_a_word(names: Pseudonyms) -> None:
    assert names.text("fsdp") == "host-3"


def test_of_a_command_only_what_anybody_may_know_is_left(names: Pseudonyms) -> None:
    command = (
        "diag run --steps 20 --strategy fsdp2 --wrap block --data corpus/wiki --secret hunter --rdzv-endpoint=vm:29500 "
        "--inject straggler:rank=0,ms=200.5 'two words' --prefetch 1"
    )
    assert names.command(command) == (
        "diag run --steps 20 --strategy fsdp2 --wrap block --data path-1 --secret value-1 --rdzv-endpoint=host-2:29500 "
        "--inject straggler:rank=0,ms=200.5 value-2 --prefetch 1"
    )
    assert "unclosed" not in names.command("diag run 'unclosed")


def test_files_of_the_run_keep_their_place_in_it(result: Result, names: Pseudonyms) -> None:
    root = result.tables.root
    assert names.text(f"{root}/ranks/00002/steps.jsonl") == "path-1/ranks/00002/steps.jsonl"
    assert names.text(f"{root.absolute()}/ranks/00002/mine.jsonl") == "path-2"
    assert names.text(f"{root}-old/x") != f"{root}-old/x"


def test_one_path_has_one_pseudonym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(simulate(Plan(steps=6)), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    names = Pseudonyms(open_run("run"))
    assert names.text("run") == names.text(str(tmp_path / "run")) == "path-1"
    assert names.text("in the long run") == "in the long run"


@pytest.mark.parametrize("piece", ["a", "-", "a.", "a/", "1:", "~", "\\", "a@", "+"])
def test_long_words_do_not_take_the_square_of_their_length(names: Pseudonyms, piece: str) -> None:
    # With the square it would be many minutes.
    assert names.text(piece * 100_000)
