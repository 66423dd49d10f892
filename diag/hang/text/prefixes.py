"""Prefixes of log lines: launchers, schedulers, PyTorch and NCCL, stacked in any order.

Prefixes are stripped from the front one by one until none is left. ``source`` is "nccl" only where NCCL's own prefix
directly follows known prefixes: a program that quotes a line of a log in its own text is not NCCL. The numbers of
different prefixes are kept apart, each with its source.
"""

from __future__ import annotations

import calendar
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from diag.collectors.layout import MOST_RANKS
from diag.hang.policy import HANG_READING

# -- Times as logs print them, in nanoseconds since 1970; taken as UTC where no zone is printed ------------------------

_MONTH = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
MONTHS = {name: number for number, name in enumerate(_MONTH.split("|"), 1)}

ISO = re.compile(
    r"\[?(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)\b)?\]?:? ?"
    r"(?:std(?:out|err) [FP] )?"  # Kubernetes' CRI
)
CTIME = re.compile(
    rf"\[?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ({_MONTH}) +(\d+) (\d\d):(\d\d):(\d\d) (?:[A-Z]{{3,4}} )?(\d{{4}})\]?"
    r"(?:<std\w+>)?:? ?"
)
# journalctl writes the month in the language of the user.
SYSLOG = re.compile(r"([^\W\d]{2,8}\.?) +(\d+) (\d\d):(\d\d):(\d\d)(?:\.\d+)? ([\w.-]+) (?=[\w.-]+(?:\[\d+\])?: )")
# rsyslog's own format and `journalctl -o short-iso`: behind a time with its zone, the host of the program with its pid
_HOST_BEHIND_ISO = re.compile(r"([\w.-]+) (?=[\w.-]{1,80}\[\d+\]: |kernel: )")
# Any other date before torch's mark of the rank, as without seconds
_DATE_BEFORE_RANK = re.compile(rf"\[?(?=\d)(?:[\d/:.,T -]|{_MONTH}){{5,40}}\]?:? *(?=\[rank\d{{1,7}}\]:)")
OF_DAY = re.compile(r"(?:\[\d\d:\d\d:\d\d(?:[.,]\d+)?\]|\d\d:\d\d:\d\d(?:[.,]\d+)?) ")


def iso_ns(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second, part, zone = match.groups()
    since = at_ns(int(year), int(month), int(day), int(hour), int(minute), int(second), part or "")
    if since is None or zone in (None, "Z", "UTC"):
        return since
    ahead = int(zone[1:3]) * 60 + int(zone[-2:])
    return since - (ahead if zone[0] == "+" else -ahead) * 60_000_000_000


def ctime_ns(match: re.Match[str]) -> int | None:
    month, day, hour, minute, second, year = match.groups()
    return at_ns(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), "")


def month_day_ns(year: int, month: int, day: int, clock: str) -> int | None:
    """Nanoseconds of a time without a year: "02:07:08.408271257"."""
    whole, _, part = clock.partition(".")
    hour, minute, second = whole.split(":")
    return at_ns(year, month, day, int(hour), int(minute), int(second), part)


def at_ns(year: int, month: int, day: int, hour: int, minute: int, second: int, part: str) -> int | None:
    """None for impossible times: 24:99:99."""
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    return seconds * 1_000_000_000 + int(part[:9].ljust(9, "0") or 0)


_HOST = r"[^\s:'`\"()=,/\[\]{}|]{1,255}+"  # NCCL itself writes - for / and %
_CODE = r"(?:(?P<file>[\w./+-]+):(?P<line>\d+)(?: \(\w{1,80}\))? )?"
# A back-tick before it: the log was pasted as code of Markdown.
_NCCL = re.compile(
    rf"[\s`]*(?P<host>{_HOST}):(?P<pid>\d{{1,10}})(?P<tid>:\d{{1,10}})? (?(tid)(?:\[(?P<dev>-?\d+)\] )?|"
    rf"\[(?P<only_dev>-?\d+)\] )(?:\d+\.\d+ )?{_CODE}R?NCCL (?P<level>INFO|WARN|TRACE|CALL|ABORT|ERROR)(?: |$)"
)
_NCCL_2_2 = re.compile(
    rf"[\s`]*(?P<host>{_HOST}):(?P<pid>\d{{1,10}}):(?P<tid>\d{{1,10}}) "
    rf"\[(?P<dev>-?\d+)\] {_CODE}(?P<level>INFO|WARN)(?: |$)"
)
# The pid, or host and pid, were removed when the log was pasted.
_NCCL_BARE = re.compile(
    rf"\s*(?:(?:(?P<host>{_HOST}) )?\[(?P<dev>\d{{1,3}})\] )?{_CODE}R?NCCL (?P<level>INFO|WARN)(?: |$)"
)
_NCCL_VERSION = re.compile(r"\s*R?NCCL version \d")
# NCCL's prefix glued behind a message of NCCL: the newline is lost where many processes write to one pipe.
NCCL_GLUED = re.compile(
    rf"(?<![\w.-])(?={_HOST}:\d{{1,10}}:\d{{1,10}} \[-?\d+\] (?:\d+\.\d+ )?{_CODE}NCCL (?:INFO|WARN|TRACE) )"
)

