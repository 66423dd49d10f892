"""The card of the first screen: one short headline with one share, and both causes of a mixed run."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from diag.api import Result, open_run
from diag.app.card import card_of
from diag.app.markup import plain
from diag.app.picture import picture_of
from diag.app.run_view import at_fault, path_of, view_of
from diag.app.theme import LIGHT
from diag.app.views.runs import row_of
from diag.diagnoses.shares import step_parts
from diag.model.steps import Bottleneck
from diag.rundir.runs import state_of
from diag.serve.server import SAMPLES
from diag.show.answer import print_answer
from diag.show.brief import as_issue
from diag.show.page import HOST_WAIT, STEP_TIME, TOKENS_PER_S, advice_of, page_of
from diag.words.formatting import spaced
from tests.app.shown import shown, text
from tests.samples import NAMES, opened_sample


@pytest.fixture
def mixed() -> Result:
    """Two causes of one run: all ranks', and one rank's."""
    result = opened_sample("fsdp2-slow-loader-rank1")
    loader = result.examination.findings[0]
    all_ranks = replace(loader, id="contended-host", title="All ranks wait for CPU cores: 63 ms a step", ranks=())
    headline = f"Mixed: {all_ranks.title[:1].lower()}{all_ranks.title[1:]}; and {loader.title[:1].lower()}"
    verdict = replace(
        result.verdict,
        bottleneck=Bottleneck.MIXED,
        cause=all_ranks.id,
        culprit_ranks=(),
        culprit_hosts=(),
        headline=f"{headline}{loader.title[1:]}.",
    )
    findings = (all_ranks, loader, *result.examination.findings[1:])
    return replace(result, verdict=verdict, examination=replace(result.examination, findings=findings))


@pytest.mark.parametrize("name", NAMES)
def test_a_headline_has_one_share(name: str) -> None:
    verdict = page_of(opened_sample(name)).verdict
    card = card_of(verdict)
    assert "largest cause" not in card.headline
    assert card.headline.count("%") <= 1
    assert len(card.headline) <= len(verdict.headline)


def test_its_share_is_that_of_the_cause() -> None:
    result = opened_sample("fsdp2-straggler-rank0")
    assert result.cause is not None
    assert f"({result.cause.share:.0%} of " in card_of(page_of(result).verdict).headline


def test_a_mixed_run_has_both_causes_and_what_to_do_about_each(mixed: Result) -> None:
    first, second = mixed.causes
    page = page_of(mixed)
    card = card_of(page.verdict)
    assert card.headline == "Mixed: two causes"
    assert card.causes == (f"{first.title}.", f"{second.title}.")
    assert (page.verdict.action, page.verdict.also) == (first.action, second.action)


def test_a_mixed_run_marks_the_rank_of_its_second_cause(mixed: Result) -> None:
    assert at_fault(mixed) == (1,)
    picture = picture_of(view_of(mixed), LIGHT)
    assert picture is not None
    assert [row["rank"] for row in picture["rows"] if row["fault"]] == [1]
    row = row_of(state_of(SAMPLES / "fsdp2-slow-loader-rank1"), mixed)
    assert row.why == mixed.verdict.headline
    assert row.culprit == "rank 1"


@pytest.mark.parametrize("name", ["fsdp2-straggler-rank0", "fsdp2-slow-loader-rank1"])
def test_the_critical_path_is_a_bar_as_long_as_the_step(name: str) -> None:
    result = opened_sample(name)
    picture = picture_of(view_of(result), LIGHT)
    assert picture is not None
    step_ms = float(result.examination.shares.dur_ns.mean()) / 1e6
    assert sum(picture["path"]["ms"]) == pytest.approx(step_ms, rel=0.01)
    assert sum(path_of(result).values()) == pytest.approx(
        sum(map(sum, step_parts(result.examination.shares).values())) / len(result.examination.shares.dur_ns)
    )
    assert picture["end"] >= step_ms


def test_steps_without_the_profiler_come_first() -> None:
    result = open_run(SAMPLES / "gpu-hf-trainer")
    longer = result.examination.longer
    assert longer is not None
    metrics = {metric.label: metric for metric in page_of(result).metrics}
    assert metrics[STEP_TIME].value.replace("\u00a0", " ") == f"{longer.untraced_ns / 1e6:.1f} ms"
    assert metrics[STEP_TIME].against.replace("\u00a0", " ") == f"{longer.traced_ns / 1e6:.1f} ms profiled"
    plain_rate, profiled = (
        float(each.split()[0].replace(",", "")) for each in (metrics[TOKENS_PER_S].value, metrics[TOKENS_PER_S].against)
    )
    assert plain_rate / profiled == pytest.approx(longer.traced_ns / longer.untraced_ns, rel=1e-4)
    assert (metrics[HOST_WAIT].value, metrics[HOST_WAIT].against) == ("about 28%", "48% profiled")
    assert "Host wait **about 28% (48% profiled)**" in as_issue(page_of(result), advice_of(result), "1")
    card = card_of(page_of(result).verdict)
    assert card.headline == "Host-bound (about 28% of 66.9\u00a0ms a step, in 53\u00a0steps without the profiler)."
    assert card.said.startswith("In profiled steps: the device is idle for 42 ms a step")


def test_the_page_has_the_long_headline_where_one_asks_why(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Path = SAMPLES / "fsdp2-straggler-rank0"
    said, verdict = text(shown("overview", run, monkeypatch)), page_of(open_run(run)).verdict
    assert said.index(plain(card_of(verdict).headline)) < said.index(plain(verdict.headline))


@pytest.mark.parametrize("name", NAMES)
def test_why_is_the_two_longest_parts_of_the_path(name: str) -> None:
    verdict, path = page_of(opened_sample(name)).verdict, sorted(path_of(opened_sample(name)).values(), reverse=True)
    card = card_of(verdict)
    told = [float(each.replace(",", "")) for each in re.findall(r"([\d,]*\d\.\d) ms of", card.why)]
    assert told == pytest.approx([ns / 1e6 for ns in path[: len(told)]], abs=0.06)
    assert card.why.removeprefix("Critical path: ").split(", ")[0] in verdict.why


def test_a_critical_finding_beside_the_cause_is_named_with_its_rank(mixed: Result) -> None:
    """Also where the first cause costs more than half as much again, so that the verdict is of one cause."""
    all_ranks, loader = mixed.examination.findings[:2]
    one = replace(
        mixed.verdict, bottleneck=Bottleneck.HOST, headline=f"Host-bound (48% of 298 ms a step): {all_ranks.title}."
    )
    result = replace(mixed, verdict=one)
    assert result.further[:1] == (loader,)
    assert [card.title for card in page_of(result).further][:1] == [loader.title]
    assert at_fault(result) == (1,)
    console = Console(file=io.StringIO(), width=110)
    print_answer(result, console)
    assert isinstance(console.file, io.StringIO)
    assert f"Also found: {loader.title}" in spaced(" ".join(console.file.getvalue().split()))
