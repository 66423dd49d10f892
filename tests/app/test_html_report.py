"""The report holds the analysed numbers, loads nothing, follows no markup of others, and redacted names nobody."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.io.json import to_json_plotly

from diag.api import Result, open_run
from diag.app import drawings
from diag.app.figures import field_columns
from diag.app.html_report import render as report
from diag.app.html_report.render import render
from diag.app.policy import DASHBOARD
from diag.app.run_view import view_of
from diag.app.theme import DARK
from diag.collectors.records import Manifest
from diag.model.steps import Advice, Recommendation, Risk
from diag.serve.server import SAMPLES
from diag.show.notebook import to_html
from diag.show.page import advice_of, metrics_of
from diag.show.redact import Pseudonyms
from diag.words.formatting import duration, printed_alike, share, size
from tests.app.planted import plant
from tests.app.runs import MS, write_run, write_stalled_trace
from tests.copies import replace
from tests.samples import opened_sample

COMMAND = "diag report run -o report.html"


class Parsed(HTMLParser):
    """Elements with their attributes, and the text that people see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.styles: list[str] = []
        self._inside = ""
        self._seen: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        self._inside = tag
        if tag == "script":
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))
        elif self._inside == "style":
            self.styles.append(data)
        else:
            self._seen.append(data + " " * (self._inside in ("dt", "dd")))

    @property
    def text(self) -> str:
        return " ".join("".join(self._seen).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def figures(self) -> dict[str, Any]:
        (content,) = [text for attributes, text in self.scripts if attributes.get("type") == "application/json"]
        found: dict[str, Any] = json.loads(content)
        return found


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Rank 1 waits for data. Only read."""
    return open_run(write_run(tmp_path_factory.mktemp("report") / "slow", slow_data_ms={1: 40}))


@pytest.fixture(scope="module")
def page(result: Result) -> Parsed:
    return Parsed(render(result, COMMAND, "1.2.3"))


def spaced(text: str) -> str:
    return " ".join(text.split())


# -- the same as the analysis ------------------------------------------------------------------------------------------


def test_it_says_what_the_analysis_says(result: Result, page: Parsed) -> None:
    verdict = result.verdict
    assert verdict.headline in page.text
    assert f"Confidence {share(verdict.confidence)}" in page.text
    assert "At fault: rank 1 on node1" in page.text
    assert "10 of 12 steps counted" in page.text
    assert "2 of 2 ranks" in page.text
    for finding in result.examination.findings:
        assert spaced(finding.title) in page.text
        assert spaced(finding.action) in page.text
        cost = f"{share(finding.share)} of the step"
        if not printed_alike(finding.title_ns, finding.cost_ns_per_step):
            cost += f", {spaced(duration(finding.cost_ns_per_step))}"
        assert cost in page.text
        for item in finding.evidence:
            assert spaced(item.filter) in page.text
    for item in result.coverage.not_looked:
        assert item.question in page.text
        assert item.reason in page.text
    for question in result.examination.not_found:
        assert question in page.text
    for metric in metrics_of(result):
        assert f"{metric.label} {spaced(metric.value)}" in page.text
    assert f"Made by diag 1.2.3: {COMMAND}" in page.text


def test_its_figures_draw_the_analysed_numbers(result: Result, page: Parsed) -> None:
    bars = {bar["name"]: numbers(bar["x"]) for bar in page.figures["ranks"]["figure"]["data"]}
    assert bars["data wait"].tolist() == [1, 40]
    assert sum(bars.values()).tolist() == [105, 105]
    history = page.figures["history"]["figure"]["data"]
    compute = next(trace for trace in history if trace["name"] == "compute" and trace["type"] == "bar")
    assert numbers(compute["y"]).tolist() == [60.0] * 12
    field = page.figures["waiting"]["figure"]["data"][0]
    assert numbers(field["z"]).mean(axis=1).tolist() == [39, 0]


def test_it_says_why_a_device_was_idle(tmp_path: Path, page: Parsed) -> None:
    found = Parsed(render(open_run(write_stalled_trace(tmp_path / "run", "<script>alert(1)</script>")), COMMAND, "1"))
    assert "The device of rank 0 is idle for 5.00 ms (50%) of 10.0 ms a step" in found.text
    assert "not launched4.00 ms40%The host had not launched the next work yet" in found.text
    assert "not launched<script>alert(1)</script> for 90% of it" in found.text
    assert len(found.scripts) == len(page.scripts)
    assert "Why the device was idle" not in page.text  # of a run on a CPU


def test_what_the_host_was_doing_is_redacted(tmp_path: Path) -> None:
    result = open_run(write_stalled_trace(tmp_path / "run", "/home/zoltan/secret.py(3): load"))
    assert "secret.load for 90% of it" in Parsed(render(result, COMMAND, "1")).text
    result = open_run(write_stalled_trace(tmp_path / "other", "load /home/zoltan/secret.bin"))
    assert "zoltan" not in render(result, COMMAND, "1", Pseudonyms(result))


def numbers(value: Any) -> np.ndarray:
    """Plotly's typed array, or a list."""
    if isinstance(value, dict):
        found = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        return found.reshape([int(part) for part in value["shape"].split(",")]) if "shape" in value else found
    return np.array(value, dtype=float)


def test_advice_comes_with_its_price_and_a_command(slow_rank_1: Path) -> None:
    result = open_run(slow_rank_1)
    advice = Advice(
        id="a",
        finding="slow-data-one-rank",
        knob="k",
        change="read ahead",
        predicted_gain_ns=(10 * MS, 20 * MS, 30 * MS),
        memory_delta_bytes=5_000_000,
        risk=Risk.NUMERICS,
        command="diag run --prefetch 1",
        gain_share=0.19,
        code={"fsdp2": "fully_shard(block)\nfully_shard(model)"},
    )
    vars(result)["recommendation"] = Recommendation((advice,), (), 0.012)
    page = Parsed(render(result, COMMAND, "1"))
    assert "Read ahead" in page.text
    assert spaced(f"Saves {duration(20 * MS)} a step, 19% of it (between {duration(10 * MS)} and") in page.text
    assert spaced(f"{size(5_000_000)} more memory") in page.text
    assert "changes numerical results" in page.text
    assert "diag run --prefetch 1" in page.text
    assert "fully_shard(block) fully_shard(model)" in page.text
    assert "off by 1.2%" in page.text
    copied = [button["data-copies"] for button in page.all("button")]
    assert set(copied) <= {code.get("id") for code in page.all("code")}
    assert len(copied) == 2


def test_a_healthy_run_and_one_with_missing_ranks(tmp_path: Path) -> None:
    healthy = Parsed(render(open_run(write_run(tmp_path / "healthy")), COMMAND, "1")).text
    assert "No rank waits for another." in healthy
    assert "At fault" not in healthy
    partial = open_run(write_run(tmp_path / "partial", ranks=4, missing=(2,)))
    text = Parsed(render(partial, COMMAND, "1")).text
    assert "3 of 4 ranks" in text
    assert "Incomplete: no usable data of rank 2" in text
    for gap in partial.coverage.skipped:
        assert gap.reason in text
        assert gap.path in text


# -- one file, no network ----------------------------------------------------------------------------------------------


def test_it_loads_nothing(page: Parsed) -> None:
    loaded = [
        (tag, name, value)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data", "poster", "background", "xlink:href")
    ]
    assert len(loaded) > 5
    assert [item for item in loaded if not item[2].startswith(("#", "data:"))] == []
    assert not {"base", "form", "iframe", "object", "embed"} & {tag for tag, _ in page.elements}
    assert all("url(" not in style and "@import" not in style for style in page.styles)


def test_no_script_runs_but_ours_and_nothing_may_be_fetched(page: Parsed) -> None:
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {"connect-src", "font-src", "frame-src", "worker-src"}.isdisjoint(rules)
    run = [text for attributes, text in page.scripts if "type" not in attributes]
    assert len(run) == 2
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert rules["script-src"].split() == [f"'sha256-{value}'" for value in hashes]
    assert len([text for text in run if "plotly.js v" in text[:200]]) == 1
    before = [tag for tag, _ in page.elements].index("script")
    assert page.elements.index(("meta", {"http-equiv": "Content-Security-Policy", "content": policy})) < before


def test_it_can_be_read_with_a_keyboard_and_a_screen_reader(page: Parsed) -> None:
    assert page.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"][1:] for link in page.all("a")} <= set(ids)
    plots = [one for one in page.all("div") if one.get("class") == "plot"]
    assert {plot["id"].removeprefix("plot-") for plot in plots} == set(page.figures)
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)
    assert page.all("th")
    assert all(cell.get("scope") in ("row", "col") for cell in page.all("th"))
    assert [tag for tag, _ in page.elements if tag in ("h1", "h2")][:2] == ["h1", "h2"]


