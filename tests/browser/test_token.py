"""Who gets in, in a real browser: the printed address, links from elsewhere, a restart, and pages that mean harm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from diag.api import open_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import launched, visit
from tests.browser.conftest import RUN, headline_of

EVIL = "evil.example.org"
# What a page of another site can try with the browser of somebody who has the dashboard open.
_ATTACK = """async ({address, path}) => {
    const tries = {};
    const socket = new WebSocket(address.replace("http", "ws") + "/_stcore/stream", "streamlit");
    tries.socket = await new Promise(done => {
        socket.onopen = () => done("open");
        socket.onerror = () => done("refused");
    });
    const text = async answer => `${answer.status} ${await answer.text()}`;
    const requests = {read: {}, "read with cookies": {credentials: "include"}, write: {method: "PUT"}};
    for (const [name, options] of Object.entries(requests))
        tries[name] = await fetch(address + path, options).then(text, () => "blocked");
    const frame = document.createElement("iframe");
    frame.src = address;
    document.body.append(frame);
    await new Promise(done => { frame.onload = done; });
    try { tries.frame = frame.contentDocument ? "readable" : "blocked"; } catch { tries.frame = "blocked"; }
    return tries;
}"""


@contextmanager
def site(page: str = "<body></body>") -> Iterator[int]:
    """Somebody else's site, which shows the page; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def timeline_of_step_10(page: Page) -> None:
    page.get_by_text("In this window").first.wait_for()
    asked = parse_qs(urlsplit(page.url).query)
    assert asked["step"] == ["10"]
    assert "token" not in asked


def test_the_printed_address(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        asked: list[str] = []
        found.page.on("request", lambda request: asked.append(request.url))
        found.open(served.printed, until=headline_of(open_run(RUN)))
        assert "token" not in found.page.url
        (cookie,) = [one for one in found.page.context.cookies() if one["name"].startswith("diag_")]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)
        assert served.token not in found.page.evaluate("document.cookie + document.referrer + history.state")
        there = {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
        assert there == {f"127.0.0.1:{served.port}"}
        # A second tab, and a reload, need no token any more.
        second = found.page.context.new_page()
        second.goto(f"http://127.0.0.1:{served.port}/timeline?step=10")
        timeline_of_step_10(second)
        second.reload()
        timeline_of_step_10(second)
        assert found.complaints == []


def test_a_stranger_is_told_how_to_get_in(browser: Browser, served: Served) -> None:
    with visit(browser) as found:
        found.page.goto(f"http://127.0.0.1:{served.port}/timeline?step=10")
        expect(found.page.get_by_role("heading", name="A token is needed")).to_be_visible()
        assert RUN.name not in found.page.content()
        found.page.goto(served.at("timeline?step=10"))
        timeline_of_step_10(found.page)


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_a_link_on_another_site(browser: Browser, served: Served, known: bool) -> None:
    """A chat, a ticket: the browser sends no strict cookie along when such a link is followed."""
    link = f"http://127.0.0.1:{served.port}/timeline?step=10" if known else served.at("timeline?step=10")
    with visit(browser) as found, site(f'<a href="{link.replace("&", "&amp;")}">look</a>') as port:
        if known:
            found.page.goto(served.printed)
        found.page.goto(f"http://localhost:{port}/")
        found.page.get_by_role("link").click()
        timeline_of_step_10(found.page)


@pytest.mark.matrix
def test_the_page_that_opens_the_browser(browser: Browser, tmp_path: Path) -> None:
    opener, opened = tmp_path / "browser", tmp_path / "opened"
    opener.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    opener.chmod(0o700)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BROWSER", str(opener))
        with dashboard(RUN, "--browser", forked=False) as served, visit(browser) as found:
            while not opened.exists():
                found.page.wait_for_timeout(100)
            found.open(opened.read_text(), until=headline_of(open_run(RUN)))
            assert urlsplit(found.page.url).netloc == f"127.0.0.1:{served.port}"


@pytest.mark.matrix
def test_a_restart(browser: Browser) -> None:
    with visit(browser) as found:
        with dashboard(RUN) as first:
            found.open(first.printed, until=headline_of(open_run(RUN)))
        with dashboard(RUN, "--port", str(first.port)) as second:
            # The page that is open says it by itself, and so does a reload.
            expect(found.page.get_by_role("dialog")).to_contain_text("not the token of this")
            found.page.reload()
            expect(found.page.get_by_role("heading", name="not the token of this server")).to_be_visible()
            found.open(second.printed, until=headline_of(open_run(RUN)))


@pytest.mark.matrix
def test_two_dashboards_in_one_browser(browser: Browser, served: Served) -> None:
    with dashboard(RUN) as other, visit(browser) as found:
        for one in (served, other):
            found.open(one.printed, until=headline_of(open_run(RUN)))
        for one in (served, other):
            found.open(f"http://127.0.0.1:{one.port}", until=headline_of(open_run(RUN)))


def test_a_log_is_uploaded(browser: Browser, served: Served, tmp_path: Path) -> None:
    log = tmp_path / "rank1.log"
    log.write_text("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    with visit(browser) as found:
        found.open(served.at("hang?logs=upload"), until="Hang triage")
        found.page.locator("input[type=file]").set_input_files(log)
        expect(found.page.get_by_text("rank1.log").first).to_be_visible()
        found.settle()
        expect(found.page.get_by_text("out of memory").first).to_be_visible()
        assert found.complaints == []


@pytest.mark.matrix
@pytest.mark.parametrize("token", ["--token", "--no-token"])
def test_pages_of_others_learn_nothing(browser: Browser, token: str) -> None:
    """A page that is on a name which leads here (DNS rebinding), and one of another server of this machine."""
    with (
        dashboard(RUN, token) as served,
        site() as port,
        launched(browser.browser_type, f"--host-resolver-rules=MAP {EVIL} 127.0.0.1") as deceived,
        visit(deceived) as found,
    ):
        address = f"http://127.0.0.1:{served.port}"
        found.open(served.at(), until=headline_of(open_run(RUN)))
        rebound = found.page.goto(f"http://{EVIL}:{served.port}/")
        assert rebound is not None
        assert rebound.status == 403
        for own, target in (
            (f"http://{EVIL}:{port}", address),
            (f"http://127.0.0.1:{port}", address),  # the cookie goes along: it is the same site
            (f"http://{EVIL}:{served.port}", f"http://{EVIL}:{served.port}"),
        ):
            found.page.goto(own)
            tries = found.page.evaluate(_ATTACK, {"address": target, "path": "/_stcore/host-config"})
            assert tries.pop("socket") == "refused"
            assert "200" not in json.dumps(tries), tries
            assert "allowedOrigins" not in json.dumps(tries)
            assert tries["frame"] == "blocked"
