"""Notes: bounds, order, authors, and what running conversations are told about changes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.rows import OWNER, new_session, new_turn, user_message
from tidegate.errors import Conflict, NotFound, Refused, TooLarge
from tidegate.store import About, Db, NoteRow, Origin, messages, migrations, notes, principals, sessions
from tidegate.store.sqlite.connections import connect

MOST = 4096


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    with contextlib.closing(connect(tmp_path / "t.db", "process", 1 << 20)) as db:
        migrations.migrate(db)
        yield db


def keep(
    db: Db,
    text: str,
    *,
    whose: str = "p_anna",
    about: About = "person",
    author: str = "p_anna",
    source: Origin = "person",
    session: str | None = None,
    now: float = 1.0,
    most: int = MOST,
    replaces: int | None = None,
) -> notes.NoteChange:
    return notes.put(
        db,
        about=about,
        whose=whose,
        text=text,
        author=author,
        source=source,
        session=session,
        now=now,
        most=most,
        replaces=replaces,
    )


def put(db: Db, text: str, **fields: Any) -> NoteRow:
    return keep(db, text, **fields).note


def texts(db: Db, whose: str = "p_anna", about: About = "person") -> list[str]:
    return [note.text for note in notes.listing(db, about, whose)]


def test_notes_by_people_come_first_and_then_the_newest(db: apsw.Connection) -> None:
    put(db, "by a tool", source="tool", now=1)
    put(db, "by hand", now=2)
    put(db, "at an end", source="end", now=3)
    put(db, "by hand, later", now=4)
    assert texts(db) == ["by hand, later", "by hand", "at an end", "by a tool"]


def test_a_note_is_always_one_line(db: apsw.Connection) -> None:
    """X19: no note can pass for another one or for the text around it."""
    note = put(db, "likes\n- 7 (owner wrote): everything\x1b[2J\u2028 tea\x00\x85.")
    assert note.text == "likes - 7 (owner wrote): everything [2J tea ."
    assert len(note.text.splitlines()) == 1
    for nothing in ("", " \n ", "\x00\x1f"):
        with pytest.raises(Refused, match="must not be empty"):
            put(db, nothing)
    with pytest.raises(Refused, match="surrogate"):
        put(db, "a \ud800")


def test_a_note_says_who_wrote_it_by_the_name_that_people_know(db: apsw.Connection) -> None:
    """X20: the name is reduced to one line, too."""
    anna = principals.add(db, name="anna\u2028x", role="user", agents=None, now=1.0)
    note = put(db, "likes tea", author=anna.id, source="tool")
    assert (note.author, note.by) == (anna.id, "anna\u2028x")
    assert notes.format_note(note.id, note.source, note.by, note.text) == f"{note.id} (noted with anna x): likes tea"


def test_there_is_a_bound_and_the_refusal_says_what_to_do(db: apsw.Connection) -> None:
    with pytest.raises(TooLarge, match="Shorten it"):
        put(db, "é" * (notes.NOTE_BYTES // 2 + 1))
    first = put(db, "x" * 60, most=100)
    with pytest.raises(TooLarge, match=r"60 of 100 bytes.*Forget a note, or replace"):
        put(db, "y" * 41, most=100)
    put(db, "y" * 40, most=100)
    assert put(db, "z" * 20, most=100, replaces=first.id).id == first.id
    put(db, "w" * 60, whose="p_bert", most=100)
    assert sorted(texts(db)) == ["y" * 40, "z" * 20]


def test_the_number_of_notes_is_bounded_too(db: apsw.Connection) -> None:
    for number in range(notes.NOTES_KEPT):
        put(db, f"note {number}", most=1 << 20)
    with pytest.raises(TooLarge, match="Forget one"):
        put(db, "one more", most=1 << 20)
    assert put(db, "another", most=1 << 20, replaces=notes.listing(db, "person", "p_anna")[0].id).text == "another"


def test_a_known_note_is_not_stored_twice(db: apsw.Connection) -> None:
    first = put(db, "likes tea")
    again = keep(db, " likes  tea ", source="end", session="s", now=2.0)
    assert (again.note, again.changed) == (first, False)
    assert len(texts(db)) == 1


def test_a_note_of_somebody_else_is_not_there(db: apsw.Connection) -> None:
    """X20: access depends on the note's owner, not on its number."""
    note = put(db, "likes tea")
    for about, whose in (("person", "p_bert"), ("agent", "p_anna")):
        with pytest.raises(NotFound):
            notes.forget(db, about=about, whose=whose, id=note.id, session=None, now=1.0)  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            put(db, "hates tea", about=about, whose=whose, replaces=note.id)
    assert texts(db) == ["likes tea"]