def test_dark_is_light_with_the_listed_differences(result: Result) -> None:
    view = view_of(result)
    for drawing in (drawings.of_ranks(view), drawings.of_steps(view, 1), drawings.of_waiting(view)[1]):
        assert drawing is not None
        spec = json.loads(report.to_json([drawing]))[drawing.key]
        assert spec["dark"]
        for path, value in spec["dark"]:
            at = spec["figure"]
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
        assert spec["figure"] == json.loads(to_json_plotly(report.plain_figure(drawing, DARK)))


def test_it_stays_small_for_many_ranks_and_steps(tmp_path: Path) -> None:
    wide = render(open_run(write_run(tmp_path / "wide", ranks=70, steps=4, slow_data_ms={66: 40})), COMMAND, "1")
    long = render(open_run(write_run(tmp_path / "long", steps=800)), COMMAND, "1")
    plotly = max(len(text) for _, text in Parsed(wide).scripts)
    assert len(wide) - plotly < 200_000
    assert len(long) - plotly < 500_000
    assert "and 6 more ranks" in Parsed(wide).text
    assert "66, at fault" in Parsed(wide).text
    assert field_columns(2) == 1500
    assert field_columns(5_000) * 5_000 <= DASHBOARD.most_cells


# -- names of others ---------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><script>alert(3)</script>",
    "--><svg/onload=alert(4)>",
    "{{ 7 * 7 }} ${alert(5)} `alert(6)`",
)


