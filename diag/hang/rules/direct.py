"""Faults that a single line names, with the process that prints it as culprit."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from diag.ended.model import Clue, Culprit, short_host
from diag.events.left import Ended, who_left
from diag.hang.classes import CLASSES
from diag.hang.classes.base import Hit
from diag.hang.failures import lives, rank_said, speaker_of
from diag.hang.job import JobLogs, bus_number, culprit_of, distinct
from diag.hang.model import Line, Role, grouped
from diag.hang.numbering import Member, Numbering, member_culprit
from diag.hang.policy import HANG_ANSWER, HANG_EVIDENCE, HANG_RULES

_TWO_ENDS = re.compile(r"completed with error|[Cc]onnection|\bpeer\b|(?i:\b(?:recv|send)\b)")
_NOT_SET_UP = re.compile(
    r"(?i)not yet initialized|insufficient|no CUDA-capable|initialization|too old|no NVIDIA driver|no GPUs"
)
_NOT_OPENED = re.compile(r"\bUnable to open device\b|\bibv_open_device failed\b")
# The reporter of these need not be the one at fault: a connection of every member with every other, a transfer
# whose other end is not named, a server that is not reached, an address that somebody sent.
_OF_A_GROUP = (
    "gloo-full-mesh",
    "gloo-socket",
    "ofi-completion",
    "grpc-no-address",
    "garbled-address",
    "mpi-stranger",
    "mpi-pair",
    "poll-connect",
)
_FAILS = (Role.ROOT, Role.CASCADE)
_DIGITS = "0123456789"
# Lines of a list that say which device those below them are about
_HEADS = {"port-row-down": "adapter-row"}
# Patterns of the warning's source: they count only where no pattern matches the message.
_COARSE = ("network-warning", "topology-warning")


def clues(job: JobLogs) -> list[Clue]:
    of_lines = [clue for name, fault_class in CLASSES.items() if fault_class.by_line and (clue := _of_class(job, name))]
    return [*of_lines, *_duplicate_gpu(job), *_unused_parameters(job)]


def _of_class(job: JobLogs, name: str) -> Clue | None:
    hits = job.of_class(name)
    roots = [hit for hit in hits if hit.pattern.role == Role.ROOT and not _tried_again(hit)]
    if name == "env_mismatch":  # its other lines are compared between hosts (differences)
        roots = [hit for hit in roots if hit.name == "rank-out-of-range"]
    if name == "net_failure" and job.named("agent-lost-store"):  # it was there while the processes ran
        roots = [hit for hit in roots if hit.name != "rendezvous-failed"]
    if name == "net_failure" and job.named("daemon-lost"):  # which names the host
        roots = [hit for hit in roots if hit.name != "mpi-unreachable"]
    if name == "net_failure":
        roots = [hit for hit in roots if not _NOT_OPENED.search(hit.line.text) or not _uses_others(job, hit)]
    if name == "memlock_limit" and not roots and _nothing_else(job):  # UCX takes another transport where it has one
        roots = [hit for hit in hits if hit.name == "verbs-memory"]
    if name == "ib_link_down" and not roots and _nothing_else(job):  # a port that nobody uses is down as well
        roots = [hit for hit in hits if hit.name in ("port-down", "port-row-down")]
    if name == "gdr_acs" and job.named("queue-event"):  # the queue says what failed: this status can be its echo
        return None
    if name == "gdr_acs" and not roots:
        return _of_gpu_memory(job)
    if name == "gpu_hardware" and not roots:  # the other GPUs of a hive are reset as well
        resets = [hit for hit in hits if hit.name == "amdgpu-reset"]
        roots = resets if len({hit.groups["bus_id"] for hit in resets}) == 1 else []
    known = job.once(_lines_with_a_cause)
    roots = [hit for hit in roots if hit.name not in _COARSE or hit.line not in known]
    if not roots:
        return None
    confirmations = [hit for hit in hits if hit.pattern.role == Role.CONFIRMATION and hit.name not in _HEADS.values()]
    pairs = [(hit, culprit) for hit in roots for culprit in _culprits(job, hit)]
    culprits = _without_vague(_without_later(pairs) if name == "cuda_failure" else pairs)
    return clue_of(name, roots, _at_fault(job, name, roots, culprits), first_by_time(roots).sentence, confirmations)


def _of_gpu_memory(job: JobLogs) -> Clue | None:
    """A test of an adapter that did not take the memory of a GPU which the same file says it gave it."""
    given = {hit.line.path: hit for hit in reversed(job.named("memory-of-gpu"))}
    refused = [hit for hit in job.named("memory-refused") if hit.line.path in given]
    if not refused:
        return None
    first = given[refused[0].line.path]
    note = f"{refused[0].sentence} {first.sentence}"
    return clue_of("gdr_acs", refused, [], note, [first], HANG_EVIDENCE.names_an_effect)


def _uses_others(job: JobLogs, hit: Hit) -> bool:
    """Whether the process goes on with other adapters than the one that it could not open."""
    return job.once(_adapters_named).get(_process(hit.line), 0) > hit.line.number


def _adapters_named(job: JobLogs) -> dict[tuple[str, str, int | None], int]:
    """By process the last line that names the adapters that it uses."""
    return {_process(hit.line): hit.line.number for hit in job.named("ib-oob")}


def _process(line: Line) -> tuple[str, str, int | None]:
    return line.path, line.speaker.host, line.speaker.pid


def _nothing_else(job: JobLogs) -> bool:
    """Whether nothing shows that the job came up, or failed for another reason."""
    return not job.communicators and not job.once(lives) and not any(hit.pattern.role in _FAILS for hit in job.hits)


def _lines_with_a_cause(job: JobLogs) -> set[Line]:
    return {hit.line for hit in job.hits if hit.name not in _COARSE}


def _at_fault(job: JobLogs, name: str, roots: list[Hit], speakers: list[Culprit]) -> list[Culprit]:
    """The culprits among those that report a failure."""
    if not CLASSES[name].speaker_is_culprit:
        return []
    if all(hit.name == "nccl-unhandled" for hit in roots) and len({hit.line.speaker for hit in roots}) > 1:
        return []  # all ranks of a group report it, and not whose call failed
    if name == "cuda_failure" and len(speakers) > 1 and all(_NOT_SET_UP.search(hit.line.text) for hit in roots):
        # A failure of several processes at their start is one of their host.
        return [Culprit(host=host) for host in dict.fromkeys(c.host for c in speakers) if host]
    if name == "net_failure" and all(hit.name in _OF_A_GROUP for hit in roots):
        # Whoever reports it need not be the one that cannot be reached.
        return [end for hit in roots if hit.name == "grpc-no-address" for end in other_end(job, hit)]
    if name == "net_failure" and _TWO_ENDS.search(roots[0].line.text):
        # The end of a connection that reports an error is where to look first; it need not be the one that failed.
        return [replace(c, rank=None, gpu=None) if c.host else c for c in speakers]
    return speakers


def _without_vague(pairs: list[tuple[Hit, Culprit]]) -> list[Culprit]:
    """Culprits without repetitions: the same message may be printed once with the device and once without, and lines
    that name no rank or host repeat a line that does."""
    ranked = {hit.line for hit, culprit in pairs if culprit.rank is not None}
    clear = [culprit for hit, culprit in pairs if culprit.rank is not None or hit.line not in ranked]
    on_devices = {culprit.host for culprit in clear if culprit.bus_id}
    clear = [c for c in clear if c.rank is not None or c.bus_id or c.peer or not c.host or c.host not in on_devices]
    hosts = {culprit.host for culprit in clear if culprit.rank is not None and culprit.host}
    hostless = any(culprit.rank is not None and not culprit.host for culprit in clear)
    named = [c for c in clear if c.rank is not None or c.peer or (c.host and c.host not in hosts and not hostless)]
    on_hosts = [culprit for culprit in clear if culprit.host]
    return named or on_hosts or [culprit for culprit in clear if culprit.devices or culprit.gpu is not None] or clear


def _without_later(pairs: list[tuple[Hit, Culprit]]) -> list[tuple[Hit, Culprit]]:
    """Without ranks that report an error of CUDA clearly after another rank did: the first one leaves the others in a
    collective that is broken off."""
    times = {culprit.rank: hit.line.time_ns for hit, culprit in reversed(pairs)}
    if None in times or None in times.values() or len(times) < 2:
        return pairs
    left = who_left([Ended(rank, time) for rank, time in times.items()], HANG_EVIDENCE.clocks_of_hosts_ns)
    return [(hit, culprit) for hit, culprit in pairs if culprit.rank in left.first]


def _tried_again(hit: Hit) -> bool:
    """Whether NCCL itself continued: with another try, without NVLink SHARP, or without a topology attribute."""
    return hit.line.level == "INFO" and ("retrying" in hit.line.text or hit.fault_class.optional)


def clue_of(
    name: str,
    roots: list[Hit],
    culprits: Iterable[Culprit],
    note: str,
    others: Iterable[Hit] = (),
    confidence: float | None = None,
) -> Clue:
    """A clue of one class from its lines."""
    sure = max(hit.pattern.confidence for hit in roots) if confidence is None else confidence
    lines = [first_by_time(roots).line, *(hit.line for hit in roots), *(hit.line for hit in others)]
    return Clue(
        fault_class=name,
        culprits=distinct(list(culprits)),
        evidence=tuple(dict.fromkeys(line.evidence for line in lines))[: HANG_ANSWER.most_lines_of_rule],
        confidence=sure,
        note=note,
        time_ns=time_of([hit.line for hit in roots]),
        rivalled=all(hit.pattern.rivalled for hit in roots),
    )


def ranks_in(text: str) -> list[int]:
    """The ranks in ``0, 1, 3``; impossible numbers are skipped."""
    return [int(word) for word in text.replace(",", " ").split() if word.isdecimal() and len(word) < 10]


def first_by_time(hits: list[Hit]) -> Hit:
    timed = [hit for hit in hits if hit.line.time_ns is not None]
    return min(timed, key=lambda hit: hit.line.time_ns or 0) if timed else hits[0]


def time_of(lines: Iterable[Line]) -> int | None:
    times = [line.time_ns for line in lines if line.time_ns is not None]
    return min(times) if times else None


def _remote_below(job: JobLogs, line: Line) -> str:
    """The host at the other end in the box of Open MPI that a line begins."""
    below = (hit for hit in job.named("mpi-remote-host") if hit.line.follows(line, HANG_RULES.actor_reach))
    return next((hit.groups["host"] for hit in below), "")


def _culprits(job: JobLogs, hit: Hit) -> list[Culprit]:
    """Both GPUs of a pair that cannot reach each other, else the one culprit of the line."""
    if "other_gpu" in hit.groups:
        host = job.culprit(hit.line).host
        return [Culprit(host=host, gpu=int(hit.groups[name])) for name in ("gpu", "other_gpu")]
    if "other_bus_id" in hit.groups:
        culprit = job.culprit(hit.line)
        return [Culprit(host=culprit.host, bus_id=hit.groups[name]) for name in ("bus_id", "other_bus_id")]
    return [_culprit(job, hit)]


def _under_its_head(job: JobLogs, hit: Hit) -> Hit:
    """A line of a list with the device that the last head before it names."""
    heads = job.named(_HEADS[hit.name]) if hit.name in _HEADS else []
    above = [head for head in heads if head.line.path == hit.line.path and head.line.number <= hit.line.number]
    return replace(hit, groups={**above[-1].groups, **hit.groups}) if above else hit


def _culprit(job: JobLogs, hit: Hit) -> Culprit:
    """The culprit of a line. The driver names a GPU by its PCI address, which communicators relate to a rank of that
    host."""
    culprit, hit = speaker_of(job, hit.line), _under_its_head(job, hit)
    if hit.name == "mpi-unreachable" and (remote := _remote_below(job, hit.line)):
        return job.of_host(short_host(remote), peer=remote)
    if "store" in hit.groups or hit.name == "ssh-refused":
        return far_end(job, hit)
    if hit.name == "name-not-resolved" and len(told := job.once(_stores_told)) == 1:
        return far_end(job, next(iter(told.values())))
    if not hit.line.speaker.host and culprit.rank is None and "host" in hit.groups:
        culprit = job.of_host(short_host(hit.groups["host"]), peer=hit.groups.get("other", ""))
    if culprit.rank is None and culprit.gpu is None and hit.line.source == "nccl":
        culprit = replace(culprit, gpu=hit.line.speaker.device)
        if (rank := _rank_on_device(job, hit.line)) is not None:
            culprit = replace(job.of_rank(rank, culprit.host), gpu=culprit.gpu)
    if culprit.gpu is None and "gpu" in hit.groups:
        culprit = replace(culprit, gpu=int(hit.groups["gpu"]))
    culprit = replace(culprit, bus_id=hit.groups.get("bus_id", ""), nic=hit.groups.get("hca", ""))
    if culprit.rank is None and "pg_rank" in hit.groups and not job.logs.communicators:
        culprit = replace(job.of_rank(int(hit.groups["pg_rank"])), bus_id=culprit.bus_id)
    if culprit.rank is None and not job.communicators and hit.line.source in ("", "python", "launcher"):
        culprit = replace(culprit, rank=rank_said(hit.line.text))
    number = bus_number(hit.groups.get("bus_id", ""))
    if number is not None and culprit.rank is None:
        for process in job.logs.processes:
            if bus_number(process.bus_id) == number and culprit.host in ("", process.host):
                candidates = [p for p in job.logs.processes if bus_number(p.bus_id) == number]
                if culprit.host or len(candidates) == 1:
                    return replace(culprit_of(process), bus_id=culprit.bus_id, nic=culprit.nic)
    return culprit


def _stores_told(job: JobLogs) -> dict[str, Hit]:
    """By its name the stores to which ranks say that they will connect."""
    return {hit.groups["store"]: hit for hit in job.named("store-told")}


def _rank_on_device(job: JobLogs, line: Line) -> int | None:
    """The rank of NCCL's process on a device: the only rank that marks a traceback in its file, where that has the
    device's number, one host is seen, and one process of it has that device."""
    device, size = line.speaker.device, job.logs.world_size
    fits = size is None or size <= HANG_RULES.most_gpus_of_a_host
    processes = job.once(_processes_of_nccl)
    hosts = {host for host, _, _ in processes} | set(job.hosts)
    if device is None or not fits or len(hosts) > 1 or sum(device == at for _, _, at in processes) != 1:
        return None
    return device if job.once(_ranks_of_tracebacks).get(line.path) == {device} else None


