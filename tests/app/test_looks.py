"""The state of a run of many ranks is not read anew for every part of a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag import api
from diag.app import looks
from tests.app.runs import write_run
from tests.patience import PATIENCE_S

MAIN = Path(looks.__file__).with_name("main.py")


@pytest.mark.parametrize(("took_s", "looked"), [(0.01, 3), (2.0, 1)])
def test_a_long_look_holds_for_a_while(
    took_s: float, looked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now, seen = write_run(tmp_path / "run"), [0.0], []

    def look(path: Path) -> api.RunState:
        now[0] += took_s
        seen.append(path)
        return found

    found = api.state_of(run)
    monkeypatch.setattr(api, "state_of", look)
    monkeypatch.setattr("diag.app.looks.time.monotonic", lambda: now[0])
    for _ in range(3):
        assert looks.state_of(run) is found
        now[0] += 5
    assert len(seen) == looked
    now[0] += 20
    looks.state_of(run)
    assert len(seen) == looked + 1


def test_a_page_is_drawn_with_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen, look = write_run(tmp_path / "run"), [], api.state_of

    def counted(path: Path) -> api.RunState:
        seen.append(path)
        return look(path)

    monkeypatch.setattr("sys.argv", ["main.py", str(run)])
    test = AppTest.from_file(str(MAIN), default_timeout=PATIENCE_S).run()
    monkeypatch.setattr(api, "state_of", counted)
    test.run()
    assert not test.exception
    assert seen == [run]
    with pytest.raises(KeyError), looks.drawing(look(run)):
        raise KeyError
    looks.state_of(run)
    assert len(seen) == 2, "a page that ended with an error holds nothing"
