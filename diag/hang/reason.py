"""From logs, dumps and run directories to one answer. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from diag.ended.model import Clue, Culprit, Source, headline
from diag.ended.policy import ENDED
from diag.ended.raised import shortened
from diag.ended.state import EndedWell, Standing
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.confidence import doubts_of, fitted, named
from diag.hang.failures import (
    TIMED_OUT,
    Timeout,
    actor_above,
    ended_well,
    groups_of,
    in_order,
    is_measurement,
    is_step,
    last_words,
    recorded_as_done,
    timeouts_of,
)
from diag.hang.flight import FlightFindings
from diag.hang.job import JobLogs, distinct
from diag.hang.model import Known, Line, Logs, Role, RuledOut, Triage, absent_of
from diag.hang.order import Chosen, Confidence, attributed, choose, confidence_of, merged
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE, HANG_RULES
from diag.hang.progress import AtWork, goes_on
from diag.hang.rules import OF_LINES, RULES
from diag.hang.rules.exceptions import victims_of
from diag.hang.rules.general import clues as general
from diag.hang.rules.network import ends_on_its_host, interface_words
from diag.hang.rules.waiting import (
    ThreadStack,
    in_one_place,
    merged_stacks,
    shown_stacks,
    stacks_of,
    stacks_without_rank,
)
from diag.hang.telling import last_telling, quoted, state_words, states_of
from diag.hang.wording import NOBODY_IS_MISSING, STARTED_WHERE, steps
from diag.words.formatting import begun, counted, elapsed, listing, spaced

# -- Without a known cause: healthy, a lost store, or undetermined -----------------------------------------------------

_STORE = ("store-get", "should-dump", "recv-value", "jax-leader", "agent-lost-store")
_LOST_BY = ("should-dump", "recv-value")
_REMOTE = re.compile(r"^\[?(?P<host>[^\]\s:]+(?::[^\]\s:]+)*?)\]?(?::\d+)?$")
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?::|$)|^(?:\S+: )?Test \w+ failure ")
_LAUNCHER_ERROR = re.compile(r"^[a-z]\w*: error: ")
_LAST_ERROR = re.compile(r"^\s*Last error:\s*$")
_ADVICE = ("unused-not-found", "strides", "uneven-inputs")
UNKNOWN = "The logs do not show the state of the job."
_SPEED = (
    "Only a warning about speed was read, which DDP prints while a training runs, and which is no error. Whether the "
    "training went on is not in the log."
)
_TRAINED = "Whether other steps followed the last one is not in the logs."
_WARNINGS = "No known log pattern matches. The evidence is the first warning of each process."


@dataclass(frozen=True)
class NoCause:
    fault_class: str
    confidence: float
    headline: str
    culprits: tuple[Culprit, ...]
    lines: tuple[Line, ...]
    steps: tuple[str, ...] = ()  # before those of the class
    evidence: tuple[Source, ...] = ()  # of another source than the logs


def without_cause(job: JobLogs, reports: Sequence[Timeout]) -> NoCause:
    alarms = _alarms(job)
    died = job.named("ray-worker-died", "raylet-ended")
    if died and not reports:
        return _worker_died(job, died)
    store = [hit for hit in job.named(*_STORE) if not in_order(job, hit.line)]
    store = [hit for hit in store if hit.name != "store-get" or not TIMED_OUT.search(hit.line.text)]
    if store and not reports:
        ends = [Culprit(host=match["host"]) for hit in store if (match := _REMOTE.match(hit.groups.get("remote", "")))]
        alive = {job.rank_of(hit.line) for hit in store if hit.name in _LOST_BY}
        zero = [] if 0 in alive else [job.of_rank(0)]
        where = "its host" if ends else "rank 0, which serves it," if zero else "the launcher, which serves it here,"
        return NoCause(
            "cascade_store_lost",
            0.5,
            f"The store of the job is gone, and no log line shows why. Look at {where} first. {_most_said(store)}",
            distinct(ends or zero),
            tuple(hit.line for hit in store[: HANG_ANSWER.most_next_steps]),
        )
    if reports:
        return _only_timeouts(job, reports)
    waits = [m for c in job.communicators for m in c.members if m.started and not m.completed and not m.ended]
    if waits:
        lines = tuple(line for line in job.logs.lines if "Init START" in line.text)
        text = "The initialisation of a communicator began and was not completed, and no log line shows why."
        return NoCause("undetermined", 0.4, text, (), lines[: HANG_ANSWER.most_next_steps])
    lost = job.once(victims_of)
    if lost:
        return _only_victims(job, lost)
    if alarms:
        first = alarms[0]
        return NoCause("undetermined", 0.3, _WARNINGS, (), (first, *alarms[1 : HANG_ANSWER.most_next_steps]))
    return _healthy_or_unknown(job)


def _most_said(hits: Sequence[Hit]) -> str:
    """The sentence of the hit with the most values: an address, a port."""
    return max(hits, key=lambda hit: len(hit.groups)).sentence


def _worker_died(job: JobLogs, died: Sequence[Hit]) -> NoCause:
    """Ray reports the end of a process and lists all that may end one."""
    named = [hit for hit in died if "host" in hit.groups] or list(died)
    hosts = ", ".join(dict.fromkeys(hit.groups["host"] for hit in named if "host" in hit.groups))
    where = f"On {hosts}" if hosts else "On the host of that worker"
    own = "raylet.out and raylet.err" if named[0].name == "raylet-ended" else "the worker's own log"
    look = (
        f"{where}: {own} (`/tmp/ray/session_latest/logs`{', by its pid' * (named[0].name != 'raylet-ended')}) and "
        "`dmesg -T | grep -i 'killed process'`."
    )
    return NoCause(
        "undetermined",
        0.3,
        named[0].sentence if hosts else _actor_words(job, named[0]),
        (),
        tuple(hit.line for hit in named[: HANG_ANSWER.most_next_steps]),
        (look,),
    )


def _actor_words(job: JobLogs, died: Hit) -> str:
    """As the line says it, with the name, process and address of the actor that Ray prints before it."""
    known = actor_above(job, died.line)
    parts = [known.get("name", ""), f"pid {known['pid']}" if "pid" in known else "", known.get("ip", "")]
    words = ", ".join(part for part in parts if part)
    return died.sentence.replace(" die", f" die ({words})", 1) if words else died.sentence


def _only_victims(job: JobLogs, lost: Mapping[int, Line]) -> NoCause:
    """The answer where ranks raised only errors about their peers: which rank raised first, and which raised none."""
    lines = sorted(lost.items(), key=lambda item: item[1].time_ns or 0)
    ranks = spaced(listing(sorted(lost)))
    text = f"Only errors that a failure elsewhere can cause were found, on {ranks}, and none that explains them."
    ends = (Ended((rank, line), line.time_ns) for rank, line in lines)
    left = who_left(ends, HANG_EVIDENCE.clocks_of_hosts_ns, lambda one, other: job.before(one.who[1], other.who[1]))
    if len(left.first) == 1 and left.later:
        text += f" Rank {left.first[0][0]} raised first."
    world = range(
        job.logs.world_size
        if job.logs.world_size is not None and job.logs.world_size <= HANG_ANSWER.most_ranks_named
        else 0
    )
    rest = [rank for rank in world if rank not in lost]
    if rest:
        text += f" No exception was found for {spaced(listing(rest))}: look there first."
    return NoCause("undetermined", 0.3, text, (), tuple(line for _, line in lines)[: HANG_ANSWER.most_next_steps])


def _only_timeouts(job: JobLogs, reports: Sequence[Timeout]) -> NoCause:
    groups = groups_of(job, reports)
    where: tuple[str, ...] = ()
    main = max(groups, key=lambda group: len(group.reports))
    calls = {report.call for report in main.reports}
    ranks = len(main.reports)
    if len(calls) == 1 and main.is_whole:
        text = f"All {ranks} ranks of {main.words} launched {main.reports[0].words}, and none finished it: no rank is "
        text += "missing. A GPU is busy with earlier work, or a GPU or a link between them stands still."
        where = (NOBODY_IS_MISSING, STARTED_WHERE)
    else:
        unknown = "" if main.members is not None else " The size of the group is unknown."
        some = f"{ranks} rank{'s' if ranks > 1 else ''}"
        if any(report.rank is None for report in main.reports):
            some = "At least one process whose rank in the job no line shows"
        waits = Counter(report.words for report in main.reports)
        calls_of_all = ", ".join(f"{call} ({count})" if len(waits) > 1 else call for call, count in waits.most_common())
        text = f"{some} timed out in {calls_of_all}; which ranks are missing is unknown."
        text += unknown
    least = min((r.timeout_ms for r in reports if r.timeout_ms is not None), default=None)
    if least is not None and least < HANG_EVIDENCE.too_short_timeout_ms:
        text += f" The timeout of the group is only {least:,} ms, shorter than a first collective takes: raise it."
    if any(report.late for report in reports):
        text += " It ran for more than twice its timeout: the watchdog itself was blocked."
    lines = tuple(report.line for report in reports[: HANG_ANSWER.most_next_steps])
    return NoCause("undetermined", 0.4, text, (), lines, where)


def _alarms(job: JobLogs) -> list[Line]:
    """The first warning or error of every process that no healthy run prints."""
    harmless = {hit.line for hit in job.hits if hit.pattern.role == Role.HARMLESS}
    cascades = {hit.line for hit in job.hits if hit.pattern.role == Role.CASCADE}
    alarms: dict[object, Line] = {}
    for line in job.logs.lines:
        warned = (line.source, line.level) in (("nccl", "WARN"), ("torch", "ERROR"))
        is_cascade = line in cascades and not in_order(job, line)
        if (warned or is_cascade) and line not in harmless and not in_order(job, line):
            speaker = line.speaker
            alarms.setdefault((line.path, speaker.host, speaker.pid, speaker.rank), line)
    return list(alarms.values())


def _healthy_or_unknown(job: JobLogs) -> NoCause:
    """ "healthy" only where the job ended in order, or its last step is no older than its steps are apart."""
    members = [m for c in job.communicators for m in c.members]
    largest = max(job.communicators, key=lambda c: c.size, default=None)
    harmless = [hit.line for hit in job.hits if hit.fault_class.id == "harmless"]
    complete = [line for line in job.logs.lines if "COMPLETE" in line.text]
    lines = tuple(dict.fromkeys((*complete[: HANG_ANSWER.most_next_steps], *harmless)))[: HANG_ANSWER.most_next_steps]
    doubt = _doubt(job)
    if job.once(ended_well) and not _another_job(job):
        lines = tuple(dict.fromkeys((*job.once(last_words), *lines)))[: HANG_ANSWER.most_next_steps]
        text = _of_a_test(job) or "The training printed that it reached its end, and nothing failed."
        return NoCause("healthy", HANG_EVIDENCE.ended_well, text, (), lines)
    if recorded := recorded_as_done(job):
        text = "The scheduler recorded that it ended with exit code 0, and nothing else in the logs tells of a failure."
        return NoCause("healthy", HANG_EVIDENCE.ended_well, text, (), tuple(recorded[: HANG_ANSWER.most_next_steps]))
    whole = largest is not None and len(largest.members) == largest.size and all(m.completed for m in members)
    if whole and all(m.ended == "destroyed" for m in members):
        return NoCause("healthy", 0.9, "The run ended in order: every communicator was destroyed.", (), lines)
    if doubt:
        return NoCause("undetermined", 0.4, doubt, (), lines)
    working = goes_on(job)
    if working is not None and (working.works or working.stands_still):
        return _at_work(working)
    if whole and largest is not None and working is not None:
        return _at_work(working, f"All {largest.size} ranks are initialised. ")
    trained = any(is_step(line) and not is_measurement(line) for line in job.logs.lines)
    if whole and largest is not None:
        untrained = ". No log line shows a training step or reports a problem."
        steps = f", and steps were made. No log line reports a problem. {_TRAINED}" if trained else untrained
        text = f"All {largest.size} ranks are initialised{steps}"
        return NoCause("undetermined", 0.4, text, (), lines)
    if members and largest is not None:
        text = f"{len(largest.members)} of {largest.size} ranks were read, and their logs report no problem."
        return NoCause("undetermined", 0.4, text, (), lines)
    errors = _errors(job)
    if errors:
        # A launcher's message is the end of the process, an exception the reason.
        last = ([line for line in errors if not _LAUNCHER_ERROR.match(line.text)] or errors)[-1]
        words = shortened(last.text.strip(), HANG_ANSWER.quoted_chars)
        text = f"No known log pattern matches. The last error in the logs: {words}"
        return NoCause("undetermined", 0.3, text, (), tuple(errors[-HANG_ANSWER.most_next_steps :]))
    if working is not None:
        return _at_work(working)
    if _only_about_speed(job):
        return NoCause("undetermined", 0.3, _SPEED, (), tuple(harmless[:3]))
    if harmless:
        what = f"steps of a training. {_TRAINED}" if trained else "no training step or end of the job."
        text = f"The logs hold only lines that healthy runs also print, and {what}"
        return NoCause("undetermined", 0.3, text, (), tuple(harmless[: HANG_ANSWER.most_next_steps]))
    return NoCause("undetermined", 0.2, UNKNOWN, (), ())


def _at_work(work: AtWork, before: str = "") -> NoCause:
    """The answer where nothing but work is at the end of the logs."""
    lines = work.lines[-HANG_ANSWER.most_next_steps :]
    if work.works:
        ask = f"It hangs if no line comes for {elapsed(work.longest_ns)}: ask again then."
        return NoCause("healthy", HANG_EVIDENCE.steps_go_on, work.headline, (), lines, (ask,))
    sure = 0.4 if work.stands_still else HANG_EVIDENCE.knows_little
    return NoCause("undetermined", sure, before + work.headline, (), lines)


def _only_about_speed(job: JobLogs) -> bool:
    """Whether the text is nothing but DDP's advice about speed, which it prints in the first backward pass. Where the
    start of a training comes before it and no step after it, the training may hang there."""
    ends = {line.path: line.number for line in job.logs.last_lines}
    hits = [hit for hit in job.hits if hit.name not in _ADVICE]
    advice = [hit.line for hit in job.named(*_ADVICE)]
    near = all(ends.get(line.path, 0) - line.number <= HANG_ANSWER.lines_of_advice for line in advice)
    short = all(end <= HANG_ANSWER.lines_of_advice for end in ends.values())
    begins = {line.path: line.number for line in reversed(advice)}
    alone = all(number <= HANG_ANSWER.lines_before_advice + 1 for number in begins.values())
    return bool(advice) and not hits and near and short and alone


def _of_a_test(job: JobLogs) -> str:
    """What a test of NCCL's bandwidth showed; "" where the logs are of a training."""
    ends = job.named("ended-well")
    if not ends or not all(hit.line.text.startswith("# Out of bounds") for hit in ends):
        return ""
    speeds = [hit.groups["speed"] for hit in job.named("bus-bandwidth")]
    average = f", with {' and '.join(speeds)} GB/s of bus bandwidth on average" if speeds else ""
    return (
        f"nccl-tests ran to its end with correct results{average}. It is no training: whether its speed is right, a "
        "run on other hosts or the nominal rate of the links shows."
    )