def _processes_of_nccl(job: JobLogs) -> set[tuple[str, int | None, int | None]]:
    """Host, pid and device of each process of which a line of NCCL is kept."""
    speakers = (line.speaker for line in job.logs.lines if line.source == "nccl")
    return {(speaker.host, speaker.pid, speaker.device) for speaker in speakers}


def _ranks_of_tracebacks(job: JobLogs) -> dict[str, set[int | None]]:
    """By file the ranks that mark their tracebacks."""
    marked = (hit.line for hit in job.named("traceback", "frame", "exception") if hit.line.source != "nccl")
    return grouped((line.path, line.speaker.rank) for line in marked)


def _duplicate_gpu(job: JobLogs) -> list[Clue]:
    """Both ranks of each reported pair. NCCL compares hosts first; where other lines show that the two are on different
    hosts, these look like one host to NCCL."""
    hits = job.named("duplicate-gpu")
    if not hits:
        of_xgboost = job.named("xgboost-one-gpu")
        if of_xgboost:
            return [clue_of("duplicate_gpu", of_xgboost, (), of_xgboost[0].sentence)]
        return _one_bus_id(job) or _one_device(job)
    # NCCL prints the number of the reporting process first.
    printers = [Member(int(hit.groups["group_rank"]), job.culprit(hit.line).rank) for hit in hits]
    numbering = Numbering(printers)
    hosts = {printer.number: job.culprit(hit.line).host for printer, hit in zip(printers, hits, strict=True)}
    culprits, places = [], set()
    for hit, printer in zip(hits, printers, strict=True):
        for number in (printer.number, int(hit.groups["other_group_rank"])):
            rank = (numbering.likely if printer.rank is None else numbering.proven)(number, printer)
            if rank is None and number in hosts and any(other.rank is not None for other in printers):
                continue  # it prints a line of its own, which shows its rank
            member = member_culprit(job, number, rank)
            if not member.host and not numbering.differs and rank is not None:
                member = replace(member, host=hosts.get(number, ""))
            places.add(member.host)
            if not member.host and rank is not None:
                member = replace(member, host=job.culprit(hit.line).host)
            culprits.append(replace(member, bus_id=hit.groups.get("bus_id", "")))
    places |= {address for culprit in culprits if (address := job.address_of(culprit.rank))}
    if len(places - {""}) > 1 and len({culprit.host for culprit in culprits}) > 1:
        note = f"NCCL treats {' and '.join(sorted(places - {''}))} as one host. {hits[0].sentence}"
        return [clue_of("same_host_identity", hits, culprits, note)]
    return [clue_of("duplicate_gpu", hits, culprits, _of_one_group(hits[0], numbering.differs))]


