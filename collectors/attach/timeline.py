"""Steps and phases, inferred from the calls of a training: its loader, backward, optimizer, and saving.

A step ends when the step of its last optimizer has returned (see ``iterations``), and the next one begins there. An
optimizer's step counts only after a backward: some code initializes an optimizer's state by a step with zero gradients.
The time from the last batch's arrival to a backward is the forward; the time from the last backward to the end of the
optimizer's step is the optimizer. A training may fetch the next batch between forward and backward: the time before the
fetch is the forward, too, if autograd made more nodes there than after it. An evaluation is recognized by batches that
no backward follows, or by a module that is in evaluation mode for a while in which autograd makes no nodes. If the
training marks the ends of its steps itself, nothing is inferred for them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import NamedTuple, Protocol

from ..policy import RECORDING
from ..records import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, OPTIMIZER, LoaderQueue, StepRecord
from ..session import Moment

# -- iterations --------------------------------------------------------------------------------------------------------
#
# With several optimizers: the optimizer whose step ends a step of the training.
#
# A step is an iteration of the optimizers that step most seldom but regularly, once in up to 64 steps of the fastest,
# which is called base here. In a WGAN this is the generator, after five critic steps. Where all optimizers step once
# per iteration, as in a GAN or with one optimizer for every layer, it ends when all have. An optimizer takes part once
# its interval was seen twice. One that steps once or irregularly does not take part for long, and a step ends without
# those that are overdue.


class _Rhythm:
    """The interval of an optimizer's steps, in steps of the base."""

    __slots__ = ("backwards", "faults", "interval", "longest", "needed", "seen", "tick")

    def __init__(self) -> None:
        self.backwards = 0  # number of backwards before its last step
        self.needed = RECORDING.repeats
        self.forget()

    def forget(self) -> None:
        self.tick: int | None = None  # the base's step count at its last step
        self.interval = self.longest = self.seen = self.faults = 0

    def step(self, tick: int, keeps: bool) -> bool:
        """Notes a step. Returns whether the interval since the last one was about the same as before; not exactly, as
        the order of optimizers may change. If it was not, the new interval replaces the old one, unless ``keeps``."""
        last, self.tick = self.tick, tick
        if last is None:
            return True
        passed = tick - last
        if self.seen and abs(passed - self.interval) <= 1 + self.interval // 4:
            self.seen, self.longest = self.seen + 1, max(self.longest, passed)
            return True
        if not keeps:
            self.interval = self.longest = max(1, passed)
            self.seen = 1
        return False

    def due(self, tick: int) -> bool:
        """Whether the optimizer is still stepping."""
        return self.tick is not None and tick - self.tick <= self.interval + 1


