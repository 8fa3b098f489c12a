"""Slots: which of the started turns may run now.

Guarantee: at most `cap` turns are started in slots of their own. A turn that waits for a person has no slot, and gets
one without waiting when it continues. A turn that waits for delegated tasks keeps its slot for the first of them and
gets it back from the last. So a task tree always makes progress, even with a single slot, and at most `cap` trees run
at once, each at most as many turns high as the delegation depth allows. Further turns of the same task tree wait for a
slot like any other turn. The time limit of a turn is suspended while the turn, or one of its tasks, waits for a person.

Nothing is started here: the caller that frees a slot fills it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.engine.live import LiveTurn


class Slots:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.taken = 0
        self.started = 0
        """Turns that have started and not ended."""
        self.asking = 0
        """Turns that wait for a person."""
        self.delegating = 0
        """Turns that wait only for their delegated tasks."""

    @property
    def running(self) -> int:
        """Turns that have started and wait for nothing."""
        return self.started - self.asking - self.delegating

    @property
    def free(self) -> bool:
        return self.taken < self._cap

    def is_free_for(self, parent: LiveTurn | None) -> bool:
        """Whether a turn could start: on its own, or as a task of `parent`."""
        return self.free or (parent is not None and _has_spare_slot(parent))

    def occupy(self, live: LiveTurn) -> None:
        """Give the turn a slot: its parent's, if the parent keeps one for it."""
        self.started += 1
        self._count(live, 1)
        live.has_slot = True
        self.taken += 1
        self._balance(live.parent)

    def release(self, live: LiveTurn) -> None:
        """The turn has ended, or never started. Its slot goes back to its parent if the parent has no other."""
        if live.started_at is not None:
            self._count(live, -1)
            self.started -= 1
        self._free(live)
        if live.parent is not None:
            live.parent.children.pop(live.turn, None)
            self._balance(live.parent)

    @contextmanager
    def waiting_for_person(self, live: LiveTurn) -> Iterator[None]:
        """A tool call of the turn waits for a person."""
        held = [*_with_parents(live)]
        for each in held:
            each.hold_timer()
        self._change(live, questions=1)
        try:
            yield
        finally:
            self._change(live, questions=-1)
            for each in held:
                each.resume_timer()

    @contextmanager
    def waiting_for_tasks(self, live: LiveTurn) -> Iterator[None]:
        """A tool call of the turn waits for a task that it delegates."""
        live.delegated = True
        self._change(live, tasks=1)
        try:
            yield
        finally:
            self._change(live, tasks=-1)

    def _change(self, live: LiveTurn, *, questions: int = 0, tasks: int = 0) -> None:
        self._count(live, -1)
        live.questions += questions
        live.tasks += tasks
        self._count(live, 1)
        self._balance(live)

    def _count(self, live: LiveTurn, by: int) -> None:
        if live.questions:
            self.asking += by
        elif live.tasks:
            self.delegating += by

    def _balance(self, live: LiveTurn | None) -> None:
        """A turn has a slot if it runs itself or keeps one for its tasks. Applied to the turn and all its parents."""
        while live is not None:
            if live.started_at is None or live.released or not _needs_slot(live):
                self._free(live)
            elif not live.has_slot:
                live.has_slot = True
                self.taken += 1
            live = live.parent

    def _free(self, live: LiveTurn) -> None:
        if live.has_slot:
            live.has_slot = False
            self.taken -= 1


def _with_parents(live: LiveTurn | None) -> Iterator[LiveTurn]:
    while live is not None:
        yield live
        live = live.parent


def _has_spare_slot(live: LiveTurn) -> bool:
    """Whether the turn has a slot that it does not use itself."""
    return live.has_slot and live.is_waiting


def _needs_slot(live: LiveTurn) -> bool:
    if not live.is_waiting:
        return True
    # A slot is needed for a call whose task has not started, or has ended and not been reported yet.
    started = sum(child.started_at is not None for child in live.children.values())
    return live.tasks > started and not any(map(_tree_has_slot, live.children.values()))


def _tree_has_slot(live: LiveTurn) -> bool:
    return live.has_slot or any(map(_tree_has_slot, live.children.values()))
