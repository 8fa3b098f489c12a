"""The turns that are waiting or running in this process, and their slots.

Guarantee: a session runs one turn at a time, in the order in which its turns were added. A turn that has to wait for
one in another process is put back. At most `cap` turns run in new slots, which waiting sessions get in turn. Each turn
is released exactly once.

A slot is the permission to run (`Slots`). A turn that is waiting for a person has no slot, and gets one without delay
when it continues. A turn that is waiting for delegated tasks passes its slot to the first of these tasks and gets it
back from the last. A task tree therefore always makes progress, even with a single slot. At most `cap` trees run
concurrently, and the delegation depth limits each tree's height. Further turns of the same task tree wait for a slot
like any other turn. A turn's time limit is suspended while the turn or one of its tasks is waiting for a person.

The queue owns the map of live turns. Each session's queue and running turn are in the session's record, which belongs
to `Presence`.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tidegate.engine.live_turn import LiveTurn
from tidegate.lifetimes import Presence, Present, Scope


class RunQueue:
    def __init__(
        self,
        scope: Scope,
        presence: Presence,
        run: Callable[[Present, LiveTurn], Coroutine[Any, Any, None]],
        clock: Callable[[], float],
        *,
        turns: int,
    ) -> None:
        """`run` runs a turn that has got a slot, in a task of the scope."""
        self.slots = Slots(turns)
        self.live: dict[str, LiveTurn] = {}
        """All turns that are waiting or running in this process, by id."""
        self.is_closed = False
        """True if no more turns are started, except for tasks of running turns."""
        self.is_parking = False
        """True if running turns are to stop before their next step and continue in another attempt."""
        self._scope = scope
        self._presence = presence
        self._run = run
        self._clock = clock
        self._ready: dict[Present, None] = {}

    @property
    def waiting(self) -> int:
        return len(self.live) - self.slots.started

    def running(self, session: str) -> LiveTurn | None:
        record = self._presence.get(session)
        return record.turn if record is not None else None

    def of_session(self, session: str) -> tuple[LiveTurn, ...]:
        """Returns the session's turns: first the running turn, then the waiting ones in order."""
        record = self._presence.get(session)
        if record is None:
            return ()
        return (*((record.turn,) if record.turn is not None else ()), *record.waiting)

    def is_open_for(self, parent: LiveTurn | None) -> bool:
        """True if a turn may be started, as a task of `parent` if one is given. Running turns may still delegate when
        no other turns are started any more."""
        return self._scope.open and not (self.is_closed if parent is None else self.is_parking)

    def add(self, live: LiveTurn) -> Present:
        """Adds a turn at the end of its session's queue. Returns the session's record, for `start_next`."""
        self.live[live.turn] = live
        record = self._presence.obtain(live.session)
        record.waiting.append(live)
        if live.parent is not None:
            live.parent.children[live.turn] = live
        return record

    def start_next(self, record: Present) -> None:
        """Starts the session's next turn if a slot is free; otherwise remembers that the session is waiting for one."""
        if record.turn is not None or not record.waiting or not self.is_open_for(record.waiting[0].parent):
            return
        if not self.slots.is_free_for(record.waiting[0].parent):
            self._ready[record] = None
            return
        self._ready.pop(record, None)
        live = record.waiting.popleft()
        record.turn = live
        live.started_at = self._clock()
        self.slots.occupy(live)
        self._scope.start(self._run, record, live, name=f"turn {live.turn}")
        record.notify()

    def withdraw(self, live: LiveTurn) -> bool:
        """Removes a turn from its session's queue. Returns False if it is not in the queue because it has been
        started."""
        record = self._presence.get(live.session)
        if record is None or live not in record.waiting:
            return False
        record.waiting.remove(live)
        if not record.waiting:
            self._ready.pop(record, None)
        return True

    def put_back(self, record: Present, live: LiveTurn) -> None:
        """Puts a turn that could not start back at the end of its session's queue, since the turn that it has to wait
        for may be in this queue too. Its slot goes to another session. The caller calls `start_next` after a pause."""
        self.slots.release(live)
        live.started_at = None
        if live.parent is not None:
            live.parent.children[live.turn] = live
        record.waiting.append(live)
        self._presence.turn_ended(record, live)
        self.fill_slots(live.parent)

    def release(self, record: Present, live: LiveTurn) -> None:
        """Drops a turn and frees its slot. The caller then calls `fill_slots`."""
        self.slots.release(live)
        self.live.pop(live.turn, None)
        self._presence.turn_ended(record, live)
        if record.waiting:
            self._ready[record] = None  # behind the sessions that are waiting for a slot

    def fill_slots(self, tree: LiveTurn | None) -> None:
        """Gives free slots to the sessions that are waiting for one. Slots that the turns in this task tree have
        reserved for their tasks go to these tasks first."""
        while tree is not None:
            for task in tuple(tree.children.values()):
                if task.started_at is None and (record := self._presence.get(task.session)) is not None:
                    self.start_next(record)
            tree = tree.parent
        while self._ready and self.slots.is_free_for(None) and not self.is_closed:
            waiting = next(iter(self._ready))
            del self._ready[waiting]
            self.start_next(waiting)

    @contextmanager
    def waiting_for_tasks(self, live: LiveTurn) -> Iterator[None]:
        """Counts one of the turn's tool calls as waiting for a task that it delegated, for the duration of the block.
        The task's turn may use this turn's slot."""
        try:
            with self.slots.waiting_for_tasks(live):
                self.fill_slots(live)
                yield
        finally:
            self.fill_slots(live)

    @contextmanager
    def waiting_for_person(self, live: LiveTurn) -> Iterator[None]:
        """Counts a step of the turn as waiting for a person, for the duration of the block. Meanwhile, the slot is
        available to other turns, the resident conversation may be unloaded, and the time limit is suspended. When the
        turn continues, it does not wait for a slot again; limits.questions limits how many turns may wait this way."""
        try:
            with self.slots.waiting_for_person(live):
                self.fill_slots(live.parent)
                self._allow_unload(live)
                yield
        finally:
            self.fill_slots(live.parent)

    def _allow_unload(self, asking: LiveTurn) -> None:
        """Allows unloading the residents of this turn and of the parent turns that are waiting for it."""
        live: LiveTurn | None = asking
        while live is not None:
            record = self._presence.get(live.session)
            if live.waits_for_person and record is not None and record.turn is live:
                self._presence.turn_waits(record)
            live = live.parent