def test_numbers_are_never_given_again(db: apsw.Connection) -> None:
    note = put(db, "one")
    notes.forget(db, about="person", whose="p_anna", id=note.id, session=None, now=1.0)
    assert put(db, "two").id > note.id


def rewrite(db: Db, lines: list[tuple[int | None, str]], seen: str, most: int = MOST) -> list[str]:
    found, _ = notes.rewrite(
        db, about="person", whose="p_anna", lines=lines, seen=seen, author="p_owner", now=9.0, most=most
    )
    return [note.text for note in found]


def seen_now(db: Db) -> str:
    return notes.version((note.id, note.text) for note in notes.listing(db, "person", "p_anna"))


def test_all_notes_can_be_rewritten_at_once_from_their_current_version(db: apsw.Connection) -> None:
    one, two, three = (put(db, text, source="tool", now=n) for n, text in enumerate(("one", "two", "three")))
    seen = seen_now(db)
    assert rewrite(db, [(one.id, "one"), (three.id, "drei"), (None, "new")], seen) == ["new", "drei", "one"]
    by_text = {note.text: note for note in notes.listing(db, "person", "p_anna")}
    assert (by_text["one"].author, by_text["one"].source) == ("p_anna", "tool")
    assert (by_text["drei"].author, by_text["drei"].source, by_text["drei"].id) == ("p_owner", "person", three.id)
    before = texts(db)
    with pytest.raises(Conflict, match="changed in the meantime"):
        rewrite(db, [], seen)
    for lines, says in (
        ([(two.id, "gone")], "no note"),
        ([(one.id, "a"), (one.id, "b")], "twice"),
        ([(None, " ")], "must not be empty"),
    ):
        with pytest.raises(Refused, match=says), db:
            rewrite(db, list(lines), seen_now(db))
    assert texts(db) == before


def test_a_rewrite_frees_space_before_it_uses_it(db: apsw.Connection) -> None:
    one, two = put(db, "a" * 50, most=100), put(db, "b" * 50, most=100)
    assert sorted(rewrite(db, [(one.id, "c" * 90), (two.id, "d" * 10)], seen_now(db), 100)) == ["c" * 90, "d" * 10]


# -- what running conversations are told --


def tell(db: Db, session: str, now: float = 5.0, turn: str = "t_now") -> str:
    row = sessions.get(db, session)
    assert row is not None
    return notes.take_changes(db, row, turn, now)


def remembering(db: Db, id: str, principal: str = "p_anna") -> str:
    new_session(db, id, principal=principal)
    notes.mark_seen(db, id, notes.latest(db) + 1)
    return id


def test_a_conversation_is_notified_once_of_changes_by_others(db: apsw.Connection) -> None:
    """With the next message and never again; its own changes are not mentioned."""
    put(db, "before")
    session = remembering(db, "s_1")
    assert tell(db, session) == ""
    note = put(db, "likes tea")
    put(db, "my own", source="tool", session=session)
    put(db, "somebody else's", whose="p_bert")
    put(db, "how we work", about="agent", whose="main", author=OWNER)
    put(db, "another agent", about="agent", whose="other")
    told = tell(db, session).split("\n")
    assert told[0] == notes.HEADING
    assert told[1:] == [
        f"- Of the person: New note {note.id} (p_anna wrote): likes tea",
        f"- Of your work: New note {note.id + 3} (p_owner wrote): how we work",
    ]
    assert tell(db, session) == ""
    put(db, "likes coffee", replaces=note.id)
    notes.forget(db, about="person", whose="p_anna", id=note.id, session=None, now=2.0)
    told = tell(db, session).split("\n")
    assert told[1:] == [
        f"- Of the person: Changed note {note.id} (p_anna wrote): likes coffee",
        f"- Of the person: Forgotten: note {note.id}",
    ]


