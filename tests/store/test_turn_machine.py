"""Turns and messages as a state machine: whatever happens in whatever order, every accepted message is in one place."""

import contextlib
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
from tests.store.rows import ANSWER, new_session, new_turn, user_message
from tidegate.errors import Conflict, EarlierTurnOpen, NotFound
from tidegate.store import messages, migrations, open_turns, sessions, turns
from tidegate.store.rows import unpack
from tidegate.store.sqlite.connections import connect
from tidegate.values import TurnState

SESSIONS = ("s_a", "s_b")
ENDS: tuple[TurnState, ...] = ("answered", "failed", "stopped")


class Turns(RuleBasedStateMachine):
    """The model keeps what was accepted (text → turn) and the state of each turn and session; the store must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = connect(Path(self.folder.name) / "t.db", "process", 1 << 20)
        migrations.migrate(self.db)
        self.clock = 1.0
        self.made = 0
        self.accepted: dict[str, str] = {}
        self.placed: set[str] = set()
        self.withdrawn: set[str] = set()
        self.unanswered: set[str] = set()
        self.states: dict[str, str] = {}
        self.session_of: dict[str, str] = {}
        self.ended: set[str] = set()
        self.steps = 0

    def teardown(self) -> None:
        self.db.close()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        for session in SESSIONS:
            new_session(self.db, session, name=session)

    def tick(self) -> float:
        self.clock += 1
        return self.clock

    def fresh(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def some(self, data: st.DataObject, *states: str) -> str:
        return data.draw(st.sampled_from([turn for turn, state in self.states.items() if state in states]))

    @rule(session=st.sampled_from(SESSIONS), number=st.integers(1, 3))
    def arrive(self, session: str, number: int) -> None:
        turn = self.fresh("t")
        texts = [self.fresh("m") for _ in range(number)]
        if session in self.ended:
            with pytest.raises(Conflict):
                new_turn(self.db, session, turn, *texts)
            return
        new_turn(self.db, session, turn, *texts, now=self.tick())
        self.states[turn] = "queued"
        self.session_of[turn] = session
        self.accepted |= dict.fromkeys(texts, turn)

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(list(self.states)))
        text = self.fresh("m")
        session = self.session_of[turn]
        allowed = self.states[turn] in ("queued", "running") and session not in self.ended
        with contextlib.nullcontext() if allowed else pytest.raises(Conflict):
            messages.accept(self.db, session=session, turn=turn, message=user_message(text), now=self.tick())
            self.accepted[text] = turn

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(list(self.states)))
        allowed = self.states[turn] in ("queued", "running") and self.session_of[turn] not in self.ended
        self.db.execute("SAVEPOINT one")
        earlier = list(self.states)[: list(self.states).index(turn)]
        is_next = self.states[turn] != "queued" or not any(
            self.states[each] in ("queued", "running") and self.session_of[each] == self.session_of[turn]
            for each in earlier
        )
        if not (allowed and is_next):
            with pytest.raises((Conflict, EarlierTurnOpen) if is_next or not allowed else EarlierTurnOpen):
                turns.take(self.db, turn, self.tick())
            self.db.execute("ROLLBACK TO one")
        else:
            turns.take(self.db, turn, self.tick())
            if self.states[turn] == "queued":
                self.placed |= {text for text, of in self.accepted.items() if of == turn}
            self.states[turn] = "running"
        self.db.execute("RELEASE one")

    @precondition(lambda self: "running" in self.states.values())
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        turn = self.some(data, "running")
        waiting = [text for text, of in self.accepted.items() if of == turn and text not in self.placed]
        if self.session_of[turn] in self.ended and waiting:
            with pytest.raises(Conflict):
                messages.place_steered(self.db, turn, self.fresh("steer-") + "-", self.tick())
            return
        rows = messages.place_steered(self.db, turn, self.fresh("steer-") + "-", self.tick())
        assert [row.message.text for row in rows] == waiting
        self.placed |= set(waiting)

    @precondition(lambda self: "running" in self.states.values())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        turn = self.some(data, "running")
        session = self.session_of[turn]
        name = self.fresh("model-")
        if session in self.ended:
            with pytest.raises(Conflict):
                messages.append(self.db, session=session, turn=turn, step=name, message=ANSWER, now=self.tick())
            return
        messages.append(self.db, session=session, turn=turn, step=name, message=ANSWER, now=self.tick())
        self.steps += 1
        self.db.execute("SAVEPOINT one")
        with pytest.raises(Conflict, match="already committed"):
            messages.append(self.db, session=session, turn=turn, step=name, message=ANSWER, now=self.tick())
        self.db.execute("ROLLBACK TO one")
        self.db.execute("RELEASE one")

    @precondition(lambda self: {"queued", "running"} & set(self.states.values()))
    @rule(data=st.data(), state=st.sampled_from(ENDS))
    def settle(self, data: st.DataObject, state: TurnState) -> None:
        turn = self.some(data, "queued", "running")
        session = self.session_of[turn]
        late = [text for text, of in self.accepted.items() if of == turn and text not in self.placed]
        if late and self.states[turn] == "running" and session not in self.ended:
            successor = self.fresh("t")
            new_turn(self.db, session, successor, now=self.tick())
            assert messages.move(self.db, turn, successor) == len(late)
            self.states[successor] = "queued"
            self.session_of[successor] = session
            self.accepted |= dict.fromkeys(late, successor)
        assert turns.settle(self.db, turn, state=state, now=self.tick())
        assert not turns.settle(self.db, turn, state="failed", now=self.tick())
        self.withdrawn |= set(late) if self.states[turn] == "queued" else set()
        self.states[turn] = state
        if session in self.ended:
            messages.close_inbox(self.db, session)
            self.close(session)

    @precondition(lambda self: len(self.ended) < len(SESSIONS))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([session for session in SESSIONS if session not in self.ended]))
        assert sessions.end(self.db, session, reason="new", hooks=("h",), now=self.tick())
        assert not sessions.end(self.db, session, reason="again", hooks=("h",), now=self.tick())
        self.ended.add(session)
        for turn, state in self.states.items():
            if self.session_of[turn] == session and state == "queued":
                self.states[turn] = "refused"
        self.close(session)

    def close(self, session: str) -> None:
        """An ended session in which nothing runs any more has no message left that waits, unless it was withdrawn."""
        mine = {turn for turn, its in self.session_of.items() if its == session}
        if any(self.states[turn] == "running" for turn in mine):
            return
        waiting = {text for text, turn in self.accepted.items() if turn in mine} - self.placed - self.withdrawn
        self.placed |= waiting
        self.unanswered |= waiting

    @invariant()
    def every_accepted_message_is_in_exactly_one_place(self) -> None:
        rows = list(self.db.execute("SELECT turn, seq, body, packed FROM messages WHERE role = 'user'"))
        found = {
            message.text: (turn, seq is not None, message.unanswered)
            for turn, seq, message in ((turn, seq, unpack(body, packed)) for turn, seq, body, packed in rows)
        }
        assert len(rows) == len(found)
        assert found == {
            text: (turn, text in self.placed, text in self.unanswered) for text, turn in self.accepted.items()
        }

    @invariant()
    def places_are_whole_and_turns_agree(self) -> None:
        for session in SESSIONS:
            places = [
                row[0]
                for row in self.db.execute(
                    "SELECT seq FROM messages WHERE session = ? AND seq IS NOT NULL ORDER BY seq", (session,)
                )
            ]
            assert places == list(range(1, len(places) + 1))
        stored = {id: state for id, state in self.db.execute("SELECT id, state FROM turns")}
        assert stored == self.states
        still_open = [turn for turn, state in self.states.items() if state in ("queued", "running")]
        assert {row.id for row in open_turns.listing(self.db)} == set(still_open)


def test_every_accepted_message_appears_exactly_once_whatever_happens() -> None:
    """F4, S14, S02: each is waiting, in one turn, withdrawn, or in the transcript as unanswered; an ended session
    accepts nothing more."""
    check_machine(Turns, examples=25, steps=40)


def test_missing_turns_and_sessions_are_not_found(tmp_path: Path) -> None:
    db = connect(tmp_path / "t.db", "process", 1 << 20)
    with contextlib.closing(db):
        migrations.migrate(db)
        new_session(db, "s_1")
        with pytest.raises(NotFound):
            turns.take(db, "t_none", 1.0)
        with pytest.raises(NotFound):
            new_turn(db, "s_none", "t_1")
        with pytest.raises(NotFound):
            messages.undo(db, "t_none", 1.0)
        assert messages.move(db, "t_none", "t_none") == 0
        assert messages.place_steered(db, "t_none", "steer-0-", 1.0) == []
        assert turns.outcome(db, "t_none") is None
        assert not sessions.end(db, "s_none", reason="x", hooks=(), now=1.0)
        assert not sessions.delete(db, "s_none")
