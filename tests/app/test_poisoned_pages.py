"""Hostile text in a run stays text on every page of the dashboard and in the HTML report: no link, no image, no markup,
nothing that turns the direction of writing around."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import streamlit as st
from google.protobuf.json_format import MessageToDict
from streamlit.testing.v1 import AppTest

from diag.api import open_run
from diag.app import markup
from diag.app.html_report.render import render
from diag.tune.history import FILE_NAME
from tests.app.planted import plant
from tests.app.runs import write_run, write_stalled_trace
from tests.app.shown import RUN_PAGES, shown
from tests.app.test_hang_page import shown as shown_hang
from tests.app.test_html_report import Parsed
from tests.app.test_pages import page
from tests.app.test_tuning import HISTORY
from tests.hang.ras.reports import Comm, as_json, job
from tests.hang.ras.reports import write_run as write_ras_run
from tests.hang.ras.server import listening, says, speaks
from tests.patience import PATIENCE_S
from tests.poisoned import POISON, Poisoner, is_harmless, places, poisoned

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CAPTURED = Path(__file__).parents[1] / "hang" / "captured"
# A slash ends a name.
NAME = POISON.replace("/", "%")[:120]

# What Streamlit's Markdown makes a link of in any text, as mdast-util-gfm-autolink-literal finds it.
_LINKED = re.compile(r"(https?://|www(?=\.))[-.\w]+|(?<![\w.])[-.+\w]+@[-\w]+(\.[-\w]+)+", re.ASCII | re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`")
_MARKUP = re.compile(r"!\[|\]\(http|:\w+\[|:smile:|\$x\$|<a |<b>")
_JOINER = "\u2060"
_OF_MARKDOWN = ("title", "subheader", "markdown", "caption", "info", "warning", "error", "success", "metric")


def of_markdown(text: str) -> list[str]:
    """What Markdown would follow in it."""
    prose = _CODE.sub("", re.sub(r"\\`", "", text))
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "_", prose)
    said = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", prose)
    return [match[0] for match in (*_LINKED.finditer(said), *_MARKUP.finditer(bare))]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def check(test: AppTest) -> None:
    assert not test.exception, [error.value for error in test.exception]
    found = [MessageToDict(element.proto) for element in _elements(test)]
    assert found
    for element in found:
        for text in strings(element):
            if text.startswith("{"):  # a figure, or what the timeline's canvas draws as text (tests/browser)
                for label in strings(json.loads(text)):
                    if "componentName" not in element:
                        check_label(label)
                    assert is_harmless(label.replace("\n", "")), ascii(label)
                continue
            assert is_harmless(text.replace(_JOINER, "").replace("\r", "")), ascii(text)
    for kind in (
        "title",
        "header",
        "subheader",
        "markdown",
        "caption",
        "info",
        "warning",
        "error",
        "success",
        "metric",
    ):
        for element in test.get(kind):
            for text in strings(MessageToDict(element.proto)):
                assert of_markdown(text) == [], text
    for table in test.table:
        for text in (*table.value.columns, *table.value.to_numpy().ravel()):
            assert is_harmless(str(text).replace(_JOINER, ""))
            assert of_markdown(str(text)) == []
    for frame in test.dataframe:
        assert '"type": "link"' not in frame.proto.columns  # a heading may hold the word, as the name of a run
        for text in frame.value.to_numpy().ravel():
            assert not isinstance(text, str) or is_harmless(text)


def _elements(test: AppTest) -> Iterator[Any]:
    for element in test._tree:
        if getattr(element, "proto", None) is not None and element.type not in ("arrow_data_frame", "arrow_table"):
            yield element


def check_label(text: str) -> None:
    """Of a figure: a few tags of our own, and none of others."""
    assert is_harmless(text.replace("\n", "")), ascii(text)
    assert "<a" not in text
    assert "<b>b</b>" not in text


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two runs, and of a tuning, with hostile names in hostile files."""
    root = tmp_path_factory.mktemp("runs")
    for sample, name in (("ddp-healthy", f"a{NAME}"), ("fsdp2-slow-loader-rank1", f"b{NAME}")):
        shutil.copytree(SAMPLES / sample, root / name, ignore=shutil.ignore_patterns("verdict.json"))
        Poisoner(root / name).write_all("ph", "cat", "ts", "phases", "schema_version", "name", "rows", "trainer")
    history = json.loads(json.dumps(asdict(HISTORY)))
    chosen = {place for place in places(history) if place[-1] not in ("<keys>", "outcome")}
    (root / FILE_NAME).write_text(json.dumps(poisoned(history, chosen)))
    return root


