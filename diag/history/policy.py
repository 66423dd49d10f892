"""Thresholds of a run's history: which changes and incidents are told."""

from __future__ import annotations

from diag.policy import Topic, threshold


class History(Topic, name="history"):
    """When the step time of a run changed."""

    least_steps = threshold(20, "steps", "chosen", "of a new level of the step time, and of the one before it")
    least_sums = threshold(4, "sums", "chosen", "the same, where only sums over several steps are known")
    least_noise = threshold(0.01, "fraction", "chosen", "of the step time: sums that differ by less are alike")
    several_runs = threshold(2, "runs", "chosen", "in which a host was at fault")
    least_change = threshold(0.05, "fraction", "chosen", "of the step time: as a finding that is worth a warning")
    compared_steps = threshold(
        400, "steps", "chosen", "at most, on each side of a change, whose costs are compared to find its cause"
    )
    least_compared = threshold(5, "steps", "chosen", "or sums, of each side, at least")
    most_causes_of_many = threshold(
        3,
        "changes",
        "chosen: each takes 6 s of CPU for 24,576 ranks",
        "the newest ones of very many ranks: their causes",
    )
    cause_share = threshold(0.5, "fraction", "chosen", "of a change: what makes less of it is not called its cause")
    chance = threshold(
        1e-4, "probability", "chosen", "that a step time without a change looks like one, over all stretches looked at"
    )
    trimmed_share = threshold(
        0.1,
        "fraction",
        "chosen",
        "of the steps, the longest: evaluations and checkpoints are no level of the step time",
    )
    longer_side = threshold(
        4, "times", "chosen", "of a change's two sides, so many times the shorter one is looked at: it is seen, too"
    )
    most_score = threshold(6.0, "deviations", "chosen", "of a sum from the others: outliers are cut")
    deviation_of_differences = threshold(
        1.05,
        "times",
        "source: the normal distribution",
        "the standard deviation over the median difference of two normal values",
    )
    autocorrelation_times = threshold(
        5.0, "times", "source: Sokal 1997", "the autocorrelation is summed up over so many autocorrelation times"
    )
    telling_parts = threshold(
        8, "parts", "chosen", "of the series: stretches that are as long tell the autocorrelation time of its noise"
    )
    most_values = threshold(
        4_096, "values", "chosen", "looked at together; of more steps, values are means over several, in half a second"
    )


HISTORY = History()
