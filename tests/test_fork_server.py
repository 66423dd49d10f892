"""What the server of forks has imported before its processes need it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from diag.serve.server import SAMPLES
from tests.forked import Kind, run_forked
from tests.patience import PATIENCE_S

LOG = Path(__file__).parent / "hang/captured/sigkill-2-ranks"
COMMANDS = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
from diag.cli.main import main
log, run, report = sys.argv[1:]
for words in (["triage", log], ["analyze", run], ["report", run, "-o", report]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit:
        pass
print("loaded:", *sorted({name.partition(".")[0] for name in sys.modules} - before - sys.stdlib_module_names))
"""


@pytest.mark.parametrize("kind", ["trainings", "commands"])
def test_commands_load_no_package_for_which_each_of_them_would_pay(tmp_path: Path, kind: Kind) -> None:
    """polars alone takes each forked command 0.25 s, more than many of them need for the rest."""
    run = shutil.copytree(SAMPLES / "ddp-healthy", tmp_path / "run")
    report = tmp_path / "report.html"
    ended = run_forked(["-c", COMMANDS, str(LOG), str(run), str(report)], [os.environ], PATIENCE_S, kind=kind)
    assert ended.stdout.splitlines()[-1:] == ["loaded:"], ended.stdout[-300:] + ended.stderr
    assert report.exists()
