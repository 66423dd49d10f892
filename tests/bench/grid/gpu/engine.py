"""Ranks of a GPU job in simulated time: a host that launches, streams that run in order, communicators that meet.

A rank's program is a generator that launches work in the order in which a real host would, and yields at each
collective until all ranks of the group have reached it. Work starts when it was launched, its stream is free and what
it waits for is done; a collective ends for all its ranks together, a transfer after the last of them has started. No
schedule is written down anywhere: it follows, and so does what a planted fault really costs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from random import Random
from typing import NamedTuple

US, MS = 1_000, 1_000_000
MAIN, AUTOGRAD = 100, 101  # threads of a rank's process
_API_NS = 4 * US  # of an operator's time on the host, the call of the CUDA runtime at its end

COMPUTE_STREAM, COPY_IN_STREAM, GATHER_STREAM, REDUCE_STREAM, GRADIENT_STREAM = 7, 19, 20, 24, 28
POOL_STREAM = 32  # the first of the pool that callbacks of futures run on, one after the other


class Call(NamedTuple):
    """One rank has its part of a collective ready: the kernel starts at ``start``."""

    group: str
    number: int
    members: int
    rank: int
    start: int
    transfer_ns: int
    tail_ns: int  # how much later than the others this rank is done


class Event(NamedTuple):
    """What the profiler writes down: times on the true clock."""

    cat: str
    name: str
    tid: int  # thread or stream
    start: int
    end: int
    correlation: int = 0
    args: str = ""  # further arguments, as JSON without braces


Program = Generator[Call, int, None]
Mark = tuple[int, int]  # when the host records an event on the training's stream, and when the device gets there


class Called(NamedTuple):
    """A collective: when the host called it, when its stream on the device reached it, and when it ended."""

    group: str
    number: int
    host: int
    start: int
    end: int
    args: str


@dataclass
class Marked:
    """What always-on records hold of a step. ``waits``: by a collective's group and number, from when to when the
    training's stream waited for it."""

    edges: list[Mark] = field(default_factory=list)  # begin and end
    phases: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)
    waits: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    pauses: list[tuple[int, int]] = field(default_factory=list)  # of Python's garbage collector, the host's times


@dataclass(frozen=True)
class Group:
    """A process group: one communicator, so its collectives run one after the other. ``description``: what whoever made
    it calls it."""

    name: str
    ranks: tuple[int, ...]
    description: str = "mesh"


