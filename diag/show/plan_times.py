"""What a plan says of time and of the axes, as text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from diag.model.bubble import bubble
from diag.plan.pipeline import Schedule
from diag.plan.result import Plan
from diag.words.cells import print_columns
from diag.words.formatting import counted, duration, share, size, spaced


def print_times(plan: Plan, console: Console) -> None:
    """Step, exposed communication, tokens and MFU of each strategy, and what was assumed for them."""
    _axes(plan, console)
    speed = plan.speed
    if speed is None:
        known = plan.cluster.tflop_s is not None
        why = "the known peak is of 16-bit arithmetic: give" if known else "name the GPUs (--gpu H100) or give"
        _line(console, f"How long a step takes cannot be told: {why} --peak TFLOP/s.")
        return
    rows = [(row, row.expected) for row in plan.rows if row.expected is not None]
    columns = {
        "strategy": [row.need.strategy.name for row, _ in rows],
        "fits": ["yes" if row.fits else "no" for row, _ in rows],
        "step": [_ms(time.step_ns) for _, time in rows],
        "compute": [_ms(time.compute_ns) for _, time in rows],
        "exposed comm": [_ms(time.exposed_ns) for _, time in rows],
        "bubble": [_ms(time.bubble_ns) for _, time in rows],
        "tokens/s/GPU": [f"{time.tokens_s:,.0f}" for _, time in rows],
        "MFU": [share(time.mfu) for _, time in rows],
    }
    print_columns(console, columns, left=("strategy",), more=0)
    console.print()
    _line(
        console,
        f"Times by the replay's cost model, not measured. Assumed: computation alone reaches {share(speed.mfu)} of "
        f"{speed.peak / 1e12:g} TFLOP/s (--mfu, --peak); {size(plan.cluster.within)}/s within a host and "
        f"{size(plan.cluster.across)}/s across (--within, --across); {speed.within_us:g} and {speed.across_us:g} us a "
        "hop (--latency-within, --latency-across).",
    )


def print_likely(plan: Plan, console: Console) -> None:
    """The peak of the chosen strategy with everything alive only as long as it is."""
    if plan.likely is not None and plan.chosen is not None:
        parts = ", ".join(f"{name} {size(count)}" for name, count in plan.likely.parts.items() if count)
        _line(
            console,
            f"The peaks above add up the most of everything. Likely at once with {plan.chosen.name}: "
            f"{size(plan.likely.bytes)}, in {plan.likely.moment}: {parts}.",
        )


def _axes(plan: Plan, console: Console) -> None:
    topology, batch = plan.topology, plan.batch
    if topology.plain:
        return
    row = next((row for row in plan.rows if row.need.strategy == plan.chosen), plan.rows[0])
    for axis in row.axes:
        where = "across hosts" if axis.across else "within a host"
        _line(console, f"{axis.axis}={topology.size(axis.axis)}: {size(axis.bytes)} a step and GPU, {where}.")
    stages = topology.size("pp")
    if stages > 1:
        chunks = batch.chunks if batch.schedule == Schedule.INTERLEAVED else 1
        _line(
            console,
            f"pp={stages}, {batch.schedule}: with equal stages {share(bubble(stages, batch.micro_batches, chunks))} of "
            f"the step is bubble at {counted(batch.micro_batches, 'micro-batch', 'micro-batches')}; memory as of "
            f"stage {row.stage}.",
        )
    if topology.size("ep") > 1:
        _line(console, "ep is checked against the other axes; the tables count experts as if each rank had them all.")
    if not row.axes:
        _line(console, "Of this model only the number of parameters is known: what tp, pp and cp send is not counted.")


def _ms(ns: int) -> str:
    return spaced(duration(ns)) if ns else "0"


def _line(console: Console, text: str) -> None:
    console.print(Text(spaced(text)))