def test_figures_cannot_end_the_script_that_holds_them() -> None:
    text = "</script><!--<script>\u2028\u2029&"
    figure = go.Figure(go.Bar(x=[1], y=[text], customdata=[text]), layout={"title": {"text": text}})
    written = report.to_json([drawings.Drawing("a", lambda _: figure, "alt")])
    assert not set("<>&\u2028\u2029") & set(written)
    bar = json.loads(written)["a"]["figure"]["data"][0]
    assert bar["y"] == bar["customdata"] == [text]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("redacted", [False, True], ids=["plain", "redacted"])
def test_markup_in_names_stays_text(result: Result, page: Parsed, text: str, redacted: bool) -> None:
    planted = plant(result, text)
    rendered = render(planted, f"diag report '{text}'", "1", Pseudonyms(planted) if redacted else None)
    assert "<script>alert" not in rendered
    assert "<img src=x" not in rendered
    assert "<svg/onload" not in rendered
    found = Parsed(rendered)
    assert [name for _, attributes in found.elements for name in attributes if name.startswith("on")] == []
    assert len(found.scripts) == len(page.scripts) == 3
    assert len(found.all("img")) == 1
    assert "49" not in found.text.partition("headline")[2][:40]
    if not redacted:
        assert f"headline {text}" in found.text
        strip = [trace for trace in found.figures["history"]["figure"]["data"] if trace["name"] == "class"]
        # Plotly's labels know some HTML: there it is escaped once more.
        assert html.escape(text, quote=False) in strip[0]["customdata"][0]
        assert "<" not in json.dumps(strip[0]["customdata"])


def test_markup_in_the_name_of_a_run_stays_text(tmp_path: Path) -> None:
    name = '"><img src=x onerror=alert(2)><b>'
    result = open_run(write_run(tmp_path / name, slow_data_ms={1: 40}))
    for rendered in (render(result, f"diag report '{result.tables.root}'", "1"), to_html(result)):
        assert "<img src=x" not in rendered
        assert name in Parsed(rendered).text


NOTEBOOK_TAGS = {"div", "span", "b", "code", "table", "caption", "thead", "tbody", "tr", "th", "td", "ol", "li", "pre",
                 "svg", "rect", "title", "text"}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_in_names_stays_text_in_a_notebook(result: Result, text: str) -> None:
    shown = to_html(plant(result, text))
    found = Parsed(shown)
    assert {tag for tag, _ in found.elements} <= NOTEBOOK_TAGS
    assert [name for _, attributes in found.elements for name in attributes if name.startswith("on")] == []
    assert f"headline {text}" in found.text


# -- redaction ---------------------------------------------------------------------------------------------------------

SECRETS = (
    "zqhost1.corp.qz",
    "zqhost2",
    "zquser",
    "Zq Project",
    "zqrun-77",
    "zqid",
    "zqjob",
    "10.98.76.54",
    "zqdata",
    "zqtoken",
)
# As they stand in sentences: bare, in a path, an address, an argument, with a port, in another case.
SENTENCE = (
    "zqhost1.corp.qz, ZQHOST1 and zqhost2:29500, zquser@zqhost2, /mnt/zqdata/x.json, ../zqdata/y, s3://zqdata/z, "
    r"C:\Users\zquser\zqdata, zqdata/a/b, ~zquser/zqdata, run zqrun-77 (id-zqid), job zqjob-5, at 10.98.76.54:29400, "
    "--token=zqtoken-1, host='zqhost1'"
)


