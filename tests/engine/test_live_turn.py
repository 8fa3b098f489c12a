"""Slots, tested by a state machine over a forest of turns: slots are never lost and never too many."""

from contextlib import AbstractContextManager
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.project.quick import example_count
from tidegate.engine.live_turn import LiveTurn
from tidegate.engine.run_queue import Slots

CAP = 2
DEPTH = 2


class Forest(RuleBasedStateMachine):
    """Turns start as the engine starts them: when a slot is free, or as a task of a turn that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(CAP)
        self.turns: list[LiveTurn] = []
        self.waits: dict[LiveTurn, list[tuple[str, AbstractContextManager[None]]]] = {}
        self.numbers = 0
        self.asked = False

    def _new(self, parent: LiveTurn | None) -> LiveTurn:
        self.numbers += 1
        live = LiveTurn(f"t_{self.numbers}", f"s_{self.numbers}", parent=parent)
        if parent is not None:
            parent.children[live.turn] = live
        self.turns.append(live)
        self.waits[live] = []
        return live

    def _pick(self, data: Any, turns: list[LiveTurn]) -> LiveTurn | None:
        return data.draw(st.sampled_from(turns)) if turns else None

    def _depth(self, live: LiveTurn) -> int:
        return 0 if live.parent is None else 1 + self._depth(live.parent)

    @rule()
    def arrive(self) -> None:
        if len(self.turns) < 12:
            self._new(None)

    @rule(data=st.data())
    def begin(self, data: Any) -> None:
        ready = [live for live in self.turns if live.started_at is None and self.slots.is_free_for(live.parent)]
        if (live := self._pick(data, ready)) is not None:
            live.started_at = 1.0
            self.slots.occupy(live)

    @rule(data=st.data())
    def delegate_a_task(self, data: Any) -> None:
        able = [live for live in self.turns if live.started_at is not None and self._depth(live) < DEPTH]
        if (live := self._pick(data, able)) is not None and len(self.turns) < 12:
            wait = self.slots.waiting_for_tasks(live)
            wait.__enter__()
            child = self._new(live)
            self.waits[live].append((child.turn, wait))

    @rule(data=st.data())
    def ask(self, data: Any) -> None:
        able = [live for live in self.turns if live.started_at is not None]
        if (live := self._pick(data, able)) is not None and len(self.waits[live]) < 4:
            self.asked = True
            wait = self.slots.waiting_for_person(live)
            wait.__enter__()
            self.waits[live].append(("", wait))

    @rule(data=st.data())
    def be_answered(self, data: Any) -> None:
        asking = [live for live in self.turns if live.questions]
        if (live := self._pick(data, asking)) is not None:
            place = next(n for n, (turn, _) in enumerate(self.waits[live]) if not turn)
            self.waits[live].pop(place)[1].__exit__(None, None, None)

    @rule(data=st.data())
    def learn_of_the_end_of_a_task(self, data: Any) -> None:
        waiting = [
            (live, n)
            for live in self.turns
            for n, (turn, _) in enumerate(self.waits[live])
            if turn and turn not in live.children
        ]
        if waiting:
            live, n = data.draw(st.sampled_from(waiting))
            self.waits[live].pop(n)[1].__exit__(None, None, None)

    @rule(data=st.data())
    def end(self, data: Any) -> None:
        """Only turns that wait for nothing, or that never started, end."""
        over = [live for live in self.turns if not self.waits[live] and not live.children]
        if (live := self._pick(data, over)) is not None:
            live.released = True
            self.slots.release(live)
            self.turns.remove(live)
            del self.waits[live]

    @invariant()
    def counts_match_the_turns(self) -> None:
        slots = self.slots
        assert slots.taken == sum(live.has_slot for live in self.turns)
        assert slots.started == sum(live.started_at is not None for live in self.turns)
        assert slots.asking == sum(bool(live.questions) for live in self.turns)
        assert slots.delegating == sum(bool(live.tasks and not live.questions) for live in self.turns)

    @invariant()
    def running_turns_have_a_slot(self) -> None:
        assert all(live.has_slot for live in self.turns if live.started_at is not None and not live.is_waiting)
        assert not any(live.has_slot for live in self.turns if live.started_at is None)

    @invariant()
    def no_more_trees_run_than_there_are_slots(self) -> None:
        """Except for turns that waited for a person: they continue when the answer arrives."""
        if not self.asked:
            assert self.slots.taken <= CAP
            assert sum(live.started_at is not None and live.parent is None for live in self.turns) <= CAP

    @invariant()
    def a_waiting_task_can_start_or_its_tree_makes_progress(self) -> None:
        """If the tasks of a turn have not started, something in its tree has a slot or waits for a person."""
        for live in self.turns:
            if (
                live.started_at is not None
                and live.tasks
                and any(child.started_at is None for child in live.children.values())
            ):
                assert _makes_progress(live), live.turn

    def teardown(self) -> None:
        for live in reversed(self.turns):
            for _, wait in self.waits[live]:
                wait.__exit__(None, None, None)
            live.released = True
            self.slots.release(live)
        assert (self.slots.taken, self.slots.started, self.slots.asking, self.slots.delegating) == (0, 0, 0, 0)


def _makes_progress(live: LiveTurn) -> bool:
    return live.has_slot or bool(live.questions) or any(map(_makes_progress, live.children.values()))


TestForest = Forest.TestCase
TestForest.settings = settings(max_examples=example_count(60), stateful_step_count=40)


def test_a_slot_goes_from_a_turn_to_its_task_and_back() -> None:
    """L21: with one slot, the task starts in it, no other turn can, and the parent turn gets it back."""
    slots = Slots(1)
    parent, other = LiveTurn("t_1", "s_1"), LiveTurn("t_2", "s_2")
    parent.started_at = 1.0
    slots.occupy(parent)
    with slots.waiting_for_tasks(parent):
        child = LiveTurn("t_3", "s_3", parent=parent)
        parent.children[child.turn] = child
        assert parent.has_slot and slots.is_free_for(parent) and not slots.is_free_for(other.parent)
        child.started_at = 1.0
        slots.occupy(child)
        assert (parent.has_slot, child.has_slot, slots.taken, slots.delegating) == (False, True, 1, 1)
        child.released = True
        slots.release(child)
        assert parent.has_slot and not slots.is_free_for(None)
    assert parent.has_slot and slots.taken == 1 and slots.running == 1


def test_a_turn_that_waited_for_a_person_gets_a_slot_at_once() -> None:
    """S29: it does not wait a second time."""
    slots = Slots(1)
    first, second = LiveTurn("t_1", "s_1"), LiveTurn("t_2", "s_2")
    first.started_at = second.started_at = 1.0
    slots.occupy(first)
    with slots.waiting_for_person(first):
        assert slots.is_free_for(None) and not first.has_slot
        slots.occupy(second)
    assert first.has_slot and second.has_slot and slots.taken == 2 and not slots.is_free_for(None)
