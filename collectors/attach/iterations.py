"""Which optimizer's step ends a step of the training, where there are several optimizers.

A step is an iteration: every optimizer that takes part in it has stepped. The fastest one, called base here, takes part,
and so does each that steps regularly, once in up to 64 steps of the base: the generator of a WGAN after its five critic
steps, or one optimizer for every layer. An optimizer takes part once its interval was seen twice. One that steps once or
irregularly never does, and a step ends without those that are overdue.
"""

from __future__ import annotations

_LONGEST = 64  # steps of the base between two of an optimizer that takes part; optimizers that step once in a step
_SEEN = 2  # how often an interval is seen before it counts as regular
_MOST_SEEN = 16  # of an optimizer that was taken for regular and was not
_FAULTS = 3  # unexpected intervals, less expected ones, after which an optimizer no longer takes part


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
        """Whether the interval since its last step was as before: the order of optimizers may change, so one more or
        less is. If not, the new interval is the one that counts, unless it ``keeps`` the one that it has."""
        last, self.tick = self.tick, tick
        if last is None:
            return True
        passed = tick - last
        if self.seen and abs(passed - self.interval) <= 1:
            self.seen, self.longest = self.seen + 1, max(self.longest, passed)
            return True
        if not keeps:
            self.interval = self.longest = max(1, passed)
            self.seen = 1
        return False


class Iterations:
    """Told of every step of an optimizer. Optimizers are told apart by numbers."""

    def __init__(self) -> None:
        self.base: int | None = None
        self._ticks = 0  # steps of the base
        self._rhythms: dict[int, _Rhythm] = {}
        self._members: set[int] = set()  # the optimizers that take part
        self._longest = 1  # interval of them
        self._missing: set[int] = set()  # members that have not stepped yet in this iteration
        self._counts: dict[int, int] = {}  # steps of each optimizer in this iteration
        self._joining: set[int] = set()  # from the next iteration on

    @property
    def last(self) -> int | None:
        """The optimizer whose next step ends the iteration, given a backward before it; None where that depends."""
        return next(iter(self._missing)) if len(self._missing) == 1 else None

    @property
    def next_last(self) -> int | None:
        """What ``last`` will be when ``last`` has stepped."""
        return self.base if len(self._members) == 1 and not self._joining else None

    def stepped(self, optimizer: int, backwards: int, fresh: bool, within_backward: bool) -> bool:
        """Whether the iteration ends here. ``backwards``: how many there have been. ``fresh``: one of them in this
        iteration; without, the step belongs to the iteration before, or to none."""
        if self.base is None:
            if not fresh:
                return False
            self._follow(optimizer)
        early = self._notice(optimizer, backwards, fresh, within_backward)
        if not fresh:
            return False
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        if optimizer not in self._members:
            alone = self._missing == self._members  # none of them has stepped
            if alone and (count > 1 or len(self._counts) > _LONGEST):
                self._follow(optimizer)
                self._end(optimizer)
                return True
            return False
        self._missing.discard(optimizer)
        if self._missing and count <= self._expected(optimizer):
            return False
        self._end(optimizer, early)
        return True

    def _follow(self, base: int) -> None:
        """From here on time is counted in steps of ``base``, and who takes part is found out again."""
        self.base = base
        self._members, self._missing, self._longest = {base}, {base}, 1
        self._joining.clear()
        for rhythm in self._rhythms.values():
            rhythm.forget()

    def _notice(self, optimizer: int, backwards: int, fresh: bool, within_backward: bool) -> bool:
        """Whether it takes part and stepped at another time than expected."""
        if optimizer == self.base:
            self._ticks += fresh
            return False
        rhythm = self._rhythms.get(optimizer)
        if rhythm is None:
            rhythm = self._rhythms[optimizer] = _Rhythm()
        if not fresh and backwards == rhythm.backwards:
            return False  # twice with the same gradients: its state is made, say
        rhythm.backwards = backwards
        if optimizer in self._members:
            return not rhythm.step(self._ticks, keeps=True)
        rhythm.step(self._ticks, keeps=False)
        if rhythm.seen >= rhythm.needed and rhythm.interval <= _LONGEST and not within_backward:
            self._joining.add(optimizer)
        else:
            self._joining.discard(optimizer)
        return False

    def _expected(self, optimizer: int) -> int:
        """How often it steps in an iteration at most."""
        interval = self._rhythms[optimizer].interval if optimizer != self.base else 1
        return -(-self._longest // interval) + (self._longest > 1)

    def _end(self, optimizer: int, early: bool = False) -> None:
        if len(self._members) > 1:
            self._expel(self._missing | {optimizer} if early else self._missing, optimizer)
        joined = {member for member in self._joining if self._is_due(self._rhythms[member])}
        self._joining.clear()
        self._members |= joined
        self._longest = max((self._rhythms[m].longest for m in self._members if m != self.base), default=1)
        self._missing = set(self._members)
        if joined:  # the others follow on this one, as from the first iteration on
            self._missing.discard(optimizer)
        self._counts.clear()

    def _expel(self, unexpected: set[int], optimizer: int) -> None:
        """Those that did not step, or stepped early, too often: their next steps must be regular for longer."""
        for member in tuple(self._members):
            rhythm = self._rhythms.setdefault(member, _Rhythm())
            rhythm.faults = rhythm.faults + 1 if member in unexpected else max(0, rhythm.faults - 1)
            if rhythm.faults >= _FAULTS:
                rhythm.needed = min(2 * rhythm.needed, _MOST_SEEN)
                rhythm.forget()
                self._members.discard(member)
        if self.base not in self._members:
            self._follow(optimizer)

    def _is_due(self, rhythm: _Rhythm) -> bool:
        return rhythm.tick is not None and self._ticks - rhythm.tick <= rhythm.interval + 1
