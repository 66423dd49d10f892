"""A result that says a given text in every place where somebody else's words can get into a page."""

from __future__ import annotations

from diag.api import Result
from diag.model import Gap
from diag.model.steps import Advice, Evidence, Finding, NotLooked, Recommendation, Risk
from tests.copies import replace


def plant(result: Result, text: str) -> Result:
    """The same numbers; in headline, findings, evidence, advice, coverage and the steps' notes the text is added, and
    it is what the run calls its hosts, versions, model and strategy."""
    evidence = (Evidence(f"rows {text}", 1.0, f"unit {text}"),)
    findings = tuple(_finding(finding, text) for finding in result.examination.findings)
    coverage = replace(
        result.coverage,
        skipped=(Gap(f"/data/{text}/trace.json", f"reason {text}"),),
        not_looked=(NotLooked("question", f"because {text}"),),
        notes=(f"note {text}",),
    )
    attribution = replace(
        result.attribution, steps=tuple(replace(step, note=step.note and text) for step in result.attribution.steps)
    )
    manifest = result.tables.manifest
    assert manifest is not None
    tables = replace(
        result.tables,
        manifest=replace(
            manifest, strategy=text, backend=text, model={"preset": text}, versions={"torch": text, text: "1"}
        ),
        gaps=coverage.skipped,
    )
    planted = replace(
        result,
        attribution=attribution,
        tables=tables,
        examination=replace(result.examination, findings=findings, not_found=(f"question {text}",)),
        coverage=coverage,
        verdict=replace(result.verdict, headline=f"headline {text}", culprit_hosts=(text,)),
    )
    advice = Advice(
        id="wider",
        finding=f"finding {text}",
        knob="width",
        change=f"change {text}",
        predicted_gain_ns=(-1_000_000, 2_000_000, 3_000_000),
        memory_delta_bytes=1_000_000,
        risk=Risk.NUMERICS,
        command=f"diag run --data '{text}' --out={text!r}" if "'" not in text else "",
        gain_share=0.02,
        code={f"api {text}": f"code {text}"},
        assumptions=(f"assumption {text}",),
        evidence=evidence,
    )
    vars(planted)["recommendation"] = Recommendation((advice,), (), 0.01)
    return planted


def _finding(finding: Finding, text: str) -> Finding:
    return replace(
        finding,
        title=f"title {text}",
        action=f"action {text}",
        evidence=(*finding.evidence, Evidence(f"rows {text}", 1.0, f"unit {text}")),
    )
