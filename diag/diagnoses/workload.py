"""The kind of work of a run, and its device, so that no advice is already followed or inapplicable.

Facts come from the names in a few ranks' traces, which all run the same program, and from the manifest; unknown facts
are None or "". Texts that depend on several facts are here as well: no diagnosis decides by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from diag.account.records import loader_settings
from diag.collectors.records import BACKWARD, OPTIMIZER, Manifest
from diag.diagnoses.policy import FINDINGS
from diag.model import UNKNOWN
from diag.rundir.tables import Tables
from diag.traces import kineto_names as names
from diag.traces.trace import Trace

from .subject import Subject

# Ranges of torch/_inductor/output_code.py and _dynamo/convert_frame.py, AOTAutograd's node, Inductor's kernels.
_COMPILED: Final = (
    rf"^{names.COMPILED_CODE_PREFIX}|^Torch-Compiled Region|^CompiledFunction(?:Backward)?$"
    r"|^triton_(?:poi|red|per|tem|for)_"
)
# Not "dgrad" and "bwd_data": a transposed convolution of an inference runs these kernels.
_TRAINS: Final = r"(?i)backward|^Optimizer\.(?:step|zero_grad)#|fused_?(?:adam|sgd|adagrad|lamb)|wgrad"
# The allocator's variable for all devices; before, there was CUDA's only (c10/core/AllocatorConfig.h).
_ALLOC_CONF_SINCE: Final = (2, 9)


class Workload(Struct, frozen=True):
    """``compiled``: torch.compile made some of it; ``graphs``: it launches CUDA or HIP graphs; ``training``: it has a
    backward or an optimizer, False: inference; ``loader``: it waits for a DataLoader; ``torch``: (major, minor)."""

    compiled: bool = False
    graphs: bool = False
    training: bool | None = None
    loader: bool | None = None
    vendor: str = ""
    torch: tuple[int, int] | None = None


def workload(subject: Subject) -> Workload:
    """The facts of the run under examination: for ``Subject.once``."""
    return workload_of(subject.tables)


def workload_of(tables: Tables) -> Workload:
    ranks = [rank_tables for _, rank_tables in sorted(tables.ranks.items()) if rank_tables.traces][
        : FINDINGS.ranks_of_workload
    ]
    traces = [trace for rank_tables in ranks for trace in rank_tables.traces[:1]]
    version = tables.manifest.versions.get("torch", "") if tables.manifest is not None else ""
    devices = [rank_tables.identity.device for rank_tables in tables.ranks.values() if rank_tables.identity is not None]
    return Workload(
        compiled=_any(traces, _COMPILED) or _set(tables.manifest, "compile"),
        graphs=_any(traces, names.GRAPH_LAUNCH_PATTERN),
        training=_trains(tables, traces),
        loader=_loads(tables, traces),
        vendor=names.AMD if "rocm" in version else _vendor([*devices, *_device_names(traces)], traces),
        torch=_version(version),
    )


def launch_action(facts: Workload) -> str:
    graphs = "HIP graphs" if facts.vendor == names.AMD else "CUDA graphs"
    changes = []
    if not facts.compiled:
        records = facts.vendor != names.INTEL and not facts.graphs
        changes.append(f'torch.compile (mode="reduce-overhead" records {graphs})' if records else "torch.compile")
    elif not facts.graphs and facts.vendor != names.INTEL:
        changes.append(f'{graphs} (torch.compile with mode="reduce-overhead", or torch.cuda.graph)')
    else:
        changes.append("fewer graph breaks and recompilations (TORCH_LOGS=graph_breaks,recompiles lists them)")
    if facts.graphs:
        changes.append("more of the step inside the graphs that it launches already")
    if facts.training:
        changes.append("fused optimizers (fused=True)")
    return f"Launch fewer and larger kernels: {', '.join([*changes, larger_batches(facts)])}."


def stall_action(facts: Workload) -> str:
    workers = "" if facts.loader is False else "DataLoader workers, "
    return f"Move this work out of the step: into {workers}a background thread or the step before."


def sync_action(facts: Workload) -> str:
    losses = ", printing of losses" if facts.training else ""
    return f"Remove .item(), .cpu(){losses} and other synchronising calls from the step."


def allocator_action(facts: Workload) -> str:
    return f"Set {allocator_setting(facts)}; keep shapes constant; no empty_cache()."


def allocator_setting(facts: Workload) -> str:
    """The variable that makes the caching allocator's segments expandable, as this build of torch reads it
    (c10/cuda/CUDAAllocatorConfig.h of torch 2.13)."""
    if facts.vendor == names.AMD:
        return "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True (has an effect in builds for ROCm 7 and later)"
    if facts.vendor == names.INTEL or (facts.torch is not None and facts.torch >= _ALLOC_CONF_SINCE):
        return "PYTORCH_ALLOC_CONF=expandable_segments:True"
    return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def larger_batches(facts: Workload) -> str:
    return "larger micro-batches" if facts.training else "larger batches"


def less_memory(facts: Workload) -> str:
    """How to use less memory, in two or three words."""
    return "smaller batches" if facts.training is False else "activation checkpointing"


def _any(traces: Iterable[Trace], pattern: str) -> bool:
    """Whether any name in the traces matches; costs one match per distinct name."""
    return any(bool(trace.stored.matching(pattern).any()) for trace in traces)


def _occurs(trace: Trace, pattern: str, *categories: str) -> bool:
    """Whether an event of one of these categories has a name that matches, reading nothing but names."""
    matching = trace.stored.matching(pattern)
    if not matching.any():
        return False
    return any(
        matching[trace.unsorted(category, columns=("name",))["name"].to_numpy()].any() for category in categories
    )


def _trains(tables: Tables, traces: Sequence[Trace]) -> bool | None:
    if tables.manifest is not None and tables.manifest.trainer:
        return True
    if any(rank_tables.steps[:1].in_phases(BACKWARD, OPTIMIZER).any() for rank_tables in tables.ranks.values()):
        return True
    # Not among Python's functions: torch's modules look for hooks of a backward in every forward.
    if any(_occurs(trace, _TRAINS, names.ANNOTATION, names.CPU_OP, names.KERNEL) for trace in traces):
        return True
    return False if any(names.CPU_OP in trace.stored.categories for trace in traces) else None


def _loads(tables: Tables, traces: Sequence[Trace]) -> bool | None:
    if loader_settings(tables.manifest).workers is not None or _any(traces, names.DATA_PATTERN):
        return True
    queues = any((rank_tables.steps.queue[:1, 0] != UNKNOWN).any() for rank_tables in tables.ranks.values())
    return True if queues else False if traces else None


def _vendor(devices: Iterable[str], traces: Sequence[Trace]) -> str:
    device_text = " ".join(devices)
    by_name = next((vendor for vendor, (device, _) in names.VENDORS.items() if re.search(device, device_text)), "")
    return by_name or next((vendor for vendor, (_, calls) in names.VENDORS.items() if _any(traces, calls)), "")


def _device_names(traces: Iterable[Trace]) -> list[str]:
    return [name for trace in traces for name in trace.device_names]


def _version(text: str) -> tuple[int, int] | None:
    version = re.match(r"(\d{1,4})\.(\d{1,4})", text)
    return (int(version.group(1)), int(version.group(2))) if version else None


def _set(manifest: Manifest | None, option: str) -> bool:
    return manifest is not None and manifest.trainer.get(option) is True