class Slots:
    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.taken = 0
        self.started = 0
        """The number of turns that have started and not ended."""
        self.asking = 0
        """The number of turns that are waiting for a person."""
        self.delegating = 0
        """The number of turns that are waiting only for their delegated tasks."""

    @property
    def running(self) -> int:
        """The number of turns that have started and are not waiting."""
        return self.started - self.asking - self.delegating

    def is_free_for(self, parent: LiveTurn | None) -> bool:
        """True if a turn could start now, as a task of `parent` if one is given."""
        return self.taken < self._cap or (parent is not None and _has_spare_slot(parent))

    def occupy(self, live: LiveTurn) -> None:
        """Gives the turn a slot. If its parent has reserved one, the turn gets that slot."""
        self.started += 1
        self._count(live, 1)
        live.has_slot = True
        self.taken += 1
        self._balance(live.parent)

    def release(self, live: LiveTurn) -> None:
        """Frees the slot of a turn that has ended or never started. If the parent needs a slot and has none, it gets
        this one back."""
        if live.started_at is not None:
            self._count(live, -1)
            self.started -= 1
        self._free(live)
        if live.parent is not None:
            live.parent.children.pop(live.turn, None)
            self._balance(live.parent)

    @contextmanager
    def waiting_for_person(self, live: LiveTurn) -> Iterator[None]:
        """Counts one of the turn's tool calls as waiting for a person, for the duration of the block."""
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
        """Counts one of the turn's tool calls as waiting for a task that it delegated, for the duration of the
        block."""
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
        """Updates the slots of the turn and all of its parents. A turn has a slot if it is running or has reserved a
        slot for its tasks."""
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
    """True if the turn has a slot that it is not using itself."""
    return live.has_slot and live.is_waiting


def _needs_slot(live: LiveTurn) -> bool:
    if not live.is_waiting:
        return True
    # A call needs a slot if its task has not started, or if the task has ended and this has not been reported yet.
    started = sum(child.started_at is not None for child in live.children.values())
    return live.tasks > started and not any(map(_tree_has_slot, live.children.values()))


def _tree_has_slot(live: LiveTurn) -> bool:
    return live.has_slot or any(map(_tree_has_slot, live.children.values()))
