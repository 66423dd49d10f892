"""Numbers with their units as text, joined by a non-breaking space, as all pages show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from diag.collectors.masking import masked as masked
from diag.collectors.text import visible as visible
from diag.collectors.text import visible_lines as visible_lines

NBSP = "\u00a0"
UNKNOWN = "unknown"


def number(value: float) -> str:
    """Three significant digits, but all digits before the point; no exponent."""
    magnitude = abs(value)
    if 0 < magnitude < 0.0005:
        return "<0.001"
    digits = 0 if magnitude >= 99.95 or magnitude == 0 else 1 if magnitude >= 9.995 else 2 if magnitude >= 0.995 else 3
    return f"{value:,.{digits}f}"


def duration(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        # 999.7 ms would be printed as 1,000 ms.
        if abs(ns) >= 0.9995 * size:
            return f"{number(ns / size)}{NBSP}{unit}"
    return f"{ns:.0f}{NBSP}ns"


def signed_duration(ns: float) -> str:
    """A difference."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration(abs(ns))}"


def elapsed(ns: float) -> str:
    """A time span of any length in one unit: ``3 d``, ``5 h``, ``4 min``, ``12 s``; below a second as `duration`."""
    seconds = ns / 1e9
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 0.995 * size:  # not 60 min
            return f"{seconds / size:,.0f}{NBSP}{unit}"
    return duration(ns)


def printed_alike(one_ns: int | None, other_ns: int) -> bool:
    """Whether two durations have the same digits and unit once printed; False for None."""
    return one_ns is not None and duration(one_ns) == duration(other_ns)


def size(count: float) -> str:
    """Bytes, in powers of a thousand as everywhere in diag."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= 0.9995 * factor:
            return f"{number(count / factor)}{NBSP}{unit}"
    return f"{count:.0f}{NBSP}bytes"


def share(value: float, digits: int = 0) -> str:
    """``28%``, or ``28.4%`` with a digit; what is more than nothing is not written as 0%."""
    least = 0.01 / 10**digits
    return f"<{least:.{digits}%}" if 0 < value < least / 2 else f"{value:.{digits}%}"


def relative(ratio: float, digits: int = 0) -> str:
    """``+28%``, or from twice as much on ``8.25 times``. ``ratio``: of the value after to the one before."""
    return f"{number(ratio)}{NBSP}times" if ratio >= 2 else f"{ratio - 1:+.{digits}%}"


def spaced(text: str) -> str:
    """With ordinary spaces, for terminals and programs."""
    return text.replace(NBSP, " ")


def counted(count: int, noun: str, nouns: str = "") -> str:
    """``1 rank``, ``2 ranks``. ``nouns``: the plural, where it is not formed by an s."""
    return f"{count:,}{NBSP}{noun if count == 1 else nouns or f'{noun}s'}"


def measured(value: float, unit: str) -> str:
    """A piece of evidence, in the words of ``diag analyze``."""
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return size(value)
    return f"{value:,.4g}{NBSP}{unit}".rstrip(NBSP)


def listing(ranks: Sequence[int], most: int = 8) -> str:
    """``rank 3``, or ``ranks 0, 1, 2 and 61 more``."""
    if len(ranks) == 1:
        return f"rank{NBSP}{ranks[0]}"
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"ranks{NBSP}" + ", ".join(map(str, ranks[:most])) + more


def rank_ranges(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 1, 4-6``: sorted ranks in few words, however many they are."""
    return ("rank " if len(ranks) == 1 else "ranks ") + number_ranges(ranks)


def spans(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers; ``numbers`` is sorted."""
    runs: list[tuple[int, int]] = []
    for value in numbers:
        if runs and value == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], value
        else:
            runs.append((value, value))
    return runs


def number_ranges(numbers: Sequence[int]) -> str:
    """``3``, or ``1, 4-6``: the same for any sorted numbers."""
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans(numbers)]
    more = f" and {len(texts) - 8} more spans" if len(texts) > 8 else ""
    return ", ".join(texts[:8]) + more


def moment(unix_ns: int) -> str:
    """``2026-11-24 14:03 UTC``; "" for a time that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return ""


# -- kernel names ------------------------------------------------------------------------------------------------------
#
# Names of kernels that fit into a table: what a person would call them, without namespaces and argument lists.

_NOISE = re.compile(
    r"^void\s+|\(anonymous namespace\)::|\b(?:at|native|c10|std|cuda|cub|detail|cutlass|cudnn|ops|pytorch_flash)::"
)
_IDENTIFIER = re.compile(r"(?<!\w)[A-Za-z_]\w+")
_MANGLED = re.compile(r"(\d+)([A-Za-z_])")
_TEMPLATE_ARGUMENT = re.compile(r"(\d\d)([A-Z]\w+?)(?=\d|$)")
# Frames around a functor, which alone names the operation.
_FRAME = re.compile(r"^(?:Kernel|\w*elementwise_kernel\w*|multi_tensor_apply_kernel)$")
# Template arguments that describe how a kernel is built, not its operation.
_DULL = re.compile(
    r"^(?:float\d?|double|int|u?int\d+_t|long|unsigned|signed|bool|char|const|void|true|false|BFloat16|Half|lambda|"
    r"array|Array|operator|Kernel|ReduceOp|func_wrapper_t|[AB]?(?:Unary|Binary)Functor|gpu_kernel_impl\w*|"
    r"binary_internal|TensorIteratorBase|TensorListMetadata|GenericPackedTensorAccessor|OpaqueType|OffsetCalculator|"
    r"MT\w+|Var|\w*PtrTraits|InvStd|nullptr_t|decltype|enum|cudnn\w+|\w+_t|\d\w*)$"
)


def short_name(name: str) -> str:
    """``CUDAFunctor_add``, or ``reduce_kernel sum_functor``, from the name that the compiler gives it."""
    if name.startswith("_ZN"):
        name = "::".join(_mangled_parts(name)[-1:]) or name
    plain = _NOISE.sub("", _NOISE.sub("", name))
    parts = re.split(r"([<(])", plain, maxsplit=1)
    head = parts[0].strip().split("::")[-1]
    if len(parts) < 3 or parts[1] == "(":
        return head
    inner = parts[2]
    operation = next((word for word in _IDENTIFIER.findall(inner) if not _DULL.match(word)), "")
    return operation if operation and _FRAME.match(head) else f"{head} {operation}".strip()


def _mangled_parts(name: str) -> list[str]:
    """The nested name at the start of an Itanium-mangled one: ``["ck", "tensor_operation", "kernel_grouped_conv"]``.

    CUTLASS calls every kernel Kernel; then the first specific template argument is appended.
    """
    parts, at = [], len("_ZN")
    while match := _MANGLED.match(name, at):
        begin = match.start(2)
        at = begin + int(match.group(1))
        if not name[begin:at].startswith("_GLOBAL_"):
            parts.append(name[begin:at])
    if parts and parts[-1] == "Kernel":
        words = (word[: int(length)] for length, word in _TEMPLATE_ARGUMENT.findall(name[at:]))
        parts.append(next(words, parts[-1]))
    return parts


def begun(sentence: str) -> str:
    """The sentence with a capital letter at its beginning."""
    return sentence[:1].upper() + sentence[1:]
