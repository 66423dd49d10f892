"""Gradients reduced once a step, not in every micro-batch (science.md 3.2, rule 10)."""

from __future__ import annotations

from collections.abc import Sequence

from diag.model.states import partitions_gradients
from diag.model.steps import Risk
from diag.replay.mutations.schedule import sync_last_micro_batch
from diag.replay.program import GRADIENTS

from ..case import Api, Candidate, Case


def propose(case: Case) -> Sequence[Candidate]:
    found = case.communication
    if found is None:
        return ()
    reduced_in = {c.micro_batch for c in case.program.collectives() if c.role in GRADIENTS}
    if len(reduced_in) < 2 or (case.manifest is not None and partitions_gradients(case.manifest.strategy or "")):
        return ()
    # DDP and ZeRO-1 have the whole gradient anyway; FSDP then keeps it unsharded until the last micro-batch.
    whole = case.api in (Api.DDP, Api.DEEPSPEED)
    memory = 0 if whole else case.sizes.gradients
    return [
        Candidate(
            id="sync-last-micro-batch",
            finding=found.id,
            knob="gradient synchronisation",
            change=f"reduce gradients in the last of the {len(reduced_in)} micro-batches only",
            mutation=sync_last_micro_batch,
            memory_delta_bytes=memory,
            risk=Risk.SAFE if whole else Risk.MEMORY,
            code={
                Api.FSDP2: "model.set_requires_gradient_sync(is_last_micro_batch)  # before each micro-batch",
                Api.FSDP1: "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n    ...",
                Api.DDP: "with contextlib.nullcontext() if is_last_micro_batch else model.no_sync():\n    ...",
                Api.DEEPSPEED: f'"gradient_accumulation_steps": {len(reduced_in)}',
                Api.ACCELERATE: "with accelerator.accumulate(model):\n    ...",
                Api.HF_TRAINER: f'"gradient_accumulation_steps": {len(reduced_in)}',
            },
            settings={"grad_sync": "last"} if case.bundled else {},
        )
    ]
