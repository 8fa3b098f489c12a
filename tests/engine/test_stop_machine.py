"""Requests to stop, tested by a state machine over the store: turns arrive, are steered, taken, stopped and settled."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.project.quick import check_machine
from tests.store.rows import new_session, new_turn, user_message
from tidegate.engine import StartedTurn
from tidegate.engine.turn_end import TurnEnd, billing_of, peek, settle, stop_session, stop_turn
from tidegate.engine.turn_start import start
from tidegate.errors import Conflict, EarlierTurnOpen, Superseded
from tidegate.store import StopRequest, messages, migrations, open_turns, turns
from tidegate.store.sqlite.connections import connect
from tidegate.values import Message

SESSION = "s_1"
OPEN = ("queued", "running")


class Stops(RuleBasedStateMachine):
    """The model keeps the state of each turn, its first request to stop, the fence of its last attempt, and the turn of
    each message."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = connect(Path(self.folder.name) / "t.db", "process", 1 << 20)
        migrations.migrate(self.db)
        self.made = 0
        self.states: dict[str, str] = {}
        self.stops: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self.withdrawn: set[str] = set()

    def teardown(self) -> None:
        self.db.close()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        new_session(self.db, SESSION, name="work")

    def some(self, data: st.DataObject, *states: str) -> str:
        return data.draw(st.sampled_from([turn for turn, state in self.states.items() if state in states]))

    def any_turn(self, data: st.DataObject) -> str:
        """Mostly one of the last turns, which are open."""
        return data.draw(st.sampled_from(list(self.states)[-3:]))

    def fresh(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def is_any(self, *states: str) -> bool:
        return any(state in states for state in self.states.values())

    @precondition(lambda self: sum(state in OPEN for state in self.states.values()) < 2)
    @rule()
    def arrive(self) -> None:
        turn, text = self.fresh("t_"), self.fresh("m")
        new_turn(self.db, SESSION, turn, text, now=float(self.made))
        self.states[turn], self.texts[text] = "queued", turn

    @precondition(lambda self: self.is_any("running"))
    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        turn, text = self.some(data, "running"), self.fresh("m")
        messages.accept(self.db, session=SESSION, turn=turn, message=user_message(text), now=float(self.made))
        self.texts[text] = turn
        assert turns.check_fence(self.db, turn, self.fences[turn]).is_steered

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        """An attempt takes the turn, perhaps a second one."""
        turn = self.any_turn(data)
        earlier = list(self.states.values())[: list(self.states).index(turn)]
        if self.states[turn] == "queued" and any(state in OPEN for state in earlier):
            with pytest.raises(EarlierTurnOpen):
                start(self.db, turn, 1.0)
            return
        found = start(self.db, turn, 1.0)
        if self.states[turn] not in ("queued", "running"):
            assert found is None
        elif turn in self.stops:
            assert isinstance(found, StopRequest) and found.by == self.stops[turn], "it is never run again"
        else:
            assert isinstance(found, StartedTurn) and found.taken.turn.fence == self.fences.get(turn, 0) + 1
            self.states[turn], self.fences[turn] = "running", found.taken.turn.fence

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        turn, by = self.any_turn(data), self.fresh("by ")
        stopped = stop_turn(self.db, turn, StopRequest(by), 1.0)
        assert stopped.is_open == (self.states[turn] in ("queued", "running"))
        assert (stopped.settlement is not None) == (self.states[turn] == "queued")
        self.is_stopped(turn, by)

    @precondition(lambda self: len(self.states) > 4)
    @rule()
    def stop_all(self) -> None:
        by = self.fresh("by ")
        settled = stop_session(self.db, SESSION, StopRequest(by), 1.0)
        assert [each.outcome.turn for each in settled] == [t for t, state in self.states.items() if state == "queued"]
        for turn in self.states:
            self.is_stopped(turn, by)

    def is_stopped(self, turn: str, by: str) -> None:
        if self.states[turn] == "queued":
            self.states[turn] = "stopped"
            self.withdrawn |= {text for text, of in self.texts.items() if of == turn}
        elif self.states[turn] == "running":
            self.stops.setdefault(turn, by)

    @precondition(lambda self: self.is_any("running"))
    @rule(data=st.data(), is_late=st.booleans())
    def settle(self, data: st.DataObject, is_late: bool) -> None:
        """An attempt ends; a late one, whose turn was taken again, changes nothing."""
        turn = self.some(data, "running")
        taken = peek(self.db, turn)
        assert taken is not None
        answer = Message(role="assistant", text="done", finish="stop")
        end = TurnEnd(
            turn=turn,
            session=SESSION,
            billing=billing_of(taken.turn, taken.session),
            state="answered",
            ephemeral=False,
            accepted=1.0,
            final_rows=(("model-0", answer),),
            fence=self.fences[turn] - is_late,
        )
        if is_late:
            with pytest.raises(Superseded):
                settle(self.db, end, 2.0)
            return
        settlement = settle(self.db, end, 2.0)
        self.states[turn] = "answered"
        if settlement.follow_up is not None:
            self.states[settlement.follow_up] = "queued"
            late = messages.waiting(self.db, settlement.follow_up)
            self.texts |= {message.text: settlement.follow_up for message in late}
        with pytest.raises((Conflict, Superseded)):
            settle(self.db, end, 3.0)

    @invariant()
    def the_store_agrees(self) -> None:
        stored = dict(self.db.execute("SELECT id, state FROM turns").fetchall())
        assert stored == self.states
        found = open_turns.of_session(self.db, SESSION)
        assert sorted(found.running) == sorted(turn for turn, state in self.states.items() if state == "running")
        assert len(found.running) <= 1
        assert found.waiting == sum(state == "queued" for state in self.states.values())
        for turn, by in self.stops.items():
            row = turns.get(self.db, turn)
            assert row is not None and row.stopping is not None and row.stopping.by == by, "the first reason is kept"

    @invariant()
    def every_message_is_in_one_turn(self) -> None:
        rows = self.db.execute("SELECT json_extract(body, '$.text'), turn, seq FROM messages WHERE role = 'user'")
        found = {text: (turn, seq) for text, turn, seq in rows}
        assert {text: turn for text, (turn, _) in found.items()} == self.texts
        assert not [text for text in self.withdrawn if found[text][1] is not None]


def test_a_turn_that_is_stopped_is_never_run_again_whatever_happens() -> None:
    """L21, S14, P05: a queued one ends at once, a running one keeps the request; every message is in one turn."""
    check_machine(Stops, examples=15, steps=25)
