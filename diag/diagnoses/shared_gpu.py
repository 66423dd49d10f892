"""GPUs that several ranks use, and GPUs that processes use which are no ranks of the run."""

from __future__ import annotations

from msgspec.structs import replace

from diag.diagnoses.policy import FINDINGS, SHARED_GPU
from diag.model.query import By, Query
from diag.model.steps import Evidence, Finding, Severity
from diag.rundir.sharing import UsedGpu
from diag.words import sentences
from diag.words.formatting import begun, counted

from .costs import Cost
from .device_samples import also_late
from .ids import SHARED_GPU as ID
from .subject import Diagnosis, Subject, gpus_of, ranks_text, shared_words

OTHERS = "other-processes-on-gpu"
_ONE_EACH = (
    "Start as many processes as there are GPUs (--nproc-per-node), and give each its own: "
    "torch.cuda.set_device(local_rank) before anything is put on a device, or one entry of CUDA_VISIBLE_DEVICES for "
    "each process."
)
_WHO = "nvidia-smi on the host lists the processes of each GPU, with the memory that each holds."
_CONTEXTS = (
    " A rank that uses another GPU has a context on this one as well if it puts something on a device before it calls "
    "torch.cuda.set_device(local_rank), or loads a checkpoint without map_location: that takes memory, and hardly time."
)


def find(subject: Subject) -> list[Finding]:
    return [*_of_ranks(subject), *_of_others(subject)]


def _of_ranks(subject: Subject) -> list[Finding]:
    sharing = subject.once(gpus_of)
    if not sharing.shared:
        return []
    cost, words = subject.shares.cost(Cost.SHARING), begun(shared_words(sharing))
    costs = subject.shares.share(Cost.SHARING) >= FINDINGS.mention_share
    shown = sharing.shared[: FINDINGS.ranks_as_evidence]
    of_ranks = [
        Evidence(f"{ranks_text(gpu.ranks)} on one {gpu.name}", float(len(gpu.ranks)), "ranks", _rows(gpu))
        for gpu in shown
    ]
    finding = subject.costing(
        Cost.SHARING,
        id=ID,
        title=sentences.RANKS_TAKE_TURNS(sharing=words, cost=subject.each(cost)) if costs else words,
        action=_ONE_EACH,
        evidence=(*of_ranks, *(_processes(gpu) for gpu in shown if gpu.counter)),
    )
    sure = all(gpu.by_id for gpu in sharing.shared)
    return [
        replace(
            finding,
            # What it hides may be more than it costs.
            severity=Severity.CRITICAL if finding.severity == Severity.CRITICAL else Severity.WARN,
            confidence=SHARED_GPU.confidence_by_id if sure else SHARED_GPU.confidence_by_count,
        )
    ]


def _of_others(subject: Subject) -> list[Finding]:
    """A note, as what the other processes do is not known; a warning where a rank on such a GPU is late."""
    gpus = [gpu for gpu in subject.once(gpus_of).gpus if gpu.others]
    if not gpus:
        return []
    foreign = [gpu for gpu in gpus if gpu.strangers]
    shown = foreign or gpus
    ranks = tuple(rank for gpu in shown for rank in gpu.ranks)
    most = max(shown, key=lambda gpu: gpu.strangers if foreign else gpu.others)
    processes = counted(most.strangers if foreign else most.others, "process", "processes")
    if foreign and most.elsewhere:  # some of the others may be ranks that use another GPU
        processes = f"at least {processes}"
    late = also_late(subject, ranks) if foreign else ""
    said = sentences.OTHERS_USE_THE_GPU if foreign else sentences.CONTEXTS_ON_THE_GPU
    return [
        Finding(
            id=OTHERS,
            title=said(len(ranks), processes=processes, ranks=ranks_text(ranks)),
            severity=Severity.WARN if late else Severity.HEALTHY,
            confidence=SHARED_GPU.confidence_of_others if foreign else SHARED_GPU.confidence_of_contexts,
            evidence=tuple(_processes(gpu) for gpu in shown[: FINDINGS.ranks_as_evidence]),
            action=_WHO + _CONTEXTS + late,
        )
    ]


def _rows(gpu: UsedGpu) -> Query:
    return Query("ranks", {"rank": list(gpu.ranks)}, by=By.COUNT)


def _processes(gpu: UsedGpu) -> Evidence:
    rows = Query("samples", {"source": "machine", "field": [gpu.counter]})
    quantity = f"processes that the driver counts on the GPU of {ranks_text(gpu.ranks)}"
    return Evidence(quantity, float(gpu.processes or 0), "processes", rows)


DIAGNOSIS = Diagnosis(
    find,
    needs="the ids of the ranks' GPUs, or the driver's count of the processes on each.",
    means={
        ID: (
            "Several ranks use one GPU and take turns on it. Communication, waiting for each other and pauses of the "
            "device are then not blamed on a rank, a link or the program: the verdict stays open where they are the "
            "largest cost."
        ),
        OTHERS: (
            "Processes that are not this GPU's rank use it: another job, or contexts that other ranks opened there. "
            "Whether they slow it down is not recorded."
        ),
    },
)
