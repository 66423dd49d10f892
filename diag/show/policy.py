"""How much of each table and list is shown."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Page(Topic, name="page"):
    """How much a report shows, in the terminal, in a page and in JSON."""

    named_parts_share = threshold(0.8, "fraction", "chosen", "of the difference: the named parts explain so much of it")
    named_change_share = threshold(
        0.1, "fraction", "chosen", "of the step: a part that changes so much is named, although the step is as long"
    )
    busier_by = threshold(
        1.5, "times", "chosen", "as many threads ready to run: on one machine the median of healthy runs varied by less"
    )
    most_settings_named = threshold(3, "settings", "chosen", "in a sentence")
    most_cross_check_ranks = threshold(16, "ranks")
    most_cross_check_edges = threshold(8, "edges")
    most_cross_check_sequences = threshold(5, "sequences")
    most_cross_check_kernels = threshold(3, "kernels")
    cross_check_name_width = threshold(80, "columns")
    cross_check_kernel_width = threshold(32, "columns")
    most_json_rows = threshold(30, "rows", "chosen", "kernels, and modules of one source")
    most_json_collectives = threshold(100, "rows")
    most_json_path_rows = threshold(200, "rows")
    least_json_culprit_share = threshold(
        0.01,
        "fraction",
        "chosen",
        "of a step of a long run that is not kept in detail: a culprit that costs less is left out",
    )
    most_named_differences = threshold(6, "rows", "chosen", "of the collectives, kernels or modules that differ most")
    most_snapshot_rows = threshold(6, "rows")
    most_snapshots_named = threshold(4, "snapshots")
    most_changes_named = threshold(2, "changes", "chosen", "of those that would lower the peak of a device's memory")
    most_notebook_findings = threshold(8, "findings")
    most_gaps = threshold(50, "gaps", "chosen", "listed on a page")
    most_gaps_in_short = threshold(3, "gaps", "chosen", "listed with an answer")
    equal_gain_and_cost_share = threshold(
        0.05, "fraction", "chosen", "a gain and a cost that differ by less need no explanation"
    )
    history_rows = threshold(8, "rows", "chosen", "of the step time over a run, about")
    most_json_stretches = threshold(500, "rows", "chosen", "of the step time over a run, about")
    most_changes = threshold(8, "changes", "chosen", "of the step time, the newest")
    most_incidents = threshold(5, "incidents", "chosen", "of an attempt: those that cost most")
    most_ranks = threshold(16, "ranks")
    ranks_that_matter = threshold(
        3, "ranks", "chosen", "of more ranks: those at fault, and those that the others wait for"
    )
    least_part_share = threshold(
        0.001, "fraction", "chosen", "of the step: a part that is smaller in both runs has no row in their comparison"
    )
    most_other_findings = threshold(2, "findings", "chosen", "with a line of an answer: those that cost most")
    most_notes_in_short = threshold(3, "notes", "chosen", "printed with an answer")
    rows_of_answer = threshold(10, "rows", "chosen", "of an answer, as far as it shows more than the verdict")
    rows_of_warnings = threshold(2, "rows", "chosen", "of an answer: data that is missing, and notes")
    rows_to_do = threshold(2, "rows", "chosen", "of an answer: what to do, in as many whole sentences as fit")
    rows_of_advice = threshold(2, "rows", "chosen", "of an answer: a change, and what it saves and costs")
    most_stalls = threshold(8, "stalls", "chosen", "on a page")
    most_groups_with_sentence = threshold(4, "groups", "chosen", "that have a sentence")
    most_stall_lines = threshold(3, "stalls", "chosen", "stalls in a report: how many, and the least part of the step")
    stall_line_share = threshold(0.05, "fraction", "chosen", "of the step: a shorter stall has no line")
    host_chars = threshold(80, "characters")
    bundle_file_bytes = threshold(
        256 << 20, "bytes", "chosen", "of one unpacked file of a bundle: redaction holds it in memory several times"
    )
    bundle_log_bytes = threshold(1 << 20, "bytes", "chosen", "of a log in a bundle, its end")
    redacted_chars = threshold(
        2,
        "characters",
        'chosen: a shorter name is not replaced in running text: "a" would be replaced in every sentence',
    )
    most_text_rows = threshold(20, "rows")
    most_job_paths = threshold(4, "paths", "chosen", "of a job that is opened by its files, on a line")
    most_path_chars = threshold(40, "characters")
    log_line_rows = threshold(2, "rows", "chosen", "of a line from a log")
    most_line_chars = threshold(2000, "characters", "chosen", "of a line from a log, where all evidence is printed")
    most_evidence_kinds = threshold(3, "kinds", "chosen", "of lines from logs, printed with an answer")
    shape_chars = threshold(60, "characters", "chosen", "messages that begin alike are of one kind")
    most_frames = threshold(8, "frames")
    most_innermost_frames = threshold(3, "frames", "chosen", "of a rank's stack, printed with an answer")


PAGE = Page()


class Svg(Topic, name="svg", fixed=True):
    """Sizes of figures that need no script."""

    row_px = threshold(22, "pixels")
    bar_px = threshold(16, "pixels")
    name_px = threshold(124, "pixels", "chosen", 'before a row: room for "rank 1023, at fault"')
    end_px = threshold(64, "pixels", "chosen", "behind a row: room for a duration")


SVG = Svg()
