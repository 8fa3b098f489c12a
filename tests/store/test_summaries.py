"""Summaries as a state machine: whatever is said, summarised, applied and undone, every place is shown exactly once."""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.project.quick import check_machine
from tests.store.rows import ANSWER, new_session, new_turn
from tidegate.agent.context import View
from tidegate.store import ElisionRow, SummaryRow, messages, migrations, sessions, summaries, turns
from tidegate.store.sqlite.connections import connect
from tidegate.turns.compaction.compaction import read_view

SESSION = "s_1"


class Tree(RuleBasedStateMachine):
    """The model keeps the places of what was said and not undone, by turn."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.db = connect(Path(self.folder.name) / "t.db", "process", 1 << 20)
        migrations.migrate(self.db)
        self.said: list[tuple[str, list[int]]] = []
        self.turns = 0
        self.copies = 0

    def teardown(self) -> None:
        self.db.close()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        new_session(self.db, SESSION, name="talk")

    @property
    def places(self) -> list[int]:
        return [place for _, places in self.said for place in places]

    def view(self, session: str = SESSION) -> View:
        return read_view(self.db, session, None)

    @rule()
    def speak(self) -> None:
        self.turns += 1
        turn = f"t{self.turns}"
        new_turn(self.db, SESSION, turn, "hello")
        turns.take(self.db, turn, 1.0)
        messages.append(self.db, session=SESSION, turn=turn, step="model-0", message=ANSWER, now=1.0)
        turns.settle(self.db, turn, state="answered", finish="stop", error=None, usage=ANSWER.usage, steps=1, now=1.0)  # type: ignore[arg-type]
        rows = messages.journal(self.db, turn)
        self.said.append((turn, [row.seq or 0 for row in rows]))

    def draft(self, level: int, first: int, last: int) -> SummaryRow:
        text = f"places {first} to {last}"
        return SummaryRow(0, level, first, last, None, "prepared", "model", "m", 0.0, text)

    @precondition(lambda self: len(self.view().rows) > 1)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        view = self.view()
        last = data.draw(st.sampled_from([place for place, _ in view.rows][:-1]))
        summaries.drop_prepared(self.db, SESSION)
        summaries.add(self.db, SESSION, self.draft(0, view.covered + 1, last), 1.0)
        if len(view.summaries) > 1 and data.draw(st.booleans()):
            level = max(row.level for row in view.summaries) + 1
            summaries.add(self.db, SESSION, self.draft(level, view.summaries[0].first, view.covered), 1.0)

    @precondition(lambda self: bool(summaries.prepared(self.db, SESSION)))
    @rule()
    def apply(self) -> None:
        before = self.view()
        rows = summaries.prepared(self.db, SESSION)
        expected = before.with_summaries(rows)
        summaries.apply(self.db, SESSION, [row.number for row in sorted(rows, key=lambda row: (row.level, row.first))])
        after = self.view()
        assert [row.number for row in after.summaries] == [row.number for row in expected.summaries]
        assert (after.rows, after.mark, after.messages()) == (expected.rows, expected.mark, expected.messages())

    @precondition(lambda self: bool(self.view().rows))
    @rule(kind=st.sampled_from(["payload", "text", "media"]), characters=st.integers(0, 9))
    def elide(self, kind: str, characters: int) -> None:
        view = self.view()
        row = ElisionRow(view.covered + 1, view.rows[-1][0], kind, characters)  # type: ignore[arg-type]
        expected = view.with_elision(row)
        summaries.elide(self.db, SESSION, row, 1.0)
        assert self.view() == expected

    @precondition(lambda self: bool(self.said))
    @rule()
    def undo(self) -> None:
        turn, places = self.said.pop()
        assert messages.first_of(self.db, turn) == places[0]
        messages.undo(self.db, turn, 2.0)
        summaries.uncover(self.db, SESSION, places[0])
        text = str(self.view().messages()) + str(summaries.prepared(self.db, SESSION))
        assert f" to {places[-1]}'" not in text and f" to {places[0]}'" not in text

    @precondition(lambda self: bool(self.said))
    @rule()
    def copy(self) -> None:
        """As /resume does: the same is shown, whatever the places are."""
        self.copies += 1
        target = f"s_copy_{self.copies}"
        new_session(self.db, target)
        messages.copy(self.db, SESSION, target, 1.0)
        summaries.copy(self.db, SESSION, target)
        here, there = self.view(), self.view(target)
        assert [row.text for row in there.summaries] == [row.text for row in here.summaries]
        assert [message for _, message in there.rows] == [message for _, message in here.rows]
        assert len(there.shown_rows()) == len(here.shown_rows())
        self.check(there, list(range(1, len(self.places) + 1)))
        sessions.delete(self.db, target)

    def check(self, view: View, places: list[int]) -> None:
        end = 0
        for row in view.summaries:
            assert row.first == end + 1 and row.last >= row.first
            end = row.last
        assert [place for place, _ in view.rows] == [place for place in places if place > end]

    @invariant()
    def everything_is_shown_once(self) -> None:
        view = self.view()
        self.check(view, self.places)
        for row in view.summaries:
            below = summaries.children(self.db, SESSION, row.number)
            if row.level:
                assert (below[0].first, below[-1].last) == (row.first, row.last)
                assert all(one.last + 1 == two.first for one, two in pairwise(below))
            else:
                assert not below
        assert messages.history(self.db, SESSION) == [message for _, message in messages.placed(self.db, SESSION)], (
            "the transcript is whole"
        )
        assert len(messages.history(self.db, SESSION)) == len(self.places)


def test_every_place_is_shown_exactly_once_whatever_is_summarised_and_undone() -> None:
    """S35"""
    check_machine(Tree, examples=60, steps=30)
