"""A step that nobody has run yet, as the replay's own program: the replay then says how long it takes.

One line a pipeline stage stands for all its ranks, which are alike. Schedules as torch's: fully_shard gathers the next
unit while one computes, and reduces behind it on the same communicator (science.md 4.3); DDP and ZeRO reduce buckets
beside backward and wait for all; ZeRO gathers the new parameters after the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diag.account.match import Key
from diag.model.states import Sharding
from diag.model.steps import Detail, Kind
from diag.plan.job import Job
from diag.plan.pipeline import Schedule, Turn, turns
from diag.plan.units import Unit
from diag.replay.program import Collective, Issue, Op, Program, Role, StepEnd, Stretch, Wait, Work


def program(plan: Job) -> Program:
    """One step."""
    lines: dict[int, tuple[Op, ...]] = {}
    collectives: dict[Key, Collective] = {}
    for number in range(len(plan.stages)):
        line = _Line(plan, number, collectives)
        lines[number] = tuple(line.step())
    begin = dict.fromkeys(lines, 0)
    stretch = Stretch((0,), begin, dict.fromkeys(lines, (0,)), lines, collectives)
    return Program((stretch,))


class _Line:
    """The operations of one stage, in order."""

    def __init__(self, plan: Job, number: int, collectives: dict[Key, Collective]) -> None:
        self._plan, self._number, self._collectives = plan, number, collectives
        self._stage = plan.stages[number]
        self._count = 0
        self._pending: list[Key] = []  # reductions that the end of backward waits for
        self._bucket = 0

    def step(self) -> Iterator[Op]:
        plan = self._plan
        order = turns(plan.schedule, self._number, len(plan.stages), plan.micro_batches, plan.chunks)
        backwards = [turn for turn in order if not turn.forward]
        last_of_chunk = {turn.chunk: turn for turn in backwards}
        for turn in order:
            yield from self._forward(turn) if turn.forward else self._backward(turn, turn is last_of_chunk[turn.chunk])
        yield from self._flush()
        yield from (Wait(key) for key in self._pending)
        yield Work(self._stage.optimizer_ns, Kind.COMPUTE, Detail.OPTIMIZER)
        if plan.data.strategy.sharding in (Sharding.OPTIMIZER, Sharding.GRADIENTS):
            # The new parameters: nothing is left to hide it.
            size = self._parameters() * plan.data.computed
            key = self._collective("all_gather", Role.OTHER, "data", size, plan.data.shards.ns(plan.speed, size))
            yield from (Issue(key), Wait(key))
        yield StepEnd(0)

    # -- passes ----------------------------------------------------------------------------------------------------

    def _forward(self, turn: Turn) -> Iterator[Op]:
        yield from self._receive(turn)
        units, root = self._of_chunk(turn.chunk)
        gathers = self._gathers(units, root, Role.GATHER_FORWARD)
        yield from _first(gathers)
        for place, unit in enumerate(units):
            yield from _next(gathers, place)
            yield from self._computed(unit, unit.forward, Detail.FORWARD)
        yield self._work(root.forward if root else 0.0, Detail.FORWARD)
        yield from self._send(turn)

    def _backward(self, turn: Turn, last: bool) -> Iterator[Op]:
        yield from self._receive(turn)
        units, root = self._of_chunk(turn.chunk)
        units = units[::-1]
        sharded = self._plan.data.strategy.sharding == Sharding.PARAMETERS
        again = sharded and not self._plan.data.keeps
        gathers = self._gathers(units, None, Role.GATHER_BACKWARD) if again else []
        yield from _first(gathers)
        yield self._work(root.backward if root else 0.0, Detail.BACKWARD)
        for place, unit in enumerate(units):
            yield from _next(gathers, place)
            yield from self._computed(unit, unit.backward, Detail.BACKWARD)
            if last:
                yield from self._reduced(unit.parameters, sharded)
        if last and root:
            yield from self._reduced(root.parameters, sharded)
        yield from self._send(turn)

    def _computed(self, unit: Unit, flops: float, detail: Detail) -> Iterator[Op]:
        """With the ring beside it and the tensor-parallel collectives in between."""
        backward = detail == Detail.BACKWARD
        ring = round(self._stage.context_ns[backward] * unit.blocks)
        cut = round(self._stage.tensor_ns[backward] * unit.blocks)
        key = self._collective("send_recv", Role.OTHER, "context", 0, ring) if ring else None
        if key:
            yield Issue(key)
        yield self._work(flops, detail)
        if key:
            yield Wait(key)
        if cut:
            key = self._collective("all_gather", Role.OTHER, "tensor", 0, cut)
            yield from (Issue(key), Wait(key))

    # -- parameters and gradients ----------------------------------------------------------------------------------

    def _gathers(self, units: Sequence[Unit], root: Unit | None, role: Role) -> list[Key]:
        """Of each unit, and before them of the root's own parameters; none where parameters are whole."""
        data = self._plan.data
        if data.strategy.sharding != Sharding.PARAMETERS or data.shards.ranks < 2 or not units:
            return []
        sizes = [unit.parameters * data.computed for unit in units]
        if root is not None and role == Role.GATHER_FORWARD:
            sizes[0] += root.parameters * data.computed  # both before the first unit's computation
        return [
            self._collective("all_gather", role, "data", size, data.shards.ns(self._plan.speed, size)) for size in sizes
        ]

    def _reduced(self, parameters: int, sharded: bool) -> Iterator[Op]:
        if sharded:
            yield from self._reduction(parameters)
            return
        self._bucket += parameters
        while self._bucket >= self._plan.data.bucket:
            yield from self._reduction(self._plan.data.bucket)
            self._bucket -= self._plan.data.bucket

    def _flush(self) -> Iterator[Op]:
        if self._bucket:
            yield from self._reduction(self._bucket)
            self._bucket = 0

    def _reduction(self, parameters: int) -> Iterator[Op]:
        """Waited for at the end of backward. Among replicas it follows on a communicator of its own, when the one among
        shards is done: here as one, since nobody waits in between."""
        data, speed = self._plan.data, self._plan.speed
        size = parameters * data.reduced
        whole = data.strategy.sharding == Sharding.NONE
        op, role = ("all_reduce", Role.REDUCE) if whole else ("reduce_scatter", Role.SCATTER)
        if data.shards.ranks > 1:
            key = self._collective(op, role, "data", size, data.shards.ns(speed, size, 2 if whole else 1))
            self._pending.append(key)
            yield Issue(key)
        if data.replicas.ranks > 1:
            own = size // data.shards.ranks
            key = self._collective("all_reduce", Role.REDUCE, "replicas", own, data.replicas.ns(speed, own, 2))
            self._pending.append(key)
            yield Issue(key)

    # -- between stages --------------------------------------------------------------------------------------------

    def _receive(self, turn: Turn) -> Iterator[Op]:
        place = self._place(turn)
        before = place - 1 if turn.forward else place + 1
        if 0 <= before < self._places:
            key = self._passed(turn, before, place)
            yield from (Issue(key), Wait(key))

    def _send(self, turn: Turn) -> Iterator[Op]:
        place = self._place(turn)
        after = place + 1 if turn.forward else place - 1
        if 0 <= after < self._places:
            yield Issue(self._passed(turn, place, after))

    def _passed(self, turn: Turn, source: int, target: int) -> Key:
        """The same key on both ranks."""
        stages = len(self._plan.stages)
        wire = f"stages {source % stages} to {target % stages}"
        key = (wire, turn.micro_batch, f"send_recv {source} to {target}")
        if key not in self._collectives:
            tails = {source % stages: 0, target % stages: 0}
            self._collectives[key] = Collective(
                key, "send_recv", wire, 0, "", 0, self._plan.stages[source % stages].passed_ns, tails
            )
        return key

    @property
    def _places(self) -> int:
        return len(self._plan.stages) * self._chunks

    @property
    def _chunks(self) -> int:
        return self._plan.chunks if self._plan.schedule == Schedule.INTERLEAVED else 1

    def _place(self, turn: Turn) -> int:
        """Of the chunk in the whole model."""
        return turn.chunk * len(self._plan.stages) + self._number

    # -- parts -----------------------------------------------------------------------------------------------------

    def _of_chunk(self, chunk: int) -> tuple[Sequence[Unit], Unit | None]:
        """Its units, and the root's with the chunk that has it: the first stage's table in the first, the head in the
        last."""
        units, chunks = self._stage.units, self._chunks
        size = -(-len(units) // chunks)
        with_root = chunk == (0 if self._stage.first and not self._stage.last else chunks - 1)
        return units[chunk * size : (chunk + 1) * size], self._stage.root if with_root else None

    def _parameters(self) -> int:
        return self._stage.root.parameters + sum(unit.parameters for unit in self._stage.units)

    def _work(self, flops: float, detail: Detail) -> Work:
        return Work(self._plan.speed.compute_ns(flops), Kind.COMPUTE, detail)

    def _collective(self, op: str, role: Role, group: str, size: int, transfer_ns: int) -> Key:
        """One that the stage's ranks enter together: this line stands for all of them."""
        self._count += 1
        name = f"{group} of stage {self._number}"
        key = (name, self._count, op)
        self._collectives[key] = Collective(
            key, op, name, size, "", 0, transfer_ns, {self._number: 0}, role=role, unit=self._count
        )
        return key


def _first(gathers: Sequence[Key]) -> Iterator[Op]:
    if gathers:
        yield Issue(gathers[0])


def _next(gathers: Sequence[Key], place: int) -> Iterator[Op]:
    """Wait for this one, and let the one after it come while it is used."""
    if gathers:
        yield Wait(gathers[place])
        if place + 1 < len(gathers):
            yield Issue(gathers[place + 1])
