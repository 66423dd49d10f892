"""A plan, and what the linter found in a configuration, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum, auto
from typing import Any

from msgspec import structs, to_builtins
from rich.console import Console
from rich.text import Text

from diag.collectors.layout import SCHEMA_VERSION
from diag.linting.model import Linted, Notice, NoticeSeverity, Translation
from diag.model.axes import bubble
from diag.planning.cluster import Topology
from diag.planning.measured import Compared, Measured
from diag.planning.plan import Plan, Row
from diag.planning.policy import PLANNING
from diag.planning.programs import plan_command
from diag.planning.shape import PUBLISHED
from diag.planning.throughput import Schedule
from diag.words import sentences
from diag.words.formatting import counted, share, size, spaced, visible
from diag.words.table import (
    DURATION,
    FLAG,
    GB,
    INDEX,
    MB,
    NUMBER,
    SECONDS,
    SHARE,
    WHOLE,
    Cell,
    Column,
    Table,
    table_of,
)
from diag.words.terminal import report_console

from .screen import Screen
from .table import print_table


def _speed(plan: Plan) -> str:
    """Why the step is not estimated; or what its times rest on."""
    speed = plan.speed
    if speed is None:
        if plan.topology.size("ep") > 1:
            return "The step time is not estimated with ep: the exchange of tokens has no model here."
        known = plan.cluster.tflop_s is not None
        why = "the known peak is for 16-bit arithmetic: give" if known else "name the GPUs (--gpu H100) or give"
        return f"The step time cannot be estimated: {why} --peak TFLOP/s."
    return (
        f"Step times come from the replay's cost model and are not measured. It assumes that compute alone reaches "
        f"{share(speed.mfu)} of {speed.peak / 1e12:g} TFLOP/s (--mfu, --peak)."
    )


def _print_assumed(plan: Plan, console: Console) -> None:
    """What the numbers assume, and published tables that count differently."""
    speed, recipe = plan.speed, plan.recipe
    if speed is not None:
        _line(
            console,
            f"Bandwidth: {size(plan.cluster.within)}/s within a host and {size(plan.cluster.across)}/s across "
            f"(--within, --across); latency: {speed.within_us:g} and {speed.across_us:g} us a hop (--latency-within, "
            "--latency-across).",
        )
    parts = f"{recipe.parameters} + {recipe.gradients} + {recipe.master} + {recipe.moments} = {recipe.total} bytes"
    _line(console, f"Recipe {recipe.name}: {parts} a parameter (parameters, gradients, fp32 copy, moments).")
    _line(
        console,
        f"GB per GPU. A strategy fits if its peak is at most {share(PLANNING.usable_memory_share)} of the GPU's "
        "memory; 1 GB is 10^9 bytes. A peak is the sum of the maximum of each part.",
    )
    _line(console, "Sent: bytes that each GPU sends in a step; transfer: how long that takes without overlap.")
    if plan.activations is not None:
        activations = plan.activations
        _line(
            console,
            f"Activations by formula: {size(activations.peak)} for {counted(plan.batch.tokens, 'token')} a micro-batch "
            f"(blocks {size(activations.blocks)}, recomputed at once {size(activations.working)}, "
            f"logits {size(activations.logits)}, their gradients {size(activations.loss)}), "
            f"checkpointing {plan.batch.checkpointing}.",
        )
    _line(console, "Published tables that count differently; do not mix them with this one:")
    for table in PUBLISHED:
        if table.each != recipe.each:
            so = f"{table.each.parameters} + {table.each.gradients} + {table.each.optimizer} = {table.each.total} bytes"
            _line(console, f"  {so}: {table.where}; {table.says}.")


def times_table(plan: Plan) -> Table:
    """The expected step of each strategy, and what it consists of."""
    rows = [(row, row.expected) for row in plan.rows if row.expected is not None]
    times = [time for _, time in rows]
    return table_of(
        "times",
        "",
        {
            Column("strategy", weight=0): [row.need.strategy.name for row, _ in rows],
            Column("fits", FLAG, weight=9): [row.fits for row, _ in rows],
            Column("step_ns", DURATION, label="step", weight=9): [time.step_ns for time in times],
            Column("compute_ns", DURATION, label="compute", weight=5): [time.compute_ns for time in times],
            Column("exposed_ns", DURATION, label="exposed comm", weight=7): [time.exposed_ns for time in times],
            Column("bubble_ns", DURATION, label="bubble", weight=4): [time.bubble_ns for time in times],
            Column("tokens_s", WHOLE, label="tokens/s/GPU", weight=6): [time.tokens_s for time in times],
            Column("mfu", SHARE, label="MFU", weight=7): [time.mfu for time in times],
        },
    )


def _likely(plan: Plan, parts: bool) -> str:
    """The likely peak of the chosen strategy, where each part counts only while it is alive; "" if it is not known."""
    if plan.likely is None or plan.chosen is None:
        return ""
    of_parts = ", ".join(f"{name} {size(count)}" for name, count in plan.likely.parts.items() if count)
    return (
        f"Likely peak with {plan.chosen.name}: {size(plan.likely.bytes)}, in {plan.likely.moment}"
        + (f": {of_parts}" if parts else "")
        + "."
    )


def _axes(plan: Plan) -> list[str]:
    """What each axis of the topology beside data parallelism sends, and costs."""
    topology, batch = plan.topology, plan.batch
    if topology.plain:
        return []
    row = next((row for row in plan.rows if row.need.strategy == plan.chosen), plan.rows[0])
    texts = []
    for axis in row.axes:
        where = "across hosts" if axis.across else "within a host"
        texts.append(f"{axis.axis}={topology.size(axis.axis)}: {size(axis.bytes)} a step and GPU, {where}.")
    stages = topology.size("pp")
    if stages > 1:
        chunks = batch.chunks if batch.schedule == Schedule.INTERLEAVED else 1
        texts.append(
            f"pp={stages}, {batch.schedule}: with equal stages {share(bubble(stages, batch.micro_batches, chunks))} of "
            f"the step is bubble at {counted(batch.micro_batches, 'micro-batch', 'micro-batches')}; memory as of "
            f"stage {row.stage}."
        )
    if topology.size("ep") > 1:
        texts.append("ep: tokens are taken to choose all experts equally often.")
    if not row.axes:
        texts.append(
            "Only the number of parameters of this model is known, so communication of tp, pp and cp is not counted."
        )
    return texts


def to_json(plan: Plan, topology: Topology | None) -> str:
    """The document: bytes, seconds and names; what is not known is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "plan": {
            "model": {"name": plan.size.name, "parameters": plan.size.parameters},
            "recipe": {**to_builtins(plan.recipe), "total": plan.recipe.total},
            "cluster": to_builtins(plan.cluster),
            "topology": topology.axes if topology else None,
            "batch": to_builtins(plan.batch),
            "activations": _activations(plan),
            "outside_states": plan.outside,
            "usable_share": PLANNING.usable_memory_share,
            "fewest_gpus": {"bound": plan.bound, "estimate": plan.estimate},
            "strategies": [_row(row) for row in plan.rows],
            "recommended": plan.chosen.name if plan.chosen else None,
            "reasons": list(plan.reasons),
            "assumed": to_builtins(plan.speed) if plan.speed else None,
            "likely_peak": to_builtins(plan.likely) if plan.likely else None,
        },
    }
    return json.dumps(document, indent=1)


