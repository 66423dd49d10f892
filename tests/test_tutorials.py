"""The tutorials of docs/contributing: what they tell to write and to change gives tests that pass."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
TUTORIALS = ("add-a-finding", "add-a-cost", "add-a-source", "add-a-hang-class")


def edits(page: str) -> Iterator[tuple[str, str, str]]:
    """For each block of a page: the file, the text to replace, and the new one; all of the file without the first."""
    text = (ROOT / f"docs/contributing/{page}.md").read_text("utf-8")
    for language, code in re.findall(r"^```(python|diff)\n(.*?)^```", text, flags=re.S | re.M):
        first, _, rest = code.partition("\n")
        file = first.removeprefix("# ").removeprefix("--- ")
        if language == "python":
            yield file, "", rest
            continue
        for hunk in rest.split("@@\n")[1:]:
            lines = [(line[:1], line[1:] + "\n") for line in hunk.splitlines()]
            yield (
                file,
                "".join(line for mark, line in lines if mark != "+"),
                "".join(line for mark, line in lines if mark != "-"),
            )


def test_the_tutorials_end_in_tests_that_pass(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "diag", tmp_path / "diag", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("collectors", "app"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tests").mkdir()
    for path in (ROOT / "tests").iterdir():
        if path.is_file() and not path.name.startswith("test_"):
            shutil.copy(path, tmp_path / "tests")
    tests = []
    for page in TUTORIALS:
        for file, before, after in edits(page):
            path = tmp_path / file
            if not before:
                assert not path.exists(), f"{page}: there is a {file}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(after, "utf-8")
                tests += [file] if file.startswith("tests/") else []
                continue
            text = path.read_text("utf-8")
            assert text.count(before) == 1, f"{page}: {file} does not have these lines once:\n{before}"
            path.write_text(text.replace(before, after), "utf-8")
    assert len(tests) == len(TUTORIALS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=append", *tests]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
