"""One page of the dashboard, run by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest


def _page() -> None:
    import sys
    from importlib import import_module
    from pathlib import Path

    from diag.app.address import opened

    view = opened(Path(sys.argv[1]))
    module = import_module(f"diag.app.views.{sys.argv[2]}")
    module.show(view, *(Path(folder) for folder in sys.argv[3:]))


def shown(page: str, run: Path, monkeypatch: pytest.MonkeyPatch, root: Path | None = None, **params: str) -> AppTest:
    """The page of that name (a module of app/views); no exception on it."""
    monkeypatch.setattr("sys.argv", ["main.py", str(run), page, *([str(root)] if root is not None else [])])
    test = AppTest.from_function(_page, default_timeout=60)
    for name, value in params.items():
        test.query_params[name.replace("_", "-")] = value
    test.run()
    assert not test.exception, [error.value for error in test.exception]
    return test


def text(test: AppTest) -> str:
    """Everything that is written on the page, with plain spaces."""
    elements = (
        *test.title, *test.subheader, *test.markdown, *test.caption, *test.warning, *test.info, *test.error,
        *test.success,
    )  # fmt: skip
    return "\n".join(str(element.value) for element in elements).replace("\u00a0", " ")


def metrics(test: AppTest) -> dict[str, str]:
    return {metric.label.replace("\u00a0", " "): metric.value.replace("\u00a0", " ") for metric in test.metric}