def _errors(job: JobLogs) -> list[Line]:
    """Exceptions and errors of launchers, in the order of the files. torch's exceptions quote NCCL below "Last error:",
    which says more than they do."""
    errors = []
    before = None
    for line in job.logs.lines:
        quoted = before is not None and _LAST_ERROR.match(before.text) and _follows(before, line) and line.text.strip()
        error = quoted or _EXCEPTION.match(line.text) or _LAUNCHER_ERROR.match(line.text)
        if error and not in_order(job, line):
            errors.append(line)
        before = line
    return errors


def _follows(before: Line, line: Line) -> bool:
    return (line.path, line.number, line.speaker) == (before.path, before.number + 1, before.speaker)


def _doubt(job: JobLogs) -> str:
    """Why the answer is not "healthy" although no line complains; "" where nothing contradicts it."""
    local = [interface for interface in job.interfaces if ends_on_its_host(interface)]
    if local:
        names = interface_words(local)
        return f"No log line reports a problem, but NCCL uses {names}, which cannot reach other hosts."
    versions = {process.nccl_version.partition("+")[0] for process in job.logs.processes} - {""}
    if len(versions) > 1:
        return f"No log line reports a problem, but the processes load NCCL {' and '.join(sorted(versions))}."
    return ""


def _another_job(job: JobLogs) -> bool:
    """Whether a file holds all ranks of a job and no orderly end, while another file has one."""
    ended = {line.path for line in job.once(last_words)}
    for communicator in job.communicators:
        paths = {
            path
            for member in communicator.members
            if member.process is not None
            for path in job.logs.processes[member.process].paths
        }
        whole = len(communicator.members) == communicator.size == job.logs.world_size
        if whole and len(paths) == 1 and not paths & ended and not all(m.ended for m in communicator.members):
            return True
    return False