class Iterations:
    """Called for every step of an optimizer. Numbers identify the optimizers."""

    def __init__(self) -> None:
        self.base: int | None = None
        self._ticks = 0  # steps of the base
        self._rhythms: dict[int, _Rhythm] = {}
        self._slowest: set[int] = set()  # the optimizers that all step in each iteration
        self._interval = 1  # their interval
        self._most = 1  # the most steps of the base in an iteration that is not overdue
        self._missing: set[int] = set()  # of the slowest, those that have not stepped yet in this iteration
        self._counts: dict[int, int] = {}  # steps of each optimizer in this iteration
        self._joining: set[int] = set()  # optimizers that join the slowest from the next iteration on
        self._sole: int | None = None  # the base, while no other optimizer is waited for or joins

    @property
    def last(self) -> int | None:
        """The optimizer whose next step ends the iteration, if a backward precedes it; None where it is not certain."""
        return next(iter(self._missing)) if len(self._missing) == 1 and not self._joining else None

    @property
    def next_last(self) -> int | None:
        """The value of ``last`` after ``last`` has stepped."""
        return next(iter(self._slowest)) if len(self._slowest) == 1 and not self._joining else None

    @property
    def spare(self) -> int:
        """How often the base may step without ending the iteration."""
        if self.base is None or self.base in self._slowest:
            return 0
        return self._most - self._counts.get(self.base, 0)

    def stepped(self, optimizer: int, backwards: int, fresh: bool, within_backward: bool) -> bool:
        """Whether the iteration ends with this step. ``backwards``: their number so far. ``fresh``: at least one of
        them was in this iteration; otherwise the step belongs to the previous iteration, or to none."""
        if fresh and optimizer == self._sole:
            self._ticks += 1
            self._counts.clear()
            return True
        ends = self._decide(optimizer, backwards, fresh, within_backward)
        self._sole = self.base if self.base is not None and self.next_last == self.base else None
        return ends

    def _decide(self, optimizer: int, backwards: int, fresh: bool, within_backward: bool) -> bool:
        if self.base is None:
            if not fresh:
                return False
            self._follow(optimizer)
        early = self._notice(optimizer, backwards, within_backward)
        if not fresh:
            return False
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self._missing.discard(optimizer)
        if (
            self._missing
            and self.base not in self._counts
            and (count > self._most or len(self._counts) > RECORDING.longest_iteration)
        ):
            self._follow(optimizer)
        elif self._missing and (optimizer != self.base or count <= self._most):
            return False
        return self._end(optimizer, early)

    def _follow(self, base: int) -> None:
        """From here on time is counted in steps of ``base``, and the optimizers to wait for are determined again."""
        rhythm = self._rhythms.get(base)
        as_fast = rhythm is not None and rhythm.seen > 0 and rhythm.interval == 1  # as fast as the previous base
        self.base = base
        self._only(base)
        self._joining.discard(base)
        if not as_fast:
            self._joining.clear()
            for rhythm in self._rhythms.values():
                rhythm.forget()

    def _only(self, base: int) -> None:
        self._slowest, self._missing, self._interval, self._most = {base}, {base}, 1, 1

    def _notice(self, optimizer: int, backwards: int, within_backward: bool) -> bool:
        """Notes a step. Returns whether the optimizer is waited for and stepped earlier than expected."""
        rhythm = self._rhythms.get(optimizer)
        if rhythm is None:
            rhythm = self._rhythms[optimizer] = _Rhythm()
        elif backwards == rhythm.backwards:
            return False  # a second step with the same gradients: for example, its state is initialized
        rhythm.backwards = backwards
        if optimizer == self.base:
            self._ticks += 1
            return False
        if optimizer in self._slowest:
            return not rhythm.step(self._ticks, keeps=True)
        rhythm.step(self._ticks, keeps=False)
        if (
            rhythm.seen >= rhythm.needed
            and self._interval <= rhythm.interval <= RECORDING.longest_iteration
            and not within_backward
        ):
            self._joining.add(optimizer)
        else:
            self._joining.discard(optimizer)
        return False

    def _end(self, optimizer: int, early: bool) -> bool:
        """Whether the iteration ends. If other optimizers join in it, it goes on until they have stepped."""
        if self._slowest != {self.base}:
            self._expel(self._missing | {optimizer} if early else self._missing)
        joined = bool(self._joining) and self._join()
        if self._slowest != {self.base}:
            longest = max(self._rhythms[member].longest for member in self._slowest if member != self.base)
            self._most = longest + (longest > 1)
        self._missing = set(self._slowest)
        if joined and len(self._slowest) > 1:  # the others step after this one, in this iteration as in later ones
            self._missing.discard(optimizer)
            self._counts = {optimizer: 1}
            return False
        self._counts.clear()
        return True

    def _expel(self, unexpected: set[int]) -> None:
        """Drops optimizers that were unexpected too often, by no step or an early one. To join again, their steps must
        be regular for longer."""
        for member in tuple(self._slowest):
            rhythm = self._rhythms[member]
            rhythm.faults = rhythm.faults + 1 if member in unexpected else max(0, rhythm.faults - 1)
            if rhythm.faults >= RECORDING.faults:
                rhythm.needed = min(2 * rhythm.needed, RECORDING.most_repeats_after_faults)
                rhythm.forget()
                self._slowest.discard(member)
        if not self._slowest and self.base is not None:
            self._only(self.base)

    def _join(self) -> bool:
        """Adds the joining optimizers; returns whether the set of waited-for optimizers has changed."""
        due = {
            member: rhythm.interval for member in self._joining if (rhythm := self._rhythms[member]).due(self._ticks)
        }
        self._joining.clear()
        longest = max(due.values(), default=0)
        if longest < self._interval:
            return False
        if longest > self._interval:
            self._slowest.clear()
        self._interval = longest
        self._slowest |= {member for member, interval in due.items() if interval == longest}
        return True