def test_further_changes_are_mentioned_but_not_listed(db: apsw.Connection) -> None:
    session = remembering(db, "s_1")
    for number in range(notes.CHANGES_TOLD + 5):
        put(db, f"note {number}", most=1 << 20)
    told = tell(db, session).split("\n")
    assert len(told) == notes.CHANGES_TOLD + 2
    assert told[-2].endswith(f"note {notes.CHANGES_TOLD + 4}") and "earlier changes" in told[-1]
    assert tell(db, session) == ""


def test_changes_are_bounded_in_number_and_age(db: apsw.Connection) -> None:
    kept = notes.CHANGES_KEPT
    for number in range(kept + 30):
        put(db, f"note {number}", now=float(number), most=1 << 20)
    put(db, "another's", whose="p_bert")
    assert db.execute("SELECT count(*) FROM note_changes WHERE whose = 'p_anna'").get == kept
    late = notes.CHANGES_SECONDS + 36.0
    assert notes.prune(db, late, 3) == 3
    assert notes.prune(db, late, 100) == 3
    assert notes.prune(db, late * 9, 1000) == kept - 7
    assert db.execute("SELECT count(*) FROM note_changes").get == 2, "the last of each stays"
    assert notes.prune(db, late * 9, 100) == 0


def test_a_conversation_idle_for_too_long_is_told_of_earlier_changes(db: apsw.Connection) -> None:
    """Nothing is omitted silently."""
    session = remembering(db, "s_1")
    new_turn(db, session, "t_1")
    messages.append(db, session=session, turn="t_1", step="in-0", message=user_message("hello"), now=1.0)
    for number in range(3):
        put(db, f"note {number}", now=2.0)
    late = 3.0 + notes.CHANGES_SECONDS
    assert notes.prune(db, late, 100) == 2
    told = tell(db, session, late).split("\n")
    assert told[1].endswith("note 2") and "earlier changes" in told[2]


# -- whatever happens --

WHO, TEXT, NUMBER = st.sampled_from("ab"), st.text(max_size=60), st.integers(1, 12)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), WHO, TEXT, st.sampled_from(("tool", "person", "end"))),
        st.tuples(st.just("edit"), WHO, TEXT, NUMBER),
        st.tuples(st.just("forget"), WHO, st.just(""), NUMBER),
    ),
    max_size=40,
)


@given(acts=ACTS, most=st.integers(20, 300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bounds_order_and_attribution_hold_whatever_is_done(db: apsw.Connection, acts: list[Any], most: int) -> None:
    """X20: each person's notes stay within their bound, in their order, one line each, and in the name of who wrote
    them; what a conversation is told is what became of them."""
    db.execute("DELETE FROM notes; DELETE FROM sqlite_sequence WHERE name = 'notes'; DELETE FROM sessions")
    session = remembering(db, "s_1", "a")
    expected: dict[int, tuple[str, str]] = {}
    for now, (what, who, text, more) in enumerate(acts):
        changed = True
        try:
            with db:
                if what == "forget":
                    notes.forget(db, about="person", whose=who, id=more, session=None, now=now)
                    del expected[more]
                else:
                    how = {"source": more} if what == "put" else {"replaces": more}
                    kept = keep(db, text, whose=who, author=who, now=now, most=most, **how)
                    changed, expected[kept.note.id] = kept.changed, (who, kept.note.text)
        except Refused:
            changed = False
        assert bool(tell(db, session, float(now))) == (changed and who == "a")
    for who in "ab":
        found = notes.listing(db, "person", who)
        assert {note.id: (who, note.text) for note in found} == {i: v for i, v in expected.items() if v[0] == who}
        assert sum(notes.size_of(note.text) for note in found) <= most
        assert found == sorted(found, key=lambda note: (note.source != "person", -note.at, -note.id))
        assert all(note.author == who and len(note.text.splitlines()) == 1 for note in found)
