import pytest

from diag.app import facts


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_500, "1.50 µs"),
        (285_400_000, "285 ms"),
        (62_340_000, "62.3 ms"),
        (999_700_000, "1.00 s"),
        (12_000_000_000, "12.0 s"),
        (-2_000_000, "-2.00 ms"),
    ],
)
def test_durations_have_three_digits_and_their_unit(ns: int, text: str) -> None:
    assert facts.duration(ns) == text.replace(" ", facts.NBSP)


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (473_100_000, "473 MB"), (79_600_000_000, "79.6 GB"), (999_999, "1.00 MB")]
)
def test_sizes(count: int, text: str) -> None:
    assert facts.size(count) == text.replace(" ", facts.NBSP)


def test_a_share_that_is_not_nothing_does_not_read_as_nothing() -> None:
    assert facts.share(0) == "0%"
    assert facts.share(0.001) == "<1%"
    assert facts.share(0.284) == "28%"


def test_evidence_reads_as_on_the_command_line() -> None:
    assert facts.measured(0.2817, "share") == "28.2%"
    assert facts.measured(0.5624, "GB/s") == f"0.5624{facts.NBSP}GB/s"


def test_long_lists_of_ranks_end() -> None:
    assert facts.listing((3,)) == f"rank{facts.NBSP}3"
    assert facts.listing(range(10)) == f"ranks{facts.NBSP}0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_text_of_others_is_not_markup() -> None:
    assert facts.plain("a_b *c* [d](e) $5 :red[f]") == r"a\_b \*c\* \[d\]\(e\) \$5 \:red\[f\]"
    assert facts.plain("&lt;b>") == r"\&lt;b\>"