# -- What to collect: logs and dumps that would show more --------------------------------------------------------------

NCCL_LOGS = "Next run: NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,COLL NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log."
DUMPS = (
    "Next run: TORCH_FR_BUFFER_SIZE=2000 (alias TORCH_NCCL_TRACE_BUFFER_SIZE) TORCH_NCCL_DUMP_ON_TIMEOUT=1 "
    "TORCH_FR_DUMP_TEMP_FILE=/shared/fr_rank_, and give the dumps of all ranks."
)
DETAIL = "Next run: TORCH_DISTRIBUTED_DEBUG=DETAIL checks that all ranks make the same calls (slow, for finding out)."
STACKS = "While it hangs: py-spy dump of the process of every rank, into files to be given as well."


def ranks_not_read(job: JobLogs) -> tuple[int, ...]:
    """Ranks whose logs were not read; empty where the world size is not known."""
    world = job.logs.world_size
    if world is None:
        return ()
    read = set(job.by_rank) | {line.speaker.rank for line in job.logs.lines}
    return tuple(rank for rank in range(world) if rank not in read)


# Variables and tools of NCCL: of no use to a job with another backend, or without a process group.
_OF_NCCL = re.compile(r"\bNCCL_[A-Z*]|\bTORCH_(?:NCCL|FR)_[A-Z]")
# Its messages. A variable of its name is also printed by a job that does not use it.
_BY_NCCL = re.compile(r"\b(?:ProcessGroup|Work)NCCL\b|\bNCCL [a-zA-Z]|\bnccl[A-Z]\w")
# torch's own words, and those of CUDA: a job that prints none of them may use any library, or none.
_BY_TORCH = re.compile(r"\btorch\b|\[rank\d|\bc10d\b|\bCUDA\b|\bcuda\w*\(|\bHIP\b|\bNCCL_\w+|\bNVRM\b")
_NOT_NCCL = re.compile(r"\bgloo/|\bProcessGroupGloo\b|\bhccl|\bHCCL|\bProcessGroupMPI\b|\bdevice=cpu\b")
_TOOL = re.compile(r"\b(?:TORCH|NCCL)_[A-Z_]+(?==)|\bpy-spy\b")


