"""The check of GPU machines, on stand-ins: the plan for machines, each check on directories that agree and that do not,
the report, and the same program with trainings on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from diag.collectors.files import encode
from diag.collectors.layout import RankLayout, RunLayout
from diag.collectors.records import (
    DATA,
    CollectiveLine,
    CollectiveRow,
    DeviceCall,
    DeviceRecord,
    DeviceStepRecord,
    DurationLine,
    DurationRow,
    HeldRecord,
    MemoryRecord,
    PhaseRow,
    StepRecord,
)
from diag.collectors.settings import SETTINGS_VARIABLE
from diag.collectors.trainer.options import OPTIONS_ENV, TrainerOptions
from diag.collectors.trainer.refusals import validate
from diag.errors import DiagError
from tests.account.kineto_builder import KinetoBuilder
from tests.bench.grid.device_rows import tuned, write_device_run
from tests.bench.grid.gpu.simulate import simulate
from tests.diagnoses.test_gpu_runs import COMPUTE, run_directory
from tests.gpu import __main__ as program
from tests.gpu.checks import (
    AGREEMENTS,
    FAILED,
    NOT_APPLICABLE,
    PASSED,
    Check,
    Checked,
    agree,
    checks_of,
    step_verdict,
    windowless_class,
)
from tests.gpu.parts import Parts, unpacked
from tests.gpu.plan import (
    ANSWERS,
    CUT,
    DEVICE,
    DONE,
    INSPECTOR,
    LEFT_OUT,
    NCCL_HANG,
    OVERHEAD,
    PROBE,
    PROBED,
    RECORD,
    Answer,
    Machine,
    Planned,
    filling_batch,
    nccl_hang_s,
    plan,
)
from tests.gpu.report import CHECKS, REPORT, document, write_report
from tests.inspector.files import write_job

MS, GB = 1_000_000, 10**9
H100 = Machine(gpus=1, name="H100", vendor="NVIDIA", memory=80 * GB, one_rank="Duplicate GPU detected")
MACHINES = {
    "cpu": Machine(gpus=0),
    "one GPU": H100,
    "one GPU for two ranks": replace(H100, multi_rank=True, one_rank=""),
    "one GPU and gloo": replace(H100, gloo=True),
    "two GPUs": replace(H100, gpus=2),
    "three small GPUs": replace(H100, gpus=3, memory=16 * GB),
    "eight GPUs": replace(H100, gpus=8, inspector="/plugins/inspector.so"),
}
TWO = MACHINES["two GPUs"]


def left_out(machine: Machine) -> dict[str, str]:
    return {one.name: one.not_here for one in plan(machine) if one.not_here}


def both_ranks(folder: Path, name: str) -> list[tuple[int, RankLayout]]:
    run_directory(folder / name, (COMPUTE, COMPUTE), traced=False)
    return list(RunLayout(folder / name).ranks().items())


# -- the plan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_trainer_takes_every_planned_run(tmp_path: Path, machine: Machine) -> None:
    runs = plan(machine)
    assert len({one.name for one in runs}) == len(runs)
    for planned in runs:
        if planned.name in (OVERHEAD, DEVICE) or planned.not_here:
            continue
        command, added = program.by_torchrun(planned, tmp_path / planned.name, machine)
        options = TrainerOptions.from_json(added[OPTIONS_ENV])
        ranks = 2 if planned.by_gloo else machine.ranks
        validate(options, ranks)
        assert options.inject or planned.fills or planned.answer is None or not planned.answer.causes
        assert str(ranks) == command[command.index("--nproc-per-node") + 1]
        assert json.loads(added[SETTINGS_VARIABLE])["trace_active"] == 6
        limit = nccl_hang_s(machine) if planned.name == NCCL_HANG else 20
        assert options.timeout_s == (limit if planned.hangs else TrainerOptions().timeout_s)


def test_what_a_machine_cannot_run_is_left_out_with_the_reason() -> None:
    assert [MACHINES[name].ranks for name in MACHINES] == [2, 1, 2, 1, 2, 3, 8]
    alone = left_out(H100)
    assert "ddp-host-straggler" in alone
    assert "Duplicate GPU detected" in alone["fsdp2-hang-before-collective"]
    assert set(left_out(TWO)) == {INSPECTOR}
    by_gloo = replace(H100, gloo=True)
    assert not {name for name in left_out(by_gloo) if "hang" in name or "loader" in name}
    assert "share one GPU" in left_out(by_gloo)["ddp-device-straggler"]
    assert "NumPy" in left_out(replace(MACHINES["eight GPUs"], numpy=False))["ddp-pipeline"]
    assert "share one GPU" in left_out(MACHINES["one GPU for two ranks"])["ddp-device-straggler"]
    assert left_out(MACHINES["three small GPUs"])["ddp-pipeline"] == "3 ranks are not a multiple of two"
    assert not left_out(MACHINES["eight GPUs"])
    assert not left_out(replace(MACHINES["eight GPUs"], cpu_fsdp2=False))
    on_cpu = plan(Machine(0, cpu_fsdp2=False))
    without = {one.name for one in on_cpu if "accelerators only" in one.not_here}
    assert without == {one.name for one in on_cpu if one.name.startswith("fsdp2")} - {"fsdp2-tensor-parallel"}


def test_a_hang_that_ended_too_early_is_not_the_planned_one() -> None:
    run = {"exit_code": 1, "hangs": True, "hangs_s": 20, "error": "ValueError: x"}
    assert program._case({**run, "seconds": 7.0})["why"] == "ValueError: x"
    assert program._case({**run, "seconds": 31.0})["why"] == "exit code 1, as planned"


def test_a_delay_is_longer_than_the_steps_that_would_hide_it(tmp_path: Path) -> None:
    """The stand-in's steps take 84 ms: the delays for a GPU are long enough. Of 400 ms they are not."""
    planned = next(one for one in plan(TWO) if one.name == "ddp-slow-loader-one-rank")
    both_ranks(tmp_path, "ddp")
    assert program._fitted(planned, tmp_path, TWO) == ("", planned)
    line = encode(StepRecord(0, 0, 400 * MS, []))
    RunLayout(tmp_path / "ddp").rank(0).steps.write_bytes(line * 9)
    assert "slow-loader:ms=1200,rank=1" in program._fitted(planned, tmp_path, TWO)[1].options
    assert program._fitted(planned, tmp_path / "none", TWO) == ("", planned)