_RANK = re.compile(r"\[rank(\d+)\]: ?")
_GLOG = re.compile(
    r"\[([EWIFCD]) ?(?:(\d{1,2})(\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) )?"
    r"(?:\d+ )?([\w./+-]+\.(?:cpp|hpp|cc|cu|h|py)):(\d+)\] ?"
)
_PYTHON_GLOG = re.compile(  # glog 0.5+ puts the year first
    r"([EWIFCDV])(20\d\d)?(\d\d)(\d\d) (\d\d:\d\d:\d\d\.\d+) +(\d+) ([\w./-]+):(\d+)\] "
)
_MPI = re.compile(  # SageMaker names it; PRRTE's --output tag-detailed adds the host and the pid
    r"\[[\w.@-]*?(\d+),(?:mpirank:)?(\d+)(?:,([\w.-]+))?\](?:\[([\w.-]{1,253}):(\d{1,10})\])?<std(?:out|err|diag)>:?"
)
_TASK = re.compile(r"[\w.-]{1,80} -- (?=\[[^\]\s]{1,80}\]<std)")  # Polyaxon: a task's name
_NODE = re.compile(r"\[([A-Za-z][\w.-]{0,252}), (?:unknown_ip|\d{1,3}(?:\.\d{1,3}){3})\] ")  # Azure ML
# Open MPI and PRRTE: opal/util/output.c. The name has a digit: "[step:1200]" and "[cuda:0]" are no processes.
_HOST_PID = re.compile(
    r"\[(?![\w.-]*\.(?:py|cc?|cpp|h|go|rs|java):)((?=[A-Za-z.-]*\d)[A-Za-z][\w.-]{1,252}):(\d{2,10})\] "
)
_HOROVOD = re.compile(r"\[(\d+)\]<std(?:out|err)>: ?")
_RAY = re.compile(r"\((?:[^()]{1,80}(?:\([^()]{0,40}\))?[^()]{0,20} )?pid=(\d+)(?:, ip=([^)\s]+))?\) ?")
# vLLM (vllm/logger.py: "%(levelname)s %(asctime)s [%(fileinfo)s:%(lineno)d] ", "%m-%d %H:%M:%S"; old ones without "[")
_VLLM = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? \[?([\w./-]+):(\d+)\] ?"
)
# SGLang (sglang/srt/utils: "[%(asctime)s{prefix}] ", prefix " DP0 PP1 TP3")
_SGLANG = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)((?: (?:DP|PP|TP|EP)\d{1,5}){1,4})\] ?")
# Coordinates of a worker in vLLM and SGLang: "Worker_PP0_TP1". An axis of one worker is not printed; an expert's rank
# says the same as the others.
_AXIS = re.compile(r"(?:_|\b| )(DP|PP|TP)(\d{1,5})(?!\d)")
_RANK_FIELD = re.compile(r"\brank=(\d{1,7})\b")  # vLLM: "(VllmWorker rank=3 pid=310)"; determined: "[rank=3] ||"
# Programs that write their rank before what they log: Lightning ("[rank: 3] "), Megatron's users, Accelerate. torch's
# own "[Rank 3]" is the number in a group, so only a piece of a traceback behind it makes it the process that prints.
_SAID_RANK = re.compile(
    r"[\[(<]?(?:(?:global|world)[_ ])?(?:rank|Rank|RANK|R(?=\d+\]))[ =:_#]{0,2}(\d{1,7})[\])>]?:?\s*?[ |-]{1,3}"
    r"(?=Traceback \(most |  +(?:File \"|\S)|(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)\b)"
)
_REPEATED = re.compile(r" *\[repeated \d+x across cluster\].*$")
_ROLE = re.compile(r"\[([A-Za-z][A-Za-z_-]*)(\d+)(?:\|(\d+))?\]:")
# torchrun prints "[${role_name}${local_rank}]:" (elastic/agent/server/local_elastic_agent.py); these roles are usual
_ROLES = ("default", "trainer", "worker", "main")
_DIGITS = re.compile(r"\d+")
_SRUN = re.compile(r" {0,3}(\d{1,6}): ")  # padded to the width of the largest task
_INDENTED = re.compile(r" +(?=\[(?:rank|default)\d+\]:|\[[EWIF]\d{3,4} )")  # pasted below a list
# nemo-run: a job's role and replica; determined: a task's number
_REPLICA = re.compile(r"[A-Za-z][\w.-]{0,80}/\d{1,6} (?=\[)|[0-9a-f]{6,16} (?:\[rank=\d+\] )?\|\| ")
_BENCH = re.compile(r"(?:[\w-]+\.)*([\w-]+) \[std(?:err|out)\] ")
_POD = re.compile(r"\[pod/([^/\]\s]+)/[^\]\s]*\] ")
# Kubernetes' events: kubectl get events (kubectl/pkg/cmd/events/events.go, pkg/printers/internalversion/printers.go)
# with the object, kubectl describe of versions before 1.19 with the node of the component that reports
_AGE = r"(?:(?:\d{1,6}[smhdy]){1,3}(?: \(x\d+ over \w{1,12}\))?|<\w{1,12}>)"
_EVENT = re.compile(
    rf"(?:(?:[a-z0-9-]{{1,63}} +)?{_AGE} +(?:Warning|Normal) +\w{{1,80}} +(?:pod|node)/"
    rf"(?P<object>[a-z0-9][a-z0-9.-]{{0,252}}) +|"
    rf" *(?:Warning|Normal) +\w{{1,80}} +{_AGE} +[\w-]{{1,60}}, (?P<node>[a-z0-9][a-z0-9.-]{{0,252}}) +)(?=\S)"
)
_COMPOSE = re.compile(r"([\w.-]*\d) +\| ")
_HOST_TASK = re.compile(r"([A-Za-z][\w.-]{0,252}) (\d{1,7}): ")  # mpiexec -l of PALS
_HOST_COLON = re.compile(r"([A-Za-z0-9][\w.-]{0,252}): ")
_NUMBERED = re.compile(rb"(?:\x1b\[[\d;]*m)?\[(\d{1,7})\]:? ")
_IN_FRONT = re.compile(rb"(?:\x1b\[[\d;]*m)?([A-Za-z][\w.-]{0,252}\d[\w.-]{0,200}):(?: |$)")
# What stern writes, a pod and its container (once with an angle quotation mark between them); torchx: role and replica
_COLUMNS = re.compile(
    r"(?:(?P<pod>[a-z][a-z0-9.]{0,100}-[a-z0-9.-]{0,200}) (?:\u203a )?[a-z][a-z0-9-]{0,62}|"
    r"[A-Za-z][\w.-]{0,80}/\d{1,6})(?: |$)"
)
_SURE_HOST = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}$|ip-\d+-|(?:[a-z][a-z0-9-]*-)?"
    r"(?:(?:gpu|node|worker|host|master|compute|dgx|hgx|slurm)(?=[A-Za-z.-]*\d)|(?:cn|nid)-?[a-z]?\d|x\d+c\d+s\d+b\d+n\d)[A-Za-z0-9.-]*$"
)
_KERNEL = re.compile(r"(?:([\w.-]+) )?kernel: ?(?:\[ *\d+\.\d+\] ?)?")
_DMESG = re.compile(r"(?:<\d>)?\[ *\d+\.\d{6}\] ")
# Columns of a log viewer, a quoted mail, code in Markdown, and a line in bold type
_QUOTED = re.compile(r" *(?:\| |(?:> ?)+|`+(?=[\w(\[])|\*\*(?=[^\s*][^*]*\*\*\s*$))")
_PASTED = re.compile(r"\[\d+\] ")
_TAGGED = re.compile(r"\[(\d{1,7})\]:? ")
_BAR = re.compile(
    r"[^|]{0,200}?\d{1,3}%\|[^|]*\| *[^ \[\]]+/[^ \[\]]+ *\[[^\]]{1,200}\]\s*|[^\[]{0,200}?\d+it \[[^\]]{1,200}\]\s*"
)