def _activations(plan: Plan) -> dict[str, int] | None:
    activations = plan.activations
    return (
        {**to_builtins(activations), "total": activations.total, "peak": activations.peak}
        if activations is not None
        else None
    )


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.need.strategy.name,
        "about": row.need.strategy.about,
        "shards": row.need.shards,
        "states": {**to_builtins(row.need.states), "total": row.need.states.total},
        "gathered": row.need.gathered,
        "buffers": row.need.buffers,
        "peak": row.peak,
        "fits": row.fits,
        "traffic": {**to_builtins(row.traffic), "total": row.traffic.total},
        "outside": row.outside,
        "stage": row.stage,
        "axes": [{**to_builtins(axis), "seconds": axis.seconds} for axis in row.axes],
        "expected": to_builtins(row.expected) if row.expected else None,
    }


def print_plan(
    plan: Plan,
    topology: Topology | None,
    console: Console | None = None,
    *,
    tables: bool = False,
    assumed: bool = False,
) -> None:
    """The recommendation, one row a strategy, and the likely peak. ``tables``: the parts of memory and of the step
    instead of that one table; ``assumed``: what the numbers assume, and leave out."""
    console = report_console(console)
    cluster, recipe = plan.cluster, plan.recipe
    if plan.chosen is not None:
        answer = Text(f"Use {plan.chosen.name} ({plan.chosen.about})", "bold green")
    else:
        answer = Text("No strategy fits", "bold yellow")
    answer += Text(spaced(f": {'; '.join(plan.reasons)}."))
    device = f"{cluster.gpu} of {size(cluster.memory)}" if cluster.gpu else f"GPU of {size(cluster.memory)}"
    named = f"{plan.size.name}, " if plan.size.shape is not None else ""
    about = Text(
        spaced(
            f"{named}{plan.size.parameters:,} parameters on {cluster.gpus} x {device}, {cluster.per_host} a host"
            + (f"; {topology}" if topology else "")
            + f"; recipe {recipe.name}, {recipe.total} bytes a parameter."
        )
    )
    rest = [option for option, given in (("--tables", tables), ("--assumed", assumed)) if not given]
    more = Text(sentences.MORE_BEHIND_THE_PLAN(options=" ".join(rest)), "dim")
    if not tables and not assumed:
        _print_in_short(plan, console, answer, about)
        console.print(more)
        return
    console.print(answer)
    console.print(about)
    for text in _axes(plan):
        _line(console, text)
    console.print()
    for table in (plan_table(plan), times_table(plan)) if tables else (strategies_table(plan),):
        if table.rows:
            print_table(console, table)
            console.print()
    for sentence in (_speed(plan), _fewest(plan, parts=tables), _not_counted(plan)):
        if sentence:
            _line(console, sentence)
    if assumed:
        _print_assumed(plan, console)
    if rest:
        console.print(more)


