import pytest

from diag.app import markup
from diag.words import formatting


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
    assert formatting.duration(ns) == text.replace(" ", formatting.NBSP)


@pytest.mark.parametrize(
    ("one_ns", "other_ns", "alike"),
    [
        (285_000_000, 285_400_000, True),
        (40_000_000, 40_030_000, True),
        (62_000_000, 62_340_000, False),
        (113_000_000, 13_000_000, False),  # though "113 ms" ends in "13 ms"
        (None, 0, False),
    ],
)
def test_durations_that_are_printed_alike(one_ns: int | None, other_ns: int, alike: bool) -> None:
    assert formatting.printed_alike(one_ns, other_ns) is alike


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12 bytes"), (473_100_000, "473 MB"), (79_600_000_000, "79.6 GB"), (999_999, "1.00 MB")]
)
def test_sizes(count: int, text: str) -> None:
    assert formatting.size(count) == text.replace(" ", formatting.NBSP)


def test_a_share_that_is_not_nothing_does_not_read_as_nothing() -> None:
    assert formatting.share(0) == "0%"
    assert formatting.share(0.001) == "<1%"
    assert formatting.share(0.284) == "28%"


def test_evidence_reads_as_on_the_command_line() -> None:
    assert formatting.measured(0.2817, "share") == "28.2%"
    assert formatting.measured(0.5624, "GB/s") == f"0.5624{formatting.NBSP}GB/s"


def test_long_lists_of_ranks_end() -> None:
    assert formatting.listing((3,)) == f"rank{formatting.NBSP}3"
    assert formatting.listing(range(10)) == f"ranks{formatting.NBSP}0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_text_of_others_is_not_markup() -> None:
    assert markup.plain("a_b *c* [d](e) $5 :red[f]") == r"a\_b \*c\* \[d\]\(e\) \$5 \:red\[f\]"
    assert markup.plain("&lt;b>") == r"\&lt;b\>"