# torchrun's error file, also as its error handler prints it, in lines:
# torch/distributed/elastic/multiprocessing/errors/error_handler.py
_ERROR_FILE = re.compile(r'(?:\{"message": \{| {2,12})"message": "((?:[^"\\]|\\.){1,8000})')
_LOGFMT = re.compile(  # logfmt: Go's logrus and slog
    r'(?:(?:time|ts|t)="?(?P<time>[^\s"]{1,40})"? )?(?:[\w.]{1,40}=(?:"(?:[^"\\]|\\.){0,200}"|[^\s"]{1,200}) ){0,12}?'
    r'msg="(?P<message>(?:[^"\\]|\\.){0,8000})'
)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_GROUP_RANK = re.compile(r"\[PG [^\]]*?\bRank (\d+)\]|\[Rank (\d+)\]")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVELS = {"E": "ERROR", "W": "WARN", "I": "INFO", "F": "FATAL", "C": "CRITICAL", "D": "DEBUG", "V": "DEBUG"}
_LAUNCHER = re.compile(
    r"(?:srun|slurmstepd|mpirun|prterun|orterun|pdsh@[\w.-]+|torchrun): |(?:[A-Z]+:|\S+ - |"
    r")torch\.distributed\.(?:elastic|run|launcher)\b|(?:[A-Z]+:)?torchelastic|\[launch\.py:\d+|deepspeed\.launcher"
)
_LAUNCHER_CODE = re.compile(r"torch/distributed/(?:elastic|run|launch)")


