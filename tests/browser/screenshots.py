"""Pictures of every page of the dashboard, light and dark: ``python -m tests.browser.screenshots FOLDER [RUN]``.

For people to look at; nothing is compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

from diag.serve import SAMPLES
from tests.app.served import dashboard
from tests.browser.chromium import Scheme, chromium, visit

_SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_TALLEST = 6000  # pixels


def take(folder: Path, run: Path) -> list[Path]:
    """Writes ``PAGE-SCHEME.png`` for each page; the paths, in the order of the navigation."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with dashboard(run) as (_, port), chromium() as browser:
        address = f"http://127.0.0.1:{port}"
        for scheme in _SCHEMES:
            with visit(browser, scheme) as found:
                found.open(address, until="Confidence")
                for path in _pages(found.page):
                    found.page.goto(f"{address}/{path}")
                    found.page.get_by_test_id("stHeading").first.wait_for(timeout=60_000)
                    found.settle()
                    file = folder / f"{path or 'overview'}-{scheme}.png"
                    _whole(found.page, file)
                    taken.append(file)
    return taken


def _pages(page: Page) -> list[str]:
    """Their paths, as the navigation links to them; the first one alone where there is no navigation."""
    links = page.get_by_test_id("stSidebarNavLink").evaluate_all("links => links.map(link => link.href)")
    return [urlsplit(link).path.strip("/") for link in links] or [""]


def _whole(page: Page, file: Path) -> None:
    """Streamlit scrolls inside the page, so the window grows to what there is to see."""
    tall = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
    size = page.viewport_size or {"width": 1400, "height": 1100}
    page.set_viewport_size({"width": size["width"], "height": max(size["height"], min(_TALLEST, int(tall)))})
    page.wait_for_timeout(1000)
    page.screenshot(path=file)
    page.set_viewport_size(size)


if __name__ == "__main__":
    for file in take(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLES / "fsdp2-straggler-rank0"):
        print(file)
