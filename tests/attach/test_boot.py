"""What a Python process under ``diag run`` does before its first line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diag.collectors.attach.boot import AfterImport, launches
from diag.collectors.dumps import clean
from diag.collectors.fence import Fence
from diag.collectors.settings import OWNER_VARIABLE, SITE, CollectorSettings, attached, python_path, wanted


def python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)


OURS = "import sys; print([n for n in sys.modules if n.startswith(('_diag', 'diag'))], sys.path)"


def test_outside_of_a_run_nothing_is_loaded_and_the_path_is_as_it_was() -> None:
    assert python(OURS, SITE).stdout == python(OURS).stdout


def test_in_a_run_nothing_named_diag_is_loaded_and_no_torch(tmp_path: Path) -> None:
    run = attached(tmp_path, CollectorSettings())
    code = "import sys; print('diag' in sys.modules, 'torch' in sys.modules, '_diag_collectors' in sys.modules)"
    assert python(code, SITE, **run).stdout == "False False True\n"


def test_nothing_is_loaded_of_torch_without_the_training_asking_for_it(tmp_path: Path) -> None:
    """A child of the process that is recorded: torch is its own affair."""
    run = attached(tmp_path, CollectorSettings()) | {OWNER_VARIABLE: "1"}
    code = "import sys, json; print(any(type(f).__name__ == 'AfterImport' for f in sys.meta_path))"
    assert python(code, SITE, **run).stdout == "False\n"


@pytest.mark.parametrize("body", ["print('mine')", "raise RuntimeError('mine')", "import no_such_module"])
def test_the_sitecustomize_of_the_user_runs_as_without_us(tmp_path: Path, body: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(body + "\n")
    code = "import sys; print('sitecustomize' in sys.modules, sys.path)"
    alone, ours = python(code, tmp_path), python(code, SITE, tmp_path)
    assert (ours.returncode, ours.stderr) == (alone.returncode, alone.stderr)
    assert "mine" in alone.stdout + alone.stderr or body.startswith("import")
    if not body.startswith("print"):  # then site lets go of the module, and of ours it does not
        return
    assert ours.stdout == alone.stdout


def test_what_is_put_into_the_environment(tmp_path: Path) -> None:
    environment = attached(tmp_path, CollectorSettings())
    assert wanted(environment)
    assert not wanted({})
    assert not wanted({**environment, "DIAG_COLLECT": "off"})
    assert wanted({**environment, OWNER_VARIABLE: str(os.getpid())})
    assert not wanted({**environment, OWNER_VARIABLE: "1"})
    assert python_path({}) == str(SITE)
    assert python_path({"PYTHONPATH": "/mine"}) == f"{SITE}{os.pathsep}/mine"
    assert sorted(path.name for path in SITE.glob("*.py")) == ["__init__.py", "sitecustomize.py"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "/bin/torchrun", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "-u", "-m", "deepspeed.launcher.launch"], True),
        (["python", "train.py", "torchrun"], False),
        (["python", "-m", "my.trainer"], False),
        (["python"], False),
    ],
)
def test_launchers_are_told_by_their_command(command: list[str], expected: bool) -> None:
    assert launches(command) is expected


def test_after_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "just_for_this_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []
    imports = AfterImport(Fence())
    imports.call("just_for_this_test", lambda module: seen.append(module.value))
    assert seen == []
    import just_for_this_test  # type: ignore[import-not-found]

    assert seen == [1]
    assert "exec_module" not in vars(just_for_this_test.__loader__)
    assert imports not in sys.meta_path
    imports.call("just_for_this_test", lambda module: seen.append(module.value + 1))
    assert seen == [1, 2]
    del sys.modules["just_for_this_test"]


def test_a_traceback_without_our_frames() -> None:
    from diag.collectors.calls import Patches

    try:
        try:
            Patches().replace(None, "name", 1)  # raises in a file of ours
        except Exception as cause:
            raise ValueError("planted") from cause
    except ValueError as error:
        clean(error, set())
        cause = error.__cause__
    assert cause is not None
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_filename == __file__
    assert cause.__traceback__.tb_next is None