@pytest.mark.parametrize("name", [path for path in RUN_PAGES if path != "compare"])
def test_pages_of_a_run(name: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in sorted(runs.glob("[ab]*")):
        if name == "overview":
            check(page(run, monkeypatch))
        else:
            check(shown(name, run, monkeypatch))


def test_the_folder_of_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(runs.glob("[ab]*"))
    check(page(runs, monkeypatch))
    check(shown("compare", first, monkeypatch, runs))


@pytest.mark.parametrize("name", ["kernels", "timeline", "what-if"])
def test_names_of_kernels_and_operators(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_stalled_trace(tmp_path / "run", host=POISON)
    trace = folder / "rank0.json"
    text = trace.read_text()
    assert '"gemm"' in text
    trace.write_text(text.replace('"gemm"', json.dumps(f"gemm{POISON}")).replace('"Test GPU"', json.dumps(POISON)))
    check(page(folder, monkeypatch))
    check(shown(name, folder, monkeypatch))


def _list_of_runs() -> None:
    import sys
    from pathlib import Path

    from diag.app.views import runs

    root = Path(sys.argv[1])
    runs.show(root, sorted(path for path in root.iterdir() if path.is_dir()), lambda name: None)


def _tuning() -> None:
    import sys
    from pathlib import Path

    from diag.app.views import tuning
    from diag.tune.history import load

    history = load(Path(sys.argv[1]))
    assert history is not None
    tuning.show(Path(sys.argv[1]), history)


@pytest.mark.parametrize("draw", [_list_of_runs, _tuning])
def test_pages_of_a_folder(draw: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["main.py", str(runs)])
    check(AppTest.from_function(draw, default_timeout=PATIENCE_S).run())


def test_the_hang_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / NAME
    shutil.copytree(CAPTURED / "hang-collective-4-ranks-detail", folder)
    Poisoner(folder).write_all()
    for path in folder.rglob("*.txt"):
        path.write_text("".join(f"{line}{POISON}\n" for line in path.read_text().splitlines()))
    check(shown_hang(tmp_path, folder, monkeypatch))


def test_hostile_texts_of_nccl_ras_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hostile(_: int, in_json: bool) -> str:
        document = json.loads(as_json(job(Comm(list(range(8)), counts={7: {"AllReduce": 60}}), silent=(3,))))
        chosen = {place for place in places(document) if place[-1] not in ("hash", "<keys>")}
        document = poisoned(document, chosen)
        for comm in document["communicators"]:
            for rank in comm["ranks"]:
                rank["collective_counts"][POISON] = rank["rank"]
        return json.dumps(document)

    layout = write_ras_run(job(), tmp_path / "run", backend=None)
    with listening(speaks(hostile)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        test = shown_hang(tmp_path, layout.root, monkeypatch)
    assert test.table
    check(test)
    with listening(says(f"{POISON}\n".encode())) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        st.cache_resource.clear()
        test = shown_hang(tmp_path, layout.root, monkeypatch)
    assert "is not NCCL RAS" in test.caption[-1].value
    check(test)
    monkeypatch.delenv("NCCL_RAS_ADDR")
    for of_run in ({"backend": f"gloo{POISON}"}, {"host": f"node{POISON}"}):
        st.cache_resource.clear()
        layout = write_ras_run(job(), tmp_path / "run", **of_run)
        check(shown_hang(tmp_path, layout.root, monkeypatch))


def test_the_report(tmp_path: Path) -> None:
    root = write_run(tmp_path / NAME, slow_data_ms={1: 40})
    Poisoner(root).write_all("phases", "schema_version", "rows")
    rendered = render(plant(open_run(root), POISON), f"diag report '{POISON}'", "1")
    found = Parsed(rendered)
    without_plotly = re.sub(r"<script>/\*\*\n\* plotly\.js.*?</script>", "", rendered, flags=re.DOTALL)
    assert is_harmless(without_plotly)
    assert [link for link in found.all("a") if not link["href"].startswith("#")] == []
    assert "\\x1b]52" in found.text
    for label in strings(found.figures):
        check_label(label)


def test_plain_and_labels() -> None:
    assert of_markdown("see https://x.example/y") == ["https://x.example"]
    assert of_markdown(r"see https\://x.example/y") == ["https://x.example"]
    assert of_markdown("mail me@x.example or www.x.example") == ["me@x.example", "www.x.example"]
    assert of_markdown(":red[x] ![i](http://y)") != []
    for shown_text in (markup.plain(POISON), markup.prose(POISON), markup.prose(f"`{POISON}")):
        assert of_markdown(shown_text) == []
        assert is_harmless(shown_text.replace(_JOINER, ""))
    check_label(markup.label(POISON))
    assert "%{" not in markup.label("%{x}")


def test_a_label_in_a_figure_is_what_was_written() -> None:
    """Plotly decodes the entities."""
    figure = go.Figure(go.Bar(x=[1], y=[1], hovertext=[markup.label("a<b>&%{x}")]))
    assert figure.data[0].hovertext[0] == "a&lt;b&gt;&amp;%&#123;x}"