def _one_bus_id(job: JobLogs) -> list[Clue]:
    """Members of one communicator that was aborted, on one host and with one PCI address."""
    for communicator in job.communicators:
        at: dict[tuple[str, str], list[int]] = defaultdict(list)
        for member in communicator.members:
            process = job.logs.processes[member.process] if member.process is not None else None
            if process is not None and process.host and process.bus_id and member.ended == "aborted":
                at[process.host, process.bus_id].append(member.group_rank)
        for (_, bus_id), members in at.items():
            if len(members) > 1:
                lines = [line for line in job.logs.lines if bus_id in line.text and "Abort COMPLETE" in line.text]
                culprits = [replace(job.of_member(communicator, number), bus_id=bus_id) for number in members]
                note = f"Their communicator was aborted, and each of them has the GPU at {bus_id}."
                evidence = tuple(line.evidence for line in lines[: HANG_ANSWER.most_lines_of_rule])
                return [Clue("duplicate_gpu", distinct(culprits), evidence, HANG_EVIDENCE.names_an_effect, note)]
    return []


def _one_device(job: JobLogs) -> list[Clue]:
    """Processes of one host that Accelerate says have one device: it prints the rank, the local rank and the device of
    each, one below the other. Two with one local rank are on two hosts."""
    numbers = {(hit.line.path, hit.line.number): hit for hit in job.named("accelerate-rank")}
    at: dict[tuple[str, str], dict[int, tuple[int, Hit]]] = defaultdict(dict)
    for hit in job.named("accelerate-device"):
        above = [numbers.get((hit.line.path, hit.line.number - back)) for back in (2, 1)]
        rank, local = (int(each.groups["index"]) if each is not None else None for each in above)
        if rank is not None and local is not None:
            at[hit.line.path, hit.groups["device"]].setdefault(local, (rank, hit))
    for (_, device), members in at.items():
        if len(members) > 1:
            ranks, hits = zip(*members.values(), strict=True)
            note = f"Accelerate gives each of them {device}."
            return [clue_of("duplicate_gpu", list(hits), map(job.of_rank, ranks), note)]
    return []


