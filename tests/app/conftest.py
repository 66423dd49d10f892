from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st

from tests.app.runs import write_run


@pytest.fixture(autouse=True)
def _nothing_opened_before() -> Iterator[None]:
    st.cache_resource.clear()
    yield
    st.cache_resource.clear()


@pytest.fixture
def slow_rank_1(tmp_path: Path) -> Path:
    """Two ranks, twelve steps; rank 1 waits 40 ms for data where rank 0 waits 1 ms."""
    return write_run(tmp_path / "slow", slow_data_ms={1: 40})