def test_launch_bound_faults_are_judged_on_devices_only() -> None:
    cpu = {one.name: one for one in plan(MACHINES["cpu"])}
    assert cpu["ddp-tiny-kernels"].answer is None
    assert "there is none" in cpu["ddp-tiny-kernels"].unchecked


def test_a_verdict_that_is_not_judged_says_why(tmp_path: Path) -> None:
    found = result_of("ddp-tiny-kernels: verdict", checked(tmp_path, "ddp-tiny-kernels", machine=MACHINES["cpu"]))
    assert (found.state, found.reason) == (NOT_APPLICABLE, "what it costs is the device's waiting, and there is none")


def test_recording_needs_torch_and_nothing_else() -> None:
    code = (
        "import sys\n"
        "for name in ('polars', 'numpy', 'msgspec', 'typer', 'rich', 'psutil'): sys.modules[name] = None\n"
        "import tests.gpu.__main__, tests.gpu.probe, tests.bench._plain_training"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_run_starts_once_the_time_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def trained(planned: Planned, folder: Path, machine: Machine, left_s: float) -> dict[str, Any]:
        nonlocal now
        now += 30
        return {"name": planned.name, "exit_code": 0, "seconds": 30.0}

    monkeypatch.setattr(program, "trained", trained)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    program.record(tmp_path, TWO, 100)
    record = json.loads((tmp_path / RECORD).read_text())
    assert [run["name"] for run in record["runs"]] == [DEVICE, "ddp"]
    assert record["left_out"][OVERHEAD] == "no time: 40 s are left, and a run takes up to 45 s"
    assert record["cases"]["ddp"] == {"state": DONE, "why": "exit code 0", "seconds": 30.0}
    assert record["cases"][OVERHEAD]["state"] == LEFT_OUT


@pytest.mark.parametrize(
    ("gpus", "ended", "ranks", "why"),
    [
        (1, (0, "", False), 2, ""),
        (1, (1, "ncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0\n", False), 1, "Duplicate GPU detected"),
        (1, (-15, "", True), 1, "no answer"),
        (4, None, 4, ""),
    ],
    ids=["shared", "refused", "hangs", "four"],
)
def test_two_ranks_where_one_gpu_lets_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, ended: tuple[int, str, bool] | None, ranks: int, why: str
) -> None:
    said = json.dumps({"gpus": gpus, "name": "H100", "memory": 80 * GB, "vendor": "NVIDIA", "torch": "2.13.0"})
    asked: list[str] = []

    def run_limited(command: list[str], environ: dict[str, str], limit_s: float) -> tuple[int, str, bool] | None:
        if "describe" in command:
            return 0, f"a warning\n{said}\n", False
        asked.append(command[-1])
        return ended

    monkeypatch.setattr(program, "run_limited", run_limited)
    machine = program.described(cpu=False)
    tried = [] if gpus > 1 else ["all-reduce", "gloo"] if why else ["all-reduce"]
    assert (machine.ranks, machine.gpus, asked) == (ranks, gpus, tried)
    assert why in machine.one_rank
    assert bool(why) == bool(machine.one_rank)