def may_use_nccl(job: JobLogs, backends: Collection[str]) -> bool:
    """Whether NCCL's variables may show more: not for a job of one process, or one that only uses another backend.
    ``backends``: from its records; without them the logs decide."""
    if job.logs.world_size == 1:
        return False
    if backends:
        return any("nccl" in name or name == "undefined" for name in backends)
    if job.logs.communicators or any(process.nccl_version for process in job.logs.processes):
        return True
    if any(line.source == "nccl" or _BY_NCCL.search(line.raw) for line in job.logs.lines):
        return True
    by_torch = any(_BY_TORCH.search(line.raw) for line in job.logs.lines)
    return by_torch and not any(_NOT_NCCL.search(line.raw) for line in job.logs.lines)


def fitting(advice: Sequence[str], nccl: bool) -> tuple[str, ...]:
    """The steps in their order, without those of NCCL where the job does not use it, and without one whose variable or
    tool an earlier step names."""
    named: set[str] = set()
    steps: list[str] = []
    for step in advice:
        tools = _TOOL.findall(step)
        if (not nccl and _OF_NCCL.search(step) and "GLOO_" not in step) or step in steps or named & set(tools[:1]):
            continue
        named.update(tools)
        steps.append(step)
    return tuple(steps)


def what_to_collect(
    job: JobLogs, known: Known, dumps_read: bool, timed_out: bool, said: bool = False
) -> tuple[str, ...]:
    """Sentences, the cheapest first. ``said``: a line says what failed, and only where is not known."""
    if job.logs.world_size == 1:
        return ()
    advice = []
    absent = job.once(ranks_not_read)
    if absent:
        advice.append(f"Give the logs of {spaced(listing(absent))}: no line was read.")
    elif job.logs.world_size is None:
        advice.append("Give the logs of all ranks: their number is unknown.")
    if job.logs.deduplicated:
        advice.append("Ray left lines out: RAY_DEDUP_LOGS=0, or the workers' own log files.")
    if said:
        return tuple(advice)
    if not known.ended and not known.stacked and not known.recorded:
        advice.append(STACKS)
    if not job.logs.communicators or not any(m.calls for c in job.logs.communicators for m in c.members):
        advice.append(NCCL_LOGS)
    if not dumps_read and not known.recorded:
        advice.append(DUMPS)
    if timed_out:
        advice.append(DETAIL)
    return tuple(advice)


