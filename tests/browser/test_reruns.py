"""A choice on a page draws its part of the page again, not the whole page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, WebSocket, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import visit


def whole_runs(page: Page) -> list[int]:
    """The ends of runs of the whole page's script, as the server tells the browser of them."""
    ends: list[int] = []

    def received(data: bytes | str) -> None:
        message = ForwardMsg.FromString(data if isinstance(data, bytes) else data.encode())
        if (
            message.WhichOneof("type") == "script_finished"
            and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY
        ):
            ends.append(message.script_finished)

    def opened(socket: WebSocket) -> None:
        socket.on("framereceived", received)

    page.on("websocket", opened)
    return ends


def chosen(label: str, option: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("combobox", name=label).first.click()
        page.get_by_role("option", name=option).first.click()

    return act


def searched(page: Page) -> None:
    page.get_by_role("textbox", name="Search").fill("no run has this")
    page.keyboard.press("Enter")


def test_a_filter_does_not_draw_the_whole_page_again(browser: Browser, served: Served, tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / name)
    with dashboard(tmp_path) as folder:
        for address, until, act, answer in (
            (
                served.at("collectives"),
                "Time of all calls",
                chosen("Collective", "reduce-scatter 135"),
                "17\u00a0calls",
            ),
            (served.at(), "Coverage", chosen("Step", "12"), "Every step of rank"),
            (folder.at(), "All numbers", searched, "No run matches all search words"),
        ):
            with visit(browser, height=1400) as found:
                ends = whole_runs(found.page)
                found.open(address, until=until)
                before = len(ends)
                assert before > 0
                act(found.page)
                expect(found.page.get_by_text(answer).first).to_be_visible()
                found.settle()
                assert len(ends) == before
                assert found.complaints == []


def test_runs_are_analysed_while_one_looks_at_their_folder(browser: Browser, tmp_path: Path) -> None:
    for number in range(4):
        write_run(tmp_path / f"run{number}")
    with dashboard(tmp_path) as folder, visit(browser, height=1400) as found:
        ends = whole_runs(found.page)
        found.open(folder.at(), until="4\u00a0runs in")
        expect(found.page.get_by_text("not analysed yet")).to_have_count(0)
        expect(found.page.get_by_text("waiting for analysis")).to_have_count(0)
        found.settle()
        assert len(ends) == 1
        assert found.complaints == []


def test_a_page_that_is_left_while_a_part_of_it_is_asked_for_does_not_blank_the_next_one(
    browser: Browser, served: Served
) -> None:
    """The browser asks for a part of a page that the server has left: it does so on a busy machine."""
    with visit(browser, height=900) as found:
        page = found.page
        ends = whole_runs(page)
        found.open(served.at(), until="Coverage")
        page.get_by_role("heading", name="Findings").scroll_into_view_if_needed()
        page.get_by_role("button", name="over time").first.scroll_into_view_if_needed()
        found.settle()
        before = len(ends)
        page.evaluate(
            """() => {
                const all = what => [...document.querySelectorAll(what)];
                const shadows = all('[data-testid^=stBidiComponent]').map(it => it.shadowRoot);
                const part = shadows.map(it => it?.querySelector('.moment .open')).find(it => it);
                all('[data-testid=stSidebarNavLink]').find(it => it.textContent.includes('Memory')).click();
                part.click();
            }"""
        )
        expect(page.get_by_role("heading", name="Every rank")).to_be_visible()
        found.settle()
        expect(page.get_by_role("heading", name="Memory", exact=True)).to_be_visible()
        assert len(ends) == before + 1


def test_a_figure_whose_part_of_the_page_the_server_no_longer_has_is_drawn(browser: Browser, served: Served) -> None:
    """As when the whole page is drawn between the browser's look at it and its request, on a busy machine."""
    lost: set[str] = set()

    def between(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def sent(data: bytes | str) -> None:
            message = BackMsg.FromString(data if isinstance(data, bytes) else data.encode())
            asked = message.rerun_script
            if message.WhichOneof("type") == "rerun_script" and asked.fragment_id and not asked.is_auto_rerun:
                lost.add(asked.fragment_id)
                asked.fragment_id = "lost"
                data = message.SerializeToString()
            server.send(data)

        socket.on_message(sent)

    with visit(browser, height=900) as found:
        page = found.page
        page.route_web_socket("**/_stcore/stream", between)
        found.open(served.at("collectives"), until="Time of all calls")
        later = page.locator(".later")
        while later.count():  # each is drawn once it is in view
            before = later.count()
            later.first.scroll_into_view_if_needed()
            page.wait_for_function(
                """before => [...document.querySelectorAll('[data-testid^=stBidiComponent]')]
                    .filter(it => it.shadowRoot?.querySelector('.later')).length < before""",
                arg=before,
            )
            found.settle()
        assert lost, "a part of the page was asked for"
        expect(page.locator(".js-plotly-plot").first).to_be_visible()
        assert found.complaints == []


def test_the_code_of_figures_is_there_before_the_first_one(browser: Browser, tmp_path: Path) -> None:
    """Its code, several megabytes, is loaded on a page without a figure, too."""
    with dashboard(write_run(tmp_path / "run")) as running, visit(browser, height=500) as found:
        found.open(running.at("hang"), until="Ranks in each group")
        assert found.page.locator(".js-plotly-plot").count() == 0
        found.page.wait_for_function(
            "() => performance.getEntriesByType('resource').some(it => /PlotlyChart/.test(it.name) && it.responseEnd)"
        )
        assert found.page.locator("link[href*='PlotlyChart']").count() == 1
        assert found.complaints == []