def test_the_batch_that_fills_the_memory(tmp_path: Path) -> None:
    """Two GB are held, and a sequence takes one: 73 of them reserve 94 % of 80 GB."""
    planned = next(one for one in plan(TWO) if one.fills)
    why, same = program._fitted(planned, tmp_path, TWO)
    assert same is planned
    assert "does not say what a batch takes" in why
    for _, files in both_ranks(tmp_path, "ddp"):
        memory, held = MemoryRecord(1, reserved=10 * GB), HeldRecord(GB, GB // 2, GB // 2)
        files.steps.write_bytes(encode(StepRecord(0, 0, 1, [], memory=memory, held=held)))
    why, filled = program._fitted(planned, tmp_path, TWO)
    assert (why, filled.options[filled.options.index("--batch-size") + 1]) == ("", "73")
    assert filling_batch(2 * GB, 2 * GB, 8, 80 * GB) == 8, "a batch that takes nothing"
    assert {name for name, one in MACHINES.items() if "ddp-memory-near-limit" not in left_out(one)} == {
        "one GPU", "one GPU for two ranks", "one GPU and gloo", "two GPUs", "eight GPUs",
    }  # fmt: skip


def test_a_run_has_a_time_limit() -> None:
    begin = time.monotonic()
    code, _, timed_out = program.run_limited([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.5)
    assert timed_out
    assert code != 0
    assert time.monotonic() - begin < 30
    assert program.run_limited([sys.executable, "-c", "print('hello'); exit(3)"], {}, 30) == (3, "hello\n", False)


def test_workers_in_sessions_of_their_own_do_not_survive_a_run(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    worker = (
        "import os, pathlib, signal, time; signal.signal(15, signal.SIG_IGN); "
        f"pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    command = f"[sys.executable, '-c', {worker!r}]"
    launcher = f"import subprocess, sys; subprocess.Popen({command}, start_new_session=True).wait()"
    assert program.run_limited([sys.executable, "-c", launcher], {}, 1.5)[2]
    deadline = time.monotonic() + 10
    while Path(f"/proc/{told.read_text()}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{told.read_text()}/cmdline").read_bytes():
            break  # ended, and not collected yet
        time.sleep(0.05)
    else:
        assert time.monotonic() < deadline


def test_a_run_that_cannot_be_recorded_leaves_the_reason_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(planned: Planned, folder: Path, machine: Machine, left_s: float) -> dict[str, Any]:
        if planned.name == "ddp":
            raise OSError(28, "No space left on device")
        return {"name": planned.name, "exit_code": 0, "seconds": 1.0, "cut": planned.name == OVERHEAD}

    monkeypatch.setattr(program, "trained", trained)
    program.record(tmp_path, TWO, 1000)
    cases = json.loads((tmp_path / RECORD).read_text())["cases"]
    assert "No space left" in cases["ddp"]["why"]
    assert (cases[OVERHEAD]["state"], cases["fsdp2"]["state"]) == (CUT, DONE)


def test_the_first_error_of_a_rank_is_why_a_run_failed(tmp_path: Path) -> None:
    log = tmp_path / "torchrun" / "a" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback (most recent call last):\n  File x\nRuntimeError: Numpy is not available\n")
    assert program._last_error(tmp_path, "ChildFailedError: ...") == "RuntimeError: Numpy is not available"


def run_of(folder: Path, name: str, **files: bytes) -> None:
    (folder / name).mkdir(parents=True)
    for file, content in files.items():
        (folder / name / file).write_bytes(content)


def test_runs_travel_in_parts_that_are_whole_after_each(tmp_path: Path) -> None:
    made, parts = Random(0), Parts(tmp_path / "out", part_bytes=60_000, most=2)
    parts.folder.mkdir()
    for at in range(6):
        run_of(tmp_path / "runs", f"run{at}", small=b"a line\n" * 9, trace=made.randbytes(20_000))
        (tmp_path / "runs" / f"run{at}.log").write_text("printed")
        travels = parts.add(f"run{at}", tmp_path / "runs")
        assert all(path.stat().st_size <= 60_000 for path in parts.folder.glob("part-*.tar"))
        found = unpacked(parts.folder, tmp_path / f"there{at}")
        assert (found / f"run{at}" / "small").is_file()
        assert (found / f"run{at}.log").read_text() == "printed"
        assert (found / f"run{at}" / "trace").exists() == (not travels["left_behind"])
        assert (found / "run0" / "trace").exists(), "what is there stays"
    assert travels["left_behind"] == {"run5/trace": 20_000}
    assert len(list(parts.folder.glob("part-*.tar"))) == 2


def test_a_part_that_was_cut_off_gives_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = Parts(tmp_path)
    for name in ("first", "second"):
        run_of(tmp_path / "runs", name, trace=Random(name).randbytes(9000))
        parts.add(name, tmp_path / "runs")
    part = tmp_path / "part-1.tar"
    part.write_bytes(part.read_bytes()[: len(part.read_bytes()) // 2 - 4000])
    unpacked(tmp_path, tmp_path / "there")
    assert (tmp_path / "there" / "first" / "trace").is_file()
    assert "part-1.tar" in capsys.readouterr().out


def checked(folder: Path, *names: str, machine: Machine = TWO, **outcome: Any) -> Checked:
    """A folder in which these runs ended well, or as ``outcome`` says."""
    usual = {"exit_code": 0, "seconds": 20.0, "timed_out": False, "cut": False, "load": 0.5, "cores": 8}
    runs = [{"name": name, "command": ["python", "-m", "diag"], **usual, **outcome} for name in names]
    left_out = {one.name: "no time" for one in plan(machine) if one.name not in names}
    record = {"machine": asdict(machine), "runs": runs, "left_out": left_out, "seconds": 60.0}
    folder.mkdir(exist_ok=True)
    (folder / RECORD).write_text(json.dumps(record))
    return Checked.open(folder)


def result_of(name: str, found: Checked) -> Check:
    return next(check for check in checks_of(found) if check.name == name)


def test_a_verdict_is_held_against_what_was_planted(tmp_path: Path) -> None:
    run_directory(tmp_path / "ddp", (COMPUTE + 50 * MS, COMPUTE), traced=True)
    right = Answer(("compute",), ("compute-straggler",), (0,))
    found = checked(tmp_path, "ddp")
    for answer, passes in (
        (right, True),
        (replace(right, ranks=(1,)), False),
        (replace(right, causes=("host-straggler",)), False),
        (replace(right, classes=("host",)), False),
    ):
        ok, text = step_verdict(found, Planned("ddp", answer=answer))
        assert ok == passes
        assert "compute" in text
        assert "cause compute-straggler, at fault: rank 0" in text


def test_a_class_has_to_come_out_without_the_window_too(tmp_path: Path) -> None:
    job = tuned("dev-S1-forward", 0.4)
    write_device_run(job, simulate(job, keep=True).ranks, tmp_path / "ddp", Random(1))
    (culprit,) = job.faults[0].ranks
    found = checked(tmp_path, "ddp")
    for answer, passes in (
        (Answer(("compute",), ("a cause that takes a window",), (culprit,)), True),
        (Answer(("compute",), (), ()), False),
        (Answer(("host",), (), (culprit,)), False),
    ):
        ok, text = windowless_class(found, Planned("ddp", answer=answer))
        assert ok == passes
        assert text.startswith("compute (confidence ")


def test_memory_that_a_batch_has_filled(tmp_path: Path) -> None:
    """The stand-in has reserved 70 of 80 GB; then 77 on one rank, then on both."""
    name = "ddp-memory-near-limit"
    ranks = both_ranks(tmp_path, name)
    found = []
    for reserved in (None, 77, 77):
        found.append(result_of(f"{name}: verdict", checked(tmp_path, name)))
        if reserved is not None:
            _, files = ranks.pop()
            memory = MemoryRecord(1, allocated=reserved << 30, reserved=reserved << 30, capacity=80 << 30)
            files.steps.write_bytes(
                files.steps.read_bytes() + encode(StepRecord(90, 10**12, 10**12 + 5, [], memory=memory))
            )
    found.append(result_of(f"{name}: verdict", checked(tmp_path, name)))
    assert [one.state for one in found] == [FAILED, FAILED, FAILED, PASSED]
    assert found[0].found.startswith("88% of the memory reserved; ")
    assert found[-1].found == "96% of the memory reserved; near-out-of-memory"
    assert result_of(f"{name}: ends", checked(tmp_path, name, exit_code=1)).state == NOT_APPLICABLE, "it did not fit"


def test_trainings_that_fail_or_are_cut(tmp_path: Path) -> None:
    failed = result_of("ddp: ends", checked(tmp_path, "ddp", exit_code=1))
    assert (failed.state, failed.found) == (FAILED, "exit code 1 after 20 s")
    verdict = result_of("ddp: verdict", checked(tmp_path, "ddp", exit_code=1))
    assert (verdict.state, verdict.reason) == (NOT_APPLICABLE, "the training failed: exit code 1 after 20 s")
    late = result_of("ddp: ends", checked(tmp_path, "ddp", exit_code=-15, timed_out=True))
    assert (late.state, late.found) == (FAILED, "exit code -15 after 20 s, ended by the limit of 60 s")
    cut = result_of("ddp: ends", checked(tmp_path, "ddp", exit_code=-15, timed_out=True, cut=True))
    assert (cut.state, cut.reason) == (NOT_APPLICABLE, "the time budget ended it after 20 s")
    hang = "fsdp2-hang-before-collective: ends"
    assert result_of(hang, checked(tmp_path, hang.split(":")[0], exit_code=5)).state == PASSED
    assert result_of(hang, checked(tmp_path, hang.split(":")[0])).state == FAILED
    early = checked(tmp_path, hang.split(":")[0], exit_code=1, hangs=True, hangs_s=21, error="ValueError: x")
    assert result_of(hang, early).state == FAILED, "it ended before it could hang"


def test_a_check_that_raises_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    found = checks_of(checked(tmp_path, "ddp", PROBE, OVERHEAD))
    broken = {check.name for check in found if check.state == FAILED}
    assert broken == {
        "ddp: verdict", "ddp: class without its window", "Flight Recorder", "device samples", "peaks of memory",
        "diag plan", "device clock", "overlap", "durations from the Flight Recorder", "overhead",
    }  # fmt: skip
    assert {check.name for check in found} >= {name for name, _, _ in AGREEMENTS}


@pytest.mark.parametrize(("recorded", "state"), [(1000, PASSED), (995, PASSED), (900, FAILED), (None, FAILED)])
def test_peaks(tmp_path: Path, recorded: int | None, state: str) -> None:
    for _, files in both_ranks(tmp_path, PROBE):
        lines = [StepRecord(step, 0, 1, [], memory=MemoryRecord(1, allocated=recorded)) for step in range(3)]
        files.steps.write_bytes(b"".join(map(encode, lines)))
        said = {"peaks": {"0": 1000, "1": 1000, "2": 1000}, "flight_recorders": {}, "problems": []}
        files.at(PROBED).write_text(json.dumps(said))
    assert result_of("peaks of memory", checked(tmp_path, PROBE)).state == state


@pytest.mark.parametrize(
    ("recorders", "machine", "state"),
    [
        ({"nccl": 40, "": 3}, "two GPUs", PASSED),
        ({"": 40}, "two GPUs", FAILED),
        ({}, "two GPUs", FAILED),
        ({"": 40}, "cpu", PASSED),
        ({}, "cpu", FAILED),
    ],
)
def test_flight_recorders(tmp_path: Path, recorders: dict[str, int], machine: str, state: str) -> None:
    for _, files in both_ranks(tmp_path, PROBE):
        files.at(PROBED).write_text(json.dumps({"peaks": {}, "flight_recorders": recorders, "problems": []}))
    assert result_of("Flight Recorder", checked(tmp_path, PROBE, machine=MACHINES[machine])).state == state


def test_device_samples(tmp_path: Path) -> None:
    for _, files in both_ranks(tmp_path, "ddp"):
        files.device.write_bytes(encode(DeviceRecord(1, sm_clock_mhz=1980, power_mw=350_000)))
    found = result_of("device samples", checked(tmp_path, "ddp"))
    assert (found.state, found.found) == (PASSED, "; ".join(f"rank {r}: 1 samples, 1980 MHz, 350 W" for r in (0, 1)))
    RunLayout(tmp_path / "ddp").rank(1).device.write_bytes(encode(DeviceRecord(1, unavailable="no NVML")))
    found = result_of("device samples", checked(tmp_path, "ddp"))
    assert found.state == FAILED
    assert "rank 1: no NVML" in found.found
    assert result_of("device samples", checked(tmp_path, "ddp", machine=MACHINES["cpu"])).state == NOT_APPLICABLE


@pytest.mark.parametrize(("by_events", "state"), [(84, PASSED), (80, PASSED), (120, FAILED), (60, FAILED), (0, FAILED)])
def test_events_against_kernels(tmp_path: Path, by_events: int, state: str) -> None:
    """Steps of 90 ms, of which the data phase takes 5 and kernels span 80, launched early."""
    for rank, files in both_ranks(tmp_path, "ddp"):
        built, records = KinetoBuilder(rank=rank), []
        for step in range(10, 13):
            begin = 5 * MS + 90 * MS * (step - 10)
            built.step(step, begin, begin + 80 * MS)
            for start, end in ((7, 40), (40, 87)):
                built.kernel(begin + start * MS, begin + end * MS, launch=begin + 6 * MS)
            if by_events:
                records.append(DeviceStepRecord(step, (5 + by_events) * MS, [PhaseRow(DATA, 0, 5 * MS)]))
        built.write(files.folder, files.trace(10).name.removesuffix(".gz"), compress=True)
        files.device_steps.write_bytes(b"".join(map(encode, records)))
    found = result_of("device clock", checked(tmp_path, "ddp"))
    assert found.state == state, found
    assert (f"{by_events}.0 ms by events, 80.0 by kernels" if by_events else "no step has both") in found.found


def test_the_bound_of_a_step_s_time() -> None:
    assert agree(10, 11)
    assert agree(112, 100)
    assert not agree(113, 100)
    assert not agree(86, 100)


def test_inspector(tmp_path: Path) -> None:
    both_ranks(tmp_path, INSPECTOR)
    machine = replace(TWO, inspector="/plugins/inspector.so")
    found = result_of("NCCL Inspector", checked(tmp_path, INSPECTOR, machine=machine))
    assert (found.state, found.found) == (FAILED, "Inspector wrote no files")
    write_job(tmp_path / INSPECTOR / "inspector", {"0x1": (0, 1)}, lambda *_: 100.0)
    found = result_of("NCCL Inspector", checked(tmp_path, INSPECTOR, machine=machine))
    assert found.state == PASSED, found
    assert found.found.startswith("2 processes, ")
    three = result_of("NCCL Inspector", checked(tmp_path, INSPECTOR, machine=replace(machine, gpus=3)))
    assert three.state == FAILED


@pytest.mark.parametrize(("timed", "state"), [(10, PASSED), (8, PASSED), (7, FAILED)])
def test_durations_from_the_flight_recorder(tmp_path: Path, timed: int, state: str) -> None:
    name = "durations from the Flight Recorder"
    ranks = both_ranks(tmp_path, "ddp")
    assert result_of(name, checked(tmp_path, "ddp")).found == "no rank left durations.jsonl"
    rows = [DurationRow("0", seq, "all_reduce", 8, "float32", seq, MS) for seq in range(timed)]
    for _, files in ranks:
        begin_ns = json.loads(files.steps.read_bytes().splitlines()[0])["begin_ns"]
        calls = [
            CollectiveRow("0", seq, "all_reduce", 8, "float32", begin_ns + seq, None, None, None) for seq in range(10)
        ]
        files.collectives.write_bytes(encode(CollectiveLine(0, calls, {"0": [0, 1]})))
        files.durations.write_bytes(encode(DurationLine(rows, {"0": [0, 1]}, "nccl")))
    found = result_of(name, checked(tmp_path, "ddp"))
    assert found.state == state, found
    assert f"rank 1: {timed} all-reduces with a duration, 10 recorded" in found.found
    assert result_of(name, checked(tmp_path, "ddp", machine=MACHINES["cpu"])).state == NOT_APPLICABLE


def answered(folder: Path, **answers: Any) -> Checked:
    (folder / DEVICE).mkdir(exist_ok=True)
    content = {name: one if "error" in one else {"answer": one} for name, one in answers.items()}
    (folder / DEVICE / ANSWERS).write_text(json.dumps(content))
    return checked(folder, DEVICE, machine=H100)


EVENTS = {
    "events_ms": 66.0, "host_ms": 66.2, "launch_ms": 0.1, "passed_at_once": False, "record_us": 2.0, "query_us": 1.0,
    "matmul_tflop_s": 690.0,
}  # fmt: skip
HELD = {"bytes": {"nccl": 900}, "entries": 9, "events_ms": 1.5, "states": {"completed": 9}}


@pytest.mark.parametrize(
    ("name", "question", "answer", "state"),
    [
        ("CUDA events", "events", EVENTS, PASSED),
        ("CUDA events", "events", EVENTS | {"passed_at_once": True}, FAILED),
        ("CUDA events", "events", EVENTS | {"events_ms": 40.0}, FAILED),
        ("CUDA events", "events", {"error": "RuntimeError: no kernel image"}, FAILED),
        ("CUDA events", "identity", {}, NOT_APPLICABLE),
        ("Flight Recorder's clock", "recorders", HELD | {"durations_ms": [1.4, 1.5, 1.6]}, PASSED),
        ("Flight Recorder's clock", "recorders", HELD | {"durations_ms": []}, FAILED),
        ("Flight Recorder's clock", "recorders", HELD | {"durations_ms": [9.0]}, FAILED),
        ("profiler window", "window", {"kinds": {"kernel": 9}, "bytes": 1, "export_s": 0.1}, PASSED),
        ("profiler window", "window", {"kinds": {"cpu_op": 9}, "bytes": 1, "export_s": 0.1}, FAILED),
        ("graph capture", "graphs", {"answers": ["mode set: True", "capturing: True", "query: True"]}, PASSED),
        ("graph capture", "graphs", {"answers": ["mode set: False", "capturing: True", "AcceleratorError"]}, FAILED),
    ],
)
def test_answers_of_the_libraries(tmp_path: Path, name: str, question: str, answer: dict[str, Any], state: str) -> None:
    found = result_of(name, answered(tmp_path, **{question: answer}))
    assert found.state == state, found


def test_fields_that_the_driver_leaves_empty_are_named(tmp_path: Path) -> None:
    sample = asdict(DeviceRecord(1, sm_clock_mhz=1980, memory_clock_mhz=2619, power_mw=1, temperature_c=40))
    said = {"samples": [sample | {"utilization_percent": 0}], "everything_ms": 3.0}
    found = result_of("driver's fields", answered(tmp_path, samples=said))
    assert found.state == PASSED
    assert "ecc_corrected" in found.found
    assert result_of("driver's fields", answered(tmp_path, samples=said | {"samples": [sample]})).state == FAILED
    gone = {"samples": [asdict(DeviceRecord(1, unavailable="no NVIDIA driver"))], "everything_ms": 3.0}
    assert result_of("driver's fields", answered(tmp_path, samples=gone)).found == "no NVIDIA driver"


@pytest.mark.parametrize(("waited", "state"), [(10, PASSED), (2, FAILED), (25, FAILED)])
def test_exposed_communication_by_events_and_by_kernels(tmp_path: Path, waited: int, state: str) -> None:
    """An all-reduce of 30 ms, of which 20 run beside a product of matrices: 10 are exposed."""
    for rank, files in both_ranks(tmp_path, "ddp"):
        built, records = KinetoBuilder(rank=rank), []
        for step in range(10, 13):
            begin = 5 * MS + 90 * MS * (step - 10)
            built.step(step, begin, begin + 80 * MS)
            built.kernel(begin + 7 * MS, begin + 40 * MS, launch=begin + MS)
            built.kernel(begin + 20 * MS, begin + 50 * MS, "ncclDevKernel_AllReduce", launch=begin + MS, stream=20)
            call = DeviceCall("0", step, 20 * MS, 50 * MS, 40 * MS, (40 + waited) * MS)
            records.append(DeviceStepRecord(step, 60 * MS, [], [call]))
        built.write(files.folder, files.trace(10).name.removesuffix(".gz"), compress=True)
        files.device_steps.write_bytes(b"".join(map(encode, records)))
    found = result_of("overlap", checked(tmp_path, "ddp"))
    assert found.state == state, found
    assert f"rank 1: {waited}.00 ms a step by events, 10.00 by kernels" in found.found
    assert result_of("overlap", checked(tmp_path, "ddp", machine=H100)).state == NOT_APPLICABLE
    sharing = result_of("overlap", checked(tmp_path, "ddp", machine=MACHINES["one GPU for two ranks"]))
    assert sharing.state == PASSED  # the other rank's turns are pauses between a rank's own kernels
    assert sharing.found.startswith(found.found)
    assert "not asserted" in sharing.found


def test_ranks_on_one_gpu_may_leave_a_healthy_run_undetermined() -> None:
    answers = {name: {one.name: one.answer for one in plan(machine)} for name, machine in MACHINES.items()}
    allowed = {name: (of["ddp"] or Answer((), ())).classes for name, of in answers.items()}
    assert {name for name, classes in allowed.items() if "undetermined" in classes} == {"one GPU for two ranks"}


def test_overhead_is_printed_and_never_fails(tmp_path: Path) -> None:
    (tmp_path / OVERHEAD).mkdir()
    times = {"bare": [[0.1, 0.1]] * 9, "bare again": [[0.1, 0.1]] * 9, "always on": [[0.13, 0.1]] * 9}
    for rank in (0, 1):
        (tmp_path / OVERHEAD / f"{rank}.json").write_text(json.dumps(times))
    found = result_of("overhead", checked(tmp_path, OVERHEAD))
    assert found.state == PASSED
    ratios = "1.3000 [1.3000, 1.3000]; bare against bare 1.0000 [1.0000, 1.0000]"
    assert found.found == f"{ratios}; 9 turns, 100.0 ms a step on the device's clock"


def test_the_report_names_everything_that_was_not_done(tmp_path: Path) -> None:
    checks = [
        Check("a", "one | two", "one", PASSED),
        Check("b", "one", "two", FAILED, "why"),
        Check("device clock", "one", "", NOT_APPLICABLE, "no GPU"),
        Check("CUDA events", "one", "one", PASSED),
    ]
    text = document(checked(tmp_path, "ddp", machine=H100), checks)
    assert "1 x H100 (NVIDIA), 80 GB each" in text
    assert "1 rank: Duplicate GPU detected." in text
    assert "4 checks: 2 passed, 1 failed, 1 not applicable. 1 trainings in 60 s." in text
    assert "| a | one \\| two | one | passed |" in text
    assert "| b | one | two | FAILED: why |" in text
    assert "- fsdp2: no time." in text
    assert "- device clock: no GPU." in text
    assert text.index("CUDA events") < text.index("device clock") < text.index("| a |"), "what no CPU shows comes first"


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="no record of a check"):
        Checked.open(tmp_path)


def test_files_and_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked(tmp_path, machine=H100)
    assert write_report(tmp_path) == 0, "what was left out has not failed"
    assert capsys.readouterr().out == (tmp_path / REPORT).read_text() + "\n"
    assert {one["state"] for one in json.loads((tmp_path / CHECKS).read_text())["checks"]} == {NOT_APPLICABLE}
    checked(tmp_path, "ddp", machine=H100, exit_code=1)
    assert write_report(tmp_path) == 1


# -- trainings on the CPU ----------------------------------------------------------------------------------------------


def states(folder: Path) -> dict[str, tuple[str, str]]:
    content = json.loads((folder / CHECKS).read_text())
    return {one["name"]: (one["state"], one["found"] + one["reason"]) for one in content["checks"]}


def checked_on_the_cpu(out: Path, *chosen: str) -> dict[str, tuple[str, str]]:
    """Recorded and analysed in two steps, as on two machines."""
    command = [sys.executable, "-m", "tests.gpu"]
    recording = ("--cpu", "--minutes", "8", "--record-only", "--only", ",".join(chosen), "--out", str(out))
    subprocess.run([*command, *recording], check=True)
    ended = subprocess.run([*command, "--analyse", str(out)], check=False, capture_output=True, text=True)
    found = states(out)
    assert ended.returncode == 0, (ended.stderr, found)
    return found


@pytest.mark.matrix
@pytest.mark.multiproc
def test_a_verdict_of_the_same_program_on_the_cpu(tmp_path: Path) -> None:
    name = "fsdp2-slow-loader-all-ranks"
    found = checked_on_the_cpu(tmp_path / "check", name)
    assert found[f"{name}: verdict"][0] == PASSED, found


@pytest.mark.matrix
def test_the_same_program_on_the_cpu(tmp_path: Path) -> None:
    found = checked_on_the_cpu(tmp_path / "check", "probe", "overhead", "hang")
    for name in (
        "probe: ends",
        "fsdp2-hang-before-collective: verdict",
        "Flight Recorder",
        "Flight Recorder of the hang",
        "overhead",
    ):
        assert found[name][0] == PASSED, (name, found[name])
    assert found["device clock"] == (NOT_APPLICABLE, "there is no GPU")


@pytest.mark.matrix
def test_a_hang_that_only_torchrun_watched(tmp_path: Path) -> None:
    """Where the packages of the command line are missing, the collective's own timeout ends the training."""
    machine = replace(program.described(cpu=True), diag=False)
    program.record(tmp_path, machine, 400, ("hang",))
    write_report(tmp_path)
    found = states(tmp_path)
    assert found["fsdp2-hang-before-collective: ends"][0] == PASSED, found
    assert found["Flight Recorder of the hang"][0] == PASSED, found
    assert found["fsdp2-hang-before-collective: verdict"][0] == NOT_APPLICABLE, "nobody asked the rank that hangs"