def reason(
    logs: Logs,
    dumps: FlightFindings = FlightFindings(),  # noqa: B008 -- frozen
    from_runs: Sequence[Clue] = (),
    well: EndedWell | None = None,
    state: Standing | None = None,
    backends: Collection[str] = (),
    pids: Mapping[int, int] = MappingProxyType({}),
    ended: bool = False,
    recorded: bool = False,
) -> Triage:
    """The triage; "undetermined" with what is missing where no rule names a cause. ``from_runs``: clues of run
    directories; ``well``: a run that is known to have ended well; ``state``: where its ranks are, otherwise;
    ``backends``: of its process groups, as far as they are known; ``pids``: by rank; ``ended``: the run is known to
    have ended; ``recorded``: as of ``Known``."""
    # The records of a run say by themselves whether it stands still.
    job = JobLogs(logs if state is None else replace(logs, written={}))
    known = _known(job, pids, ended, recorded)
    reports = job.once(timeouts_of)
    of_lines, of_ranks = (
        [clue for rule in RULES if (rule in OF_LINES) is is_line for clue in rule(job)] for is_line in (True, False)
    )
    of_lines = attributed(of_lines)
    from_text = [*of_lines, *of_ranks]
    from_dumps = [_with_hosts(job, clue) for clue in dumps.clues]
    first = job.first_timeout()
    chosen = choose(merged([*from_text, *from_runs, *from_dumps]), first.time_ns if first is not None else None)
    sure_of_one = any(clue.confidence >= ENDED.sure_enough for clue in chosen.clues)
    if not (reports or well is not None or job.once(ended_well) or sure_of_one):
        read = choose(general(job), None)
        chosen = chosen if read.cause is None else replace(read, others=(*read.others, *chosen.clues))
    if chosen.cause is not None:
        sure = confidence_of(chosen.cause, chosen.others)
        least = HANG_EVIDENCE.sure_enough_of_dumps if chosen.cause.from_dumps else ENDED.sure_enough
        if sure.value >= (ENDED.sure_enough_of_a_good_end if well is not None and not reports else least):
            answer = _with_cause(job, chosen, chosen.cause, sure, reports, dumps, known)
            by_line = not from_runs and well is None and state is None and sure.of_evidence >= ENDED.weak
            if by_line and any(chosen.cause is clue for clue in of_lines):
                answer = _fitted(answer, chosen.cause, sure)
            return replace(answer, next_steps=fitting(answer.next_steps, may_use_nccl(job, backends)))
    if well is not None and not reports:  # whatever its logs warn of
        coverage, gaps = _coverage(job, dumps, None), (*job.logs.gaps, *dumps.gaps)
        answer = Triage("healthy", well.confidence, well.headline, evidence=well.evidence)
        return replace(answer, coverage=coverage, gaps=gaps, guesses=chosen.guesses)
    answer = _without(job, _in_state(without_cause(job, reports), state, reports), chosen, reports, dumps, known)
    return replace(answer, next_steps=fitting(answer.next_steps, may_use_nccl(job, backends)))


