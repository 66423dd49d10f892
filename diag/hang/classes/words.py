"""What a line says failed, in the words of any program: errors of the operating system by their text, name or number,
signals and exit codes, status codes, and verbs of failing with what they are about.

The words are those of POSIX, of gRPC, of InfiniBand's verbs and of the runtimes of devices, and English; none is of one
program. ``diag.hang.rules.general`` asks them where no rule knows more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from diag.ended.codes import Signal, fault_of_signal, signal_number
from diag.hang.classes.base import cut_off, unquoted
from diag.hang.policy import HANG_RULES

# Errors of Linux by name, with number and text (errno-base.h, errno.h; glibc): logs are read on other systems as well.
LINUX = {
    "ECONNREFUSED": (111, "Connection refused"),
    "ETIMEDOUT": (110, "Connection timed out"),
    "EHOSTUNREACH": (113, "No route to host"),
    "ENETUNREACH": (101, "Network is unreachable"),
    "EHOSTDOWN": (112, "Host is down"),
    "ENETDOWN": (100, "Network is down"),
    "ECONNRESET": (104, "Connection reset by peer"),
    "EPIPE": (32, "Broken pipe"),
    "ECONNABORTED": (103, "Software caused connection abort"),
    "ENOTCONN": (107, "Transport endpoint is not connected"),
    "ESHUTDOWN": (108, "Cannot send after transport endpoint shutdown"),
    "ENETRESET": (102, "Network dropped connection on reset"),
    "EADDRINUSE": (98, "Address already in use"),
    "EADDRNOTAVAIL": (99, "Cannot assign requested address"),
    "ENOSPC": (28, "No space left on device"),
    "EDQUOT": (122, "Disk quota exceeded"),
    "EROFS": (30, "Read-only file system"),
    "ESTALE": (116, "Stale file handle"),
    "ENOLCK": (37, "No locks available"),
    "EFBIG": (27, "File too large"),
    "EREMOTEIO": (121, "Remote I/O error"),
    "EIO": (5, "Input/output error"),
    "EOPNOTSUPP": (95, "Operation not supported"),
    "ENOTSUP": (95, "Operation not supported"),
    "ENXIO": (6, "No such device or address"),
    "ENOMEM": (12, "Cannot allocate memory"),
    "ENOBUFS": (105, "No buffer space available"),
    "EPROTO": (71, "Protocol error"),
    "EPROTONOSUPPORT": (93, "Protocol not supported"),
}
# Python's names of errors of connections (Objects/exceptions.c; http.client has one of its own)
_OF_PYTHON = {
    "ECONNREFUSED": "ConnectionRefusedError",
    "ECONNRESET": "ConnectionResetError|RemoteDisconnected",
    "EPIPE": "BrokenPipeError",
    "ECONNABORTED": "ConnectionAbortedError",
}
_REFUSED = ("ECONNREFUSED",)
_SILENT = ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN")
_CLOSED = ("ECONNRESET", "EPIPE", "ECONNABORTED", "ENOTCONN", "ESHUTDOWN", "ENETRESET")
_IN_USE = ("EADDRINUSE", "EADDRNOTAVAIL")
_OF_FILE_SYSTEMS = ("ENOSPC", "EDQUOT", "EROFS", "ESTALE", "ENOLCK", "EFBIG", "EREMOTEIO")
_OF_FILES = ("EIO", "EOPNOTSUPP", "ENOTSUP", "ENXIO")
_OF_MEMORY = ("ENOMEM",)
_OF_CALLS = ("EIO", "ENOBUFS", "EPROTO", "EPROTONOSUPPORT")


def _any_of(errors: Sequence[str]) -> str:
    """These errors by their text, also where the end of a paste cuts it off, by their name, and by their number behind
    the word errno."""
    texts = [LINUX[name][1] for name in errors]
    cut = [cut_off(text, text.index(" ") + HANG_RULES.letters_of_error) for text in texts if " " in text]
    words = "|".join((*(rf"{re.escape(text)}\b" for text in texts), *cut))
    names = "|".join((*errors, *(_OF_PYTHON[name] for name in errors if name in _OF_PYTHON)))
    codes = "|".join(str(LINUX[name][0]) for name in errors)
    return rf"(?:\b(?i:{words})|(?<![A-Za-z0-9])(?:{names})\b|(?i:\b(?:errno|os error)\W{{0,3}}(?:{codes})\b))"


_CANNOT = r"\b(?:fail(?:ed|s|ure)?(?: to)?|unable to|cannot|can't|could(?: not|n't))"
_DEVICE = (
    r"(?:(?<![\w.-])(?i:gpu|cuda|hip|rocm|npu|hpu|xpu|tpu|mlu|musa|gcu|sdaa|dcu|hbm|vram|accelerator|device)"
    r"(?:s|:? ?\d{1,2})?(?![\w-])|"
    r"\bcuda?[A-Z]\w+|\bCUDA_\w+|\bhip[A-Z]\w+|\bacl[a-z]\w+)"
)
_LACK = (
    r"(?i:\bout[- ]of[- ](?:\w+ ){0,3}memory\b|\bOOM\b|\b(?:insufficient|not enough|no more|no free|too little) "
    rf"(?:\w+ ){{0,3}}memory\b|\bmemory (?:is )?exhausted\b|\bresource_?exhausted|\bbad_alloc\b|{_CANNOT}"
    r"(?: \w+){0,3} alloc\w*|\balloc\w*(?: \w+){0,4} fail\w*)|_OUT_OF_(?:HOST_|DEVICE_)?MEMORY\b|"
    r"MEMORY_ALLOCATION\b|MemoryAllocation\b"
)
_NETWORK = (
    r"(?i:\b(?:sockets?|connect(?:s|ed|ing|ion|ions)?|endpoints?|channels?|peers?|tcp|grpc|rpc|rdma|ibv?_\w+|verbs|ucx|"
    r"ofi\w*|libfabric|fabric|fi_\w+|gni|infiniband|roce|network|ssh|rendezvous|remote|poll|qp|queue pair|"
    r"addr(?:ess)?|host(?:name)?s?|server|client|tracker|store)\b)|\b(?:IPV4|IPv6|UNAVAILABLE|Unavailable)\b|"
    r"\b(?:MPIDI?|GNI|UCS|UCX|FI|IBV|PSM2?|OFI|PMIX|HFI)_\w+"
)
_USED = (
    r"(?i:\bout[- ]of[- ]memory\b|\bmemory (?:usage|use|limits?|budget|pressure|quota)\b|\bexceed\w* (?:\S+ ){0,5}"
    r"memory\b|\boom[-_ ]?(?:kill\w*)?\b|\brss\b)"
)
_KILLS = r"(?i:\b(?:kill(?:ed|ing|s)?|terminat(?:ed|ing)|restart(?:ed|ing)|evict(?:ed|ing)|died)\b)"
_PATH = (
    r"(?i:\b(?:files?|path|disk|director(?:y|ies)|checkpoint|writ(?:e|ing)|read(?:ing)?|sav(?:e|ing)|volume|mount)\b)"
)
# The shared memory of a block of threads is another one.
_OF_A_KERNEL = r"(?i)\b(?:static|dynamic|per.block|kernel|triton|smem)\b|out of resource"
_TO_A_PEER = r"(?:accept|connect|resolve|reach|contact|send|receive|bind|listen|poll|post|register)\b"

# What takes a failure back, or says it only as one of several possibilities
_HEDGES = re.compile(
    r"(?i)\b(?:retry(?:ing)?|retries|will (?:re)?try|try(?:ing)? again|ignor(?:e|ed|ing)|skip(?:ped|ping)?|"
    r"fall(?:ing)? ?back|not an error|harmless|deprecated|disabled|if you|you (?:can|may|should|need)|to avoid|"
    r"set \w+ to|0 (?:\w+ )?(?:workers?|tasks?|processes|errors?|failures?)|warn(?:ing)?s?|may|might|suggest|consider|"
    r"or|e\.g|potential|possibl[ey]|perhaps|probably|likely)\b"
)
_COUNTS = re.compile(r"(?i)\bretry[ _]?c(?:ou)?nt(?:er)?")  # of transfers: no words on another try


@dataclass(frozen=True)
class Reading:
    """What a line is about that has all of ``words``. ``far``: the other end of a connection is where to look."""

    fault_class: str
    words: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None = None
    far: bool = False

    def fits(self, text: str) -> bool:
        return all(word.search(text) for word in self.words) and not (self.unless and self.unless.search(text))


def _reading(fault_class: str, *words: str, unless: str = "", far: bool = False) -> Reading:
    return Reading(fault_class, tuple(map(re.compile, words)), re.compile(unless) if unless else None, far)


_LINK_LOCAL = r"\bfe80::|\b169\.254\.\d"  # addresses that only the own link reaches

# The first that fits says it.
READINGS = (
    _reading(
        "shm_exhausted",
        r"(?i:/dev/shm\b|\bshm\b|\bshared memory\b|\bshm_open\b)",
        rf"{_any_of(('ENOSPC', 'ENOMEM', 'EDQUOT'))}|{_LACK}|"
        rf"(?i:\bbus error\b|\binsufficient\b|\btoo small\b|{_CANNOT}\b)",
        unless=_OF_A_KERNEL,
    ),
    _reading("storage", _any_of(_OF_FILE_SYSTEMS)),
    _reading("storage", _any_of(_OF_FILES), _PATH, unless=_NETWORK),
    _reading("cuda_oom", _LACK, _DEVICE),
    _reading(
        "gpu_hardware",
        _DEVICE,
        r"(?i:\buncorrectable\b|\bECC error|\bhardware (?:error|failure|fault)|\bnot usable\b|\bfallen off\b|"
        r"\bis lost\b)",
    ),
    _reading("rank_killed_sigkill", _USED, _KILLS),
    _reading("net_wrong_interface", _LINK_LOCAL, _any_of((*_REFUSED, *_SILENT, *_CLOSED))),
    _reading("net_connect_refused", _any_of(_REFUSED), far=True),
    _reading("net_bind_failed", _any_of(_IN_USE)),
    _reading("net_connect_timeout", _any_of(_SILENT), unless=rf"{_DEVICE}|/dev/", far=True),
    _reading(
        "net_no_interface",
        r"(?i:\bno (?:\w+ ){0,3}(?:interface|nic|adapter|hca)s?\b)",
        r"(?i:\b(?:found|available|detected|usable)\b)",
    ),
    _reading("net_connection_lost", _any_of(_CLOSED), far=True),
    _reading(
        "net_connection_lost",
        r"(?i:\b(?:socket|connection|channel|stream|pipe) (?:was |is |has been |got )?(?:closed|lost|reset|dropped|"
        r"broken|terminated)\b|\bunexpected (?:eof|end of (?:file|stream))\b|\blost connection\b)",
        rf"(?i:{_CANNOT}\b|\bfatal\b|\bunexpected\w*)|[Ee]rror\b|ERROR\b|Exception\b",
        far=True,
    ),
    _reading("memlock_limit", r"\bibv?_(?:create|reg|alloc|open)\w+", _any_of(_OF_MEMORY)),
    _reading(
        "ib_completion_error",
        r"(?i:\b(?:transport|rnr) retry count(?:er)? exceeded\b|\bremote (?:access|operation|invalid request) error\b|"
        r"\blocal (?:protection|length|access) error\b)|\bIBV_WC_(?!SUCCESS)\w+",
    ),
    _reading(
        "net_failure",
        _NETWORK,
        rf"{_any_of(_OF_CALLS)}|\b[A-Z]{{2,}}_\w*(?:ERROR|ERR)\w*\b|(?i:{_CANNOT} (?:\w+ ){{0,2}}{_TO_A_PEER}|"
        r"\b(?:undeliverable|unreachable)\b)",
        far=True,
    ),
    _reading(
        "cuda_failure",
        r"\b(?:CUDA_ERROR_\w+|cudaError[A-Z]\w+|hipError[A-Z]\w+|CU\w+_STATUS_(?!SUCCESS)\w+|ACL_ERROR\w*)|"
        r"(?i:\b(?:cuda|hip|npu|xpu|hpu|device|gpu) (?:\w+ )?(?:error|failure)\b)",
        unless=r"\bnccl(?!UnhandledCuda)[A-Z]",  # a code of NCCL, whatever the words call it
    ),
)

# Literals of lines that a reader keeps for these readings, of which healthy programs print few
LITERALS = (
    *(LINUX[name][1][1:] for name in (*_REFUSED, *_SILENT, *_CLOSED, *_IN_USE, *_OF_FILE_SYSTEMS, "EIO")),
    *(*_REFUSED, *_SILENT, *_CLOSED, *_IN_USE, *_OF_FILE_SYSTEMS),
    *(
        "emoteDisconnected",
        "ocket closed",
        "onnection closed",
        "onnection lost",
        "onnection was closed",
        "nexpected EOF",
        "IBV_WC_",
    ),
    *("ut of memory", "OUT_OF_MEMORY", "UT_OF_DEVICE_MEMORY", "CUDA_ERROR_", "cudaError", "hipError", "ncorrectable"),
    *("SIGKILL", "SIGBUS", "SIGSEGV", "SIGILL", "SIGFPE", "xceeded memory", "memory limit", "memory budget"),
)

_SIGNAL = re.compile(
    r"(?i:\bsignal[ :#=(]{0,3})(?P<number>\d{1,2})\b|\b(?P<name>SIG(?:KILL|BUS|SEGV|ILL|FPE))\b|"
    r"\b(?P<words>[Ss]egmentation [Ff]ault|(?<!PCIe )[Bb]us [Ee]rror|[Ii]llegal instruction)\b|"
    r"(?i:\b(?:exit(?:ed|s)?|return(?:ed)?|exit ?status|exit ?code|status|code)\b[^\d-]{0,24})"
    r"(?P<code>-\d{1,2}|1[34]\d)\b"
)
_NAMES = {"segmentation": Signal.SIGSEGV, "bus": Signal.SIGBUS, "illegal": Signal.SIGILL}
_ENDS = re.compile(
    r"(?i)\b(?:kill(?:ed|s)?|terminat\w+|die[ds]?|crash\w*|abort\w*|receiv\w+|caught|catch\w*|exit\w*|core dumped|"
    r"fatal|violation|fault|error|fail\w*)\b"
)


def reading_of(text: str) -> Reading | None:
    """What a line says failed; None where it says nothing of the kind, or hedges."""
    text = unquoted(text)
    if _HEDGES.search(_COUNTS.sub("", text)):
        return None
    return next((reading for reading in READINGS if reading.fits(text)), None) or _of_a_signal(text)


# What a process that says it is itself the one to have: not the other end of a connection
_OF_THE_PROCESS = ("storage", "cuda_oom", "gpu_hardware")
_SENTENCE = re.compile(r"[^.;(]{1,200}")


def reading_of_own(message: str) -> str:
    """The class of what the first words of an exception's message say that its process lacks: memory, a file system, a
    device; "" where they say nothing of the kind. Advice follows behind them."""
    reading = reading_of(words[0].strip()) if (words := _SENTENCE.match(message)) else None
    return reading.fault_class if reading is not None and reading.fault_class in _OF_THE_PROCESS else ""


def _of_a_signal(text: str) -> Reading | None:
    match = _SIGNAL.search(text)
    if match is None or not _ENDS.search(text):
        return None
    if match["number"]:
        number = int(match["number"])
    elif match["code"]:
        number = signal_number(int(match["code"]))
    else:
        number = Signal[match["name"]] if match["name"] else _NAMES[match["words"].split()[0].lower()]
    fault = fault_of_signal(number)
    return Reading(fault, ()) if fault else None


_FAR = re.compile(
    r"(?:\b(?:ipv[46]|tcp|http|grpc|dns)s?:/{0,3}(?:[\w.-]{1,64}/)?|[\s(\[<'\"@=]|^)(?!ipv[46]:)"
    r"(?P<host>\d{1,3}(?:\.\d{1,3}){3}|(?:[a-z][\w-]{0,62}\.){1,8}[a-z][\w-]{1,62}|[a-z][\w-]{0,62}(?=:\d{2,5}\b))"
    r"(?:[:<]\d{1,5}>?)?(?![\w.])"
)
# The one that reports, as Spark's driver names it (core/.../scheduler/TaskSetManager.scala), and not the other end
_EXECUTOR = re.compile(r"\([\w.:-]{1,255} executor \w{1,20}\)|\bexecutor \w{1,20} on [\w.-]{1,253}")
_OF_SOURCES = re.compile(r"\.(?:py|cc?|cpp|cu|cuh|h|hpp|so|rs|go|java|jl|f90|json|ya?ml|txt|log|sh)$")
_FAR_RANK = re.compile(r"\b(?:with|to|from|peer|reach) (?:MPI |global )?rank[ =:#]{0,2}(?P<rank>\d{1,6})\b")
_PCI = re.compile(r"\b(?:[0-9a-f]{4,8}:)[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


def far_host(text: str) -> str:
    """The one host or address that a line names; "" where it names none or several."""
    text = _EXECUTOR.sub("", text)
    hosts = {match["host"] for match in _FAR.finditer(text) if not _OF_SOURCES.search(match["host"])}
    return hosts.pop() if len(hosts) == 1 else ""


def far_rank(text: str) -> int | None:
    """The rank at the other end, where a line names one."""
    match = _FAR_RANK.search(text)
    return int(match["rank"]) if match is not None else None


def device_address(text: str) -> str:
    """The PCI address that a line names; "" where it names none or several."""
    found = set(_PCI.findall(text))
    return found.pop() if len(found) == 1 else ""
