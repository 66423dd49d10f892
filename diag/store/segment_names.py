"""The names of segments in a store, see ``diag.store.segments``: what is there and what is missing, from a list of
names."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping

from diag.store.policy import STORES

FOLDER = "segments"
_NAME = re.compile(r"(\d{10})-(\d{10})\.seg")
_NODE = re.compile(r"[^/]+-[0-9a-f]{8}")


def name_of(node: str, first: int, last: int) -> str:
    return f"{FOLDER}/{node}/{first:010d}-{last:010d}.seg"


def new_node_name(host: str) -> str:
    """Of a node's folder: a host may have one in each of several attempts."""
    plain = "".join(char if char.isalnum() or char in "-_" else "-" for char in host)
    return f"{plain[:60] or 'node'}-{uuid.uuid4().hex[:8]}"


def is_node_name(name: str) -> bool:
    """Whether it may be one, by its form."""
    return _NODE.fullmatch(name) is not None


def numbers_of(name: str) -> tuple[str, int, int] | None:
    """The node and the numbers in a segment's name; None for another file."""
    parts = name.split("/")
    match = _NAME.fullmatch(parts[-1])
    if match is None or len(parts) != 3 or parts[0] != FOLDER:
        return None
    first, last = map(int, match.groups())
    return (parts[1], first, last) if 0 < first <= last else None


def newest_of(names: Iterable[str]) -> dict[str, list[tuple[int, int, str]]]:
    """By node, the segments that count, in order: without those that a merged one stands for."""
    by_node: dict[str, list[tuple[int, int, str]]] = {}
    for name in names:
        if (found := numbers_of(name)) is not None:
            node, first, last = found
            by_node.setdefault(node, []).append((first, last, name))
    for node, of_node in by_node.items():
        kept: list[tuple[int, int, str]] = []
        for first, last, name in sorted(of_node, key=lambda item: (item[0], -item[1])):
            if not kept or last > kept[-1][1]:
                kept.append((first, last, name))
        by_node[node] = kept
    return by_node


def missing_of(segments: Mapping[str, list[tuple[int, int, str]]]) -> dict[str, list[int]]:
    """By node, the numbers before its newest segment that no segment stands for; at most a few."""
    gaps: dict[str, list[int]] = {}
    for node, of_node in segments.items():
        reached = 0
        for first, last, _ in of_node:
            if first > reached + 1:
                numbers = range(reached + 1, min(first, reached + 1 + STORES.most_missing_named))
                gaps.setdefault(node, []).extend(numbers)
            reached = last
    return gaps