@dataclass(frozen=True, slots=True)
class FilePrefix:
    """What stands before nearly all lines of a file: one of few names, a rank, or text of no kind that is known."""

    names: frozenset[str] = frozenset()  # each with the blank after it where no colon follows
    rank: bool = False  # mpiexec -l (MPICH, Intel MPI): "[3] "
    shape: re.Pattern[str] | None = None


NO_PREFIX = FilePrefix()


@dataclass(slots=True)
class ParsedLine:
    """Fields parsed from a log line's prefixes; ``text`` is the message without them."""

    text: str
    host: str = ""
    outer_host: str = ""  # a launcher's name for it, where NCCL's own name follows
    pid: int | None = None
    rank: int | None = None
    rank_from: str = ""  # "[rankN]", "rank=N", "axis", "mpirun", "srun"
    local_rank: int | None = None
    group_rank: int | None = None
    device: int | None = None
    worker: str = ""  # "PP1 TP2"
    source: str = ""
    level: str = ""
    code: str = ""
    time_ns: int | None = None
    nccl_pid: bool = False  # NCCL itself printed host and pid
    any: bool = False  # there was a prefix
    bar: ParsedLine | None = None  # a progress bar in front of the message, with the process that draws it
    piece: str = ""  # the part of its line that it was read from; "" for all of it
    shaped: bool = False  # the file's shared shape was passed
    ahead: int = 0  # the number of prefixes passed by a look-ahead; 0 outside of one

    def speaker(self) -> tuple[object, ...]:
        """Equal for lines of one process, as far as the lines show."""
        return (self.rank, self.rank_from, self.local_rank, self.host, self.pid, self.worker)


def _is_bar(text: str) -> bool:
    return ("%|" in text or "it [" in text) and _BAR.match(text) is not None


def file_prefix(head: bytes) -> FilePrefix:
    """``names``: the hosts that a launcher (pdsh, deepspeed, kubectl --prefix) puts before the lines, with a colon, or
    the columns of stern or torchx."""
    lines = [line for line in head.splitlines() if line.strip()]
    numbers = Counter(match[1] for line in lines if (match := _NUMBERED.match(line)))
    if (
        sum(numbers.values())
        >= HANG_READING.share_with_a_name * len(lines)
        > HANG_READING.lines_of_a_name * len(numbers)
    ):
        return FilePrefix(rank=True)  # a pasted line number is on one line only
    names = Counter(match[1].decode() for line in lines if (match := _IN_FRONT.match(line)))
    if _begin_nearly_all(lines, names):
        return FilePrefix(frozenset(names))
    if columns := _columns_in_front(lines):
        return FilePrefix(columns)
    return FilePrefix(shape=_shape_in_front(lines[: HANG_READING.lines_of_a_shape]))


def _columns_in_front(lines: list[bytes]) -> frozenset[str]:
    """What stern or torchx puts before each line, with the blank after it; nothing where the lines begin otherwise."""
    columns: Counter[str] = Counter()
    for line in lines:
        match = _COLUMNS.match(plain(line[:400].decode("utf-8", "replace")))
        if match is not None and (match["pod"] is None or any(map(str.isdigit, match["pod"]))):
            columns[f"{match[0].rstrip()} "] += 1
    return frozenset(columns) if _begin_nearly_all(lines, columns) else frozenset()


# Text in which a prefix would say more than where a line comes from
_SAYS_MORE = re.compile(r"(?i)rank|loss|\bstep|\bepoch|error|warn|traceback|NCCL|\"")
_ENDS_A_PREFIX = re.compile(r"\s+\Z|[\]|>:)-]\s*\Z")
# What only begins a message
_BEGINS_A_MESSAGE = re.compile(r"Traceback \(most recent|  File \"|(?:\w+\.){0,8}\w*(?:Error|Exception)\b|\[rank\d")


