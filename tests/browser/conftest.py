from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from diag.api import Result
from diag.app.card import card_of
from diag.serve.server import SAMPLES
from diag.show.page import page_of
from tests.app.served import Served, dashboard
from tests.browser.chromium import chromium_that_remembers

RUN = SAMPLES / "fsdp2-straggler-rank0"


def headline_of(result: Result) -> str:
    """As the card of the first screen has it."""
    return card_of(page_of(result).verdict).headline


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium_that_remembers() as found:
        yield found


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """The dashboard of a sample run; nothing changes it."""
    with dashboard(RUN, forked=False) as running:
        yield running


@pytest.fixture(scope="session")
def samples() -> Iterator[Served]:
    """The dashboard of the folder of all sample runs; nothing changes it."""
    with dashboard(SAMPLES) as running:
        yield running