def _fitted(answer: Triage, cause: Clue, sure: Confidence) -> Triage:
    """The answer with the confidence that the first runs on logs of others fit, of its class and of its culprits."""
    doubts = doubts_of(sure.of_evidence, CLASSES[cause.fault_class].ending, cause.culprits)
    of_class, of_culprit = fitted(doubts, sure.value, cause.culprits, sure.rivals)
    return replace(answer, confidence=of_class, culprit_confidence=of_culprit, by_rules=(sure.value, sure.of_evidence))


def _known(job: JobLogs, pids: Mapping[int, int], ended: bool, recorded: bool) -> Known:
    """What the next steps depend on, from the run's records and from the logs. A launcher that complains ends its
    processes."""
    from_logs = {process.rank: process.pid for process in job.logs.processes if process.rank is not None}
    return Known(
        pids={**{rank: pid for rank, pid in from_logs.items() if pid is not None}, **pids},
        ended=ended or any(hit.line.source == "launcher" for hit in job.hits),
        stacked={stack.rank: stack.where for stack in job.once(stacks_of)},
        recorded=recorded,
    )


def _in_state(no_cause: NoCause, state: Standing | None, reports: Sequence[Timeout]) -> NoCause:
    """The answer without a cause, with what the run's own records say about every rank."""
    if state is None or no_cause.fault_class != "undetermined":
        return no_cause
    words = [no_cause.headline, state.headline] if reports else [state.headline, no_cause.headline]
    return replace(
        no_cause,
        headline=" ".join(text for text in words if text != UNKNOWN),
        evidence=state.evidence,
        steps=(*state.next_steps, *no_cause.steps),
    )


def _with_hosts(job: JobLogs, clue: Clue) -> Clue:
    """The clue with hosts and GPUs, which dumps do not have, from the logs."""
    culprits = []
    for culprit in clue.culprits:
        known = job.of_rank(culprit.rank) if culprit.rank is not None and not culprit.host else culprit
        culprits.append(replace(culprit, host=known.host, gpu=culprit.gpu if culprit.gpu is not None else known.gpu))
    return replace(clue, culprits=tuple(culprits))