class _Place(IntEnum):
    HEAD = auto()
    STRATEGIES = auto()
    LIMITS = auto()


def _print_in_short(plan: Plan, console: Console, answer: Text, about: Text) -> None:
    """In ten rows with the one that says where more is: the answer, what has no number and why, the strategies, those
    that fit first, and what the times rest on."""
    screen = Screen(console)
    screen.left -= 1
    screen.put(_Place.HEAD, answer)
    screen.put(_Place.HEAD, about)
    limits = [_not_counted(plan), *(() if plan.speed is not None else (_speed(plan),))]
    for sentence in filter(None, (*limits, *_axes(plan))):
        screen.put_if_room(_Place.LIMITS, Text(spaced(sentence)))
    rows = sorted(range(len(plan.rows)), key=lambda place: (not plan.rows[place].fits, place))
    table = strategies_table(plan)
    shown = sorted(rows[: max(0, screen.left - 1)])
    if shown:
        at_fault = frozenset(shown.index(place) for place in table.at_fault if place in shown)
        of_rows = tuple(table.rows[place] for place in shown)
        screen.put_table(_Place.STRATEGIES, structs.replace(table, rows=of_rows, at_fault=at_fault))
    for sentence in filter(None, (_fewest(plan), *([_speed(plan)] if plan.speed is not None else []))):
        screen.put_if_room(_Place.LIMITS, Text(spaced(sentence)))
    screen.print()


def _fewest(plan: Plan, parts: bool = False) -> str:
    """The likely peak of the chosen strategy, and how few GPUs are enough."""
    texts = [_likely(plan, parts=parts)]
    if plan.bound is not None:
        texts.append(f"The states do not fit on fewer than {counted(plan.bound, 'GPU')}, even if fully sharded.")
    if plan.estimate is not None:
        texts.append(f"ZeRO-3 fits on {counted(plan.estimate, 'GPU')} or more (estimate).")
    return " ".join(filter(None, texts))


def _not_counted(plan: Plan) -> str:
    if plan.activations is None and not plan.outside:
        return "Only the number of parameters of this model is known, so activations are not counted."
    return ""


def strategies_table(plan: Plan) -> Table:
    """Whether each strategy fits, what it sends, and the step that is expected with it."""
    rows, times = plan.rows, [row.expected for row in plan.rows]
    return table_of(
        "strategies",
        "",
        {
            Column("strategy", weight=0): [row.need.strategy.name for row in rows],
            Column("fits", FLAG, weight=9): [row.fits for row in rows],
            Column("peak", GB, weight=9): [row.peak for row in rows],
            Column("states", GB, weight=3): [row.need.states.total for row in rows],
            Column("sent", GB, weight=4): [row.sent for row in rows],
            Column("step_ns", DURATION, label="step", weight=9): [time and time.step_ns for time in times],
            Column("exposed_ns", DURATION, label="exposed comm", weight=7): [
                time and time.exposed_ns for time in times
            ],
            Column("bubble_ns", DURATION, label="bubble", weight=4): [time and time.bubble_ns for time in times],
            Column("tokens_s", WHOLE, label="tokens/s/GPU", weight=6): [time and time.tokens_s for time in times],
            Column("mfu", SHARE, label="MFU", weight=7): [time and time.mfu for time in times],
        },
    )