class Recorder(Protocol):
    """The part of ``Events`` that is used here."""

    def moment(self, ahead: str = "") -> Moment: ...
    def passed(self, name: str, start: Moment, end: Moment, /) -> None: ...
    def step(self, step: int, /) -> AbstractContextManager[StepRecord]: ...


class _Edge(Enum):
    """The event after which the time not yet assigned to a phase began."""

    STEP = auto()
    FETCH = auto()
    BACKWARD = auto()
    OTHER = auto()


class _Fetch(NamedTuple):
    loader: int
    gradients: bool
    start: Moment
    end: Moment


class _Gap(NamedTuple):
    """Time before a batch was requested. ``made``: nodes that autograd made in it."""

    start: Moment
    end: Moment
    made: int


class _Evaluation:
    """Batches that may belong to an evaluation, until an event shows that the training goes on."""

    def __init__(self, start: Moment) -> None:
        self.start = start
        self.fetches: list[_Fetch] = []

    def of_the_training(self) -> list[_Fetch]:
        """The batches for the backward that follows, of a loader not known before: the last one, and those fetched with
        it by Accelerate's loader, which is a batch ahead, or for gradient accumulation."""
        fetches = self.fetches[-1:]
        for fetch in reversed(self.fetches[:-1]):
            if fetch.loader != fetches[0].loader or not fetch.gradients:
                break
            fetches.insert(0, fetch)
        return fetches


