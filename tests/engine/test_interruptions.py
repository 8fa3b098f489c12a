"""What counts towards limits.resumes: the ends of the process that interrupted the work of a turn."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import apsw
import pytest

from tests.store.rows import ask, new_session, new_turn
from tidegate.engine import StartedTurn
from tidegate.engine.turn_start import start
from tidegate.store import approvals, intents, migrations, turns
from tidegate.store.sqlite.connections import connect

End = Literal[
    "killed at work",
    "killed while waiting",
    "killed while waiting, with another tool at work",
    "stopped at work",
    "stopped while waiting",
]
ENDS: tuple[End, ...] = get_args(End)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    opened = connect(tmp_path / "t.db", "process", 1 << 20)
    migrations.migrate(opened)
    new_session(opened, "s_1")
    yield opened
    opened.close()


def interruptions(db: apsw.Connection, turn: str, ends: tuple[End, ...]) -> int:
    """The interruptions that a turn counts after its process has ended in these ways, one after the other."""
    new_turn(db, "s_1", turn, "hello")
    for number in itertools.count():
        started = start(db, turn, 2.0)
        assert isinstance(started, StartedTurn)
        approvals.cancel_turn(db, turn, 2.0)  # its question is answered, if it has asked one
        intents.clear_turn(db, turn)
        if number == len(ends):
            turns.settle(db, turn, state="answered", now=3.0)
            return started.taken.interruptions
        if "waiting" in ends[number]:
            ask(db, "s_1", f"{number}-0-q_{turn}", turn=turn)
            intents.begin(db, turn, f"tool-{number}-0", "ask_user", 2.0, read_only=True, repeatable=True)
        if "another tool" in ends[number]:
            intents.begin(db, turn, f"tool-{number}-1", "terminal", 2.0, read_only=False, repeatable=False)
        if "stopped" in ends[number]:
            assert turns.park(db, turn, started.taken.turn.fence)
    raise AssertionError


def test_only_an_end_of_the_process_that_interrupted_its_work_counts(db: apsw.Connection) -> None:
    """S17, S29, F1: a kill while the turn only waits for a person does not count, an orderly stop never does; and none
    of them makes an earlier interruption forgotten."""
    ways = [ends for length in range(5) for ends in itertools.product(ENDS, repeat=length)]
    counted = {ends: interruptions(db, f"t_{number}", ends) for number, ends in enumerate(ways)}
    assert counted == {ends: sum("killed" in end and end.endswith("at work") for end in ends) for ends in ways}