def _with_cause(
    job: JobLogs,
    chosen: Chosen,
    cause: Clue,
    sure: Confidence,
    reports: Sequence[Timeout],
    dumps: FlightFindings,
    known: Known,
) -> Triage:
    fault_class = CLASSES[cause.fault_class]
    same = [clue for clue in chosen.others if clue.ranks & cause.ranks]
    said = fault_class.by_line and sure.of_evidence >= HANG_EVIDENCE.names_the_cause
    collect = what_to_collect(job, known, bool(dumps.coverage), bool(reports), said)
    is_sure = (sure.value >= 0.8 and (cause.ranks or cause.hosts)) or fault_class.outside
    evidence = dict.fromkeys((*cause.evidence, *(line for clue in same for line in clue.evidence[:2])))
    victims = _victims(job, chosen.clues, cause.ranks, reports)
    if fault_class.outside and not cause.culprits:
        victims = ()  # nobody waited for a rank
    return Triage(
        fault_class=cause.fault_class,
        confidence=sure.value,
        culprit_confidence=sure.value if named(cause.culprits) else None,
        headline=headline(fault_class, cause),
        culprits=cause.culprits,
        evidence=tuple(evidence)[: HANG_ANSWER.most_evidence],
        ruled_out=(*chosen.ruled_out, *_also_ruled_out(job, cause.fault_class, reports)),
        next_steps=(
            *steps(fault_class, cause.culprits, cause.note, tuple(evidence), victims, known),
            *(() if is_sure else collect),
        ),
        victims=victims,
        stacks=(*dumps.stacks, *shown_stacks(job, cause.ranks)),
        merged_stacks=merged_stacks(job),
        coverage=_coverage(job, dumps, sure),
        gaps=(*job.logs.gaps, *dumps.gaps),
    )


def _without(
    job: JobLogs,
    no_cause: NoCause,
    chosen: Chosen,
    reports: Sequence[Timeout],
    dumps: FlightFindings,
    known: Known,
) -> Triage:
    """The triage without a cause; clues that are too weak become guesses."""
    suspects = chosen.clues
    if suspects and no_cause.fault_class == "healthy":
        no_cause = replace(no_cause, fault_class="undetermined")
    no_cause = _told(job, no_cause, suspects)
    evidence = [*no_cause.evidence, *(line.evidence for line in no_cause.lines)]
    for clue in suspects:
        evidence += clue.evidence[:2]
    healthy = no_cause.fault_class == "healthy"
    collect = () if healthy else what_to_collect(job, known, bool(dumps.coverage), bool(reports))
    ranks = {c.rank for c in no_cause.culprits if c.rank is not None}
    return Triage(
        fault_class=no_cause.fault_class,
        confidence=no_cause.confidence,
        headline=no_cause.headline,
        culprits=no_cause.culprits,
        evidence=tuple(dict.fromkeys(evidence))[: HANG_ANSWER.most_evidence],
        ruled_out=tuple(_also_ruled_out(job, no_cause.fault_class, reports)),
        next_steps=(
            *no_cause.steps,
            *steps(CLASSES[no_cause.fault_class], no_cause.culprits, evidence=evidence, facts=known),
            *collect,
        ),
        victims=_victims(job, suspects, ranks, reports) if no_cause.fault_class != "healthy" else (),
        stacks=(*dumps.stacks, *shown_stacks(job, set())),
        merged_stacks=merged_stacks(job),
        coverage=_coverage(job, dumps, None),
        guesses=chosen.guesses,
        gaps=(*job.logs.gaps, *dumps.gaps),
    )


def _stacked(job: JobLogs) -> NoCause | None:
    """The answer where all ranks whose stacks were read are in the same call: none of them is behind."""
    stacks = job.once(stacks_of)
    if not stacks and len(unnamed := job.once(stacks_without_rank)) > 1:
        return _stacked_processes(unnamed)
    if len(stacks) < 2 or not in_one_place(stacks):
        return None
    absent = absent_of(job.logs.world_size or 0, [stack.rank for stack in stacks])
    ranks = begun(spaced(listing([stack.rank for stack in stacks])))
    text = f"{ranks} are all in {stacks[0].where}: none of them is behind."
    if absent:
        text += f" The stacks of {spaced(listing(absent))} are not here: look there first."
    elif stacks[0].in_collective:
        text += " What is left: a device, the network, or a rank whose stack is not here."
    else:
        text += " They wait outside of any collective: for data, a file system, or a lock of their own."
    lines = tuple(stack.lines[stack.told] for stack in stacks[: HANG_ANSWER.most_next_steps])
    return NoCause("undetermined", HANG_RULES.guess_with_timeouts, text, (), lines)


def _stacked_processes(stacks: Mapping[int, ThreadStack]) -> NoCause | None:
    """The same of processes of which only the pid is known: no rank is named."""
    inside = {pid: stack for pid, stack in stacks.items() if stack.in_collective}
    outside = {pid: stack for pid, stack in stacks.items() if pid not in inside}
    shown = list((outside or inside).values())
    if in_one_place(stacks.values()):
        text = f"{counted(len(stacks), 'process', 'processes')} are all in {shown[0].where}: none of them is behind."
    elif outside and len(outside) <= len(inside):
        shown_pids = list(outside)[: HANG_ANSWER.kinds_shown]
        places = ", ".join(f"process {pid} is in {outside[pid].where}" for pid in shown_pids)
        others = "the other is" if len(inside) == 1 else f"{len(inside)} others are"
        text = f"{begun(places)}, and {others} in a collective."
    else:
        return None
    lines = tuple(stack.lines[stack.told] for stack in shown[: HANG_ANSWER.most_next_steps])
    text += " Which rank each process is stands in no line: a log of NCCL has their pids."
    return NoCause("undetermined", HANG_RULES.guess_with_timeouts, text, (), lines)