def _of_one_group(hit: Hit, differs: bool) -> str:
    """The pair of a line, with the numbers that the headline does not use where they are those of a group."""
    if not differs:
        return hit.sentence
    gpu = f" ({hit.groups['bus_id']})" if "bus_id" in hit.groups else ""
    numbers = f"{hit.groups['group_rank']} and {hit.groups['other_group_rank']}"
    return f"Both are on one GPU{gpu}; in their process group they are ranks {numbers}."


def _unused_parameters(job: JobLogs) -> list[Clue]:
    """DDP's error, with rank and parameters where it prints them."""
    with_rank = job.named("no-grad-for-rank")
    hits = job.named("finished-reduction") or with_rank
    if not hits:
        return []
    culprits = [_own_rank(job, hit) for hit in with_rank]
    culprits = culprits or [culprit for hit in hits if (culprit := speaker_of(job, hit.line)).rank is not None]
    note = " ".join(dict.fromkeys(hit.sentence for hit in (hits[0], *with_rank[:3])))
    return [clue_of("ddp_unused_parameters", hits, culprits, note, with_rank, confidence=HANG_EVIDENCE.names_the_cause)]


def _own_rank(job: JobLogs, hit: Hit) -> Culprit:
    """The culprit for a line in which a process prints its own number in a group."""
    rank = job.rank_of(hit.line)
    return job.of_rank(int(hit.groups["rank"]) if rank is None else rank)


