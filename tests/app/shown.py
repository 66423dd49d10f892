"""One page of the dashboard, run by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from diag.app.pages import PAGES
from tests.patience import PATIENCE_S


def _page() -> None:
    import sys
    from pathlib import Path

    from diag.app.address import opened
    from diag.app.pages import PAGES, Visit

    run, path, root = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    draw = next(page.of_run for page in PAGES if page.path == path)
    assert draw is not None
    runs = [Path(path) for path in sys.argv[4:]] or [run]
    draw(opened(run), Visit(root, runs, lambda name: None, run, lambda: None, lambda *names: None))


def shown(
    page: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    root: Path | None = None,
    runs: Sequence[Path] = (),
    **params: str,
) -> AppTest:
    """The page with that path in the address; no exception on it. ``runs``: all of the dashboard, by default this
    one."""
    monkeypatch.setattr("sys.argv", ["main.py", str(run), page, str(root or run.parent), *map(str, runs)])
    test = AppTest.from_function(_page, default_timeout=PATIENCE_S)
    for name, value in params.items():
        test.query_params[name.replace("_", "-")] = value
    test.run()
    assert not test.exception, [error.value for error in test.exception]
    return test


RUN_PAGES = tuple(page.path for page in PAGES if page.of_run is not None)  # the first is the overview


def text(test: AppTest) -> str:
    """Everything that is written on the page, with plain spaces."""
    elements = (
        *test.title, *test.subheader, *test.markdown, *test.caption, *test.warning, *test.info, *test.error,
        *test.success,
    )  # fmt: skip
    return "\n".join(str(element.value) for element in elements).replace("\u00a0", " ")


def metrics(test: AppTest) -> dict[str, str]:
    return {metric.label.replace("\u00a0", " "): metric.value.replace("\u00a0", " ") for metric in test.metric}