def plan_table(plan: Plan) -> Table:
    """What each strategy needs on a GPU, and what it sends."""
    rows = plan.rows
    states = [row.need.states for row in rows]
    return table_of(
        "plan",
        "",
        {
            Column("strategy", weight=0): [row.need.strategy.name for row in rows],
            Column("states", GB, weight=8): [of_row.total for of_row in states],
            Column("parameters", GB, weight=4): [of_row.parameters for of_row in states],
            Column("gradients", GB, weight=4): [of_row.gradients for of_row in states],
            Column("optimizer", GB, weight=4): [of_row.optimizer for of_row in states],
            Column("gathered", GB, weight=5): [row.need.gathered + row.need.buffers for row in rows],
            Column("outside", GB, weight=5): [row.outside for row in rows],
            Column("peak", GB, weight=9): [row.peak for row in rows],
            Column("fits", FLAG, weight=9): [row.fits for row in rows],
            Column("sent", GB, weight=6): [row.sent for row in rows],
            Column("seconds", SECONDS, label="transfer", weight=7): [row.seconds for row in rows],
        },
        symbol="GB",
    )


def _line(console: Console, text: str) -> None:
    console.print(Text(spaced(text)))


# -- plan measured -----------------------------------------------------------------------------------------------------
#
# Measured peaks next to the estimate, as text and as JSON.


