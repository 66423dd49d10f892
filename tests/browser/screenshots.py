"""Pictures of every page of the dashboard, light and dark: ``python -m tests.browser.screenshots FOLDER [RUN]
[--width 800]``.

For people to look at; nothing is compared. Without RUN (or a folder of runs) the pages are those of a folder in which
each has something to show, with some states of them besides. Those in the README and the guides are the tops of some:
``python -m tests.browser.screenshots --readme app/screenshots``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

from diag.serve.server import SAMPLES
from tests.app.served import dashboard
from tests.browser import pictured
from tests.browser.chromium import PATIENCE_MS, Scheme, Visit, chromium, visit

_SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_WIDTH, _TALLEST = 1440, 6000  # pixels
# Pages in another state than the one they open in: name of the picture, and address.
_STATES = {
    "overview-healthy": "?run=ddp-healthy",
    "overview-baseline": "?run=fsdp2-straggler-rank0&baseline=fsdp2-root-only",
    "timeline-step": f"timeline?run={pictured.RUN}&step=10",
    "timeline-search": f"timeline?run={pictured.RUN}&step=10&rank=0&beside=1&find=gather",
    "compare-other": "compare?run=fsdp2-slow-link-rank1&with=fsdp2-not-overlapped",
    "hang-hung": f"hang?run={pictured.RUN}&logs=path&path={pictured.HUNG}",
    "hang-refused": f"hang?run={pictured.RUN}&logs=path&path=../elsewhere",
    "what-if-nothing": "what-if?run=ddp-healthy",
}
# Of README and guides: picture, address, scheme, height. The path is shown on the page, so it is a relative one.
_README: tuple[tuple[str, str, Scheme, int], ...] = (
    ("overview", "", "light", 900),
    ("timeline", "timeline?step=15", "dark", 900),
    ("what-if", "what-if", "light", 900),
)
# The same of a folder with a run that hung.
_HUNG: tuple[str, str, Scheme, int] = (
    "hang", f"hang?run={pictured.RUN}&logs=path&path={pictured.HUNG}", "light", 1000
)  # fmt: skip


def take(
    folder: Path, run: Path, query: str = "", states: Mapping[str, str] | None = None, width: int = _WIDTH
) -> list[Path]:
    """Writes ``PAGE-SCHEME.png`` for each page; the paths, in the order of the navigation. ``query``: of all their
    addresses; ``states``: names and addresses of further pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with dashboard(run) as served, chromium() as browser:
        with visit(browser) as found:  # wide: a narrow window has no menu until one opens it
            found.page.goto(served.at())
            found.page.get_by_test_id("stHeading").first.wait_for(timeout=PATIENCE_MS)
            found.settle()
            pages = _pages(found.page)
        for scheme in _SCHEMES:
            with visit(browser, scheme, width=width) as found:
                for name, path in {**_addresses(pages, query), **(states or {})}.items():
                    found.page.goto(served.at(path))
                    found.page.get_by_test_id("stHeading").first.wait_for(timeout=PATIENCE_MS)
                    found.settle()
                    file = folder / f"{name}-{scheme}.png"
                    _whole(found.page, file)
                    taken.append(file)
    return taken


def _addresses(pages: Sequence[str], query: str) -> dict[str, str]:
    """By the name of its picture, the address of each page. The first one has no path: of a folder it is that of the
    runs, which is of no single one."""
    if "overview" in pages:
        return {path or "runs": f"{path}{query}" if path else "" for path in pages}
    return {path or "overview": f"{path}{query}" for path in pages}


def _pages(page: Page) -> list[str]:
    """Their paths, as the navigation links to them; the first one alone where there is no navigation."""
    links = page.get_by_test_id("stSidebarNavLink").evaluate_all("links => links.map(link => link.href)")
    return [urlsplit(link).path.strip("/") for link in links] or [""]


def _whole(page: Page, file: Path) -> None:
    """Streamlit scrolls inside the page, so the window grows to what there is to see."""
    tall = page.evaluate("() => document.querySelector('[data-testid=stMain]').scrollHeight")
    size = page.viewport_size or {"width": 1400, "height": 1100}
    page.set_viewport_size({"width": size["width"], "height": max(size["height"], min(_TALLEST, int(tall)))})
    page.wait_for_timeout(1000)  # figures are drawn once they are in view
    Visit(page).settle()
    page.screenshot(path=file)
    page.set_viewport_size(size)


def take_for_readme(folder: Path) -> list[Path]:
    """Writes NAME.png for the pages that README and guides show."""
    folder = folder.resolve()
    taken = _tops(folder, Path(os.path.relpath(SAMPLES)) / "fsdp2-straggler-rank0", _README)
    with tempfile.TemporaryDirectory(prefix="diag-pictures-") as kept, chdir(kept):
        return [*taken, *_tops(folder, pictured.write(Path("small-model")), (_HUNG,))]


def _tops(folder: Path, run: Path, pages: Sequence[tuple[str, str, Scheme, int]]) -> list[Path]:
    taken = []
    with dashboard(run) as served, chromium() as browser:
        for name, address, scheme, height in pages:
            with visit(browser, scheme, height) as found:
                found.open(served.at(address), until="Rank")
                found.page.wait_for_timeout(1000)  # figures are drawn once they are in view
                found.settle()
                file = folder / f"{name}.png"
                found.page.screenshot(path=file)
                taken.append(file)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("run", type=Path, nargs="?", help="a run or a folder of runs; without: one in every state")
    parser.add_argument("--readme", action="store_true", help="only the pages that README and guides show")
    parser.add_argument("--width", type=int, default=_WIDTH, help="of the window, in pixels")
    options = parser.parse_args()
    if options.readme:
        taken = take_for_readme(options.folder)
    elif options.run is not None:
        taken = take(options.folder, options.run, width=options.width)
    else:
        with tempfile.TemporaryDirectory(prefix="diag-pictures-") as kept:
            runs = pictured.write(Path(kept) / "small-model")
            taken = take(options.folder, runs, f"?run={pictured.RUN}", _STATES, options.width)
    print(*taken, sep="\n")


if __name__ == "__main__":
    main()