def other_end(job: JobLogs, hit: Hit) -> list[Culprit]:
    """The other end of a call of gRPC, in the other lines of its message or in the line itself."""
    number, reach = hit.line.number, HANG_RULES.rpc_message_reach
    targets = job.once(_targets).get(hit.line.path, [])
    begin = bisect_left(targets, number - reach, key=lambda target: target.line.number)
    end = bisect_right(targets, number + reach, key=lambda target: target.line.number)
    lines = [hit, *targets[begin:end]]
    tasks = [far_end(job, target) for target in lines if "task" in target.groups]
    addresses = [far_end(job, target) for target in lines if "other" in target.groups]
    # The task says more than its address.
    return [
        replace(task, peer=task.peer or addresses[0].peer) if addresses else task for task in tasks[:1]
    ] or addresses[:1]


def _targets(job: JobLogs) -> dict[str, list[Hit]]:
    """By file the lines in which gRPC names the other end of a call, in order."""
    targets: dict[str, list[Hit]] = defaultdict(list)
    for hit in sorted(job.named("grpc-target"), key=lambda hit: hit.line.number):
        targets[hit.line.path].append(hit)
    return targets


def far_end(job: JobLogs, hit: Hit) -> Culprit:
    """The peer of a line: its rank, or its host, and its rank where the host runs only one."""
    if "peer_rank" in hit.groups:
        return job.of_rank(int(hit.groups["peer_rank"]))
    if "worker" in hit.groups:
        return _worker(job, hit)
    if "task" in hit.groups:
        return _task(job, hit.groups["job"], int(hit.groups["task"]))
    peer = next((hit.groups[name] for name in ("peer", "store", "any", "other") if name in hit.groups), "").strip()
    host = job.resolve(peer) if peer else ""
    return replace(job.of_host(host), peer=peer) if host else Culprit(peer=peer)


def _worker(job: JobLogs, hit: Hit) -> Culprit:
    """The worker of torch.distributed.rpc that a line names: its rank where the one that asks has its own rank behind
    the same name, as in ``trainer_0`` and ``trainer_3``."""
    name, asks = hit.groups["worker"], hit.groups["asks"]
    stem = name.rstrip(_DIGITS)
    number, own = name.removeprefix(stem), job.rank_of(hit.line)
    if number and len(number) < 8 and own is not None and asks == f"{stem}{own}":
        return replace(job.of_rank(int(number)), peer=name)
    return Culprit(peer=name)


def _task(job: JobLogs, name: str, number: int) -> Culprit:
    """A task of TensorFlow's or JAX's cluster: workers are numbered as ranks are, where no chief is before them."""
    chief = job.once(_jobs_of_tasks) & {"chief", "master"}
    return job.of_rank(number) if name.endswith("worker") and not chief else Culprit(peer=f"task {number} of {name}")


def _jobs_of_tasks(job: JobLogs) -> set[str]:
    return {hit.groups["job"] for hit in job.named("grpc-target", "grpc-closed") if "job" in hit.groups}
