"""A headless Chromium for tests and screenshots: Debian's, or the one that ``DIAG_CHROMIUM`` names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Browser, BrowserContext, BrowserType, ConsoleMessage, Page, expect, sync_playwright

from tests.patience import PATIENCE_S

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of it talks to the network by itself; as root, as in a container, it has no sandbox.
_QUIET = ("--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
          "--disable-sync", "--disable-quic")  # fmt: skip
PATIENCE_MS = 1000 * PATIENCE_S  # for what starts a server or an analysis
_ANSWER_S, _PER_CORE = (
    60,
    2,
)  # a page that is open answers in a second; processes to a core beyond which it takes longer
_STAYS = "http://127.0.0.1/"  # a site whatever the port: the one of all dashboards
_STILL_POLLS, _LONGEST_POLLS = 4, 60  # of a quarter of a second

Scheme = Literal["light", "dark"]


def executable() -> str:
    """Its path. RuntimeError where there is none: a test that needs it must not pass without."""
    asked = os.environ.get("DIAG_CHROMIUM")
    found = asked or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if not found or not Path(found).exists():
        raise RuntimeError("no Chromium found: `make browser` installs Debian's, or set DIAG_CHROMIUM to a browser")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright, launched(playwright.chromium) as browser:
        yield browser


@contextmanager
def chromium_that_remembers() -> Iterator[Browser]:
    """One with a profile, in which visits follow each other. One process draws all pages, so that it reads and
    translates Streamlit's code once, which takes more than half of what a page costs, and not once a visit."""
    with sync_playwright() as playwright, TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=executable(), args=[*_options(), "--process-per-site"], **_window()
        )
        with context:
            (stays,) = context.pages  # the process ends with the last page
            stays.route(_STAYS, lambda route: route.fulfill(body=""))
            stays.goto(_STAYS)
            assert context.browser is not None
            yield context.browser


def launched(kind: BrowserType, *options: str) -> Browser:
    """One of its own, to be closed by ``with``; ``options`` of its command line."""
    return kind.launch(executable_path=executable(), args=[*_options(), *options])


def _options() -> list[str]:
    sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    return [*_QUIET, *sandbox]


def _window(scheme: Scheme = "light", height: int = 1100, width: int = 1400) -> dict[str, Any]:
    """Without animations, which the processor would draw."""
    return {
        "viewport": {"width": width, "height": height},
        "color_scheme": scheme,
        "reduced_motion": "reduce",
        "accept_downloads": True,
    }


@dataclass
class Visit:
    """A page, and what the browser complained about while it was open."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def open(self, url: str, until: str) -> None:
        """Goes there and waits until the text is on the page and Streamlit has nothing left to do."""
        self.page.goto(url, timeout=PATIENCE_MS)
        self.page.get_by_text(until).first.wait_for(timeout=PATIENCE_MS)
        self.settle()

    def settle(self) -> None:
        """Waits until Streamlit has nothing left to draw and the page keeps its height for a second."""
        self.page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(timeout=PATIENCE_MS)
        heights: list[int] = []
        while (len(heights) < _LONGEST_POLLS and len({*heights[-_STILL_POLLS:]}) != 1) or len(heights) < _STILL_POLLS:
            self.page.wait_for_timeout(250)
            heights.append(self.page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight"))


def answer_ms() -> float:
    """How long a test waits for an open page. One wrong expectation is not to cost as long as a training may take; on a
    machine that many share it waits the longer."""
    crowded = psutil.getloadavg()[0] / (psutil.cpu_count() or 1) / _PER_CORE
    return 1000 * min(PATIENCE_S, _ANSWER_S * max(1.0, crowded))


@contextmanager
def visit(
    browser: Browser, scheme: Scheme = "light", height: int = 1100, offline: bool = False, width: int = 1400
) -> Iterator[Visit]:
    """A page in a window of ``width`` pixels by ``height``, of somebody who has not been there before: only code and
    pictures that do not change may come from an earlier visit."""
    shared = next((one for one in browser.contexts if [page.url for page in one.pages] == [_STAYS]), None)
    context = shared or browser.new_context(**_window(scheme, height, width))
    expect.set_options(timeout=answer_ms())
    context.set_default_timeout(answer_ms())
    context.set_offline(offline)
    page = context.new_page()
    if shared:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found = Visit(page)
    page.on("console", found.note)
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    origins: set[str] = set()
    page.on("framenavigated", lambda frame: origins.add("{0.scheme}://{0.netloc}".format(urlsplit(frame.url))))
    try:
        yield found
    finally:
        if shared:
            _forget(shared, origins)
        else:
            context.close()


def _forget(context: BrowserContext, origins: set[str]) -> None:
    """What a visit leaves in the profile."""
    stays, *pages = context.pages
    for page in pages:
        page.close()
    context.unroute_all()
    context.clear_cookies()
    context.clear_permissions()
    session = context.new_cdp_session(stays)
    for origin in origins:
        kept = "local_storage,indexeddb,cache_storage,service_workers"
        session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": kept})
    session.detach()