def _told(job: JobLogs, no_cause: NoCause, suspects: Sequence[Clue]) -> NoCause:
    """The answer with what the last telling lines say, where nothing better is known: a state, a suspicion, a quotation
    with who printed it."""
    only_warnings = no_cause.headline == _WARNINGS and bool(suspects)
    if no_cause.fault_class != "undetermined" or (
        no_cause.confidence > HANG_EVIDENCE.knows_little and not only_warnings
    ):
        return no_cause
    states = states_of(job)
    if states:
        words = state_words(job, states)
        lines = tuple(dict.fromkeys((*(hit.line for hit in (states[0], states[-1])), *no_cause.lines)))
        return replace(no_cause, headline=words, lines=lines)
    if (stacked := _stacked(job)) is not None:
        known = no_cause.headline if no_cause.headline != UNKNOWN else ""  # of a recorded run: since when, and where
        return replace(stacked, headline=f"{known} {stacked.headline}".lstrip())
    if no_cause.headline != UNKNOWN and not only_warnings:
        return no_cause
    if suspects:
        words = headline(CLASSES[suspects[0].fault_class], suspects[0])
        return replace(
            no_cause, headline=f"Too little is known to name a cause. Perhaps: {words[:1].lower()}{words[1:]}"
        )
    telling = last_telling(job)
    if not telling:
        return no_cause
    return replace(no_cause, headline=f"No known log pattern matches. {quoted(job, telling)}", lines=tuple(telling))


def _also_ruled_out(job: JobLogs, chosen: str, reports: Sequence[Timeout]) -> list[RuledOut]:
    ruled_out = []
    if chosen not in ("mismatch_op", "mismatch_shape", "desync"):
        for group in groups_of(job, reports):
            if len(group.reports) > 2 and len({report.call for report in group.reports}) == 1:
                count = spaced(counted(len(group.reports), "rank"))
                text = f"all {count} of {group.words} that report wait in the same call, {group.reports[0].words}"
                ruled_out.append(RuledOut("mismatch_op", text))
                break
    store = job.named("store-get", "should-dump", "recv-value")
    if store and chosen != "cascade_store_lost":
        text = "the store is lost when the process that hosts it ends, and that process ended for another reason"
        ruled_out.append(RuledOut("cascade_store_lost", text))
    return ruled_out


def _victims(job: JobLogs, clues: Sequence[Clue], culprits: set[int], reports: Sequence[Timeout]) -> tuple[int, ...]:
    """Ranks that waited or were asked to stop, without the culprits."""
    victims = {rank for clue in clues for rank in clue.victims}
    victims |= {report.rank for report in reports if report.rank is not None}
    for hit in job.hits:
        if hit.pattern.role == Role.CASCADE and hit.line.source != "launcher":
            rank = job.rank_of(hit.line)
            victims |= {rank} if rank is not None else set()
    return tuple(sorted(victims - culprits))


def _coverage(job: JobLogs, dumps: FlightFindings, sure: Confidence | None) -> tuple[str, ...]:
    logs = job.logs
    sentences = []
    if logs.paths:
        world = f" of {logs.world_size}" if logs.world_size is not None else ""
        read = f"{len(job.by_rank)}{world} ranks" if world else counted(len(job.by_rank), "rank")
        ranks = f", {read}" if job.by_rank or world else ""
        processes = counted(len(logs.processes), "process", "processes")
        sentences.append(f"{counted(len(logs.paths), 'log')} read: {processes}{ranks}.")
    absent = job.once(ranks_not_read)
    if absent and logs.paths:
        sentences.append(
            f"No log lines of {counted(len(absent), 'rank')}: "
            f"{', '.join(map(str, absent[:8]))}{'…' * (len(absent) > 8)}."
        )
    if logs.deduplicated:
        sentences.append("Ray left out repeated lines, so a missing rank is no evidence.")
    harmless = Counter(hit.pattern.says for hit in job.hits if hit.fault_class.id == "harmless")
    sentences += [
        f"Usual in healthy runs: {says} ({counted(count, 'line')})" for says, count in harmless.most_common(3)
    ]
    sentences += dumps.coverage
    if sure is not None and sure.because:
        sentences.append(f"What speaks for or against the answer, beside its own evidence: {'; '.join(sure.because)}.")
    return tuple(spaced(text) for text in sentences)