def _shape_in_front(lines: list[bytes]) -> re.Pattern[str] | None:
    """What nearly all lines begin with behind the prefixes that are known, but for its numbers, where it is followed by
    many things and one of them begins a message; None where there is nothing of the kind."""
    texts = [read_text(plain(line[: HANG_READING.copied_line_bytes].decode("utf-8", "replace"))).text for line in lines]
    shapes = sorted(_DIGITS.sub("0", text) for text in texts if text.strip())
    if len(shapes) < 2 * HANG_READING.lines_of_a_name:
        return None
    odd = int(len(shapes) * (1 - HANG_READING.share_with_a_name) / 2)
    ends = zip(shapes[odd], shapes[-1 - odd], strict=False)  # of sorted texts, all between begin as these two do
    shared = "".join(one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
    shared = shared[: HANG_READING.longest_prefix_chars]
    while shared and not _ENDS_A_PREFIX.search(shared):
        shared = shared[:-1]
    if not shared or _SAYS_MORE.search(shared):
        return None
    rests = [shape[len(shared) :] for shape in shapes if shape.startswith(shared)]
    if len({rest[:3] for rest in rests}) < HANG_READING.lines_of_a_name:
        return None
    if not any(_BEGINS_A_MESSAGE.match(rest) or read_text(rest).any for rest in rests):
        return None
    return re.compile(re.sub(r"0", lambda _: r"\d{1,20}", re.escape(shared)))


def _begin_nearly_all(lines: Sequence[bytes], names: Counter[str]) -> bool:
    """Whether nearly all lines begin with one of these names, which are few. ``names``: each with its lines."""
    begun = sum(names.values()) >= HANG_READING.share_with_a_name * len(lines)
    return begun and len(lines) >= HANG_READING.lines_of_a_name * len(names)


def plain(text: str) -> str:
    """The text without colours and control characters, except tabs, and with mpirun's tag once: a program that writes a
    line in pieces has it before each of them."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if text.count("]<std") > 1 and (match := _MPI.search(text)):
        text = text[: match.end()] + text[match.end() :].replace(match[0], "")
    return text if text.isprintable() else _CONTROL.sub("", text)


def read_line(raw: bytes, year: int = 1970, of_file: FilePrefix = NO_PREFIX) -> list[ParsedLine]:
    """The messages of a line: usually one; several where newlines between NCCL messages were lost; a progress bar
    before a message comes after it.

    ``year``: for times without one. ``of_file``: what stands before the file's lines. A carriage return
    starts the line again, as on a terminal; the text before it is a progress bar, whose prefixes still show which
    process prints.
    """
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    before = ""
    if "\r" in text:
        before, _, text = text.rpartition("\r")
    parsed = read_text(plain(text), year, of_file)
    drawn = before.rpartition("\r")[2]
    if drawn and parsed.bar is None and _is_bar(drawn) and not _is_bar(text):
        parsed.bar = read_text(plain(drawn), year, of_file)
        parsed.bar.piece = drawn
    if before and not parsed.any:
        first = read_text(plain(before.lstrip("\r").partition("\r")[0]), year, of_file)
        if first.any and not first.nccl_pid:
            first.text, first.group_rank = parsed.text, parsed.group_rank
            parsed = first
    elif before and parsed.rank is None and parsed.local_rank is None:
        first = read_text(plain(before.lstrip("\r").partition("\r")[0][:200]), year, of_file)
        parsed.rank, parsed.rank_from, parsed.local_rank = first.rank, first.rank_from, first.local_rank
    if parsed.bar is not None:
        parsed.piece = parsed.piece or plain(text)
        return [parsed, parsed.bar]
    if parsed.source != "nccl" or "NCCL " not in parsed.text:
        return [parsed]
    starts = [match.start() for match in NCCL_GLUED.finditer(parsed.text) if match.start()]
    if not starts:
        return [parsed]
    messages = [parsed]
    whole = parsed.text
    parsed.text = whole[: starts[0]].rstrip()
    for start, end in zip(starts, [*starts[1:], len(whole)], strict=True):
        messages.append(read_text(whole[start:end].rstrip(), year, of_file))
    return messages


def read_text(text: str, year: int = 1970, of_file: FilePrefix = NO_PREFIX) -> ParsedLine:
    """Parses all prefixes of a text without control characters."""
    parsed = ParsedLine(text)
    if '"message": "' in text and (match := _ERROR_FILE.match(text)):
        parsed.text = _unescaped(match[1])
    elif text.startswith("{") and text.rstrip().endswith("}"):
        _structured(parsed)
    elif "msg=" in text and (match := _LOGFMT.match(text)):
        parsed.text, parsed.any = _unescaped(match["message"]), True
        _time_of(parsed, match["time"] or "")
    for _ in range(HANG_READING.most_prefixes):
        if not _strip_one(parsed, year, of_file):
            break
        parsed.any = True
        if parsed.source == "nccl":
            break
    rest = parsed.text
    if rest.endswith("cluster]") or "x across cluster]" in rest:
        parsed.text = rest = _REPEATED.sub("", rest)
    if "Rank " in rest and (match := _GROUP_RANK.search(rest, 0, 300)):
        parsed.group_rank = int(match[1] or match[2])
    if not parsed.source and (_LAUNCHER.match(rest) or _LAUNCHER_CODE.search(parsed.code)):
        parsed.source = "launcher"
    if not parsed.level and (match := _LEVEL.search(rest, 0, 80)):
        parsed.level = match[1]
    return parsed


def _strip_one(parsed: ParsedLine, year: int, of_file: FilePrefix) -> bool:
    """Whether the text began with a prefix, which is removed."""
    text = parsed.text
    if not text:
        return False
    if "NCCL " in text or "INFO " in text or "WARN " in text:
        for pattern in (_NCCL, _NCCL_2_2, _NCCL_BARE):
            if match := pattern.match(text):
                _nccl(parsed, match)
                return True
        if _NCCL_VERSION.match(text):
            parsed.source = "nccl"
            return True
    end = 0
    first = text[0]
    if first == "[":
        end = _bracket(parsed, text, year, of_file)
    elif first == "(":
        if match := _RAY.match(text):
            parsed.pid = int(match[1])
            parsed.host = parsed.host or _host(match[2] or "")
            _rank_field(parsed, match[0])
            _rank_on_axes(parsed, match[0])
            end = match.end()
    elif first.isdigit() or first == " ":
        end = _digit(parsed, text)
    if not end and first.isalnum():
        if match := _REPLICA.match(text) or _TASK.match(text):
            _rank_field(parsed, match[0])
        end = match.end() if match else _word(parsed, text, year, of_file)
    if not end and ("ank" in text[:24] or "RANK" in text[:24] or first == "[") and (match := _SAID_RANK.match(text)):
        if not parsed.rank_from:
            parsed.rank, parsed.rank_from = int(match[1]), "rank=N"
        end = match.end()
    if not end and first == " " and (match := _INDENTED.match(text)):
        end = match.end()
    if not end and first in " |>`*" and (match := _QUOTED.match(text)):
        end = match.end()
        if text.startswith("**", end - 2):  # it closes the line as well
            text = text.rstrip()[:-2]
    if not end and ("Warning  " in text or "Normal  " in text) and (match := _EVENT.match(text)):
        parsed.host, end = parsed.host or match["object"] or match["node"], match.end()
    if not end and first == "<" and (match := _DMESG.match(text)):
        parsed.source, end = "kernel", match.end()
    if not end and ("%|" in text or "it [" in text) and (match := _BAR.match(text)) and match.end() < len(text):
        end = match.end()
        parsed.bar = ParsedLine(text[:end].rstrip(), piece=text[:end].rstrip(), any=parsed.any)
        for name in ("host", "pid", "rank", "rank_from", "local_rank", "time_ns"):
            setattr(parsed.bar, name, getattr(parsed, name))
        parsed.piece = text[end:]
    if not end and of_file.shape is not None and not parsed.shaped and (match := of_file.shape.match(text)):
        parsed.shaped, end = True, match.end()
    parsed.text = text[end:]
    return end > 0


def _goes_on(parsed: ParsedLine, rest: str, year: int, of_file: FilePrefix) -> bool:
    """Whether another prefix follows, which confirms a doubtful one before it. The depth is bounded, for lines that
    consist of doubtful prefixes."""
    return parsed.ahead < HANG_READING.most_prefixes and _strip_one(
        ParsedLine(rest, ahead=parsed.ahead + 1), year, of_file
    )


def _bracket(parsed: ParsedLine, text: str, year: int, of_file: FilePrefix) -> int:
    if match := _RANK.match(text):
        parsed.rank, parsed.rank_from = int(match[1]), "[rankN]"
    elif match := _GLOG.match(text):
        level, month, day, clock, file, line = match.groups()
        parsed.source, parsed.level, parsed.code = "torch", _LEVELS[level], f"{file}:{line}"
        if clock and parsed.time_ns is None:
            parsed.time_ns = month_day_ns(year, int(month), int(day), clock)
    elif match := _MPI.match(text):
        if parsed.rank_from != "[rankN]":
            parsed.rank, parsed.rank_from = int(match[2]), "mpirun"
        parsed.host = parsed.host or _host(match[3] or match[4] or "")
        parsed.pid = parsed.pid or (int(match[5]) if match[5] else None)
    elif match := _HOROVOD.match(text):
        if parsed.rank_from != "[rankN]":
            parsed.rank, parsed.rank_from = int(match[1]), "mpirun"
    elif match := _NODE.match(text):
        parsed.host = parsed.host or _host(match[1])
    elif match := _HOST_PID.match(text):
        parsed.host, parsed.pid = parsed.host or _host(match[1]), parsed.pid or int(match[2])
    elif match := _SGLANG.match(text):
        if time := ISO.match(match[1]):
            _time(parsed, iso_ns(time))
        _rank_on_axes(parsed, match[2])
    elif match := ISO.match(text):
        _time(parsed, iso_ns(match))
    elif match := CTIME.match(text):
        _time(parsed, ctime_ns(match))
    elif match := _ROLE.match(text):
        if match[1] in _ROLES:
            parsed.local_rank = int(match[3] or match[2])
    elif match := _POD.match(text):
        parsed.host = parsed.host or _host(match[1])
    elif match := _DMESG.match(text):
        parsed.source = "kernel"
    elif match := OF_DAY.match(text) or _DATE_BEFORE_RANK.match(text):
        pass
    elif of_file.rank and not parsed.rank_from and (match := _TAGGED.match(text)):
        parsed.rank, parsed.rank_from = int(match[1]), "mpirun"
    elif match := _PASTED.match(text):  # line numbers of a pasted log; "[3] joined but .." is a message
        if match.end() < 7 and not _goes_on(parsed, text[match.end() :], year, of_file):
            return 0
    else:
        return 0
    return match.end()


def _digit(parsed: ParsedLine, text: str) -> int:
    if match := ISO.match(text):
        _time(parsed, iso_ns(match))
        if match[8] and "T" in match[0] and (behind := _HOST_BEHIND_ISO.match(text, match.end())):
            parsed.host = parsed.host or _host(behind[1])
            return behind.end()
    elif match := OF_DAY.match(text) or _DATE_BEFORE_RANK.match(text):
        pass
    elif match := _SRUN.match(text):
        if not parsed.rank_from:
            parsed.rank, parsed.rank_from = int(match[1]), "srun"
    else:
        return 0
    return match.end()


def _word(parsed: ParsedLine, text: str, year: int, of_file: FilePrefix) -> int:
    if match := _PYTHON_GLOG.match(text):
        level, of_year, month, day, clock, pid, file, line = match.groups()
        parsed.level, parsed.code, parsed.pid = _LEVELS[level], f"{file}:{line}", parsed.pid or int(pid)
        if parsed.time_ns is None:
            parsed.time_ns = month_day_ns(int(of_year or year), int(month), int(day), clock)
    elif match := _VLLM.match(text):
        level, month, day, clock, file, line = match.groups()
        parsed.level, parsed.code = level.removesuffix("ING"), f"{file}:{line}"
        _time(parsed, month_day_ns(year, int(month), int(day), clock))
    elif match := CTIME.match(text):
        _time(parsed, ctime_ns(match))
    elif match := SYSLOG.match(text):
        month, day, *clock, host = match.groups()
        if month in MONTHS:
            _time(parsed, month_day_ns(year, MONTHS[month], int(day), ":".join(clock)))
        parsed.host = parsed.host or _host(host)
    elif match := _KERNEL.match(text):
        parsed.source, parsed.host = "kernel", parsed.host or _host(match[1] or "")
    elif of_file.names and (match := _COLUMNS.match(text)) and f"{match[0].rstrip()} " in of_file.names:
        parsed.host = parsed.host or _host(match["pod"] or "")
    elif (match := _HOST_TASK.match(text)) and (match[1] in of_file.names or _SURE_HOST.match(match[1])):
        parsed.host = parsed.host or _host(match[1])
        if not parsed.rank_from:
            parsed.rank, parsed.rank_from = int(match[2]), "mpirun"
    elif match := _BENCH.match(text):
        parsed.host = parsed.host or _host(match[1])
    elif (
        (match := _HOST_COLON.match(text) or _COMPOSE.match(text))
        and not match[1].isdigit()
        and not match[1].endswith(("Error", "Exception"))  # of Java: "ml.dmlc.xgboost4j.java.XGBoostError: "
    ):
        if (
            match[1] not in of_file.names
            and not _SURE_HOST.match(match[1])
            and not (any(map(str.isdigit, match[1])) and _goes_on(parsed, text[match.end() :], year, of_file))
        ):
            return 0
        parsed.host = parsed.host or _host(match[1])
    else:
        return 0
    return match.end()


def _nccl(parsed: ParsedLine, match: re.Match[str]) -> None:
    fields = match.groupdict()
    parsed.source, parsed.level = "nccl", fields["level"]
    if fields.get("host"):
        parsed.outer_host = parsed.host
        parsed.host = _host(fields["host"])
        if fields.get("pid"):
            parsed.pid, parsed.nccl_pid = int(fields["pid"]), True
    device = int(fields["dev"] or fields.get("only_dev") or -1)
    if device >= 0:
        parsed.device = device
    if fields["file"]:
        parsed.code = f"{fields['file']}:{fields['line']}"
    parsed.text = parsed.text[match.end() :]


def _rank_field(parsed: ParsedLine, prefix: str) -> None:
    """Sets the rank that a framework writes as a field of its prefix."""
    if not parsed.rank_from and (match := _RANK_FIELD.search(prefix)):
        parsed.rank, parsed.rank_from = int(match[1]), "rank=N"


def _rank_on_axes(parsed: ParsedLine, prefix: str) -> None:
    """Sets the rank of a worker that is named by its place on one axis of parallelism. On several axes, the place on
    one of them is no rank."""
    axes = _AXIS.findall(prefix)
    if len(axes) > 1 and all(axis == "TP" or int(at) == 0 for axis, at in axes):
        axes = [(axis, at) for axis, at in axes if axis == "TP"]  # the first stage, and the first replica
    if not parsed.rank_from and len(axes) == 1:
        parsed.rank, parsed.rank_from = int(axes[0][1]), "axis"
    elif len(axes) > 1:
        parsed.worker = " ".join(f"{axis}{at}" for axis, at in axes)


def _time(parsed: ParsedLine, time_ns: int | None) -> None:
    """The outermost time wins: a scheduler writes it before every line, so the times of a file are comparable."""
    if parsed.time_ns is None:
        parsed.time_ns = time_ns


# Keys of the message, of its time and of who wrote it, in loggers that write each line as an object: Docker's
# json-file, Python's and Go's (zap, zerolog, slog), Kubernetes' and Google's.
_MESSAGES = ("log", "message", "msg", "textPayload", "text")
_TIMES = ("time", "timestamp", "ts", "@timestamp")
_HOSTS = ("hostname", "host", "node", "pod")


def _structured(parsed: ParsedLine) -> None:
    """A line that is an object of JSON with a text for a message: {"log":"text\\n","time":"2025-11-09T15:39:31Z"}."""
    try:
        line = json.loads(parsed.text)
        text = next(line[key] for key in _MESSAGES if isinstance(line.get(key), str))
    except (ValueError, StopIteration, AttributeError, RecursionError):
        return
    host = next((line[key] for key in _HOSTS if isinstance(line.get(key), str)), "")
    parsed.text, parsed.any, parsed.host = plain(text.rstrip("\r\n").rpartition("\r")[2]), True, _host(host)
    if isinstance(rank := line.get("rank"), int) and not isinstance(rank, bool) and 0 <= rank < MOST_RANKS:
        parsed.rank, parsed.rank_from = rank, "rank=N"
    _time_of(parsed, next((line[key] for key in _TIMES if isinstance(line.get(key), str)), ""))


def _time_of(parsed: ParsedLine, time: str) -> None:
    if match := ISO.match(time):
        parsed.time_ns = iso_ns(match)


def _unescaped(text: str) -> str:
    """The first line of a string of JSON that may end early."""
    try:
        return plain(str(json.loads(f'"{text}"')).partition("\n")[0])
    except ValueError:
        return text


def _host(name: str) -> str:
    """A name safe to show: without control characters and changes of direction."""
    return name if name.isprintable() else "".join(filter(str.isprintable, name))


# -- File names: the rank whose log it is ------------------------------------------------------------------------------

_RUN = re.compile(r"(?:^|/)ranks/(\d{5,})/[^/]+$")  # a run directory of this project
_LOCAL = re.compile(r"(?:^|/)attempt_\d+/(\d+)/std(?:out|err)\.log(?:\.gz|\.zst)?$|local_?rank[_.-]?(\d+)(?!\d)")
_GLOBAL = re.compile(r"(?:^|[/._-])(?:rank[_.-]?|log_)(\d+)(?=[/._-]|$)", re.IGNORECASE)
_NAMED_NODE = re.compile(r"(?:node|local|group|machine)[_.-]?rank", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedRank:
    rank: int | None = None  # global
    local_rank: int | None = None


def named(path: str) -> NamedRank:
    """The rank in a file name: rank3.log, log_3, rank_3/err.txt and ranks/00003/log.txt are global; torchrun's
    attempt_0/3/stderr.log is local."""
    if match := _RUN.search(path):
        return NamedRank(rank=int(match[1]))
    if match := _LOCAL.search(path):
        return NamedRank(local_rank=int(match[1] or match[2]))
    name = "/".join(path.rsplit("/", 2)[-2:])  # a folder further up names the job, if anything
    numbers = [int(match[1]) for match in _GLOBAL.finditer(name)]
    if not numbers or _NAMED_NODE.search(name) or numbers[-1] >= MOST_RANKS:
        return NamedRank()
    return NamedRank(rank=numbers[-1])