@dataclass
class Rank:
    """One rank under way. ``now``: the host's main thread; ``free``: when each stream has done all that it was given.
    ``launch_ns``: what a launch costs the host; ``latency_ns``: how long after it the device can begin."""

    rank: int
    random: Random
    jitter: float
    launch_ns: int
    latency_ns: int
    queue: int  # launches that the host can be ahead of the device
    now: int = 0
    thread: int = MAIN
    recording: bool = False  # False: what the host does is not written down
    free: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    wire_free: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    events: list[Event] = field(default_factory=list)
    keeps_events: bool = True
    step_ends: list[int] = field(default_factory=list)  # when the device was done with each step
    host_steps: list[tuple[int, int, int]] = field(default_factory=list)  # begin, data there, end of each on the host
    marked: list[Marked] = field(default_factory=lambda: [Marked()])  # of each step, the one under way last
    pace: float = 1.0  # of this rank in this step, against the others
    _correlation: int = 0
    _ending: dict[int, tuple[str, int]] = field(default_factory=dict)  # which collective ends then
    _queued: deque[int] = field(default_factory=deque)

    def varied(self, ns: float) -> int:
        """About so long: no kernel takes exactly as long twice. Draws once whatever it is asked for."""
        return round(ns * self.pace * (1 + self.jitter * (2 * self.random.random() - 1)))

    def work(self, name: str, ns: int, cat: str = "cpu_op") -> None:
        """The host is busy."""
        begin = self.now
        self.now += ns
        if self.recording:
            self.events.append(Event(cat, name, self.thread, begin, self.now))

    @contextmanager
    def span(self, name: str, cat: str = "user_annotation") -> Iterator[None]:
        begin, thread = self.now, self.thread
        yield
        if self.recording:
            self.events.append(Event(cat, name, thread, begin, self.now))

    def call(self, name: str, ns: int, until: int = 0) -> None:
        """A call of the CUDA runtime that launches nothing, and returns at ``until`` at the earliest."""
        begin = self.now
        self.now = max(begin + ns, until)
        if self.recording:
            self.events.append(Event("cuda_runtime", name, self.thread, begin, self.now))

    def away(self, until: int) -> None:
        """The host waits for something that the profiler does not see, such as a disk."""
        self.now = max(self.now, until)

    def synchronise(self, until: int, name: str = "cudaStreamSynchronize") -> None:
        self.call(name, 5 * US, until)
        self._queued.clear()

    # -- marks ---------------------------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        return self.now, max(self.now, self.free[COMPUTE_STREAM])

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = self.mark()
        yield
        self.marked[-1].phases.append((name, begin, self.mark()))

    def wait_for(self, done: int) -> None:
        """The training's stream waits for the end of a collective."""
        begin = self.mark()[1]
        self.free[COMPUTE_STREAM] = max(self.free[COMPUTE_STREAM], done)
        if self.keeps_events and done in self._ending:
            self.marked[-1].waits[self._ending.pop(done)] = begin, max(begin, done)

    # -- device --------------------------------------------------------------------------------------------------------

    def launch(
        self, name: str, ns: int, stream: int = COMPUTE_STREAM, after: int = 0, launch_ns: int = 0, op: str = ""
    ) -> int:
        """Gives a stream a kernel of this length that waits for ``after``; when it will be done."""
        if after and stream == COMPUTE_STREAM:
            self.wait_for(after)
        return self._on_device("kernel", "cudaLaunchKernel", name, ns, stream, after, launch_ns, op)

    def copy(self, name: str, ns: int, stream: int = COMPUTE_STREAM, *, blocking: bool = False) -> int:
        """A copy from or to the host; ``blocking``: the host waits for it, as for pageable memory."""
        end = self._on_device("gpu_memcpy", "cudaMemcpyAsync", name, ns, stream, 0, 0, "", wait=blocking)
        if blocking:
            self.now = max(self.now, end + 2 * US)
        return end

    def collective(
        self,
        group: Group,
        kernel: str,
        transfer_ns: int,
        stream: int,
        after: int = 0,
        tail_ns: int = 0,
        args: str = "",
    ) -> Generator[Call, int, int]:
        """A collective's kernel: ready when launched, ``after`` is over and the communicator is free; when it ends."""
        launched, begin = self._launched(), self.now - _API_NS
        reached = max(launched, self.free[stream], after)
        start = max(reached, self.wire_free[group.name])
        number = self.numbers[group.name]
        self.numbers[group.name] += 1
        end = yield Call(group.name, number, len(group.ranks), self.rank, start, transfer_ns, tail_ns)
        self.free[stream] = self.wire_free[group.name] = end
        self._ending[end] = group.name, number
        self.marked[-1].calls.append(Called(group.name, number, begin, reached, end, args))
        self._queued.append(end)
        self._keep(
            "kernel", "cudaLaunchKernelExC", kernel, stream, begin, self.now, start, end, f'{args}, "Seq": {number}'
        )
        return end

    def _on_device(
        self,
        cat: str,
        api: str,
        name: str,
        ns: int,
        stream: int,
        after: int,
        launch_ns: int,
        op: str,
        wait: bool = False,
    ) -> int:
        before = self.now
        launched = self._launched(launch_ns)
        start = max(launched, self.free[stream], after)
        end = start + ns
        self.free[stream] = end
        self._queued.append(end)
        if self.keeps_events:
            returned = max(self.now, end + 2 * US) if wait else self.now
            begin = max(before, self.now - _API_NS)
            if op and self.recording:
                self.events.append(Event("cpu_op", op, self.thread, before, self.now))
            self._keep(cat, api, name, stream, begin, returned, start, end, "")
        return end

    def _launched(self, launch_ns: int = 0) -> int:
        """The host launches something; when the device could begin with it."""
        while len(self._queued) >= self.queue:
            self.now = max(self.now, self._queued.popleft())
        self.now += launch_ns or self.launch_ns
        return self.now + self.latency_ns

    def _keep(
        self, cat: str, api: str, name: str, stream: int, begin: int, returned: int, start: int, end: int, args: str
    ) -> None:
        if not self.keeps_events:
            return
        self._correlation += 1
        if self.recording:
            self.events.append(Event("cuda_runtime", api, self.thread, begin, returned, self._correlation))
        self.events.append(Event(cat, name, stream, start, end, self._correlation, args))


def run(programs: Mapping[int, Program]) -> None:
    """Runs the programs of all ranks to their ends. RuntimeError where they wait for each other for ever."""
    met: dict[tuple[str, int], list[Call]] = defaultdict(list)
    ready: list[tuple[int, int | None]] = [(rank, None) for rank in programs]
    alive = set(programs)
    while ready:
        rank, answer = ready.pop()
        try:
            call = next(programs[rank]) if answer is None else programs[rank].send(answer)
        except StopIteration:
            alive.discard(rank)
            continue
        calls = met[call.group, call.number]
        calls.append(call)
        if len(calls) == call.members:
            done = max(c.start for c in calls) + max(c.transfer_ns for c in calls)
            ready.extend((c.rank, done + c.tail_ns) for c in calls)
            del met[call.group, call.number]
    if alive:
        raise RuntimeError(f"ranks {sorted(alive)} wait for collectives that the others never enter")


def ring_ns(op: str, size: int, ranks: int, alpha_ns: int, gb_s: float) -> int:
    """A ring's time for ``size`` bytes of the full tensor (docs/concepts/replay.md)."""
    if ranks < 2:
        return 2 * US
    factor = (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks
    return round(alpha_ns + factor * size / gb_s)


def apart(group: Group) -> Group:
    """The same ranks with a communicator of their own, as FSDP2's set_separate_reduce_scatter_group makes it:
    ``new_group(use_local_synchronization=True)``, so that its name is a hash of its ranks."""
    name = sha1("_".join(map(str, (*group.ranks, 1))).encode(), usedforsecurity=False).hexdigest()
    return Group(name, group.ranks, "fsdp_reduce_scatter")


def groups_of(world: int, per_node: int) -> tuple[Group, Sequence[Group], Sequence[Group]]:
    """The default group; the groups within each node; those of equal places across the nodes."""
    everyone = Group("0", tuple(range(world)))
    inside = [
        Group(str(1 + node), tuple(range(node * per_node, (node + 1) * per_node))) for node in range(world // per_node)
    ]
    across = [Group(str(1 + len(inside) + i), tuple(range(i, world, per_node))) for i in range(per_node)]
    return everyone, inside, across
