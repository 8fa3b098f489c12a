"""Places: which of the turns that have started may work now.

Guarantee: at most `cap` turns are started into places of their own. A turn that waits for a person has none, and takes
one without waiting when it comes back. A turn that waits for tasks that it gave keeps its place for the first of them,
and has it back from the last: so a tree of tasks always gets on, with a single place too, and no more than `cap` trees
are under way, each at most as many turns high as tasks may be handed on; what more of a tree's turns want to run at
once waits for a place as everybody does. The time of a turn does not count while it, or a task of its, waits for a
person. Nothing is started here; whoever frees a place fills it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.engine.live import LiveTurn


class Slots:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.taken = 0
        self.started = 0
        """Turns that have started and are not over."""
        self.asking = 0
        """Turns that wait for a person."""
        self.delegating = 0
        """Turns that wait for tasks that they gave, and for nobody else."""

    @property
    def running(self) -> int:
        """Turns that have started and wait for nobody."""
        return self.started - self.asking - self.delegating

    @property
    def free(self) -> bool:
        return self.taken < self._cap

    def is_free_for(self, parent: LiveTurn | None) -> bool:
        """Whether a turn could begin, of one's own or on a task of that parent's."""
        return self.free or (parent is not None and _has_spare_slot(parent))

    def occupy(self, live: LiveTurn) -> None:
        """The turn has a place from now on: its parent's, if that keeps one."""
        self.started += 1
        self._count(live, 1)
        live.has_slot = True
        self.taken += 1
        self._balance(live.parent)

    def release(self, live: LiveTurn) -> None:
        """The turn is over, or was never started. Its place is its parent's again, if that has no other."""
        if live.started_at is not None:
            self._count(live, -1)
            self.started -= 1
        self._free(live)
        if live.parent is not None:
            live.parent.children.pop(live.turn, None)
            self._balance(live.parent)

    @contextmanager
    def waiting_for_person(self, live: LiveTurn) -> Iterator[None]:
        """A call of the turn waits for a person."""
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
        """A call of the turn waits for a task that it gives."""
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
        """The turn has a place if it works itself, or keeps one for its tasks; and so on upwards."""
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
    """Whether it has a place that it does not use itself."""
    return live.has_slot and live.is_waiting


def _needs_slot(live: LiveTurn) -> bool:
    if not live.is_waiting:
        return True
    # A call whose task has not started, or is over and not heard of yet, is one that a place is needed for.
    started = sum(child.started_at is not None for child in live.children.values())
    return live.tasks > started and not any(map(_tree_has_slot, live.children.values()))


def _tree_has_slot(live: LiveTurn) -> bool:
    return live.has_slot or any(map(_tree_has_slot, live.children.values()))
