"""Which optimizer's step ends a step of the training, where there are several optimizers.

A step is an iteration of the optimizers that step most seldom but regularly, once in up to 64 steps of the fastest,
which is called base here: of the generator of a WGAN, after five critic steps. Where all step once an iteration, as
of a GAN or with one optimizer for every layer, it ends when all have. An optimizer takes part once its interval was
seen twice. One that steps once or irregularly never does for long, and a step ends without those that are overdue.
"""

from __future__ import annotations

_LONGEST = 64  # steps of the base between two of an optimizer that is waited for; optimizers that step once in a step
_SEEN = 2  # how often an interval is seen before it counts as regular
_MOST_SEEN = 16  # of an optimizer that was taken for regular and was not
_FAULTS = 3  # unexpected intervals, less expected ones, after which an optimizer is no longer waited for


class _Rhythm:
    """When an optimizer steps, in steps of the base."""

    __slots__ = ("backwards", "faults", "interval", "longest", "needed", "seen", "tick")

    def __init__(self) -> None:
        self.backwards = 0  # there had been at its last step
        self.needed = _SEEN
        self.forget()

    def forget(self) -> None:
        self.tick: int | None = None  # of its last step
        self.interval = self.longest = self.seen = self.faults = 0

    def step(self, tick: int, keeps: bool) -> bool:
        """Whether the interval since its last step was about as before: the order of optimizers may change. If not, the
        new interval is the one that counts, unless it ``keeps`` the one that it has."""
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
        """Whether it has not stopped to step."""
        return self.tick is not None and tick - self.tick <= self.interval + 1


class Iterations:
    """Told of every step of an optimizer. Optimizers are told apart by numbers."""

    def __init__(self) -> None:
        self.base: int | None = None
        self._ticks = 0  # steps of the base
        self._rhythms: dict[int, _Rhythm] = {}
        self._slowest: set[int] = set()  # all of them step in an iteration
        self._interval = 1  # of them
        self._most = 1  # steps of the base in an iteration that is not overdue
        self._missing: set[int] = set()  # of the slowest, those that have not stepped yet in this iteration
        self._counts: dict[int, int] = {}  # steps of each optimizer in this iteration
        self._joining: set[int] = set()  # the slowest, from the next iteration on
        self._sole: int | None = None  # the base, while nothing else is waited for, nor from the next iteration on

    @property
    def last(self) -> int | None:
        """The optimizer whose next step ends the iteration, given a backward before it; None where that depends."""
        return next(iter(self._missing)) if len(self._missing) == 1 and not self._joining else None

    @property
    def next_last(self) -> int | None:
        """What ``last`` will be when ``last`` has stepped."""
        return next(iter(self._slowest)) if len(self._slowest) == 1 and not self._joining else None

    @property
    def spare(self) -> int:
        """How often the base may step without ending the iteration."""
        if self.base is None or self.base in self._slowest:
            return 0
        return self._most - self._counts.get(self.base, 0)

    def stepped(self, optimizer: int, backwards: int, fresh: bool, within_backward: bool) -> bool:
        """Whether the iteration ends here. ``backwards``: how many there have been. ``fresh``: one of them in this
        iteration; without, the step belongs to the iteration before, or to none."""
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
        if self._missing and self.base not in self._counts and (count > self._most or len(self._counts) > _LONGEST):
            self._follow(optimizer)
        elif self._missing and (optimizer != self.base or count <= self._most):
            return False
        return self._end(optimizer, early)

    def _follow(self, base: int) -> None:
        """From here on time is counted in steps of ``base``, and who is waited for is found out again."""
        rhythm = self._rhythms.get(base)
        as_fast = rhythm is not None and rhythm.seen > 0 and rhythm.interval == 1  # as the base before
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
        """Whether it is waited for and stepped earlier than expected."""
        rhythm = self._rhythms.get(optimizer)
        if rhythm is None:
            rhythm = self._rhythms[optimizer] = _Rhythm()
        elif backwards == rhythm.backwards:
            return False  # twice with the same gradients: its state is made, say
        rhythm.backwards = backwards
        if optimizer == self.base:
            self._ticks += 1
            return False
        if optimizer in self._slowest:
            return not rhythm.step(self._ticks, keeps=True)
        rhythm.step(self._ticks, keeps=False)
        if rhythm.seen >= rhythm.needed and self._interval <= rhythm.interval <= _LONGEST and not within_backward:
            self._joining.add(optimizer)
        else:
            self._joining.discard(optimizer)
        return False

    def _end(self, optimizer: int, early: bool) -> bool:
        """Whether the iteration ends. One in which others are found to step as often goes on until they have."""
        if self._slowest != {self.base}:
            self._expel(self._missing | {optimizer} if early else self._missing)
        joined = bool(self._joining) and self._join()
        if self._slowest != {self.base}:
            longest = max(self._rhythms[member].longest for member in self._slowest if member != self.base)
            self._most = longest + (longest > 1)
        self._missing = set(self._slowest)
        if joined and len(self._slowest) > 1:  # the others follow on this one, as from the first iteration on
            self._missing.discard(optimizer)
            self._counts = {optimizer: 1}
            return False
        self._counts.clear()
        return True

    def _expel(self, unexpected: set[int]) -> None:
        """Those that did not step, or stepped early, too often: their next steps must be regular for longer."""
        for member in tuple(self._slowest):
            rhythm = self._rhythms[member]
            rhythm.faults = rhythm.faults + 1 if member in unexpected else max(0, rhythm.faults - 1)
            if rhythm.faults >= _FAULTS:
                rhythm.needed = min(2 * rhythm.needed, _MOST_SEEN)
                rhythm.forget()
                self._slowest.discard(member)
        if not self._slowest and self.base is not None:
            self._only(self.base)

    def _join(self) -> bool:
        """Whether others, or more, are waited for from here on."""
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