def measured_to_json(measured: Measured, path: str) -> str:
    """The document: bytes; errors are the estimate's, relative; what is not known is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "measured": {
            "run": path,
            "how": measured.how,
            "ranks": [to_builtins(rank) for rank in measured.ranks],
            "missing": list(measured.missing),
            "estimate": to_builtins(measured.estimate) if measured.estimate is not None else None,
            "unknown": measured.unknown or None,
            "compared": [_measured_row(row) for row in measured.rows],
        },
    }
    return json.dumps(document, indent=1)


def _measured_row(row: Compared) -> dict[str, Any]:
    return {**to_builtins(row), "error": row.error}


def print_measured(measured: Measured, path: str, console: Console | None = None) -> None:
    """The error of the estimate first, then the components, then what the estimate consists of."""
    console = report_console(console)
    fullest = max(measured.ranks, key=lambda rank: rank.peak)
    if measured.estimate is None or measured.step is None:
        console.print(Text(spaced(f"Measured: {size(fullest.peak)} on rank {fullest.rank}, {measured.how}.")))
        console.print(Text(spaced(f"No estimate: {measured.unknown}.")))
        return
    peak, step = measured.rows[0], measured.step
    answer = Text(
        f"The estimate is off by {_signed(peak.error)}", "bold green" if abs(peak.error) <= 0.1 else "bold yellow"
    )
    rest = (
        f": {size(peak.estimate)} estimated, {size(peak.measured)} measured on rank {peak.rank}, the fullest of "
        f"{len(measured.ranks)}."
    )
    console.print(answer + Text(spaced(rest)))
    console.print(
        Text(
            spaced(
                f"{path}: {step.shape.parameters:,} parameters, recipe {step.recipe.name}, {step.sequences} sequences "
                f"of {step.length} tokens a micro-batch, states in {counted(step.shards, 'shard')}. "
                f"Measured: {measured.how}."
            )
        )
    )
    console.print()
    print_table(console, measured_table(measured))
    console.print()
    parts = ", ".join(f"{name} {MB.text(count)}" for name, count in measured.estimate.parts.items() if count)
    console.print(Text(spaced(f"Estimated at its peak, in {measured.estimate.moment}: {parts} MB.")))
    for line in measured.missing:
        console.print(Text(spaced(f"Not measured: {line}.")))


def measured_table(measured: Measured) -> Table:
    """The estimate of each component next to what was measured."""
    rows = measured.rows
    return table_of(
        "measured",
        "",
        {
            Column("component", label="in MB", weight=0): [row.name for row in rows],
            Column("estimate", MB): [row.estimate for row in rows],
            Column("measured", MB): [row.measured for row in rows],
            Column("error", NUMBER): [Cell(row.error, _signed(row.error)) for row in rows],
            Column("rank", INDEX): [row.rank for row in rows],
        },
        symbol="MB",
    )


def _signed(error: float) -> str:
    return f"{error:+.1%}" if abs(error) >= 0.0005 else "0.0%"


# -- lint --------------------------------------------------------------------------------------------------------------
#
# What the linter found, as text and as JSON.

_STYLE = {NoticeSeverity.ERROR: "bold red", NoticeSeverity.WARNING: "bold yellow", NoticeSeverity.NOTE: "bold cyan"}
_INDENT = 9  # the width of "warning" and two blanks


def lint_to_json(files: Sequence[Linted]) -> str:
    """The document: every notice of every file; a line that is not known is null."""
    return json.dumps({"schema_version": SCHEMA_VERSION, "lint": to_builtins(list(files))}, indent=1)


def print_lint(
    files: Sequence[Linted], console: Console | None = None, gpus: int | None = None, per_host: int = 8
) -> None:
    """For each file: how many notices of each severity, the notices, what a program's own options set, FSDP1's
    equivalents, and what could not be checked."""
    console = report_console(console)
    for index, linted in enumerate(files):
        if index:
            console.print()
        _print_file(console, linted, gpus, per_host)


def _print_file(console: Console, linted: Linted, gpus: int | None, per_host: int) -> None:
    console.print(Text(visible(linted.path), "bold") + Text(spaced(f" ({linted.format}): {_counts(linted)}")))
    for notice in linted.notices:
        console.print()
        _print_notice(console, notice, linted.path)
    if linted.settings is not None:
        console.print()
        console.print(Text("What it sets", "bold"))
        for line in linted.settings.told():
            _indented(console, Text(visible(line)), 2)
        if command := plan_command(linted.settings, gpus, per_host):
            console.print()
            console.print(Text("What fits, and what it sends", "bold"))
            console.print(Text(f"  {visible(command)}"), soft_wrap=True)
    if linted.translations:
        console.print()
        console.print(Text("FSDP1, and what FSDP2 has for each line", "bold"))
        for row in linted.translations:
            _print_equivalent(console, row)
    if linted.could_not_look:
        console.print()
        console.print(Text("Not checked", "bold"))
        for unseen in linted.could_not_look:
            _indented(console, Text(visible(f"{unseen.what}: {unseen.check}.")), 2)


def _counts(linted: Linted) -> str:
    counts = [sum(notice.severity is severity for notice in linted.notices) for severity in NoticeSeverity]
    texts = [counted(count, severity) for count, severity in zip(counts, NoticeSeverity, strict=True) if count]
    return ", ".join(texts) or "no notices"


def _print_notice(console: Console, notice: Notice, path: str) -> None:
    where = f"line {notice.line}" if notice.line else ""
    if notice.path != path:
        where = f"{notice.path}, {where}" if where else notice.path
    head = Text(f"{notice.severity:<{_INDENT}}", _STYLE[notice.severity])
    named = ", ".join(part for part in (notice.key or "the file", where) if part)
    console.print(head + Text(visible(named), "bold"))
    _indented(console, Text(visible(notice.text)))
    _indented(console, Text("write: ", "dim") + Text(visible(notice.instead), "cyan"))
    _indented(console, Text(visible(f"see: {notice.source}"), "dim"))


def _print_equivalent(console: Console, row: Translation) -> None:
    where = f"line {row.line}" if row.line else ""
    console.print(Text(f"{where:<{_INDENT}}", "dim") + Text(visible(f"{row.key} = {row.value}"), "bold"))
    for name, code in (("config: ", row.config), ("python: ", row.python)):
        for index, line in enumerate(code.split("\n")):
            head = Text(name if index == 0 else " " * len(name), "dim")
            _indented(console, head + Text(visible(line), "cyan"))


def _indented(console: Console, text: Text, blanks: int = _INDENT) -> None:
    """Prints the text indented, without blanks at the ends of its lines."""
    for line in text.wrap(console, console.width - blanks):
        line.rstrip()
        console.print(Text(" " * blanks) + line, no_wrap=True)
