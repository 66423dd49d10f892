"""Loader processes of each rank (science.md 3.2, rule 18)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.account.records import loader_settings
from diag.diagnoses.contended_host import dominates
from diag.model.steps import Risk
from diag.replay.mutations.work import more_workers

from ..case import Api, Candidate, Case

_MOST = 32


def propose(case: Case) -> Sequence[Candidate]:
    found = case.found("slow-data-all-ranks", "slow-data-bursty")
    workers = loader_settings(case.manifest).workers
    if found is None or workers is None:
        return ()
    if dominates(case.examination.shares):
        return ()  # there is no core for another process
    return [_candidate(case, found.id, workers, then) for then in _choices(workers)]


def _choices(now: int) -> list[int]:
    """Powers of two above what there is: the smallest that takes the wait away is advised."""
    choices = [1 << exponent for exponent in range(6)]
    return [count for count in choices if now < count <= _MOST][:4]


def _candidate(case: Case, finding: str, now: int, then: int) -> Candidate:
    return Candidate(
        id=f"loader-workers-{then}",
        finding=finding,
        knob="data loader",
        change=f"{then} loader processes a rank, not {now}",
        mutation=more_workers(now, then, case.micro_batches),
        memory_delta_bytes=0,
        risk=Risk.SAFE,
        code={
            Api.PYTORCH: f"DataLoader(..., num_workers={then}, persistent_workers=True)",
            Api.HF_TRAINER: f'"dataloader_num_workers": {then}, "dataloader_persistent_workers": true',
        },
        settings={"num_workers": then} if case.bundled else {},
        also=("each process holds the dataset's state and its batches in host memory, and needs a core of its own",),
    )
