"""``diag report`` as it is called: where it writes, what it says, and what it refuses."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from diag.cli.main import app
from diag.errors import DiagError, ExitCode
from tests.simulate import Plan, simulate, without_rank, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(simulate(Plan(steps=6)), tmp_path_factory.mktemp("runs") / "run").root


def report(*arguments: object) -> Result:
    ended = CliRunner().invoke(app, ["report", *map(str, arguments)])
    if isinstance(ended.exception, DiagError):
        raise ended.exception
    return ended


def test_it_replaces_a_file_and_leaves_no_other(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "out.html"
    out.parent.mkdir()
    out.write_text("old")
    ended = report(run, "-o", out)
    assert ended.exit_code == 0
    assert f"Written: {out}" in ended.stdout
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert out.read_text().endswith("</html>")
    assert [path.name for path in out.parent.iterdir()] == ["out.html"]
    assert list(run.rglob("*.html")) == []


def test_by_default_it_is_where_one_stands(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report(run).exit_code == 0
    assert f"diag report {run} -o report.html" in (tmp_path / "report.html").read_text()


def test_a_link_stays_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    report(run, "-o", tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!DOCTYPE html>")


def test_into_a_pipe(run: Path) -> None:
    ended = report(run, "-o", "-")
    assert ended.stdout.startswith("<!DOCTYPE html>")
    assert ended.stdout.rstrip().endswith("</html>")


def test_a_failed_write_leaves_the_old_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.html"
    out.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiagError, match="No space left") as error:
        report(run, "-o", out)
    assert error.value.hint
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_places_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="is a folder") as error:
        report(run, "-o", tmp_path)
    assert "report.html" in error.value.hint
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagError, match="cannot be written") as error:
        report(run, "-o", tmp_path / "file" / "report.html")
    assert error.value.hint
    with pytest.raises(DiagError, match="not a file that can be replaced"):
        report(run, "-o", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_mistakes_are_told_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(DiagError, match="--open needs a file") as error:
        report(tmp_path / "nowhere", "-o", "-", "--open")
    assert error.value.exit_code == ExitCode.USAGE
    with pytest.raises(DiagError, match="no such file or folder"):
        report(tmp_path / "nowhere", "-o", tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()


def test_missing_data_is_an_exit_code_and_said(tmp_path: Path) -> None:
    run = write_run(without_rank(simulate(Plan(ranks=3, steps=6)), 1), tmp_path / "run").root
    ended = report(run, "-o", tmp_path / "out.html")
    assert ended.exit_code == ExitCode.DATA_INCOMPLETE
    assert "data missing" in ended.stdout
    assert "2 of 3" in (tmp_path / "out.html").read_text().replace("\u00a0", " ")


def test_it_opens_in_the_browser(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)))
    ended = report(run, "-o", tmp_path / "a b.html", "--open")
    assert opened == [(tmp_path / "a b.html").as_uri()]
    assert "no browser was found" in ended.stderr


def test_redacted_it_says_what_is_kept(run: Path, tmp_path: Path) -> None:
    report(run, "-o", tmp_path / "out.html", "--redact")
    text = (tmp_path / "out.html").read_text()
    assert "host-a" not in text
    assert str(run) not in text
    assert "Kept: what was trained" in text
    help_text = " ".join(CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "Kept: " in help_text
