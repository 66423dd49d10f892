"""A page in the place of Perfetto's, which answers as that does."""

from __future__ import annotations

from playwright.sync_api import Page

_PAGE = """<script>onmessage = event => {
    if (event.data === "PING") event.source.postMessage("PONG", event.origin);
    else if (event.data.perfetto) {
        window.given = new TextDecoder().decode(event.data.perfetto.buffer);
        document.title = event.data.perfetto.title;
    }
};</script>"""


def stand_in(page: Page) -> None:
    """Every page that is opened at Perfetto's address is ours; its title is that of what it was given."""
    page.context.route(
        "https://ui.perfetto.dev/**", lambda route: route.fulfill(body=_PAGE, content_type="text/html")
    )  # fmt: skip


def given(opened: Page) -> str:
    """What it was given, bytes of an archive included."""
    return str(opened.evaluate("given"))
