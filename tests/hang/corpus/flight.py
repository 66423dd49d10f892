"""Flight Recorder dumps of simulated programs, in the containers of versions 2.9 and 2.10, as pickle or JSON."""

# ruff: noqa: E501  (messages stand as they are printed)
from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass, field, replace
from typing import Any

from .job import Rank
from .simulate import P2P, Call, Issued, Programs, run, with_size
from .story import Story

_FRAMES = (
    ("forward", "/workspace/model.py", 88), ("backward", "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", 353),
    ("train_step", "/workspace/train.py", 210), ("main", "/workspace/train.py", 412), ("<module>", "/workspace/train.py", 430),
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How the dumps are written. ``timing``: TORCH_NCCL_ENABLE_TIMING, which shows started calls."""

    version: str = "2.10"
    backend: str = "nccl"
    as_json: bool = False
    timing: bool = False
    stem: str = "comm_lib_trace_rank_"
    capacity: int = 40


@dataclass
class Layout:
    """Groups by name: id as in pg_config, description, members."""

    names: dict[str, str] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def add(self, key: str, desc: str, ranks: tuple[int, ...]) -> None:
        self.names[key] = desc
        self.members[key] = ranks


def random_style(rng: random.Random, backend: str = "nccl") -> Style:
    version = "2.10" if backend == "gloo" else rng.choice(("2.9", "2.10"))
    return Style(
        version=version,
        backend=backend,
        as_json=rng.random() < 0.25,
        timing=rng.random() < 0.4 and backend == "nccl",
        stem=rng.choice(("comm_lib_trace_rank_", "nccl_trace_rank_", "_dump_", "flight_recorder")),
        capacity=rng.choice((25, 40, 200)),
    )


def flat(world: int) -> Layout:
    layout = Layout()
    layout.add("0", "default_pg", tuple(range(world)))
    return layout


def three_d(world: int = 16, tp: int = 2, pp: int = 4) -> Layout:
    """Megatron's order: tensor ranks next to each other, then data, then pipeline stages."""
    layout, dp = flat(world), world // (tp * pp)
    key = 1
    stage = world // pp
    for first in range(0, world, tp):
        layout.add(str(key), "TENSOR_MODEL_PARALLEL_GROUP", tuple(range(first, first + tp)))
        key += 1
    for s in range(pp):
        for t in range(tp):
            layout.add(str(key), "DATA_PARALLEL_GROUP", tuple(s * stage + d * tp + t for d in range(dp)))
            key += 1
    for offset in range(stage):
        layout.add(str(key), "PIPELINE_MODEL_PARALLEL_GROUP", tuple(offset + s * stage for s in range(pp)))
        key += 1
    return layout


def data_parallel_program(rng: random.Random, world: int, steps: int, layers: int = 4) -> Programs:
    """FSDP-like: gathers in forward, scatters in backward, one small reduction a step."""
    sizes = [rng.randrange(10, 9000) * 64 for _ in range(layers)]
    program = []
    for _ in range(steps):
        for layer, size in enumerate(sizes):
            program.append(
                Call("0", "_all_gather_base", (size, size * world), ("forward", "/workspace/model.py", 80 + layer))
            )
        for layer, size in reversed(list(enumerate(sizes))):
            program.append(
                Call(
                    "0", "_reduce_scatter_base", (size * world, size), ("backward", "/workspace/model.py", 120 + layer)
                )
            )
        program.append(Call("0", "all_reduce", (1, 1), ("log_loss", "/workspace/train.py", 233)))
    return {rank: list(program) for rank in range(world)}


def three_d_program(layout: Layout, world: int, steps: int, tp: int = 2, pp: int = 4, micro: int = 4) -> Programs:
    """Micro-batches through the stages (GPipe), tensor reductions inside, data reductions at the end, one global norm."""
    stage_size = world // pp
    of = {(desc, rank): key for key, desc in layout.names.items() for rank in layout.members[key]}
    programs: Programs = {rank: [] for rank in range(world)}
    activation, gradient = 2 * 2048 * 512, 7_340_032
    for rank, program in programs.items():
        stage = rank // stage_size
        pipe, tensor, data = (of[f"{name}_PARALLEL_GROUP", rank] for name in ("PIPELINE_MODEL", "TENSOR_MODEL", "DATA"))
        for _ in range(steps):
            for backward in (False, True):
                source, target = (stage - 1, stage + 1) if not backward else (stage + 1, stage - 1)
                for _ in range(micro):
                    if 0 <= source < pp:
                        program.append(
                            Call(
                                pipe,
                                "recv",
                                (activation,),
                                ("recv_forward", "/workspace/pipeline.py", 66),
                                rank + (source - stage) * stage_size,
                            )
                        )
                    program += [
                        Call(
                            tensor,
                            "all_reduce",
                            (activation, activation),
                            ("backward" if backward else "forward", "/workspace/layers.py", 41),
                        )
                    ] * 2
                    if 0 <= target < pp:
                        program.append(
                            Call(
                                pipe,
                                "send",
                                (activation,),
                                ("send_forward", "/workspace/pipeline.py", 91),
                                rank + (target - stage) * stage_size,
                            )
                        )
            program.append(
                Call(
                    data,
                    "_reduce_scatter_base",
                    (gradient, gradient // max(1, len(layout.members[data]))),
                    ("grad_sync", "/workspace/optimizer.py", 30),
                )
            )
            program.append(Call("0", "all_reduce", (1, 1), ("clip_grad_norm", "/workspace/optimizer.py", 77)))
    return programs


def dump(rng: random.Random, style: Style, layout: Layout, rank: int, calls: list[Issued], start_ns: int) -> bytes:
    """The file of one rank."""
    mine = {key: ranks for key, ranks in layout.members.items() if rank in ranks}
    config = {key: {"name": key, "desc": layout.names[key], "ranks": str(list(ranks))} for key, ranks in mine.items()}
    if style.backend == "gloo":
        world = str(list(layout.members["0"]))
        config = {"": {"name": "", "desc": "", "ranks": world}}
    order = {key: number for number, key in enumerate(mine)}
    status: dict[str, dict[str, Any]] = {}
    entries = []
    p2p_seen: dict[str, int] = {}
    for record, item in enumerate(calls):
        call = item.call
        members = layout.members[call.group]
        is_p2p = call.op in P2P
        name = f"{style.backend}:{call.op}"
        if is_p2p:
            assert call.peer is not None
            src, dst = (rank, call.peer) if call.op == "send" else (call.peer, rank)
            arrow = (
                f"{members.index(src)}->{members.index(dst)}"
                if call.op == "send"
                else f"{members.index(dst)}<-{members.index(src)}"
            )
            name = f"{style.backend}:{call.op} {arrow}"
            p2p_seen[call.group] = item.seq
        created = start_ns + record * 4_000_000 + rng.randrange(900_000)
        gloo = style.backend == "gloo"
        state = "scheduled" if gloo else "completed" if item.done else "scheduled"
        if style.timing and not item.done and _oldest(calls, record):
            state = "started"
        found = None if gloo or not item.done else created + rng.randrange(2_000_000, 9_000_000)
        started = found - 1_000_000 if found and style.timing else created + 500_000 if state == "started" else None
        halves = (call.sizes[:1], call.sizes[-1:]) if not is_p2p else (call.sizes, call.sizes)
        entry: dict[str, Any] = {
            "frames": [{"name": n, "filename": f, "line": line} for n, f, line in (call.frame, *_FRAMES[3:])],
            "record_id": record, "pg_id": order[call.group], "process_group": (call.group, layout.names[call.group]),
            "collective_seq_id": 0 if is_p2p else item.seq, "p2p_seq_id": p2p_seen.get(call.group, 0),
            "op_id": record + 1, "profiling_name": name, "time_created_ns": created,
            "input_sizes": [list(halves[0])], "input_dtypes": ["Float"], "output_sizes": [list(halves[1])], "output_dtypes": ["Float"],
            "state": state, "time_discovered_started_ns": started, "time_discovered_completed_ns": found,
            "retired": item.done, "timeout_ms": 600000, "is_p2p": is_p2p,
        }  # fmt: skip
        if style.version == "2.10":
            entry |= {
                "thread_name": "pt_autograd_0" if "backward" in call.frame[0] else "python",
                "thread_id": "140239828302720",
            }
        if style.timing and item.done:
            entry["duration_ms"] = 1.25
        entries.append(entry)
        shown = status.setdefault(
            str(order[call.group]),
            {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
        )
        shown["last_enqueued_collective"] = item.seq
        if item.done:
            shown["last_completed_collective"] = item.seq
        if style.timing and state != "scheduled":
            shown["last_started_collective"] = item.seq
    kept = entries[-(style.capacity + rng.randrange(8)) :]  # the ring loses old entries at another point on every rank
    key = "comm_lib_version" if style.version == "2.10" else "nccl_version"
    content: dict[str, Any] = {
        "version": style.version,
        key: "" if style.backend == "gloo" else "2.27.5",
        "pg_config": config,
        "pg_status": status,
        "entries": kept,
    }
    if style.as_json:
        return _as_json(content)
    return pickle.dumps(content, protocol=2)


def _oldest(calls: list[Issued], record: int) -> bool:
    group = calls[record].call.group
    return not any(item.call.group == group and not item.done for item in calls[:record])


def _as_json(content: dict[str, Any]) -> bytes:
    """No frames, zeros for unknown times, strings in pg_status, no entries where there are none."""
    entries = [
        {k: (0 if v is None else list(v) if isinstance(v, tuple) else v) for k, v in entry.items() if k != "frames"}
        for entry in content["entries"]
    ]
    shown = {k: v for k, v in content.items() if k != "entries"} | ({"entries": entries} if entries else {})
    shown["pg_status"] = {pg: {k: str(v) for k, v in status.items()} for pg, status in content["pg_status"].items()}
    shown["nccl_comm_state"] = {}
    return json.dumps(shown).encode()


def write_dumps(
    story: Story, layout: Layout, issued: dict[int, list[Issued]], style: Style, *, without: tuple[int, ...] = (),
    empty: tuple[int, ...] = (), no_entries: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """One file a rank, in a folder of their own. ``empty``: 0 bytes; ``no_entries``: a dump that holds none."""
    start_ns = int(story.job.start.timestamp() * 1e9)
    ending = ".json" if style.as_json else ""
    for rank, calls in issued.items():
        if rank in without:
            continue
        content = (
            b""
            if rank in empty
            else dump(story.rng, style, layout, rank, [] if rank in no_entries else calls, start_ns)
        )
        story.extra[f"dumps/{style.stem}{rank}{ending}"] = content


def mismatch_dumps(story: Story, bad: Rank, kind: str) -> None:
    """Dumps only: ``bad`` changes a call's size or operation, or leaves one out and goes on one position ahead."""
    rng, world = story.rng, story.job.world
    backend = "gloo" if rng.random() < 0.25 else "nccl"
    programs = data_parallel_program(rng, world, steps=12)
    layout = flat(world)
    at = rng.randrange(60, 95)
    if kind == "desync":  # where the next calls differ from each other, so that the shift shows
        at -= at % 9
        at += rng.randrange(0, 3)
    program = programs[bad.rank]
    if kind == "shape":
        program[at] = with_size(program[at], 0.5)
    elif kind == "op":
        program[at] = replace(
            program[at], op="broadcast", sizes=(4096, 4096), frame=("evaluate", "/workspace/train.py", 301)
        )
    else:
        del program[at]
    depth = {rank: rng.randrange(4, 7) for rank in programs}
    issued = run(programs, layout.members, depth)
    write_dumps(story, layout, issued, random_style(rng, backend))
    story.no_files = True
    story.note(f"Dumps only, {backend}: the ranks are apart at position {at + 1} of the default group.")


def missing_dumps(story: Story, bad: list[Rank], *, parallel: bool, how: str) -> Issued:
    """Dumps of ranks that wait for ``bad``, which stopped calling; returns the call that one of them waits in.

    ``how``: what the file of ``bad`` is like: lags, no_entries, empty or none.
    """
    rng, world = story.rng, story.job.world
    layout = three_d(world) if parallel else flat(world)
    programs = three_d_program(layout, world, steps=5) if parallel else data_parallel_program(rng, world, steps=12)
    for rank in bad:
        full = programs[rank.rank]
        programs[rank.rank] = full[: rng.randrange(len(full) // 2, len(full) - 12)]
    depth = {rank: rng.randrange(3, 8) for rank in programs}
    issued = run(programs, layout.members, depth)
    culprits = tuple(rank.rank for rank in bad)
    backend = "gloo" if not parallel and rng.random() < 0.2 else "nccl"
    write_dumps(
        story, layout, issued, random_style(rng, backend),
        without=culprits if how == "none" else (), empty=culprits if how == "empty" else (),
        no_entries=culprits if how == "no_entries" else (),
    )  # fmt: skip
    return next(item for rank, calls in issued.items() if rank not in culprits for item in calls if not item.done)


def same_call_dumps(story: Story, kept: list[int]) -> None:
    """Every dump that was kept waits in the same call: nobody can be told apart."""
    rng, world = story.rng, story.job.world
    layout, programs = flat(world), data_parallel_program(rng, world, steps=12)
    issued = run(programs, layout.members, dict.fromkeys(programs, 2))
    for calls in issued.values():
        del calls[90:]
        calls[-1].done = False
    write_dumps(story, layout, {rank: issued[rank] for rank in kept}, random_style(rng))
