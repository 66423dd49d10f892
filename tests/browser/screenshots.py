"""Pictures of every page of the dashboard, light and dark: ``python -m tests.browser.screenshots FOLDER [RUN]``.

For people to look at; nothing is compared. The two in the README are the tops of two of them:
``python -m tests.browser.screenshots --readme app/screenshots``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

from diag.serve import SAMPLES
from tests.app.served import dashboard
from tests.browser.chromium import Scheme, chromium, visit

_SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_TALLEST = 6000  # pixels
# Of the README: page, scheme, height. The path is shown on the page, so it is a relative one.
_README: tuple[tuple[str, Scheme, int], ...] = (("overview", "light", 1000), ("timeline", "dark", 1230))


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


def take_for_readme(folder: Path, run: Path) -> list[Path]:
    """Writes PAGE.png for the pages that the README shows."""
    taken = []
    with dashboard(run) as (_, port), chromium() as browser:
        for name, scheme, height in _README:
            with visit(browser, scheme, height) as found:
                found.open(f"http://127.0.0.1:{port}/{name if name != 'overview' else ''}", until="Rank")
                file = folder / f"{name}.png"
                found.page.screenshot(path=file)
                taken.append(file)
    return taken


if __name__ == "__main__":
    sample = Path(os.path.relpath(SAMPLES)) / "fsdp2-straggler-rank0"
    if sys.argv[1] == "--readme":
        print(*take_for_readme(Path(sys.argv[2]), sample), sep="\n")
    else:
        # A folder of runs: one alone has no pages of comparison and of runs.
        print(*take(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else sample.parent), sep="\n")
