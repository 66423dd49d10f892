from __future__ import annotations

import subprocess
import sys

import pytest

from diag.collectors.trainer.faults import FAULTS, FaultError, parse_fault, parse_faults
from diag.collectors.trainer.options import OptionError, TrainerOptions


def test_options_survive_the_environment_variable() -> None:
    options = TrainerOptions(strategy="ddp", inject=("straggler:rank=1", "slow-wire"), batch_size=3, data="text")
    assert TrainerOptions.from_json(options.to_json()) == options


@pytest.mark.parametrize("text", ["", "[]", '{"warp": "block"}'])
def test_a_broken_environment_variable_is_a_message(text: str) -> None:
    with pytest.raises(OptionError, match="DIAG_TRAINER_OPTIONS"):
        TrainerOptions.from_json(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TrainerOptions(preset="huge"), "--preset huge is unknown: use tiny"),
        (TrainerOptions(strategy="ddp", wrap="linear"), "ddp cannot use --wrap linear.*fsdp2"),
        (TrainerOptions(strategy="ddp", reshard_after_forward="no", prefetch=2), "--prefetch 2, --reshard-after"),
        (TrainerOptions(preset="small", wrap="9"), "small has 8 blocks, so give 1 to 8"),
        (TrainerOptions(wrap="layer"), "--wrap layer is unknown"),
        (TrainerOptions(wrap="root", prefetch=1), "nothing to gather"),
        (TrainerOptions(wrap="root", reshard_after_forward="no"), "no effect"),
        (TrainerOptions(wrap="linear", activation_checkpointing=True), "a third time"),
        (TrainerOptions(reshard_after_forward="3"), "does not divide 4 ranks: use yes, no or one of 2"),
        (TrainerOptions(reshard_after_forward="4"), "say yes"),
        (TrainerOptions(reshard_after_forward="1"), "say no"),
        (TrainerOptions(reshard_after_forward="half"), "unknown"),
        (TrainerOptions(steps=0), "--steps 0 is too small"),
        (TrainerOptions(timeout_s=0), "--timeout"),
        (TrainerOptions(inject=("die:rank=4,step=1",)), "there are 4 ranks, 0 to 3"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_the_reason(options: TrainerOptions, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options.validate(world_size=4)


def test_the_rank_is_left_unchecked_while_nobody_knows_how_many_there_are() -> None:
    TrainerOptions(reshard_after_forward="3", inject=("straggler:rank=9",)).validate()


def test_faults_are_filled_in_and_written_back() -> None:
    fault = parse_fault("straggler:rank=1,ms=50")
    assert str(fault) == "straggler:rank=1,ms=50,phase=forward,rotate=no"
    assert parse_fault(str(fault)) == fault
    assert fault.strikes(1)
    assert not fault.strikes(0)
    assert parse_fault("slow-loader").strikes(7)


def test_every_fault_parses_from_its_own_usage_once_the_gaps_are_filled() -> None:
    for kind in FAULTS.values():
        spec = kind.usage().replace("=RANK", "=0").replace("=INTEGER", "=3")
        assert str(parse_fault(spec, world_size=1)) == spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("slow-disk", "unknown fault 'slow-disk': use slow-loader, slow-wire"),
        ("straggler:node=1", "takes no 'node': write straggler:rank=0,ms=200"),
        ("straggler:ms=", "ms has no value"),
        ("straggler:ms=fast", "ms=fast is not a number"),
        ("straggler:ms=nan", "finite"),
        ("straggler:ms=-1", "0 or more"),
        ("straggler:ms=1,ms=2", "given twice"),
        ("straggler:phase=optimizer", "use forward or backward"),
        ("straggler:rank=all", "not a whole number"),
        ("slow-wire:rank=first", "not a rank, or all"),
        ("slow-wire:rank=2", "there are 2 ranks, 0 to 1"),
        ("slow-loader:every=0", "1 or more"),
        ("die:rank=0", "needs step="),
    ],
)
def test_a_wrong_fault_says_what_exists(spec: str, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        parse_faults([spec], world_size=2)


def test_the_command_line_can_read_options_without_torch() -> None:
    code = (
        "import sys, diag.collectors.trainer.options, diag.collectors.trainer.faults; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