@pytest.fixture
def secretive(tmp_path: Path) -> Result:
    """A run of which every name is a secret, and every text holds all of them."""
    root = write_run(tmp_path / "home" / "zquser" / "Zq Project" / "zqrun-77", slow_data_ms={1: 40})
    for rank, host in enumerate(("zqhost1.corp.qz", "zqhost2")):
        file = root / "ranks" / f"{rank:05d}" / "rank.json"
        file.write_text(file.read_text().replace(f"node{rank}", host))
    result = open_run(root)
    planted = plant(result, SENTENCE)
    manifest = Manifest(
        run_id="id-zqid",
        created_unix_ns=0,
        argv=["run", "--data", "/mnt/zqdata", "--rdzv-endpoint", "10.98.76.54:29400", "--token", "zqtoken-1"],
        world_size=2,
        strategy="ddp",
        rendezvous="zqjob-5@10.98.76.54:29400",
        trainer={"data": "/mnt/zqdata"},
    )
    planted = replace(planted, tables=replace(planted.tables, manifest=manifest))
    vars(planted)["recommendation"] = plant(result, SENTENCE).recommendation
    return planted


def readable(rendered: str) -> str:
    """All that can be read out of a file: as it is, unescaped, and with every piece of base64 decoded."""
    body = re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", rendered, flags=re.DOTALL)
    forms = [body, html.unescape(body), re.sub(r"\\u([0-9a-f]{4})", lambda m: chr(int(m[1], 16)), body)]
    for piece in re.findall(r"[A-Za-z0-9+/]{8,}={0,2}", body):
        forms.extend(
            base64.b64decode(piece[start:] + "===", validate=False).decode("latin-1")
            for start in range(4)
            if len(piece[start:].rstrip("=")) % 4 != 1
        )
    return "\n".join(forms).lower()


def test_the_search_finds_what_is_not_redacted(secretive: Result) -> None:
    found = readable(render(secretive, "diag report x", "1"))
    assert [secret for secret in SECRETS if secret.lower() not in found] == []
    assert "zqrun" in readable(base64.b64encode(b"some bytes and zqrun-77").decode())


def test_redacted_it_names_nobody(secretive: Result, tmp_path: Path) -> None:
    names = Pseudonyms(secretive, [tmp_path / "zqdata" / "report.html"])
    rendered = render(secretive, f"diag report '{secretive.tables.root}' -o zqrun-77.html --redact", "1", names)
    found = readable(rendered)
    assert [secret for secret in (*SECRETS, "zqhost1", "zqrun", str(tmp_path)) if secret.lower() in found] == []
    text = Parsed(rendered).text
    assert "host-1, host-1 and host-2" in text
    assert "run-1" in text
    assert "Kept: " in text
    assert "names redacted" in text
    # What it is about is still there.
    assert "2 of 2 ranks" in text
    assert "data-bound" in text
    assert "diag report path-" in text


def test_the_same_run_gets_the_same_pseudonyms(secretive: Result) -> None:
    reports = [render(secretive, COMMAND, "1", Pseudonyms(secretive)) for _ in range(2)]
    one, other = (re.sub(r"[Rr]eported [\d:\- ]+", "", report) for report in reports)  # the minute of each
    assert one == other


def test_the_advice_comes_first_with_what_it_replaces() -> None:
    result = opened_sample("fsdp2-not-overlapped")
    page, changes = view_of(result).page, advice_of(result).changes
    html = render(result, COMMAND, "1")
    text = Parsed(html).text
    places = [text.index(part) for part in (page.verdict.headline, changes[0].title, page.metrics[0].label)]
    assert places == sorted(places)
    assert f"Recorded {page.recorded}, reported 20" in text
    (diff,) = [text for change in changes for api, text in change.diffs if "reshard_after" in text and api == "fsdp2"]
    assert diff == "- fully_shard(block)\n+ fully_shard(block, reshard_after_forward=False)"
    assert html.count(f"<code>{diff}</code>") == 1


def test_every_diff_ends_in_the_advised_code() -> None:
    for sample in sorted(SAMPLES.glob("*/manifest.json")):
        for change in advice_of(open_run(sample.parent)).changes:
            code = dict(change.code)
            for api, diff in change.diffs:
                lines = diff.splitlines()
                assert [line[2:] for line in lines if line[0] != "-"] == code[api].splitlines()
                assert any(line[0] == "-" for line in lines) or "fully_shard(model)" in diff
