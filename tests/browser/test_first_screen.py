"""The first screen of a laptop, without scrolling: state, verdict, the ranks as a picture, numbers and advice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from diag.api import open_run
from diag.app.card import card_of
from diag.app.theme import DARK, LIGHT
from diag.app.views import overview
from diag.serve.server import SAMPLES
from diag.show.page import advice_of, page_of
from tests.app.runs import write_run
from tests.app.served import Served, dashboard
from tests.browser.chromium import visit

LAPTOP = 900
VIEWS = Path(overview.__file__).parent
PHONE = 390


def bottom(target: Locator) -> float:
    box = target.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def right(target: Locator) -> float:
    box = target.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def rank(page: Page, number: int) -> Locator:
    return page.get_by_role("option").filter(has_text=f"rank {number}")


def test_it_holds_the_answer_and_the_picture(browser: Browser, samples: Served) -> None:
    run = "fsdp2-straggler-rank0"
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at(f"?run={run}"), until="without the fault")
        page = found.page
        seen = [
            page.get_by_test_id("stMain").get_by_text("finished").first,
            page.get_by_text(card_of(page_of(open_run(SAMPLES / run)).verdict).headline).first,
            rank(page, 0).get_by_text("at fault ▸ rank 0"),
            page.get_by_text("without the fault"),
            page.get_by_test_id("stMetric").last,
            page.get_by_role("listitem").filter(has_text=advice_of(open_run(SAMPLES / run)).changes[0].title).first,
        ]
        for target in seen:
            expect(target).to_be_visible()
            assert bottom(target) < LAPTOP
        cards, picture = page.get_by_test_id("stMetric"), page.locator("section.picture")
        assert right(cards.last) == pytest.approx(right(picture), abs=4), "the numbers fill the row"
        rank(page, 1).click()
        page.wait_for_url("**rank=1**")
        found.settle()
        expect(page.get_by_text("Every step of rank 1").first).to_be_visible()
        assert found.complaints == []


def test_what_to_type_is_copied(browser: Browser, samples: Served) -> None:
    run = "fsdp2-not-overlapped"
    first = advice_of(open_run(SAMPLES / run)).changes[0]
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        found.open(samples.at(f"?run={run}"), until="after advice 1")
        button = found.page.get_by_role("button", name="Copy what to type for 1", exact=True)
        assert bottom(button) < LAPTOP
        for heading in ("Memory", "Risk"):
            expect(found.page.locator(".row.head").get_by_text(heading)).to_be_visible()
        button.click()
        expect(button).to_have_text("Copied")
        assert found.page.evaluate("() => navigator.clipboard.readText()") == first.how
        assert found.complaints == []


def test_the_answer_is_copied_as_an_issue(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        found.open(samples.at("?run=fsdp2-not-overlapped"), until="after advice 1")
        button = found.page.locator("section.copies").get_by_role("button").first
        expect(button).to_have_text("Copy as issue")
        button.click()
        expect(button).to_have_text("Copied")
        copied = found.page.evaluate("() => navigator.clipboard.readText()")
        assert copied.startswith("### Communication-bound")
        assert "| rank |" in copied
        assert found.complaints == []


def test_a_phone_shows_all_of_it_one_below_the_other(browser: Browser, samples: Served) -> None:
    with visit(browser, "dark", height=844, width=PHONE) as found:
        found.open(samples.at("?run=fsdp2-not-overlapped"), until="after advice 1")
        for target in (rank(found.page, 1), found.page.get_by_role("button", name="Copy what to type for 1")):
            box = target.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE
        assert found.page.get_by_test_id("stMain").evaluate("it => it.scrollWidth - it.clientWidth") <= 1


def test_a_rank_is_chosen_by_keyboard(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at("?run=fsdp2-straggler-rank0"), until="without the fault")
        found.page.get_by_role("listbox").first.focus()
        expect(rank(found.page, 0)).to_have_attribute("aria-selected", "true")
        found.page.keyboard.press("ArrowDown")
        found.page.keyboard.press("Enter")
        found.page.wait_for_url("**rank=1**")


def test_colours_of_the_system_that_change_change_those_of_the_figures(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at("?run=fsdp2-not-overlapped"), until="after advice 1")
        picture = found.page.locator("section.picture").first
        for scheme, theme in (("dark", DARK), ("light", LIGHT)):
            found.page.emulate_media(color_scheme=scheme)
            expect(picture).to_have_attribute("style", re.compile(theme.ink))
        assert found.complaints == []


def choose_in_the_dark(page: Page, number: int) -> None:
    """Chooses a rank without the mouse. The page is drawn again, in other colours."""
    page.emulate_media(color_scheme="dark")
    rank(page, number).evaluate("it => it.click()")
    page.wait_for_url(f"**rank={number}**")
    expect(page.locator("section.advice")).to_have_attribute("style", re.compile(DARK.ink))


def test_a_press_during_which_the_page_is_drawn_again_is_a_click(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at("?run=fsdp2-not-overlapped"), until="after advice 1")
        page, picture = found.page, found.page.locator("section.picture").first
        rank(page, 1).hover()
        page.mouse.down()
        choose_in_the_dark(page, 0)
        page.mouse.up()
        page.wait_for_url("**rank=1**")
        expect(picture).to_have_attribute("style", re.compile(DARK.ink))
        assert found.complaints == []


def test_what_has_the_focus_keeps_it_while_the_page_is_drawn_again(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at("?run=fsdp2-not-overlapped"), until="after advice 1")
        second = found.page.get_by_role("button", name="Copy what to type for 2", exact=True)
        second.focus()
        choose_in_the_dark(found.page, 0)
        expect(second).to_be_focused()
        assert found.complaints == []


def test_figures_below_the_window_are_drawn_when_one_scrolls_to_them(browser: Browser, samples: Served) -> None:
    with visit(browser, height=LAPTOP, width=1440) as found:
        found.open(samples.at("?run=fsdp2-straggler-rank0"), until="without the fault")
        figures = found.page.locator(".js-plotly-plot")
        before = figures.count()
        heading = found.page.get_by_role("heading", name="Memory")
        top = heading.bounding_box()
        assert top is not None
        assert top["y"] > LAPTOP
        heading.evaluate("it => it.scrollIntoView()")
        expect(figures.nth(before)).to_be_attached()
        assert found.complaints == []


def test_the_code_of_figures_has_run_before_the_first_one_comes_into_view(browser: Browser, samples: Served) -> None:
    """Running it takes longer than drawing a figure. It leaves a style sheet on the page."""
    with visit(browser, height=500, width=1440) as found:
        found.open(samples.at("?run=fsdp2-straggler-rank0"), until="without the fault")
        expect(found.page.locator("[id='plotly.js-style-global']")).to_be_attached()
        assert found.page.locator(".js-plotly-plot").count() == 0
        assert found.complaints == []


# What is written and filled on canvases, with the font or the colour.
_DRAWN = """() => {
    window.drawn = [];
    const {fillText, fillRect} = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (...all) {
        window.drawn.push([all[0], this.font]);
        return fillText.apply(this, all);
    };
    CanvasRenderingContext2D.prototype.fillRect = function (...all) {
        window.drawn.push(["", this.fillStyle]);
        return fillRect.apply(this, all);
    };
}"""


def test_a_grid_of_many_hosts_has_their_names_and_ends_where_its_scale_ends(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "wide", ranks=80, steps=6, slow_data_ms={61: 40})
    for place in (run / "ranks").glob("*/rank.json"):
        identity = json.loads(place.read_text())
        place.write_text(json.dumps(identity | {"host": f"node{identity['rank'] // 2:02}"}))
    with dashboard(run) as wide, visit(browser, height=LAPTOP, width=1440) as found:
        found.page.add_init_script(f"({_DRAWN})()")
        found.open(wide.at(), until="80 ranks")
        found.page.get_by_text("Most: rank 61 on node30").wait_for()
        drawn = found.page.evaluate("() => window.drawn")
        fonts = {text: font for text, font in drawn if text}
        assert {"node00", "node20", "node30"} <= set(fonts)
        assert "600" in fonts["node30"]
        assert "600" not in fonts["node00"]
        assert LIGHT.heat[-1][1] in {colour for text, colour in drawn if not text}
        assert found.complaints == []


def test_a_wide_interval_leaves_the_bars_their_width(browser: Browser) -> None:
    """Of a prediction between nothing and ten times the step."""
    shared, own = ((VIEWS / name).read_text("utf-8") for name in ("common.js", "picture.js"))
    code = f"{shared}; {own.replace('export default', 'const drawing =')}"
    row = {"rank": 0, "fault": False, "total": 500, "text": "500 ms", "ms": [500], "about": "rank 0"}
    predicted = {"ms": [0, 120, 5_000], "text": "120 ms", "label": "without the fault", "about": "predicted"}
    data = {"kind": "bars", "title": "", "rest": "", "alt": "", "parts": [["compute", "#0072b2", "#fff"]],
            "rows": [row], "end": 500, "predicted": predicted, "colours": {}}  # fmt: skip
    with visit(browser) as found:
        drawn = found.page.evaluate(
            f"""data => {{ {code}
            const parent = document.body.appendChild(document.createElement("div"));
            drawing({{ parentElement: parent, data }});
            return [".part", ".interval"].map(name => parent.querySelector(name))
              .map(it => [parseFloat(it.style.left) || 0, parseFloat(it.style.width), it.className]);
            }}""",
            data,
        )
        (left, width, _), (begin, length, looks) = drawn
        assert (left, round(width)) == (0, 77), "of the longest bar"
        assert begin + length == pytest.approx(100)
        assert looks == "interval open"
