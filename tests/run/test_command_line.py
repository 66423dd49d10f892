"""What every command keeps to: quick help, no heavy imports, documentation."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diag.cli.help import for_terminal, pages
from diag.cli.main import COMMANDS
from diag.collectors.trainer.faults import FAULTS
from diag.errors import ExitCode
from tests.command import diag, diag_process

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "polars", "streamlit", "plotly", "numpy", "pandas", "msgspec", "jinja2", "prometheus_client")


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded once the code has run in a fresh interpreter."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "command", ["", "run", "analyze", "report", "compare", "check", "export", "metrics", "dashboard"]
)
def test_help_imports_nothing_heavy(command: str) -> None:
    arguments = [*filter(None, [command]), "--help"]
    code = (
        "from diag.cli.main import app\n"
        f"try:\n    app({arguments!r}, prog_name='diag')\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert modules_after(code).isdisjoint(HEAVY)


def test_a_training_process_imports_torch_and_nothing_of_ours_but_the_collectors() -> None:
    loaded = modules_after("import diag.collectors.session, diag.collectors.trainer.loop")
    assert "torch" in loaded
    # Whether torch itself brings numpy is torch's business.
    assert loaded.isdisjoint({"polars", "streamlit", "plotly", "msgspec", "isal", "typer", "rich", "jinja2", "psutil"})


def test_a_report_needs_no_server() -> None:
    loaded = modules_after("import diag.app.html_report.render, diag.show.redact")
    assert "plotly" in loaded
    assert loaded.isdisjoint({"streamlit", "torch"})


def test_the_launcher_s_own_modules_need_no_torch() -> None:
    assert "torch" not in modules_after("import diag.watch.launch, diag.cli.run, diag.collectors.manifest")


def test_the_faults_are_listed() -> None:
    ended = diag_process("run", "--inject", "list")
    assert ended.returncode == 0
    assert all(name in ended.stdout for name in FAULTS)


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [command for command in COMMANDS if f"diag {command}" not in readme] == []


def test_the_version() -> None:
    assert re.match(r"diag \d+\.\d+", diag("--version").stdout)


# -- diag help ---------------------------------------------------------------------------------------------------------


def test_every_guide_and_concept_is_a_topic() -> None:
    listed = diag("help").stdout
    written = [page.stem for folder in ("guides", "concepts") for page in (ROOT / "docs" / folder).glob("*.md")]
    others = {"index", "getting-started", "launchers", "python-api"}
    assert (set(written) | others) - {"index"} == {
        line.split()[0] for line in listed.splitlines() if line.startswith("  ")
    }
    assert all(command in listed for command in COMMANDS)


def test_a_topic_is_the_page_of_the_documentation() -> None:
    printed = diag("help", "verdict").stdout
    page = (ROOT / "docs/concepts/verdict.md").read_text()
    assert printed.splitlines()[0] == page.splitlines()[0]
    assert diag("help", "verd").stdout == printed  # begun well enough
    assert diag("help", "hangs").stdout.startswith("# Hangs and crashes\n")


def test_a_command_is_explained_with_its_options_and_the_guides_that_use_it() -> None:
    printed = diag("help", "triage").stdout
    assert "--ras" in printed
    assert re.search(r"Guides that use it: .*diag help hangs", printed)
    both = diag("help", "dashboard").stdout
    assert "--allow-host" in both
    assert "# Dashboard" in both


def test_the_exit_codes_are_a_topic() -> None:
    printed = diag("help", "exit-codes").stdout
    assert [line.split()[:2] for line in printed.splitlines()] == [[str(int(one)), one.name] for one in ExitCode]


@pytest.mark.parametrize(
    ("id", "meaning"),
    [
        ("host-straggler", "launches its kernels later than the other hosts"),
        ("regather-in-backward", "reshard_after_forward=False"),
        ("rank_killed_sigkill", "a rank was killed (SIGKILL)"),
    ],
)
def test_the_id_of_a_finding_or_a_hang_class_is_explained(id: str, meaning: str) -> None:
    assert meaning in diag("help", id).stdout


def test_a_topic_that_is_not_there_has_its_neighbours_named() -> None:
    ended = diag("help", "hanging")
    assert ended.returncode == ExitCode.USAGE
    assert re.search(r"did you mean .*hangs", ended.stderr)


def test_links_and_directives_are_made_for_a_terminal() -> None:
    text = (
        "# Page\n![a picture](p.png)\n<!-- checked: starts -->\n```{toctree}\nx\n```\n"
        "See [hangs](hangs.md#ras), [clocks](../concepts/clocks.md), [all](../reference/cli.md) and [this](https://a.b).\n"
    )
    assert for_terminal(text) == (
        "# Page\nSee hangs (`diag help hangs`), clocks (`diag help clocks`), all and this (https://a.b).\n"
    )
    left = [name for folder in ("guides", "concepts") for name, page in pages(folder).items()
            if re.search(r"\]\(|```\{|<!--", for_terminal(page.read_text("utf-8")))]  # fmt: skip
    assert left == []


def test_on_a_terminal_a_page_is_laid_out() -> None:
    shown = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'diag', 'help', 'confidence']))"
    ended = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Confidence" in ended.stdout
    assert "# Confidence" not in ended.stdout


def completed(*words: str) -> set[str]:
    """What bash completes the last word to, through the script that `diag --show-completion` prints."""
    script = """
eval "$(_DIAG_COMPLETE=source_bash diag)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_diag_completion "$1"; echo "${COMPREPLY[@]}"
"""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": path},
    )
    return set(ended.stdout.split())


def test_the_shell_completes_commands_options_and_topics() -> None:
    assert completed("diag", "an") == {"analyze"}
    assert {"--nproc", "--strategy"} <= completed("diag", "run", "--")
    assert completed("diag", "export", "--format", "t") == {"tensorboard"}
    assert completed("diag", "help", "ha") == {"hangs"}
    assert completed("diag", "analyze", "some-f") == set()  # bash completes files itself
