from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st

from tests.app.runs import write_run


@pytest.fixture(autouse=True, scope="module")
def _nothing_opened_before() -> Iterator[None]:
    """Once a file: as in a dashboard, all pages of a run show one analysis of it."""
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture(autouse=True)
def _no_component_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of an AppTest reads the metadata of every installed package, in search of components of Streamlit:
    half a second of CPU, most of what a page takes. The dashboard has none."""
    monkeypatch.setattr("streamlit.components.v2.manifest_scanner.scan_component_manifests", list)


@pytest.fixture(autouse=True)
def _all_figures_are_in_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diag.app.views.common.LAZY", False)


@pytest.fixture(scope="session")
def slow_rank_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, twelve steps; rank 1 waits 40 ms for data where rank 0 waits 1 ms. Only to be read."""
    return write_run(tmp_path_factory.mktemp("runs") / "slow", slow_data_ms={1: 40})
