"""How much the dashboard shows, how often it reads, and the sizes of its figures."""

from __future__ import annotations

from diag.policy import Topic, threshold


class Dashboard(Topic, name="dashboard", fixed=True):
    """How much the dashboard shows, and how often it reads a run."""

    imports_bytes = threshold(1 << 14, "bytes", "chosen", "of a script of Streamlit's page: its imports are in these")
    most_folders_cached = threshold(2, "folders", "chosen", "folders whose listing is cached")
    cpu_share = threshold(
        0.02,
        "fraction",
        "chosen: the share of a core that analysing and drawing a live run may take on average, and the "
        "CPU time that may be saved up. So a page is soon drawn again after it was opened, and later "
        "every half minute",
    )
    looks_share = threshold(
        0.1, "fraction", "chosen: of the time, that looks at the state of a run of many ranks may take"
    )
    quick_look_s = threshold(0.1, "s", "chosen: a look that is shorter is always taken; of 300 ranks")
    longest_saved_cpu_s = threshold(2.0, "s")
    least_between_analyses_s = threshold(3.0, "s", "chosen", "from one analysis to the next")
    most_runs_open = threshold(8, "runs")
    live_steps = threshold(
        300,
        "steps",
        "chosen",
        "newest steps that are analysed while a run trains: half a second of CPU time for two ranks",
    )
    decimals_of_address = threshold(3, "digits", "chosen", "of numbers in the address")
    most_runs_compared = threshold(6, "runs", "chosen", "by name: as many columns as a page has room for")
    most_runs_in_figure = threshold(12, "runs", "chosen", "in one figure")
    most_changes_drawn = threshold(8, "rows", "chosen", "of names that differ between two runs; the table has all")
    most_points_of_spark = threshold(60, "points", "chosen", "of the small curve in a row of the list of runs")
    most_points_of_curve = threshold(400, "points", "chosen", "of a curve")
    most_incidents_listed = threshold(12, "incidents", "chosen", "on the page of the history: those that cost most")
    most_steps_opened = threshold(20, "steps", "chosen", "of an incident, on the timeline")
    cut_curve_at = threshold(
        1.3, "times", "chosen", "times the highest of the later steps: the first steps, which take longer, are cut off"
    )
    first_steps = threshold(5, "steps")
    single_values_cut_at = threshold(
        5, "times", "chosen", "times the median: single values above it, as of a stall, leave the axis to the others"
    )
    most_values_cut = threshold(0.02, "fraction", "chosen", "of a curve: more of them are what the run is like")
    most_step_labels = threshold(
        12, "labels", "chosen", "at an axis of steps: with two digits each they do not touch on a phone"
    )
    most_labelled_ranks = threshold(30, "ranks")
    cut_step_at = threshold(
        2, "times", "chosen", "times the longest counted step: uncounted steps that are longer are cut off"
    )
    most_cut_steps_labelled = threshold(12, "steps", "chosen", "cut-off steps that are labelled with their length")
    least_difference_ns = threshold(10_000, "ns", "chosen: a part that differs by less on every rank is not shown")
    equal_ranks_share = threshold(0.02, "fraction", "chosen", "of a step: ranks of a healthy run differ by as much")
    full_scale_share = threshold(
        0.1, "fraction", "chosen", "of a step: smaller differences and waits do not fill a figure"
    )
    most_bars = threshold(
        3000,
        "bars",
        "chosen: figures with up to about 3,000 marks draw bars. More would stall the browser: a heat map "
        "or an area instead",
    )
    memory_picture_px = threshold(380, "pixels", "chosen", "the place of memory over time until it is in view")
    named_bar_px = threshold(38, "pixels", "chosen", "a bar with its name above it")
    named_bar_share = threshold(0.4, "fraction", "chosen", "of that place that the bar takes")
    menu_px = threshold(256, "pixels", "chosen", "width of the menu: names of runs fit; Streamlit's own is 300")
    figure_px = threshold(450, "pixels", "chosen", "the place of another figure until it is in view for the first time")
    memory_curve_px = threshold(360, "pixels", "chosen", "height of a curve of memory without categories")
    live_curves_px = threshold(220, "pixels", "chosen", "height of the curves of a run on the overview")
    curves_of_runs_px = threshold(560, "pixels", "chosen", "height of the curves of several runs: four quantities")
    compared_curves_px = threshold(240, "pixels", "chosen", "height of the curves of two compared runs")
    most_rank_bars = threshold(64, "bars")
    most_bars_of_ranks = threshold(32, "bars", "chosen", "beside the verdict; of more ranks, a grid of hosts")
    most_rows_of_many_ranks = threshold(
        20, "rows", "chosen", "of figures that cannot show all ranks: as many names as can be read below each other"
    )
    ranks_in_a_row = threshold(16, "ranks", "chosen", "of that grid, where no hosts are known")
    most_columns = threshold(1500, "columns")
    most_cells = threshold(
        500_000,
        "cells",
        "chosen: cells of a heat map of ranks by steps: two megabytes, which thousands of ranks would "
        "otherwise exceed many times",
    )
    least_columns_of_map = threshold(50, "columns")
    most_table_ranks = threshold(64, "ranks")
    timelines_kept = threshold(4, "runs", "chosen", "runs, or states of a run that trains, that pages still show")
    timeline_ranks_kept = threshold(2, "ranks")
    searches_kept = threshold(4, "searches")
    turn_s = threshold(0.002, "s", "chosen", "pause between two ranks while events are counted")
    most_timeline_ranks = threshold(128, "ranks", "chosen", "in one answer")
    most_path_pieces = threshold(1500, "pieces", "chosen", "of the critical path in a window: about one a pixel")
    most_launches = threshold(300, "launches", "chosen", "in a window: more arrows would cover what they point at")
    most_counter_pieces = threshold(800, "pieces", "chosen", "of a counter in a window: about one a pixel")
    most_ranks_together = threshold(
        64, "ranks", "chosen", "whose traces the browser hands to Perfetto together; `diag open` takes any number"
    )
    most_search_chars = threshold(200, "characters", "chosen", "characters of a search")
    most_name_chars = threshold(2000, "characters", "chosen", "characters of a name that are sent")
    most_collective_bars = threshold(12, "bars")
    most_exchanges = threshold(64, "rows")
    least_legend_share = threshold(0.001, "fraction", "chosen", "of all bars: a part below has no legend entry")
    cut_axis_from = threshold(
        4, "times", "chosen", "the axis is cut off if its lowest value is at least this many times the values' range"
    )
    most_evidence_chars = threshold(400, "characters")
    most_frames = threshold(30, "frames")
    most_frames_beside = threshold(6, "frames", "chosen", "of the stack on the first page; the hang page has the rest")
    most_steps_beside = threshold(3, "steps", "chosen", "of what to do about a standstill, on the first page")
    path_parts = threshold(3, "parts", "chosen", "ranks/00003/log.txt")
    ras_every_s = threshold(3.0, "s", "chosen", "between two looks at the last report; NCCL RAS is queried less often")
    ras_wait_s = threshold(0.5, "s", "chosen", "the longest that a page waits for the first report")
    most_groups = threshold(24, "groups", "chosen", "rows; the second: of groups that show a fault or hold a culprit")
    most_groups_with_a_fault = threshold(
        64, "groups", "chosen", "rows; the second: of groups that show a fault or hold a culprit"
    )
    most_groups_beside = threshold(2, "groups", "chosen", "columns of a hang's matrix that stand beside the answer")
    most_matrix_rows = threshold(64, "rows", "chosen", "of ranks that are at the same calls")
    most_kernel_rows = threshold(200, "rows")
    most_kernel_bars = threshold(15, "bars")
    kernel_name_chars = threshold(
        34, "characters", "chosen", "of a name above its bar: with its value and its class as wide as a phone"
    )
    live_every_s = threshold(2.0, "s")
    curves_every_s = threshold(6.0, "s")
    most_memory_lines = threshold(12, "lines")
    runs_every_s = threshold(3.0, "s", "chosen", "while a run trains, or is analysed")
    idle_runs_every_s = threshold(15.0, "s", "chosen", "otherwise: a run may be added")
    curves_shown = threshold(6, "runs", "chosen", "runs whose curves are shown if none is ticked")
    most_reasons = threshold(5, "reasons")
    most_analysed_run_bytes = threshold(
        64 << 20, "bytes", "chosen", "largest run that is analysed for the list alone: takes a few seconds"
    )
    most_runs_known = threshold(1024, "runs")
    live_run_every_s = threshold(
        60.0, "s", "chosen", "shortest time between two analyses of a run that trains, for the list"
    )
    shortest_view_ns = threshold(1000, "ns")
    event_name_chars = threshold(100, "characters")
    ranks_by_number = threshold(16, "ranks", "chosen", "up to this many are ordered by number; more, worst first")
    ranks_unfolded = threshold(
        8, "ranks", "chosen", "rows of the timeline of more ranks than that: the others are folded until asked for"
    )
    analysis_first_s = threshold(
        3.0, "s", "chosen", "the verdict of a run of a few ranks is there by then; pages that need none wait no longer"
    )
    most_ranks_of_moment = threshold(4, "ranks", "chosen", "in the picture beside a finding")
    most_findings_beside = threshold(2, "findings", "chosen", "in a line below the verdict, which does not hold them")
    alone_share = threshold(
        0.9, "fraction", "chosen", "of what a finding takes of a step: a part that is as much of it is named alone"
    )
    columns_of_moment = threshold(300, "columns", "chosen", "of that picture: about one for two pixels")
    moment_px = threshold(150, "pixels", "chosen", "the place of that picture until it is in view")
    first_screen_s = threshold(
        1.0, "s", "chosen", "so long the modules of figures and tables leave the processor to the first screen"
    )
    lists_in_a_row = threshold(3, "lists", "chosen", "up to this many lists get one row each")


DASHBOARD = Dashboard()