class Timeline:
    """Turns events into the records of one rank. Numbers identify loaders and optimizers."""

    def __init__(self, recorder: Recorder, steps: int = 0) -> None:
        self._recorder = recorder
        self._open: tuple[AbstractContextManager[StepRecord], StepRecord] | None = None
        self.steps = steps  # number of steps that are over
        self._marked = False  # the training marks the ends of its steps
        self._optimized = False  # the optimizers have stepped in this step
        self._edge_kind, self._edge = _Edge.STEP, recorder.moment()
        self._step_began = self._edge
        self._began = self._edge  # begin of the fetch or backward under way
        self._loader, self._gradients = 0, True  # of the last fetch
        self.loaders: set[int] = set()  # the training's loaders: a backward has followed their batches
        self._fetched: set[int] = set()  # loaders used since the last backward
        # Nodes that autograd had made when the last batch was requested or the last backward ended; None before both:
        # what it made until then is no forward of this training.
        self._made: int | None = None
        self._gaps: list[_Gap] = []  # of this step, since the last backward
        self._eval_called: Moment | None = None  # since the last backward
        self._made_at_eval = 0
        self._evaluation: _Evaluation | None = None
        self.optimizing: int | None = None  # the outermost optimizer that is stepping
        self._optimizer_began = self._edge
        self._backwards = 0  # number of backwards in this step
        self._in_backward = False
        self._ends_with_backward = False  # an optimizer has stepped within the backward
        self.iterations = Iterations()
        self._all_backwards = 0
        self.fresh = False  # a backward has begun since the last iteration of the optimizers
        self.unhooked = False  # the gradients come from no backward that is hooked
        self._batches = 0
        self._unexplained: dict[int, list[int]] = {}  # the batch of each optimizer's steps since the last backward

    @property
    def steady(self) -> bool:
        """Whether only an optimizer's step can end a step, where steps are inferred, and only a batch without gradients
        or from a loader not in ``loaders`` can begin an evaluation."""
        if self._open is None or self.iterations.base is None or self._in_backward or self._ends_with_backward:
            return False
        return self._evaluation is None and self._eval_called is None

    @property
    def backwards(self) -> int:
        return self._all_backwards

    @property
    def infers(self) -> bool:
        """Whether the end of a step is inferred from optimizers, not marked by the training."""
        return not self._marked

    def fetch_begins(self, loader: int, gradients: bool, made: int = 0) -> None:
        """``gradients``: whether autograd is enabled. ``made``: how many nodes autograd has made until now."""
        self._begin_step()
        self.optimizing = None  # an optimizer's step that raised reports no end
        self._loader, self._gradients = loader, gradients
        self._began = self._recorder.moment(ahead=DATA)
        if self._evaluation is None and self._made is not None and made > self._made:
            self._gaps.append(_Gap(self._edge, self._began, made - self._made))
        self._made = made
        if self._for_evaluation(loader, gradients):
            if self._evaluation is None:
                called = self._eval_called
                within = called is not None and called.ns >= self._step_began.ns  # models are also loaded in that mode
                self._evaluation = _Evaluation(called if called is not None and within else self._began)
            self._recorder.moment(ahead=EVALUATION)
        elif loader in self.loaders:
            self._end_evaluation(self._began)

    def _for_evaluation(self, loader: int, gradients: bool) -> bool:
        if loader in self.loaders:  # a frozen teacher may be set to eval() in every step
            return not gradients and self._eval_called is not None
        return not gradients or self._eval_called is not None

    def queue_seen(self, queue: LoaderQueue) -> None:
        """Records the queue of the current loader. The first in a step counts: several batches in a row empty it."""
        if self._evaluation is None and self._open is not None and self._open[1].queue is None:
            self._open[1].queue = queue

    def fetch_ends(self, exhausted: bool = False) -> None:
        now = self._recorder.moment(ahead=EVALUATION if self._evaluation else FORWARD)
        self._batches += not exhausted
        if self._evaluation is None:
            self._recorder.passed(DATA, self._began, now)
            if not exhausted:
                self._fetched.add(self._loader)
        elif not exhausted:
            self._evaluation.fetches.append(_Fetch(self._loader, self._gradients, self._began, now))
        self._reach(_Edge.FETCH, now)

    def eval_called(self, made: int = 0) -> None:
        """A module was put into evaluation mode. ``made``: how many nodes autograd has made until now."""
        if self._eval_called is None:
            self._eval_called, self._made_at_eval = self._recorder.moment(), made

    def train_called(self, made: int = 0) -> None:
        """The module that was last put into evaluation mode returns to training mode. If it neither fetched a batch nor
        made gradients in between, that was an evaluation with data of its own."""
        called = self._eval_called
        if called is None or self._evaluation is not None or self._open is None or self._in_backward:
            return
        if called.ns < max(self._step_began.ns, self._edge.ns) or made != self._made_at_eval:
            return
        now = self._recorder.moment()
        self._recorder.passed(EVALUATION, called, now)
        self._eval_called = None
        self._reach(_Edge.OTHER, now)

    # -- forward and backward --------------------------------------------------------------------------------------

    def backward_begins(self, made: int = 0) -> None:
        self._begin_step()
        self._began = self._recorder.moment(ahead=BACKWARD)
        if self._evaluation is not None and self._evaluation.fetches:
            fetches = self._evaluation.of_the_training()
            self._fetched.add(fetches[0].loader)
            self._end_evaluation(fetches[0].start)
            for fetch in fetches:
                self._recorder.passed(DATA, fetch.start, fetch.end)
        self._end_evaluation(self._edge)
        for gap in self._gaps:
            if gap.made > made - (self._made or 0):
                self._recorder.passed(FORWARD, gap.start, gap.end)
        self._gaps.clear()
        self._recorder.passed(FORWARD, self._edge, self._began)
        self.loaders |= self._fetched
        self._fetched.clear()
        self._eval_called = None
        self._in_backward = self.fresh = True
        self.unhooked = False
        self._unexplained.clear()
        self._all_backwards += 1

    def backward_ends(self, made: int = 0) -> None:
        now = self._recorder.moment(ahead=OPTIMIZER)
        self._made = made
        self._recorder.passed(BACKWARD, self._began, now)
        self._backwards += 1
        self._in_backward = False
        self._reach(_Edge.BACKWARD, now)
        if self._ends_with_backward:
            self._optimized_until(now)

    def interrupted(self) -> None:
        """A fetch, a backward or a save has raised: heartbeats keep reporting its phase."""
        self._in_backward = False

    def optimizer_begins(self, optimizer: int) -> None:
        """Of nested optimizers only the outermost counts."""
        if self.optimizing in (None, optimizer):
            self.optimizing, self._optimizer_began = optimizer, self._recorder.moment()

    def optimizer_ends(self, optimizer: int, stepped: bool = True) -> None:
        """``stepped`` False: the call of an engine that only counted a micro-batch."""
        if self.optimizing not in (None, optimizer):
            return
        self.optimizing = None
        if not stepped:
            return
        fresh = self.fresh or self.unhooked or self._becomes_unhooked(optimizer)
        self._all_backwards += self.unhooked  # then each step counts as one with new gradients
        last = self.iterations.stepped(optimizer, self._all_backwards, fresh, self._in_backward)
        self.fresh = self.fresh and not last
        if self._in_backward:
            self._ends_with_backward |= last
            return
        if self._open is None and not fresh:
            return  # the training has not begun
        self._begin_step()
        now = self._recorder.moment()
        start = self._edge if self._edge_kind is _Edge.BACKWARD else self._optimizer_began
        self._recorder.passed(OPTIMIZER, start, now)
        self._reach(_Edge.OTHER, now)
        if last:
            self._optimized_until(now)

    def _becomes_unhooked(self, optimizer: int) -> bool:
        """Whether this optimizer has stepped often enough without a backward."""
        batches = self._unexplained.setdefault(optimizer, [])
        batches.append(self._batches)
        self.unhooked = len(batches) >= RECORDING.unhooked_steps or len(set(batches)) >= RECORDING.unhooked_batches
        return self.unhooked

    def gradients_cleared(self) -> None:
        """Ends a step if no optimizer's step is ever seen: then it is compiled, but ``zero_grad`` is not."""
        if self.iterations.base is None and self.optimizing is None and self._edge_kind is _Edge.BACKWARD:
            now = self._recorder.moment()
            self._recorder.passed(OPTIMIZER, self._edge, now)
            self._reach(_Edge.OTHER, now)
            self.fresh = False
            self._optimized_until(now)

    def checkpoint_begins(self) -> Moment | None:
        """The begin; None before the first step, as the checkpoint is not part of one."""
        return self._recorder.moment(ahead=CHECKPOINT) if self._open is not None else None

    def checkpoint_ends(self, start: Moment) -> None:
        now = self._recorder.moment(ahead=EVALUATION if self._evaluation else FORWARD)
        self._recorder.passed(CHECKPOINT, start, now)
        if self._edge_kind is not _Edge.BACKWARD:
            self._reach(_Edge.OTHER, now)

    def told_steps(self, loader: int | None = None) -> None:
        """From here on the training marks the ends of its steps. ``loader``: the source of its batches, if given."""
        self._marked = True
        if loader is not None:
            self.loaders.add(loader)

    def inferred_steps(self) -> None:
        """From here on a step ends with the optimizer's step again."""
        self._marked = False

    def step_ends(self, whole: bool = True) -> None:
        """Called by the training. Not ``whole``: it stops in the middle of a step, unless an optimizer has stepped."""
        if whole or self._optimized:
            self._end_step(self._recorder.moment())

    def note(self, tokens: int, loss: float | None) -> None:
        """Adds values reported by the training to the record of the step under way."""
        self._begin_step()
        assert self._open is not None
        record = self._open[1]
        record.tokens += int(tokens)
        if loss is not None:
            record.loss = float(loss)

    def _reach(self, kind: _Edge, moment: Moment) -> None:
        self._edge_kind, self._edge = kind, moment

    def _end_evaluation(self, end: Moment) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None and end.ns > evaluation.start.ns:
            self._recorder.passed(EVALUATION, evaluation.start, end)

    def _begin_step(self) -> None:
        if self._open is None:
            context = self._recorder.step(self.steps)
            self._open = context, context.__enter__()
            self._backwards = 0
            self._step_began = self._recorder.moment()
            self._reach(_Edge.STEP, self._step_began)

    def _optimized_until(self, now: Moment) -> None:
        self._optimized = True
        if not self._marked:
            self._end_step(now)

    def _end_step(self, now: Moment) -> None:
        self._optimized = self._ends_with_backward = False
        self._gaps.clear()
        self._end_evaluation(now)
        if self._open is not None:
            context, record = self._open
            record.micro_batches = max(1, self._backwards)
            context.__exit__(None, None, None)
            self._open = None
            self.steps += 1
        self._begin_step()
